/* The plan's memory of every stage, against what the trainer would take with the plan's layers. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "config_spec.h"
#include "memory.h"
#include "plan.h"

static const char cluster_text[] =
    "holmes-cluster: 1\n"
    "node-types:\n"
    "- {name: x, gpus: 2, tflops: 0.1, nics: [{name: eth0, kind: ethernet, gbps: 10}]}\n"
    "- {name: y, gpus: 2, tflops: 0.2, nics: [{name: eth0, kind: ethernet, gbps: 10}]}\n"
    "nodes:\n"
    "- {hosts: 'n[1-12]', type: x, fabric: A}\n"
    "- {hosts: 'm[1-12]', type: y, fabric: B}\n"
    "links:\n"
    "- {between: [A, B], gbps: 1, rtt-ms: 1}\n";

static struct holmes_cluster *cluster;
static struct holmes_fabrics *fabrics;

static void set_up(void)
{
    char why[400];

    cr_assert_eq(
        holmes_cluster_parse("c", cluster_text, strlen(cluster_text), &cluster, why, sizeof why), 0,
        "%s", why);
    cr_assert_eq(holmes_fabrics_find(cluster, false, &fabrics, why, sizeof why), 0, "%s", why);
}

static void tear_down(void)
{
    holmes_fabrics_destroy(fabrics);
    holmes_cluster_destroy(cluster);
}

TestSuite(plan_memory, .init = set_up, .fini = tear_down);

/* The trainer's configuration of the same model and split. */
static struct holmes_config config_of(const struct holmes_plan_request *r,
                                      const struct holmes_plan *p)
{
    const struct holmes_gpt *g = &r->model;
    struct holmes_config c;

    holmes_config_init(&c);
    c.model = (struct holmes_model){.layers = g->layers,
                                    .channels = g->hidden,
                                    .heads = g->heads,
                                    .seq_len = g->sequence,
                                    .vocab = g->vocabulary,
                                    .tied = g->tied};
    c.batch = (int)r->global_batch;
    c.microbatch = p->micro_batch;
    c.stages = p->pipeline;
    c.replicas = p->data;
    c.tensors = p->tensor;
    c.recompute = g->recompute;
    return c;
}

static void check_stages(const struct holmes_plan_request *r, const struct holmes_plan *p)
{
    struct holmes_config c = config_of(r, p);
    struct holmes_group *g;
    char why[400] = "";
    int *layers = calloc((size_t)p->pipeline, sizeof *layers);

    for (int i = 0; i < p->pipeline; i++)
        layers[i] = p->stages[i].layers;
    cr_assert_eq(holmes_group_create(c.stages, c.replicas, c.tensors, NULL, c.model.layers, layers,
                                     &g, why, sizeof why),
                 0, "%s", why);
    for (int i = 0; i < p->pipeline; i++) {
        double planned = p->stages[i].memory_gib * (double)(1 << 30), taken;
        struct holmes_memory m;

        cr_assert_eq(holmes_memory_predict(&c, g, (struct holmes_place){.stage = i},
                                           holmes_kernels_find("cpu"), &m),
                     0);
        taken = (double)holmes_memory_total(&m);
        cr_expect(fabs(planned / taken - 1) < 0.005,
                  "tensor %d pipeline %d data %d%s%s stage %d of %d layers: the plan says %.3f MB, "
                  "the trainer %.3f MB",
                  c.tensors, c.stages, c.replicas, c.recompute ? " recompute" : "",
                  c.model.tied ? " tied" : "", i, layers[i], planned / 1e6, taken / 1e6);
    }
    holmes_group_destroy(g);
    holmes_config_fini(&c);
    free(layers);
}

Test(plan_memory, is_that_of_the_trainer)
{
    int plans = 0;

    for (int n = 0; n < 2 * 3 * 3 * 2 * 2; n++) {
        static const int data[] = {1, 2, 4};
        struct holmes_plan_request r = {.model = {.layers = 7,
                                                  .hidden = 256,
                                                  .heads = 8,
                                                  .sequence = 128,
                                                  .vocabulary = 1000,
                                                  .tied = n / 18 % 2 != 0,
                                                  .recompute = n / 36 != 0,
                                                  .distributed_optimizer = true,
                                                  .bytes_per_weight = 4,
                                                  .holmes_train = true},
                                        .global_batch = 32,
                                        .micro_batch = 4,
                                        .tensor = n % 2 + 1,
                                        .pipeline = n / 2 % 3 + 1,
                                        .data = data[n / 6 % 3]};
        struct holmes_plan *p;
        char why[500] = "";

        if (holmes_plan_build(cluster, fabrics, &r, &p, why, sizeof why) != 0)
            cr_assert_fail("%s", why);
        check_stages(&r, p);
        holmes_plan_destroy(p);
        plans++;
    }
    cr_expect_eq(plans, 72);
}

Test(plan_memory, refuses_what_the_trainer_has_not)
{
    struct holmes_plan_request r = {.model = {.layers = 4,
                                              .hidden = 64,
                                              .heads = 4,
                                              .sequence = 16,
                                              .distributed_optimizer = true,
                                              .bytes_per_weight = 2,
                                              .holmes_train = true},
                                    .global_batch = 8};
    struct holmes_plan *p;
    char why[500] = "";

    cr_expect_neq(holmes_plan_build(cluster, fabrics, &r, &p, why, sizeof why), 0);
    cr_expect_not_null(strstr(why, "holmes-train has fp32 weights"), "%s", why);
}
