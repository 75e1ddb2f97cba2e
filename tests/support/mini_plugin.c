/* A net plugin for tests: one version of the interface (MINI_ABI, 8 to 12), one device, unix stream
 * sockets that the kernel names. It takes its caller at its word nowhere: what NCCL would never do
 * (data outside a registration, calls of the data path from two threads, more than eight requests,
 * closing with registrations left) ends the process with a line. Faults on cue, from the
 * environment:
 *
 *   MINI_DEVICES=n    devices reports n
 *   MINI_FAIL=call:k  the k-th call of init, listen, connect, reg, isend, irecv or test fails
 *   MINI_BUSY=1       every call that may say "not yet" does so half of the times
 */
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "nccl_net.h"

#ifndef MINI_ABI
#define MINI_ABI 8
#endif
#ifndef MINI_HOLE
#define MINI_HOLE 0
#endif

#define REQUIRE(cond, ...)                                                                         \
    do {                                                                                           \
        if (!(cond)) {                                                                             \
            fprintf(stderr, "mini plugin: " __VA_ARGS__);                                          \
            fputc('\n', stderr);                                                                   \
            abort();                                                                               \
        }                                                                                          \
    } while (0)

enum { QUEUE = 8 };
enum kind { LISTENS = 1, SENDS, RECEIVES };

struct comm;
struct region {
    struct comm *comm;
    char *base;
    size_t size;
};
struct request {
    struct comm *comm;
    char *data;
    size_t size, room; /* size: what is or will be transferred */
    bool used, done;
};
struct header {
    uint64_t size;
    int32_t tag;
    uint32_t magic;
};
struct comm {
    int fd;
    enum kind kind;
    atomic_int regions;
    struct request requests[QUEUE];
    struct request *queue[QUEUE]; /* not done, oldest first */
    int nqueue, nused;
    struct header header;
    size_t moved; /* of the oldest: header and payload */
    bool broken;
};
struct handle {
    struct sockaddr_un name;
    uint32_t name_len;
};
_Static_assert(sizeof(struct handle) <= NCCL_NET_HANDLE_MAXSIZE, "handle");
#define MAGIC 0x6d696e69u

/* ---- faults ---- */

static bool fails(const char *call)
{
    static atomic_int count;
    const char *cue = getenv("MINI_FAIL");
    size_t n = strlen(call);

    if (!cue || strncmp(cue, call, n) != 0 || cue[n] != ':')
        return false;
    return atomic_fetch_add(&count, 1) + 1 == atoi(cue + n + 1);
}

static bool busy(void)
{
    static atomic_uint turn;

    /* No fixed rhythm: two calls that alternate would fall into step with it. */
    return getenv("MINI_BUSY") && (atomic_fetch_add(&turn, 1) * 2654435761u) >> 31;
}

static void data_thread_check(void)
{
    static pthread_t thread;
    static atomic_bool known;

    if (!atomic_load(&known)) {
        thread = pthread_self();
        atomic_store(&known, true);
    }
    REQUIRE(pthread_equal(thread, pthread_self()), "data calls from two threads");
}

/* ---- connections ---- */

static struct comm *comm_new(int fd, enum kind kind)
{
    struct comm *c = calloc(1, sizeof *c);

    REQUIRE(c, "no memory");
    c->fd = fd;
    c->kind = kind;
    return c;
}

static ncclResult_t mini_listen(void *buffer, void **out)
{
    struct handle h = {.name = {.sun_family = AF_UNIX}};
    socklen_t len = sizeof h.name;
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);

    if (fails("listen"))
        return ncclSystemError;
    /* Only the family: the kernel picks an abstract name. */
    if (fd < 0 || bind(fd, (struct sockaddr *)&h.name, sizeof h.name.sun_family) != 0 ||
        listen(fd, 8) != 0 || getsockname(fd, (struct sockaddr *)&h.name, &len) != 0)
        return ncclSystemError;
    h.name_len = len;
    memcpy(buffer, &h, sizeof h);
    *out = comm_new(fd, LISTENS);
    return ncclSuccess;
}

static ncclResult_t mini_connect(void *buffer, void **out)
{
    struct handle h;
    int fd;

    *out = NULL;
    if (fails("connect"))
        return ncclRemoteError;
    if (busy())
        return ncclSuccess;
    memcpy(&h, buffer, sizeof h);
    fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return ncclSystemError;
    if (connect(fd, (struct sockaddr *)&h.name, h.name_len) != 0) {
        int error = errno;

        close(fd);
        return error == EAGAIN ? ncclSuccess : ncclRemoteError;
    }
    *out = comm_new(fd, SENDS);
    return ncclSuccess;
}

static ncclResult_t mini_accept(void *listener, void **out)
{
    struct comm *l = listener;
    int fd;

    *out = NULL;
    if (busy())
        return ncclSuccess;
    fd = accept4(l->fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (fd < 0)
        return errno == EAGAIN ? ncclSuccess : ncclSystemError;
    *out = comm_new(fd, RECEIVES);
    return ncclSuccess;
}

static ncclResult_t comm_close(void *comm, enum kind kind)
{
    struct comm *c = comm;

    if (!c)
        return ncclSuccess;
    REQUIRE(c->kind == kind, "close of the wrong kind of comm");
    REQUIRE(atomic_load(&c->regions) == 0, "closed with %d registrations left",
            atomic_load(&c->regions));
    close(c->fd);
    free(c);
    return ncclSuccess;
}

static ncclResult_t close_send(void *c)
{
    return comm_close(c, SENDS);
}

static ncclResult_t close_recv(void *c)
{
    return comm_close(c, RECEIVES);
}

static ncclResult_t close_listen(void *c)
{
    return comm_close(c, LISTENS);
}

static ncclResult_t reg_mr(void *comm, void *data, size_t size, int type, void **out)
{
    struct comm *c = comm;
    struct region *r;

    REQUIRE(c->kind != LISTENS && data && size && type == NCCL_PTR_HOST, "bad regMr");
    if (fails("reg"))
        return ncclSystemError;
    r = malloc(sizeof *r);
    REQUIRE(r, "no memory");
    *r = (struct region){c, data, size};
    atomic_fetch_add(&c->regions, 1);
    *out = r;
    return ncclSuccess;
}

static ncclResult_t dereg_mr(void *comm, void *handle)
{
    struct region *r = handle;

    REQUIRE(r && r->comm == comm, "deregMr on another comm");
    atomic_fetch_sub(&r->comm->regions, 1);
    free(r);
    return ncclSuccess;
}

/* ---- data ---- */

static ncclResult_t post(struct comm *c, char *data, size_t size, struct region *r, void **request)
{
    struct request *q = NULL;

    data_thread_check();
    *request = NULL;
    if (busy())
        return ncclSuccess;
    REQUIRE(r && r->comm == c, "data call without this comm's registration");
    REQUIRE(size == 0 || (data >= r->base && data + size <= r->base + r->size),
            "data outside its registration");
    REQUIRE(c->nused < QUEUE, "more than %d requests on a comm", QUEUE);
    for (int i = 0; i < QUEUE && !q; i++)
        q = c->requests[i].used ? NULL : &c->requests[i];
    *q = (struct request){.comm = c, .data = data, .size = size, .room = size, .used = true};
    c->nused++;
    c->queue[c->nqueue++] = q;
    *request = q;
    return ncclSuccess;
}

static ncclResult_t mini_isend(void *comm, void *data, size_t size, void *mr, void **request)
{
    *request = NULL;
    return fails("isend") ? ncclSystemError : post(comm, data, size, mr, request);
}

static ncclResult_t mini_irecv(void *comm, void *data, size_t size, void *mr, void **request)
{
    *request = NULL;
    return fails("irecv") ? ncclSystemError : post(comm, data, size, mr, request);
}

/* Bytes moved; 0: not now. */
static size_t move(struct comm *c, void *data, size_t len)
{
    ssize_t n = c->kind == SENDS ? send(c->fd, data, len, MSG_NOSIGNAL) : recv(c->fd, data, len, 0);

    if (n > 0)
        return (size_t)n;
    if (n == 0 || (errno != EAGAIN && errno != EINTR))
        c->broken = true;
    return 0;
}

static void oldest_done(struct comm *c)
{
    c->queue[0]->done = true;
    memmove(c->queue, c->queue + 1, (size_t)--c->nqueue * sizeof *c->queue);
    c->moved = 0;
}

static void progress(struct comm *c)
{
    while (c->nqueue && !c->broken) {
        struct request *q = c->queue[0];
        size_t head = sizeof c->header, n;

        if (c->moved == 0)
            c->header = (struct header){q->size, 0, MAGIC};
        if (c->moved < head)
            n = move(c, (char *)&c->header + c->moved, head - c->moved);
        else
            n = move(c, q->data + (c->moved - head), q->size - (c->moved - head));
        if (n == 0)
            return;
        c->moved += n;
        if (c->moved < head)
            continue;
        if (c->kind == RECEIVES && c->moved == head) {
            REQUIRE(c->header.magic == MAGIC, "stream out of step");
            if (c->header.size > q->room) {
                c->broken = true;
                return;
            }
            q->size = c->header.size;
        }
        if (c->moved == head + q->size)
            oldest_done(c);
    }
}

static ncclResult_t mini_test(void *request, int *done, int *sizes)
{
    struct request *q = request;

    data_thread_check();
    REQUIRE(q->used, "test of a request that is over");
    if (fails("test"))
        return ncclInternalError;
    progress(q->comm);
    *done = q->done;
    if (!q->done)
        return q->comm->broken ? ncclRemoteError : ncclSuccess;
    if (sizes)
        *sizes = (int)q->size;
    q->used = false;
    q->comm->nused--;
    return ncclSuccess;
}

/* ---- the table of one version ---- */

static ncclResult_t devices(int *n)
{
    const char *said = getenv("MINI_DEVICES");

    *n = said ? atoi(said) : 1;
    return ncclSuccess;
}

#define GLUE2(a, b) a##b
#define GLUE(a, b)  GLUE2(a, b)
#define PROPS_T     GLUE(GLUE(ncclNetProperties_v, MINI_ABI), _t)
#define NET_T       GLUE(GLUE(ncclNet_v, MINI_ABI), _t)
#define SYMBOL      GLUE(ncclNetPlugin_v, MINI_ABI)

static ncclResult_t properties(int dev, PROPS_T *p)
{
    (void)dev;
    memset(p, 0, sizeof *p);
    p->name = (char *)"mini0";
    p->ptrSupport = NCCL_PTR_HOST;
    p->speed = 1234;
    p->maxComms = 1024;
    p->maxRecvs = 1;
#if MINI_ABI >= 9
    p->vProps.ndevs = 1;
    p->maxP2pBytes = NCCL_MAX_NET_SIZE_BYTES;
    p->maxCollBytes = NCCL_MAX_NET_SIZE_BYTES;
#endif
    return ncclSuccess;
}

#if MINI_ABI >= 11
static ncclResult_t init(void **ctx, uint64_t id, ncclNetCommConfig_v11_t *config,
                         ncclDebugLogger_t log, ncclProfilerCallback_t prof)
{
    (void)id, (void)prof;
    *ctx = NULL;
    REQUIRE(log && config->trafficClass == NCCL_NET_TRAFFIC_CLASS_UNDEF, "bad init");
    if (fails("init"))
        return ncclSystemError;
    *ctx = malloc(1); /* a leak when it is never finalised */
    return ncclSuccess;
}

static ncclResult_t finalize(void *ctx)
{
    free(ctx);
    return ncclSuccess;
}

static ncclResult_t listen_on(void *ctx, int dev, void *handle, void **out)
{
    REQUIRE(ctx && dev == 0, "bad listen");
    return mini_listen(handle, out);
}

static ncclResult_t connect_to(void *ctx, int dev, void *handle, void **out,
                               ncclNetDeviceHandle_v7_t **device)
{
    REQUIRE(ctx && dev == 0 && !*device, "bad connect");
    return mini_connect(handle, out);
}
#else
static atomic_int inits;
#if MINI_ABI == 10
static ncclResult_t init(ncclDebugLogger_t log, ncclProfilerCallback_t prof)
{
    (void)prof;
#else
static ncclResult_t init(ncclDebugLogger_t log)
{
#endif
    REQUIRE(log && atomic_fetch_add(&inits, 1) == 0, "init more than once per process");
    return fails("init") ? ncclSystemError : ncclSuccess;
}

static ncclResult_t listen_on(int dev, void *handle, void **out)
{
    REQUIRE(dev == 0, "bad listen");
    return mini_listen(handle, out);
}

#if MINI_ABI == 10
static ncclResult_t connect_to(int dev, ncclNetCommConfig_v10_t *config, void *handle, void **out,
                               ncclNetDeviceHandle_v7_t **device)
{
    REQUIRE(config->trafficClass == NCCL_NET_TRAFFIC_CLASS_UNDEF, "bad config");
#else
static ncclResult_t connect_to(int dev, void *handle, void **out, ncclNetDeviceHandle_v7_t **device)
{
#endif
    REQUIRE(dev == 0 && !*device, "bad connect");
    return mini_connect(handle, out);
}
#endif

static ncclResult_t accept_on(void *listener, void **out, ncclNetDeviceHandle_v7_t **device)
{
    REQUIRE(!*device, "bad accept");
    return mini_accept(listener, out);
}

#if MINI_ABI >= 10
static ncclResult_t isend(void *comm, void *data, size_t size, int tag, void *mr, void *phandle,
                          void **request)
{
    (void)tag, (void)phandle;
    return mini_isend(comm, data, size, mr, request);
}

static ncclResult_t irecv(void *comm, int n, void **data, size_t *sizes, int *tags, void **mrs,
                          void **phandles, void **request)
{
    (void)tags, (void)phandles;
    REQUIRE(n == 1, "irecv of %d buffers", n);
    return mini_irecv(comm, data[0], sizes[0], mrs[0], request);
}
#else
#if MINI_ABI == 9
typedef size_t len_t;
#else
typedef int len_t;
#endif
static ncclResult_t isend(void *comm, void *data, len_t size, int tag, void *mr, void **request)
{
    (void)tag;
    return mini_isend(comm, data, (size_t)size, mr, request);
}

static ncclResult_t irecv(void *comm, int n, void **data, len_t *sizes, int *tags, void **mrs,
                          void **request)
{
    (void)tags;
    REQUIRE(n == 1, "irecv of %d buffers", n);
    return mini_irecv(comm, data[0], (size_t)sizes[0], mrs[0], request);
}
#endif

static ncclResult_t iflush(void *comm, int n, void **data, int *sizes, void **mrs, void **request)
{
    (void)comm, (void)n, (void)data, (void)sizes, (void)mrs, (void)request;
    return ncclInternalError; /* host memory is never flushed */
}

__attribute__((visibility("default"))) extern const NET_T SYMBOL;
const NET_T SYMBOL = {
    .name = "mini",
    .init = init,
    .devices = devices,
    .getProperties = properties,
    .listen = listen_on,
    .connect = connect_to,
    .accept = accept_on,
    .regMr = reg_mr,
    .deregMr = dereg_mr,
    .isend = isend,
    .irecv = MINI_HOLE ? NULL : irecv,
    .iflush = iflush,
    .test = mini_test,
    .closeSend = close_send,
    .closeRecv = close_recv,
    .closeListen = close_listen,
#if MINI_ABI >= 11
    .finalize = finalize,
#endif
};
