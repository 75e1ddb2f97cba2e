/* A hostile peer that has passed the handshake: it writes what it likes into our control memory and
 * sends any immediate, while we send and receive. Nothing may be read or written outside the
 * buffers that were posted, and no send may complete that was never acknowledged in range. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "log.h"
#include "transport/conn.h"
#include "transport/cuda.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

struct input {
    const uint8_t *data;
    size_t left;
};
static struct input in;

static uint32_t take(size_t bytes)
{
    uint32_t v = 0;

    if (bytes > in.left)
        bytes = in.left;
    memcpy(&v, in.data, bytes);
    in.data += bytes;
    in.left -= bytes;
    return v;
}

/* ---- a wire whose other end is the input ---- */

static const struct holmes_conn *victim;

/* Any immediate, or one that fits a message that may be awaited. */
static uint32_t immediate(void)
{
    uint64_t seq = victim->q.recv.completed + 1 + take(1) % 3;
    struct proto_imm imm = {.slot = proto_slot(seq), .generation = proto_generation(seq)};
    unsigned choice = take(1);

    if (victim->sending || choice % 4 == 0)
        return take(4);
    imm.mode = choice % 4;
    imm.size = take(3) % (PROTO_IMM_SIZE_MAX + 1);
    return proto_imm_encode(&imm);
}

static int fake_poll(struct wire_cq *cq, struct wire_event *events, int max)
{
    int n = (int)(take(1) % 4);

    (void)cq;
    if (n > max)
        n = max;
    for (int i = 0; i < n; i++)
        events[i] = (struct wire_event){.type = WIRE_IMM, .imm = immediate()};
    return n;
}

static int fake_post(struct wire_lane *lane, const struct wire_write *w)
{
    volatile uint8_t sum = 0;

    (void)lane;
    for (size_t i = 0; i < w->len; i++) /* reads all of it, as a NIC would */
        sum += ((const uint8_t *)w->buf)[i];
    (void)sum;
    return take(1) % 8 == 0 ? -EAGAIN : 0;
}

static int fake_lane_poll(struct wire_lane *lane)
{
    (void)lane;
    return 0;
}

static void fake_lane_close(struct wire_lane *lane)
{
    (void)lane;
}

static void fake_progress(struct wire_nic *wn)
{
    (void)wn;
}

static const struct wire_ops fake = {
    .name = "fake",
    .cq_poll = fake_poll,
    .lane_post = fake_post,
    .lane_poll = fake_lane_poll,
    .lane_close = fake_lane_close,
    .nic_progress = fake_progress,
};

/* ---- a GPU whose memory is ours and whose copies are made at once ---- */

static int gpu_ctx(void **ctx)
{
    *ctx = &in;
    return 0;
}

static int gpu_push(void *ctx)
{
    (void)ctx;
    return 0;
}

static int gpu_capture_mode(int *mode)
{
    (void)mode;
    return 0;
}

static int gpu_host_alloc(void **p, size_t len, unsigned flags)
{
    (void)flags;
    *p = calloc(1, len);
    return *p ? 0 : 2;
}

static int gpu_host_free(void *p)
{
    free(p);
    return 0;
}

static int gpu_make(void **object, unsigned flags)
{
    (void)flags;
    *object = &in;
    return 0;
}

static int gpu_destroy(void *object)
{
    (void)object;
    return 0;
}

static int gpu_record(void *event, void *stream)
{
    (void)event, (void)stream;
    return 0;
}

static int gpu_query(void *event)
{
    (void)event;
    return take(1) % 4 == 3 ? CUDA_NOT_READY : 0; /* at the input's end, ready */
}

static int gpu_to_device(uint64_t dst, const void *src, size_t len, void *stream)
{
    (void)stream;
    memcpy((void *)(uintptr_t)dst, src, len);
    return take(1) == 255 ? 700 : 0;
}

static int gpu_to_host(void *dst, uint64_t src, size_t len, void *stream)
{
    (void)stream;
    memcpy(dst, (const void *)(uintptr_t)src, len);
    return 0;
}

static int gpu_error(int result, const char **name)
{
    (void)result;
    *name = "an error";
    return 0;
}

static const struct cuda_api gpu = {
    .ctx_current = gpu_ctx,
    .ctx_push = gpu_push,
    .ctx_pop = gpu_ctx,
    .capture_mode = gpu_capture_mode,
    .host_alloc = gpu_host_alloc,
    .host_free = gpu_host_free,
    .stream_create = gpu_make,
    .stream_destroy = gpu_destroy,
    .event_create = gpu_make,
    .event_record = gpu_record,
    .event_query = gpu_query,
    .event_destroy = gpu_destroy,
    .copy_to_device = gpu_to_device,
    .copy_to_host = gpu_to_host,
    .error_name = gpu_error,
};

static void no_log(void *ctx, enum holmes_log_level level, enum holmes_log_subsys subsys,
                   const char *file, int line, const char *func, const char *msg)
{
    (void)ctx, (void)level, (void)subsys, (void)file, (void)line, (void)func, (void)msg;
}

/* Overwrites a random place of the control memory. */
static void scribble(struct holmes_conn *c, size_t control_len)
{
    size_t at = take(4) % control_len, n = take(1) % 80;

    for (size_t i = 0; i < n && at + i < control_len; i++)
        ((uint8_t *)c->control)[at + i] = (uint8_t)take(1);
}

/* Writes a slot that fits so far, so that sends get past the first check: for the next message, or
 * for the next part of the buffer that is being filled. */
static void plausible_slot(struct holmes_conn *c)
{
    bool part = take(1) % 2;
    uint64_t seq = (part ? c->q.send.sent + 1 : c->q.next_seq) + take(1) % 3;
    struct proto_cts *slot = &c->send_control->cts[proto_slot(seq)];
    uint64_t left = take(1) % 4, lines = take(1) % 4;

    *slot = (struct proto_cts){.addr = take(4),
                               .size = part ? 128 * (lines * left + 1) : take(2),
                               .tag = 1,
                               .group_index = part ? 0 : (uint8_t)(take(1) % 9),
                               .group_count = part ? 1 : (uint8_t)(take(1) % 10),
                               .acked = take(1) % 8,
                               .part_lines = (uint16_t)lines,
                               .parts_left = (uint32_t)left,
                               .seq = seq};
    if (take(1) % 16 == 0)
        slot->parts_left = take(4);
}

static void run(bool sending, bool staged, uint8_t *buf, size_t buf_len)
{
    struct holmes_transport t = {.warn_stall_ns = 0};
    struct device dev = {.t = &t, .ops = &fake, .limits = {.max_write = 1000, .inline_max = 64}};
    struct holmes_mr mr = {.addr = (uintptr_t)buf, .len = buf_len, .staged = staged};
    struct holmes_conn *c = calloc(1, sizeof *c);
    size_t control_len =
        sending ? sizeof(struct proto_send_control) : sizeof(struct proto_recv_control);
    struct holmes_request *out[64];
    int nout = 0;

    victim = c;
    c->t = &t;
    c->dev = c->wanted = &dev;
    c->ops = &fake;
    c->limits = dev.limits;
    c->nrails = 1;
    c->rails[0].dev = &dev;
    c->sending = sending;
    c->state = CONN_READY;
    c->oob.fd = -1;
    c->oob_ended = true;
    c->nlanes = 1 + (int)(take(1) % HOLMES_MAX_LANES);
    for (int i = 0; i < c->nlanes; i++)
        c->lanes[i] = (void *)&dev;
    c->width = c->nlanes;
    pthread_mutex_init(&c->lock, NULL);
    c->control = calloc(1, control_len);
    mr_cache_init(&dev.mrs);
    if (request_queue_init(c) != 0 || (staged && stage_create(&dev, &c->stage) != 0))
        abort();
    while (in.left > 0) {
        size_t len = take(3) % (buf_len + 1);
        void *p = buf;
        int tag = 1, rc = -EAGAIN;
        struct holmes_mr *m = &mr;

        scribble(c, control_len);
        if (sending)
            plausible_slot(c);
        if (nout < 64 && sending)
            rc = holmes_isend(c, buf, len, tag, m, &out[nout]);
        else if (nout < 64)
            rc = holmes_irecv(c, 1, &p, &len, &tag, &m, &out[nout]);
        nout += rc == 0;
        for (int i = 0; i < nout; i++) {
            bool done;
            size_t got;

            rc = holmes_test(out[i], &done, &got);
            if (done && got > buf_len)
                __builtin_trap();
            if (rc != 0 || done)
                out[i--] = out[--nout];
        }
        if (c->error != 0)
            break;
    }
    stage_destroy(c->stage);
    mr_cache_fini(&dev.mrs);
    request_queue_fini(c);
    free(c->control);
    pthread_mutex_destroy(&c->lock);
    free(c);
}

/* Room for several parts of a slice. */
#define BUF_LEN 300000u

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static uint8_t *buf;

    if (!buf)
        buf = calloc(1, BUF_LEN);
    holmes_log_set_sink(no_log, NULL, HOLMES_LOG_WARN);
    holmes_cuda_override(&gpu);
    setenv("HOLMES_STAGE_MB", "1", 1);
    for (int kind = 0; kind < 4; kind++) {
        bool staged = kind / 2;

        if (staged && (size == 0 || data[0] % 8 != 0)) /* pinned memory takes time to make */
            break;
        in = (struct input){data, size};
        run(kind % 2 == 0, staged, buf, staged ? BUF_LEN : 5000);
    }
    holmes_cuda_override(NULL);
    return 0;
}
