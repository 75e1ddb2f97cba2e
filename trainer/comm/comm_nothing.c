/* A communicator that moves nothing: every operation is over when it has been started, and leaves
 * its buffers as they were. What a step takes over such ones is what it takes to compute. */
#include <errno.h>
#include <stdlib.h>

#include "comm.h"
#include "trace.h"

struct holmes_op {
    char nothing;
};

static int none_start(struct holmes_op **op)
{
    static struct holmes_op done;
    char name[HOLMES_TRACE_NAME];

    holmes_trace_take_name(name, "");
    *op = &done;
    return 0;
}

/* all_reduce, reduce_scatter and all_gather. */
static int none_collective(struct holmes_comm *c, const void *in, void *out, size_t count,
                           enum holmes_dtype t, struct holmes_op **op)
{
    (void)c, (void)in, (void)out, (void)count, (void)t;
    return none_start(op);
}

static int none_broadcast(struct holmes_comm *c, void *buf, size_t count, enum holmes_dtype t,
                          int root, struct holmes_op **op)
{
    (void)c, (void)buf, (void)count, (void)t, (void)root;
    return none_start(op);
}

static int none_send(struct holmes_comm *c, const void *buf, size_t bytes, int peer,
                     struct holmes_op **op)
{
    (void)c, (void)buf, (void)bytes, (void)peer;
    return none_start(op);
}

static int none_recv(struct holmes_comm *c, void *buf, size_t bytes, int peer,
                     struct holmes_op **op)
{
    (void)c, (void)buf, (void)bytes, (void)peer;
    return none_start(op);
}

static int none_barrier(struct holmes_comm *c, struct holmes_op **op)
{
    (void)c;
    return none_start(op);
}

static int none_test(struct holmes_op *op, bool *done)
{
    (void)op;
    *done = true;
    return 0;
}

static int none_wait(struct holmes_op *op, int timeout_ms)
{
    (void)op, (void)timeout_ms;
    return 0;
}

static void none_traffic(struct holmes_comm *c, int peer, struct holmes_comm_traffic *out)
{
    (void)c, (void)peer;
    *out = (struct holmes_comm_traffic){0};
}

static void none_destroy(struct holmes_comm *c)
{
    free(c);
}

static const struct holmes_comm_ops none_ops = {
    .name = "nothing",
    .all_reduce = none_collective,
    .reduce_scatter = none_collective,
    .all_gather = none_collective,
    .broadcast = none_broadcast,
    .send = none_send,
    .recv = none_recv,
    .barrier = none_barrier,
    .test = none_test,
    .wait = none_wait,
    .traffic = none_traffic,
    .destroy = none_destroy,
};

int holmes_comm_nothing_create(const struct holmes_comm *like, struct holmes_comm **out)
{
    struct holmes_comm *c = calloc(1, sizeof *c);

    if (!c)
        return -ENOMEM;
    *c = *like;
    c->ops = &none_ops;
    *out = c;
    return 0;
}
