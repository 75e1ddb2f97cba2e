/* See plan_hosts.h: a node type for each number of GPUs, a group for each run of hosts that have
 * it. */
#include "plan_hosts.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "hostfile.h"

static int gpus_of(const struct holmes_hostfile *h, int host, int gpus_per_node)
{
    return h->slots[host] > 0 ? h->slots[host] : gpus_per_node;
}

/* The type with so many GPUs, made where there is none. -ENOMEM. */
static int type_for(struct holmes_cluster *c, int gpus)
{
    struct holmes_node_type *t;

    for (int i = 0; i < c->ntypes; i++)
        if (c->types[i].gpus == gpus)
            return i;
    t = realloc(c->types, (size_t)(c->ntypes + 1) * sizeof(*t));
    if (!t)
        return -ENOMEM;
    c->types = t;
    t += c->ntypes;
    *t = (struct holmes_node_type){.gpus = gpus};
    if (asprintf(&t->name, "gpus-%d", gpus) < 0) {
        t->name = NULL;
        return -ENOMEM;
    }
    return c->ntypes++;
}

static int groups_fill(struct holmes_cluster *c, const struct holmes_hostfile *h, int gpus_per_node)
{
    int n = h->hosts.nhosts;

    c->groups = calloc((size_t)n, sizeof(*c->groups));
    if (!c->groups)
        return -ENOMEM;
    for (int from = 0, to; from < n; from = to) {
        int gpus = gpus_of(h, from, gpus_per_node), type = type_for(c, gpus);
        struct holmes_node_group *g = &c->groups[c->ngroups];

        if (type < 0)
            return type;
        for (to = from + 1; to < n && gpus_of(h, to, gpus_per_node) == gpus; to++)
            ;
        g->type = type;
        if (holmes_hostlist_slice(&h->hosts, from, to - from, &g->hosts) != 0)
            return -ENOMEM;
        c->ngroups++;
    }
    return 0;
}

int topo_plan_hosts(const char *path, int gpus_per_node, struct holmes_cluster **out, char *why,
                    size_t why_len)
{
    struct holmes_cluster *c;
    struct holmes_hostfile h;
    int rc = holmes_hostfile_read(path, &h, why, why_len);

    if (rc != 0)
        return rc;
    for (int i = 0; i < h.hosts.nhosts; i++)
        if (gpus_of(&h, i, gpus_per_node) == 0) {
            char name[HOLMES_HOST_NAME_MAX];

            snprintf(why, why_len, "%s: host %s has no slots: give --gpus-per-node", path,
                     holmes_hostlist_name(&h.hosts, i, name, sizeof(name)));
            holmes_hostfile_fini(&h);
            return -EINVAL;
        }
    c = calloc(1, sizeof(*c));
    rc = c ? groups_fill(c, &h, gpus_per_node) : -ENOMEM;
    holmes_hostfile_fini(&h);
    if (rc != 0) {
        holmes_cluster_destroy(c);
        snprintf(why, why_len, "no memory");
        return rc;
    }
    *out = c;
    return 0;
}
