/* How lanes come up and end, on any wire: dead peers, closing under traffic, descriptors. */
#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../support/patience.h"
#include "../support/spawn.h"
#include "clock.h"
#include "self.h"
#include "wire_pair.h"

static const struct test_nics *nics;
static const struct wire_ops *wire;

static void choose_nics(void)
{
    setenv("NCCL_IB_TIMEOUT", "14", 1); /* a dead peer is known in half a second, not in half a
                                           minute */
    nics = test_nics();
    wire = nics->ops;
}

TestSuite(wire_lanes, .init = choose_nics);

Test(wire_lanes, blobs_that_do_not_belong_are_refused)
{
    struct wire_end a;
    struct half accepting, connecting;
    uint8_t noise[HOLMES_LANE_BLOB_MAX];

    end_open(&a, wire, &nics->from);
    accepting = half_make(&a, WIRE_ACCEPT);
    connecting = half_make(&a, WIRE_CONNECT);
    memset(noise, 0x5a, sizeof noise);
    cr_assert_eq(wire->lane_connect(connecting.lane, noise, sizeof noise), -EPROTO);
    cr_assert_eq(wire->lane_connect(accepting.lane, noise, 8), -EPROTO);
    cr_assert_eq(wire->lane_connect(connecting.lane, connecting.blob, connecting.len), -EPROTO);
    cr_assert_eq(wire->lane_connect(accepting.lane, accepting.blob, accepting.len), -EPROTO);
    wire->lane_close(accepting.lane);
    wire->lane_close(connecting.lane);
    wire->lane_close(NULL);
    end_close(&a);
}

Test(wire_lanes, rising_lane_takes_no_writes)
{
    struct wire_end a;
    struct half accepting;

    end_open(&a, wire, &nics->from);
    accepting = half_make(&a, WIRE_ACCEPT);
    cr_assert_eq(wire->lane_poll(accepting.lane), -EAGAIN);
    cr_assert_eq(
        wire->lane_post(accepting.lane, &(struct wire_write){.flags = WIRE_WITH_IMM | WIRE_INLINE}),
        -EAGAIN);
    wire->lane_close(accepting.lane);
    end_close(&a);
}

/* ---- death -------------------------------------------------------------------------------- */

static void pipe_write(int fd, const void *p, size_t n)
{
    cr_assert_eq(write(fd, p, n), (ssize_t)n);
}

static void pipe_read(int fd, void *p, size_t n)
{
    cr_assert_eq(read(fd, p, n), (ssize_t)n);
}

/* A process with the connecting end of a lane, that then only waits to be killed. */
struct victim {
    pid_t pid;
    int in, out; /* what the other end says to it; what it says */
};

static int victim_main(const void *arg, const int *fds)
{
    const int in = fds[0], out = fds[1];
    struct half mine, peer;
    struct wire_end e;

    (void)arg;
    choose_nics();
    end_open(&e, wire, &nics->from);
    mine = half_make(&e, WIRE_CONNECT);
    pipe_write(out, &mine, sizeof mine);
    pipe_read(in, &peer, sizeof peer);
    if (wire->lane_connect(mine.lane, peer.blob, peer.len) != 0)
        return 1;
    for (;;) {
        wire->nic_progress(e.wn);
        end_drive(&e);
    }
}

static struct victim victim_start(void)
{
    int to[2], from[2];
    struct victim v;

    cr_assert_eq(pipe2(to, O_CLOEXEC), 0);
    cr_assert_eq(pipe2(from, O_CLOEXEC), 0);
    v.pid = spawn(victim_main, NULL, 0, (const int[]){to[0], from[1]}, 2);
    cr_assert_gt(v.pid, 0);
    close(to[0]);
    close(from[1]);
    v.in = to[1];
    v.out = from[0];
    return v;
}

static struct half victim_raise(struct victim *v, struct wire_end *e)
{
    struct half mine = half_make(e, WIRE_ACCEPT), peer;
    int rc;

    pipe_read(v->out, &peer, sizeof peer);
    pipe_write(v->in, &mine, sizeof mine);
    cr_assert_eq(wire->lane_connect(mine.lane, peer.blob, peer.len), 0);
    rc = lane_wait(e, NULL, mine.lane, PAIR_TIMEOUT_MS);
    cr_assert_eq(rc, 0, "%s", strerror(-rc));
    return mine;
}

static void victim_kill(struct victim *v)
{
    kill(v->pid, SIGKILL);
    cr_assert_eq(waitpid(v->pid, NULL, 0), v->pid);
}

static void victim_end(struct victim *v)
{
    close(v->in);
    close(v->out);
}

#define DEATH_WRITES 20

static void post_to_victim(const struct half *h, const struct wire_mr *mr, uint8_t *src, size_t len)
{
    for (int i = 0; i < DEATH_WRITES; i++)
        cr_assert_eq(wire->lane_post(h->lane, &(struct wire_write){.buf = src,
                                                                   .len = len,
                                                                   .mr = mr,
                                                                   .remote_key = 1,
                                                                   .context = &src[i]}),
                     0);
}

/* Each write is answered for, in order. */
static void expect_answers(struct wire_end *e, const uint8_t *src)
{
    struct wire_event event = {0};

    for (int i = 0; i < DEATH_WRITES; i++) {
        cr_assert(end_wait_event(e, NULL, &event), "write %d vanished", i);
        cr_assert(event.type == WIRE_WRITE_DONE || (event.type == WIRE_ERROR && event.error < 0));
        cr_assert_eq(event.context, &src[i]);
    }
    cr_assert_eq(event.type, WIRE_ERROR);
}

static void killed_peer(bool writing)
{
    static uint8_t src[1 << 20];
    struct wire_end e;
    struct half h;
    struct wire_mr mr;
    uint64_t killed;
    int rc;
    struct victim v = victim_start();

    end_open(&e, wire, &nics->to);
    h = victim_raise(&v, &e);
    cr_assert_eq(wire->mr_reg(e.wn, src, sizeof src, &mr), 0);
    if (nics->notices_close)
        kill(v.pid, SIGSTOP); /* so that the writes stay outstanding */
    else
        victim_kill(&v); /* its device answers for a stopped process */
    if (writing)
        post_to_victim(&h, &mr, src, sizeof src);
    if (nics->notices_close)
        victim_kill(&v);
    killed = holmes_now_ns();
    rc = lane_wait_end(&e, NULL, h.lane, PAIR_TIMEOUT_MS);
    cr_assert(rc == -ECONNRESET || rc == -EPIPE, "%s", strerror(-rc));
    cr_assert_lt(holmes_now_ns() - killed, patience_ns(nics->notices_close ? 2000 : 8000));
    cr_assert_eq(
        wire->lane_post(h.lane, &(struct wire_write){.flags = WIRE_WITH_IMM | WIRE_INLINE}), rc);
    if (writing)
        expect_answers(&e, src);
    wire->lane_close(h.lane);
    wire->mr_dereg(e.wn, &mr);
    end_close(&e);
    victim_end(&v);
}

/* A wire that tells only what was not answered needs a write to be asked about. */
Test(wire_lanes, killed_peer_of_an_idle_lane_is_seen_at_once_or_at_the_first_write)
{
    killed_peer(!test_nics()->notices_close);
}

Test(wire_lanes, killed_peer_fails_the_outstanding_writes)
{
    killed_peer(true);
}

/* At once, or by the first write. */
Test(wire_lanes, peer_that_closed_its_lane_is_seen)
{
    struct wire_pair p;

    pair_open(&p, wire, 2);
    wire->lane_close(p.from.lanes[1]);
    p.from.nlanes = 1;
    if (!nics->notices_close)
        cr_assert_eq(wire->lane_post(p.to.lanes[1],
                                     &(struct wire_write){.flags = WIRE_WITH_IMM | WIRE_INLINE}),
                     0);
    cr_assert_eq(lane_wait_end(&p.to, &p.from, p.to.lanes[1], PAIR_TIMEOUT_MS), -ECONNRESET);
    cr_assert_eq(wire->lane_poll(p.to.lanes[0]), 0);
    pair_close(&p);
}

/* The end of a lane drops nothing that came before it, though our own writes fail first. */
Test(wire_lanes, what_a_peer_wrote_before_it_closed_arrives_after_a_failed_write)
{
    struct wire_write w = {.flags = WIRE_WITH_IMM | WIRE_INLINE};
    uint64_t deadline;
    struct wire_event e;
    struct wire_pair p;

    if (!wire->bundles) /* elsewhere a write that completed may be lost with its lane */
        return;
    pair_open(&p, wire, 1);
    for (w.imm = 0; w.imm < 10; w.imm++)
        cr_assert_eq(wire->lane_post(p.from.lanes[0], &w), 0);
    wire->lane_close(p.from.lanes[0]);
    p.from.nlanes = 0;
    /* The first is answered by a reset, another meets it. */
    deadline = holmes_deadline_ms(100);
    for (int i = 0; i < 500 && !holmes_deadline_passed(deadline); i++)
        cr_assert_eq(wire->lane_post(p.to.lanes[0], &w), 0, "write %d", i);
    for (unsigned i = 0; i < 10; i++) {
        cr_assert(end_wait_event(&p.to, NULL, &e), "immediate %u is lost", i);
        cr_assert_eq(e.type, WIRE_IMM);
        cr_assert_eq(e.imm, i);
    }
    cr_assert_eq(lane_wait_end(&p.to, NULL, p.to.lanes[0], PAIR_TIMEOUT_MS), -ECONNRESET);
    pair_close(&p);
}

/* ---- closing ------------------------------------------------------------------------------ */

struct flood {
    struct wire_mr from, to;
    uint8_t *src, *dst;
};

#define FLOOD_BYTES  (1u << 20)
#define FLOOD_WRITES 32

static void flood_start(struct flood *f, struct wire_pair *p, int lane)
{
    f->src = malloc(FLOOD_BYTES);
    f->dst = calloc(1, FLOOD_BYTES);
    cr_assert(f->src && f->dst);
    memset(f->src, 0xc3, FLOOD_BYTES);
    cr_assert_eq(wire->mr_reg(p->from.wn, f->src, FLOOD_BYTES, &f->from), 0);
    cr_assert_eq(wire->mr_reg(p->to.wn, f->dst, FLOOD_BYTES, &f->to), 0);
    for (int i = 0; i < FLOOD_WRITES; i++)
        cr_assert_eq(
            wire->lane_post(p->from.lanes[lane], &(struct wire_write){.buf = f->src,
                                                                      .len = FLOOD_BYTES,
                                                                      .mr = &f->from,
                                                                      .remote_addr = f->to.base,
                                                                      .remote_key = f->to.key,
                                                                      .context = f}),
            0);
}

static void flood_end(struct flood *f, struct wire_pair *p)
{
    wire->mr_dereg(p->from.wn, &f->from);
    wire->mr_dereg(p->to.wn, &f->to);
    free(f->src);
    free(f->dst);
}

Test(wire_lanes, closed_lane_reports_none_of_its_writes_and_its_neighbour_all)
{
    struct wire_pair p;
    struct flood f;
    struct wire_event e;
    int contexts[FLOOD_WRITES];

    pair_open(&p, wire, 2);
    flood_start(&f, &p, 0);
    for (int i = 0; i < FLOOD_WRITES; i++)
        cr_assert_eq(
            wire->lane_post(p.from.lanes[1], &(struct wire_write){.imm = (uint32_t)i,
                                                                  .flags = WIRE_WITH_IMM,
                                                                  .context = &contexts[i]}),
            0);
    wire->lane_close(p.from.lanes[0]);
    p.from.lanes[0] = p.from.lanes[1];
    p.from.nlanes = 1;
    for (int i = 0; i < FLOOD_WRITES; i++) {
        cr_assert(end_wait_event(&p.from, &p.to, &e), "completion %d lost by the close", i);
        cr_assert_eq(e.type, WIRE_WRITE_DONE, "event %d, error %d", e.type, e.error);
        cr_assert_eq(e.context, &contexts[i]);
        cr_assert(end_wait_event(&p.to, &p.from, &e));
        cr_assert_eq(e.type, WIRE_IMM);
        cr_assert_eq(e.imm, (uint32_t)i);
    }
    end_drive(&p.from);
    cr_assert_eq(p.from.count, 0u);
    flood_end(&f, &p);
    pair_close(&p);
}

Test(wire_lanes, nothing_lands_after_the_receiving_end_closed)
{
    struct wire_pair p;
    struct flood f;

    pair_open(&p, wire, 1);
    flood_start(&f, &p, 0);
    for (int i = 0; i < 10; i++) /* some of it is under way */
        end_drive(&p.to);
    wire->lane_close(p.to.lanes[0]);
    p.to.nlanes = 0;
    memset(f.dst, 0, FLOOD_BYTES);
    cr_assert_neq(lane_wait_end(&p.from, &p.to, p.from.lanes[0], PAIR_TIMEOUT_MS), 0);
    for (unsigned i = 0; i < FLOOD_BYTES; i++)
        cr_assert_eq(f.dst[i], 0, "byte %u landed", i);
    flood_end(&f, &p);
    pair_close(&p);
}

static atomic_bool progress_stop;

static void *progress_main(void *arg)
{
    struct wire_pair *p = arg;

    while (!atomic_load(&progress_stop)) {
        wire->nic_progress(p->from.wn);
        wire->nic_progress(p->to.wn);
    }
    return NULL;
}

Test(wire_lanes, may_be_closed_while_another_thread_runs_progress)
{
    struct wire_pair p;
    pthread_t thread;

    pair_open(&p, wire, 0);
    atomic_store(&progress_stop, false);
    cr_assert_eq(pthread_create(&thread, NULL, progress_main, &p), 0);
    for (int i = 0; i < 100; i++) {
        struct wire_end *first = i % 2 ? &p.from : &p.to, *second = i % 2 ? &p.to : &p.from;

        pair_raise(&p);
        wire->lane_close(first->lanes[0]);
        wire->lane_close(second->lanes[0]);
        p.from.nlanes = p.to.nlanes = 0;
    }
    atomic_store(&progress_stop, true);
    pthread_join(thread, NULL);
    pair_close(&p);
}

Test(wire_lanes, thousand_lanes_one_after_another_leave_no_descriptor)
{
    struct wire_pair p;
    int before;

    pair_open(&p, wire, 0);
    before = holmes_self_fds();
    for (int i = 0; i < 1000; i++) {
        pair_raise(&p);
        wire->lane_close(p.from.lanes[0]);
        wire->lane_close(p.to.lanes[0]);
        p.from.nlanes = p.to.nlanes = 0;
    }
    cr_assert_eq(holmes_self_fds(), before);
    pair_close(&p);
}

Test(wire_lanes, hundred_nics_one_after_another_leave_no_descriptor)
{
    struct wire_pair p;
    int before;

    pair_open(&p, wire, 1); /* what the library keeps for good is open now */
    pair_close(&p);
    before = holmes_self_fds();
    for (int i = 0; i < 100; i++) {
        pair_open(&p, wire, 1);
        pair_close(&p);
    }
    cr_assert_eq(holmes_self_fds(), before);
}

Test(wire_lanes, descriptors_are_as_few_as_documented)
{
    struct wire_end e;
    struct wire_pair p;
    struct wire_cq *cq;
    int before;

    end_open(&e, wire, &nics->to);
    before = holmes_self_fds();
    cr_assert_eq(wire->cq_open(e.wn, &cq), 0);
    cr_assert_leq(holmes_self_fds() - before, 3, "of a completion queue");
    wire->cq_close(cq);
    end_close(&e);

    pair_open(&p, wire, 1);
    before = holmes_self_fds();
    pair_raise(&p);
    cr_assert_leq(holmes_self_fds() - before, 2 * pair_streams(), "of the two ends of a lane");
    pair_close(&p);
}

/* Opens what a connecting end needs, under the limit in force; the first error. */
static int open_everything(const struct half *accepting)
{
    uint8_t blob[HOLMES_LANE_BLOB_MAX];
    struct wire_lane *lane = NULL;
    struct wire_nic *wn = NULL;
    struct wire_cq *cq = NULL;
    size_t len;
    int rc = wire->nic_open(&nics->from, 0, 0, &wn);

    if (rc == 0)
        rc = wire->cq_open(wn, &cq);
    if (rc == 0)
        rc = wire->lane_create(wn, cq, WIRE_CONNECT, NULL, blob, &len, &lane);
    if (rc == 0)
        rc = wire->lane_connect(lane, accepting->blob, accepting->len);
    wire->lane_close(lane);
    wire->cq_close(cq);
    wire->nic_close(wn);
    return rc;
}

Test(wire_lanes, running_out_of_descriptors_is_said_at_every_step_and_leaks_none)
{
    struct rlimit limit;
    struct half accepting;
    struct wire_end e;
    int before, lowest, rc = -EMFILE, room;

    end_open(&e, wire, &nics->to);
    accepting = half_make(&e, WIRE_ACCEPT);
    cr_assert_eq(open_everything(&accepting), 0);
    wire->nic_progress(e.wn);
    wire->nic_progress(e.wn);
    before = holmes_self_fds();
    lowest = dup(0); /* below it there is no free one */
    cr_assert_eq(close(lowest), 0);
    cr_assert_eq(getrlimit(RLIMIT_NOFILE, &limit), 0);
    for (room = 0; room < 40 && rc != 0; room++) {
        struct rlimit tight = {(rlim_t)(lowest + room), limit.rlim_max};

        cr_assert_eq(setrlimit(RLIMIT_NOFILE, &tight), 0);
        rc = open_everything(&accepting);
        cr_assert_eq(setrlimit(RLIMIT_NOFILE, &limit), 0);
        cr_assert(rc == 0 || rc == -EMFILE, "room for %d: %s", room, strerror(-rc));
        cr_assert_eq(holmes_self_fds(), before, "room for %d", room);
    }
    cr_assert_eq(rc, 0);
    cr_assert_gt(room, 1, "the limit did not bind");
    wire->lane_close(accepting.lane);
    end_close(&e);
}
