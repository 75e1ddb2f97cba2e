/* A plugin's runs: each operation of trainer/comm/comm.h started and waited for, as a training step
 * would. The clock starts after a barrier of the same communicator. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "clock.h"
#include "comm_net.h"
#include "log.h"
#include "pattern.h"
#include "rank.h"
#include "rendezvous.h"
#include "size.h"

#define WINDOW_MAX 32

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
    rc = holmes_rdv_connect("127.0.0.1", cmd->port, cmd->secret, a->rank, a->nranks,
                            a->timeout_s * 1000, &r->rdv);
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

static int send_one(struct holmes_runner *r, const void *buf, size_t bytes)
{
    struct holmes_op *op = NULL;
    int rc = r->comm->ops->send(r->comm, buf, bytes, holmes_rank_partner(r->attr->rank), &op);

    return finish(r, rc, op);
}

static int recv_one(struct holmes_runner *r, void *buf, size_t bytes)
{
    struct holmes_op *op = NULL;
    int rc = r->comm->ops->recv(r->comm, buf, bytes, holmes_rank_partner(r->attr->rank), &op);

    return finish(r, rc, op);
}

/* Even ranks serve, odd ranks return. */
static int pingpong_once(struct holmes_runner *r, const struct holmes_rank_work *w)
{
    size_t bytes = w->shape.size_bytes;
    int rc;

    if (r->attr->rank % 2 == 0) {
        rc = send_one(r, w->in, bytes);
        return rc != 0 ? rc : recv_one(r, w->out, bytes);
    }
    rc = recv_one(r, w->out, bytes);
    return rc != 0 ? rc : send_one(r, w->in, bytes);
}

/* `n` messages from even to odd ranks, w->window of them under way, then a word back. */
static int stream_run(struct holmes_runner *r, const struct holmes_rank_work *w, size_t n)
{
    const struct holmes_comm_ops *ops = r->comm->ops;
    size_t bytes = w->shape.size_bytes, posted = 0;
    int partner = holmes_rank_partner(r->attr->rank), rc = 0;
    bool sends = r->attr->rank % 2 == 0;
    struct holmes_op *under_way[WINDOW_MAX];
    uint32_t word = 0;

    for (size_t done = 0; done < n && rc == 0; done++) {
        for (; rc == 0 && posted < n && posted - done < w->window; posted++) {
            size_t slot = posted % w->window;

            rc = sends ? ops->send(r->comm, w->in, bytes, partner, &under_way[slot])
                       : ops->recv(r->comm, (char *)w->out + slot * bytes, bytes, partner,
                                   &under_way[slot]);
        }
        if (rc == 0)
            rc = ops->wait(under_way[done % w->window], -1);
        atomic_fetch_add_explicit(r->attr->beat, 1, memory_order_relaxed);
    }
    if (rc == 0)
        rc = sends ? recv_one(r, &word, sizeof word) : send_one(r, &word, sizeof word);
    return rc;
}

static int repeat(struct holmes_runner *r, const struct holmes_rank_work *w,
                  enum holmes_bench_measure measure, size_t n)
{
    int rc = 0;

    if (measure == HOLMES_BENCH_BANDWIDTH)
        return n ? stream_run(r, w, n) : 0;
    for (size_t i = 0; i < n && rc == 0; i++) {
        rc = measure == HOLMES_BENCH_LATENCY ? pingpong_once(r, w) : collective_once(r, w);
        atomic_fetch_add_explicit(r->attr->beat, 1, memory_order_relaxed);
    }
    return rc;
}

static void explain(const struct holmes_runner *r, const struct holmes_rank_work *w, int rc,
                    char *why, size_t why_len)
{
    char size[32];

    holmes_size_format(w->shape.size_bytes, size, sizeof size);
    snprintf(why, why_len, "%s of %s: %s", holmes_collective_name(r->attr->collective), size,
             rc == -ETIME || rc == -ETIMEDOUT ? "no end within the timeout (--timeout)"
                                              : holmes_strerror(rc));
}

static int plugin_run(struct holmes_runner *r, const struct holmes_rank_work *w,
                      const struct holmes_bench_command *cmd, uint64_t *ns, char *why,
                      size_t why_len)
{
    uint64_t start;
    int rc = repeat(r, w, cmd->measure, cmd->warmups);

    if (rc == 0)
        rc = barrier(r);
    start = holmes_now_ns();
    if (rc == 0)
        rc = repeat(r, w, cmd->measure, cmd->iters);
    *ns = holmes_now_ns() - start;
    if (rc != 0)
        explain(r, w, rc, why, why_len);
    return rc;
}

static uint64_t check_gathered(const struct holmes_rank_work *w)
{
    const struct holmes_rank_attr *a = w->attr;
    size_t block = w->shape.count * holmes_dtype_size(a->type);
    uint64_t wrong = 0;

    for (int i = 0; i < a->nranks; i++)
        wrong += holmes_pattern_check((const char *)w->out + (size_t)i * block, 0, w->shape.count,
                                      a->type, i, w->salt);
    return wrong;
}

static uint64_t check_received(const struct holmes_rank_work *w, size_t messages)
{
    const struct holmes_rank_attr *a = w->attr;
    uint64_t wrong = 0;

    for (size_t i = 0; i < messages; i++)
        wrong +=
            holmes_pattern_check((const char *)w->out + i * w->shape.size_bytes, 0, w->shape.count,
                                 a->type, holmes_rank_partner(a->rank), w->salt);
    return wrong;
}

/* Both ways of moving messages: back and forth, then a full window, which only odd ranks receive.
 */
static int verify_sendrecv(struct holmes_runner *r, const struct holmes_rank_work *w,
                           uint64_t *wrong)
{
    int rc = pingpong_once(r, w);

    if (rc != 0)
        return rc;
    *wrong = check_received(w, 1);
    holmes_pattern_poison(w->out, w->shape.out_bytes * w->window);
    rc = stream_run(r, w, w->window);
    if (rc == 0 && r->attr->rank % 2 == 1)
        *wrong += check_received(w, w->window);
    return rc;
}

static int plugin_verify(struct holmes_runner *r, const struct holmes_rank_work *w,
                         uint32_t streams, uint64_t *wrong, char *why, size_t why_len)
{
    const struct holmes_rank_attr *a = r->attr;
    int rc;

    (void)streams;
    rc = a->collective == HOLMES_SENDRECV ? verify_sendrecv(r, w, wrong) : collective_once(r, w);
    if (rc != 0) {
        explain(r, w, rc, why, why_len);
        return rc;
    }
    if (a->collective == HOLMES_ALL_REDUCE)
        *wrong = holmes_pattern_check_sum(w->out, 0, w->shape.count, a->type, a->nranks, w->salt);
    else if (a->collective == HOLMES_ALL_GATHER)
        *wrong = check_gathered(w);
    else if (a->collective == HOLMES_REDUCE_SCATTER)
        *wrong = holmes_pattern_check_sum(w->out, (size_t)a->rank * w->shape.count, w->shape.count,
                                          a->type, a->nranks, w->salt);
    return 0;
}

const struct holmes_runner_ops holmes_runner_plugin = {
    .join = plugin_join,
    .verify = plugin_verify,
    .run = plugin_run,
    .leave = plugin_leave,
};
