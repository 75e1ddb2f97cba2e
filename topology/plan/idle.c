/* See idle.h. */
#include "idle.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

struct idle {
    const struct holmes_plan *plan;
    const struct holmes_world *w;
    bool *fabric_used;
    struct holmes_plan_idle **out;
    int *n;
    int capacity;
};

static char *reason(const struct idle *s, int group, int idle)
{
    const struct holmes_plan *p = s->plan;
    const struct holmes_node_group *g = &s->w->cluster->groups[group];
    int all = s->w->cluster->types[g->type].gpus, usable = holmes_world_gpus(s->w, group);
    int fabric = s->w->fabrics->group_fabric[group], rc;
    char *text = NULL;

    if (g->state != HOLMES_NODE_OK)
        rc = asprintf(&text, "%s%s%s", g->state == HOLMES_NODE_IDLE ? "idle" : "defective",
                      g->why ? ": " : "", g->why ? g->why : "");
    else if (usable == 0)
        rc = asprintf(&text, "has no GPU");
    else if (usable < p->tensor)
        rc = asprintf(&text, "%d GPU%s: a tensor group needs %d on one node", usable,
                      usable == 1 ? "" : "s", p->tensor);
    else if (idle == all - usable)
        rc = asprintf(&text, "the file gives %d of its %d GPUs", usable, all);
    else if (idle == all - usable / p->tensor * p->tensor)
        rc = asprintf(&text, "%d of its %d GPUs are no tensor group of %d", idle, all, p->tensor);
    else if (!s->fabric_used[fabric])
        rc = asprintf(&text,
                      "fabric %s has no stage: %d stage%s of %d tensor group%s fill the others",
                      s->w->fabrics->fabrics[fabric].name, p->pipeline, p->pipeline == 1 ? "" : "s",
                      p->data, p->data == 1 ? "" : "s");
    else
        rc = asprintf(&text, "left over: a stage takes %d tensor group%s of %d, all in one fabric",
                      p->data, p->data == 1 ? "" : "s", p->tensor);
    return rc < 0 ? NULL : text;
}

static int run_add(struct idle *s, int group, int first, int n, int gpus)
{
    char *text;

    if (*s->n == s->capacity) {
        int grown = s->capacity > 0 ? 2 * s->capacity : 16;
        struct holmes_plan_idle *bigger = realloc(*s->out, (size_t)grown * sizeof(**s->out));

        if (!bigger)
            return -ENOMEM;
        *s->out = bigger;
        s->capacity = grown;
    }
    text = reason(s, group, gpus);
    if (!text)
        return -ENOMEM;
    (*s->out)[(*s->n)++] = (struct holmes_plan_idle){group, first, n, gpus, text};
    return 0;
}

static int group_runs(struct idle *s, int group, const int *used)
{
    const struct holmes_node_group *g = &s->w->cluster->groups[group];
    int all = s->w->cluster->types[g->type].gpus, n = g->hosts.nhosts, rc = 0;

    for (int from = 0, to; rc == 0 && from < n; from = to) {
        for (to = from + 1; to < n && used[to] == used[from]; to++)
            ;
        if (all - used[from] > 0 || all == 0)
            rc = run_add(s, group, from, to - from, all - used[from]);
    }
    return rc;
}

int holmes_idle_find(const struct holmes_plan *p, const struct holmes_world *w,
                     struct holmes_plan_idle **out, int *n)
{
    const struct holmes_cluster *c = w->cluster;
    struct idle s = {.plan = p, .w = w, .out = out, .n = n};
    int64_t *base = calloc((size_t)c->ngroups + 1, sizeof(*base));
    int *used = NULL, rc = -ENOMEM;

    *out = NULL;
    *n = 0;
    s.fabric_used = calloc((size_t)w->fabrics->n + 1, sizeof(*s.fabric_used));
    for (int i = 0; base && i < c->ngroups; i++)
        base[i + 1] = base[i] + c->groups[i].hosts.nhosts;
    if (base)
        used = calloc((size_t)base[c->ngroups] + 1, sizeof(*used));
    if (used && s.fabric_used) {
        rc = 0;
        for (int i = 0; i < p->nnodes; i++) {
            used[base[p->nodes[i].group] + p->nodes[i].host] = p->nodes[i].gpus;
            s.fabric_used[w->fabrics->group_fabric[p->nodes[i].group]] = true;
        }
        for (int i = 0; rc == 0 && i < c->ngroups; i++)
            rc = group_runs(&s, i, used + base[i]);
    }
    free(base);
    free(used);
    free(s.fabric_used);
    return rc;
}
