/* What `check --json` wrote: every failure says why, every probe is of hosts of the cluster. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "topology/cluster/check_probes.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char text[] = "holmes-cluster: 1\nnode-types: [{name: t, gpus: 1}]\n"
                               "nodes: [{hosts: 'a[0-3],b', type: t}]\n";
    struct holmes_cluster *c;
    char why[512] = "";
    int added = -1, rc;

    if (holmes_cluster_parse("fixed", text, strlen(text), &c, why, sizeof why) != 0)
        __builtin_trap();
    rc = holmes_check_probes_parse("fuzz", data, size, c, &added, why, sizeof why);
    if (rc != 0 && (rc != -EINVAL || strncmp(why, "fuzz:", 5) != 0))
        __builtin_trap();
    if (added != c->nprobes)
        __builtin_trap();
    for (int i = 0; i < c->nprobes; i++)
        if (holmes_hostlist_find(&c->groups[0].hosts, c->probes[i].from) < 0 ||
            holmes_hostlist_find(&c->groups[0].hosts, c->probes[i].to) < 0)
            __builtin_trap();
    holmes_cluster_destroy(c);
    return 0;
}
