/* A plan of whatever cluster file is readable: refused with a sentence, or a plan that uses no GPU
 * twice and whose costs are numbers. The first two bytes choose the request. */
#include <errno.h>
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "plan.h"

#define HOSTS_MOST 2000 /* so that an input takes milliseconds */

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void expect(int holds)
{
    if (!holds)
        __builtin_trap();
}

static void check(const struct holmes_plan *p, const struct holmes_cluster *c)
{
    int64_t rank = 0, all = 0;

    expect(isfinite(p->cost.step_s) && p->cost.step_s > 0 && isfinite(p->naive.step_s));
    for (int i = 0; i < p->nnodes; i++) {
        expect(p->nodes[i].first_rank == rank);
        rank += p->nodes[i].gpus;
    }
    expect(rank == p->world);
    for (int i = 0; i < p->nidle; i++)
        rank += (int64_t)p->idle[i].gpus * p->idle[i].nhosts;
    for (int i = 0; i < c->ngroups; i++)
        all += (int64_t)c->types[c->groups[i].type].gpus * c->groups[i].hosts.nhosts;
    expect(rank == all);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct holmes_cluster *c = NULL;
    struct holmes_fabrics *f = NULL;
    struct holmes_plan *p = NULL;
    struct holmes_plan_request r = {0};
    char why[1024] = "";
    int hosts = 0;

    if (size < 2 || size > 16384)
        return 0;
    expect(holmes_gpt_preset("gpt2-124m", &r.model, why, sizeof why) == 0);
    r.global_batch = 1 + data[0];
    r.tensor = data[1] & 3;
    r.pipeline = data[1] >> 2 & 3;
    r.allow_cross = data[1] >> 4 & 1;
    r.window_bytes = data[1] >> 5 & 1 ? HOLMES_NCCL_WINDOW : 0;
    r.micro_batch = data[1] >> 6;
    if (holmes_cluster_parse("fuzz", data + 2, size - 2, &c, why, sizeof why) != 0)
        return 0;
    for (int i = 0; i < c->ngroups; i++)
        hosts += c->groups[i].hosts.nhosts;
    if (hosts <= HOSTS_MOST && holmes_fabrics_find(c, true, &f, why, sizeof why) == 0) {
        int rc;

        why[0] = '\0';
        rc = holmes_plan_build(c, f, &r, &p, why, sizeof why);
        expect(rc == 0 ? p != NULL : rc == -EINVAL && why[0]);
        if (p)
            check(p, c);
    }
    holmes_plan_destroy(p);
    holmes_fabrics_destroy(f);
    holmes_cluster_destroy(c);
    return 0;
}
