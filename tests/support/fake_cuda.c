#include "fake_cuda.h"

#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "list.h"
#include "transport/cuda.h"

#define REGIONS   64
#define TRACE_MAX 65536
#define FAILED    719 /* CUDA_ERROR_LAUNCH_FAILED */

struct region {
    char *addr;  /* NULL: free */
    char *bytes; /* the same memory, accessible; pinned memory is its own */
    size_t len;
    bool device;
};

struct op {
    struct holmes_list node;
    bool is_copy, fails;
    unsigned n; /* of a copy */
    struct cuda_copy3d copy;
    struct event *event;
    uint64_t serial;
};

struct stream {
    struct holmes_list node, ops;
    bool failed;
};

struct event {
    struct holmes_list node;
    uint64_t recorded, reached;
    bool failed;
};

static struct {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    pthread_t thread;
    bool stopping, busy, no_alloc, held;
    unsigned seed, max_delay_us, allowed, fail_in;
    struct region regions[REGIONS];
    struct holmes_list streams, events;
    struct op *running;
    struct stream *running_in;
    struct fake_cuda_counts counts;
    struct fake_cuda_trace trace[TRACE_MAX];
    size_t ntrace;
} gpu = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};

static int the_context;
static __thread void *current[8];
static __thread int depth, capture_mode, mode_at_push[8];

static void misuse(const char *what)
{
    fprintf(stderr, "fake_cuda: %s\n", what);
    abort();
}

static unsigned draw(unsigned below)
{
    gpu.seed = gpu.seed * 1664525u + 1013904223u; /* Numerical Recipes' generator */
    return below ? (gpu.seed >> 8) % below : 0;
}

static void lock(void)
{
    pthread_mutex_lock(&gpu.lock);
}

static void unlock(void)
{
    pthread_mutex_unlock(&gpu.lock);
}

static void note(enum fake_cuda_step step, unsigned n)
{
    if (gpu.ntrace < TRACE_MAX)
        gpu.trace[gpu.ntrace++] = (struct fake_cuda_trace){step, n};
}

/* ---- memory ---- */

static struct region *find(const void *p, size_t len)
{
    for (int i = 0; i < REGIONS; i++) {
        struct region *r = &gpu.regions[i];

        if (r->addr && (const char *)p >= r->addr && (const char *)p + len <= r->addr + r->len)
            return r;
    }
    return NULL;
}

static struct region *add(void)
{
    for (int i = 0; i < REGIONS; i++) {
        if (!gpu.regions[i].addr)
            return &gpu.regions[i];
    }
    misuse("out of regions");
    return NULL;
}

/* Whole rows, as the driver may check. */
static size_t extent(const struct cuda_copy3d *c)
{
    return ((c->depth - 1) * c->src.height + c->height) * c->src.pitch;
}

static bool touches(const struct op *op, const struct region *r)
{
    const char *host, *device;

    if (!op || !op->is_copy)
        return false;
    host = op->copy.src.host ? op->copy.src.host : op->copy.dst.host;
    device = (const char *)(uintptr_t)(op->copy.src.device | op->copy.dst.device);
    return (host >= r->addr && host < r->addr + r->len) ||
           (device >= r->addr && device < r->addr + r->len);
}

/* Lock held. */
static void check_unused(const struct region *r)
{
    if (touches(gpu.running, r))
        misuse("memory freed under a running copy");
    holmes_list_each(s, tmp, &gpu.streams, struct stream, node)
    {
        holmes_list_each(op, tmp2, &s->ops, struct op, node)
        {
            if (touches(op, r))
                misuse("memory freed under a pending copy");
        }
    }
}

void *fake_cuda_malloc(size_t len)
{
    int fd = memfd_create("gpu", MFD_CLOEXEC);
    struct region *r;

    if (fd < 0 || ftruncate(fd, (off_t)len) != 0)
        misuse("no memory");
    lock();
    r = add();
    r->addr = mmap(NULL, len, PROT_NONE, MAP_SHARED, fd, 0);
    r->bytes = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (r->addr == MAP_FAILED || r->bytes == MAP_FAILED)
        misuse("no memory");
    r->len = len;
    r->device = true;
    unlock();
    close(fd);
    return r->addr;
}

void fake_cuda_free(void *device)
{
    struct region *r;

    lock();
    r = find(device, 1);
    if (!r || r->addr != device || !r->device)
        misuse("free of what is no device memory");
    check_unused(r);
    munmap(r->addr, r->len);
    munmap(r->bytes, r->len);
    r->addr = NULL;
    unlock();
}

void *fake_cuda_bytes(void *device)
{
    struct region *r;
    char *bytes;

    lock();
    r = find(device, 1);
    if (!r || !r->device)
        misuse("look at what is no device memory");
    bytes = r->bytes + ((char *)device - r->addr);
    unlock();
    return bytes;
}

/* ---- the engine ---- */

static void put(char *dst, const char *src, size_t len)
{
    if (len == 4 && (uintptr_t)dst % 4 == 0) {
        uint32_t word;

        memcpy(&word, src, 4);
        __atomic_store_n((uint32_t *)(void *)dst, word, __ATOMIC_RELEASE);
        return;
    }
    for (size_t i = 0; i < len; i++)
        __atomic_store_n(&dst[i], src[i], __ATOMIC_RELEASE);
}

/* Long rows are nothing that anybody polls: they go fast. */
static void copy_row(char *dst, const char *src, size_t len, bool backwards)
{
    static unsigned written; /* by the engine's thread */
    size_t unit = len > 128 * 1024 ? 8192 : 4, units = (len + unit - 1) / unit;

    for (size_t i = 0; i < units; i++) {
        size_t at = (backwards ? units - 1 - i : i) * unit, left = len - at;

        if (unit > 4)
            memcpy(dst + at, src + at, left < unit ? left : unit);
        else
            put(dst + at, src + at, left < 4 ? left : 4);
        if (written++ % 997 == 0) /* whoever polls has a look at what is half there */
            sched_yield();
    }
}

/* What a copy writes first is nobody's business: here it is the end as often as the beginning. */
static void copy_run(const struct cuda_copy3d *c, const char *src, char *dst, bool backwards)
{
    size_t rows = c->height * c->depth;

    for (size_t i = 0; i < rows; i++) {
        size_t row = backwards ? rows - 1 - i : i;
        size_t at = (row / c->height * c->src.height + row % c->height) * c->src.pitch;

        copy_row(dst + c->dst.x_bytes + at, src + c->src.x_bytes + at, c->width, backwards);
    }
}

/* Lock held; released meanwhile. */
static void op_run(struct op *op)
{
    const struct cuda_copy3d *c = &op->copy;
    bool to_device = c->src.host != NULL, backwards = draw(2);
    unsigned delay = draw(gpu.max_delay_us + 1);
    const char *from = to_device ? c->src.host : (const char *)(uintptr_t)c->src.device;
    const char *to = to_device ? (const char *)(uintptr_t)c->dst.device : c->dst.host;
    struct region *src = find(from, extent(c)), *dst = find(to, extent(c));
    struct timespec wait = {0, (long)delay * 1000};
    const char *src_bytes;
    char *dst_bytes;

    if (!src || !dst)
        misuse("a copy from or to memory that is gone");
    src_bytes = src->bytes + (from - src->addr);
    dst_bytes = dst->bytes + (to - dst->addr);
    unlock();
    nanosleep(&wait, NULL);
    copy_run(c, src_bytes, dst_bytes, backwards);
    lock();
}

static struct stream *next_stream(void)
{
    struct stream *ready[64];
    unsigned n = 0;

    holmes_list_each(s, tmp, &gpu.streams, struct stream, node)
    {
        struct op *op;

        if (holmes_list_empty(&s->ops) || n == 64)
            continue;
        op = holmes_list_entry(s->ops.next, struct op, node);
        if (!op->is_copy || !gpu.held || gpu.allowed > 0)
            ready[n++] = s;
    }
    return n > 0 ? ready[draw(n)] : NULL;
}

static void *engine(void *arg)
{
    (void)arg;
    lock();
    while (!gpu.stopping) {
        struct stream *s = next_stream();
        struct op *op;

        if (!s) {
            pthread_cond_wait(&gpu.changed, &gpu.lock);
            continue;
        }
        op = gpu.running = holmes_list_entry(s->ops.next, struct op, node);
        gpu.running_in = s;
        holmes_list_remove(&op->node);
        if (op->is_copy) {
            gpu.allowed -= gpu.held;
            if (op->fails)
                s->failed = true;
            else
                op_run(op);
            gpu.counts.ended++;
            note(COPY_ENDED, op->n);
        } else {
            op->event->reached = op->serial;
            op->event->failed = s->failed;
        }
        gpu.running = NULL;
        gpu.running_in = NULL;
        free(op);
        pthread_cond_broadcast(&gpu.changed);
    }
    unlock();
    return NULL;
}

/* ---- the driver's calls ---- */

static void need_context(void)
{
    if (depth == 0 || current[depth - 1] != &the_context)
        misuse("a call without a context");
    if (capture_mode != CUDA_CAPTURE_RELAXED)
        misuse("a call that would break a graph capture");
}

static void need_allocation(const char *what)
{
    need_context();
    if (gpu.no_alloc)
        misuse(what);
}

static int fake_ctx_current(void **ctx)
{
    *ctx = depth > 0 ? current[depth - 1] : NULL;
    return 0;
}

static int fake_ctx_push(void *ctx)
{
    if (ctx != &the_context || depth == 8)
        misuse("push of a wrong context");
    mode_at_push[depth] = capture_mode;
    current[depth++] = ctx;
    return 0;
}

static int fake_ctx_pop(void **ctx)
{
    if (depth == 0)
        misuse("pop without a push");
    if (capture_mode != mode_at_push[depth - 1])
        misuse("the caller's capture mode was not restored");
    *ctx = current[--depth];
    return 0;
}

static int fake_capture_mode(int *mode)
{
    int before = capture_mode;

    capture_mode = *mode;
    *mode = before;
    return 0;
}

static int fake_host_alloc(void **p, size_t len, unsigned flags)
{
    struct region *r;

    need_allocation("pinned memory allocated in the data path");
    if (flags != CUDA_HOST_PORTABLE)
        misuse("pinned memory for one context only");
    lock();
    r = add();
    if (posix_memalign((void **)&r->addr, 4096, len) != 0)
        misuse("no memory");
    memset(r->addr, 0xa5, len);
    r->bytes = r->addr;
    r->len = len;
    r->device = false;
    gpu.counts.pinned += len;
    *p = r->addr;
    unlock();
    return 0;
}

static int fake_host_free(void *p)
{
    struct region *r;

    need_allocation("pinned memory freed in the data path");
    lock();
    r = find(p, 1);
    if (!r || r->addr != p || r->device)
        misuse("free of what is no pinned memory");
    check_unused(r);
    gpu.counts.pinned -= r->len;
    free(r->addr);
    r->addr = NULL;
    unlock();
    return 0;
}

static int fake_stream_create(void **out, unsigned flags)
{
    struct stream *s = calloc(1, sizeof *s);

    need_allocation("a stream made in the data path");
    if (!s || flags != CUDA_STREAM_NONBLOCK)
        misuse("a stream that waits for the default stream");
    holmes_list_init(&s->node);
    holmes_list_init(&s->ops);
    lock();
    holmes_list_append(&gpu.streams, &s->node);
    gpu.counts.streams++;
    unlock();
    *out = s;
    return 0;
}

static int fake_stream_destroy(void *stream)
{
    struct stream *s = stream;

    need_allocation("a stream destroyed in the data path");
    lock();
    if (!holmes_list_empty(&s->ops) || gpu.running_in == s)
        misuse("a stream destroyed with work in it");
    holmes_list_remove(&s->node);
    gpu.counts.streams--;
    unlock();
    free(s);
    return 0;
}

static int fake_event_create(void **out, unsigned flags)
{
    struct event *e = calloc(1, sizeof *e);

    need_allocation("an event made in the data path");
    if (flags != CUDA_EVENT_NO_TIMING)
        misuse("an event that takes the time");
    *out = e;
    holmes_list_init(&e->node);
    lock();
    holmes_list_append(&gpu.events, &e->node);
    gpu.counts.events++;
    unlock();
    return 0;
}

static int fake_event_destroy(void *event)
{
    struct event *e = event;

    need_allocation("an event destroyed in the data path");
    lock();
    if (e->reached != e->recorded)
        misuse("an event destroyed that is still to come");
    holmes_list_remove(&e->node);
    gpu.counts.events--;
    unlock();
    free(e);
    return 0;
}

/* Lock held. */
static void enqueue(struct stream *s, struct op *op)
{
    holmes_list_init(&op->node);
    holmes_list_append(&s->ops, &op->node);
    pthread_cond_broadcast(&gpu.changed);
}

static int fake_event_record(void *event, void *stream)
{
    struct op *op = calloc(1, sizeof *op);

    need_context();
    lock();
    op->event = event;
    op->serial = ++op->event->recorded;
    enqueue(stream, op);
    unlock();
    return 0;
}

static int fake_event_query(void *event)
{
    struct event *e = event;
    int rc;

    need_context();
    lock();
    rc = e->reached != e->recorded ? CUDA_NOT_READY : e->failed ? FAILED : 0;
    unlock();
    return rc;
}

static int start_copy(const struct cuda_copy3d *c, void *stream)
{
    struct op *op = calloc(1, sizeof *op);
    bool to_device = c->src.host != NULL;
    const void *host = to_device ? c->src.host : c->dst.host;
    struct region *h, *d;

    need_context();
    if (c->width == 0 || c->height == 0 || c->depth == 0 || c->src.pitch != c->dst.pitch ||
        c->src.height != c->dst.height || c->src.x_bytes + c->width > c->src.pitch ||
        (c->depth > 1 && c->height > c->src.height))
        misuse("a copy of a wrong shape");
    lock();
    h = find(host, extent(c));
    d = find((const void *)(uintptr_t)(to_device ? c->dst.device : c->src.device), extent(c));
    if (!h || h->device)
        misuse("a copy whose host side is not pinned memory");
    if (!d || !d->device)
        misuse("a copy whose device side is not device memory");
    op->is_copy = true;
    op->copy = *c;
    op->n = gpu.counts.issued++;
    op->fails = gpu.fail_in > 0 && --gpu.fail_in == 0;
    note(COPY_ISSUED, op->n);
    enqueue(stream, op);
    unlock();
    return 0;
}

static int fake_copy_to_device(uint64_t dst, const void *src, size_t len, void *stream)
{
    struct cuda_copy3d c = {.src = {.host = (void *)(uintptr_t)src, .pitch = len, .height = 1},
                            .dst = {.device = dst, .pitch = len, .height = 1},
                            .width = len,
                            .height = 1,
                            .depth = 1};

    return start_copy(&c, stream);
}

static int fake_copy_to_host(void *dst, uint64_t src, size_t len, void *stream)
{
    struct cuda_copy3d c = {.src = {.device = src, .pitch = len, .height = 1},
                            .dst = {.host = dst, .pitch = len, .height = 1},
                            .width = len,
                            .height = 1,
                            .depth = 1};

    return start_copy(&c, stream);
}

static int fake_copy_3d(const struct cuda_copy3d *c, void *stream)
{
    if (c->src.memory_type != CUDA_MEMORY_HOST || c->dst.memory_type != CUDA_MEMORY_DEVICE)
        misuse("a strided copy of unknown direction");
    return start_copy(c, stream);
}

static int fake_error_name(int result, const char **name)
{
    *name = result == FAILED ? "CUDA_ERROR_LAUNCH_FAILED" : "CUDA_ERROR_OF_THE_STAND_IN";
    return 0;
}

static const struct cuda_api api = {
    .ctx_current = fake_ctx_current,
    .ctx_push = fake_ctx_push,
    .ctx_pop = fake_ctx_pop,
    .capture_mode = fake_capture_mode,
    .host_alloc = fake_host_alloc,
    .host_free = fake_host_free,
    .stream_create = fake_stream_create,
    .stream_destroy = fake_stream_destroy,
    .event_create = fake_event_create,
    .event_record = fake_event_record,
    .event_query = fake_event_query,
    .event_destroy = fake_event_destroy,
    .copy_to_device = fake_copy_to_device,
    .copy_to_host = fake_copy_to_host,
    .copy_3d = fake_copy_3d,
    .error_name = fake_error_name,
};

/* ---- the test's side ---- */

void fake_cuda_start(unsigned seed, unsigned max_delay_us)
{
    holmes_list_init(&gpu.streams);
    holmes_list_init(&gpu.events);
    gpu.seed = seed;
    gpu.max_delay_us = max_delay_us;
    gpu.stopping = false;
    gpu.ntrace = 0;
    memset(&gpu.counts, 0, sizeof gpu.counts);
    if (pthread_create(&gpu.thread, NULL, engine, NULL) != 0)
        misuse("no thread");
    fake_cuda_set_context(true);
    holmes_cuda_override(&api);
}

static void engine_stop(void)
{
    lock();
    gpu.stopping = true;
    pthread_cond_broadcast(&gpu.changed);
    unlock();
    pthread_join(gpu.thread, NULL);
    holmes_cuda_override(NULL);
    fake_cuda_set_context(false);
}

void fake_cuda_stop(void)
{
    lock();
    if (gpu.counts.pinned > 0 || gpu.counts.streams > 0 || gpu.counts.events > 0)
        misuse("pinned memory, streams or events are left");
    unlock();
    engine_stop();
}

void fake_cuda_discard(void)
{
    fake_cuda_release_all();
    engine_stop();
    holmes_list_each(s, tmp, &gpu.streams, struct stream, node)
    {
        holmes_list_each(op, tmp2, &s->ops, struct op, node) free(op);
        free(s);
    }
    holmes_list_each(e, tmp3, &gpu.events, struct event, node) free(e);
    for (int i = 0; i < REGIONS; i++) {
        struct region *r = &gpu.regions[i];

        if (r->addr && r->device)
            munmap(r->bytes, r->len);
        if (r->addr && r->device)
            munmap(r->addr, r->len);
        else
            free(r->addr);
        r->addr = NULL;
    }
}

void fake_cuda_set_context(bool is_current)
{
    depth = is_current ? 1 : 0;
    current[0] = &the_context;
}

void fake_cuda_forbid_allocation(bool forbid)
{
    gpu.no_alloc = forbid;
}

void fake_cuda_hold(void)
{
    lock();
    gpu.held = true;
    gpu.allowed = 0;
    unlock();
}

void fake_cuda_release(unsigned n)
{
    lock();
    gpu.allowed += n;
    pthread_cond_broadcast(&gpu.changed);
    unlock();
}

void fake_cuda_release_all(void)
{
    lock();
    gpu.held = false;
    pthread_cond_broadcast(&gpu.changed);
    unlock();
}

void fake_cuda_fail_copy(unsigned n)
{
    lock();
    gpu.fail_in = n;
    unlock();
}

struct fake_cuda_counts fake_cuda_counts(void)
{
    struct fake_cuda_counts counts;

    lock();
    counts = gpu.counts;
    unlock();
    return counts;
}

void fake_cuda_note(enum fake_cuda_step step, unsigned n)
{
    lock();
    note(step, n);
    unlock();
}

size_t fake_cuda_trace(struct fake_cuda_trace *out, size_t max)
{
    size_t n;

    lock();
    n = gpu.ntrace < max ? gpu.ntrace : max;
    memcpy(out, gpu.trace, n * sizeof *out);
    unlock();
    return n;
}
