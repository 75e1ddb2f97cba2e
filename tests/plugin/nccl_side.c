/* NCCL's threads and their calls. The order and the arguments follow what NCCL's proxy does, down
 * to stale pointers in *request, because plugins have broken on each of these habits. */
#include "nccl_side.h"

#include <errno.h>
#include <poll.h>
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "clock.h"

#define STALE     ((void *)0xdead0) /* what NCCL's request array holds from earlier */
#define UNTOUCHED (-7)
#define SCRUB     0xee

static const size_t proto_bytes[NPROTOS] = {LL_BYTES, LL128_BYTES, SIMPLE_BYTES};
static const size_t proto_offset[NPROTOS] = {0, LL_BYTES, LL_BYTES + LL128_BYTES};

bool rank_fail(struct rank *r, const char *fmt, ...)
{
    va_list ap;

    pthread_mutex_lock(&r->failure_lock);
    if (r->failure[0] == '\0') {
        size_t n =
            (size_t)snprintf(r->failure, sizeof r->failure, "rank %d, v%d: ", r->rank, r->version);

        va_start(ap, fmt);
        vsnprintf(r->failure + n, sizeof r->failure - n, fmt, ap);
        va_end(ap);
    }
    pthread_mutex_unlock(&r->failure_lock);
    return false;
}

/* ---- bootstrap ---- */

static bool boot_move(struct rank *r, void *buf, size_t len, bool sending)
{
    uint64_t deadline = holmes_deadline_ms(SCRIPT_MS);
    uint8_t *p = buf;

    while (len > 0) {
        struct pollfd pfd = {.fd = r->boot, .events = sending ? POLLOUT : POLLIN};
        ssize_t n;

        RANK_CHECK(!holmes_deadline_passed(deadline), "the other rank does not answer");
        if (poll(&pfd, 1, 100) <= 0)
            continue;
        n = sending ? send(r->boot, p, len, MSG_NOSIGNAL) : recv(r->boot, p, len, 0);
        RANK_CHECK(n > 0, "the other rank is gone");
        p += n;
        len -= (size_t)n;
    }
    return true;
}

bool boot_exchange(struct rank *r, const void *mine, void *theirs, size_t len)
{
    return boot_move(r, (void *)(uintptr_t)mine, len, true) && boot_move(r, theirs, len, false);
}

bool rank_barrier(struct rank *r)
{
    char mine = 'b', theirs;

    return boot_exchange(r, &mine, &theirs, 1);
}

/* ---- service thread ---- */

static void *service_main(void *arg)
{
    struct rank *r = arg;

    pthread_mutex_lock(&r->service_lock);
    while (!r->service_stop) {
        if (!r->job) {
            pthread_cond_wait(&r->service_cond, &r->service_lock);
            continue;
        }
        pthread_mutex_unlock(&r->service_lock);
        r->job_result = r->job(r, r->job_arg);
        pthread_mutex_lock(&r->service_lock);
        r->job = NULL;
        pthread_cond_broadcast(&r->service_cond);
    }
    pthread_mutex_unlock(&r->service_lock);
    return NULL;
}

/* Jobs bound their own waits. */
static bool service_run(struct rank *r, bool (*job)(struct rank *, void *), void *arg)
{
    pthread_mutex_lock(&r->service_lock);
    r->job_arg = arg;
    r->job = job;
    pthread_cond_broadcast(&r->service_cond);
    while (r->job)
        pthread_cond_wait(&r->service_cond, &r->service_lock);
    pthread_mutex_unlock(&r->service_lock);
    return r->job_result;
}

static int device_of(const struct rank *r, int channel)
{
    return r->ndevices > 0 ? channel % r->ndevices : 0;
}

static bool job_listen(struct rank *r, void *handles)
{
    for (int c = 0; c < r->nchannels; c++) {
        char *handle = (char *)handles + c * NCCL_NET_HANDLE_MAXSIZE;
        struct net_props props;
        ncclResult_t rc = net_properties(&r->api, device_of(r, c), &props);

        RANK_CHECK(rc == ncclSuccess, "getProperties: %d", rc);
        rc = net_listen(&r->api, r->ctx, device_of(r, c), handle, &r->channels[c].listen);
        RANK_CHECK(rc == ncclSuccess && r->channels[c].listen, "listen: %d", rc);
    }
    return true;
}

static bool register_buffers(struct rank *r, void *comm, uint8_t *buf, void **mr)
{
    for (int p = r->p2p ? SIMPLE : LL; p < NPROTOS; p++) {
        ncclResult_t rc = net_reg(&r->api, comm, buf + proto_offset[p], proto_bytes[p], &mr[p]);

        RANK_CHECK(rc == ncclSuccess && mr[p], "regMr of %zu bytes: %d", proto_bytes[p], rc);
    }
    return true;
}

static bool poll_connect(struct rank *r, struct channel *ch)
{
    ncclResult_t rc;

    if (ch->send)
        return true;
    rc = net_connect(&r->api, r->ctx, device_of(r, (int)(ch - r->channels)), ch->handle, &ch->send);
    RANK_CHECK(rc == ncclSuccess, "connect: %d", rc);
    return !ch->send || register_buffers(r, ch->send, ch->send_buf, ch->send_mr);
}

static bool poll_accept(struct rank *r, struct channel *ch)
{
    ncclResult_t rc;

    if (ch->recv)
        return true;
    rc = net_accept(&r->api, ch->listen, &ch->recv);
    RANK_CHECK(rc == ncclSuccess, "accept: %d", rc);
    if (!ch->recv)
        return true;
    rc = net_close_listen(&r->api, ch->listen);
    ch->listen = NULL;
    RANK_CHECK(rc == ncclSuccess, "closeListen: %d", rc);
    return register_buffers(r, ch->recv, ch->recv_buf, ch->recv_mr);
}

static bool job_connect(struct rank *r, void *arg)
{
    uint64_t deadline = holmes_deadline_ms(SCRIPT_MS);
    int pending;

    (void)arg;
    do {
        pending = 0;
        for (int c = 0; c < r->nchannels; c++) {
            if (!poll_connect(r, &r->channels[c]) || !poll_accept(r, &r->channels[c]))
                return false;
            pending += !r->channels[c].send + !r->channels[c].recv;
        }
        RANK_CHECK(!holmes_deadline_passed(deadline), "%d connections are not up", pending);
    } while (pending > 0);
    return true;
}

static bool job_close(struct rank *r, void *arg)
{
    (void)arg;
    for (int c = 0; c < r->nchannels; c++) {
        struct channel *ch = &r->channels[c];

        for (int p = LL; p < NPROTOS; p++) {
            RANK_CHECK(net_dereg(&r->api, ch->send, ch->send_mr[p]) == ncclSuccess, "deregMr");
            RANK_CHECK(net_dereg(&r->api, ch->recv, ch->recv_mr[p]) == ncclSuccess, "deregMr");
        }
        RANK_CHECK(net_close_send(&r->api, ch->send) == ncclSuccess, "closeSend");
        RANK_CHECK(net_close_recv(&r->api, ch->recv) == ncclSuccess, "closeRecv");
        ch->send = ch->recv = NULL;
    }
    return true;
}

/* ---- progress thread ---- */

static uint64_t mix(uint64_t x)
{
    x ^= x >> 31;
    x *= 0x9e3779b97f4a7c15ull;
    return x ^ (x >> 29);
}

static void pattern_fill(uint8_t *p, size_t len, uint64_t seed)
{
    for (size_t i = 0; i < len; i += 8) {
        uint64_t v = mix(seed + i);

        memcpy(p + i, &v, len - i < 8 ? len - i : 8);
    }
}

/* Offset of the first wrong byte, or len. */
static size_t pattern_check(const uint8_t *p, size_t len, uint64_t seed)
{
    for (size_t i = 0; i < len; i += 8) {
        uint64_t v = mix(seed + i);

        if (memcmp(p + i, &v, len - i < 8 ? len - i : 8) != 0)
            return i;
    }
    return len;
}

static uint64_t message_seed(const struct op *op, int msg)
{
    return mix(op->seed + (uint64_t)msg * 7919);
}

static uint8_t *slot(struct op *op, int msg)
{
    uint8_t *buf = op->sending ? op->ch->send_buf : op->ch->recv_buf;

    return buf + proto_offset[op->proto] +
           (op->base + (unsigned)msg) % (unsigned)op->depth * op->stride;
}

static bool op_fail(struct rank *r, struct op *op, ncclResult_t rc, const char *what, int msg)
{
    op->result = rc;
    rank_fail(r, "%s of message %d (%zu bytes): %d", what, msg, op->sizes[msg], rc);
    return false;
}

/* Both return whether something moved; an error ends the operation. */
static bool progress_send(struct rank *r, struct op *op)
{
    void *mr = op->ch->send_mr[op->proto];
    bool moved = false;
    ncclResult_t rc;

    if (op->posted < op->nmsgs && op->posted < op->done + op->depth) {
        int msg = op->posted;
        void *request = STALE;

        if (op->filled == msg) /* the GPU fills the slot once it is free */
            pattern_fill(slot(op, op->filled++), op->sizes[msg], message_seed(op, msg));
        rc = net_isend(&r->api, op->ch->send, slot(op, msg), op->sizes[msg], op->tag, mr, &request);
        if (rc != ncclSuccess)
            return op_fail(r, op, rc, "isend", msg);
        if (request == STALE)
            return op_fail(r, op, ncclInternalError, "untouched request after isend", msg);
        if (request) {
            op->requests[msg % op->depth] = request;
            op->posted++;
            moved = true;
        }
    }
    if (op->done < op->posted) {
        int done = UNTOUCHED, size = UNTOUCHED, msg = op->done;

        rc = net_test(&r->api, op->requests[msg % op->depth], &done, &size);
        if (rc != ncclSuccess)
            return op_fail(r, op, rc, "test of a send", msg);
        if (done != 0 && done != 1)
            return op_fail(r, op, ncclInternalError, "untouched done", msg);
        if (done) {
            if (size != (int)op->sizes[msg])
                return op_fail(r, op, ncclInternalError, "size of a send", msg);
            op->done++;
            moved = true;
        }
    }
    return moved;
}

static bool received(struct rank *r, struct op *op, int msg, const int *sizes)
{
    uint8_t *p = slot(op, msg);
    size_t len = op->sizes[msg], bad;
    void *flush = STALE;

    if (sizes[0] != (int)len) {
        rank_fail(r, "message %d came with %d bytes, not %zu", msg, sizes[0], len);
        return op_fail(r, op, ncclInternalError, "size", msg);
    }
    for (int i = 1; i < 64; i++) {
        if (sizes[i] != UNTOUCHED)
            return op_fail(r, op, ncclInternalError, "sizes behind the first", msg);
    }
    bad = pattern_check(p, len, message_seed(op, msg));
    if (bad != len) {
        rank_fail(r, "message %d of %zu bytes is wrong at byte %zu", msg, len, bad);
        return op_fail(r, op, ncclInternalError, "contents", msg);
    }
    for (size_t i = len; i < op->recv_max; i++) {
        if (p[i] != SCRUB)
            return op_fail(r, op, ncclInternalError, "bytes behind the message were written", msg);
    }
    if (op->proto == SIMPLE && (net_flush(&r->api, op->ch->recv, p, sizes[0],
                                          op->ch->recv_mr[SIMPLE], &flush) != ncclSuccess ||
                                flush))
        return op_fail(r, op, ncclInternalError, "iflush of host memory", msg);
    return true;
}

static bool progress_recv(struct rank *r, struct op *op)
{
    int sizes[64], done = UNTOUCHED, msg;
    ncclResult_t rc;

    if (op->posted < op->nmsgs && op->posted < op->done + op->depth) {
        void *request = op->proto == SIMPLE ? STALE : (void *)NCCL_NET_OPTIONAL_RECV_COMPLETION;
        uint8_t *p = slot(op, op->posted);

        memset(p, SCRUB, op->recv_max);
        rc = net_irecv(&r->api, op->ch->recv, p, op->recv_max, op->tag, op->ch->recv_mr[op->proto],
                       &request);
        if (rc != ncclSuccess)
            return op_fail(r, op, rc, "irecv", op->posted);
        if (request == STALE || request == (void *)NCCL_NET_OPTIONAL_RECV_COMPLETION)
            return op_fail(r, op, ncclInternalError, "untouched request after irecv", op->posted);
        if (request) {
            op->requests[op->posted % op->depth] = request;
            op->posted++;
            return true; /* posted first; tests come in a later round */
        }
    }
    if (op->done == op->posted)
        return false;
    msg = op->done;
    for (int i = 0; i < 64; i++)
        sizes[i] = UNTOUCHED;
    rc = net_test(&r->api, op->requests[msg % op->depth], &done, sizes);
    if (rc != ncclSuccess)
        return op_fail(r, op, rc, "test of a receive", msg);
    if (done != 0 && done != 1)
        return op_fail(r, op, ncclInternalError, "untouched done", msg);
    if (!done)
        return sizes[0] == UNTOUCHED
                   ? false
                   : op_fail(r, op, ncclInternalError, "sizes before the end", msg);
    if (!received(r, op, msg, sizes))
        return false;
    op->done++;
    return true;
}

static void op_end(struct rank *r, int i)
{
    struct op *op = r->ops[i];

    if (op->sending)
        op->ch->send_slot = op->base + (unsigned)op->done;
    else
        op->ch->recv_slot = op->base + (unsigned)op->done;
    r->ops[i] = r->ops[--r->nops];
    op->finished = true;
    pthread_cond_broadcast(&r->progress_cond);
}

/* One call for each operation and round. Counters of an operation change under the lock, so that
 * the init thread can watch them; NCCL's threads share them through memory too. */
static void *progress_main(void *arg)
{
    struct rank *r = arg;

    pthread_mutex_lock(&r->progress_lock);
    while (!r->progress_stop && !atomic_load(&r->abort)) {
        bool moved = false;

        if (r->nops == 0) {
            pthread_cond_wait(&r->progress_cond, &r->progress_lock);
            continue;
        }
        for (int i = r->nops - 1; i >= 0; i--) {
            struct op *op = r->ops[i];

            moved |= op->sending ? progress_send(r, op) : progress_recv(r, op);
            if (op->result != ncclSuccess || op->done == op->nmsgs)
                op_end(r, i);
        }
        pthread_cond_broadcast(&r->progress_cond);
        pthread_mutex_unlock(&r->progress_lock);
        if (!moved)
            sched_yield();
        pthread_mutex_lock(&r->progress_lock);
    }
    pthread_mutex_unlock(&r->progress_lock);
    return NULL;
}

void rank_start(struct rank *r, struct op *ops, int nops)
{
    pthread_mutex_lock(&r->progress_lock);
    for (int i = 0; i < nops; i++) {
        struct op *op = &ops[i];

        op->base = op->sending ? op->ch->send_slot : op->ch->recv_slot;
        op->filled = op->posted = op->done = 0;
        op->finished = op->nmsgs == 0;
        op->result = ncclSuccess;
        if (!op->finished)
            r->ops[r->nops++] = op;
    }
    pthread_cond_broadcast(&r->progress_cond);
    pthread_mutex_unlock(&r->progress_lock);
}

static bool wait_for(struct rank *r, struct op *op, int posted, int timeout_ms)
{
    struct timespec until;
    bool done = false;

    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += timeout_ms / 1000;
    until.tv_nsec += (long)(timeout_ms % 1000) * 1000000;
    if (until.tv_nsec >= 1000000000) {
        until.tv_sec++;
        until.tv_nsec -= 1000000000;
    }
    pthread_mutex_lock(&r->progress_lock);
    while (!(done = op->finished || (posted >= 0 && op->posted >= posted))) {
        if (pthread_cond_timedwait(&r->progress_cond, &r->progress_lock, &until) == ETIMEDOUT)
            break;
    }
    pthread_mutex_unlock(&r->progress_lock);
    return done;
}

bool rank_wait_posted(struct rank *r, struct op *op, int posted)
{
    RANK_CHECK(wait_for(r, op, posted, SCRIPT_MS), "%d of %d messages posted", op->posted, posted);
    return true;
}

bool rank_wait_finished(struct rank *r, struct op *op, int timeout_ms)
{
    RANK_CHECK(wait_for(r, op, -1, timeout_ms), "%s: %d of %d messages within %d ms (%d posted)",
               op->sending ? "send" : "receive", op->done, op->nmsgs, timeout_ms, op->posted);
    return true;
}

bool rank_wait_ended(struct rank *r, struct op *op, int timeout_ms)
{
    return wait_for(r, op, -1, timeout_ms);
}

bool rank_run(struct rank *r, struct op *ops, int nops)
{
    rank_start(r, ops, nops);
    for (int i = 0; i < nops; i++) {
        if (!rank_wait_finished(r, &ops[i], SCRIPT_MS) || ops[i].result != ncclSuccess)
            return false;
    }
    return true;
}

/* ---- a rank ---- */

bool rank_init(struct rank *r)
{
    const char *error = net_open(r->plugin, r->version, &r->api);
    struct net_props props;
    ncclResult_t rc;
    int ndev = UNTOUCHED;

    RANK_CHECK(!error, "%s", error);
    r->ctx = STALE;
    rc = net_init(&r->api, &r->ctx, r->comm_id, test_logger);
    RANK_CHECK(rc == ncclSuccess, "init: %d", rc);
    RANK_CHECK(r->ctx != STALE, "init left *ctx untouched");
    rc = net_devices(&r->api, &ndev);
    RANK_CHECK(rc == ncclSuccess && ndev > 0, "devices: %d, %d", rc, ndev);
    for (int i = 0; i < ndev; i++) {
        rc = net_properties(&r->api, i, &props);
        RANK_CHECK(rc == ncclSuccess, "getProperties(%d): %d", i, rc);
    }
    RANK_CHECK(pthread_create(&r->service, NULL, service_main, r) == 0, "pthread_create");
    r->service_runs = true;
    return true;
}

bool rank_connect(struct rank *r, int nchannels)
{
    char mine[MAX_CHANNELS * NCCL_NET_HANDLE_MAXSIZE + 1] = {0};
    char theirs[sizeof mine];

    r->nchannels = nchannels;
    for (int c = 0; c < nchannels; c++) {
        struct channel *ch = &r->channels[c];

        memset(ch, 0, sizeof *ch);
        ch->send_buf = aligned_alloc(4096, BUFFER_BYTES);
        ch->recv_buf = aligned_alloc(4096, BUFFER_BYTES);
        RANK_CHECK(ch->send_buf && ch->recv_buf, "no memory");
    }
    /* From an odd address: nobody promised alignment. */
    if (!service_run(r, job_listen, mine + 1) || !boot_exchange(r, mine, theirs, sizeof mine))
        return false;
    for (int c = 0; c < nchannels; c++)
        memcpy(r->channels[c].handle, theirs + 1 + c * NCCL_NET_HANDLE_MAXSIZE,
               NCCL_NET_HANDLE_MAXSIZE);
    if (!service_run(r, job_connect, NULL))
        return false;
    if (!r->progress_runs)
        RANK_CHECK(pthread_create(&r->progress, NULL, progress_main, r) == 0, "pthread_create");
    r->progress_runs = true;
    return true;
}

static void stop_progress(struct rank *r)
{
    if (!r->progress_runs)
        return;
    atomic_store(&r->abort, true);
    pthread_mutex_lock(&r->progress_lock);
    r->progress_stop = true;
    pthread_cond_broadcast(&r->progress_cond);
    pthread_mutex_unlock(&r->progress_lock);
    pthread_join(r->progress, NULL);
    r->progress_runs = false;
}

static void stop_service(struct rank *r)
{
    if (!r->service_runs)
        return;
    pthread_mutex_lock(&r->service_lock);
    r->service_stop = true;
    pthread_cond_broadcast(&r->service_cond);
    pthread_mutex_unlock(&r->service_lock);
    pthread_join(r->service, NULL);
    r->service_runs = false;
}

bool rank_destroy(struct rank *r)
{
    bool closed;

    stop_progress(r);
    closed = service_run(r, job_close, NULL);
    stop_service(r);
    RANK_CHECK(net_finalize(&r->api, r->ctx) == ncclSuccess, "finalize");
    r->ctx = NULL;
    net_close(&r->api);
    return closed;
}

void rank_setup(struct rank *r, const char *plugin, int version, int rank, int boot, void *arg)
{
    memset(r, 0, sizeof *r);
    r->plugin = plugin;
    r->version = version;
    r->rank = rank;
    r->boot = boot;
    r->script_arg = arg;
    pthread_mutex_init(&r->service_lock, NULL);
    pthread_cond_init(&r->service_cond, NULL);
    pthread_mutex_init(&r->progress_lock, NULL);
    pthread_cond_init(&r->progress_cond, NULL);
    pthread_mutex_init(&r->failure_lock, NULL);
}

void rank_fini(struct rank *r)
{
    stop_progress(r);
    stop_service(r);
    for (int c = 0; c < MAX_CHANNELS; c++) {
        free(r->channels[c].send_buf);
        free(r->channels[c].recv_buf);
    }
    close(r->boot);
}
