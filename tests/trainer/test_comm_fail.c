/* What goes wrong: peers that die, never come, call something else or nothing; plugins that fail.
 * Every handle completes, with an error, in bounded time. */
#include <criterion/criterion.h>
#include <errno.h>
#include <signal.h>

#include "../support/patience.h"
#include "clock.h"
#include "comm_check.h"

enum { MANY = 4 * 1000 * 1000 };

/* Until the communicator fails. */
static int reduce_until_error(struct holmes_comm *c, float *buf)
{
    struct holmes_op *op;
    int rc = 0;

    while (rc == 0) {
        rc = c->ops->all_reduce(c, buf, buf, MANY, HOLMES_FLOAT32, &op);
        if (rc == 0)
            rc = c->ops->wait(op, -1);
    }
    EXPECT(c->ops->all_reduce(c, buf, buf, MANY, HOLMES_FLOAT32, &op) == rc, "not sticky");
    EXPECT(c->ops->barrier(c, &op) == rc, "not sticky");
    return rc;
}

static void killed_body(struct rank *r)
{
    float *buf = check_values(r->rank, 0, MANY, HOLMES_FLOAT32);
    struct holmes_comm *c = r->all;
    struct holmes_op *op;
    uint64_t start;
    int rc;

    EXPECT(holmes_rdv_barrier(r->rdv, "all have their communicator", 20000) == 0);
    EXPECT(c->ops->all_reduce(c, buf, buf, MANY, HOLMES_FLOAT32, &op) == 0);
    if (r->rank == 1)
        kill(getpid(), SIGKILL);
    start = holmes_now_ns();
    rc = c->ops->wait(op, -1);
    if (rc == 0) /* it may have been over before */
        rc = reduce_until_error(c, buf);
    EXPECT(rc < 0 && rc != -ETIME, "%d", rc); /* told, not given up */
    EXPECT(holmes_now_ns() - start < patience_ns(10000), "took too long");
    free(buf);
}

Test(comm_fail, a_killed_rank_ends_the_others_operations)
{
    struct ranks ranks = {
        .size = 4, .plugin = holmes_test_plugin(), .body = killed_body, .dies = {[1] = true}};

    cr_assert(holmes_test_ranks_run(&ranks, 60));
}

/* The rendezvous tells, also those who have no connection to the dead. */
static void killed_waiting_body(struct rank *r)
{
    struct holmes_op *op;
    char byte;

    EXPECT(holmes_rdv_barrier(r->rdv, "all have their communicator", 20000) == 0);
    if (r->rank == 2)
        kill(getpid(), SIGKILL);
    EXPECT(r->all->ops->recv(r->all, &byte, 1, 1 - r->rank, &op) == 0);
    EXPECT(r->all->ops->wait(op, -1) == -ECONNABORTED);
    EXPECT(strstr(holmes_rdv_reason(r->rdv), "rank 2"), "%s", holmes_rdv_reason(r->rdv));
}

Test(comm_fail, ranks_that_wait_for_each_other_hear_of_a_third_ones_death)
{
    struct ranks ranks = {.size = 3,
                          .plugin = holmes_test_plugin(),
                          .body = killed_waiting_body,
                          .dies = {[2] = true}};

    cr_assert(holmes_test_ranks_run(&ranks, 60));
}

static void stuck_body(struct rank *r)
{
    float *buf = check_values(r->rank, 0, 1000, HOLMES_FLOAT32);
    struct holmes_op *op, *second;
    char byte;
    size_t len;

    if (r->rank == 0) {
        EXPECT(r->all->ops->all_reduce(r->all, buf, buf, 1000, HOLMES_FLOAT32, &op) == 0);
        EXPECT(r->all->ops->recv(r->all, &byte, 1, 1, &second) == 0);
        EXPECT(r->all->ops->wait(op, 10) == -ETIMEDOUT);
        EXPECT(r->all->ops->wait(op, -1) == -ETIME);
        EXPECT(r->all->ops->wait(second, -1) == -ETIME);
        EXPECT(holmes_rdv_put(r->rdv, "over", "", 0) == 0);
    } else {
        EXPECT(holmes_rdv_get(r->rdv, "over", &byte, 1, &len, 20000) == 0);
    }
    free(buf);
}

Test(comm_fail, a_peer_that_never_calls_is_given_up_at_the_deadline)
{
    struct ranks ranks = {
        .size = 2, .plugin = holmes_test_plugin(), .body = stuck_body, .op_timeout_s = 1};

    cr_assert(holmes_test_ranks_run(&ranks, 60));
}

static void mismatch_body(struct rank *r)
{
    size_t count = r->rank == 0 ? 1000 : 1004;
    float *buf = check_values(r->rank, 0, count, HOLMES_FLOAT32);
    struct holmes_op *op;
    int rc;

    EXPECT(r->all->ops->all_reduce(r->all, buf, buf, count, HOLMES_FLOAT32, &op) == 0);
    rc = r->all->ops->wait(op, -1);
    EXPECT(rc < 0 && rc != -ETIME, "%d", rc);
    free(buf);
}

Test(comm_fail, ranks_that_disagree_on_a_size_are_told)
{
    struct ranks ranks = {.size = 2, .plugin = holmes_test_plugin(), .body = mismatch_body};

    cr_assert(holmes_test_ranks_run(&ranks, 60));
}

/* Destroyed with all kinds of operations under way: on the ring, connecting, queued. */
static void cancel_body(struct rank *r)
{
    float *buf = check_values(r->rank, 0, MANY, HOLMES_FLOAT32);
    const struct holmes_comm_ops *net = r->all->ops;
    char in[100], out[100] = {0};
    struct holmes_op *ops[4];

    if (r->rank == 0) {
        EXPECT(net->all_reduce(r->all, buf, buf, MANY, HOLMES_FLOAT32, &ops[0]) == 0);
        EXPECT(net->recv(r->all, in, sizeof in, 1, &ops[1]) == 0);
        EXPECT(net->send(r->all, out, sizeof out, 1, &ops[2]) == 0);
        EXPECT(net->barrier(r->all, &ops[3]) == 0);
        net->destroy(r->all);
        r->all = NULL;
        for (int i = 0; i < 4; i++)
            EXPECT(net->wait(ops[i], -1) == -ECANCELED);
    }
    EXPECT(holmes_rdv_barrier(r->rdv, "destroyed", 20000) == 0);
    free(buf);
}

Test(comm_fail, destroy_cancels_what_is_outstanding)
{
    struct ranks ranks = {.size = 2, .plugin = holmes_test_plugin(), .body = cancel_body};

    cr_assert(holmes_test_ranks_run(&ranks, 60));
}

static void never_comes_body(struct rank *r)
{
    int members[] = {0, 1};
    struct holmes_net_attr attr = {holmes_test_plugin(), NULL, 1, 5};
    struct holmes_comm *c = NULL;
    struct holmes_net *net;
    char why[256];

    if (r->rank == 0) {
        EXPECT(holmes_net_open(&attr, &net, why, sizeof why) == 0, "%s", why);
        EXPECT(holmes_comm_net_create(net, r->rdv, "alone", "x", members, 2, 0, &c) == -ETIMEDOUT);
        EXPECT(!c);
        holmes_net_close(net);
    }
    EXPECT(holmes_rdv_barrier(r->rdv, "end", 20000) == 0);
}

Test(comm_fail, a_rank_that_never_joins_a_communicator_is_given_up)
{
    struct ranks ranks = {.size = 2, .body = never_comes_body};

    cr_assert(holmes_test_ranks_run(&ranks, 60));
}

static void plugin_fails_body(struct rank *r)
{
    float *buf = check_values(r->rank, 0, MANY, HOLMES_FLOAT32);
    int rc = reduce_until_error(r->all, buf);

    EXPECT(rc == -EIO || rc == -EPROTO || rc == -ECONNRESET, "%d", rc);
    free(buf);
}

static void run_failing(const char *cue)
{
    struct ranks ranks = {.size = 2, .plugin = "mini10", .body = plugin_fails_body};

    setenv("MINI_FAIL", cue, 1);
    cr_assert(holmes_test_ranks_run(&ranks, 60), "%s", cue);
}

Test(comm_fail, errors_of_the_plugin_reach_every_rank)
{
    run_failing("isend:5");
    run_failing("irecv:3");
    run_failing("test:40");
    run_failing("reg:3");
}
