/* A cluster as a value: its end, and look-ups. */
#include "cluster.h"

#include <stdlib.h>
#include <string.h>

static void nic_fini(struct holmes_cluster_nic *n)
{
    free(n->name);
    free(n->prefix);
    free(n->gids);
    free(n->fabric);
}

void holmes_cluster_destroy(struct holmes_cluster *c)
{
    if (!c)
        return;
    for (int i = 0; i < c->ntypes; i++) {
        for (int k = 0; k < c->types[i].nnics; k++)
            nic_fini(&c->types[i].nics[k]);
        free(c->types[i].nics);
        free(c->types[i].name);
        free(c->types[i].gpu);
    }
    for (int i = 0; i < c->ngroups; i++) {
        holmes_hostlist_fini(&c->groups[i].hosts);
        free(c->groups[i].fabric);
        free(c->groups[i].why);
    }
    for (int i = 0; i < c->nlinks; i++) {
        free(c->links[i].from);
        free(c->links[i].to);
    }
    for (int i = 0; i < c->nprobes; i++) {
        free(c->probes[i].from);
        free(c->probes[i].to);
    }
    free(c->name);
    free(c->types);
    free(c->groups);
    free(c->links);
    free(c->probes);
    free(c);
}
