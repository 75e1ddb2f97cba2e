/* Clusters built in memory, for tests of the plan. */
#ifndef WORLD_OF_H
#define WORLD_OF_H

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "plan.h"

#define WORLD_MOST 64

struct world_of {
    struct holmes_cluster c;
    struct holmes_fabrics f;
    struct holmes_node_type types[WORLD_MOST];
    struct holmes_cluster_nic nics[WORLD_MOST];
    struct holmes_node_group groups[WORLD_MOST];
    struct holmes_cluster_link links[WORLD_MOST];
    struct holmes_fabric fabrics[WORLD_MOST];
    int group_fabric[WORLD_MOST];
};

static inline void world_init(struct world_of *w)
{
    memset(w, 0, sizeof(*w));
    w->c.types = w->types;
    w->c.groups = w->groups;
    w->c.links = w->links;
    w->f.fabrics = w->fabrics;
    w->f.group_fabric = w->group_fabric;
}

/* An A100-like type; its Ethernet NIC has `ethernet` Gb/s. */
static inline int world_type(struct world_of *w, const char *name, int gpus, double tflops,
                             double memory_gib, double ethernet)
{
    int i = w->c.ntypes++;

    w->nics[i] = (struct holmes_cluster_nic){.name = (char *)"eth0", .gbps = ethernet, .numa = -1};
    w->types[i] = (struct holmes_node_type){.name = (char *)name,
                                            .gpus = gpus,
                                            .tflops = tflops,
                                            .memory_gib = memory_gib,
                                            .intra_gbps = 2400,
                                            .nnics = 1,
                                            .nics = &w->nics[i]};
    return i;
}

static inline int world_fabric(struct world_of *w, const char *name, bool rdma, double gbps)
{
    int i = w->f.n++;

    w->fabrics[i] = (struct holmes_fabric){.name = (char *)name, .rdma = rdma, .gbps = gbps};
    return i;
}

static inline int world_group(struct world_of *w, const char *hosts, int type, int fabric)
{
    int i = w->c.ngroups++;
    char why[256];

    w->groups[i].type = type;
    w->group_fabric[i] = fabric;
    cr_assert_eq(holmes_hostlist_parse(hosts, &w->groups[i].hosts, why, sizeof(why)), 0, "%s", why);
    return i;
}

static inline void world_link(struct world_of *w, const char *from, const char *to, double gbps,
                              double rtt_ms)
{
    w->links[w->c.nlinks++] = (struct holmes_cluster_link){
        .from = (char *)from, .to = (char *)to, .gbps = gbps, .rtt_ms = rtt_ms};
}

static inline void world_fini(struct world_of *w)
{
    for (int i = 0; i < w->c.ngroups; i++)
        holmes_hostlist_fini(&w->groups[i].hosts);
}

static inline struct holmes_plan_request request_of(const char *model, int64_t batch)
{
    struct holmes_plan_request r = {.global_batch = batch};
    char why[256];

    cr_assert_eq(holmes_gpt_preset(model, &r.model, why, sizeof(why)), 0, "%s", why);
    return r;
}

/* The plan, or a failure that says why there is none. */
static inline struct holmes_plan *plan_of(struct world_of *w, const struct holmes_plan_request *r)
{
    struct holmes_plan *p = NULL;
    char why[512] = "";

    cr_assert_eq(holmes_plan_build(&w->c, &w->f, r, &p, why, sizeof(why)), 0, "%s", why);
    return p;
}

/* "n1 n3 n2 n4": the hosts in rank order. */
static inline const char *order_of(const struct world_of *w, const struct holmes_plan *p)
{
    static char text[4096];
    char name[HOLMES_HOST_NAME_MAX];
    size_t used = 0;

    text[0] = '\0';
    for (int i = 0; i < p->nnodes && used < sizeof(text); i++)
        used += (size_t)snprintf(text + used, sizeof(text) - used, "%s%s", i ? " " : "",
                                 holmes_hostlist_name(&w->groups[p->nodes[i].group].hosts,
                                                      p->nodes[i].host, name, sizeof(name)));
    return text;
}

/* "7,8,8,7" */
static inline const char *layers_of(const struct holmes_plan *p)
{
    static char text[4096];
    size_t used = 0;

    text[0] = '\0';
    for (int i = 0; i < p->nstages && used < sizeof(text); i++)
        used += (size_t)snprintf(text + used, sizeof(text) - used, "%s%d", i ? "," : "",
                                 p->stages[i].layers);
    return text;
}

#endif
