/* How lanes of the ofi wire come up and end: secrets, strangers on the port, dead peers, closing
 * under traffic, ports and descriptors. */
#include <arpa/inet.h>
#include <criterion/criterion.h>
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "clock.h"
#include "log.h"
#include "transport/ofi/ofi.h"
#include "wire_pair.h"

static const struct wire_ops *const wire = &holmes_wire_ofi;

/* Promises about time are for the code that ships. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define TIME_SCALE 10
#else
#define TIME_SCALE 1
#endif

/* A lane of its own with its blob. */
struct half {
    struct wire_lane *lane;
    uint8_t blob[HOLMES_LANE_BLOB_MAX];
    size_t len;
};

static struct half half_make(struct wire_end *e, enum wire_role role)
{
    struct half h = {0};

    cr_assert_eq(wire->lane_create(e->wn, e->cq, role, NULL, h.blob, &h.len, &h.lane), 0);
    return h;
}

static struct sockaddr_in blob_address(const struct half *h)
{
    struct ofi_blob b;

    cr_assert_eq(holmes_ofi_blob_decode(h->blob, h->len, &b), 0);
    return b.addr.in;
}

/* ---- secrets ------------------------------------------------------------------------------ */

Test(wire_lanes, wrong_secret_is_rejected_and_the_true_peer_still_gets_up)
{
    struct wire_end a, b;
    struct half accepting, liar, honest;
    uint8_t forged[HOLMES_LANE_BLOB_MAX];

    end_open(&a, wire);
    end_open(&b, wire);
    accepting = half_make(&b, WIRE_ACCEPT);
    liar = half_make(&a, WIRE_CONNECT);
    honest = half_make(&a, WIRE_CONNECT);
    memcpy(forged, accepting.blob, accepting.len);
    forged[19] ^= 1; /* last byte of the secret */
    cr_assert_eq(wire->lane_connect(liar.lane, forged, accepting.len), 0);
    cr_assert_eq(lane_wait(&a, &b, liar.lane, PAIR_TIMEOUT_MS), -ECONNREFUSED);
    cr_assert_eq(wire->lane_poll(accepting.lane), -EAGAIN);

    cr_assert_eq(wire->lane_connect(honest.lane, accepting.blob, accepting.len), 0);
    cr_assert_eq(lane_wait(&a, &b, honest.lane, PAIR_TIMEOUT_MS), 0);
    cr_assert_eq(lane_wait(&b, &a, accepting.lane, PAIR_TIMEOUT_MS), 0);
    wire->lane_close(liar.lane);
    wire->lane_close(honest.lane);
    wire->lane_close(accepting.lane);
    end_close(&a);
    end_close(&b);
}

Test(wire_lanes, secret_counts_once)
{
    struct wire_end a, b;
    struct half accepting, first, second;

    end_open(&a, wire);
    end_open(&b, wire);
    accepting = half_make(&b, WIRE_ACCEPT);
    first = half_make(&a, WIRE_CONNECT);
    second = half_make(&a, WIRE_CONNECT);
    cr_assert_eq(wire->lane_connect(first.lane, accepting.blob, accepting.len), 0);
    cr_assert_eq(lane_wait(&a, &b, first.lane, PAIR_TIMEOUT_MS), 0);
    cr_assert_eq(wire->lane_connect(second.lane, accepting.blob, accepting.len), 0);
    cr_assert_eq(lane_wait(&a, &b, second.lane, PAIR_TIMEOUT_MS), -ECONNREFUSED);
    cr_assert_eq(wire->lane_poll(first.lane), 0);
    cr_assert_eq(wire->lane_poll(accepting.lane), 0);
    wire->lane_close(first.lane);
    wire->lane_close(second.lane);
    wire->lane_close(accepting.lane);
    end_close(&a);
    end_close(&b);
}

Test(wire_lanes, blobs_that_do_not_belong_are_refused)
{
    struct wire_end a;
    struct half accepting, connecting;
    uint8_t noise[HOLMES_LANE_BLOB_MAX];

    end_open(&a, wire);
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

Test(wire_lanes, nobody_listening_is_connection_refused)
{
    struct wire_end a, b;
    struct half accepting, connecting;

    end_open(&a, wire);
    end_open(&b, wire);
    accepting = half_make(&b, WIRE_ACCEPT);
    connecting = half_make(&a, WIRE_CONNECT);
    wire->lane_close(accepting.lane);
    end_close(&b);
    cr_assert_eq(wire->lane_connect(connecting.lane, accepting.blob, accepting.len), 0);
    cr_assert_eq(lane_wait(&a, NULL, connecting.lane, PAIR_TIMEOUT_MS), -ECONNREFUSED);
    cr_assert_eq(wire->lane_post(connecting.lane,
                                 &(struct wire_write){.flags = WIRE_WITH_IMM | WIRE_INLINE}),
                 -ECONNREFUSED);
    wire->lane_close(connecting.lane);
    end_close(&a);
}

Test(wire_lanes, rising_lane_takes_no_writes)
{
    struct wire_end a;
    struct half accepting;

    end_open(&a, wire);
    accepting = half_make(&a, WIRE_ACCEPT);
    cr_assert_eq(wire->lane_poll(accepting.lane), -EAGAIN);
    cr_assert_eq(
        wire->lane_post(accepting.lane, &(struct wire_write){.flags = WIRE_WITH_IMM | WIRE_INLINE}),
        -EAGAIN);
    wire->lane_close(accepting.lane);
    end_close(&a);
}

/* ---- strangers ---------------------------------------------------------------------------- */

static int stranger_connect(const struct sockaddr_in *to)
{
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    cr_assert_geq(fd, 0);
    cr_assert_eq(connect(fd, (const struct sockaddr *)to, sizeof *to), 0, "%s", strerror(errno));
    return fd;
}

static void stranger_say(const struct sockaddr_in *to, const void *bytes, size_t len)
{
    int fd = stranger_connect(to);

    if (len > 0)
        cr_assert_eq(send(fd, bytes, len, MSG_NOSIGNAL), (ssize_t)len);
    close(fd);
}

/* Drives `e` until its process has `n` descriptors. errno is as any socket code leaves it. */
static bool wait_descriptors(struct wire_end *e, int n, int timeout_ms)
{
    uint64_t deadline = holmes_deadline_ms((uint64_t)timeout_ms);

    do {
        errno = EAGAIN;
        e->ops->nic_progress(e->wn);
        if (open_descriptors() == n)
            return true;
    } while (!holmes_deadline_passed(deadline));
    return false;
}

static void expect_pair_up_within(struct wire_end *a, struct wire_end *b, int timeout_ms)
{
    struct half accepting = half_make(b, WIRE_ACCEPT), connecting = half_make(a, WIRE_CONNECT);
    uint64_t start = holmes_now_ns();

    cr_assert_eq(wire->lane_connect(connecting.lane, accepting.blob, accepting.len), 0);
    cr_assert_eq(lane_wait(a, b, connecting.lane, timeout_ms), 0);
    cr_assert_eq(lane_wait(b, a, accepting.lane, timeout_ms), 0);
    cr_assert_lt(holmes_now_ns() - start, (uint64_t)timeout_ms * 1000000u);
    wire->lane_close(connecting.lane);
    wire->lane_close(accepting.lane);
}

/* The provider's connect request with our private data replaced: what another libfabric program,
 * or another job, would send. */
static size_t foreign_request(uint8_t out[64], uint8_t version, uint16_t claimed)
{
    memset(out, 0, 64);
    out[0] = version; /* 3 in 1.17 */
    out[2] = (uint8_t)(claimed >> 8);
    out[3] = (uint8_t)claimed;
    out[24] = 1; /* byte order */
    memset(out + 32, 0x77, 32);
    return 64;
}

Test(wire_lanes, strangers_cost_nothing_and_keep_nobody_out)
{
    static const char http[] = "GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n";
    struct wire_end a, b;
    struct half probe;
    struct sockaddr_in port;
    uint8_t request[64];
    int before;

    end_open(&a, wire);
    end_open(&b, wire);
    probe = half_make(&b, WIRE_ACCEPT);
    port = blob_address(&probe);
    before = open_descriptors();
    for (int i = 0; i < 20; i++) {
        stranger_say(&port, "", 0);
        stranger_say(&port, "abc", 3);
        stranger_say(&port, http, strlen(http));
        foreign_request(request, 3, 16);
        stranger_say(&port, request, 64);
        foreign_request(request, 99, 16);
        stranger_say(&port, request, 64);
        foreign_request(request, 3, 0xffff);
        stranger_say(&port, request, 64);
        errno = EAGAIN;
        wire->nic_progress(b.wn);
    }
    expect_pair_up_within(&a, &b, 1000 * TIME_SCALE);
    cr_assert(wait_descriptors(&b, before, PAIR_TIMEOUT_MS), "%d descriptors instead of %d",
              open_descriptors(), before);
    cr_assert_eq(wire->lane_poll(probe.lane), -EAGAIN);
    wire->lane_close(probe.lane);
    end_close(&a);
    end_close(&b);
}

Test(wire_lanes, silent_strangers_beyond_the_bound_are_dropped_oldest_first)
{
    enum { SILENT = OFI_STRANGERS_MAX + 10 };
    struct wire_end a, b;
    struct half probe;
    struct sockaddr_in port;
    int fds[SILENT], before, gone = 0;
    uint64_t deadline = holmes_deadline_ms(30000); /* they are looked for every few seconds */
    char byte;

    end_open(&a, wire);
    end_open(&b, wire);
    probe = half_make(&b, WIRE_ACCEPT);
    port = blob_address(&probe);
    before = open_descriptors();
    for (int i = 0; i < SILENT; i++)
        fds[i] = stranger_connect(&port);
    expect_pair_up_within(&a, &b, 1000 * TIME_SCALE);
    /* The provider accepts in order, so the first ten are the oldest. */
    while (gone < 10 && !holmes_deadline_passed(deadline)) {
        wire->nic_progress(b.wn);
        if (recv(fds[gone], &byte, 1, MSG_DONTWAIT) >= 0 || errno == ECONNRESET)
            gone++;
    }
    cr_assert_eq(gone, 10);
    for (int i = 10; i < SILENT; i++)
        cr_assert(recv(fds[i], &byte, 1, MSG_DONTWAIT) < 0 && errno == EAGAIN,
                  "stranger %d within the bound was dropped", i);
    for (int i = 0; i < SILENT; i++)
        close(fds[i]);
    cr_assert(wait_descriptors(&b, before, PAIR_TIMEOUT_MS), "%d descriptors instead of %d",
              open_descriptors(), before);
    wire->lane_close(probe.lane);
    end_close(&a);
    end_close(&b);
}

Test(wire_lanes, closing_a_nic_ends_silent_strangers)
{
    struct wire_end e;
    struct half probe;
    struct sockaddr_in port;
    int fds[20], before;

    end_open(&e, wire); /* what the library keeps for good is open now */
    end_close(&e);
    before = open_descriptors();
    end_open(&e, wire);
    probe = half_make(&e, WIRE_ACCEPT);
    port = blob_address(&probe);
    for (int i = 0; i < 20; i++) {
        fds[i] = stranger_connect(&port);
        if (i % 2 == 0)
            wire->nic_progress(e.wn); /* some accepted, some in the backlog */
    }
    wire->lane_close(probe.lane);
    end_close(&e);
    for (int i = 0; i < 20; i++)
        close(fds[i]);
    cr_assert_eq(open_descriptors(), before);
}

/* ---- death -------------------------------------------------------------------------------- */

static void pipe_write(int fd, const void *p, size_t n)
{
    cr_assert_eq(write(fd, p, n), (ssize_t)n);
}

/* The child connects and then only waits to be killed. */
static pid_t child_start(int *blob_in)
{
    int to_child[2];
    pid_t pid;

    cr_assert_eq(pipe(to_child), 0);
    pid = fork();
    cr_assert_geq(pid, 0);
    if (pid == 0) {
        struct wire_end e;
        struct half h;
        uint8_t blob[OFI_BLOB_LEN];

        close(to_child[1]);
        end_open(&e, wire);
        h = half_make(&e, WIRE_CONNECT);
        if (read(to_child[0], blob, sizeof blob) != sizeof blob ||
            wire->lane_connect(h.lane, blob, sizeof blob) != 0)
            _exit(1);
        for (;;) {
            wire->nic_progress(e.wn);
            end_drive(&e);
        }
    }
    close(to_child[0]);
    *blob_in = to_child[1];
    return pid;
}

static void killed_peer(bool writing)
{
    static uint8_t src[1 << 20];
    struct wire_end e;
    struct half h;
    struct wire_mr mr;
    struct wire_event event;
    uint64_t killed;
    int fd, rc;
    pid_t pid = child_start(&fd);

    end_open(&e, wire);
    h = half_make(&e, WIRE_ACCEPT);
    pipe_write(fd, h.blob, OFI_BLOB_LEN);
    rc = lane_wait(&e, NULL, h.lane, PAIR_TIMEOUT_MS);
    cr_assert_eq(rc, 0, "%s", strerror(-rc));
    kill(pid, SIGSTOP); /* so that the writes stay outstanding */
    if (writing) {
        cr_assert_eq(wire->mr_reg(e.wn, src, sizeof src, &mr), 0);
        for (int i = 0; i < 20; i++)
            cr_assert_eq(wire->lane_post(h.lane, &(struct wire_write){.buf = src,
                                                                      .len = sizeof src,
                                                                      .mr = &mr,
                                                                      .remote_key = 1,
                                                                      .context = &src[i]}),
                         0);
    }
    kill(pid, SIGKILL);
    killed = holmes_now_ns();
    rc = lane_wait_end(&e, NULL, h.lane, PAIR_TIMEOUT_MS);
    cr_assert(rc == -ECONNRESET || rc == -EPIPE, "%s", strerror(-rc));
    cr_assert_lt(holmes_now_ns() - killed, 2000000000ull * TIME_SCALE);
    cr_assert_eq(
        wire->lane_post(h.lane, &(struct wire_write){.flags = WIRE_WITH_IMM | WIRE_INLINE}), rc);
    for (int i = 0; writing && i < 20; i++) { /* each write is answered for, in order */
        cr_assert(end_wait_event(&e, NULL, &event), "write %d vanished", i);
        cr_assert(event.type == WIRE_WRITE_DONE || (event.type == WIRE_ERROR && event.error < 0));
        cr_assert_eq(event.context, &src[i]);
    }
    if (writing)
        cr_assert_eq(event.type, WIRE_ERROR);
    wire->lane_close(h.lane);
    if (writing)
        wire->mr_dereg(e.wn, &mr);
    end_close(&e);
    close(fd);
    waitpid(pid, NULL, 0);
}

Test(wire_lanes, killed_peer_of_an_idle_lane_is_seen_within_two_seconds)
{
    killed_peer(false);
}

Test(wire_lanes, killed_peer_fails_the_outstanding_writes)
{
    killed_peer(true);
}

Test(wire_lanes, peer_that_closed_its_lane_is_seen)
{
    struct wire_pair p;

    pair_open(&p, wire, 2);
    wire->lane_close(p.from.lanes[1]);
    p.from.nlanes = 1;
    cr_assert_eq(lane_wait_end(&p.to, &p.from, p.to.lanes[1], PAIR_TIMEOUT_MS), -ECONNRESET);
    cr_assert_eq(wire->lane_poll(p.to.lanes[0]), 0);
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
    before = open_descriptors();
    for (int i = 0; i < 1000; i++) {
        pair_raise(&p);
        wire->lane_close(p.from.lanes[0]);
        wire->lane_close(p.to.lanes[0]);
        p.from.nlanes = p.to.nlanes = 0;
    }
    cr_assert_eq(open_descriptors(), before);
    pair_close(&p);
}

Test(wire_lanes, hundred_nics_one_after_another_leave_no_descriptor)
{
    struct wire_pair p;
    int before;

    pair_open(&p, wire, 1); /* what the library keeps for good is open now */
    pair_close(&p);
    before = open_descriptors();
    for (int i = 0; i < 100; i++) {
        pair_open(&p, wire, 1);
        pair_close(&p);
    }
    cr_assert_eq(open_descriptors(), before);
}

Test(wire_lanes, descriptors_are_as_few_as_documented)
{
    struct wire_end e;
    struct wire_pair p;
    struct wire_cq *cq;
    int before;

    end_open(&e, wire);
    before = open_descriptors();
    cr_assert_eq(wire->cq_open(e.wn, &cq), 0);
    cr_assert_leq(open_descriptors() - before, 3, "of a completion queue");
    wire->cq_close(cq);
    end_close(&e);

    pair_open(&p, wire, 1);
    before = open_descriptors();
    pair_raise(&p);
    cr_assert_eq(open_descriptors() - before, 2, "of the two ends of a lane");
    pair_close(&p);
}

/* Opens what a connecting end needs, under the limit in force; the first error. */
static int open_everything(const struct half *accepting)
{
    struct holmes_nic nic = loopback_nic();
    uint8_t blob[HOLMES_LANE_BLOB_MAX];
    struct wire_lane *lane = NULL;
    struct wire_nic *wn = NULL;
    struct wire_cq *cq = NULL;
    size_t len;
    int rc = wire->nic_open(&nic, 0, 0, &wn);

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
    int before, rc = -EMFILE, room;

    end_open(&e, wire);
    accepting = half_make(&e, WIRE_ACCEPT);
    cr_assert_eq(open_everything(&accepting), 0);
    wire->nic_progress(e.wn);
    wire->nic_progress(e.wn);
    before = open_descriptors();
    cr_assert_eq(getrlimit(RLIMIT_NOFILE, &limit), 0);
    for (room = 0; room < 40 && rc != 0; room++) {
        struct rlimit tight = {(rlim_t)(before + room), limit.rlim_max};

        cr_assert_eq(setrlimit(RLIMIT_NOFILE, &tight), 0);
        rc = open_everything(&accepting);
        cr_assert_eq(setrlimit(RLIMIT_NOFILE, &limit), 0);
        cr_assert(rc == 0 || rc == -EMFILE, "room for %d: %s", room, strerror(-rc));
        cr_assert_eq(open_descriptors(), before, "room for %d", room);
    }
    cr_assert_eq(rc, 0);
    cr_assert_gt(room, 5, "the limit did not bind");
    wire->lane_close(accepting.lane);
    end_close(&e);
}

/* ---- addresses and ports ------------------------------------------------------------------ */

static int listener_at(struct sockaddr_in *at)
{
    socklen_t len = sizeof *at;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    cr_assert_eq(bind(fd, (struct sockaddr *)at, len), 0);
    cr_assert_eq(listen(fd, 1), 0);
    cr_assert_eq(getsockname(fd, (struct sockaddr *)at, &len), 0);
    return fd;
}

Test(wire_lanes, exhausted_port_range_is_said)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    struct holmes_nic nic = loopback_nic();
    struct wire_nic *wn;
    char why[512];
    int fd, before;
    uint16_t port;

    loopback_alone();
    fd = listener_at(&at);
    port = ntohs(at.sin_port);
    cr_assert_eq(wire->load(why, sizeof why), 0, "%s", why);
    before = open_descriptors();
    cr_assert_eq(wire->nic_open(&nic, port, port, &wn), -EADDRINUSE);
    cr_assert_eq(open_descriptors(), before);
    close(fd);
    cr_assert_eq(wire->nic_open(&nic, port, port, &wn), 0);
    wire->nic_close(wn);
}

Test(wire_lanes, port_comes_from_the_range)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    struct holmes_nic nic = loopback_nic();
    uint16_t first, last, got;
    struct wire_end e = {.ops = wire};
    char why[512];
    struct half h;
    int fd;

    loopback_alone();
    fd = listener_at(&at);
    first = ntohs(at.sin_port);
    last = first < 65000 ? first + 500 : 65535;
    cr_assert_eq(wire->load(why, sizeof why), 0, "%s", why);
    cr_assert_eq(wire->nic_open(&nic, first, last, &e.wn), 0);
    cr_assert_eq(wire->cq_open(e.wn, &e.cq), 0);
    h = half_make(&e, WIRE_ACCEPT);
    got = ntohs(blob_address(&h).sin_port);
    cr_assert(got > first && got <= last, "%u is not in %u-%u, or taken", got, first, last);
    wire->lane_close(h.lane);
    end_close(&e);
    close(fd);
}

Test(wire_lanes, one_port_serves_two_hundred_jobs_in_a_row)
{
    struct holmes_nic nic = loopback_nic();
    struct wire_pair p = {0};
    struct half h;
    uint16_t port;

    loopback_alone();
    end_open(&p.from, wire);
    h = half_make(&p.from, WIRE_ACCEPT);
    port = ntohs(blob_address(&h).sin_port);
    wire->lane_close(h.lane);
    end_close(&p.from);
    for (int i = 0; i < 200; i++) {
        end_open(&p.from, wire);
        p.to.ops = wire;
        cr_assert_eq(wire->nic_open(&nic, port, port, &p.to.wn), 0, "job %d", i);
        cr_assert_eq(wire->cq_open(p.to.wn, &p.to.cq), 0);
        pair_raise(&p);
        pair_close(&p);
    }
}

/* Opens a NIC on the port, forks a child that lives on, and dies. */
static void die_with_a_child(uint16_t port, int hold[2], int ready[2])
{
    struct holmes_nic nic = loopback_nic();
    struct wire_nic *wn;
    char why[512], byte = 1;

    close(hold[1]);
    if (wire->load(why, sizeof why) != 0 || wire->nic_open(&nic, port, port, &wn) != 0)
        _exit(1);
    if (fork() == 0) { /* ends when the test closes its end of `hold` */
        if (write(ready[1], &byte, 1) == 1 && read(hold[0], &byte, 1) >= 0)
            _exit(0);
        _exit(1);
    }
    if (read(hold[0], &byte, 1) >= 0)
        _exit(1); /* not reached: killed */
}

Test(wire_lanes, child_of_a_dead_process_does_not_hold_the_port)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    struct holmes_nic nic = loopback_nic();
    struct wire_nic *wn;
    int hold[2], ready[2], status;
    char why[512], byte;
    uint16_t port;
    pid_t pid;

    loopback_alone();
    close(listener_at(&at)); /* a port that is free now */
    port = ntohs(at.sin_port);
    cr_assert_eq(pipe(hold), 0);
    cr_assert_eq(pipe(ready), 0);
    pid = fork();
    cr_assert_geq(pid, 0);
    if (pid == 0)
        die_with_a_child(port, hold, ready);
    close(hold[0]);
    close(ready[1]);
    cr_assert_eq(read(ready[0], &byte, 1), 1, "the process could not start");
    kill(pid, SIGKILL);
    cr_assert_eq(waitpid(pid, &status, 0), pid);
    cr_assert_eq(wire->load(why, sizeof why), 0, "%s", why);
    cr_assert_eq(wire->nic_open(&nic, port, port, &wn), 0);
    wire->nic_close(wn);
    close(hold[1]);
    close(ready[0]);
}

/* The local address of the stream in this process whose peer is `to`. */
static struct sockaddr_in stream_source(const struct sockaddr_in *to)
{
    struct sockaddr_in local = {0};

    for (int fd = 0; fd < 256; fd++) {
        struct sockaddr_in peer;
        socklen_t len = sizeof peer;

        if (getpeername(fd, (struct sockaddr *)&peer, &len) != 0 || peer.sin_port != to->sin_port ||
            peer.sin_addr.s_addr != to->sin_addr.s_addr)
            continue;
        len = sizeof local;
        cr_assert_eq(getsockname(fd, (struct sockaddr *)&local, &len), 0);
    }
    return local;
}

Test(wire_lanes, stream_leaves_from_the_nic_s_address)
{
    struct holmes_nic nic = loopback_nic();
    struct wire_pair p = {0};
    struct half accepting, connecting;
    struct sockaddr_in to;
    char why[512];

    cr_assert_eq(wire->load(why, sizeof why), 0, "%s", why);
    end_open(&p.to, wire);
    p.from.ops = wire;
    nic.addrs[0].in.sin_addr.s_addr = htonl(0x7f000003); /* 127.0.0.3 */
    cr_assert_eq(wire->nic_open(&nic, 0, 0, &p.from.wn), 0);
    cr_assert_eq(wire->cq_open(p.from.wn, &p.from.cq), 0);
    accepting = half_make(&p.to, WIRE_ACCEPT);
    connecting = half_make(&p.from, WIRE_CONNECT);
    to = blob_address(&accepting);
    cr_assert_eq(wire->lane_connect(connecting.lane, accepting.blob, accepting.len), 0);
    cr_assert_eq(lane_wait(&p.from, &p.to, connecting.lane, PAIR_TIMEOUT_MS), 0);
    cr_assert_eq(ntohl(stream_source(&to).sin_addr.s_addr), 0x7f000003u);
    wire->lane_close(connecting.lane);
    wire->lane_close(accepting.lane);
    pair_close(&p);
}

Test(wire_lanes, rise_over_ipv6)
{
    struct holmes_nic nic = {.name = "lo", .ifname = "lo", .naddrs = 1};
    struct wire_pair p = {.from.ops = wire, .to.ops = wire};
    char why[512];
    int fd = socket(AF_INET6, SOCK_STREAM, 0);

    nic.addrs[0].in6.sin6_family = AF_INET6;
    nic.addrs[0].in6.sin6_addr = in6addr_loopback;
    if (fd < 0 || bind(fd, &nic.addrs[0].sa, sizeof nic.addrs[0].in6) != 0)
        cr_skip_test("this host has no ::1");
    close(fd);
    cr_assert_eq(wire->load(why, sizeof why), 0, "%s", why);
    cr_assert_eq(wire->nic_open(&nic, 0, 0, &p.from.wn), 0);
    cr_assert_eq(wire->nic_open(&nic, 0, 0, &p.to.wn), 0);
    cr_assert_eq(wire->cq_open(p.from.wn, &p.from.cq), 0);
    cr_assert_eq(wire->cq_open(p.to.wn, &p.to.cq), 0);
    pair_raise(&p);
    pair_close(&p);
}
