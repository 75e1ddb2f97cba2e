/* GPU memory on the tcp wire: bytes, order, overlap and endings, with a stand-in for the GPU whose
 * copies come late and in no order. */
#include <criterion/criterion.h>
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "clock.h"
#include "fake_cuda.h"
#include "fake_rdma.h"
#include "fault_driver.h"
#include "link.h"
#include "self.h"
#include "test_nics.h"

#define KIB   1024u
#define MIB   (1024u * 1024)
#define SLICE (256 * KIB) /* with the default budget */
#define SMALL (64 * KIB)  /* with the least */

/* ---- buffers of either kind ---- */

struct buf {
    bool gpu;
    void *addr;     /* what the transport is given */
    uint8_t *bytes; /* the same bytes for the test */
    size_t len;
    struct holmes_conn *conn;
    struct holmes_mr *mr;
};

static struct buf buf_make(struct holmes_conn *conn, bool gpu, size_t len)
{
    struct buf b = {.gpu = gpu, .len = len, .conn = conn};
    int rc;

    b.addr = gpu ? fake_cuda_malloc(len) : malloc(len);
    b.bytes = gpu ? fake_cuda_bytes(b.addr) : b.addr;
    rc = gpu ? holmes_mr_reg_cuda(conn, b.addr, len, &b.mr)
             : holmes_mr_reg(conn, b.addr, len, &b.mr);
    cr_assert_eq(rc, 0, "registration: %s", strerror(-rc));
    return b;
}

static void buf_free(struct buf *b)
{
    cr_assert_eq(holmes_mr_dereg(b->conn, b->mr), 0);
    if (b->gpu)
        fake_cuda_free(b->addr);
    else
        free(b->addr);
}

/* ---- the link, always over tcp ---- */

static struct holmes_transport *tcp_transport(void)
{
    struct holmes_nic nic = test_loopback_nic("127.0.0.1");
    struct holmes_transport *t;

    cr_assert_eq(holmes_transport_create(&nic, 1, &t), 0);
    return t;
}

static void open_tcp(struct link *l)
{
    memset(l, 0, sizeof *l);
    l->a = tcp_transport();
    l->b = tcp_transport();
    link_connect(l);
}

/* One message of `len` from `from` to `to`, `room` bytes of it; neither byte behind is touched. */
static void one_message(struct link *l, const struct buf *from, const struct buf *to, size_t len,
                        size_t room)
{
    struct holmes_request *s, *r;

    link_fill(from->bytes, len, (unsigned)len);
    memset(to->bytes, 0xee, room + 1);
    r = link_irecv(l->recv, to->addr, room, 7, to->mr);
    s = link_isend(l->send, from->addr, len, 7, from->mr);
    cr_assert_eq(link_wait_both(s, r), len, "size of a message of %zu bytes", len);
    cr_assert(link_check(to->bytes, len, (unsigned)len), "%zu bytes arrived changed", len);
    for (size_t i = len; i < room + 1; i++)
        cr_assert_eq(to->bytes[i], 0xee, "byte %zu behind a message of %zu was written", i, len);
}

static void all_sizes(bool gpu_sends, bool gpu_receives, const char *lanes)
{
    static const size_t sizes[] = {0,     1,         127,       128,           4096, SMALL - 1,
                                   SMALL, SMALL + 1, 2 * SMALL, 5 * SMALL + 7, MIB};
    struct buf from, to;
    struct link l;

    fake_cuda_start(1, 40);
    setenv("HOLMES_LANES", lanes, 1);
    setenv("HOLMES_STAGE_MB", "1", 1);
    open_tcp(&l);
    from = buf_make(l.send, gpu_sends, MIB + 1);
    to = buf_make(l.recv, gpu_receives, 2 * MIB);
    fake_cuda_forbid_allocation(true);
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        one_message(&l, &from, &to, sizes[i], sizes[i]);
        one_message(&l, &from, &to, sizes[i], sizes[i] + 1000);
        if (i % 3 == 1)
            one_message(&l, &from, &to, sizes[i],
                        sizes[i] + 3 * SMALL); /* whole parts stay empty */
    }
    fake_cuda_forbid_allocation(false);
    buf_free(&from);
    buf_free(&to);
    link_close(&l);
    fake_cuda_stop();
}

Test(stage, host_to_gpu_moves_every_size)
{
    all_sizes(false, true, "1");
}

Test(stage, gpu_to_host_moves_every_size)
{
    all_sizes(true, false, "1");
}

Test(stage, gpu_to_gpu_moves_every_size)
{
    all_sizes(true, true, "1");
}

Test(stage, host_to_gpu_moves_every_size_over_three_lanes)
{
    all_sizes(false, true, "3");
}

Test(stage, gpu_to_host_moves_every_size_over_three_lanes)
{
    all_sizes(true, false, "3");
}

Test(stage, gpu_to_gpu_moves_every_size_over_eight_lanes)
{
    all_sizes(true, true, "8");
}

/* Small messages that go ahead fill GPU buffers of many parts, of which they need the first only,
 * whether the other parts wait for them or not; what pinned memory those had is there again.
 * `late`: they arrive when the receive is posted. */
static void small_then_large(const char *lanes, int late)
{
    static struct fault_plan plan;
    static const struct wire_ops *wires[2];
    static const size_t sizes[] = {0, 1, 100, 2048, 2049, 3 * SMALL + 1};
    struct buf from, to;
    struct link l;

    fake_cuda_start(23, 20);
    setenv("HOLMES_LANES", lanes, 1);
    setenv("HOLMES_STAGE_MB", "1", 1);
    wires[0] = fault_driver(test_tcp_wire(), &plan);
    holmes_wires_override(wires);
    open_tcp(&l);
    from = buf_make(l.send, false, MIB);
    to = buf_make(l.recv, true, MIB + 1);
    plan = (struct fault_plan){.delay_polls = late};
    for (unsigned i = 0; i < 60; i++) {
        size_t len = sizes[i % 6], room = i % 4 == 0 ? len : MIB;
        struct holmes_request *s, *r;
        int rc;

        link_fill(from.bytes, len, i);
        memset(to.bytes, 0xee, to.len);
        rc = holmes_isend(l.send, from.addr, len, 7, from.mr, &s);
        cr_assert(rc == 0 || rc == -EAGAIN, "%s", strerror(-rc));
        r = link_irecv(l.recv, to.addr, room, 7, to.mr);
        if (!s)
            s = link_isend(l.send, from.addr, len, 7, from.mr);
        cr_assert_eq(link_wait_both(s, r), len, "size of message %u, of %zu bytes", i, len);
        cr_assert(link_check(to.bytes, len, i), "message %u changed", i);
        for (size_t at = len; at < to.len; at++)
            cr_assert_eq(to.bytes[at], 0xee, "byte %zu behind message %u was written", at, i);
    }
    buf_free(&from);
    buf_free(&to);
    link_close(&l);
    holmes_wires_override(NULL);
    fake_cuda_stop();
}

Test(stage, small_messages_ahead_of_gpu_receives_of_many_parts)
{
    small_then_large("1", 0);
}

Test(stage, small_messages_meet_gpu_receives_whose_parts_are_offered)
{
    small_then_large("1", 40);
}

Test(stage, small_messages_ahead_over_four_streams)
{
    small_then_large("4", 3);
}

Test(stage, forty_mib_pass_through_one)
{
    struct buf from, to;
    struct link l;

    fake_cuda_start(2, 10);
    setenv("HOLMES_STAGE_MB", "16", 1);
    setenv("HOLMES_LANES", "2", 1);
    open_tcp(&l);
    from = buf_make(l.send, true, 40 * MIB + 1);
    to = buf_make(l.recv, true, 40 * MIB + 1);
    cr_assert_eq(fake_cuda_counts().pinned, 2 * MIB);
    fake_cuda_forbid_allocation(true);
    one_message(&l, &from, &to, 40 * MIB, 40 * MIB);
    fake_cuda_forbid_allocation(false);
    buf_free(&from);
    buf_free(&to);
    link_close(&l);
    fake_cuda_stop();
}

/* ---- many messages, several outstanding ---- */

#define ROOM 200000u /* bytes that each message has at either end */

struct exchange {
    struct buf from[2], to[2]; /* [gpu] */
    int depth, count;
};

static size_t message_size(int i)
{
    return (size_t)((unsigned)i * 104729u % ROOM);
}

static bool from_gpu(int i)
{
    return i / 2 % 2;
}

static bool to_gpu(int i)
{
    return i % 2;
}

static struct exchange exchange_make(struct link *l, int count, int depth)
{
    struct exchange x = {.count = count, .depth = depth};

    for (int gpu = 0; gpu < 2; gpu++) {
        x.from[gpu] = buf_make(l->send, gpu, (size_t)depth * ROOM);
        x.to[gpu] = buf_make(l->recv, gpu, (size_t)depth * ROOM);
    }
    return x;
}

static void exchange_free(struct exchange *x)
{
    for (int gpu = 0; gpu < 2; gpu++) {
        buf_free(&x->from[gpu]);
        buf_free(&x->to[gpu]);
    }
}

static int post_one(struct link *l, struct exchange *x, int i, struct holmes_request **r)
{
    const struct buf *b = &x->to[to_gpu(i)];
    void *at = (char *)b->addr + (size_t)(i % x->depth) * ROOM;
    size_t room = ROOM;
    int tag = 5;

    return holmes_irecv(l->recv, 1, &at, &room, &tag, (struct holmes_mr *const *)&b->mr, r);
}

static int send_one(struct link *l, struct exchange *x, int i, struct holmes_request **r)
{
    const struct buf *b = &x->from[from_gpu(i)];
    size_t at = (size_t)(i % x->depth) * ROOM;

    link_fill(b->bytes + at, message_size(i), (unsigned)i);
    return holmes_isend(l->send, (char *)b->addr + at, message_size(i), 5, b->mr, r);
}

static void check_one(const struct exchange *x, int i, size_t len)
{
    const uint8_t *at = x->to[to_gpu(i)].bytes + (size_t)(i % x->depth) * ROOM;

    cr_assert_eq(len, message_size(i), "message %d has %zu bytes", i, len);
    cr_assert(link_check(at, len, (unsigned)i), "message %d arrived changed", i);
}

/* As NCCL's progress thread does it: as many as may be outstanding, the oldest tested. Returns the
 * first error of any call. */
static int exchange_run(struct link *l, struct exchange *x)
{
    struct holmes_request *recvs[HOLMES_MAX_REQUESTS], *sends[HOLMES_MAX_REQUESTS];
    uint64_t deadline = holmes_deadline_ms(4 * LINK_TIMEOUT_MS);
    int posted = 0, received = 0, started = 0, sent = 0, rc = 0;

    while (rc == 0 && (received < x->count || sent < x->count)) {
        bool done = false;
        size_t len = 0;

        cr_assert(!holmes_deadline_passed(deadline), "%d posted, %d received, %d started, %d sent",
                  posted, received, started, sent);
        if (posted < x->count && posted - received < x->depth) {
            rc = post_one(l, x, posted, &recvs[posted % x->depth]);
            posted += rc == 0;
        }
        if ((rc == 0 || rc == -EAGAIN) && started < x->count && started - sent < x->depth) {
            rc = send_one(l, x, started, &sends[started % x->depth]);
            started += rc == 0;
        }
        if ((rc == 0 || rc == -EAGAIN) && sent < started) {
            rc = holmes_test(sends[sent % x->depth], &done, NULL);
            sent += done;
        }
        if ((rc == 0 || rc == -EAGAIN) && received < posted) {
            rc = holmes_test(recvs[received % x->depth], &done, &len);
            if (rc == 0 && done)
                check_one(x, received, len);
            received += done;
        }
        rc = rc == -EAGAIN ? 0 : rc;
    }
    return rc;
}

static void exchange_all(int depth, int count, const char *lanes, const char *stage_mb)
{
    struct exchange x;
    struct link l;

    fake_cuda_start((unsigned)depth, 30);
    setenv("HOLMES_LANES", lanes, 1);
    setenv("HOLMES_STAGE_MB", stage_mb, 1);
    open_tcp(&l);
    x = exchange_make(&l, count, depth);
    fake_cuda_forbid_allocation(true);
    cr_assert_eq(exchange_run(&l, &x), 0);
    fake_cuda_forbid_allocation(false);
    exchange_free(&x);
    link_close(&l);
    fake_cuda_stop();
}

Test(stage, messages_of_both_kinds_keep_their_order)
{
    exchange_all(8, 100, "1", "16");
}

Test(stage, thirty_two_messages_of_both_kinds_share_little_memory)
{
    exchange_all(32, 100, "3", "1");
}

/* ---- overlap ---- */

/* Writes the wire's side of the trace: what arrives at the receiver, what the sender posts. */
static const struct wire_ops *under;
static unsigned arrivals, posts;

static int traced_poll(struct wire_cq *cq, struct wire_event *events, int max)
{
    int n = under->cq_poll(cq, events, max);

    for (int i = 0; i < n; i++) {
        if (events[i].type == WIRE_IMM)
            fake_cuda_note(WIRE_ARRIVED, arrivals++);
    }
    return n;
}

static int traced_post(struct wire_lane *lane, const struct wire_write *w)
{
    int rc = under->lane_post(lane, w);

    if (rc == 0 && !(w->flags & WIRE_INLINE))
        fake_cuda_note(WIRE_POSTED, posts++);
    return rc;
}

static void trace_wire(void)
{
    static struct wire_ops traced;
    static const struct wire_ops *const wires[] = {&traced, NULL};

    under = test_tcp_wire();
    traced = *under;
    traced.cq_poll = traced_poll;
    traced.lane_post = traced_post;
    holmes_wires_override(wires);
}

static size_t trace_find(enum fake_cuda_step step, unsigned n)
{
    static struct fake_cuda_trace trace[4096];
    size_t len = fake_cuda_trace(trace, 4096);

    for (size_t i = 0; i < len; i++) {
        if (trace[i].step == step && trace[i].n == n)
            return i;
    }
    return SIZE_MAX;
}

/* HOLMES_TEST_TRACE=FILE: the trace to look at. */
static void trace_write(const char *what)
{
    static const char *const steps[] = {[COPY_ISSUED] = "copy issued",
                                        [COPY_ENDED] = "copy ended",
                                        [WIRE_ARRIVED] = "arrived",
                                        [WIRE_POSTED] = "posted"};
    static struct fake_cuda_trace trace[4096];
    size_t len = fake_cuda_trace(trace, 4096);
    const char *path = getenv("HOLMES_TEST_TRACE");
    FILE *f = path ? fopen(path, "a") : NULL;

    for (size_t i = 0; f && i < len; i++)
        fprintf(f, "%s: %s %u\n", what, steps[trace[i].step], trace[i].n);
    if (f)
        fclose(f);
}

/* Both ends for a while. A send is done as soon as its bytes are in the receiver's pinned memory.
 */
static void drive(struct holmes_request **send, struct holmes_request *recv)
{
    for (int i = 0; i < 300; i++) {
        bool done = false;

        if (*send)
            cr_assert_eq(holmes_test(*send, &done, NULL), 0);
        if (done)
            *send = NULL;
        cr_assert_eq(holmes_test(recv, &done, NULL), 0);
        cr_assert(!done, "received before it was copied");
    }
}

/* Until the step was seen. */
static void drive_until(struct holmes_request **send, struct holmes_request *recv,
                        enum fake_cuda_step step, unsigned n)
{
    uint64_t deadline = holmes_deadline_ms(LINK_TIMEOUT_MS);

    while (trace_find(step, n) == SIZE_MAX) {
        cr_assert(!holmes_deadline_passed(deadline), "step %d of %u never came", step, n);
        drive(send, recv);
    }
}

#define PARTS 40u /* more than pinned memory has room for */

/* The GPU does not copy until it is let: what arrives meanwhile arrives beside a copy under way. */
Test(stage, next_parts_arrive_while_a_part_is_being_copied)
{
    struct holmes_request *s, *r;
    struct buf from, to;
    struct link l;
    unsigned window = 4 * MIB / SLICE;

    fake_cuda_start(4, 0);
    trace_wire();
    setenv("HOLMES_LANES", "1", 1);
    open_tcp(&l);
    from = buf_make(l.send, false, PARTS * SLICE);
    to = buf_make(l.recv, true, PARTS * SLICE);
    link_fill(from.bytes, from.len, 1);
    fake_cuda_hold();
    r = link_irecv(l.recv, to.addr, to.len, 1, to.mr);
    s = link_isend(l.send, from.addr, from.len, 1, from.mr);
    drive_until(&s, r, WIRE_ARRIVED, window - 1);
    drive_until(&s, r, COPY_ISSUED, window - 1);
    cr_assert_eq(fake_cuda_counts().ended, 0);
    drive(&s, r);
    cr_assert_eq(trace_find(WIRE_ARRIVED, window), SIZE_MAX, "a part came without room for it");
    for (unsigned i = 0; i + window < PARTS; i++) {
        fake_cuda_release(1);
        drive_until(&s, r, COPY_ENDED, i);
        drive_until(&s, r, WIRE_ARRIVED, window + i); /* the room that copy i left */
    }
    fake_cuda_release_all();
    if (s)
        link_wait(s);
    cr_assert_eq(link_wait(r), from.len);
    cr_assert(link_check(to.bytes, from.len, 1));
    trace_write("receive");
    for (unsigned i = 0; i + 1 < PARTS; i++) {
        size_t copied = trace_find(COPY_ENDED, i), next = trace_find(WIRE_ARRIVED, i + 1);

        cr_assert(next < copied, "part %u waited for the copy of part %u", i + 1, i);
        cr_assert(trace_find(WIRE_ARRIVED, i) < trace_find(COPY_ISSUED, i));
    }
    buf_free(&from);
    buf_free(&to);
    link_close(&l);
    fake_cuda_stop();
}

Test(stage, pieces_are_sent_while_the_next_are_being_copied)
{
    struct holmes_request *s, *r;
    struct buf from, to;
    struct link l;
    unsigned window = 4 * MIB / SLICE;

    fake_cuda_start(5, 0);
    trace_wire();
    setenv("HOLMES_LANES", "1", 1);
    open_tcp(&l);
    from = buf_make(l.send, true, PARTS * SLICE);
    to = buf_make(l.recv, false, PARTS * SLICE);
    link_fill(from.bytes, from.len, 2);
    fake_cuda_hold();
    r = link_irecv(l.recv, to.addr, to.len, 1, to.mr);
    s = link_isend(l.send, from.addr, from.len, 1, from.mr);
    drive(&s, r);
    cr_assert_eq(posts, 0, "bytes were sent before they were copied");
    cr_assert_eq(fake_cuda_counts().issued, window, "the copy engine is not kept busy");
    for (unsigned i = 0; i < PARTS; i++) {
        fake_cuda_release(1);
        if (i + 1 < PARTS)
            drive_until(&s, r, WIRE_POSTED, i);
    }
    cr_assert_eq(link_wait_both(s, r), from.len);
    cr_assert(link_check(to.bytes, from.len, 2));
    trace_write("send");
    for (unsigned i = 0; i + 1 < PARTS; i++) {
        cr_assert(trace_find(WIRE_POSTED, i) < trace_find(COPY_ENDED, i + 1),
                  "piece %u waited for the copy of piece %u", i, i + 1);
        cr_assert(trace_find(COPY_ENDED, i) < trace_find(WIRE_POSTED, i));
        cr_assert(trace_find(COPY_ISSUED, i + 1) < trace_find(WIRE_POSTED, i));
    }
    buf_free(&from);
    buf_free(&to);
    link_close(&l);
    fake_cuda_stop();
}

/* ---- flags ---- */

/* Looks at lines of 8 bytes (4 of data, 4 of flag) or 128 (120 and 8) as NCCL's kernels do: as soon
 * as a flag is this round's, the data before it must be. */
struct reader {
    const uint8_t *bytes;
    size_t len, line, flag_at;
    uint32_t first_round, rounds;
    uint32_t seen; /* rounds seen whole; atomic */
    size_t torn;   /* lines that were not */
};

static uint32_t word(const uint8_t *p)
{
    return __atomic_load_n((const uint32_t *)(const void *)p, __ATOMIC_ACQUIRE);
}

static uint32_t datum(uint32_t round, size_t at)
{
    return round * 2654435761u + (uint32_t)at;
}

static void *read_lines(void *arg)
{
    struct reader *r = arg;

    for (uint32_t round = r->first_round; round < r->first_round + r->rounds; round++) {
        for (size_t i = 0; i < r->len / r->line; i++) { /* every other round from the end */
            size_t line = (round % 2 ? i : r->len / r->line - 1 - i) * r->line;

            while (word(r->bytes + line + r->flag_at) != round)
                sched_yield();
            for (size_t at = line; at < line + r->flag_at; at += 4)
                r->torn += word(r->bytes + at) != datum(round, at);
        }
        __atomic_store_n(&r->seen, round, __ATOMIC_RELEASE);
    }
    return NULL;
}

static void write_lines(uint8_t *bytes, const struct reader *r, uint32_t round)
{
    for (size_t at = 0; at < r->len; at += 4) {
        uint32_t flag = at % r->line == r->flag_at ? round : 0;
        uint32_t value = at % r->line >= r->flag_at ? flag : datum(round, at);

        memcpy(bytes + at, &value, 4);
    }
}

/* `registered` is what tells the protocol, or does not and the hint must. */
static void flags_follow(size_t registered, size_t len, size_t line, bool hint, uint32_t rounds)
{
    struct reader reader = {.len = len, .line = line, .flag_at = line == 8 ? 4 : 120};
    struct buf from, to;
    struct link l;
    pthread_t thread;

    fake_cuda_start((unsigned)len, 0);
    setenv("HOLMES_LANES", "2", 1);
    open_tcp(&l);
    from = buf_make(l.send, false, registered);
    to = buf_make(l.recv, true, registered);
    reader.bytes = to.bytes;
    reader.first_round = 1;
    reader.rounds = rounds;
    cr_assert_eq(pthread_create(&thread, NULL, read_lines, &reader), 0);
    for (uint32_t round = 1; round <= rounds; round++) {
        uint64_t deadline = holmes_deadline_ms(LINK_TIMEOUT_MS);
        struct holmes_request *r, *s;
        int tag = 1;

        write_lines(from.bytes, &reader, round);
        cr_assert_eq((hint ? holmes_irecv_polled : holmes_irecv)(l.recv, 1, &to.addr, &len, &tag,
                                                                 &to.mr, &r),
                     0);
        s = link_isend(l.send, from.addr, len, 1, from.mr);
        cr_assert_eq(link_wait_both(s, r), len);
        while (__atomic_load_n(&reader.seen, __ATOMIC_ACQUIRE) < round) {
            cr_assert(!holmes_deadline_passed(deadline), "a line never came whole");
            sched_yield();
        }
    }
    pthread_join(thread, NULL);
    cr_assert_eq(reader.torn, 0, "%zu words were not there when their flag was", reader.torn);
    buf_free(&from);
    buf_free(&to);
    link_close(&l);
    fake_cuda_stop();
}

Test(stage, ll_flags_follow_their_data)
{
    flags_follow(524288, 65536, 8, false, 40);
}

Test(stage, ll_message_of_few_lines_is_ordered_too)
{
    flags_follow(524288, 48, 8, true, 200);
}

Test(stage, ll128_flags_follow_their_data)
{
    flags_follow(4915200, 614400, 128, false, 10);
}

Test(stage, hint_alone_orders_ll)
{
    flags_follow(MIB, 8 * 1021, 8, true, 60);
}

Test(stage, hint_alone_orders_ll128)
{
    flags_follow(MIB, 128 * 1021, 128, true, 20);
}

/* ---- an RDMA port whose peer is out of its reach ---- */

static struct holmes_transport *rdma_transport(const char *ip)
{
    struct holmes_nic nics[2] = {fake_rdma_nic("mlx5_0", ip), test_loopback_nic(ip)};
    struct holmes_transport *t;

    cr_assert_eq(holmes_transport_create(nics, 2, &t), 0);
    cr_assert_eq(holmes_transport_memory(t, 0), HOLMES_MEMORY_HOST | HOLMES_MEMORY_DMABUF);
    return t;
}

/* NCCL was told that the port takes dma-bufs, and gives one to a connection that became tcp. */
Test(stage, rdma_port_that_falls_back_to_tcp_stages_its_dma_bufs)
{
    static struct fake_rdma_plan plan;
    struct holmes_request *flush;
    struct holmes_conn_stats stats;
    struct buf from, to;
    struct link l;

    fake_cuda_start(16, 10);
    plan.gpu = true;
    plan.deaf = true; /* the probe fails */
    fake_rdma_use(&plan);
    memset(&l, 0, sizeof l);
    l.a = rdma_transport("127.0.0.1");
    l.b = rdma_transport("127.0.0.2");
    link_connect(&l);
    from = buf_make(l.send, true, MIB + 1);
    to = buf_make(l.recv, true, MIB + 1);
    holmes_mr_dereg(l.recv, to.mr);
    cr_assert_eq(holmes_mr_reg_dmabuf(l.recv, to.addr, to.len, 0, -1, &to.mr), 0);
    one_message(&l, &from, &to, MIB, MIB);
    holmes_conn_get_stats(l.recv, &stats);
    cr_assert_str_eq(stats.wire, test_tcp_wire()->name);
    cr_assert_eq(stats.staged_bytes, MIB);
    cr_assert_eq(holmes_iflush(l.recv, 1, &to.addr, &to.len, &to.mr, &flush), 0);
    cr_assert_null(flush, "a copy that is complete needs no flush");
    buf_free(&from);
    buf_free(&to);
    link_close(&l);
    fake_cuda_stop();
}

/* ---- refusals ---- */

Test(stage, send_larger_than_all_parts_fails_both_ends)
{
    struct holmes_request *s, *r;
    struct buf from, to;
    struct link l;
    int rc;

    fake_cuda_start(6, 10);
    link_capture_log();
    open_tcp(&l);
    from = buf_make(l.send, true, 4 * MIB);
    to = buf_make(l.recv, true, 4 * MIB);
    r = link_irecv(l.recv, to.addr, 2 * MIB + 7, 1, to.mr);
    while ((rc = holmes_isend(l.send, from.addr, 2 * MIB + 8, 1, from.mr, &s)) == -EAGAIN)
        ;
    cr_assert_eq(rc, -EMSGSIZE);
    cr_assert_eq(link_wait_error(r), -EMSGSIZE, "the receiver must learn why");
    cr_assert_eq(link_log_count("send of 2097160 bytes (tag 1) meets a receive of 2097159 bytes"),
                 1);
    buf_free(&from);
    buf_free(&to);
    link_close(&l);
    fake_cuda_stop();
}

Test(stage, gpu_buffer_in_a_group_is_refused)
{
    struct holmes_request *r;
    struct buf gpu, host;
    struct link l;
    void *bufs[2];
    size_t lens[2] = {10, 10};
    int tags[2] = {1, 2};
    struct holmes_mr *mrs[2];

    fake_cuda_start(7, 10);
    link_capture_log();
    open_tcp(&l);
    gpu = buf_make(l.recv, true, 100);
    host = buf_make(l.recv, false, 100);
    bufs[0] = host.addr;
    bufs[1] = gpu.addr;
    mrs[0] = host.mr;
    mrs[1] = gpu.mr;
    cr_assert_eq(holmes_irecv(l.recv, 2, bufs, lens, tags, mrs, &r), -EINVAL);
    cr_assert_eq(link_log_count("buffer 1 of a group of 2 is GPU memory"), 1);
    buf_free(&gpu);
    buf_free(&host);
    link_close(&l);
    fake_cuda_stop();
}

static void gpu_is_refused(const char *line)
{
    char memory[64], other[64];
    struct holmes_request *s, *r;
    struct holmes_mr *mr = NULL, *fm, *tm;
    struct link l;

    link_capture_log();
    open_tcp(&l);
    for (int i = 0; i < 2; i++)
        cr_assert_eq(holmes_mr_reg_cuda(l.recv, memory, sizeof memory, &mr), -EOPNOTSUPP);
    cr_assert_geq(link_log_count(line), 1, "no line says \"%s\"", line);
    cr_assert_eq(holmes_mr_reg(l.send, other, 64, &fm), 0);
    cr_assert_eq(holmes_mr_reg(l.recv, memory, 64, &tm), 0);
    r = link_irecv(l.recv, memory, 64, 1, tm);
    s = link_isend(l.send, other, 64, 1, fm);
    cr_assert_eq(link_wait_both(s, r), 64, "host memory must go on");
    holmes_mr_dereg(l.send, fm);
    holmes_mr_dereg(l.recv, tm);
    link_close(&l);
}

Test(stage, missing_driver_is_one_line_and_a_refused_registration)
{
    setenv("HOLMES_LIBCUDA", "/nonexistent/libcuda.so.1", 1);
    gpu_is_refused("/nonexistent/libcuda.so.1 not found");
    cr_assert_eq(link_log_count("not found"), 1, "it was said twice");
}

Test(stage, library_that_is_no_driver_is_named)
{
    setenv("HOLMES_LIBCUDA", "libm.so.6", 1);
    gpu_is_refused("libm.so.6 has no cuCtxGetCurrent");
}

Test(stage, thread_without_a_context_is_refused)
{
    fake_cuda_start(8, 0);
    fake_cuda_set_context(false);
    gpu_is_refused("no CUDA context on this thread");
    fake_cuda_set_context(true);
    fake_cuda_stop();
}

Test(stage, data_calls_need_no_context_of_their_own)
{
    struct buf from, to;
    struct link l;

    fake_cuda_start(9, 10);
    open_tcp(&l);
    from = buf_make(l.send, true, MIB + 1);
    to = buf_make(l.recv, true, MIB + 1);
    fake_cuda_set_context(false);
    one_message(&l, &from, &to, MIB, MIB);
    fake_cuda_set_context(true);
    buf_free(&from);
    buf_free(&to);
    link_close(&l);
    fake_cuda_stop();
}

/* ---- endings ---- */

/* Both directions have copies under way; then `end` is called, and nothing may touch the buffers
 * any more: the stand-in aborts when they are freed under a copy. */
static void end_under_way(void (*end)(struct link *l, struct buf *from, struct buf *to))
{
    struct holmes_request *s, *r;
    struct buf from, to;
    struct link l;
    int fds = 0;

    fake_cuda_start(10, 300);
    open_tcp(&l);
    link_close(&l); /* libraries stay open */
    fds = holmes_self_fds();
    open_tcp(&l);
    from = buf_make(l.send, true, PARTS * SLICE);
    to = buf_make(l.recv, true, PARTS * SLICE);
    r = link_irecv(l.recv, to.addr, to.len, 1, to.mr);
    s = link_isend(l.send, from.addr, from.len, 1, from.mr);
    fake_cuda_hold();
    while (fake_cuda_counts().issued < 20) {
        fake_cuda_release(1);
        drive(&s, r);
    }
    fake_cuda_release_all();
    end(&l, &from, &to);
    link_close(&l);
    cr_assert_eq(fake_cuda_counts().issued, fake_cuda_counts().ended, "copies are left");
    fake_cuda_stop();
    cr_assert_eq(holmes_self_fds(), fds);
}

static void deregister(struct link *l, struct buf *from, struct buf *to)
{
    (void)l;
    buf_free(from);
    buf_free(to);
}

static void close_first(struct link *l, struct buf *from, struct buf *to)
{
    holmes_conn_close(l->send);
    holmes_conn_close(l->recv);
    l->send = l->recv = NULL;
    fake_cuda_free(from->addr);
    fake_cuda_free(to->addr);
}

static void peer_goes(struct link *l, struct buf *from, struct buf *to)
{
    void *at = to->addr;
    size_t len = 1;
    int tag = 1, rc;
    struct holmes_request *r;
    uint64_t deadline = holmes_deadline_ms(LINK_TIMEOUT_MS);

    holmes_conn_close(l->send);
    l->send = NULL;
    fake_cuda_free(from->addr);
    do {
        rc = holmes_irecv(l->recv, 1, &at, &len, &tag, &to->mr, &r);
        cr_assert(!holmes_deadline_passed(deadline), "the receiver never noticed");
    } while (rc == 0 || rc == -EAGAIN);
    cr_assert_eq(rc, -ECONNRESET);
    /* The error is out: the buffer is the caller's again. */
    fake_cuda_free(to->addr);
}

Test(stage, deregistration_waits_for_copies)
{
    end_under_way(deregister);
}

Test(stage, close_waits_for_copies)
{
    end_under_way(close_first);
}

Test(stage, failed_connection_leaves_no_copy_behind)
{
    end_under_way(peer_goes);
}

/* The sender is done when its bytes are in the receiver's pinned memory, and may leave. */
Test(stage, sender_may_close_while_its_last_bytes_are_being_copied)
{
    struct holmes_request *s, *r;
    struct buf from, to;
    struct link l;

    fake_cuda_start(15, 1000);
    open_tcp(&l);
    from = buf_make(l.send, false, 3 * MIB);
    to = buf_make(l.recv, true, 3 * MIB);
    link_fill(from.bytes, from.len, 3);
    r = link_irecv(l.recv, to.addr, to.len, 1, to.mr);
    s = link_isend(l.send, from.addr, from.len, 1, from.mr);
    fake_cuda_hold();
    while (s)
        drive(&s, r);
    buf_free(&from);
    holmes_conn_close(l.send);
    l.send = NULL;
    fake_cuda_release_all();
    cr_assert_eq(link_wait(r), to.len);
    cr_assert(link_check(to.bytes, to.len, 3));
    buf_free(&to);
    link_close(&l);
    fake_cuda_stop();
}

Test(stage, copy_that_never_ends_is_given_up)
{
    struct holmes_request *s, *r;
    struct buf from, to;
    struct link l;

    fake_cuda_start(11, 0);
    link_capture_log();
    open_tcp(&l);
    from = buf_make(l.send, false, MIB);
    to = buf_make(l.recv, true, MIB);
    r = link_irecv(l.recv, to.addr, MIB, 1, to.mr);
    s = link_isend(l.send, from.addr, MIB, 1, from.mr);
    fake_cuda_hold();
    drive_until(&s, r, COPY_ISSUED, 0);
    link_close(&l);
    cr_assert_eq(link_log_count("a copy of the GPU did not end within 2 s"), 1);
    cr_assert_gt(fake_cuda_counts().pinned, 0, "pinned memory was freed under a copy");
    free(from.addr);
    fake_cuda_discard();
}

Test(stage, failing_copy_fails_the_connection_on_both_ends)
{
    struct holmes_request *s, *r;
    struct buf from, to;
    struct link l;

    fake_cuda_start(12, 10);
    link_capture_log();
    open_tcp(&l);
    from = buf_make(l.send, false, 8 * MIB);
    to = buf_make(l.recv, true, 8 * MIB);
    fake_cuda_fail_copy(5);
    r = link_irecv(l.recv, to.addr, to.len, 1, to.mr);
    s = link_isend(l.send, from.addr, from.len, 1, from.mr);
    for (int i = 0; i < 100; i++) {
        bool done;

        if (holmes_test(s, &done, NULL) != 0)
            break;
        cr_assert(!done);
    }
    cr_assert_eq(link_wait_error(r), -EIO);
    cr_assert_eq(link_log_count("CUDA_ERROR_LAUNCH_FAILED"), 1);
    cr_assert_eq(link_wait_error(s), -ECONNABORTED);
    buf_free(&from);
    buf_free(&to);
    link_close(&l);
    fake_cuda_stop();
}

/* ---- a wire that fails on cue ---- */

static struct fault_plan plan;

static int faulty_exchange(const struct fault_plan *p)
{
    static const struct wire_ops *wires[2];
    struct exchange x;
    struct link l;
    int rc;

    fake_cuda_start(13, 30);
    wires[0] = fault_driver(test_tcp_wire(), &plan);
    holmes_wires_override(wires);
    setenv("HOLMES_LANES", "2", 1);
    open_tcp(&l);
    x = exchange_make(&l, 60, 4);
    plan = *p;
    rc = exchange_run(&l, &x);
    exchange_free(&x);
    link_close(&l);
    fake_cuda_stop();
    return rc;
}

Test(stage, wire_without_room_only_delays)
{
    cr_assert_eq(faulty_exchange(&(struct fault_plan){.eagain_posts = 500}), 0);
}

Test(stage, late_completions_only_delay)
{
    cr_assert_eq(faulty_exchange(&(struct fault_plan){.delay_polls = 7}), 0);
}

/* One end sees its lane end, the other may hear of it first. */
Test(stage, dropped_lane_ends_the_exchange)
{
    int rc = faulty_exchange(&(struct fault_plan){.drop_lane_post = 60});

    cr_assert(rc == -ECONNRESET || rc == -ECONNABORTED, "%s", strerror(-rc));
}

/* ---- counters ---- */

Test(stage, counters_tell_what_was_staged)
{
    struct holmes_conn_stats stats;
    struct buf from, gpu, host;
    char path[] = "/tmp/holmes-stage-XXXXXX", text[4096] = "";
    struct link l;
    FILE *f;

    close(mkstemp(path));
    fake_cuda_start(14, 0);
    open_tcp(&l);
    from = buf_make(l.send, false, 2 * MIB);
    gpu = buf_make(l.recv, true, 2 * MIB);
    host = buf_make(l.recv, false, 2 * MIB);
    one_message(&l, &from, &gpu, MIB, MIB);
    one_message(&l, &from, &host, 1000, MIB);
    holmes_conn_get_stats(l.recv, &stats);
    cr_assert_eq(stats.messages, 2);
    cr_assert_eq(stats.bytes, MIB + 1000);
    cr_assert_eq(stats.staged_bytes, MIB);
    holmes_conn_get_stats(l.send, &stats);
    cr_assert(stats.messages == 2 && stats.bytes == MIB + 1000 && stats.staged_bytes == 0);
    buf_free(&from);
    buf_free(&gpu);
    buf_free(&host);
    setenv("HOLMES_STATS", path, 1);
    link_close(&l);
    f = fopen(path, "r");
    cr_assert_gt(fread(text, 1, sizeof text - 1, f), 0);
    fclose(f);
    unlink(path);
    cr_assert_not_null(strstr(text, "\"bytes\":1049576,"), "%s", text);
    cr_assert_not_null(strstr(text, "\"staged_bytes\":1048576"), "%s", text);
    fake_cuda_stop();
}
