/* comm_nccl over a library that stands in for NCCL and the CUDA driver (tests/support/fake_nccl.c):
 * what is called in which order, what errors become, what is left behind. */
#include "comm_nccl.h"

#include "nccl_api.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "rendezvous.h"

#ifdef HAVE_NCCL_H
#include <nccl.h>
_Static_assert((int)HOLMES_NCCL_REMOTE_ERROR == (int)ncclRemoteError &&
                   (int)HOLMES_NCCL_IN_PROGRESS == (int)ncclInProgress &&
                   (int)HOLMES_NCCL_INT8 == (int)ncclInt8 &&
                   (int)HOLMES_NCCL_FLOAT32 == (int)ncclFloat32 &&
                   (int)HOLMES_NCCL_BFLOAT16 == (int)ncclBfloat16 &&
                   (int)HOLMES_NCCL_SUM == (int)ncclSum,
               "numbers of nccl.h");
_Static_assert(sizeof(struct holmes_nccl_id) == sizeof(ncclUniqueId), "ncclUniqueId");
_Static_assert(offsetof(struct holmes_nccl_config, magic) == offsetof(ncclConfig_t, magic) &&
                   offsetof(struct holmes_nccl_config, version) ==
                       offsetof(ncclConfig_t, version) &&
                   offsetof(struct holmes_nccl_config, blocking) ==
                       offsetof(ncclConfig_t, blocking),
               "ncclConfig_t");
#endif

#define RANKS  3
#define SECRET "secret of comm_nccl's test"

struct job;
struct member {
    struct job *job;
    pthread_t thread;
    int rank;
    struct holmes_rdv *rdv;
    struct holmes_comm *comm;
    int rc; /* of creation */
};

struct job {
    struct holmes_rdv_server *server;
    struct holmes_nccl *nccl;
    const char *kind;
    int size;
    void (*body)(struct member *m);
    struct member members[RANKS];
};

static struct holmes_nccl *open_nccl(int timeout_s)
{
    const struct holmes_nccl_attr attr = {.nccl = getenv("TEST_FAKE_NCCL"),
                                          .cuda = getenv("TEST_FAKE_NCCL"),
                                          .connect_timeout_s = timeout_s,
                                          .op_timeout_s = timeout_s};
    struct holmes_nccl *n;
    char why[400] = "";

    cr_assert_eq(holmes_nccl_open(&attr, &n, why, sizeof why), 0, "%s", why);
    cr_assert_eq(holmes_nccl_version(n), 22809);
    return n;
}

static void *member_main(void *arg)
{
    struct member *m = arg;
    struct job *j = m->job;

    cr_assert_eq(holmes_rdv_connect("127.0.0.1", holmes_rdv_port(j->server), SECRET, m->rank,
                                    j->size, 30000, &m->rdv),
                 0);
    m->rc =
        holmes_comm_nccl_create(j->nccl, m->rdv, "it", j->kind, NULL, j->size, m->rank, &m->comm);
    j->body(m);
    holmes_rdv_leave(m->rdv);
    return NULL;
}

static void run(const char *kind, int size, int timeout_s, void (*body)(struct member *))
{
    struct job j = {.kind = kind, .size = size, .body = body};

    j.nccl = open_nccl(timeout_s);
    cr_assert_eq(holmes_rdv_serve("127.0.0.1", 0, SECRET, size, &j.server), 0);
    for (int i = 0; i < size; i++) {
        j.members[i] = (struct member){.job = &j, .rank = i};
        cr_assert_eq(pthread_create(&j.members[i].thread, NULL, member_main, &j.members[i]), 0);
    }
    for (int i = 0; i < size; i++)
        pthread_join(j.members[i].thread, NULL);
    holmes_rdv_stop(j.server);
    holmes_nccl_close(j.nccl);
}

static void await(struct holmes_comm *c, struct holmes_op *op)
{
    cr_assert_eq(c->ops->wait(op, -1), 0);
}

static void collectives(struct member *m)
{
    struct holmes_comm *c = m->comm;
    const float r = (float)m->rank;
    float x[6] = {r, r + 1, r + 2, r + 3, r + 4, r + 5}, part[2], all[6], one = r;
    uint16_t half[2] = {0x3f80, 0x4000}; /* 1, 2 */
    struct holmes_op *op;

    cr_assert_eq(m->rc, 0);
    cr_assert_eq(c->ops->reduce_scatter(c, x, part, 2, HOLMES_FLOAT32, &op), 0);
    await(c, op);
    cr_expect_eq(part[0], 3 + 6 * r);
    cr_expect_eq(part[1], 6 + 6 * r);
    cr_assert_eq(c->ops->all_gather(c, part, all, 2, HOLMES_FLOAT32, &op), 0);
    await(c, op);
    for (int i = 0; i < 6; i++)
        cr_expect_eq(all[i], 3 + 3 * i, "%g", all[i]);
    cr_assert_eq(c->ops->all_reduce(c, x, x, 6, HOLMES_FLOAT32, &op), 0);
    await(c, op);
    cr_expect_eq(x[5], 18);
    cr_assert_eq(c->ops->all_reduce(c, half, half, 2, HOLMES_BFLOAT16, &op), 0);
    await(c, op);
    cr_expect_eq(half[0], 0x4040); /* 3 */
    cr_expect_eq(half[1], 0x40c0); /* 6 */
    cr_assert_eq(c->ops->broadcast(c, &one, 1, HOLMES_FLOAT32, 2, &op), 0);
    await(c, op);
    cr_expect_eq(one, 2);
    cr_assert_eq(c->ops->barrier(c, &op), 0);
    await(c, op);
    cr_expect_eq(c->ops->broadcast(c, &one, 1, HOLMES_FLOAT32, 3, &op), -EINVAL);
    c->ops->destroy(c);
}

Test(comm_nccl, collectives_of_host_memory_give_what_they_should)
{
    run("dp", RANKS, 60, collectives);
}

/* As 1F1B does: the receive of what depends on the send is posted first. */
static void receive_ahead(struct member *m)
{
    struct holmes_comm *c = m->comm;
    const int peer = 1 - m->rank;
    int out[3] = {m->rank, 7, 9}, in[3] = {-1, -1, -1};
    struct holmes_comm_traffic t;
    struct holmes_op *recv, *send;

    cr_assert_eq(m->rc, 0);
    cr_assert_eq(c->ops->recv(c, in, sizeof in, peer, &recv), 0);
    cr_assert_eq(c->ops->send(c, out, sizeof out, peer, &send), 0);
    cr_expect_eq(c->ops->wait(send, -1), 0);
    cr_expect_eq(c->ops->wait(recv, -1), 0);
    cr_expect_eq(in[0], peer);
    cr_expect_eq(in[2], 9);
    c->ops->traffic(c, peer, &t);
    cr_expect_eq(t.bytes_sent, sizeof out);
    cr_expect_eq(t.bytes_received, sizeof in);
    cr_expect_eq(t.messages_sent, 1);
    cr_expect_eq(c->ops->send(c, out, sizeof out, m->rank, &send), -EINVAL);
    c->ops->destroy(c);
}

Test(comm_nccl, a_receive_posted_ahead_does_not_hold_up_the_send_behind_it)
{
    run("pp", 2, 60, receive_ahead);
}

static void peer_goes(struct member *m)
{
    struct holmes_comm *c = m->comm;
    float x = 1;
    struct holmes_op *first, *op;

    cr_assert_eq(m->rc, 0);
    cr_assert_eq(c->ops->barrier(c, &first), 0);
    cr_assert_eq(c->ops->wait(first, -1), 0);
    if (m->rank == 1) { /* with an operation under way, as a rank that fails */
        const struct holmes_comm_ops *ops = c->ops;
        size_t len;
        char told;

        cr_assert_eq(holmes_rdv_get(m->rdv, "posted", &told, 1, &len, 60000), 0);
        cr_assert_eq(c->ops->recv(c, &x, sizeof x, 0, &op), 0);
        c->ops->destroy(c);
        cr_expect_eq(ops->wait(op, -1), -ECANCELED);
        return;
    }
    cr_assert_eq(c->ops->recv(c, &x, sizeof x, 1, &op), 0);
    cr_assert_eq(holmes_rdv_put(m->rdv, "posted", "", 1), 0);
    cr_expect_eq(c->ops->wait(op, -1), -ECONNRESET);
    cr_expect_eq(c->ops->barrier(c, &op), -ECONNRESET, "the first error stays");
    c->ops->destroy(c);
}

Test(comm_nccl, a_peer_that_goes_ends_waits_and_stays_an_error)
{
    const uint64_t start = (uint64_t)time(NULL);

    run("pp", 2, 60, peer_goes);
    cr_expect_lt((uint64_t)time(NULL) - start, 30, "the wait was ended by its deadline");
}

static void nobody_sends(struct member *m)
{
    struct holmes_comm *c = m->comm;
    float x = 1, sum = 2;
    struct holmes_op *op;
    bool done = true;

    cr_assert_eq(m->rc, 0);
    if (m->rank == 1) {
        /* Its part comes when rank 0 has given up waiting once, and told so. */
        size_t len;
        char told;

        cr_assert_eq(holmes_rdv_get(m->rdv, "timed out", &told, 1, &len, 60000), 0);
        cr_assert_eq(c->ops->all_reduce(c, &x, &sum, 1, HOLMES_FLOAT32, &op), 0);
        await(c, op);
        cr_assert_eq(holmes_rdv_get(m->rdv, "deadline passed", &told, 1, &len, 60000), 0);
        c->ops->destroy(c);
        return;
    }
    cr_assert_eq(c->ops->all_reduce(c, &x, &sum, 1, HOLMES_FLOAT32, &op), 0);
    cr_expect_eq(c->ops->test(op, &done), 0);
    cr_expect_not(done);
    cr_expect_eq(c->ops->wait(op, 20), -ETIMEDOUT);
    cr_assert_eq(holmes_rdv_put(m->rdv, "timed out", "", 1), 0);
    cr_expect_eq(c->ops->wait(op, 60000), 0);
    cr_expect_eq(sum, 2);
    cr_assert_eq(c->ops->recv(c, &x, sizeof x, 1, &op), 0);
    cr_expect_eq(c->ops->wait(op, -1), -ETIME);
    cr_assert_eq(holmes_rdv_put(m->rdv, "deadline passed", "", 1), 0);
    c->ops->destroy(c);
}

Test(comm_nccl, waits_are_bounded)
{
    run("pp", 2, 2, nobody_sends);
}

/* The clock of a thread in a hurry is a millisecond later each time it is read. */
int __real_clock_gettime(clockid_t clock, struct timespec *t);
int __wrap_clock_gettime(clockid_t clock, struct timespec *t);
static _Thread_local bool hurried;
static _Thread_local long readings;

int __wrap_clock_gettime(clockid_t clock, struct timespec *t)
{
    const int rc = __real_clock_gettime(clock, t);

    readings += hurried;
    t->tv_sec += (t->tv_nsec / 1000000 + readings) / 1000;
    t->tv_nsec = (t->tv_nsec / 1000000 + readings) % 1000 * 1000000 + t->tv_nsec % 1000000;
    return rc;
}

static void waits_in_between(struct member *m)
{
    struct holmes_comm *c = m->comm;
    float x = 1, sum = 0;
    struct holmes_op *op;
    size_t len;
    char told;

    cr_assert_eq(m->rc, 0);
    if (m->rank == 1)
        cr_assert_eq(holmes_rdv_get(m->rdv, "waited", &told, 1, &len, 60000), 0);
    cr_assert_eq(c->ops->all_reduce(c, &x, &sum, 1, HOLMES_FLOAT32, &op), 0);
    for (int ms = 0; m->rank == 0 && ms < 20; ms++) {
        hurried = true;
        cr_expect_eq(c->ops->wait(op, ms), -ETIMEDOUT, "%d ms", ms);
        hurried = false;
    }
    if (m->rank == 0)
        cr_assert_eq(holmes_rdv_put(m->rdv, "waited", "", 1), 0);
    await(c, op);
    cr_expect_eq(sum, 2);
    c->ops->destroy(c);
}

/* Wherever in the wait its time runs out. */
Test(comm_nccl, a_wait_that_is_given_a_time_leaves_the_operation_when_it_is_over)
{
    run("dp", 2, 60, waits_in_between);
}

static void alone(struct member *m)
{
    cr_expect_eq(m->rc, -ETIMEDOUT);
    cr_expect_null(m->comm);
}

Test(comm_nccl, a_rank_that_does_not_come_is_waited_for_so_long_and_no_longer)
{
    struct job j = {.kind = "dp", .size = 2, .body = alone};
    struct member *m = &j.members[0];

    j.nccl = open_nccl(1);
    cr_assert_eq(holmes_rdv_serve("127.0.0.1", 0, SECRET, 2, &j.server), 0);
    *m = (struct member){.job = &j, .rank = 0};
    member_main(m);
    holmes_rdv_stop(j.server);
    holmes_nccl_close(j.nccl);
}

static void ring_bytes(struct member *m)
{
    struct holmes_comm *c = m->comm;
    float x[30] = {0}, all[90];
    struct holmes_comm_traffic t;
    struct holmes_op *op;

    cr_assert_eq(m->rc, 0);
    cr_assert_eq(c->ops->all_reduce(c, x, x, 30, HOLMES_FLOAT32, &op), 0);
    await(c, op);
    cr_assert_eq(c->ops->all_gather(c, x, all, 30, HOLMES_FLOAT32, &op), 0);
    await(c, op);
    c->ops->traffic(c, (m->rank + 1) % RANKS, &t);
    cr_expect_eq(t.bytes_sent, 160 + 240); /* 2 (n-1)/n of 120 bytes; n-1 blocks of 120 */
    cr_expect_eq(t.bytes_received, 0);
    c->ops->traffic(c, (m->rank + RANKS - 1) % RANKS, &t);
    cr_expect_eq(t.bytes_received, 160 + 240);
    c->ops->destroy(c);
}

Test(comm_nccl, traffic_is_that_of_a_ring)
{
    run("dp", RANKS, 60, ring_bytes);
}

Test(comm_nccl, the_plugin_is_what_nccl_has_to_use)
{
    struct holmes_nccl_attr attr = {
        .plugin = "nowhere", .nccl = getenv("TEST_FAKE_NCCL"), .cuda = getenv("TEST_FAKE_NCCL")};
    struct holmes_nccl *n;
    char why[400] = "";

    cr_expect_eq(holmes_nccl_open(&attr, &n, why, sizeof why), -ENOENT);
    cr_expect_not_null(strstr(why, "'nowhere'"), "%s", why);
    cr_expect_null(getenv("NCCL_NET_PLUGIN"));
    attr.plugin = getenv("TEST_NET_PLUGIN");
    cr_assert_eq(holmes_nccl_open(&attr, &n, why, sizeof why), 0, "%s", why);
    cr_expect_str_eq(getenv("NCCL_NET_PLUGIN"), attr.plugin);
    cr_expect_str_eq(getenv("NCCL_NET"), "Holmes");
    holmes_nccl_close(n);
    attr.plugin = "nowhere"; /* the environment has the last word */
    cr_expect_eq(holmes_nccl_open(&attr, &n, why, sizeof why), 0, "%s", why);
    cr_expect_str_eq(getenv("NCCL_NET_PLUGIN"), getenv("TEST_NET_PLUGIN"));
    holmes_nccl_close(n);
}

Test(comm_nccl, what_is_missing_is_named)
{
    struct holmes_nccl_attr attr = {.nccl = "libnccl-nowhere.so.2",
                                    .cuda = getenv("TEST_FAKE_NCCL")};
    struct holmes_nccl *n;
    char why[400] = "";

    cr_expect_eq(holmes_nccl_open(&attr, &n, why, sizeof why), -ELIBACC);
    cr_expect_not_null(strstr(why, "NCCL is not here"), "%s", why);
    attr.cuda = "libcuda-nowhere.so.1";
    cr_expect_eq(holmes_nccl_open(&attr, &n, why, sizeof why), -ELIBACC);
    cr_expect_not_null(strstr(why, "CUDA driver is not here"), "%s", why);
    attr.cuda = "libm.so.6";
    cr_expect_eq(holmes_nccl_open(&attr, &n, why, sizeof why), -ENOSYS);
    cr_expect_not_null(strstr(why, "cuInit"), "%s", why);
}
