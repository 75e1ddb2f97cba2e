/* The plan of small clusters, case by case. */
#include "world_of.h"

/* Case C14: Slurm's order n1 (A), n2 (B), n3 (A), n4 (B), eight GPUs each. */
static void slurm_order(struct world_of *w)
{
    int t;

    world_init(w);
    t = world_type(w, "a100", 8, 312, 80, 25);
    world_fabric(w, "A", true, 200);
    world_fabric(w, "B", true, 200);
    world_group(w, "n1", t, 0);
    world_group(w, "n2", t, 1);
    world_group(w, "n3", t, 0);
    world_group(w, "n4", t, 1);
}

Test(plan, brings_nodes_of_a_fabric_together)
{
    struct world_of w;
    struct holmes_plan_request r = request_of("gpt-3.6b", 64);
    struct holmes_plan *p;

    slurm_order(&w);
    r.tensor = 8;
    r.pipeline = 2;
    p = plan_of(&w, &r);
    cr_assert_str_eq(order_of(&w, p), "n1 n3 n2 n4");
    cr_assert_eq(p->data, 2);
    cr_assert_eq(p->world, 32);
    cr_assert_eq(p->nidle, 0);
    for (int i = 0; i < 2; i++) {
        cr_assert_not(p->stages[i].crosses);
        cr_assert_eq(p->stages[i].fabric, i);
    }
    cr_assert(p->edges[0].crosses);
    cr_assert_gt(p->naive.step_s, p->cost.step_s);
    holmes_plan_destroy(p);
    world_fini(&w);
}

Test(plan, names_what_is_no_tensor_group_as_idle)
{
    static const int gpus[] = {8, 2, 4, 1};
    struct world_of w;
    struct holmes_plan_request r = request_of("gpt2-124m", 12);
    struct holmes_plan *p;
    int t;

    world_init(&w);
    t = world_type(&w, "any", 8, 312, 80, 25);
    world_fabric(&w, "A", true, 200);
    for (int i = 0; i < 4; i++) {
        char name[8];

        snprintf(name, sizeof(name), "h%d", i + 1);
        w.groups[world_group(&w, name, t, 0)].slots = gpus[i];
    }
    r.tensor = 4;
    p = plan_of(&w, &r);
    cr_assert_str_eq(order_of(&w, p), "h1 h3");
    cr_assert_eq(p->nodes[0].gpus, 8);
    cr_assert_eq(p->nodes[1].gpus, 4);
    for (int i = 0; i < p->nidle; i++)
        printf("idle %d %d %d: %s\n", p->idle[i].group, p->idle[i].nhosts, p->idle[i].gpus,
               p->idle[i].reason);
    holmes_plan_destroy(p);
    world_fini(&w);
}
