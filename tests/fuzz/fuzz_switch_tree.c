/* Slurm's topology.conf: every failure says why, every switch of what is read is below its top. */
#include <stdint.h>
#include <string.h>

#include "hostfile.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct holmes_switch_tree t;
    struct holmes_hostlist hosts;
    char why[300] = "";
    int nhosts = 0;

    if (holmes_switch_tree_parse("fuzz", (const char *)data, size, &t, why, sizeof why) != 0) {
        if (strncmp(why, "fuzz:", 5) != 0)
            __builtin_trap();
        return 0;
    }
    for (int i = 0; i < t.n; i++) {
        int top = i;

        for (int steps = 0; t.switches[top].parent >= 0; steps++) {
            if (steps > t.n)
                __builtin_trap();
            top = t.switches[top].parent;
        }
        if (t.switches[i].top != top)
            __builtin_trap();
        nhosts += t.switches[i].nodes.nhosts;
    }
    if (nhosts <= 65536) {
        if (holmes_switch_tree_hosts(&t, &hosts) != 0 || hosts.nhosts != nhosts)
            __builtin_trap();
        holmes_hostlist_fini(&hosts);
    }
    holmes_switch_tree_fini(&t);
    return 0;
}
