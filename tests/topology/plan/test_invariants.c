/* Whatever the cluster and the request: a plan uses each GPU once, in ranks without a gap, keeps
 * data groups inside a fabric unless allowed otherwise, gives each layer once, stays inside the
 * memory, and accounts for every GPU as used or idle. */
#include <errno.h>
#include <math.h>

#include "world_of.h"

static unsigned next(unsigned *state)
{
    *state = *state * 1103515245u + 12345u;
    return *state >> 16 & 0x7fff;
}

static int below(unsigned *state, int n)
{
    return (int)(next(state) % (unsigned)n);
}

static void random_world(struct world_of *w, unsigned *state)
{
    static const char *const names[] = {"A", "B", "C", "D", "E", "F", "G", "H", "I", "J"};
    int nfabrics = 1 + below(state, 10), ntypes = 1 + below(state, 5),
        ngroups = 1 + below(state, 12);
    bool told = below(state, 4) > 0;

    world_init(w);
    for (int i = 0; i < ntypes; i++)
        world_type(w, "type", below(state, 10), told ? 100 * (1 + below(state, 3)) : 0,
                   10 * below(state, 9), 25 * below(state, 5));
    for (int i = 0; i < nfabrics; i++)
        world_fabric(w, names[i], below(state, 4) > 0, 100 * below(state, 3));
    for (int i = 0; i < ngroups; i++) {
        char hosts[32];
        int g;

        snprintf(hosts, sizeof(hosts), "g%d-[1-%d]", i, 1 + below(state, 6));
        g = world_group(w, hosts, below(state, ntypes), below(state, nfabrics));
        w->groups[g].state = below(state, 8) == 0 ? HOLMES_NODE_IDLE : HOLMES_NODE_OK;
        w->groups[g].slots = below(state, 4) == 0 ? 1 + below(state, 8) : 0;
    }
    for (int i = 0; i < below(state, 5); i++)
        world_link(w, names[below(state, nfabrics)], names[below(state, nfabrics)],
                   10 * below(state, 10), below(state, 30));
    if (below(state, 3) == 0)
        world_link(w, NULL, NULL, 100, 5);
}

static void random_request(struct holmes_plan_request *r, unsigned *state)
{
    static const char *const models[] = {"gpt2-124m", "gpt2-1.5b", "gpt-3.6b", "gpt-39.1b"};

    *r = request_of(models[below(state, 4)], 1 + below(state, 400));
    r->model.recompute = below(state, 2);
    r->model.tied = below(state, 2);
    r->model.distributed_optimizer = below(state, 2);
    r->model.vocabulary *= below(state, 4) > 0;
    r->tensor = below(state, 3) == 0 ? 1 + below(state, 9) : 0;
    r->pipeline = below(state, 3) == 0 ? 1 + below(state, 9) : 0;
    r->data = below(state, 4) == 0 ? 1 + below(state, 9) : 0;
    r->micro_batch = below(state, 4) == 0 ? 1 + below(state, 4) : 0;
    r->allow_cross = below(state, 3) == 0;
    r->no_overlap = below(state, 3) == 0;
    r->window_bytes = below(state, 3) == 0 ? HOLMES_NCCL_WINDOW : 0;
}

static void check_nodes(const struct world_of *w, const struct holmes_plan *p)
{
    static int used[WORLD_MOST][8];
    int64_t rank = 0, all = 0, idle = 0;

    memset(used, 0, sizeof(used));
    for (int i = 0; i < p->nnodes; i++) {
        const struct holmes_plan_node *n = &p->nodes[i];
        const struct holmes_node_group *g = &w->groups[n->group];
        int gpus = w->types[g->type].gpus;

        cr_assert(n->group >= 0 && n->group < w->c.ngroups);
        cr_assert(n->host >= 0 && n->host < g->hosts.nhosts);
        cr_assert_eq(g->state, HOLMES_NODE_OK);
        cr_assert_eq(n->first_rank, rank);
        cr_assert(n->gpus > 0 && n->gpus % p->tensor == 0 && n->gpus <= gpus);
        cr_assert(g->slots == 0 || n->gpus <= g->slots);
        cr_assert_eq(used[n->group][n->host]++, 0);
        rank += n->gpus;
    }
    cr_assert_eq(rank, p->world);
    cr_assert_eq(p->world, (int64_t)p->tensor * p->pipeline * p->data);
    for (int i = 0; i < w->c.ngroups; i++)
        all += (int64_t)w->types[w->groups[i].type].gpus * w->groups[i].hosts.nhosts;
    for (int i = 0; i < p->nidle; i++) {
        cr_assert(p->idle[i].reason && p->idle[i].reason[0]);
        idle += (int64_t)p->idle[i].gpus * p->idle[i].nhosts;
    }
    cr_assert_eq(all, p->world + idle);
}

static void check_stages(const struct world_of *w, const struct holmes_plan_request *r,
                         const struct holmes_plan *p)
{
    int64_t each = (int64_t)p->tensor * p->data;
    int layer = 0;

    cr_assert_eq(p->nstages, p->pipeline);
    for (int i = 0; i < p->nstages; i++) {
        const struct holmes_plan_stage *s = &p->stages[i];
        const struct holmes_plan_node *first = &p->nodes[s->first_node];
        const struct holmes_plan_node *last = &p->nodes[s->last_node];
        bool crosses = false;

        cr_assert(first->first_rank <= i * each && i * each < first->first_rank + first->gpus);
        cr_assert(last->first_rank < (i + 1) * each &&
                  (i + 1) * each <= last->first_rank + last->gpus);
        for (int k = s->first_node; k <= s->last_node; k++)
            crosses |= w->group_fabric[p->nodes[k].group] != s->fabric;
        cr_assert_eq(crosses, s->crosses);
        cr_assert(!crosses || r->allow_cross);
        cr_assert_eq(s->first_layer, layer);
        cr_assert_geq(s->layers, 1);
        layer += s->layers;
        cr_assert(s->memory_limit_gib == 0 || s->memory_gib <= s->memory_limit_gib);
        cr_assert(isfinite(s->compute_s) && s->compute_s > 0 && isfinite(s->data_s));
    }
    cr_assert_eq(layer, r->model.layers);
}

static void check_request(const struct holmes_plan_request *r, const struct holmes_plan *p)
{
    cr_assert(r->tensor == 0 || p->tensor == r->tensor);
    cr_assert(r->pipeline == 0 || p->pipeline == r->pipeline);
    cr_assert(r->data == 0 || p->data == r->data);
    cr_assert(r->micro_batch == 0 || p->micro_batch == r->micro_batch);
    cr_assert_eq((int64_t)p->microbatches * p->micro_batch * p->data, r->global_batch);
    cr_assert(isfinite(p->cost.step_s) && p->cost.step_s > 0);
    cr_assert(isfinite(p->naive.step_s) && p->naive.step_s > 0);
    cr_assert_float_eq(p->cost.compute_s + p->cost.bubble_s + p->cost.pipeline_comm_s +
                           p->cost.data_comm_s + p->cost.embedding_s,
                       p->cost.step_s, 1e-9 * p->cost.step_s);
    cr_assert_geq(p->window_bytes, 0);
    for (int i = 0; i < p->nedges; i++)
        cr_assert(isfinite(p->edges[i].message_s) && p->edges[i].message_s >= 0);
}

Test(invariants, hold_for_whatever_cluster_and_request)
{
    unsigned state = 5;
    int planned = 0, refused = 0, crossed = 0;

    for (int round = 0; round < 300; round++) {
        struct holmes_plan_request r;
        struct holmes_plan *p = NULL;
        struct world_of w;
        char why[512] = "";
        int rc;

        random_world(&w, &state);
        random_request(&r, &state);
        rc = holmes_plan_build(&w.c, &w.f, &r, &p, why, sizeof(why));
        if (rc == 0) {
            check_nodes(&w, p);
            check_stages(&w, &r, p);
            check_request(&r, p);
            for (int i = 0; i < p->nstages; i++)
                crossed += p->stages[i].crosses;
            planned++;
        } else {
            cr_assert_eq(rc, -EINVAL);
            cr_assert_gt(strlen(why), 20, "%s", why);
            refused++;
        }
        holmes_plan_destroy(p);
        world_fini(&w);
    }
    cr_assert(planned > 60 && refused > 60 && crossed > 5, "%d planned, %d refused, %d crossed",
              planned, refused, crossed);
}
