/* A plugin's collectives: each operation of trainer/comm/comm.h started and waited for, as a
 * training step would. The clock starts after a barrier of the same communicator. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"
#include "comm_net.h"
#include "log.h"
#include "rank.h"
#include "rendezvous.h"

struct holmes_runner {
    const struct holmes_rank_attr *attr;
    struct holmes_rdv *rdv;
    struct holmes_net *net;
    struct holmes_comm *comm;
};

static void plugin_leave(struct holmes_runner *r)
{
    if (!r)
        return;
    if (r->comm)
        r->comm->ops->destroy(r->comm);
    holmes_net_close(r->net);
    holmes_rdv_leave(r->rdv);
    free(r);
}

static int join_comm(struct holmes_runner *r, const struct holmes_rank_attr *a)
{
    int ranks[HOLMES_BENCH_RANKS_MAX];

    for (int i = 0; i < a->nranks; i++)
        ranks[i] = i;
    return holmes_comm_net_create(r->net, r->rdv, "bench", "world", ranks, a->nranks, a->rank,
                                  &r->comm);
}

static int plugin_join(const struct holmes_rank_attr *a, const struct holmes_bench_command *cmd,
                       struct holmes_runner **out, char *about, size_t about_len)
{
    struct holmes_net_attr net = {.plugin = a->plugin,
                                  .device = a->device,
                                  .connect_timeout_s = a->timeout_s,
                                  .op_timeout_s = a->timeout_s};
    struct holmes_runner *r = calloc(1, sizeof *r);
    struct holmes_net_info info;
    int rc;

    if (!r)
        return -ENOMEM;
    *out = r; /* leave takes it in any state */
    r->attr = a;
    rc = holmes_net_open(&net, &r->net, about, about_len);
    if (rc != 0)
        return rc;
    rc = holmes_rank_meet(a, cmd, &r->rdv);
    if (rc == 0)
        rc = join_comm(r, a);
    if (rc != 0) {
        snprintf(about, about_len, "cannot connect the ranks: %s",
                 rc == -ECONNABORTED ? holmes_rdv_reason(r->rdv) : holmes_strerror(rc));
        return rc;
    }
    holmes_net_info(r->net, &info);
    snprintf(about, about_len, "%s, net \"%s\" (ABI v%d), device %s, %d Mbit/s", info.path,
             info.name, info.abi, info.device, info.speed_mbps);
    return 0;
}

static int finish(struct holmes_runner *r, int rc, struct holmes_op *op)
{
    return rc != 0 ? rc : r->comm->ops->wait(op, -1);
}

static int barrier(struct holmes_runner *r)
{
    struct holmes_op *op = NULL;
    int rc = r->comm->ops->barrier(r->comm, &op);

    return finish(r, rc, op);
}

static int collective_once(struct holmes_runner *r, const struct holmes_rank_work *w)
{
    const struct holmes_comm_ops *ops = r->comm->ops;
    size_t count = w->shape.count;
    enum holmes_dtype t = r->attr->type;
    struct holmes_op *op = NULL;
    int rc;

    if (r->attr->collective == HOLMES_ALL_REDUCE)
        rc = ops->all_reduce(r->comm, w->in, w->out, count, t, &op);
    else if (r->attr->collective == HOLMES_ALL_GATHER)
        rc = ops->all_gather(r->comm, w->in, w->out, count, t, &op);
    else
        rc = ops->reduce_scatter(r->comm, w->in, w->out, count, t, &op);
    return finish(r, rc, op);
}

static int repeat(struct holmes_runner *r, const struct holmes_rank_work *w, size_t n)
{
    int rc = 0;

    for (size_t i = 0; i < n && rc == 0; i++) {
        rc = collective_once(r, w);
        atomic_fetch_add_explicit(r->attr->beat, 1, memory_order_relaxed);
    }
    return rc;
}

static int plugin_run(struct holmes_runner *r, const struct holmes_rank_work *w,
                      const struct holmes_bench_command *cmd, struct holmes_timing *t, char *why,
                      size_t why_len)
{
    int rc = repeat(r, w, cmd->warmups);

    if (rc == 0)
        rc = barrier(r);
    holmes_timing_start(t);
    if (rc == 0)
        rc = repeat(r, w, cmd->iters);
    holmes_timing_stop(t);
    if (rc != 0)
        holmes_rank_explain(w, rc, why, why_len);
    return rc;
}

static int plugin_verify(struct holmes_runner *r, const struct holmes_rank_work *w,
                         const struct holmes_bench_command *cmd, uint64_t *wrong, char *why,
                         size_t why_len)
{
    int rc;

    (void)cmd;
    rc = collective_once(r, w);
    if (rc != 0) {
        holmes_rank_explain(w, rc, why, why_len);
        return rc;
    }
    *wrong = holmes_check_collective(w);
    return 0;
}

const struct holmes_runner_ops holmes_runner_plugin = {
    .join = plugin_join,
    .verify = plugin_verify,
    .run = plugin_run,
    .leave = plugin_leave,
};
