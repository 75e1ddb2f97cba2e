/* A hostile peer that has passed the handshake: it writes what it likes into our control memory and
 * sends any immediate, while we send and receive. Nothing may be read or written outside the
 * buffers that were posted, and no send may complete that was never acknowledged in range. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "log.h"
#include "transport/conn.h"

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

static int fake_poll(struct wire_cq *cq, struct wire_event *events, int max)
{
    int n = (int)(take(1) % 4);

    (void)cq;
    if (n > max)
        n = max;
    for (int i = 0; i < n; i++)
        events[i] = (struct wire_event){.type = WIRE_IMM, .imm = take(4)};
    return n;
}

static int fake_post(struct wire_lane *lane, const struct wire_write *w)
{
    volatile uint8_t sum = 0;

    (void)lane;
    for (size_t i = 0; i < w->len; i++) /* reads all of it, as a NIC would */
        sum += ((const uint8_t *)w->buf)[i];
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

static void run(bool sending, uint8_t *buf, size_t buf_len)
{
    struct holmes_transport t = {.warn_stall_ns = 0};
    struct device dev = {.t = &t, .ops = &fake, .limits = {.max_write = 1000, .inline_max = 64}};
    struct holmes_mr mr = {.addr = (uintptr_t)buf, .len = buf_len};
    struct holmes_conn *c = calloc(1, sizeof *c);
    size_t control_len =
        sending ? sizeof(struct proto_send_control) : sizeof(struct proto_recv_control);
    struct holmes_request *out[64];
    int nout = 0;

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
    if (request_queue_init(c) != 0)
        abort();
    while (in.left > 0) {
        size_t len = take(2) % (buf_len + 1);
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
    request_queue_fini(c);
    free(c->control);
    pthread_mutex_destroy(&c->lock);
    free(c);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    uint8_t *buf = malloc(5000);

    memset(buf, 1, 5000);
    holmes_log_set_sink(no_log, NULL, HOLMES_LOG_WARN);
    in = (struct input){data, size};
    run(true, buf, 5000);
    in = (struct input){data, size};
    run(false, buf, 5000);
    free(buf);
    return 0;
}
