/* The rendezvous client: calls from any thread, answers sorted out by one reader thread, which also
 * hears of an abort or of the server's end while nobody calls. */
#include "rendezvous.h"

#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "clock.h"
#include "list.h"
#include "log.h"
#include "rdv_peer.h"

enum {
    RETRY_MS = 50,
    GRACE_MS = 5000, /* beyond a call's own timeout: the server answers it, unless it hangs */
    LEAVE_MS = 2000,
};

struct call {
    struct holmes_list node;
    uint32_t id;
    bool done;
    int status;
    void *data;
    size_t cap, len;
};

struct holmes_rdv {
    int fd, rank, nranks;
    char host[HOLMES_RDV_HOST_MAX];
    char server[200]; /* "10.0.0.1 port 29500" */
    pthread_t reader;
    pthread_mutex_t send_lock; /* one frame at a time */
    pthread_mutex_t lock;      /* the rest */
    pthread_cond_t answered;
    struct holmes_list calls;
    uint32_t next_id;
    bool leaving, ended;
    void (*on_abort)(void *ctx); /* once, with the lock held */
    void *on_abort_ctx;
    atomic_bool aborted;
    char abort_text[HOLMES_RDV_TEXT_MAX]; /* constant once `aborted` */
};

/* Why the last call on this thread failed. */
static _Thread_local char last_reason[HOLMES_RDV_TEXT_MAX];

static int fail(int rc, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static int fail(int rc, const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(last_reason, sizeof last_reason, fmt, ap);
    va_end(ap);
    return rc;
}

/* ---- blocking I/O with a deadline ---- */

static int remaining_ms(uint64_t deadline_ns)
{
    uint64_t now = holmes_now_ns();

    return deadline_ns <= now ? 0 : (int)((deadline_ns - now) / 1000000u) + 1;
}

static int wait_fd(int fd, short events, uint64_t deadline_ns)
{
    struct pollfd p = {fd, events, 0};
    int n;

    do
        n = poll(&p, 1, remaining_ms(deadline_ns));
    while (n < 0 && errno == EINTR);
    return n < 0 ? -errno : n == 0 ? -ETIMEDOUT : 0;
}

static int write_all(int fd, const uint8_t *data, size_t len, uint64_t deadline_ns)
{
    while (len) {
        ssize_t n = send(fd, data, len, MSG_NOSIGNAL | MSG_DONTWAIT);
        int rc = 0;

        if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
            rc = wait_fd(fd, POLLOUT, deadline_ns);
        else if (n < 0 && errno != EINTR)
            rc = -errno;
        if (rc)
            return rc;
        if (n > 0) {
            data += n;
            len -= (size_t)n;
        }
    }
    return 0;
}

static int read_all(int fd, uint8_t *data, size_t len, uint64_t deadline_ns)
{
    while (len) {
        ssize_t n = recv(fd, data, len, MSG_DONTWAIT);
        int rc = 0;

        if (n == 0)
            return -ECONNRESET;
        if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
            rc = wait_fd(fd, POLLIN, deadline_ns);
        else if (n < 0 && errno != EINTR)
            rc = -errno;
        if (rc)
            return rc;
        if (n > 0) {
            data += n;
            len -= (size_t)n;
        }
    }
    return 0;
}

static int write_frame(int fd, enum holmes_rdv_type type, uint32_t id, const void *a, size_t a_len,
                       const void *b, size_t b_len, uint64_t deadline_ns)
{
    size_t len = HOLMES_RDV_HEADER + a_len + b_len;
    struct holmes_rdv_header h = {(uint32_t)(a_len + b_len), type, id};
    uint8_t *frame = malloc(len);
    int rc;

    if (!frame)
        return -ENOMEM;
    holmes_rdv_header_write(frame, &h);
    if (a_len)
        memcpy(frame + HOLMES_RDV_HEADER, a, a_len);
    if (b_len)
        memcpy(frame + HOLMES_RDV_HEADER + a_len, b, b_len);
    rc = write_all(fd, frame, len, deadline_ns);
    free(frame);
    return rc;
}

/* A frame of at most `cap` bytes of payload. */
static int read_frame(int fd, struct holmes_rdv_header *h, uint8_t *data, size_t cap,
                      uint64_t deadline_ns)
{
    uint8_t head[HOLMES_RDV_HEADER];
    int rc = read_all(fd, head, sizeof head, deadline_ns);

    if (rc)
        return rc;
    *h = holmes_rdv_header_read(head);
    if (h->len > cap)
        return -EPROTO;
    return read_all(fd, data, h->len, deadline_ns);
}

/* ---- joining ---- */

static int dial_one(const struct addrinfo *a, uint64_t deadline_ns, int *out)
{
    int fd = socket(a->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    int rc = 0, error = 0;
    socklen_t len = sizeof error;

    if (fd < 0)
        return -errno;
    if (connect(fd, a->ai_addr, a->ai_addrlen) != 0)
        rc = errno == EINPROGRESS ? wait_fd(fd, POLLOUT, deadline_ns) : -errno;
    if (rc == 0 && getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &len) == 0)
        rc = -error;
    if (rc) {
        close(fd);
        return rc;
    }
    *out = fd;
    return 0;
}

static int dial_any(const struct addrinfo *found, uint64_t deadline_ns, int *fd)
{
    int rc = -EADDRNOTAVAIL;

    for (const struct addrinfo *a = found; a && rc; a = a->ai_next)
        rc = dial_one(a, deadline_ns, fd);
    return rc;
}

/* The server may not be up yet: refusals are retried. */
static int dial(const char *host, uint16_t port, uint64_t deadline_ns, int *fd)
{
    struct addrinfo hints = {.ai_flags = AI_NUMERICSERV, .ai_socktype = SOCK_STREAM}, *found;
    char service[8];
    int rc;

    snprintf(service, sizeof service, "%u", port);
    rc = getaddrinfo(host, service, &hints, &found);
    if (rc)
        return fail(-EINVAL, "rendezvous host '%s': %s", host, gai_strerror(rc));
    for (;;) {
        rc = dial_any(found, deadline_ns, fd);
        if (rc == 0 || remaining_ms(deadline_ns) <= RETRY_MS)
            break;
        poll(NULL, 0, RETRY_MS);
    }
    freeaddrinfo(found);
    return rc ? fail(rc == -ECONNREFUSED ? rc : -ETIMEDOUT,
                     "nothing answers as rendezvous at %s port %u: %s", host, port,
                     holmes_strerror(rc))
              : 0;
}

static int refused(const struct holmes_rdv_header *h, const uint8_t *data)
{
    int code = h->len >= 4 ? (int)holmes_rdv_u32_read(data) : EPROTO;

    return fail(code > 0 && code < 4096 ? -code : -EPROTO, "the rendezvous refused rank: %.*s",
                h->len > 4 ? (int)h->len - 4 : 0, (const char *)data + 4);
}

static int join(struct holmes_rdv *r, const char *secret, uint64_t deadline_ns)
{
    struct holmes_rdv_key key = holmes_rdv_key(secret);
    struct holmes_rdv_hello hello;
    struct holmes_rdv_prove claim = {0, (uint32_t)r->rank, (uint32_t)r->nranks, (uint32_t)getpid(),
                                     ""};
    struct holmes_rdv_header h;
    uint8_t data[HOLMES_RDV_TEXT_MAX + 64], server_nonce[HOLMES_RDV_NONCE];
    uint8_t proof[HOLMES_RDV_PROVE_BYTES];
    int rc;

    memcpy(hello.magic, HOLMES_RDV_MAGIC, sizeof hello.magic);
    memcpy(claim.host, r->host, sizeof claim.host);
    rc = holmes_rdv_nonce(hello.nonce);
    if (rc == 0)
        rc = write_frame(r->fd, HOLMES_RDV_HELLO, 0, &hello, sizeof hello, NULL, 0, deadline_ns);
    if (rc == 0)
        rc = read_frame(r->fd, &h, data, sizeof data, deadline_ns);
    if (rc)
        return fail(rc, "the rendezvous does not answer: %s", holmes_strerror(rc));
    if (h.type != HOLMES_RDV_CHALLENGE || h.len != sizeof server_nonce)
        return fail(-EPROTO, "what answers is no rendezvous");
    memcpy(server_nonce, data, sizeof server_nonce);
    claim.mac = holmes_rdv_client_mac(&key, hello.nonce, server_nonce, &claim);
    holmes_rdv_prove_write(proof, &claim);
    rc = write_frame(r->fd, HOLMES_RDV_PROVE, 0, proof, sizeof proof, NULL, 0, deadline_ns);
    if (rc == 0)
        rc = read_frame(r->fd, &h, data, sizeof data, deadline_ns);
    if (rc)
        return fail(rc, "the rendezvous does not answer: %s", holmes_strerror(rc));
    if (h.type == HOLMES_RDV_REFUSED)
        return refused(&h, data);
    if (h.type != HOLMES_RDV_WELCOME || h.len != 8 ||
        holmes_rdv_u64_read(data) != holmes_rdv_server_mac(&key, hello.nonce, server_nonce))
        return fail(-EACCES, "what answers as rendezvous does not know this job's secret");
    return 0;
}

/* ---- the reader ---- */

/* With the lock held. Every call under way and to come fails. */
static void end_with(struct holmes_rdv *r, const char *text, size_t len)
{
    if (!atomic_load(&r->aborted) && !r->leaving) {
        snprintf(r->abort_text, sizeof r->abort_text, "%.*s", (int)len, text);
        atomic_store(&r->aborted, true);
        if (r->on_abort)
            r->on_abort(r->on_abort_ctx);
    }
    holmes_list_each(c, tmp, &r->calls, struct call, node)
    {
        holmes_list_remove(&c->node);
        c->status = -ECONNABORTED;
        c->done = true;
    }
    pthread_cond_broadcast(&r->answered);
}

static void on_reply(struct holmes_rdv *r, const struct holmes_rdv_header *h, const uint8_t *data)
{
    holmes_list_each(c, tmp, &r->calls, struct call, node)
    {
        if (c->id != h->id)
            continue;
        holmes_list_remove(&c->node);
        c->status = -(int)(holmes_rdv_u32_read(data) & 0xfff);
        c->len = h->len - 4;
        if (c->len)
            memcpy(c->data, data + 4, c->len < c->cap ? c->len : c->cap);
        c->done = true;
        pthread_cond_broadcast(&r->answered);
        return;
    }
}

/* What the kernel knows of the server's end. */
static void gone_how(const struct holmes_rdv *r, int rc, char *text, size_t len)
{
    if (rc == -ETIMEDOUT || rc == -EHOSTUNREACH || rc == -ENETUNREACH)
        snprintf(text, len,
                 "the rendezvous at %s does not answer any more (%s): its host is down or cut off",
                 r->server, holmes_strerror(rc));
    else
        snprintf(text, len,
                 "the rendezvous at %s is gone (its process ended without a word: killed, or it "
                 "crashed)",
                 r->server);
}

static void *reader_main(void *arg)
{
    struct holmes_rdv *r = arg;
    struct holmes_rdv_header h;
    uint8_t *data = malloc(HOLMES_RDV_FRAME_MAX);
    char gone[HOLMES_RDV_TEXT_MAX];
    int rc = data ? 0 : -ENOMEM;

    pthread_setname_np(pthread_self(), "holmes-rdv-read");
    while (rc == 0) {
        rc = wait_fd(r->fd, POLLIN, holmes_deadline_ms(60 * 1000));
        if (rc == -ETIMEDOUT) {
            rc = 0;
            continue;
        }
        if (rc == 0)
            rc = read_frame(r->fd, &h, data, HOLMES_RDV_FRAME_MAX, holmes_deadline_ms(30 * 1000));
        if (rc)
            break;
        pthread_mutex_lock(&r->lock);
        if (h.type == HOLMES_RDV_REPLY && h.len >= 4)
            on_reply(r, &h, data);
        else if (h.type == HOLMES_RDV_ABORTED)
            end_with(r, (const char *)data, h.len);
        pthread_mutex_unlock(&r->lock);
    }
    free(data);
    gone_how(r, rc, gone, sizeof gone);
    pthread_mutex_lock(&r->lock);
    end_with(r, gone, strlen(gone));
    r->ended = true;
    pthread_cond_broadcast(&r->answered);
    pthread_mutex_unlock(&r->lock);
    return NULL;
}

static void rdv_free(struct holmes_rdv *r)
{
    if (r->fd >= 0)
        close(r->fd);
    pthread_cond_destroy(&r->answered);
    pthread_mutex_destroy(&r->lock);
    pthread_mutex_destroy(&r->send_lock);
    free(r);
}

int holmes_rdv_connect(const char *host, uint16_t port, const char *secret, int rank, int nranks,
                       int timeout_ms, struct holmes_rdv **out)
{
    return holmes_rdv_connect_as(NULL, host, port, secret, rank, nranks, timeout_ms, out);
}

int holmes_rdv_connect_as(const char *name, const char *host, uint16_t port, const char *secret,
                          int rank, int nranks, int timeout_ms, struct holmes_rdv **out)
{
    uint64_t deadline_ns = holmes_deadline_ms((uint64_t)timeout_ms);
    struct holmes_rdv *r = calloc(1, sizeof *r);
    pthread_condattr_t mono;
    int rc;

    if (!r)
        return fail(-ENOMEM, "no memory");
    r->fd = -1;
    r->rank = rank;
    r->nranks = nranks;
    r->next_id = 1;
    if (name)
        snprintf(r->host, sizeof r->host, "%s", name);
    else
        gethostname(r->host, sizeof r->host - 1);
    holmes_list_init(&r->calls);
    pthread_mutex_init(&r->send_lock, NULL);
    pthread_mutex_init(&r->lock, NULL);
    pthread_condattr_init(&mono);
    pthread_condattr_setclock(&mono, CLOCK_MONOTONIC);
    pthread_cond_init(&r->answered, &mono);
    pthread_condattr_destroy(&mono);
    snprintf(r->server, sizeof r->server, "%s port %u", host, port);
    rc = dial(host, port, deadline_ns, &r->fd);
    if (rc == 0) {
        holmes_rdv_keep_alive(r->fd);
        rc = join(r, secret, deadline_ns);
    }
    if (rc == 0) {
        rc = -pthread_create(&r->reader, NULL, reader_main, r);
        if (rc)
            fail(rc, "cannot start a thread: %s", holmes_strerror(rc));
    }
    if (rc) {
        rdv_free(r);
        return rc;
    }
    *out = r;
    return 0;
}

/* ---- calls ---- */

static int rdv_send(struct holmes_rdv *r, enum holmes_rdv_type type, uint32_t id, const void *a,
                    size_t a_len, const void *b, size_t b_len)
{
    int rc;

    pthread_mutex_lock(&r->send_lock);
    rc = write_frame(r->fd, type, id, a, a_len, b, b_len, holmes_deadline_ms(GRACE_MS));
    pthread_mutex_unlock(&r->send_lock);
    return rc;
}

static int aborted(struct holmes_rdv *r)
{
    return fail(-ECONNABORTED, "%s", r->abort_text);
}

/* Registers the call, sends it and waits for its answer. */
static int rdv_call(struct holmes_rdv *r, enum holmes_rdv_type type, const void *a, size_t a_len,
                    const void *b, size_t b_len, struct call *c, int timeout_ms)
{
    uint64_t until = holmes_deadline_ms((uint64_t)timeout_ms + GRACE_MS);
    struct timespec ts = {(time_t)(until / 1000000000u), (long)(until % 1000000000u)};
    int rc = 0, sent;

    pthread_mutex_lock(&r->lock);
    if (atomic_load(&r->aborted)) {
        pthread_mutex_unlock(&r->lock);
        return aborted(r);
    }
    c->id = r->next_id++;
    holmes_list_append(&r->calls, &c->node);
    pthread_mutex_unlock(&r->lock);

    sent = rdv_send(r, type, c->id, a, a_len, b, b_len);

    pthread_mutex_lock(&r->lock);
    while (sent == 0 && !c->done && rc == 0)
        rc = pthread_cond_timedwait(&r->answered, &r->lock, &ts);
    holmes_list_remove(&c->node);
    pthread_mutex_unlock(&r->lock);
    if (atomic_load(&r->aborted) && (!c->done || c->status == -ECONNABORTED))
        return aborted(r);
    if (!c->done)
        return fail(sent ? sent : -ETIMEDOUT, "the rendezvous server does not answer");
    return c->status;
}

/* The text that came with a failure. */
static int call_failed(struct call *c, int rc)
{
    size_t len = c->len < c->cap ? c->len : c->cap;

    if (rc != -ECONNABORTED && c->done && len)
        fail(rc, "%.*s", (int)(len < HOLMES_RDV_TEXT_MAX ? len : HOLMES_RDV_TEXT_MAX),
             (const char *)c->data);
    return rc;
}

static int name_check(const char *name)
{
    size_t len = strlen(name);

    if (len == 0 || len > HOLMES_RDV_KEY_MAX)
        return fail(-EINVAL, "a rendezvous name has 1 to %d characters, not %zu",
                    HOLMES_RDV_KEY_MAX, len);
    return 0;
}

int holmes_rdv_put(struct holmes_rdv *r, const char *key, const void *data, size_t len)
{
    uint8_t head[1 + HOLMES_RDV_KEY_MAX];
    struct call c = {0};
    int rc = name_check(key);

    if (rc)
        return rc;
    if (len > HOLMES_RDV_VALUE_MAX)
        return fail(-EMSGSIZE, "key '%s': a value has at most %d bytes, not %zu", key,
                    HOLMES_RDV_VALUE_MAX, len);
    head[0] = (uint8_t)strlen(key);
    memcpy(head + 1, key, head[0]);
    rc = rdv_call(r, HOLMES_RDV_PUT, head, 1u + head[0], data, len, &c, 0);
    if (rc == -EEXIST)
        fail(rc, "key '%s' is set already", key);
    return rc;
}

/* GET and BARRIER look alike: a timeout and a name. `text` receives value or reason. */
static int rdv_wait(struct holmes_rdv *r, enum holmes_rdv_type type, const char *name,
                    int timeout_ms, struct call *c)
{
    uint8_t head[4];
    int rc = name_check(name);

    if (rc)
        return rc;
    holmes_rdv_u32_write(head, timeout_ms < 0 ? 0 : (uint32_t)timeout_ms);
    rc = rdv_call(r, type, head, sizeof head, name, strlen(name), c,
                  timeout_ms < 0 ? 0 : timeout_ms);
    return rc ? call_failed(c, rc) : 0;
}

int holmes_rdv_get(struct holmes_rdv *r, const char *key, void *data, size_t cap, size_t *len,
                   int timeout_ms)
{
    char text[HOLMES_RDV_TEXT_MAX];
    bool small = cap < sizeof text; /* a reason must fit as well */
    struct call c = {.data = small ? text : data, .cap = small ? sizeof text : cap};
    int rc = rdv_wait(r, HOLMES_RDV_GET, key, timeout_ms, &c);

    if (rc)
        return rc;
    if (c.len > cap)
        return fail(-EMSGSIZE, "key '%s' holds %zu bytes, there is room for %zu", key, c.len, cap);
    if (small && c.len)
        memcpy(data, text, c.len);
    *len = c.len;
    return 0;
}

int holmes_rdv_barrier(struct holmes_rdv *r, const char *name, int timeout_ms)
{
    char text[HOLMES_RDV_TEXT_MAX];
    struct call c = {.data = text, .cap = sizeof text};

    return rdv_wait(r, HOLMES_RDV_BARRIER, name, timeout_ms, &c);
}

int holmes_rdv_poll(struct holmes_rdv *r)
{
    return atomic_load(&r->aborted) ? -ECONNABORTED : 0;
}

void holmes_rdv_on_abort(struct holmes_rdv *r, void (*on_abort)(void *ctx), void *ctx)
{
    bool already;

    pthread_mutex_lock(&r->lock);
    r->on_abort = on_abort;
    r->on_abort_ctx = ctx;
    already = atomic_load(&r->aborted);
    if (already && on_abort)
        on_abort(ctx);
    pthread_mutex_unlock(&r->lock);
}

const char *holmes_rdv_reason(struct holmes_rdv *r)
{
    if (r && atomic_load(&r->aborted))
        aborted(r);
    return last_reason;
}

void holmes_rdv_abort(struct holmes_rdv *r, const char *reason)
{
    char text[HOLMES_RDV_TEXT_MAX];
    size_t len = strnlen(reason, HOLMES_RDV_TEXT_MAX / 2 - 1);

    rdv_send(r, HOLMES_RDV_ABORT, 0, reason, len, NULL, 0);
    snprintf(text, sizeof text, "rank %d on %s (pid %d): %.*s", r->rank, r->host, (int)getpid(),
             (int)len, reason);
    pthread_mutex_lock(&r->lock);
    end_with(r, text, strlen(text));
    pthread_mutex_unlock(&r->lock);
}

/* Waits for the server to end the connection, so that nothing that was said is lost. */
void holmes_rdv_leave(struct holmes_rdv *r)
{
    uint64_t until = holmes_deadline_ms(LEAVE_MS);
    struct timespec ts = {(time_t)(until / 1000000000u), (long)(until % 1000000000u)};
    int rc = 0;

    if (!r)
        return;
    pthread_mutex_lock(&r->lock);
    r->leaving = true;
    pthread_mutex_unlock(&r->lock);
    if (rdv_send(r, HOLMES_RDV_LEAVE, 0, NULL, 0, NULL, 0) == 0) {
        shutdown(r->fd, SHUT_WR);
        pthread_mutex_lock(&r->lock);
        while (!r->ended && rc == 0)
            rc = pthread_cond_timedwait(&r->answered, &r->lock, &ts);
        pthread_mutex_unlock(&r->lock);
    }
    shutdown(r->fd, SHUT_RDWR);
    pthread_join(r->reader, NULL);
    rdv_free(r);
}
