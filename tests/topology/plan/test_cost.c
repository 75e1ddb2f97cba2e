/* The cost model, term by term, on jobs made by hand. */
#include <math.h>

#include "topology/plan/cost.h"
#include "world_of.h"

#define STAGES_MOST 4

struct bench {
    struct holmes_gpt model;
    struct holmes_cost_path path;
    double flows[1];
    struct holmes_cost_stage stages[STAGES_MOST];
    struct holmes_cost_edge edges[STAGES_MOST];
    struct holmes_cost_cross edge_cross[2], ring_cross[2];
    struct holmes_cost_job job;
};

/* Equal stages, no head, no embedding, wires that take no time. */
static void bench_init(struct bench *b, int p, int m)
{
    memset(b, 0, sizeof(*b));
    b->model = (struct holmes_gpt){.layers = 2 * p,
                                   .hidden = 1024,
                                   .heads = 16,
                                   .sequence = 1024,
                                   .distributed_optimizer = true,
                                   .bytes_per_weight = 2};
    for (int i = 0; i < p; i++)
        b->stages[i] = (struct holmes_cost_stage){.tflops = 100, .intra_gbps = 1e9, .layers = 2};
    b->job = (struct holmes_cost_job){.model = &b->model,
                                      .tensor = 1,
                                      .pipeline = p,
                                      .data = 1,
                                      .micro_batch = 1,
                                      .microbatches = m,
                                      .efficiency = 0.5,
                                      .npaths = 1,
                                      .paths = &b->path,
                                      .path_flows = b->flows,
                                      .stages = b->stages,
                                      .edges = b->edges,
                                      .edge_crosses = b->edge_cross,
                                      .ring_crosses = b->ring_cross};
}

Test(cost, bubble_of_equal_stages_is_that_of_1f1b)
{
    for (int p = 1; p <= STAGES_MOST; p++)
        for (int m = 1; m <= 64; m *= 4) {
            struct holmes_plan_cost cost;
            struct bench b;
            double compute;

            bench_init(&b, p, m);
            holmes_cost_step(&b.job, &cost, NULL);
            compute = m * 2 * 3 * holmes_gpt_layer_flops(&b.model) / 50e12;
            cr_expect_float_eq(cost.compute_s / compute, 1, 1e-9);
            cr_expect_float_eq(cost.bubble_s / cost.compute_s, (p - 1.0) / m, 1e-9);
            cr_expect_float_eq(cost.step_s / (compute * (1 + (p - 1.0) / m)), 1, 1e-9);
        }
}

Test(cost, slowest_stage_sets_the_pace_and_the_others_count_once)
{
    struct holmes_plan_cost cost;
    struct bench b;
    double c;

    bench_init(&b, 3, 10);
    b.stages[1].tflops = 50;
    holmes_cost_step(&b.job, &cost, NULL);
    c = 2 * 3 * holmes_gpt_layer_flops(&b.model) / 50e12;
    cr_assert_float_eq(cost.step_s / (10 * 2 * c + 2 * c), 1, 1e-9);
}

/* Design: NCCL's own window of 2 MiB per peer is 100 MB/s at 20 ms, whatever the wire. */
Test(cost, window_over_round_trip_caps_a_flow)
{
    struct holmes_plan_cost cost;
    struct bench b;
    int64_t need;
    double bytes;

    bench_init(&b, 2, 1);
    b.path = (struct holmes_cost_path){.gbps = 0, .rtt_ms = 20};
    b.edge_cross[0] = (struct holmes_cost_cross){.owner = 0, .path = 0, .flows = 1, .gpu_gbps = 20};
    b.job.nedge_crosses = 1;
    b.job.window_bytes = HOLMES_NCCL_WINDOW;
    bytes = holmes_gpt_message_bytes(&b.model, 1, 1);
    holmes_cost_step(&b.job, &cost, &need);
    cr_expect_float_eq(b.edges[0].message_s, bytes / (2097152 / 0.020) + 0.010, 1e-9);
    cr_expect_eq(need, 50000000); /* 20 Gb/s x 20 ms */
    b.job.window_bytes = 0;
    holmes_cost_step(&b.job, &cost, &need);
    cr_expect_float_eq(b.edges[0].message_s, bytes / 2.5e9 + 0.010, 1e-9);
    b.edge_cross[0].gpu_gbps = 400;
    holmes_cost_step(&b.job, &cost, &need);
    cr_expect_eq(need, HOLMES_NCCL_WINDOW_MAX);
}

/* holmes-train's tensor groups send a slice each and gather them behind the link. */
Test(cost, tensor_groups_of_the_trainer_send_slices)
{
    struct holmes_plan_cost cost;
    struct bench whole, sliced;
    double gather;

    bench_init(&whole, 2, 1);
    bench_init(&sliced, 2, 1);
    for (int i = 0; i < 2; i++)
        whole.stages[i].intra_gbps = sliced.stages[i].intra_gbps = 80;
    whole.edges[0].local_gbps = sliced.edges[0].local_gbps = 10;
    whole.job.tensor = sliced.job.tensor = 2;
    sliced.model.holmes_train = true;
    holmes_cost_step(&whole.job, &cost, NULL);
    holmes_cost_step(&sliced.job, &cost, NULL);
    gather = holmes_gpt_message_bytes(&sliced.model, 1, 2) * 8 / 80e9;
    cr_expect_float_eq(sliced.edges[0].message_s / whole.edges[0].message_s, 0.5, 1e-9);
    cr_expect_float_eq(sliced.stages[0].forward_s, whole.stages[0].forward_s, 1e-12);
    cr_expect_float_eq(sliced.stages[1].forward_s - whole.stages[1].forward_s, gather, 1e-9);
    cr_expect_float_eq(sliced.stages[0].backward_s - whole.stages[0].backward_s, gather, 1e-9);
    cr_expect_float_eq(sliced.stages[1].backward_s, whole.stages[1].backward_s, 1e-12);
}

Test(cost, flows_between_fabrics_share_their_link)
{
    struct holmes_plan_cost cost;
    struct bench b;
    double bytes;

    bench_init(&b, 3, 1);
    b.path = (struct holmes_cost_path){.gbps = 10, .rtt_ms = 0};
    for (int i = 0; i < 2; i++)
        b.edge_cross[i] =
            (struct holmes_cost_cross){.owner = i, .path = 0, .flows = 4, .gpu_gbps = 100};
    b.job.nedge_crosses = 2;
    bytes = holmes_gpt_message_bytes(&b.model, 1, 1);
    holmes_cost_step(&b.job, &cost, NULL);
    for (int i = 0; i < 2; i++)
        cr_expect_float_eq(b.edges[i].message_s / (bytes * 8 / (10e9 / 8)), 1, 1e-9);
    cr_expect_float_eq(cost.cross_bytes, 2 * 2 * 4 * bytes, 1);
}

Test(cost, data_traffic_hides_behind_one_microbatch_only)
{
    struct holmes_plan_cost shown, hidden;
    struct bench b;
    double c, both;

    bench_init(&b, 1, 8);
    b.job.data = 4;
    b.stages[0].ring_gbps = 10;
    holmes_cost_step(&b.job, &shown, NULL);
    c = b.stages[0].forward_s + b.stages[0].backward_s;
    both = b.stages[0].scatter_s + b.stages[0].gather_s;
    cr_expect_float_eq(both / (6 * b.stages[0].parameters * 0.75 * 8 / 10e9), 1, 1e-9);
    cr_expect_float_eq(shown.data_comm_s / both, 1, 1e-9);
    b.job.overlap = true;
    cr_assert_gt(both, c);
    holmes_cost_step(&b.job, &hidden, NULL);
    cr_expect_float_eq(hidden.data_comm_s / (both - c), 1, 1e-9);
    b.stages[0].ring_gbps = 1e6;
    holmes_cost_step(&b.job, &hidden, NULL);
    cr_expect_float_eq(hidden.data_comm_s, 0, 1e-12);
}

Test(cost, early_stages_hold_more_microbatches)
{
    struct bench b;
    double layer;

    bench_init(&b, 4, 100);
    layer = 2 * holmes_gpt_layer_activation(&b.model, 1, 1);
    for (int i = 0; i < 2; i++)
        cr_expect_float_eq(holmes_cost_memory(&b.job, i + 1, 2) - holmes_cost_memory(&b.job, 2, 2),
                           (1 - i) * layer, 1);
    b.job.microbatches = 1;
    cr_expect_float_eq(holmes_cost_memory(&b.job, 1, 2), holmes_cost_memory(&b.job, 2, 2), 1);
}

Test(cost, later_stages_gather_while_the_pipeline_fills)
{
    struct holmes_plan_cost cost;
    struct bench b;
    double fill, drain;

    bench_init(&b, 2, 8);
    b.job.data = 2;
    b.edges[0].local_gbps = 1; /* messages that take as long as the rings */
    b.stages[1].ring_gbps = 1;
    holmes_cost_step(&b.job, &cost, NULL);
    cr_assert_gt(b.edges[0].message_s, 0.01);
    fill = b.stages[0].forward_s + b.edges[0].message_s;
    drain = b.stages[0].backward_s + b.edges[0].message_s;
    cr_assert_gt(b.stages[1].gather_s, fill);
    cr_assert_gt(b.stages[1].scatter_s, drain);
    cr_expect_float_eq(
        cost.data_comm_s / (b.stages[1].scatter_s - drain + b.stages[1].gather_s - fill), 1, 1e-9);
}
