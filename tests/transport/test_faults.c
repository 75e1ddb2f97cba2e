/* The message protocol on a wire that fails on cue: nothing is lost while the wire merely
 * hesitates, and everything ends in bounded time when it breaks. */
#include <criterion/criterion.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "../support/patience.h"
#include "clock.h"
#include "fault_driver.h"
#include "link.h"
#include "self.h"
#include "test_nics.h"
#include "transport/conn.h"

#define BIG (1u << 20)

static struct fault_plan plan;
static const struct wire_ops *wires[3];

static void faulty_wire(const struct wire_ops *ops)
{
    memset(&plan, 0, sizeof plan);
    wires[0] = fault_driver(ops, &plan);
    wires[1] = ops->rdma ? test_tcp_wire() : NULL;
    holmes_wires_override(wires);
}

/* `count` messages of mixed sizes, several outstanding. Returns 0, or the first error of any call
 * once both ends have failed or finished. */
static int exchange(struct link *l, int count)
{
    static const size_t sizes[] = {0, 8, 4096, 70000, BIG};
    enum { DEPTH = 4 };
    uint8_t *from = malloc(BIG), *to = malloc(DEPTH * BIG);
    struct holmes_mr *fm = NULL, *tm = NULL;
    struct holmes_request *sends[DEPTH] = {0}, *recvs[DEPTH] = {0};
    int posted = 0, sent = 0, done_sends = 0, done_recvs = 0, rc, first = 0;
    uint64_t deadline = holmes_deadline_ms(LINK_TIMEOUT_MS);

    link_fill(from, BIG, 9);
    rc = holmes_mr_reg(l->send, from, BIG, &fm);
    if (rc == 0)
        rc = holmes_mr_reg(l->recv, to, DEPTH * BIG, &tm);
    first = rc;
    while (first == 0 && (done_sends < count || done_recvs < count)) {
        cr_assert(!holmes_deadline_passed(deadline), "%d of %d sent, %d received", done_sends,
                  count, done_recvs);
        if (posted < count && posted - done_recvs < DEPTH) {
            void *buf = to + (posted % DEPTH) * (size_t)BIG;
            size_t len = sizes[posted % 5];
            int tag = 1;

            rc = holmes_irecv(l->recv, 1, &buf, &len, &tag, &tm, &recvs[posted % DEPTH]);
            posted += rc == 0;
            first = rc != 0 && rc != -EAGAIN ? rc : first;
        }
        if (first == 0 && sent < count && sent - done_sends < DEPTH) {
            rc = holmes_isend(l->send, from, sizes[sent % 5], 1, fm, &sends[sent % DEPTH]);
            sent += rc == 0;
            first = rc != 0 && rc != -EAGAIN ? rc : first;
        }
        if (first == 0 && done_sends < sent) {
            bool done;

            rc = holmes_test(sends[done_sends % DEPTH], &done, NULL);
            done_sends += done;
            first = rc;
        }
        if (first == 0 && done_recvs < posted) {
            bool done;
            size_t len = 99;

            rc = holmes_test(recvs[done_recvs % DEPTH], &done, &len);
            first = rc;
            if (done) {
                uint8_t *buf = to + (done_recvs % DEPTH) * (size_t)BIG;

                cr_assert_eq(len, sizes[done_recvs % 5]);
                cr_assert(link_check(buf, len, 9), "message %d changed", done_recvs);
                done_recvs++;
            }
        }
    }
    if (fm)
        holmes_mr_dereg(l->send, fm);
    if (tm)
        holmes_mr_dereg(l->recv, tm);
    free(from);
    free(to);
    return first;
}

Test(faults, wire_without_room_loses_nothing)
{
    struct link l;

    faulty_wire(test_nics()->ops);
    setenv("HOLMES_LANES", "3", 1);
    link_open(&l);
    for (int n = 1; n < 30; n++) {
        plan.eagain_posts = n;
        cr_assert_eq(exchange(&l, 5), 0);
    }
    link_close(&l);
}

Test(faults, late_completions_lose_nothing)
{
    struct link l;

    faulty_wire(test_nics()->ops);
    link_open(&l);
    for (int n = 1; n < 50; n += 7) {
        plan.delay_polls = n;
        cr_assert_eq(exchange(&l, 10), 0);
    }
    link_close(&l);
}

Test(faults, any_failing_post_ends_in_an_error_and_leaks_nothing)
{
    struct link l;
    int fds = 0, posts;

    faulty_wire(test_nics()->ops);
    link_open(&l);
    /* A clear-to-send and a write for each of ten messages; where a completed write is no delivery
     * a count too, now and then. */
    posts = l.send->limits.delivers ? 20 : 24;
    for (int n = 1; n <= posts; n++) {
        struct holmes_conn *s, *r;

        s = l.send;
        r = l.recv;
        plan.fail_post = n;
        plan.fail_post_error = -EIO;
        cr_assert_eq(exchange(&l, 10), -EIO, "post %d", n);
        holmes_conn_close(s);
        holmes_conn_close(r);
        plan.fail_post = 0;
        link_connect(&l);
        if (n == 2)
            fds = holmes_self_fds();
    }
    cr_assert_eq(holmes_self_fds(), fds);
    cr_assert_eq(exchange(&l, 10), 0, "a new connection works");
    link_close(&l);
}

/* How an end of a lost connection fails: it saw the loss, was told of it, or lost its buffers to
 * exchange() before it did. */
static bool lost(int rc)
{
    return rc == -ECONNRESET || rc == -ECONNABORTED || rc == -ECANCELED;
}

Test(faults, dropped_lane_fails_both_ends_in_bounded_time)
{
    struct link l;

    faulty_wire(test_nics()->ops);
    setenv("HOLMES_LANES", "2", 1);
    link_open(&l);
    for (int n = 1; n <= 30; n += 3) {
        struct holmes_request *req;
        struct holmes_conn *s = l.send, *r = l.recv;
        uint64_t deadline;
        char byte;
        void *p = &byte;
        size_t len = 0;
        int rc, tag = 1;
        struct holmes_mr *none = NULL;

        plan.drop_lane_post = n;
        rc = exchange(&l, 20);
        /* Whichever came first: the loss itself, or the word of the end that saw it. */
        cr_assert(rc == -ECONNRESET || rc == -ECONNABORTED, "post %d: %d", n, rc);
        deadline = holmes_deadline_ms((uint64_t)patience_ms(2000));
        do
            rc = holmes_isend(s, NULL, 0, 1, NULL, &req);
        while ((rc == 0 || rc == -EAGAIN) && !holmes_deadline_passed(deadline));
        cr_assert(lost(rc), "sender: %d", rc);
        do
            rc = holmes_irecv(r, 1, &p, &len, &tag, &none, &req);
        while ((rc == 0 || rc == -EAGAIN) && !holmes_deadline_passed(deadline));
        cr_assert(lost(rc), "receiver: %d", rc);
        holmes_conn_close(s);
        holmes_conn_close(r);
        plan.drop_lane_post = 0;
        link_connect(&l);
    }
    cr_assert_eq(exchange(&l, 10), 0, "a new connection works");
    link_close(&l);
}

/* Case C9. */
Test(faults, buffers_registered_by_several_connections_cost_the_wire_one_registration_each)
{
    enum { A, B, C, D, RANGES };
    struct link l;
    struct holmes_conn *other;
    struct holmes_mr *mr[RANGES], *again[RANGES], *b;
    static char buf[RANGES][4096];
    int before;

    faulty_wire(test_nics()->ops);
    link_open(&l);
    other = l.recv;
    holmes_conn_close(l.send);
    link_connect(&l);
    before = plan.mr_regs;
    for (int i = 0; i < RANGES; i++)
        cr_assert_eq(holmes_mr_reg(l.recv, buf[i], sizeof buf[i], &mr[i]), 0);
    for (int i = 0; i < RANGES; i++) { /* NCCL does so for every peer */
        cr_assert_eq(holmes_mr_reg(other, buf[i], sizeof buf[i], &again[i]), 0);
        cr_assert_eq(again[i], mr[i]);
    }
    holmes_mr_dereg(l.recv, mr[A]);
    cr_assert_eq(holmes_mr_reg(l.recv, buf[B], sizeof buf[B], &b), 0);
    cr_assert_eq(b, mr[B]);
    cr_assert_eq(plan.mr_regs - before, RANGES, "registrations of the wire");
    holmes_mr_dereg(l.recv, b);
    for (int i = 0; i < RANGES; i++) {
        holmes_mr_dereg(other, again[i]);
        if (i != A)
            holmes_mr_dereg(l.recv, mr[i]);
    }
    cr_assert_eq(holmes_mr_reg(l.recv, buf[A], sizeof buf[A], &b), 0);
    cr_assert_eq(plan.mr_regs - before, RANGES + 1, "given back for good, registered anew");
    holmes_mr_dereg(l.recv, b);
    holmes_conn_close(other);
    link_close(&l);
}

Test(faults, refused_registration_is_an_error_and_not_the_end)
{
    struct link l;
    char buf[16];
    struct holmes_mr *mr;

    faulty_wire(test_nics()->ops);
    link_open(&l);
    plan.mr_reg_error = -ENOMEM;
    cr_assert_eq(holmes_mr_reg(l.send, buf, 16, &mr), -ENOMEM);
    plan.mr_reg_error = 0;
    cr_assert_eq(exchange(&l, 5), 0);
    link_close(&l);
}

Test(faults, refused_resources_fail_the_set_up_with_their_reason)
{
    struct holmes_nic nic = test_loopback_nic("127.0.0.1");
    uint8_t handle[HOLMES_HANDLE_SIZE];
    struct holmes_transport *t;
    struct link l = {0};
    int rc;

    link_capture_log();
    faulty_wire(test_tcp_wire());
    plan.load_error = -ELIBACC;
    cr_assert_eq(holmes_transport_create(&nic, 1, &t), -ELIBACC);
    plan.load_error = 0;
    plan.nic_open_error = -ENODEV;
    cr_assert_eq(holmes_transport_create(&nic, 1, &t), 0);
    cr_assert_eq(holmes_listen(t, NULL, 0, handle, &l.listen), -ENODEV);
    cr_assert_eq(link_log_count("cannot open wire"), 1);
    holmes_transport_destroy(t);
    plan.nic_open_error = 0;

    cr_assert_eq(holmes_transport_create(&nic, 1, &l.a), 0);
    cr_assert_eq(holmes_transport_create(&nic, 1, &l.b), 0);
    cr_assert_eq(holmes_listen(l.b, &l, 0, handle, &l.listen), 0);
    plan.cq_open_error = -EMFILE;
    rc = link_try_connect(&l, handle);
    cr_assert_eq(rc, -EMFILE);
    cr_assert_gt(link_log_count("RLIMIT_NOFILE"), 0);
    link_close(&l);
}

/* On an RDMA wire the acknowledgement of the last write can die with the receiver's queue pair: the
 * receiver's word counts. */
Test(faults, send_that_the_receiver_has_is_done_although_the_wire_never_says_so)
{
    uint8_t from[64], to[64];
    struct holmes_mr *fm, *tm;
    struct holmes_request *send, *recv;
    bool sent = false, got = false;
    uint64_t deadline = holmes_deadline_ms(LINK_TIMEOUT_MS);
    struct link l;
    size_t len;
    int rc;

    faulty_wire(test_nics()->ops);
    link_open(&l);
    cr_assert_eq(holmes_mr_reg(l.send, from, sizeof from, &fm), 0);
    cr_assert_eq(holmes_mr_reg(l.recv, to, sizeof to, &tm), 0);
    recv = link_irecv(l.recv, to, sizeof to, 1, tm);
    send = link_isend(l.send, from, sizeof from, 1, fm);
    while (!got) {
        cr_assert(!holmes_deadline_passed(deadline), "never received");
        cr_assert_eq(holmes_test(recv, &got, &len), 0);
    }
    plan.delay_polls = 1 << 30; /* from here on the sender's wire is silent */
    holmes_mr_dereg(l.recv, tm);
    holmes_conn_close(l.recv);
    l.recv = NULL;
    while (!sent) {
        cr_assert(!holmes_deadline_passed(deadline), "never known to be sent");
        cr_assert_eq(holmes_test(send, &sent, &len), 0);
    }
    cr_assert_eq(len, sizeof from);
    do { /* a small message is taken before anybody looks */
        cr_assert(!holmes_deadline_passed(deadline), "never known that the peer is gone");
        rc = holmes_isend(l.send, from, sizeof from, 1, fm, &send);
        if (rc == 0)
            rc = holmes_test(send, &sent, NULL);
    } while (rc == 0 || rc == -EAGAIN);
    cr_assert_eq(rc, -ECONNRESET);
    link_close(&l);
}

/* NCCL's own InfiniBand transport posts a clear-to-send one way and a write with immediate the
 * other. Ours posts no more where one write carries the message, and one small inline write more
 * where several do; on a wire where a completion is no delivery the receiver tells its count
 * besides. */
static void costs(size_t len, const char *lanes, int messages)
{
    struct wire_limits limits;
    int writes, records, expected;
    uint8_t *from = calloc(1, len + 1), *to = calloc(1, len + 1);
    struct holmes_mr *fm, *tm;
    struct holmes_request *s, *r;
    struct link l;

    cr_assert(from && to);
    faulty_wire(test_nics()->ops);
    setenv("HOLMES_EAGER", "0", 1);
    setenv("HOLMES_LANES", lanes, 1);
    link_open(&l);
    limits = l.send->limits;
    writes = (int)((len + limits.max_write - 1) / limits.max_write);
    writes = writes > 0 ? writes : 1;
    records = writes > 1;
    cr_assert_eq(holmes_mr_reg(l.send, from, len + 1, &fm), 0);
    cr_assert_eq(holmes_mr_reg(l.recv, to, len + 1, &tm), 0);
    plan.posts = plan.inlines = 0;
    plan.inlined = plan.referenced = 0;
    plan.first = plan.end = NULL;
    for (int i = 0; i < messages; i++) {
        r = link_irecv(l.recv, to, len, 1, tm);
        s = link_isend(l.send, from, len, 1, fm);
        cr_assert_eq(link_wait_both(s, r), len);
    }
    expected = messages * (1 + writes + records);
    if (limits.delivers)
        cr_expect_eq(plan.posts, expected, "%zu bytes: %d work requests, not %d", len, plan.posts,
                     expected);
    else
        cr_expect(plan.posts >= expected && plan.posts <= expected + messages,
                  "%zu bytes: %d writes, not %d and %d counts at most", len, plan.posts, expected,
                  messages);
    cr_expect_eq(plan.posts - plan.inlines, messages * writes);
    cr_expect_leq(plan.inlined, (size_t)plan.inlines * 64, "control only");
    /* No copy: every byte left from where the caller had it. */
    cr_expect_eq(plan.referenced, len * (size_t)messages);
    if (len > 0)
        cr_expect(plan.first == from && plan.end == from + len);
    holmes_mr_dereg(l.send, fm);
    holmes_mr_dereg(l.recv, tm);
    link_close(&l);
    free(from);
    free(to);
}

Test(faults, message_costs_a_clear_to_send_and_its_writes_and_no_copy)
{
    static const size_t sizes[] = {0, 8, 4096, 1u << 20, 9u << 20};

    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        costs(sizes[i], "1", sizes[i] > 1u << 20 ? 1 : 3);
}
