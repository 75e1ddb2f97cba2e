/* The plan of small clusters against every placement that the rules admit: all tensor, pipeline and
 * microbatch sizes, all numbers of stages on each fabric, all orders of the nodes that keep a
 * fabric's nodes together and leave its slowest to spare. */
#include <errno.h>
#include <math.h>

#include "topology/plan/order.h"
#include "topology/plan/search.h"
#include "world_of.h"

#define NODES_MOST 5

static unsigned next(unsigned *state)
{
    *state = *state * 1103515245u + 12345u;
    return *state >> 16 & 0x7fff;
}

/* Two to five nodes of two GPUs on one to three fabrics; speeds and links as they come. */
static void random_world(struct world_of *w, unsigned *state, double memory_gib)
{
    static const char *fabrics[] = {"A", "B", "C"};
    int nfabrics = 1 + (int)(next(state) % 3), nodes = 2 + (int)(next(state) % (NODES_MOST - 1));
    int kinds = 1 + (int)(next(state) % 3);

    world_init(w);
    for (int i = 0; i < nfabrics; i++) {
        double ethernet = 5 * (double)(1 + next(state) % 5);

        world_fabric(w, fabrics[i], true, 50 * (double)(1 + next(state) % 4));
        for (int k = 0; k < kinds; k++)
            world_type(w, "kind", 2, 100 + 100 * (double)(next(state) % 3), memory_gib, ethernet);
    }
    for (int i = 0; i < nodes; i++) {
        char name[8];
        int fabric;

        snprintf(name, sizeof(name), "n%d", i);
        fabric = (int)(next(state) % (unsigned)nfabrics);
        world_group(w, name, fabric * kinds + (int)(next(state) % (unsigned)kinds), fabric);
    }
    for (int a = 0; a < nfabrics; a++)
        for (int b = a + 1; b < nfabrics; b++)
            world_link(w, fabrics[a], fabrics[b], (double)(next(state) % 3) * 4,
                       (double)(1 + next(state) % 3));
}

struct oracle {
    const struct holmes_world *w;
    const struct holmes_plan_request *req;
    double best;
    int weighed;
};

static void weigh(struct oracle *o, const struct holmes_place_node *nodes, int t, int p, int d)
{
    struct holmes_place_stage stages[2 * NODES_MOST];
    struct holmes_place_job j;
    int64_t each = o->req->global_batch / d;

    cr_assert_eq(holmes_place_job_init(&j, o->w, o->req, p), 0);
    j.job.tensor = t;
    j.job.pipeline = p;
    j.job.data = d;
    holmes_place_walk(o->w, nodes, d, p, stages);
    cr_assert_eq(holmes_place_cost(&j, o->w, stages, nodes), 0);
    for (int micro = 1; micro <= each; micro++) {
        struct holmes_plan_cost cost;

        if (each % micro != 0)
            continue;
        j.job.micro_batch = micro;
        j.job.microbatches = (int)(each / micro);
        if (holmes_search_layers(&j.job, stages, &cost, NULL) != 0)
            continue;
        o->best = fmin(o->best, cost.step_s);
        o->weighed++;
    }
    holmes_place_job_fini(&j);
}

/* Of a fabric that has slots to spare the fastest are used. */
static bool spares_are_slowest(const struct holmes_world *w, const int *order, int at, int end,
                               const struct holmes_place_node *used, int n, int slots)
{
    double least = INFINITY, spare = 0;

    for (int i = 0; i < n; i++)
        least = fmin(least, holmes_world_type(w, used[i].group)->tflops);
    for (int i = at; i < end; i++)
        if (i - at >= n || used[i - at].slots < slots)
            spare = fmax(spare, holmes_world_type(w, order[i])->tflops);
    return spare <= least || n == 0;
}

/* Stages to the blocks of one order, in all ways. */
static void blocks(struct oracle *o, const int *order, int n, int at, int left, int t, int p, int d,
                   struct holmes_place_node *nodes, int nnodes)
{
    const int *fabric = o->w->fabrics->group_fabric;
    int end = at, slots = 0;

    if (left == 0) {
        weigh(o, nodes, t, p, d);
        return;
    }
    if (at == n)
        return;
    for (; end < n && fabric[order[end]] == fabric[order[at]]; end++)
        slots += 2 / t;
    for (int stages = 0; stages <= left && stages * d <= slots; stages++) {
        int need = stages * d, more = nnodes;

        for (int i = at; i < end && need > 0; i++) {
            int take = need < 2 / t ? need : 2 / t;

            nodes[more++] = (struct holmes_place_node){order[i], 0, take};
            need -= take;
        }
        if (!spares_are_slowest(o->w, order, at, end, nodes + nnodes, more - nnodes, 2 / t))
            continue;
        blocks(o, order, n, end, left - stages, t, p, d, nodes, more);
    }
}

static bool together(const int *order, int n, const int *fabric)
{
    for (int i = 0; i < n; i++)
        for (int k = i + 2; k < n; k++)
            if (fabric[order[i]] == fabric[order[k]] && fabric[order[i]] != fabric[order[k - 1]])
                return false;
    return true;
}

static int capacity(const struct world_of *w, int t, int d)
{
    int slots[3] = {0}, n = 0;

    for (int i = 0; i < w->c.ngroups; i++)
        slots[w->group_fabric[i]] += 2 / t;
    for (int i = 0; i < w->f.n; i++)
        n += slots[i] / d;
    return n;
}

static int data_of(const struct world_of *w, const struct holmes_plan_request *r, int t, int p)
{
    for (int d = 2 * NODES_MOST; d > 0; d--)
        if (r->global_batch % d == 0 && capacity(w, t, d) >= p)
            return d;
    return 0;
}

static void oracle(struct oracle *o, struct world_of *w, const struct holmes_plan_request *r,
                   int used_from)
{
    int n = w->c.ngroups;

    for (int t = 1; t <= 2; t++)
        for (int p = 1; p <= r->model.layers && p <= 2 * n / t; p++) {
            int order[NODES_MOST] = {0, 1, 2, 3, 4}, d = data_of(w, r, t, p);
            struct holmes_place_node nodes[2 * NODES_MOST];

            if (d == 0 || t * p * d < used_from)
                continue;
            do
                if (together(order, n, w->group_fabric))
                    blocks(o, order, n, 0, p, t, p, d, nodes, 0);
            while (holmes_order_next(order, n));
        }
}

static int most_used(const struct world_of *w, const struct holmes_plan_request *r)
{
    int most = 0;

    for (int t = 1; t <= 2; t++)
        for (int p = 1; p <= r->model.layers; p++)
            if (t * p * data_of(w, r, t, p) > most)
                most = t * p * data_of(w, r, t, p);
    return most;
}

/* In tenths of the most that can be used: the plan leaves more idle only where the model fits in no
 * plan that does not. */
static void oracle_of_most(struct oracle *o, struct world_of *w,
                           const struct holmes_plan_request *r)
{
    int most = most_used(w, r);

    o->best = INFINITY;
    for (int tenths = HOLMES_SEARCH_USED_TENTHS; tenths >= 0 && isinf(o->best); tenths -= 2)
        oracle(o, w, r, (most * tenths + 9) / 10);
}

static void compare(double memory_gib, int rounds, int *planned, int *refused)
{
    unsigned state = 11;

    for (int round = 0; round < rounds; round++) {
        struct holmes_plan_request r = request_of("gpt2-124m", 24);
        struct holmes_text_list notes = {0};
        struct holmes_plan *p = NULL;
        struct holmes_world world;
        struct world_of w;
        struct oracle o;
        char why[512];
        int rc;

        random_world(&w, &state, memory_gib);
        r.model.layers = 3 + (int)(next(&state) % 6);
        r.model.tied = next(&state) % 2;
        rc = holmes_plan_build(&w.c, &w.f, &r, &p, why, sizeof(why));
        cr_assert_eq(holmes_world_init(&world, &w.c, &w.f, &notes, why, sizeof(why)), 0);
        o = (struct oracle){&world, &r, 0, 0};
        oracle_of_most(&o, &w, &r);
        cr_assert_eq(rc, isinf(o.best) ? -EINVAL : 0, "round %d: %d, best %g", round, rc, o.best);
        if (rc == 0)
            cr_assert_leq(p->cost.step_s, o.best * (1 + 1e-6),
                          "round %d: plan %g (t%d p%d d%d), best %g of %d", round, p->cost.step_s,
                          p->tensor, p->pipeline, p->data, o.best, o.weighed);
        *(rc == 0 ? planned : refused) += 1;
        holmes_world_fini(&world);
        holmes_text_fini(&notes);
        holmes_plan_destroy(p);
        world_fini(&w);
    }
}

Test(oracle, no_placement_that_the_rules_admit_is_faster)
{
    int planned = 0, refused = 0;

    compare(80, 600, &planned, &refused);
    cr_assert_eq(planned, 600);
}

Test(oracle, no_placement_that_memory_admits_is_faster)
{
    int planned = 0, refused = 0;

    for (double memory_gib = 0.4; memory_gib < 2.3; memory_gib += 0.3)
        compare(memory_gib, 60, &planned, &refused);
    cr_assert(planned > 100 && refused > 20, "%d planned, %d refused", planned, refused);
}

/* A fabric for each node, links as they come. */
static void random_fabrics(struct world_of *w, unsigned *state, int n)
{
    static const char *const names[] = {"A", "B", "C", "D", "E", "F"};

    world_init(w);
    for (int i = 0; i < n; i++) {
        char name[8];

        snprintf(name, sizeof(name), "n%d", i);
        world_fabric(w, names[i], true, 100);
        world_group(w, name,
                    world_type(w, "kind", 2, 100 + 100 * (double)(next(state) % 3), 80,
                               5 * (double)(1 + next(state) % 4)),
                    i);
        for (int k = 0; k < i; k++)
            world_link(w, names[k], names[i], 1 + 4 * (double)(next(state) % 5),
                       (double)(1 + next(state) % 20));
    }
}

Test(oracle, no_order_of_many_fabrics_is_faster)
{
    unsigned state = 9;

    for (int round = 0; round < 60; round++) {
        int n = 5 + round % 2, order[6] = {0, 1, 2, 3, 4, 5};
        struct holmes_plan_request r = request_of("gpt2-124m", 24);
        struct holmes_text_list notes = {0};
        struct holmes_world world;
        struct holmes_plan *p;
        struct world_of w;
        struct oracle o;
        char why[512];

        random_fabrics(&w, &state, n);
        r.tensor = 2;
        r.pipeline = n;
        r.model.tied = next(&state) % 2;
        p = plan_of(&w, &r);
        cr_assert_eq(holmes_world_init(&world, &w.c, &w.f, &notes, why, sizeof(why)), 0);
        o = (struct oracle){&world, &r, INFINITY, 0};
        do {
            struct holmes_place_node nodes[6];

            for (int i = 0; i < n; i++)
                nodes[i] = (struct holmes_place_node){order[i], 0, 1};
            weigh(&o, nodes, 2, n, 1);
        } while (holmes_order_next(order, n));
        cr_assert_float_eq(p->cost.step_s / o.best, 1, 1e-6, "round %d: plan %g, best %g", round,
                           p->cost.step_s, o.best);
        holmes_world_fini(&world);
        holmes_text_fini(&notes);
        holmes_plan_destroy(p);
        world_fini(&w);
    }
}
