/* comm.h by NCCL: every communicator has its streams, every operation an event behind it.
 *
 * NCCL's communicators do not block: a call returns at once and goes on in a thread of NCCL's. Only
 * when it is over is the operation's kernel in the stream, may the event be recorded behind it, and
 * may the communicator be called again. So a call is waited for as late as possible, and what is
 * queued meanwhile hides it. Blocking communicators would save that thread, but their calls wait
 * for peers (to connect) and for the GPU (where NCCL's queue of work is full) without an end that
 * this thread could bring about.
 */
#include "comm_nccl.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "clock.h"
#include "list.h"
#include "log.h"
#include "nccl_api.h"
#include "net_plugin.h"

#define SPIN_NS   50000 /* a wait looks again at once for so long, */
#define PAUSE_NS  50000 /* then after so long */
#define FINISH_MS 5000  /* for the peers to come to the end of a communicator */

struct holmes_nccl {
    struct holmes_nccl_api nccl;
    struct holmes_cuda_driver cuda;
    void *compute; /* the table's stream */
    int version, connect_timeout_ms, op_timeout_ms;
};

/* One of NCCL's communicators and the stream of its operations. */
struct lane {
    void *comm, *stream;
    struct holmes_op *calling; /* whose call may go on, and whose event is not recorded; or NULL */
};

struct nccl_comm {
    struct holmes_comm base;
    struct holmes_nccl *n;
    struct holmes_rdv *rdv;
    char name[32];
    struct lane lanes[2];
    int nlanes;
    struct holmes_list ops, spare;       /* under way; kept for their events */
    struct holmes_comm_traffic *traffic; /* [size] */
    uint64_t scratch;                    /* of barriers */
    int error;                           /* the first; sticky */
};

/* Memory of the GPU in place of the host's. */
struct bounce {
    uint64_t memory; /* 0: the caller's is the GPU's */
    void *host;
    size_t bytes;
};

struct holmes_op {
    struct holmes_list node;
    struct nccl_comm *comm; /* NULL when that is gone */
    struct lane *lane;
    void *event; /* behind it */
    /* On the kernels' stream, before and behind where it follows. NULL: none has been needed yet.
     */
    void *before, *behind;
    struct bounce in, out;
    bool followed, done;
    int rc;
};

static struct nccl_comm *of(struct holmes_comm *c)
{
    return (struct nccl_comm *)c;
}

/* ---- errors ---- */

static int cuda_failed(struct nccl_comm *c, const char *what, int rc)
{
    const char *name = NULL;

    if (rc == 0)
        return 0;
    c->n->cuda.error_name(rc, &name);
    holmes_warn(NET, "communicator %s: %s: %s", c->name, what, name ? name : "an error of CUDA");
    return -EIO;
}

/* Results of calls of a communicator that may go on in the background. */
static int nccl_failed(struct nccl_comm *c, const char *what, int rc)
{
    if (rc == HOLMES_NCCL_SUCCESS || rc == HOLMES_NCCL_IN_PROGRESS)
        return 0;
    holmes_warn(NET, "communicator %s: %s: %s", c->name, what, c->n->nccl.GetErrorString(rc));
    return rc == HOLMES_NCCL_REMOTE_ERROR ? -ECONNRESET : -EIO;
}

/* Ends what is under way: its kernels leave the GPU, its operations complete with the error. */
static void comm_fail(struct nccl_comm *c, int rc)
{
    struct holmes_list *at;

    if (c->error)
        return;
    c->error = rc;
    for (int i = 0; i < c->nlanes; i++) {
        if (c->lanes[i].comm)
            c->n->nccl.CommAbort(c->lanes[i].comm);
        c->lanes[i].comm = NULL;
        c->lanes[i].calling = NULL;
    }
    for (at = c->ops.next; at != &c->ops; at = at->next) {
        struct holmes_op *op = holmes_list_entry(at, struct holmes_op, node);

        if (!op->done)
            op->rc = rc;
        op->done = true;
    }
}

static void pause_briefly(uint64_t started_ns)
{
    struct timespec pause = {.tv_nsec = PAUSE_NS};

    if (holmes_now_ns() - started_ns > SPIN_NS)
        nanosleep(&pause, NULL);
}

/* 0: all is well, and the last operation is in the stream; -EAGAIN: its call goes on. */
static int lane_look(struct nccl_comm *c, struct lane *lane)
{
    const struct holmes_op *op = lane->calling;
    int state = HOLMES_NCCL_SUCCESS, rc;

    if (!lane->comm)
        return 0;
    rc = nccl_failed(c, "NCCL", c->n->nccl.CommGetAsyncError(lane->comm, &state));
    if (rc == 0)
        rc = nccl_failed(c, "NCCL", state);
    if (rc != 0)
        return rc;
    if (state == HOLMES_NCCL_IN_PROGRESS)
        return -EAGAIN;
    lane->calling = NULL;
    return op ? cuda_failed(c, "an event", c->n->cuda.event_record(op->event, lane->stream)) : 0;
}

/* Of all lanes the first error, else -EAGAIN when one has a call that goes on. */
static int look(struct nccl_comm *c)
{
    int all = 0;

    for (int i = 0; i < c->nlanes; i++) {
        const int rc = lane_look(c, &c->lanes[i]);

        if (rc != 0 && (all == 0 || all == -EAGAIN))
            all = rc;
    }
    return all;
}

/* Until the lane has no call under way. -ETIME: not in time. */
static int settle(struct nccl_comm *c, struct lane *lane, int timeout_ms)
{
    const uint64_t start = holmes_now_ns(), deadline = holmes_deadline_ms((uint64_t)timeout_ms);

    for (;;) {
        const int rc = lane_look(c, lane);

        if (rc != -EAGAIN)
            return rc;
        if (c->rdv && holmes_rdv_poll(c->rdv) != 0)
            return -ECONNABORTED;
        if (holmes_deadline_passed(deadline))
            return -ETIME;
        pause_briefly(start);
    }
}

/* ---- operations ---- */

static bool on_gpu(struct nccl_comm *c, const void *p)
{
    unsigned type = 0;

    return c->n->cuda.pointer(&type, HOLMES_CUDA_POINTER_TYPE, (uint64_t)(uintptr_t)p) == 0 &&
           type == HOLMES_CUDA_MEMORY_DEVICE;
}

static int bounce_init(struct nccl_comm *c, struct bounce *b, const void *p, size_t bytes)
{
    if (bytes == 0 || on_gpu(c, p))
        return 0;
    b->host = (void *)(uintptr_t)p;
    b->bytes = bytes;
    return cuda_failed(c, "memory of the GPU", c->n->cuda.mem_alloc(&b->memory, bytes));
}

static void *bounce_at(const struct bounce *b, const void *p)
{
    return b->memory ? (void *)(uintptr_t)b->memory : (void *)(uintptr_t)p;
}

static int event_make(struct nccl_comm *c, void **event, unsigned flags)
{
    return *event ? 0 : cuda_failed(c, "an event", c->n->cuda.event_create(event, flags));
}

/* One that has its events, or will get them. NULL: no memory. */
static struct holmes_op *op_take(struct nccl_comm *c, struct lane *lane)
{
    struct holmes_op *op;

    if (holmes_list_empty(&c->spare)) {
        op = calloc(1, sizeof *op);
        if (!op)
            return NULL;
    } else {
        op = holmes_list_entry(c->spare.next, struct holmes_op, node);
        holmes_list_remove(&op->node);
        *op = (struct holmes_op){.event = op->event, .before = op->before, .behind = op->behind};
    }
    op->comm = c;
    op->lane = lane;
    holmes_list_append(&c->ops, &op->node);
    return op;
}

static void op_leave(struct nccl_comm *c, struct holmes_op *op)
{
    const struct holmes_cuda_driver *cuda = &c->n->cuda;

    holmes_list_remove(&op->node);
    if (op->in.memory)
        cuda->mem_free(op->in.memory);
    if (op->out.memory)
        cuda->mem_free(op->out.memory);
    op->in.memory = op->out.memory = 0;
}

/* All but the handle and what it tells; the communicator goes. */
static void op_detach(struct nccl_comm *c, struct holmes_op *op)
{
    void *events[] = {op->event, op->before, op->behind};

    op_leave(c, op);
    for (int i = 0; i < 3; i++)
        if (events[i])
            c->n->cuda.event_destroy(events[i]);
    op->comm = NULL;
}

/* Nobody has the handle any more. */
static void op_free(struct holmes_op *op)
{
    if (op->comm) {
        op_leave(op->comm, op);
        holmes_list_append(&op->comm->spare, &op->node);
    } else {
        free(op);
    }
}

/* An operation on in_bytes at `in` and out_bytes at `out` whose NCCL call is still to be made, on
 * the stream of `lane`, behind what the table has queued. NULL or 0: no such side. */
static int op_begin(struct nccl_comm *c, struct lane *lane, const void *in, size_t in_bytes,
                    const void *out, size_t out_bytes, struct holmes_op **made)
{
    const struct holmes_cuda_driver *cuda = &c->n->cuda;
    struct holmes_op *op;
    int rc;

    if (c->error)
        return c->error;
    op = op_take(c, lane);
    if (!op)
        return -ENOMEM;
    rc = settle(c, lane, c->n->op_timeout_ms);
    if (rc == 0)
        rc = event_make(c, &op->event, HOLMES_CUDA_EVENT_NO_TIMING);
    if (rc == 0)
        rc = bounce_init(c, &op->in, in, in_bytes);
    if (rc == 0)
        rc = bounce_init(c, &op->out, out, out_bytes);
    if (rc == 0)
        rc = cuda_failed(c, "an event", cuda->event_record(op->event, c->n->compute));
    if (rc == 0)
        rc = cuda_failed(c, "a stream", cuda->stream_wait(lane->stream, op->event, 0));
    if (rc == 0 && op->in.memory)
        rc = cuda_failed(c, "a copy to the GPU",
                         cuda->copy_in(op->in.memory, op->in.host, op->in.bytes));
    if (rc != 0) {
        op_free(op);
        comm_fail(c, rc);
        return rc;
    }
    *made = op;
    return 0;
}

/* After NCCL's call, whose result is rc. */
static int op_end(struct holmes_op *op, const char *what, int rc, struct holmes_op **out)
{
    struct nccl_comm *c = op->comm;

    rc = nccl_failed(c, what, rc);
    if (rc != 0) {
        op_free(op);
        comm_fail(c, rc);
        return rc;
    }
    op->lane->calling = op;
    *out = op;
    return 0;
}

/* What a ring carries: `bytes` to the next rank, the same from the one before. */
static void count_ring(struct nccl_comm *c, size_t bytes)
{
    const int next = (c->base.rank + 1) % c->base.size;
    const int prev = (c->base.rank + c->base.size - 1) % c->base.size;

    c->traffic[next].bytes_sent += bytes;
    c->traffic[next].messages_sent++;
    c->traffic[prev].bytes_received += bytes;
    c->traffic[prev].messages_received++;
}

static int nccl_type(enum holmes_dtype t)
{
    return t == HOLMES_FLOAT32 ? HOLMES_NCCL_FLOAT32 : HOLMES_NCCL_BFLOAT16;
}

static int nccl_all_reduce(struct holmes_comm *comm, const void *in, void *out, size_t count,
                           enum holmes_dtype t, struct holmes_op **made)
{
    struct nccl_comm *c = of(comm);
    struct lane *lane = &c->lanes[0];
    const size_t bytes = count * holmes_dtype_size(t), n = (size_t)comm->size;
    struct holmes_op *op;
    int rc = op_begin(c, lane, in, bytes, out, bytes, &op);

    if (rc != 0)
        return rc;
    count_ring(c, 2 * (n - 1) * bytes / n);
    rc = c->n->nccl.AllReduce(bounce_at(&op->in, in), bounce_at(&op->out, out), count, nccl_type(t),
                              HOLMES_NCCL_SUM, lane->comm, lane->stream);
    return op_end(op, "ncclAllReduce", rc, made);
}

static int nccl_reduce_scatter(struct holmes_comm *comm, const void *in, void *out, size_t count,
                               enum holmes_dtype t, struct holmes_op **made)
{
    struct nccl_comm *c = of(comm);
    struct lane *lane = &c->lanes[0];
    const size_t bytes = count * holmes_dtype_size(t), n = (size_t)comm->size;
    struct holmes_op *op;
    int rc = op_begin(c, lane, in, n * bytes, out, bytes, &op);

    if (rc != 0)
        return rc;
    count_ring(c, (n - 1) * bytes);
    rc = c->n->nccl.ReduceScatter(bounce_at(&op->in, in), bounce_at(&op->out, out), count,
                                  nccl_type(t), HOLMES_NCCL_SUM, lane->comm, lane->stream);
    return op_end(op, "ncclReduceScatter", rc, made);
}

static int nccl_all_gather(struct holmes_comm *comm, const void *in, void *out, size_t count,
                           enum holmes_dtype t, struct holmes_op **made)
{
    struct nccl_comm *c = of(comm);
    struct lane *lane = &c->lanes[0];
    const size_t bytes = count * holmes_dtype_size(t), n = (size_t)comm->size;
    struct holmes_op *op;
    int rc = op_begin(c, lane, in, bytes, out, n * bytes, &op);

    if (rc != 0)
        return rc;
    count_ring(c, (n - 1) * bytes);
    rc = c->n->nccl.AllGather(bounce_at(&op->in, in), bounce_at(&op->out, out), count, nccl_type(t),
                              lane->comm, lane->stream);
    return op_end(op, "ncclAllGather", rc, made);
}

static int nccl_broadcast(struct holmes_comm *comm, void *buf, size_t count, enum holmes_dtype t,
                          int root, struct holmes_op **made)
{
    struct nccl_comm *c = of(comm);
    struct lane *lane = &c->lanes[0];
    const size_t bytes = count * holmes_dtype_size(t);
    struct holmes_op *op;
    void *memory;
    int rc;

    if (root < 0 || root >= comm->size)
        return -EINVAL;
    /* In and out are one memory: the root's brings it in, the others' takes it out. */
    rc = comm->rank == root ? op_begin(c, lane, buf, bytes, NULL, 0, &op)
                            : op_begin(c, lane, NULL, 0, buf, bytes, &op);
    if (rc != 0)
        return rc;
    count_ring(c, bytes);
    memory = comm->rank == root ? bounce_at(&op->in, buf) : bounce_at(&op->out, buf);
    rc = c->n->nccl.Broadcast(memory, memory, count, nccl_type(t), root, lane->comm, lane->stream);
    return op_end(op, "ncclBroadcast", rc, made);
}

/* Lane 0 has the messages to higher ranks, lane 1, where there is one, those to lower ranks. */
static struct lane *lane_of(struct nccl_comm *c, int from, int to)
{
    return &c->lanes[from > to && c->nlanes > 1];
}

static int nccl_send(struct holmes_comm *comm, const void *buf, size_t bytes, int peer,
                     struct holmes_op **made)
{
    struct nccl_comm *c = of(comm);
    struct lane *lane = lane_of(c, comm->rank, peer);
    struct holmes_op *op;
    int rc = peer < 0 || peer >= comm->size || peer == comm->rank ? -EINVAL : 0;

    if (rc == 0)
        rc = op_begin(c, lane, buf, bytes, NULL, 0, &op);
    if (rc != 0)
        return rc;
    c->traffic[peer].bytes_sent += bytes;
    c->traffic[peer].messages_sent++;
    rc = c->n->nccl.Send(bounce_at(&op->in, buf), bytes, HOLMES_NCCL_INT8, peer, lane->comm,
                         lane->stream);
    return op_end(op, "ncclSend", rc, made);
}

static int nccl_recv(struct holmes_comm *comm, void *buf, size_t bytes, int peer,
                     struct holmes_op **made)
{
    struct nccl_comm *c = of(comm);
    struct lane *lane = lane_of(c, peer, comm->rank);
    struct holmes_op *op;
    int rc = peer < 0 || peer >= comm->size || peer == comm->rank ? -EINVAL : 0;

    if (rc == 0)
        rc = op_begin(c, lane, NULL, 0, buf, bytes, &op);
    if (rc != 0)
        return rc;
    c->traffic[peer].bytes_received += bytes;
    c->traffic[peer].messages_received++;
    rc = c->n->nccl.Recv(bounce_at(&op->out, buf), bytes, HOLMES_NCCL_INT8, peer, lane->comm,
                         lane->stream);
    return op_end(op, "ncclRecv", rc, made);
}

static int nccl_barrier(struct holmes_comm *comm, struct holmes_op **made)
{
    void *one = (void *)(uintptr_t)of(comm)->scratch;

    return nccl_all_reduce(comm, one, one, 1, HOLMES_FLOAT32, made);
}

/* ---- handles ---- */

/* Two events of the kernels' stream around the place tell how long that stood still there. */
static int nccl_follow(struct holmes_op *op)
{
    struct nccl_comm *c = op->comm;
    const struct holmes_cuda_driver *cuda = &c->n->cuda;
    int rc;

    if (op->done)
        return op->rc;
    if (op->out.memory)
        return -ENOTSUP;
    rc = settle(c, op->lane, c->n->op_timeout_ms);
    if (rc == 0)
        rc = event_make(c, &op->before, 0);
    if (rc == 0)
        rc = event_make(c, &op->behind, 0);
    if (rc == 0)
        rc = cuda_failed(c, "an event", cuda->event_record(op->before, c->n->compute));
    if (rc == 0)
        rc = cuda_failed(c, "a stream", cuda->stream_wait(c->n->compute, op->event, 0));
    if (rc == 0)
        rc = cuda_failed(c, "an event", cuda->event_record(op->behind, c->n->compute));
    if (rc != 0)
        comm_fail(c, rc);
    op->followed = rc == 0;
    return rc;
}

static void count_stall(struct holmes_op *op)
{
    float ms = 0;

    if (op->followed && op->comm->n->cuda.elapsed(&ms, op->before, op->behind) == 0 && ms > 0)
        op->comm->base.stall_ns += (uint64_t)(ms * 1e6f);
}

static void op_look(struct holmes_op *op)
{
    struct nccl_comm *c = op->comm;
    int rc;

    if (op->done || !c) /* without its communicator it is done */
        return;
    if (op->lane->calling == op)
        rc = HOLMES_CUDA_NOT_READY; /* looks below whether the call is over */
    else
        rc = c->n->cuda.event_query(op->followed ? op->behind : op->event);
    if (rc == 0) {
        count_stall(op);
        /* Only now, so that nothing writes to the host's memory after the operation has failed. */
        if (op->out.memory)
            op->rc = cuda_failed(c, "a copy from the GPU",
                                 c->n->cuda.copy_out(op->out.host, op->out.memory, op->out.bytes));
        op->done = true;
        return;
    }
    rc = rc == HOLMES_CUDA_NOT_READY ? look(c) : cuda_failed(c, "the GPU", rc);
    if (rc != 0 && rc != -EAGAIN)
        comm_fail(c, rc);
}

/* The kernels' stream has not come to where it follows. */
static bool is_ahead(const struct holmes_op *op)
{
    return op->followed && op->comm->n->cuda.event_query(op->before) == HOLMES_CUDA_NOT_READY;
}

static int nccl_test(struct holmes_op *op, bool *done)
{
    op_look(op);
    *done = op->done;
    return op->done ? op->rc : 0;
}

static int nccl_wait(struct holmes_op *op, int timeout_ms)
{
    struct nccl_comm *c = op->comm; /* gone only when the operation is done */
    const int limit_ms = timeout_ms < 0 && c ? c->n->op_timeout_ms : timeout_ms;
    const uint64_t start = holmes_now_ns(), deadline = holmes_deadline_ms((uint64_t)limit_ms);
    int rc;

    for (op_look(op); c && !op->done; op_look(op)) {
        if (timeout_ms < 0 && c->rdv && holmes_rdv_poll(c->rdv) != 0)
            comm_fail(c, -ECONNABORTED);
        else if (!holmes_deadline_passed(deadline))
            pause_briefly(start);
        else if (timeout_ms < 0)
            comm_fail(c, -ETIME);
        else
            return is_ahead(op) ? -EBUSY : -ETIMEDOUT;
    }
    rc = op->rc;
    op_free(op);
    return rc;
}

static void nccl_traffic(struct holmes_comm *comm, int peer, struct holmes_comm_traffic *out)
{
    *out = (struct holmes_comm_traffic){0};
    if (peer >= 0 && peer < comm->size)
        *out = of(comm)->traffic[peer];
}

/* ---- life ---- */

/* In good order all ranks come to this, and their last messages have arrived. */
static void lanes_finish(struct nccl_comm *c)
{
    int rc = 0;

    for (int i = 0; i < c->nlanes && rc == 0; i++)
        rc = settle(c, &c->lanes[i], FINISH_MS);
    for (int i = 0; i < c->nlanes && rc == 0; i++)
        rc = nccl_failed(c, "ncclCommFinalize", c->n->nccl.CommFinalize(c->lanes[i].comm));
    for (int i = 0; i < c->nlanes && rc == 0; i++)
        rc = settle(c, &c->lanes[i], FINISH_MS);
    for (int i = 0; i < c->nlanes; i++) {
        if (rc == 0)
            c->n->nccl.CommDestroy(c->lanes[i].comm);
        else
            c->n->nccl.CommAbort(c->lanes[i].comm);
        c->lanes[i].comm = NULL;
    }
}

/* Handles that are still to be waited for live on, done. */
static void nccl_destroy(struct holmes_comm *comm)
{
    struct nccl_comm *c = of(comm);
    bool busy = false;

    for (struct holmes_list *at = c->ops.next; at != &c->ops; at = at->next)
        busy = busy || !holmes_list_entry(at, struct holmes_op, node)->done;
    if (busy)
        comm_fail(c, -ECANCELED);
    else if (!c->error)
        lanes_finish(c);
    while (!holmes_list_empty(&c->ops))
        op_detach(c, holmes_list_entry(c->ops.next, struct holmes_op, node));
    while (!holmes_list_empty(&c->spare)) {
        struct holmes_op *op = holmes_list_entry(c->spare.next, struct holmes_op, node);

        op_detach(c, op);
        free(op);
    }
    for (int i = 0; i < c->nlanes; i++)
        if (c->lanes[i].stream)
            c->n->cuda.stream_destroy(c->lanes[i].stream);
    if (c->scratch)
        c->n->cuda.mem_free(c->scratch);
    free(c->traffic);
    free(c);
}

static const struct holmes_comm_ops nccl_ops = {
    .name = "nccl",
    .all_reduce = nccl_all_reduce,
    .reduce_scatter = nccl_reduce_scatter,
    .all_gather = nccl_all_gather,
    .broadcast = nccl_broadcast,
    .send = nccl_send,
    .recv = nccl_recv,
    .barrier = nccl_barrier,
    .follow = nccl_follow,
    .test = nccl_test,
    .wait = nccl_wait,
    .traffic = nccl_traffic,
    .destroy = nccl_destroy,
};

/* Rank 0 of the communicator makes the id under which NCCL's ranks find each other. */
static int meet(struct nccl_comm *c, int lane, struct holmes_nccl_id *id)
{
    char key[64];
    size_t len = 0;
    int rc;

    snprintf(key, sizeof key, "nccl/%s/%d", c->name, lane);
    if (c->base.rank == 0) {
        rc = nccl_failed(c, "ncclGetUniqueId", c->n->nccl.GetUniqueId(id));
        return rc ? rc : holmes_rdv_put(c->rdv, key, id, sizeof *id);
    }
    rc = holmes_rdv_get(c->rdv, key, id, sizeof *id, &len, c->n->connect_timeout_ms);
    if (rc != 0)
        holmes_warn(NET, "communicator %s: no id from its first rank: %s", c->name,
                    holmes_rdv_reason(c->rdv));
    return rc == 0 && len != sizeof *id ? -EPROTO : rc;
}

/* NCCL connects two ranks when both have called for a message between them. Until then the first
 * call of either goes on in the background, and so would a receive posted ahead of the send that
 * the peer waits for. */
static int lane_connect(struct nccl_comm *c, int i)
{
    const struct holmes_nccl_api *nccl = &c->n->nccl;
    const struct lane *lane = &c->lanes[i];
    void *byte = (void *)(uintptr_t)c->scratch;
    int rc;

    if (c->base.rank == i) /* lane 0 has the messages of rank 0, lane 1 those of rank 1 */
        rc = nccl->Send(byte, 1, HOLMES_NCCL_INT8, 1 - i, lane->comm, lane->stream);
    else
        rc = nccl->Recv(byte, 1, HOLMES_NCCL_INT8, i, lane->comm, lane->stream);
    rc = nccl_failed(c, "a first message", rc);
    return rc ? rc : settle(c, &c->lanes[i], c->n->connect_timeout_ms);
}

static int lane_open(struct nccl_comm *c, int i, bool pair)
{
    struct holmes_nccl_config config = {.size = sizeof config,
                                        .magic = HOLMES_NCCL_CONFIG_MAGIC,
                                        .version = HOLMES_NCCL_CONFIG_VERSION,
                                        .blocking = 0};
    struct lane *lane = &c->lanes[i];
    struct holmes_nccl_id id;
    int rc = cuda_failed(c, "a stream",
                         c->n->cuda.stream_create(&lane->stream, HOLMES_CUDA_STREAM_NONBLOCK));

    c->nlanes = i + 1;
    if (rc == 0)
        rc = meet(c, i, &id);
    if (rc == 0)
        rc = nccl_failed(
            c, "ncclCommInitRankConfig",
            c->n->nccl.CommInitRankConfig(&lane->comm, c->base.size, id, c->base.rank, &config));
    if (rc == 0)
        rc = settle(c, lane, c->n->connect_timeout_ms);
    if (rc == 0 && pair)
        rc = lane_connect(c, i);
    if (rc != -ETIME)
        return rc;
    holmes_warn(NET, "communicator %s: not all of its %d ranks came within %d s", c->name,
                c->base.size, c->n->connect_timeout_ms / 1000);
    return -ETIMEDOUT;
}

int holmes_comm_nccl_create(struct holmes_nccl *n, struct holmes_rdv *rdv, const char *name,
                            const char *kind, const int *ranks, int size, int rank,
                            struct holmes_comm **out)
{
    struct nccl_comm *c;
    const bool pair = strcmp(kind, "pp") == 0;
    int rc;

    (void)ranks; /* peers meet under the communicator's name and their ranks in it */
    if (size < 1 || rank < 0 || rank >= size || (pair && size > 2) ||
        strlen(name) >= sizeof c->name)
        return -EINVAL;
    if (size == 1)
        return holmes_comm_loopback_create(kind, out);
    c = calloc(1, sizeof *c);
    if (!c)
        return -ENOMEM;
    c->base.ops = &nccl_ops;
    c->base.rank = rank;
    c->base.size = size;
    snprintf(c->base.kind, sizeof c->base.kind, "%s", kind);
    snprintf(c->name, sizeof c->name, "%s", name);
    c->n = n;
    c->rdv = rdv;
    holmes_list_init(&c->ops);
    holmes_list_init(&c->spare);
    c->traffic = calloc((size_t)size, sizeof *c->traffic);
    rc = c->traffic ? 0 : -ENOMEM;
    if (rc == 0)
        rc = cuda_failed(c, "memory of the GPU", n->cuda.mem_alloc(&c->scratch, sizeof(float)));
    for (int i = 0; i < 1 + pair && rc == 0; i++)
        rc = lane_open(c, i, pair);
    if (rc != 0) {
        comm_fail(c, rc);
        nccl_destroy(&c->base);
        return rc;
    }
    *out = &c->base;
    return 0;
}

/* ---- the process ---- */

/* The kernels have made a context current; without them the first GPU's is taken. */
static int take_context(struct holmes_nccl *n)
{
    void *ctx = NULL;
    int device, rc = n->cuda.init(0);

    if (rc == 0)
        rc = n->cuda.ctx_current(&ctx);
    if (rc != 0 || ctx)
        return rc;
    rc = n->cuda.device(&device, 0);
    if (rc == 0)
        rc = n->cuda.primary_ctx(&ctx, device);
    return rc ? rc : n->cuda.ctx_set(ctx);
}

/* A plugin that it cannot use NCCL would leave out, without a word, for a network of its own,
 * unless that has to have the name of the plugin's. */
static int choose_net(const char *plugin, char *why, size_t why_len)
{
    struct holmes_plugin *p;
    int rc = holmes_plugin_open(plugin, &p, why, why_len);

    if (rc != 0)
        return rc;
    if (setenv("NCCL_NET_PLUGIN", plugin, 1) != 0 ||
        setenv("NCCL_NET", holmes_plugin_name(p), 0) != 0)
        rc = -errno;
    holmes_plugin_close(p);
    return rc;
}

/* NCCL reads these when it makes its first communicator. */
static int set_variables(const struct holmes_nccl_attr *attr, char *why, size_t why_len)
{
    int rc = 0;

    if (attr->plugin && !getenv("NCCL_NET_PLUGIN"))
        rc = choose_net(attr->plugin, why, why_len);
    /* Else 2.27 to 2.29 forget the plugin's name when their last communicator goes. */
    if (rc == 0 && setenv("NCCL_NET_PLUGIN_REF_COUNT", "1", 0) != 0)
        rc = -errno;
    /* Collectives too would connect in the first call, when all ranks have made it. But a rank may
     * come to its own only after a message that this one sends behind the call. */
    if (rc == 0 && setenv("NCCL_RUNTIME_CONNECT", "0", 1) != 0)
        rc = -errno;
    return rc;
}

int holmes_nccl_open(const struct holmes_nccl_attr *attr, struct holmes_nccl **out, char *why,
                     size_t why_len)
{
    struct holmes_nccl *n = calloc(1, sizeof *n);
    const char *name = NULL;
    int rc = n ? 0 : -ENOMEM;

    if (rc == 0)
        rc = set_variables(attr, why, why_len);
    if (rc == 0)
        rc = holmes_cuda_driver_open(attr->cuda ? attr->cuda : "libcuda.so.1", &n->cuda, why,
                                     why_len);
    if (rc == 0)
        rc = holmes_nccl_api_open(attr->nccl ? attr->nccl : "libnccl.so.2", &n->nccl, why, why_len);
    if (rc == 0) {
        const int cuda = take_context(n);

        if (cuda != 0) {
            n->cuda.error_name(cuda, &name);
            snprintf(why, why_len, "the GPU cannot be used: %s", name ? name : "an error of CUDA");
            rc = -ENODEV;
        }
    }
    if (rc == 0)
        n->nccl.GetVersion(&n->version);
    if (rc != 0) {
        free(n);
        return rc;
    }
    n->compute = attr->stream;
    n->connect_timeout_ms = attr->connect_timeout_s * 1000;
    n->op_timeout_ms = attr->op_timeout_s * 1000;
    *out = n;
    return 0;
}

void holmes_nccl_close(struct holmes_nccl *n)
{
    free(n);
}

int holmes_nccl_version(const struct holmes_nccl *n)
{
    return n->version;
}
