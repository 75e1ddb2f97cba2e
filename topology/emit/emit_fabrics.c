/* The ids of RDMA fabrics as the file that HOLMES_FABRIC=@FILE names: one for all hosts, where the
 * environment would differ from cluster to cluster. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "emit/emit.h"
#include "fabric_ids.h"

static int check_word(const char *what, const char *word, char *why, size_t why_len)
{
    char room[HOLMES_RDMA_NAME_MAX];

    if (fabric_word_copy(word, strlen(word), room) == 0)
        return 0;
    snprintf(why, why_len,
             "%s \"%.80s\": HOLMES_FABRIC takes 1 to %d letters, digits or -_. for it", what, word,
             HOLMES_RDMA_NAME_MAX - 1);
    return -EINVAL;
}

/* "mlx5_0:2" has a port. */
static int write_nic(const char *hosts, const struct holmes_cluster_nic *nic, FILE *out, char *why,
                     size_t why_len)
{
    char device[HOLMES_RDMA_NAME_MAX + 8];
    char *colon;
    int rc;

    snprintf(device, sizeof device, "%s", nic->name);
    colon = strchr(device, ':');
    if (colon && fabric_port_parse(colon + 1, strlen(colon + 1)) < 0) {
        snprintf(why, why_len, "NIC \"%.80s\": HOLMES_FABRIC takes a port from 1 to 255",
                 nic->name);
        return -EINVAL;
    }
    if (colon)
        *colon = '\0';
    rc = check_word("NIC", device, why, why_len);
    if (rc == 0)
        rc = check_word("fabric", nic->fabric, why, why_len);
    if (rc == 0)
        fprintf(out, "%s %s %s\n", hosts, nic->name, nic->fabric);
    return rc;
}

static int write_group(const struct holmes_cluster *c, const struct holmes_node_group *g, FILE *out,
                       int *lines, char *why, size_t why_len)
{
    const struct holmes_node_type *type = &c->types[g->type];
    char *hosts = holmes_hostlist_text(&g->hosts);
    int rc = hosts ? 0 : -ENOMEM;

    if (rc == 0 && g->fabric) {
        rc = check_word("fabric", g->fabric, why, why_len);
        if (rc == 0)
            fprintf(out, "%s %s\n", hosts, g->fabric);
        ++*lines;
    }
    for (int i = 0; rc == 0 && !g->fabric && i < type->nnics; i++) {
        if (!type->nics[i].fabric || !type->nics[i].rdma)
            continue;
        rc = write_nic(hosts, &type->nics[i], out, why, why_len);
        ++*lines;
    }
    free(hosts);
    return rc;
}

int holmes_fabric_map_write(const struct holmes_cluster *c, FILE *out, char *why, size_t why_len)
{
    int rc = 0, lines = 0;

    fputs("# HOSTS [DEVICE[:PORT]] ID, for HOLMES_FABRIC=@FILE on every host\n", out);
    for (int i = 0; rc == 0 && i < c->ngroups; i++)
        rc = write_group(c, &c->groups[i], out, &lines, why, why_len);
    if (rc == 0 && lines == 0)
        fputs("# The cluster file gives no ids: leave HOLMES_FABRIC unset, the plugin finds out by "
              "itself.\n",
              out);
    if (rc == -ENOMEM)
        snprintf(why, why_len, "out of memory");
    return rc;
}

bool holmes_emit_has_fabrics(const struct holmes_plan_doc *doc)
{
    const struct holmes_cluster *c = doc->cluster;

    for (int i = 0; i < c->ngroups; i++)
        if (c->groups[i].fabric)
            return true;
    for (int i = 0; i < c->ntypes; i++)
        for (int k = 0; k < c->types[i].nnics; k++)
            if (c->types[i].nics[k].fabric && c->types[i].nics[k].rdma)
                return true;
    return false;
}

int holmes_emit_fabric_map(const struct holmes_plan_doc *doc, const struct holmes_emit_options *o,
                           FILE *out, char *why, size_t why_len)
{
    (void)o;
    return holmes_fabric_map_write(doc->cluster, out, why, why_len);
}

const struct holmes_emit_form holmes_emit_fabrics = {
    .name = "fabrics",
    .summary = "the plugin, for any job: which RDMA ports share a fabric",
    .parts = {{"map", "fabrics", "names of hosts and ids, for HOLMES_FABRIC=@FILE",
               holmes_emit_fabric_map}},
};
