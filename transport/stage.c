/* The pinned ring of a connection and the copies between it and GPU memory; see stage.h. */
#include "stage.h"

#include <errno.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "clock.h"
#include "context.h"
#include "cuda.h"
#include "env.h"
#include "log.h"

#define CHUNKS     64
#define RING_ALIGN 256u /* bytes: no two chunks share a line of any cache */
#define SHARE_MIN  ((size_t)256 << 10)
#define SHARE_MAX  ((size_t)4 << 20) /* NCCL's own window of a connection (NCCL_BUFFSIZE) */
#define SLICE_MAX  ((size_t)256 << 10)
#define DRAIN_MS   2000

struct stage {
    struct device *dev;
    const struct cuda_api *cuda;
    void *ctx, *stream;
    void *ring;
    struct holmes_mr *ring_mr;
    size_t size, slice;
    size_t head, used; /* bytes in use from `head` on, around the end */
    void *last;        /* event of stage_drain */
    bool touched;      /* copies were started */
    bool broken;       /* one failed */
    bool stuck;        /* one never ended: its memory must outlive us */

    /* Chunks in the order of taking. */
    struct stage_chunk chunks[CHUNKS];
    unsigned first, count;
    unsigned copying;
};

size_t stage_share(size_t budget, size_t used)
{
    size_t share = budget > used ? (budget - used) / 16 : 0;

    if (share > SHARE_MAX)
        return SHARE_MAX;
    return share < SHARE_MIN ? SHARE_MIN : share / SHARE_MIN * SHARE_MIN;
}

/* ---- order within a message ---- */

struct pass {
    size_t at, width, pitch, rows; /* of each line */
};

static const struct layout {
    size_t line;
    int npasses;
    struct pass pass[4];
} layouts[] = {
    [STAGE_LL] = {8, 2, {{0, 4, 8, 1}, {4, 4, 8, 1}}},
    [STAGE_LL128] = {128, 2, {{0, 120, 128, 1}, {120, 8, 128, 1}}},
    /* The last 8 bytes of a line, LL128's flag, wait for all others; among those, and in the last 8
     * bytes, the odd words, LL's flags, wait for the even ones. */
    [STAGE_FLAGS] = {128, 4, {{0, 4, 8, 15}, {4, 4, 8, 15}, {120, 4, 8, 1}, {124, 4, 8, 1}}},
};

/* A message that its layout does not fit has no flags where they would stand. */
static enum stage_layout fitting(enum stage_layout layout, size_t len)
{
    if (layout == STAGE_PLAIN || len % 8 != 0)
        return STAGE_PLAIN;
    return layout == STAGE_LL128 && len % 128 != 0 ? STAGE_FLAGS : layout;
}

int stage_pass(enum stage_layout wanted, size_t len, int pass, struct stage_rows rows[2])
{
    enum stage_layout layout = fitting(wanted, len);
    const struct layout *l = &layouts[layout];
    const struct pass *p = &l->pass[pass];
    size_t lines, rest, fit;
    int n = 0;

    if (layout == STAGE_PLAIN) {
        rows[0] = (struct stage_rows){0, len, len, 1, len, 1};
        return pass == 0 && len > 0;
    }
    if (pass >= l->npasses)
        return 0;
    lines = len / l->line;
    rest = len % l->line; /* of a line, in whole words of 8 bytes */
    if (lines > 0 && p->rows == 1)
        rows[n++] = (struct stage_rows){p->at, p->width, l->line, lines, l->line * lines, 1};
    else if (lines > 0)
        rows[n++] = (struct stage_rows){p->at, p->width, p->pitch, p->rows, l->line, lines};
    fit = rest > p->at ? (rest - p->at + p->pitch - p->width) / p->pitch : 0;
    if (fit > p->rows)
        fit = p->rows;
    if (fit > 0)
        rows[n++] = (struct stage_rows){lines * l->line + p->at, p->width, p->pitch, fit,
                                        p->pitch * fit,          1};
    return n;
}

/* ---- making ---- */

/* Puts the thread into the connection's context, and out of any graph capture that the application
 * has under way: merely asking for an event would break that. */
static int enter(const struct stage *s, int *mode)
{
    int rc = s->cuda->ctx_push(s->ctx);

    *mode = CUDA_CAPTURE_RELAXED;
    if (rc == 0)
        s->cuda->capture_mode(mode);
    return rc;
}

static void leave(const struct stage *s, int mode)
{
    void *previous;

    s->cuda->capture_mode(&mode);
    s->cuda->ctx_pop(&previous);
}

static int refuse(const struct stage *s, const char *what, int result)
{
    holmes_warn(NET, "nic %s: GPU memory cannot go over tcp: %s: %s", s->dev->nic.name, what,
                cuda_error(s->cuda, result));
    return -EOPNOTSUPP;
}

static size_t budget(void)
{
    return (size_t)holmes_env_int(HOLMES_ENV_STAGE_MB) << 20;
}

static void take_share(struct stage *s)
{
    size_t used = atomic_load(&s->dev->staged_bytes), share;

    do
        share = stage_share(budget(), used);
    while (!atomic_compare_exchange_weak(&s->dev->staged_bytes, &used, used + share));
    s->size = share;
    s->slice = share / 4 < SLICE_MAX ? share / 4 : SLICE_MAX;
}

static int ring_make(struct stage *s)
{
    struct mr_range range = {.kind = MR_HOST};
    int rc = s->cuda->host_alloc(&s->ring, s->size, CUDA_HOST_PORTABLE);

    if (rc != 0) {
        s->ring = NULL;
        return refuse(s, "no pinned memory", rc);
    }
    range.addr = s->ring;
    range.len = s->size;
    return mr_cache_get(&s->dev->mrs, &range, &s->ring_mr);
}

static int stream_make(struct stage *s)
{
    int rc = s->cuda->stream_create(&s->stream, CUDA_STREAM_NONBLOCK);

    if (rc != 0) {
        s->stream = NULL;
        return refuse(s, "no stream", rc);
    }
    for (int i = 0; i <= CHUNKS && rc == 0; i++) {
        void **event = i < CHUNKS ? &s->chunks[i].event : &s->last;

        rc = s->cuda->event_create(event, CUDA_EVENT_NO_TIMING);
        if (rc != 0)
            *event = NULL;
    }
    return rc == 0 ? 0 : refuse(s, "no event", rc);
}

int stage_create(struct device *dev, struct stage **out)
{
    const struct cuda_api *cuda = cuda_open();
    struct stage *s;
    int rc, mode;

    if (!cuda)
        return -EOPNOTSUPP;
    s = calloc(1, sizeof *s);
    if (!s)
        return -ENOMEM;
    s->dev = dev;
    s->cuda = cuda;
    rc = cuda->ctx_current(&s->ctx);
    if (rc != 0 || !s->ctx) {
        holmes_warn(NET,
                    "nic %s: GPU memory cannot go over tcp: no CUDA context on this thread (%s)",
                    dev->nic.name, rc != 0 ? cuda_error(cuda, rc) : "none was made");
        free(s);
        return -EOPNOTSUPP;
    }
    take_share(s);
    rc = enter(s, &mode);
    if (rc == 0) {
        rc = ring_make(s);
        if (rc == 0)
            rc = stream_make(s);
        leave(s, mode);
    } else {
        rc = refuse(s, "the context cannot be used", rc);
    }
    if (rc != 0) {
        stage_destroy(s);
        return rc;
    }
    holmes_info(NET, "nic %s: GPU memory goes through %zu KiB of pinned memory, %zu KiB at a time",
                dev->nic.name, s->size >> 10, s->slice >> 10);
    *out = s;
    return 0;
}

/* ---- the ring ---- */

size_t stage_slice(const struct stage *s)
{
    return s->slice;
}

struct holmes_mr *stage_mr(const struct stage *s)
{
    return s->ring_mr;
}

bool stage_owns(const struct stage *s, const void *context)
{
    return s && (uintptr_t)context >= (uintptr_t)&s->chunks[0] &&
           (uintptr_t)context < (uintptr_t)&s->chunks[CHUNKS];
}

/* Where `len` contiguous bytes are free: *at, and *span with what must be skipped before them. */
static bool ring_find(struct stage *s, size_t len, size_t *at, size_t *span)
{
    size_t tail = (s->head + s->used) % s->size, ahead;

    if (s->used == 0)
        s->head = tail = 0;
    if (s->size - s->used < len)
        return false;
    ahead = tail >= s->head ? s->size - tail : s->head - tail;
    *at = tail;
    *span = len;
    if (ahead >= len)
        return true;
    *at = 0;
    *span = ahead + len;
    return tail >= s->head && s->head >= len;
}

struct stage_chunk *stage_take(struct stage *s, size_t len)
{
    struct stage_chunk *chunk = &s->chunks[(s->first + s->count) % CHUNKS];
    size_t at, span, room = (len + RING_ALIGN - 1) / RING_ALIGN * RING_ALIGN;

    if (s->count == CHUNKS || !ring_find(s, room, &at, &span))
        return NULL;
    s->used += span;
    s->count++;
    chunk->state = STAGE_TAKEN;
    chunk->buf = (char *)s->ring + at;
    chunk->len = len;
    chunk->span = span;
    chunk->next = NULL;
    chunk->owner = NULL;
    return chunk;
}

void stage_give(struct stage *s, struct stage_chunk *chunk)
{
    chunk->state = STAGE_FREE;
    while (s->count > 0 && s->chunks[s->first].state == STAGE_FREE) {
        s->head = (s->head + s->chunks[s->first].span) % s->size;
        s->used -= s->chunks[s->first].span;
        s->first = (s->first + 1) % CHUNKS;
        s->count--;
    }
}

/* ---- copies ---- */

static int fail(struct stage *s, const char *what, int result)
{
    s->broken = true;
    holmes_warn(NET, "nic %s: %s: %s", s->dev->nic.name, what, cuda_error(s->cuda, result));
    return -EIO;
}

static int start_rows(const struct stage *s, const struct stage_chunk *chunk,
                      const struct stage_rows *r)
{
    size_t x = r->at % r->pitch, begin = r->at - x; /* whole rows: they end with the message */
    char *host = (char *)chunk->buf + begin;
    uint64_t device = chunk->device + begin;
    struct cuda_copy3d copy = {.src = {.memory_type = CUDA_MEMORY_HOST, .host = host},
                               .dst = {.memory_type = CUDA_MEMORY_DEVICE, .device = device},
                               .width = r->width,
                               .height = r->height,
                               .depth = r->depth};

    if (r->height == 1 && r->depth == 1)
        return s->cuda->copy_to_device(device + x, host + x, r->width, s->stream);
    copy.src.x_bytes = copy.dst.x_bytes = x;
    copy.src.pitch = copy.dst.pitch = r->pitch;
    copy.src.height = copy.dst.height = r->block / r->pitch;
    return s->cuda->copy_3d(&copy, s->stream);
}

/* Starts the chunk's next pass; *more is false when there is none. The pass before is complete: the
 * order of two copies in a stream says nothing to a kernel that polls meanwhile. */
static int start_pass(const struct stage *s, struct stage_chunk *chunk, bool *more)
{
    struct stage_rows rows[2];
    int n = stage_pass(chunk->layout, chunk->len, chunk->pass, rows), rc = 0;

    *more = n > 0;
    if (n == 0)
        return 0;
    for (int i = 0; i < n && rc == 0; i++)
        rc = start_rows(s, chunk, &rows[i]);
    if (rc == 0)
        rc = s->cuda->event_record(chunk->event, s->stream);
    chunk->pass++;
    return rc;
}

int stage_copy_out(struct stage *s, struct stage_chunk *chunk, const void *device)
{
    int mode;
    int rc = enter(s, &mode);

    if (rc != 0)
        return fail(s, "the CUDA context is gone", rc);
    s->touched = true;
    rc = s->cuda->copy_to_host(chunk->buf, (uintptr_t)device, chunk->len, s->stream);
    if (rc == 0)
        rc = s->cuda->event_record(chunk->event, s->stream);
    leave(s, mode);
    if (rc != 0)
        return fail(s, "cannot copy from the GPU", rc);
    chunk->done = NULL;
    chunk->layout = STAGE_PLAIN;
    chunk->state = STAGE_COPYING;
    s->copying++;
    return 0;
}

int stage_copy_in(struct stage *s, struct stage_chunk *chunk, void *device, size_t len,
                  enum stage_layout layout, int *done)
{
    int mode;
    bool more = false;
    int rc = enter(s, &mode);

    if (rc != 0)
        return fail(s, "the CUDA context is gone", rc);
    chunk->device = (uintptr_t)device;
    chunk->len = len;
    chunk->layout = layout;
    chunk->pass = 0;
    chunk->done = done;
    s->touched = true;
    rc = start_pass(s, chunk, &more);
    leave(s, mode);
    if (rc != 0)
        return fail(s, "cannot copy to the GPU", rc);
    if (more) {
        chunk->state = STAGE_COPYING;
        s->copying++;
    } else {
        --*done;
        stage_give(s, chunk);
    }
    return 0;
}

static int chunk_poll(struct stage *s, struct stage_chunk *chunk)
{
    int rc = s->cuda->event_query(chunk->event);
    bool more = false;

    if (rc == CUDA_NOT_READY)
        return -EAGAIN;
    if (rc == 0 && chunk->done)
        rc = start_pass(s, chunk, &more);
    if (rc != 0)
        return fail(s, "a copy between GPU and host failed", rc);
    if (more)
        return 0;
    s->copying--;
    if (chunk->done) {
        --*chunk->done;
        stage_give(s, chunk);
    } else {
        chunk->state = STAGE_READY;
    }
    return 0;
}

int stage_poll(struct stage *s)
{
    unsigned first = s->first, count = s->count;
    int mode;
    int rc = s->copying == 0 ? 0 : enter(s, &mode);

    if (rc != 0)
        return fail(s, "the CUDA context is gone", rc);
    if (s->copying == 0)
        return 0;
    for (unsigned i = 0; i < count && s->copying > 0 && (rc == 0 || rc == -EAGAIN); i++) {
        struct stage_chunk *chunk = &s->chunks[(first + i) % CHUNKS];

        if (chunk->state != STAGE_COPYING)
            continue;
        rc = chunk_poll(s, chunk);
        if (rc == -EAGAIN && chunk->layout == STAGE_PLAIN)
            break; /* later ones stand behind it in the stream */
    }
    leave(s, mode);
    return rc == -EAGAIN ? 0 : rc;
}

/* ---- ending ---- */

void stage_drain(struct stage *s)
{
    uint64_t deadline = holmes_deadline_ms(DRAIN_MS);
    int mode;
    int rc = CUDA_NOT_READY;

    if (!s || !s->touched || enter(s, &mode) != 0)
        return;
    while (s->copying > 0 && !s->broken && stage_poll(s) == 0 && !holmes_deadline_passed(deadline))
        sched_yield();
    /* Behind all copies, also one whose own event could not be recorded. */
    if (s->cuda->event_record(s->last, s->stream) != 0)
        rc = 0;
    while (rc == CUDA_NOT_READY && !holmes_deadline_passed(deadline)) {
        rc = s->cuda->event_query(s->last);
        sched_yield();
    }
    s->stuck = rc == CUDA_NOT_READY;
    s->touched = false;
    leave(s, mode);
    if (s->stuck)
        holmes_warn(NET, "nic %s: a copy of the GPU did not end within %d s: its memory is left",
                    s->dev->nic.name, DRAIN_MS / 1000);
}

/* A context that is gone took everything of CUDA with it. */
static void cuda_release(struct stage *s)
{
    int mode;

    if (s->stuck || enter(s, &mode) != 0)
        return;
    for (int i = 0; i < CHUNKS; i++) {
        if (s->chunks[i].event)
            s->cuda->event_destroy(s->chunks[i].event);
    }
    if (s->last)
        s->cuda->event_destroy(s->last);
    if (s->stream)
        s->cuda->stream_destroy(s->stream);
    if (s->ring)
        s->cuda->host_free(s->ring);
    leave(s, mode);
}

void stage_destroy(struct stage *s)
{
    if (!s)
        return;
    stage_drain(s);
    if (s->ring_mr)
        mr_cache_put(&s->dev->mrs, s->ring_mr);
    cuda_release(s);
    atomic_fetch_sub(&s->dev->staged_bytes, s->size);
    free(s);
}
