/* See place.h. */
#include "place.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static int fabric_of(const struct holmes_world *w, const struct holmes_place_node *n)
{
    return w->fabrics->group_fabric[n->group];
}

static void stage_start(struct holmes_place_stage *s, int node, int fabric)
{
    *s = (struct holmes_place_stage){
        .fabric = fabric,
        .first_node = node,
        .tflops = INFINITY,
        .memory_gib = INFINITY,
        .intra_gbps = INFINITY,
        .ethernet_gbps = INFINITY,
        .fabric_gbps = INFINITY,
    };
}

static void stage_add(struct holmes_place_stage *s, const struct holmes_world *w,
                      const struct holmes_place_node *n, int node, int slots)
{
    const struct holmes_world_type *t = holmes_world_type(w, n->group);
    int fabric = fabric_of(w, n);

    s->last_node = node;
    s->crosses |= fabric != s->fabric;
    if (slots > s->most_slots)
        s->most_slots = slots;
    s->tflops = fmin(s->tflops, t->tflops);
    if (t->memory_gib > 0)
        s->memory_gib = fmin(s->memory_gib, t->memory_gib);
    s->intra_gbps = fmin(s->intra_gbps, t->intra_gbps);
    s->ethernet_gbps = fmin(s->ethernet_gbps, t->ethernet_gbps);
    s->fabric_gbps = fmin(s->fabric_gbps, w->fabric_gbps[fabric]);
}

void holmes_place_walk(const struct holmes_world *w, const struct holmes_place_node *nodes,
                       int data, int n, struct holmes_place_stage *out)
{
    int node = 0, used = 0; /* slots of the node */

    for (int i = 0; i < n; i++) {
        stage_start(&out[i], node, fabric_of(w, &nodes[node]));
        for (int need = data; need > 0;) {
            int take = nodes[node].slots - used;

            if (take > need)
                take = need;
            stage_add(&out[i], w, &nodes[node], node, take);
            need -= take;
            used += take;
            if (used == nodes[node].slots) {
                node++;
                used = 0;
            }
        }
        if (isinf(out[i].memory_gib))
            out[i].memory_gib = 0;
    }
}

/* --- the job --------------------------------------------------------------------------------- */

int holmes_place_job_init(struct holmes_place_job *j, const struct holmes_world *w,
                          const struct holmes_plan_request *req, int most_stages)
{
    memset(j, 0, sizeof(*j));
    j->job.model = &req->model;
    j->job.efficiency = req->efficiency > 0 ? req->efficiency : HOLMES_COST_COMPUTE;
    j->job.overlap = !req->no_overlap;
    j->job.window_bytes = req->window_bytes;
    j->job.npaths = w->npaths;
    j->job.paths = w->paths;
    j->job.path_flows = calloc((size_t)w->npaths, sizeof(double));
    j->job.stages = calloc((size_t)most_stages, sizeof(*j->job.stages));
    j->job.edges = calloc((size_t)most_stages, sizeof(*j->job.edges));
    if (!j->job.path_flows || !j->job.stages || !j->job.edges) {
        holmes_place_job_fini(j);
        return -ENOMEM;
    }
    return 0;
}

void holmes_place_job_fini(struct holmes_place_job *j)
{
    free(j->job.path_flows);
    free(j->job.stages);
    free(j->job.edges);
    free(j->job.edge_crosses);
    free(j->job.ring_crosses);
    memset(j, 0, sizeof(*j));
}

static int cross_add(struct holmes_cost_cross **list, int *n, int *capacity, int owner, int path,
                     double flows, double gpu_gbps)
{
    /* Flows of one owner over one path are one entry, as slow as the slowest. */
    for (int i = *n - 1; i >= 0 && (*list)[i].owner == owner; i--)
        if ((*list)[i].path == path) {
            (*list)[i].flows += flows;
            (*list)[i].gpu_gbps = fmin((*list)[i].gpu_gbps, gpu_gbps);
            return 0;
        }
    if (*n == *capacity) {
        int grown = *capacity > 0 ? 2 * *capacity : 16;
        struct holmes_cost_cross *bigger = realloc(*list, (size_t)grown * sizeof(**list));

        if (!bigger)
            return -ENOMEM;
        *list = bigger;
        *capacity = grown;
    }
    (*list)[(*n)++] = (struct holmes_cost_cross){owner, path, flows, gpu_gbps};
    return 0;
}

/* What one of `flows` flows of a node gets on the path between two fabrics. */
static double node_share(const struct holmes_world *w, int path, double ethernet_gbps, double flows)
{
    double gbps = w->path_node_gbps[path] > 0 ? w->path_node_gbps[path] : ethernet_gbps;

    return gbps / flows;
}

static bool one_node(const struct holmes_place_stage *s)
{
    return s->first_node == s->last_node;
}

/* Stages next to each other of which one ends on the node that the other begins on. */
static bool share_node(const struct holmes_place_stage *a, const struct holmes_place_stage *b)
{
    return a->fabric == b->fabric &&
           (a->last_node == b->first_node || b->last_node == a->first_node);
}

/* What a ring gets: of the NICs of a node that carries `tensor` rings of this stage, and as many
 * of a neighbour with which it shares a node. */
static double ring_gbps(const struct holmes_cost_job *job, const struct holmes_place_stage *stages,
                        int i)
{
    const struct holmes_place_stage *s = &stages[i];
    int sharing = 1;

    if (job->data == 1)
        return 0;
    if (one_node(s))
        return s->intra_gbps;
    if ((i > 0 && !one_node(&stages[i - 1]) && share_node(&stages[i - 1], s)) ||
        (i < job->pipeline - 1 && !one_node(&stages[i + 1]) && share_node(s, &stages[i + 1])))
        sharing = 2;
    return fmin(s->intra_gbps, s->fabric_gbps / (sharing * job->tensor));
}

static int ring_crosses(struct holmes_place_job *j, const struct holmes_world *w,
                        const struct holmes_place_stage *s, int owner,
                        const struct holmes_place_node *nodes)
{
    int n = w->fabrics->n, from = fabric_of(w, &nodes[s->last_node]);

    for (int i = s->first_node; i <= s->last_node; i++) {
        int to = fabric_of(w, &nodes[i]), path = w->path[from * n + to];
        /* Of the hops of a ring as many lead one way as back. */
        int rc = from == to ? 0
                            : cross_add(&j->job.ring_crosses, &j->job.nring_crosses,
                                        &j->ring_capacity, owner, path, j->job.tensor / 2.0,
                                        node_share(w, path, s->ethernet_gbps, j->job.tensor));

        if (rc != 0)
            return rc;
        from = to;
    }
    return 0;
}

/* Where neither stage crosses, all their pairs are of one kind. */
static int edge_plain(struct holmes_place_job *j, const struct holmes_world *w,
                      const struct holmes_place_stage *a, const struct holmes_place_stage *b,
                      int owner)
{
    struct holmes_cost_job *job = &j->job;
    int most = a->most_slots > b->most_slots ? a->most_slots : b->most_slots;
    double on_node = (double)most * job->tensor;
    int path;

    job->edges[owner].local_gbps = 0;
    if (a->fabric == b->fabric) {
        job->edges[owner].local_gbps = one_node(a) && one_node(b) && a->first_node == b->first_node
                                           ? a->intra_gbps
                                           : fmin(fmin(a->intra_gbps, b->intra_gbps),
                                                  fmin(a->fabric_gbps, b->fabric_gbps) / on_node);
        return 0;
    }
    path = w->path[a->fabric * w->fabrics->n + b->fabric];
    return cross_add(
        &job->edge_crosses, &job->nedge_crosses, &j->edge_capacity, owner, path,
        (double)job->data * job->tensor,
        fmin(node_share(w, path, a->ethernet_gbps, (double)a->most_slots * job->tensor),
             node_share(w, path, b->ethernet_gbps, (double)b->most_slots * job->tensor)));
}

/* Walks the slots of a stage one by one. */
struct slots {
    const struct holmes_place_node *nodes;
    int node, left;
};

static int first_slots(const struct holmes_place_stage *stages,
                       const struct holmes_place_node *nodes, int data, int stage)
{
    int64_t before = (int64_t)data * stage;

    for (int i = 0; i < stages[stage].first_node; i++)
        before -= nodes[i].slots;
    return nodes[stages[stage].first_node].slots - (int)before;
}

static void slots_next(struct slots *s)
{
    if (--s->left == 0)
        s->left = s->nodes[++s->node].slots;
}

/* Where a stage crosses, replica by replica. */
static int edge_mixed(struct holmes_place_job *j, const struct holmes_world *w,
                      const struct holmes_place_stage *stages,
                      const struct holmes_place_node *nodes, int from, int to, int owner)
{
    struct holmes_cost_job *job = &j->job;
    const struct holmes_place_stage *a = &stages[from], *b = &stages[to];
    int most = a->most_slots > b->most_slots ? a->most_slots : b->most_slots;
    double on_node = (double)most * job->tensor;
    struct slots sa = {nodes, a->first_node, first_slots(stages, nodes, job->data, from)};
    struct slots sb = {nodes, b->first_node, first_slots(stages, nodes, job->data, to)};

    job->edges[owner].local_gbps = 0;
    for (int i = 0; i < job->data; i++) {
        int fa = fabric_of(w, &nodes[sa.node]), fb = fabric_of(w, &nodes[sb.node]);

        if (fa == fb) {
            job->edges[owner].local_gbps = fmin(fmin(a->intra_gbps, b->intra_gbps),
                                                fmin(a->fabric_gbps, b->fabric_gbps) / on_node);
        } else {
            int path = w->path[fa * w->fabrics->n + fb];
            double eth = fmin(a->ethernet_gbps, b->ethernet_gbps);
            int rc = cross_add(&job->edge_crosses, &job->nedge_crosses, &j->edge_capacity, owner,
                               path, job->tensor, node_share(w, path, eth, on_node));

            if (rc != 0)
                return rc;
        }
        if (i < job->data - 1) {
            slots_next(&sa);
            slots_next(&sb);
        }
    }
    return 0;
}

int holmes_place_cost(struct holmes_place_job *j, const struct holmes_world *w,
                      const struct holmes_place_stage *stages,
                      const struct holmes_place_node *nodes)
{
    struct holmes_cost_job *job = &j->job;
    int p = job->pipeline, rc = 0;

    job->nedge_crosses = job->nring_crosses = 0;
    for (int i = 0; i < p; i++) {
        job->stages[i].tflops = stages[i].tflops;
        job->stages[i].intra_gbps = stages[i].intra_gbps;
        job->stages[i].ring_gbps = ring_gbps(job, stages, i);
        if (stages[i].crosses && job->data > 1)
            rc = ring_crosses(j, w, &stages[i], i, nodes);
        if (rc != 0)
            return rc;
    }
    job->edges[p - 1].local_gbps = 0;
    for (int i = 0; i < p && p > 1; i++) {
        int to = (i + 1) % p;

        rc = stages[i].crosses || stages[to].crosses ? edge_mixed(j, w, stages, nodes, i, to, i)
                                                     : edge_plain(j, w, &stages[i], &stages[to], i);
        if (rc != 0)
            return rc;
    }
    return 0;
}
