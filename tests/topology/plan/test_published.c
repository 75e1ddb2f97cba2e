/* The cost model against arXiv 2312.03549's measurements: GPT 3.6B on A100-80GB, eight to a node,
 * TFLOPS per GPU over InfiniBand, RoCE and Ethernet (200, 200 and 25 Gb/s).
 *
 * Tensor 1, pipeline 2, batch 768, fp16 and no overlap are taken for the paper's set-up. Its TFLOPS
 * are read as those of arXiv 2104.04473, equation 3, which counts a recomputation; that none ran is
 * our reading too. docs/cost-model.md says why, and what the model cannot explain. */
#include <math.h>

#include "topology/plan/cost.h"
#include "world_of.h"

#define ERROR_MOST 0.12

struct row {
    const char *net;
    bool rdma;
    double gbps;
    int nodes;
    double published;
    bool fitted; /* HOLMES_COST_* were fitted on it */
};

static const struct row rows[] = {
    {"InfiniBand", true, 200, 4, 197, true}, {"RoCE", true, 200, 4, 160, true},
    {"Ethernet", false, 25, 4, 122, true},   {"InfiniBand", true, 200, 8, 148, true},
    {"RoCE", true, 200, 8, 145, false},      {"Ethernet", false, 25, 8, 83, false},
};

#define NROWS (sizeof(rows) / sizeof(rows[0]))

static double predicted(const struct row *row)
{
    struct holmes_plan_request r = request_of("gpt-3.6b", 768);
    struct holmes_gpt counted = r.model;
    struct holmes_plan *p;
    struct world_of w;
    double tflops;

    world_init(&w);
    world_fabric(&w, row->net, row->rdma, row->gbps);
    world_group(&w, row->nodes == 4 ? "n[1-4]" : "n[1-8]", world_type(&w, "a100", 8, 312, 80, 25),
                0);
    r.tensor = 1;
    r.pipeline = 2;
    r.micro_batch = 4;
    r.no_overlap = true;
    r.model.half_gradients = true;
    p = plan_of(&w, &r);
    counted.recompute = true;
    tflops = holmes_gpt_sequence_flops(&counted) * (double)r.global_batch / p->cost.step_s /
             (double)p->world / 1e12;
    holmes_plan_destroy(p);
    world_fini(&w);
    return tflops;
}

Test(published, table_is_met_within_twelve_percent)
{
    for (size_t i = 0; i < NROWS; i++) {
        double mine = predicted(&rows[i]), error = mine / rows[i].published - 1;

        printf("%-10s %d nodes: published %3.0f, predicted %5.1f, %+5.1f%%%s\n", rows[i].net,
               rows[i].nodes, rows[i].published, mine, error * 100,
               rows[i].fitted ? "" : " (not fitted)");
        cr_expect_lt(fabs(error), ERROR_MOST, "%s, %d nodes: %.1f, published %.0f", rows[i].net,
                     rows[i].nodes, mine, rows[i].published);
    }
}

/* What the table says of the nets, whatever its figures. */
Test(published, ethernet_is_slowest_and_loses_most_with_more_nodes)
{
    double ib4 = predicted(&rows[0]), ib8 = predicted(&rows[3]);
    double eth4 = predicted(&rows[2]), eth8 = predicted(&rows[5]);

    cr_assert_gt(ib4, eth4);
    cr_assert_gt(ib8, eth8);
    cr_assert_gt(ib4, ib8);
    cr_assert_lt(eth8 / eth4, ib8 / ib4);
}
