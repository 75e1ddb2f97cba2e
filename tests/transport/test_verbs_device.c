/* What only the verbs wire has, on the two devices that HOLMES_TEST_VERBS names; skipped without
 * them (tests/soft-roce brings them up). Some tests change network interfaces of their own making,
 * as root. */
#include <criterion/criterion.h>
#include <errno.h>
#include <linux/capability.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "../support/patience.h"
#include "clock.h"
#include "log.h"
#include "self.h"
#include "transport/verbs/verbs.h"
#include "wire_pair.h"

static const struct wire_ops *const wire = &holmes_wire_verbs;

static void need_devices(void)
{
    if (test_nics()->ops != wire)
        cr_skip_test("HOLMES_TEST_VERBS names no RDMA devices");
}

TestSuite(verbs_device, .init = need_devices);

/* ---- log: the watcher writes it from its own thread ---- */

static char logged[16384];
static size_t logged_len;
static pthread_mutex_t log_lock = PTHREAD_MUTEX_INITIALIZER;

static void keep_log(void *ctx, enum holmes_log_level level, enum holmes_log_subsys subsys,
                     const char *file, int line, const char *func, const char *msg)
{
    (void)ctx, (void)level, (void)subsys, (void)file, (void)line, (void)func;
    pthread_mutex_lock(&log_lock);
    if (logged_len + strlen(msg) + 2 < sizeof logged)
        logged_len +=
            (size_t)snprintf(logged + logged_len, sizeof logged - logged_len, "%s\n", msg);
    pthread_mutex_unlock(&log_lock);
}

static bool log_has(const char *needle)
{
    bool has;

    pthread_mutex_lock(&log_lock);
    has = strstr(logged, needle) != NULL;
    pthread_mutex_unlock(&log_lock);
    return has;
}

static void expect_logged(const char *needle)
{
    uint64_t deadline = holmes_deadline_ms(PAIR_TIMEOUT_MS);

    while (!log_has(needle) && !holmes_deadline_passed(deadline))
        ;
    cr_assert(log_has(needle), "no line has \"%s\":\n%s", needle, logged);
}

/* ---- lanes with parameters ---- */

/* Adds a lane to both ends and raises it. */
static void raise_with(struct wire_pair *p, const struct wire_lane_params *from,
                       const struct wire_lane_params *to)
{
    struct half a = {0}, b = {0};
    int i = p->from.nlanes;

    cr_assert_eq(
        wire->lane_create(p->from.wn, p->from.cq, WIRE_CONNECT, from, a.blob, &a.len, &a.lane), 0);
    cr_assert_eq(wire->lane_create(p->to.wn, p->to.cq, WIRE_ACCEPT, to, b.blob, &b.len, &b.lane),
                 0);
    p->from.lanes[i] = a.lane;
    p->to.lanes[i] = b.lane;
    p->from.nlanes = p->to.nlanes = i + 1;
    cr_assert_eq(wire->lane_connect(a.lane, b.blob, b.len), 0);
    cr_assert_eq(wire->lane_connect(b.lane, a.blob, a.len), 0);
    cr_assert_eq(lane_wait(&p->from, &p->to, a.lane, PAIR_TIMEOUT_MS), 0);
    cr_assert_eq(lane_wait(&p->to, &p->from, b.lane, PAIR_TIMEOUT_MS), 0);
}

static struct wire_lane_params params_of(const struct holmes_nic *nic)
{
    return (struct wire_lane_params){.gid_index = nic->rdma.gids[0].index, .traffic_class = -1};
}

Test(verbs_device, limits_are_the_port_s)
{
    struct wire_limits limits;
    struct wire_pair p;

    pair_open(&p, wire, 0);
    wire->nic_limits(p.from.wn, &limits);
    cr_assert_geq(limits.max_write, (size_t)1 << 20);
    cr_assert(limits.mtu >= 256 && limits.mtu <= 4096, "path MTU %u", limits.mtu);
    cr_assert(limits.delivers);
    pair_close(&p);
}

Test(verbs_device, blob_tells_the_gid_and_the_mtu_that_were_asked_for)
{
    struct wire_lane_params params = {.mtu = 512, .traffic_class = -1};
    uint8_t blob[HOLMES_LANE_BLOB_MAX];
    struct wire_lane *lane;
    struct verbs_end end;
    struct wire_end e;
    size_t len;

    end_open(&e, wire, &test_nics()->from);
    for (int i = 0; i < test_nics()->from.rdma.ngids; i++) {
        const struct holmes_gid *g = &test_nics()->from.rdma.gids[i];

        params.gid_index = g->index;
        cr_assert_eq(wire->lane_create(e.wn, e.cq, WIRE_CONNECT, &params, blob, &len, &lane), 0);
        cr_assert_eq(holmes_verbs_blob_decode(blob, len, &end), 0);
        cr_assert_eq(memcmp(end.gid.raw, g->bytes, 16), 0, "not the GID at index %u", g->index);
        cr_assert_eq(end.mtu, IBV_MTU_512);
        wire->lane_close(lane);
    }
    params.gid_index = 255;
    cr_assert_lt(wire->lane_create(e.wn, e.cq, WIRE_CONNECT, &params, blob, &len, &lane), 0);
    end_close(&e);
}

static void send_imm(struct wire_pair *p, int lane, uint32_t imm)
{
    struct wire_event e;

    end_post(&p->from, &p->to, lane,
             &(struct wire_write){.imm = imm, .flags = WIRE_WITH_IMM | WIRE_INLINE});
    cr_assert(end_wait_event(&p->to, &p->from, &e), "immediate %u never came", imm);
    cr_assert(e.type == WIRE_IMM && e.imm == imm, "event %d, immediate %u", e.type, e.imm);
}

Test(verbs_device, lane_with_a_smaller_mtu_carries)
{
    struct wire_lane_params from = params_of(&test_nics()->from), to = params_of(&test_nics()->to);
    struct wire_pair p;

    from.mtu = 256;
    pair_open(&p, wire, 0);
    raise_with(&p, &from, &to);
    send_imm(&p, 0, 7);
    pair_close(&p);
}

/* With the timers of a connection it would be half a minute. */
Test(verbs_device, probe_without_an_answer_ends_soon)
{
    struct wire_lane_params from = params_of(&test_nics()->from), to = params_of(&test_nics()->to);
    struct wire_pair p;
    uint64_t start;

    from.probe = to.probe = true;
    pair_open(&p, wire, 0);
    raise_with(&p, &from, &to);
    send_imm(&p, 0, 7);
    wire->lane_close(p.to.lanes[0]);
    p.to.nlanes = 0;
    start = holmes_now_ns();
    end_post(&p.from, NULL, 0,
             &(struct wire_write){.imm = 8, .flags = WIRE_WITH_IMM | WIRE_INLINE});
    cr_assert_eq(lane_wait_end(&p.from, NULL, p.from.lanes[0], PAIR_TIMEOUT_MS), -ECONNRESET);
    cr_assert_lt(holmes_now_ns() - start, patience_ns(3000));
    pair_close(&p);
}

/* ---- posting ---- */

struct buffers {
    uint8_t *src, *dst;
    size_t len;
    struct wire_mr from, to;
};

static void buffers_make(struct buffers *b, struct wire_pair *p, size_t len)
{
    b->len = len;
    b->src = malloc(len);
    b->dst = calloc(1, len);
    cr_assert(b->src && b->dst);
    for (size_t i = 0; i < len; i++)
        b->src[i] = (uint8_t)(i * 7 + (i >> 8) + 1);
    cr_assert_eq(wire->mr_reg(p->from.wn, b->src, len, &b->from), 0);
    cr_assert_eq(wire->mr_reg(p->to.wn, b->dst, len, &b->to), 0);
}

static void buffers_free(struct buffers *b, struct wire_pair *p)
{
    wire->mr_dereg(p->from.wn, &b->from);
    wire->mr_dereg(p->to.wn, &b->to);
    free(b->src);
    free(b->dst);
}

static struct wire_write piece(const struct buffers *b, size_t offset, size_t len, unsigned flags)
{
    return (struct wire_write){.buf = b->src + offset,
                               .len = len,
                               .mr = &b->from,
                               .remote_addr = b->to.base + offset,
                               .remote_key = b->to.key,
                               .flags = flags,
                               .context = b->src + offset};
}

/* Posts while there is room and polls when there is none. */
static void post_polling(struct wire_pair *p, const struct wire_write *w, int *refused)
{
    uint64_t deadline = holmes_deadline_ms(PAIR_TIMEOUT_MS);
    int rc;

    while ((rc = wire->lane_post(p->from.lanes[0], w)) == -EAGAIN) {
        cr_assert(!holmes_deadline_passed(deadline), "the send queue never empties");
        end_drive(&p->from);
        ++*refused;
    }
    cr_assert_eq(rc, 0, "lane_post: %s", strerror(-rc));
}

/* More than the send queue holds, and not one that the caller hears of. */
static void silent_writes_free_their_room(unsigned flags)
{
    enum { WRITES = 3000, PIECE = 32 };
    int refused = 0;
    struct wire_pair p;
    struct wire_event e;
    struct buffers b;

    pair_open(&p, wire, 1);
    buffers_make(&b, &p, (size_t)WRITES * PIECE);
    for (size_t i = 0; i < WRITES; i++) {
        struct wire_write w = piece(&b, i * PIECE, PIECE, flags);

        post_polling(&p, &w, &refused);
    }
    cr_assert_eq(p.from.count, 0u, "a silent write was reported");
    post_polling(&p, &(struct wire_write){.imm = 9, .flags = WIRE_WITH_IMM, .context = &b},
                 &refused);
    cr_assert(end_wait_event(&p.to, &p.from, &e) && e.type == WIRE_IMM && e.imm == 9);
    cr_assert_eq(memcmp(b.src, b.dst, b.len), 0);
    cr_assert(end_wait_event(&p.from, &p.to, &e) && e.type == WIRE_WRITE_DONE && e.context == &b);
    cr_assert_gt(refused, 0, "the send queue never filled: the test is too small");
    buffers_free(&b, &p);
    pair_close(&p);
}

Test(verbs_device, inline_writes_free_their_room)
{
    silent_writes_free_their_room(WIRE_INLINE);
}

Test(verbs_device, quiet_writes_free_their_room)
{
    silent_writes_free_their_room(WIRE_QUIET);
}

/* Each completion stands for one reported write, in order, whatever silent ones lie between. */
Test(verbs_device, reported_writes_among_quiet_ones_are_each_reported_once)
{
    enum { WRITES = 600, PIECE = 64 };
    int refused = 0, reported = 0;
    struct wire_pair p;
    struct wire_event e;
    struct buffers b;

    pair_open(&p, wire, 1);
    buffers_make(&b, &p, (size_t)WRITES * PIECE);
    for (size_t i = 0; i < WRITES; i++) {
        struct wire_write w = piece(&b, i * PIECE, PIECE, i % 5 == 4 ? 0 : WIRE_QUIET);

        post_polling(&p, &w, &refused);
    }
    for (size_t i = 4; i < WRITES; i += 5, reported++) {
        cr_assert(end_wait_event(&p.from, &p.to, &e), "write %zu was never reported", i);
        cr_assert_eq(e.type, WIRE_WRITE_DONE);
        cr_assert_eq(e.context, b.src + i * PIECE, "write %zu", i);
    }
    cr_assert_eq(memcmp(b.src, b.dst, b.len), 0, "reported, but not there"); /* it delivers */
    end_drive(&p.from);
    cr_assert_eq(p.from.count, 0u);
    buffers_free(&b, &p);
    pair_close(&p);
}

/* As many immediates as a connection may have under way, before the receiver looks. */
Test(verbs_device, receives_are_there_for_all_slots)
{
    struct wire_pair p;
    struct wire_event e;

    pair_open(&p, wire, 1);
    for (int round = 0; round < 3; round++) {
        for (unsigned i = 0; i < VERBS_RQ_MIN; i++)
            end_post(&p.from, &p.from, 0,
                     &(struct wire_write){.imm = i, .flags = WIRE_WITH_IMM | WIRE_INLINE});
        for (unsigned i = 0; i < VERBS_RQ_MIN; i++) {
            cr_assert(end_wait_event(&p.to, &p.from, &e), "immediate %u", i);
            cr_assert(e.type == WIRE_IMM && e.imm == i);
        }
    }
    pair_close(&p);
}

Test(verbs_device, with_adaptive_routing_the_immediate_follows_alone)
{
    enum { WRITES = 400, PIECE = 4096 };
    int refused = 0;
    struct wire_pair p;
    struct wire_event e;
    struct buffers b;

    setenv("NCCL_IB_ADAPTIVE_ROUTING", "1", 1);
    setenv("NCCL_IB_AR_THRESHOLD", "1000", 1);
    pair_open(&p, wire, 1);
    buffers_make(&b, &p, (size_t)WRITES * PIECE);
    for (size_t i = 0; i < WRITES; i++) {
        struct wire_write w = piece(&b, i * PIECE, i % 3 == 0 ? 500 : PIECE, WIRE_WITH_IMM);
        uint32_t head = p.from.lanes[0]->sq.head;

        w.imm = (uint32_t)i;
        post_polling(&p, &w, &refused);
        cr_assert_eq(p.from.lanes[0]->sq.head - head, i % 3 == 0 ? 1u : 2u, "%zu bytes", w.len);
        cr_assert(end_wait_event(&p.to, &p.from, &e) && e.type == WIRE_IMM && e.imm == i);
        cr_assert_eq(memcmp(b.src + i * PIECE, b.dst + i * PIECE, w.len), 0, "write %zu", i);
        cr_assert(end_wait_event(&p.from, &p.to, &e) && e.type == WIRE_WRITE_DONE &&
                      e.context == w.buf,
                  "write %zu", i);
    }
    buffers_free(&b, &p);
    pair_close(&p);
}

Test(verbs_device, without_it_a_message_is_one_work_request)
{
    struct wire_pair p;
    struct buffers b;
    struct wire_write w;
    uint32_t head;

    pair_open(&p, wire, 1);
    buffers_make(&b, &p, 1 << 20);
    head = p.from.lanes[0]->sq.head;
    w = piece(&b, 0, b.len, WIRE_WITH_IMM);
    end_post(&p.from, &p.to, 0, &w);
    cr_assert_eq(p.from.lanes[0]->sq.head - head, 1u);
    buffers_free(&b, &p);
    pair_close(&p);
}

/* ---- flush ---- */

Test(verbs_device, flush_reads_back_and_reports)
{
    struct wire_lane_params from = params_of(&test_nics()->from), to = params_of(&test_nics()->to);
    uint64_t deadline = holmes_deadline_ms(PAIR_TIMEOUT_MS);
    struct wire_pair p;
    struct wire_event e;
    struct buffers b;
    int rc;

    to.flush = true;
    pair_open(&p, wire, 0);
    raise_with(&p, &from, &to);
    buffers_make(&b, &p, 1000);
    cr_assert_eq(wire->lane_flush(p.from.lanes[0], b.src, &b.from, &b), -EOPNOTSUPP,
                 "this lane was made without");
    for (int i = 0; i < 600; i++) {
        while ((rc = wire->lane_flush(p.to.lanes[0], b.dst + i, &b.to, b.dst + i)) == -EAGAIN) {
            end_drive(&p.to);
            cr_assert(!holmes_deadline_passed(deadline));
        }
        cr_assert_eq(rc, 0, "%s", strerror(-rc));
    }
    for (int i = 0; i < 600; i++) {
        cr_assert(end_wait_event(&p.to, &p.from, &e), "flush %d was never reported", i);
        cr_assert_eq(e.type, WIRE_WRITE_DONE, "event %d: %s", e.type, strerror(-e.error));
        cr_assert_eq(e.context, b.dst + i);
    }
    buffers_free(&b, &p);
    pair_close(&p);
}

Test(verbs_device, flush_of_memory_that_is_not_registered_ends_the_lane)
{
    struct wire_lane_params from = params_of(&test_nics()->from), to = params_of(&test_nics()->to);
    struct wire_pair p;
    struct wire_event e;
    struct buffers b;

    to.flush = true;
    pair_open(&p, wire, 0);
    raise_with(&p, &from, &to);
    buffers_make(&b, &p, 100);
    cr_assert_eq(wire->lane_flush(p.to.lanes[0], b.dst + 100, &b.to, &e), 0);
    cr_assert(end_wait_event(&p.to, &p.from, &e));
    cr_assert(e.type == WIRE_ERROR && e.context == &e && e.error < 0);
    cr_assert_eq(wire->lane_poll(p.to.lanes[0]), e.error);
    buffers_free(&b, &p);
    pair_close(&p);
}

/* ---- memory ---- */

static void drop_memlock_rights(void)
{
    struct __user_cap_header_struct head = {.version = _LINUX_CAPABILITY_VERSION_3};
    struct __user_cap_data_struct caps[2];

    cr_assert_eq(syscall(SYS_capget, &head, caps), 0);
    caps[CAP_IPC_LOCK / 32].effective &= ~(1u << CAP_IPC_LOCK % 32);
    cr_assert_eq(syscall(SYS_capset, &head, caps), 0, "%s", strerror(errno));
}

Test(verbs_device, memlock_limit_is_named_when_it_binds)
{
    struct rlimit little = {64 << 10, 64 << 10};
    static uint8_t memory[1 << 20];
    struct wire_end e;
    struct wire_mr mr;

    end_open(&e, wire, &test_nics()->from);
    cr_assert_eq(setrlimit(RLIMIT_MEMLOCK, &little), 0);
    drop_memlock_rights();
    holmes_log_set_sink(keep_log, NULL, HOLMES_LOG_WARN);
    cr_assert_eq(wire->mr_reg(e.wn, memory, sizeof memory, &mr), -ENOMEM);
    holmes_log_set_sink(NULL, NULL, HOLMES_LOG_WARN);
    cr_assert(log_has("RLIMIT_MEMLOCK is 64 KiB") && log_has("ulimit -l") && log_has("1048576"),
              "%s", logged);
    end_close(&e);
}

/* Soft RoCE has none (6.1); what has says EBADF to descriptor -1. */
Test(verbs_device, dmabuf_question_is_answered)
{
    struct wire_limits limits;
    struct wire_end e;
    struct wire_mr mr = {0};
    int rc;

    end_open(&e, wire, &test_nics()->from);
    rc = wire->mr_reg_dmabuf(e.wn, NULL, 0, 0, -1, &mr);
    wire->nic_limits(e.wn, &limits);
    cr_assert_lt(rc, 0);
    cr_assert_eq(limits.dmabuf, rc != -EOPNOTSUPP, "%s", strerror(-rc));
    end_close(&e);
}

/* ---- raising ---- */

/* Two ends, of which the first is told an address of the second's network that nobody has: the
 * kernel asks for it in vain. */
static void make_unreachable(struct wire_pair *p, struct half *mine, struct half *theirs)
{
    struct verbs_end end;
    int rc;

    setenv("NCCL_IB_MQP_RETRY_CNT", "2", 1);
    setenv("NCCL_IB_MQP_RETRY_SLEEP_MSEC", "20", 1);
    setenv("NCCL_IB_MQP_RETRY_ALL", "1", 1);
    pair_open(p, wire, 0);
    *mine = half_make(&p->from, WIRE_CONNECT);
    *theirs = half_make(&p->to, WIRE_ACCEPT);
    cr_assert_eq(holmes_verbs_blob_decode(theirs->blob, theirs->len, &end), 0);
    end.gid.raw[15] = 250;
    holmes_verbs_blob_encode(&end, theirs->blob);
    rc = wire->lane_connect(mine->lane, theirs->blob, theirs->len);
    cr_assert_eq(rc, 0, "%s instead of another try", strerror(-rc));
    cr_assert_eq(wire->lane_poll(mine->lane), -EAGAIN);
}

static void close_unreachable(struct wire_pair *p, struct half *mine, struct half *theirs)
{
    wire->lane_close(mine->lane);
    wire->lane_close(theirs->lane);
    pair_close(p);
}

Test(verbs_device, peer_whose_address_does_not_resolve_is_given_up_after_the_tries)
{
    struct wire_pair p;
    struct half mine, theirs;
    int rc;

    holmes_log_set_sink(keep_log, NULL, HOLMES_LOG_WARN);
    make_unreachable(&p, &mine, &theirs);
    rc = lane_wait(&p.from, &p.to, mine.lane, PAIR_TIMEOUT_MS);
    cr_assert(rc < 0 && rc != -EAGAIN, "%d", rc);
    cr_assert_eq(wire->lane_poll(mine.lane), rc);
    cr_assert_eq(mine.lane->retries, 2);
    holmes_log_set_sink(NULL, NULL, HOLMES_LOG_WARN);
    cr_assert(log_has("no way to ::ffff:10."), "%s", logged);
    close_unreachable(&p, &mine, &theirs);
}

static atomic_bool progress_stop;

static void *progress_main(void *wn)
{
    while (!atomic_load(&progress_stop))
        wire->nic_progress(wn);
    return NULL;
}

/* The other thread is inside the kernel with the lane. */
Test(verbs_device, lane_may_be_closed_while_another_thread_raises_it)
{
    uint64_t deadline = holmes_deadline_ms(PAIR_TIMEOUT_MS);
    struct wire_pair p;
    struct half mine, theirs;
    pthread_t thread;
    bool raising = false;

    make_unreachable(&p, &mine, &theirs);
    cr_assert_eq(pthread_create(&thread, NULL, progress_main, p.from.wn), 0);
    while (!raising && !holmes_deadline_passed(deadline)) {
        pthread_mutex_lock(&p.from.wn->lock);
        raising = mine.lane->raising;
        pthread_mutex_unlock(&p.from.wn->lock);
    }
    cr_assert(raising, "it was never tried again");
    wire->lane_close(mine.lane);
    atomic_store(&progress_stop, true);
    pthread_join(thread, NULL);
    cr_assert_eq(atomic_load(&p.from.wn->nretrying), 0);
    close_unreachable(&p, &(struct half){0}, &theirs);
}

Test(verbs_device, lane_is_connected_once)
{
    struct wire_pair p;
    struct half again;

    pair_open(&p, wire, 1);
    again = half_make(&p.to, WIRE_ACCEPT);
    cr_assert_eq(wire->lane_connect(p.from.lanes[0], again.blob, again.len), -EISCONN);
    send_imm(&p, 0, 5);
    wire->lane_close(again.lane);
    pair_close(&p);
}

/* ---- events ---- */

/* Runs a command in which each %d stands for this process: other tests, which run beside it, have
 * devices of their own. */
static void shell(const char *format)
{
    char command[256];
    int pid = (int)getpid();

    snprintf(command, sizeof command, format, pid, pid, pid, pid);
    cr_assert_eq(system(command), 0, "%s", command);
}

/* An RDMA device of this test's own, on an interface that leads nowhere. */
static struct holmes_nic private_device(void)
{
    struct holmes_nic nic = {.rdma = {.port = 1}};

    if (geteuid() != 0)
        cr_skip_test("needs root");
    snprintf(nic.name, sizeof nic.name, "rxe_own%d", (int)getpid());
    snprintf(nic.rdma.device, sizeof nic.rdma.device, "rxe_own%d", (int)getpid());
    shell("ip link add own%d type dummy && ip link set own%d up && "
          "rdma link add rxe_own%d type rxe netdev own%d");
    return nic;
}

static void private_device_remove(void)
{
    shell("rdma link del rxe_own%d && ip link del own%d");
}

Test(verbs_device, port_that_goes_down_and_comes_back_is_two_lines_and_ends_nothing)
{
    struct holmes_nic nic = private_device();
    struct wire_end e;
    struct half half;

    end_open(&e, wire, &nic);
    half = half_make(&e, WIRE_ACCEPT);
    holmes_log_set_sink(keep_log, NULL, HOLMES_LOG_INFO);
    shell("ip link set own%d down");
    expect_logged(": port down");
    shell("ip link set own%d up");
    expect_logged(": port up");
    cr_assert_eq(wire->lane_poll(half.lane), -EAGAIN, "the lane ended");
    shell("ip addr add 10.77.0.1/24 dev own%d");
    expect_logged(": GID table changed");
    wire->lane_close(half.lane);
    end_close(&e);
    holmes_log_set_sink(NULL, NULL, HOLMES_LOG_WARN);
    private_device_remove();
}

Test(verbs_device, port_that_is_down_is_not_opened)
{
    struct holmes_nic nic = private_device();
    struct wire_nic *wn;
    char why[256];
    int before;

    cr_assert_eq(wire->load(why, sizeof why), 0, "%s", why);
    shell("ip link set own%d down");
    before = holmes_self_fds();
    cr_assert_eq(wire->nic_open(&nic, 0, 0, &wn), -ENETDOWN);
    nic.rdma.port = 2;
    cr_assert_lt(wire->nic_open(&nic, 0, 0, &wn), 0, "it has one port");
    cr_assert_eq(holmes_self_fds(), before);
    private_device_remove();
}
