/* Several communicators and operations at once in one process, started in an order that differs
 * from rank to rank where that is allowed. */
#include <criterion/criterion.h>
#include <errno.h>

#include "comm_check.h"

static void run(int size, void (*body)(struct rank *r))
{
    struct ranks ranks = {.size = size, .plugin = holmes_test_plugin(), .body = body};

    cr_assert(holmes_test_ranks_run(&ranks, 120));
}

static struct holmes_comm *group(struct rank *r, const char *name, int size, int rank)
{
    int members[16] = {0};
    struct holmes_comm *c = NULL;
    int rc = holmes_comm_net_create(r->net, r->rdv, name, "group", members, size, rank, &c);

    EXPECT(rc == 0, "%s: %d", name, rc);
    return c;
}

enum { COUNT = 200003 };

struct sum {
    struct holmes_comm *c;
    float *buf;
    struct holmes_op *op;
};

static void sum_start(struct sum *s, struct holmes_comm *c, int world_rank)
{
    s->c = c;
    s->buf = check_values(world_rank, 0, COUNT, HOLMES_FLOAT32);
    EXPECT(c->ops->all_reduce(c, s->buf, s->buf, COUNT, HOLMES_FLOAT32, &s->op) == 0);
}

static void sum_finish(struct sum *s, const int *world, int n)
{
    holmes_test_wait(s->c, s->op, 0);
    for (size_t i = 0; i < COUNT; i++) {
        float want = 0;

        for (int k = 0; k < n; k++)
            want += check_value(world[k], i);
        EXPECT(s->buf[i] == want, "element %zu", i);
    }
    free(s->buf);
}

/* Rank r is in rows {0,1} {2,3}, columns {0,2} {1,3}, and in `all`, and starts with another one of
 * the three than its neighbours do. */
static void rows_and_columns_body(struct rank *r)
{
    int row = r->rank / 2, column = r->rank % 2;
    int all[] = {0, 1, 2, 3}, rows[] = {2 * row, 2 * row + 1}, columns[] = {column, column + 2};
    struct holmes_comm *c[3] = {r->all, group(r, row ? "row1" : "row0", 2, column),
                                group(r, column ? "column1" : "column0", 2, row)};
    struct sum s[3];

    for (int round = 0; round < 5; round++) {
        for (int k = 0; k < 3; k++)
            sum_start(&s[(k + r->rank) % 3], c[(k + r->rank) % 3], r->rank);
        for (int k = 2; k >= 0; k--) {
            int which = (k + 2 * r->rank) % 3;

            sum_finish(&s[which], which == 0 ? all : which == 1 ? rows : columns, which ? 2 : 4);
        }
    }
    c[1]->ops->destroy(c[1]);
    c[2]->ops->destroy(c[2]);
}

Test(comm_many, communicators_do_not_wait_for_each_other)
{
    run(4, rows_and_columns_body);
}

static void queued_body(struct rank *r)
{
    enum { OPS = 40, N = 5000 };
    struct holmes_comm *c = r->all;
    struct holmes_op *ops[OPS], *sent[OPS], *received[OPS];
    float *sums[OPS], *in[OPS], *out[OPS];
    int next = (r->rank + 1) % r->size, prev = (r->rank + r->size - 1) % r->size;

    for (int k = 0; k < OPS; k++) {
        sums[k] = check_values(r->rank, (size_t)k, N, HOLMES_FLOAT32);
        out[k] = check_values(r->rank, (size_t)k * 2, N, HOLMES_FLOAT32);
        in[k] = check_buffer(N * sizeof *in[k]);
        EXPECT(c->ops->recv(c, in[k], N * sizeof *in[k], prev, &received[k]) == 0);
        EXPECT(c->ops->all_reduce(c, sums[k], sums[k], N, HOLMES_FLOAT32, &ops[k]) == 0);
        EXPECT(c->ops->send(c, out[k], N * sizeof *out[k], next, &sent[k]) == 0);
    }
    for (int k = OPS - 1; k >= 0; k--) {
        holmes_test_wait(c, received[k], 0);
        holmes_test_wait(c, ops[k], 0);
        holmes_test_wait(c, sent[k], 0);
        for (size_t i = 0; i < N; i++) {
            EXPECT(sums[k][i] == check_sum(c->size, (size_t)k + i), "operation %d", k);
            EXPECT(in[k][i] == check_value(prev, (size_t)k * 2 + i), "message %d", k);
        }
        free(sums[k]);
        free(out[k]);
        free(in[k]);
    }
}

Test(comm_many, operations_queue_up_on_one_communicator)
{
    run(3, queued_body);
}

static uint32_t draw(uint32_t *state, uint32_t below)
{
    *state = *state * 1664525u + 1013904223u;
    return (*state >> 8) % below;
}

/* The same draws on every rank; lengths from nothing to some megabytes. */
static void random_body(struct rank *r)
{
    struct holmes_comm *c = r->all;
    uint32_t state = 20261129;

    for (int k = 0; k < 60; k++) {
        size_t count = draw(&state, 1u << draw(&state, 20));
        enum holmes_dtype t = draw(&state, 2) ? HOLMES_FLOAT32 : HOLMES_BFLOAT16;
        int root = (int)draw(&state, (uint32_t)c->size), kind = (int)draw(&state, 3);
        size_t elem = holmes_dtype_size(t);
        char *in = check_values(kind == 1 ? root : c->rank, 0, count, t);
        char *out = check_buffer(count * elem * (size_t)c->size);
        struct holmes_op *op;

        if (kind == 1 && c->rank != root)
            memset(in, 0x77, count * elem);
        if (kind == 0)
            EXPECT(c->ops->all_reduce(c, in, out, count, t, &op) == 0);
        else if (kind == 1)
            EXPECT(c->ops->broadcast(c, in, count, t, root, &op) == 0);
        else
            EXPECT(c->ops->all_gather(c, in, out, count, t, &op) == 0);
        holmes_test_wait(c, op, 0);
        for (size_t i = 0; i < count; i++) {
            if (kind == 0)
                EXPECT(check_load(t, out, i) == check_sum(c->size, i), "%d: %zu", k, i);
            else if (kind == 1)
                EXPECT(check_load(t, in, i) == check_value(root, i), "%d: %zu", k, i);
            for (int from = 0; kind == 2 && from < c->size; from++)
                EXPECT(check_load(t, out + (size_t)from * count * elem, i) == check_value(from, i),
                       "%d: %zu of rank %d", k, i, from);
        }
        free(out);
        free(in);
    }
}

Test(comm_many, random_operations_of_random_sizes)
{
    run(3, random_body);
}

/* Half a second in which rank 0 waits for rank 1, which waits at the rendezvous. */
static void idle_body(struct rank *r)
{
    double before = holmes_net_cpu_seconds(r->net), used;
    struct holmes_op *op;
    char byte = 1;
    size_t len;

    if (r->rank == 0) {
        EXPECT(r->all->ops->recv(r->all, &byte, 1, 1, &op) == 0);
    } else {
        EXPECT(holmes_rdv_get(r->rdv, "never", &byte, 1, &len, 500) == -ETIMEDOUT);
        EXPECT(r->all->ops->send(r->all, &byte, 1, 0, &op) == 0);
    }
    holmes_test_wait(r->all, op, 0);
    used = holmes_net_cpu_seconds(r->net) - before;
    EXPECT(used < 0.2, "rank %d: %.3f s of 0.5", r->rank, used);
    EXPECT(r->rank != 0 || used > 0);
}

Test(comm_many, waiting_does_not_burn_the_processor)
{
    run(2, idle_body);
}

static void again_body(struct rank *r)
{
    for (int k = 0; k < 10; k++) {
        char name[16];
        struct holmes_comm *c;
        struct sum s;
        int world[] = {0, 1};

        snprintf(name, sizeof name, "again%d", k);
        c = group(r, name, 2, r->rank);
        sum_start(&s, c, r->rank);
        sum_finish(&s, world, 2);
        c->ops->destroy(c);
    }
}

Test(comm_many, communicators_come_and_go)
{
    run(2, again_body);
}
