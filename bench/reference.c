/* The reference: plain TCP streams that carry the bytes which a ring would, with blocking send and
 * recv, one thread for each end of a stream. No sums, no messages, no registration: what the host's
 * TCP can do, as the limit to compare a plugin with.
 *
 *     collectives:  rank r --streams--> rank r+1, all ranks at once; 2(n-1) or n-1 blocks each
 *     sendrecv:     rank 2k <--streams--> rank 2k+1
 *
 * Blocks that fit a socket's buffer go step by step on one thread, each step after the receive of
 * the one before, as the data of a ring depend on each other; that is the latency's limit. Larger
 * blocks go as fast as the streams take them; a rank starts its next pass when all bytes of the
 * last are in.
 */
#include <errno.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "clock.h"
#include "log.h"
#include "pattern.h"
#include "rank.h"
#include "size.h"

#define STREAMS_MAX    HOLMES_BENCH_STREAMS_MAX
#define STEP_BYTES_MAX 32768 /* with default buffers, a send of it never waits for the reader */

struct hello {
    uint64_t token;
    uint32_t stream, rank;
};

struct holmes_runner {
    const struct holmes_rank_attr *attr;
    int out_fd[STREAMS_MAX], in_fd[STREAMS_MAX]; /* to the next rank, from the one before */
};

/* One run: what its threads share. */
struct run {
    struct holmes_runner *r;
    const struct holmes_rank_work *w;
    size_t streams, iters;
    pthread_mutex_t gate;   /* held until the clock starts */
    pthread_barrier_t pass; /* where the threads meet after each pass */
    atomic_int error;       /* the first */
};

struct worker {
    struct run *run;
    size_t stream;
    bool sends;
    float *us; /* pingpong: half of each round trip of this stream; NULL: not wanted */
    void (*work)(struct worker *w);
    pthread_t thread;
};

static void reference_leave(struct holmes_runner *r)
{
    if (!r)
        return;
    for (int i = 0; i < STREAMS_MAX; i++) {
        if (r->out_fd[i] >= 0)
            close(r->out_fd[i]);
        if (r->in_fd[i] >= 0)
            close(r->in_fd[i]);
    }
    free(r);
}

static int send_all(int fd, const void *buf, size_t len)
{
    for (const char *p = buf; len > 0;) {
        ssize_t n = send(fd, p, len, MSG_NOSIGNAL);

        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return errno == EAGAIN ? -ETIMEDOUT : -errno;
        p += n;
        len -= (size_t)n;
    }
    return 0;
}

static int recv_all(int fd, void *buf, size_t len)
{
    for (char *p = buf; len > 0;) {
        ssize_t n = recv(fd, p, len, 0);

        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return n == 0 ? -ECONNRESET : errno == EAGAIN ? -ETIMEDOUT : -errno;
        p += n;
        len -= (size_t)n;
    }
    return 0;
}

static void socket_set_up(int fd, int timeout_s)
{
    struct timeval tv = {.tv_sec = timeout_s};
    int one = 1;

    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &tv, sizeof tv);
    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &tv, sizeof tv);
}

static int dial_stream(struct holmes_runner *r, uint32_t stream)
{
    struct hello hello = {r->attr->token, stream, (uint32_t)r->attr->rank};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    if (fd < 0)
        return -errno;
    r->out_fd[stream] = fd;
    socket_set_up(fd, r->attr->timeout_s);
    if (connect(fd, (const struct sockaddr *)&r->attr->next, sizeof r->attr->next) != 0)
        return -errno;
    return send_all(fd, &hello, sizeof hello);
}

/* One connection taken from the listener; strangers are closed and do not count. */
static int accept_stream(struct holmes_runner *r, uint64_t deadline_ns)
{
    struct pollfd p = {.fd = r->attr->listen_fd, .events = POLLIN};
    struct hello hello;
    int fd;

    if (holmes_deadline_passed(deadline_ns))
        return -ETIMEDOUT;
    if (poll(&p, 1, 100) <= 0)
        return -EAGAIN;
    fd = accept4(r->attr->listen_fd, NULL, NULL, SOCK_CLOEXEC);
    if (fd < 0)
        return errno == EINTR || errno == ECONNABORTED || errno == EAGAIN ? -EAGAIN : -errno;
    socket_set_up(fd, 1); /* a silent stranger holds nobody up for long */
    if (recv_all(fd, &hello, sizeof hello) != 0 || hello.token != r->attr->token ||
        hello.stream >= STREAMS_MAX || r->in_fd[hello.stream] >= 0) {
        close(fd);
        return -EAGAIN;
    }
    socket_set_up(fd, r->attr->timeout_s);
    r->in_fd[hello.stream] = fd;
    return 0;
}

static int reference_join(const struct holmes_rank_attr *a, const struct holmes_bench_command *cmd,
                          struct holmes_runner **out, char *about, size_t about_len)
{
    uint64_t deadline = holmes_deadline_ms((uint64_t)a->timeout_s * 1000);
    struct holmes_runner *r = calloc(1, sizeof *r);
    int rc = 0;

    (void)cmd;
    if (!r)
        return -ENOMEM;
    *out = r;
    r->attr = a;
    for (int i = 0; i < STREAMS_MAX; i++)
        r->out_fd[i] = r->in_fd[i] = -1;
    for (uint32_t i = 0; i < STREAMS_MAX && rc == 0; i++)
        rc = dial_stream(r, i);
    for (int taken = 0; taken < STREAMS_MAX && (rc == 0 || rc == -EAGAIN); taken += rc == 0)
        rc = accept_stream(r, deadline);
    snprintf(about, about_len, "%s%s", rc ? "cannot connect the streams: " : "TCP on 127.0.0.1",
             rc ? holmes_strerror(rc) : "");
    return rc;
}

/* Block `step` of a buffer that holds `blocks` of them (whole elements), and of it the part that
 * stream `s` of `n` carries. */
static size_t share_of(const struct holmes_rank_work *w, size_t bytes, size_t blocks, size_t step,
                       size_t s, size_t n, size_t *len)
{
    size_t element = holmes_dtype_size(w->attr->type), elements = bytes / element;
    size_t block = step % blocks;
    size_t begin = elements * block / blocks * element;
    size_t end = elements * (block + 1) / blocks * element;
    size_t from = begin + (end - begin) * s / n;

    *len = begin + (end - begin) * (s + 1) / n - from;
    return from;
}

static int step_send(const struct run *run, size_t s, size_t step)
{
    const struct holmes_rank_work *w = run->w;
    size_t len;
    size_t at = share_of(w, w->shape.in_bytes, w->shape.in_blocks, step, s, run->streams, &len);

    return send_all(run->r->out_fd[s], (const char *)w->in + at, len);
}

static int step_recv(const struct run *run, size_t s, size_t step)
{
    const struct holmes_rank_work *w = run->w;
    size_t len;
    size_t at = share_of(w, w->shape.out_bytes, w->shape.out_blocks, step, s, run->streams, &len);

    return recv_all(run->r->in_fd[s], (char *)w->out + at, len);
}

static size_t steps_of(const struct holmes_rank_attr *a)
{
    size_t n = (size_t)a->nranks - 1;

    return a->collective == HOLMES_ALL_REDUCE ? 2 * n : n;
}

static void beat(const struct run *run)
{
    atomic_fetch_add_explicit(run->r->attr->beat, 1, memory_order_relaxed);
}

static void run_fail(struct run *run, int rc)
{
    int none = 0;

    if (rc != 0)
        atomic_compare_exchange_strong(&run->error, &none, rc);
}

/* Small blocks: each step's send waits for the receive of the step before. */
static void ring_chained(struct worker *wk)
{
    struct run *run = wk->run;
    int rc = 0;

    for (size_t i = 0; i < run->iters && rc == 0; i++) {
        for (size_t step = 0; step < steps_of(run->r->attr) && rc == 0; step++) {
            for (size_t s = 0; s < run->streams && rc == 0; s++)
                rc = step_send(run, s, step);
            for (size_t s = 0; s < run->streams && rc == 0; s++)
                rc = step_recv(run, s, step);
        }
        beat(run);
    }
    run_fail(run, rc);
}

/* Large blocks: this end of this stream, pass by pass. After a failure the others must still meet
 * at the barrier, so this one goes on meeting them without moving bytes. */
static void ring_free(struct worker *wk)
{
    struct run *run = wk->run;

    for (size_t i = 0; i < run->iters; i++) {
        for (size_t step = 0; step < steps_of(run->r->attr) && !atomic_load(&run->error); step++)
            run_fail(run, wk->sends ? step_send(run, wk->stream, step)
                                    : step_recv(run, wk->stream, step));
        beat(run);
        pthread_barrier_wait(&run->pass);
    }
}

static void pingpong(struct worker *wk)
{
    struct run *run = wk->run;
    bool serves = run->r->attr->rank % 2 == 0;
    uint64_t last = holmes_now_ns(), now;
    int rc = 0;

    for (size_t i = 0; i < run->iters && rc == 0; i++) {
        rc = serves ? step_send(run, wk->stream, 0) : step_recv(run, wk->stream, 0);
        if (rc == 0)
            rc = serves ? step_recv(run, wk->stream, 0) : step_send(run, wk->stream, 0);
        if (wk->us) {
            now = holmes_now_ns();
            wk->us[i] = (float)((double)(now - last) / 2e3);
            last = now;
        }
        beat(run);
    }
    run_fail(run, rc);
}

/* This end of this stream, in one of the two directions. When all of a rank's are through, it sends
 * a byte on each stream, which says that everything has come. Threads meet at the barrier whatever
 * happened to them. */
static void stream_both_ways(struct worker *wk)
{
    struct run *run = wk->run;
    char word = 0;

    for (size_t i = 0; i < run->iters && !atomic_load(&run->error); i++) {
        run_fail(run, wk->sends ? step_send(run, wk->stream, 0) : step_recv(run, wk->stream, 0));
        beat(run);
    }
    pthread_barrier_wait(&run->pass);
    if (!atomic_load(&run->error))
        run_fail(run, wk->sends ? send_all(run->r->out_fd[wk->stream], &word, 1)
                                : recv_all(run->r->in_fd[wk->stream], &word, 1));
}

/* Even ranks send all messages in one go; a byte back says that they have come. */
static void stream_one_way(struct worker *wk)
{
    struct run *run = wk->run;
    bool sends = run->r->attr->rank % 2 == 0;
    char word = 0;
    int rc = 0;

    for (size_t i = 0; i < run->iters && rc == 0; i++) {
        rc = sends ? step_send(run, wk->stream, 0) : step_recv(run, wk->stream, 0);
        beat(run);
    }
    if (rc == 0)
        rc = sends ? recv_all(run->r->in_fd[wk->stream], &word, 1)
                   : send_all(run->r->out_fd[wk->stream], &word, 1);
    run_fail(run, rc);
}

static void *worker_main(void *arg)
{
    struct worker *wk = arg;

    pthread_mutex_lock(&wk->run->gate);
    pthread_mutex_unlock(&wk->run->gate);
    if (!atomic_load(&wk->run->error))
        wk->work(wk);
    return NULL;
}

/* The workers of a run; returns their number. */
static size_t workers_of(struct run *run, enum holmes_bench_measure measure, struct worker *wk)
{
    const struct holmes_rank_work *w = run->w;
    bool both_ways = measure == HOLMES_BENCH_BANDWIDTH && run->r->attr->both_ways;
    void (*work)(struct worker *) = measure == HOLMES_BENCH_TIME      ? ring_free
                                    : measure == HOLMES_BENCH_LATENCY ? pingpong
                                    : both_ways                       ? stream_both_ways
                                                                      : stream_one_way;
    size_t n = 0;

    if (measure == HOLMES_BENCH_TIME && w->shape.in_bytes / w->shape.in_blocks <= STEP_BYTES_MAX) {
        wk[n++] = (struct worker){.run = run, .work = ring_chained};
        return n;
    }
    for (size_t s = 0; s < run->streams; s++) {
        wk[n++] = (struct worker){.run = run, .stream = s, .work = work, .sends = true};
        if (measure == HOLMES_BENCH_TIME || both_ways)
            wk[n++] = (struct worker){.run = run, .stream = s, .work = work};
    }
    return n;
}

/* All ranks of the ring (or both of the pair) are here: a byte goes round it. */
static int ring_meet(struct holmes_runner *r)
{
    int hops = r->attr->collective == HOLMES_SENDRECV ? 1 : r->attr->nranks - 1, rc = 0;
    char word = 0;

    for (int i = 0; i < hops && rc == 0; i++) {
        rc = send_all(r->out_fd[0], &word, 1);
        if (rc == 0)
            rc = recv_all(r->in_fd[0], &word, 1);
    }
    return rc;
}

/* Room for the times of every stream's messages; NULL when they are not wanted. */
static float *messages_begin(struct run *run, struct worker *wk, size_t n,
                             const struct holmes_timing *t)
{
    float *us = t->message_us ? calloc(n * run->iters, sizeof *us) : NULL;

    if (t->message_us && !us)
        run_fail(run, -ENOMEM);
    for (size_t i = 0; i < n && us; i++)
        wk[i].us = us + i * run->iters;
    return us;
}

/* A message has come when its last share has: each counts with the slowest of its streams. */
static void messages_end(const struct run *run, size_t n, float *us, struct holmes_timing *t)
{
    for (size_t i = 0; us && i < run->iters; i++) {
        t->message_us[i] = us[i];
        for (size_t s = 1; s < n; s++)
            if (us[s * run->iters + i] > t->message_us[i])
                t->message_us[i] = us[s * run->iters + i];
    }
    free(us);
}

static int run_timed(struct holmes_runner *r, const struct holmes_rank_work *w,
                     enum holmes_bench_measure measure, size_t streams, size_t iters,
                     struct holmes_timing *t)
{
    struct run run = {
        .r = r, .w = w, .streams = streams, .iters = iters, .gate = PTHREAD_MUTEX_INITIALIZER};
    struct worker workers[2 * STREAMS_MAX];
    size_t n = workers_of(&run, measure, workers), started;
    float *us = messages_begin(&run, workers, n, t);

    pthread_barrier_init(&run.pass, NULL, (unsigned)n);
    pthread_mutex_lock(&run.gate);
    for (started = 0; started < n; started++) {
        int rc = pthread_create(&workers[started].thread, NULL, worker_main, &workers[started]);

        run_fail(&run, -rc);
        if (rc != 0)
            break;
    }
    run_fail(&run, ring_meet(r));
    holmes_timing_start(t);
    pthread_mutex_unlock(&run.gate);
    for (size_t i = 0; i < started; i++)
        pthread_join(workers[i].thread, NULL);
    holmes_timing_stop(t);
    messages_end(&run, n, us, t);
    pthread_barrier_destroy(&run.pass);
    return atomic_load(&run.error);
}

static int reference_fail(const struct holmes_runner *r, const struct holmes_rank_work *w, int rc,
                          char *why, size_t why_len)
{
    char size[32];

    if (rc == 0)
        return 0;
    holmes_size_format(w->shape.size_bytes, size, sizeof size);
    snprintf(why, why_len, "%s of %s: %s", holmes_collective_name(r->attr->collective), size,
             rc == -ETIMEDOUT ? "no byte within the timeout" : holmes_strerror(rc));
    return rc;
}

static int reference_run(struct holmes_runner *r, const struct holmes_rank_work *w,
                         const struct holmes_bench_command *cmd, struct holmes_timing *t, char *why,
                         size_t why_len)
{
    struct holmes_timing warmup = {0};
    int rc = 0;

    if (cmd->warmups)
        rc = run_timed(r, w, cmd->measure, cmd->streams, cmd->warmups, &warmup);
    if (rc == 0)
        rc = run_timed(r, w, cmd->measure, cmd->streams, cmd->iters, t);
    return reference_fail(r, w, rc, why, why_len);
}

/* What lies in block `to` of the output came in the last step that wrote there. */
static uint64_t check_blocks(const struct holmes_rank_work *w)
{
    const struct holmes_rank_attr *a = w->attr;
    const struct holmes_shape *s = &w->shape;
    size_t element = holmes_dtype_size(a->type), steps = steps_of(a), in_at, out_at, len;
    int from = (a->rank + a->nranks - 1) % a->nranks;
    uint64_t wrong = 0;

    for (size_t step = steps > s->out_blocks ? steps - s->out_blocks : 0; step < steps; step++) {
        if (s->out_blocks == 1 && step + 1 < steps)
            continue;
        in_at = share_of(w, s->in_bytes, s->in_blocks, step, 0, 1, &len);
        out_at = share_of(w, s->out_bytes, s->out_blocks, step, 0, 1, &len);
        wrong += holmes_pattern_check((const char *)w->out + out_at, in_at / element, len / element,
                                      a->type, from, w->salt);
    }
    return wrong;
}

static int reference_verify(struct holmes_runner *r, const struct holmes_rank_work *w,
                            uint32_t streams, uint64_t *wrong, char *why, size_t why_len)
{
    const struct holmes_rank_attr *a = r->attr;
    struct holmes_timing t = {0};
    int rc;

    if (a->collective != HOLMES_SENDRECV) {
        rc = run_timed(r, w, HOLMES_BENCH_TIME, streams, 1, &t);
        *wrong = rc == 0 ? check_blocks(w) : 0;
        return reference_fail(r, w, rc, why, why_len);
    }
    rc = run_timed(r, w, HOLMES_BENCH_LATENCY, streams, 1, &t);
    *wrong = holmes_pattern_check(w->out, 0, w->shape.count, a->type, holmes_rank_partner(a->rank),
                                  w->salt);
    holmes_pattern_poison(w->out, w->shape.out_bytes);
    if (rc == 0)
        rc = run_timed(r, w, HOLMES_BENCH_BANDWIDTH, streams, 1, &t);
    if (rc == 0 && (a->both_ways || a->rank % 2 == 1))
        *wrong += holmes_pattern_check(w->out, 0, w->shape.count, a->type,
                                       holmes_rank_partner(a->rank), w->salt);
    return reference_fail(r, w, rc, why, why_len);
}

const struct holmes_runner_ops holmes_runner_reference = {
    .join = reference_join,
    .verify = reference_verify,
    .run = reference_run,
    .leave = reference_leave,
};
