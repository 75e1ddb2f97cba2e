/* The plan of small clusters, case by case. */
#include <errno.h>
#include <math.h>
#include <time.h>

#include "../../support/patience.h"
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

/* No plan; what the sentence must have in it. */
static void refused(struct world_of *w, const struct holmes_plan_request *r, const char *word)
{
    struct holmes_plan *p = NULL;
    char why[512] = "";
    int rc = holmes_plan_build(&w->c, &w->f, r, &p, why, sizeof(why));

    cr_expect_eq(rc, -EINVAL, "%d: %s", rc, why);
    cr_expect_null(p);
    cr_expect(strstr(why, word), "\"%s\" has no \"%s\"", why, word);
}

static bool has_note(const struct holmes_plan *p, const char *word)
{
    for (int i = 0; i < p->nnotes; i++)
        if (strstr(p->notes[i], word))
            return true;
    return false;
}

Test(plan, numbers_ranks_of_the_slurm_case_as_megatron_does)
{
    struct world_of w;
    struct holmes_plan_request r = request_of("gpt-3.6b", 64);
    struct holmes_plan *p;

    slurm_order(&w);
    r.tensor = 8;
    r.pipeline = 2;
    p = plan_of(&w, &r);
    /* rank = tensor + t (data + d stage): data groups {i, i+8}, {16+i, 24+i}, pairs {i, i+16}. */
    for (int i = 0; i < p->nnodes; i++) {
        cr_assert_eq(p->nodes[i].first_rank, 8 * i);
        cr_assert_eq(p->nodes[i].gpus, 8);
    }
    for (int i = 0; i < 2; i++) {
        cr_assert_eq(p->stages[i].first_node, 2 * i);
        cr_assert_eq(p->stages[i].last_node, 2 * i + 1);
    }
    holmes_plan_destroy(p);
    world_fini(&w);
}

/* Case C14: a hostfile of 8, 2, 4 and 1 slots. */
static void uneven_hosts(struct world_of *w)
{
    static const int gpus[] = {8, 2, 4, 1};

    world_init(w);
    world_fabric(w, "A", true, 200);
    for (int i = 0; i < 4; i++) {
        char name[8];

        snprintf(name, sizeof(name), "h%d", i + 1);
        world_group(w, name, world_type(w, "any", gpus[i], 312, 80, 25), 0);
    }
}

Test(plan, names_what_is_no_tensor_group_as_idle)
{
    struct world_of w;
    struct holmes_plan_request r = request_of("gpt2-124m", 12);
    struct holmes_plan *p;

    uneven_hosts(&w);
    r.tensor = 4;
    p = plan_of(&w, &r);
    cr_assert_str_eq(order_of(&w, p), "h1 h3");
    cr_assert_eq(p->nodes[0].gpus, 8);
    cr_assert_eq(p->nodes[1].gpus, 4);
    cr_assert_eq(p->nodes[1].first_rank, 8);
    cr_assert_eq(p->nidle, 2);
    cr_assert_eq(p->idle[0].group, 1);
    cr_assert_eq(p->idle[0].gpus, 2);
    cr_assert_str_eq(p->idle[0].reason, "2 GPUs: a tensor group needs 4 on one node");
    cr_assert_eq(p->idle[1].group, 3);
    cr_assert_str_eq(p->idle[1].reason, "1 GPU: a tensor group needs 4 on one node");
    holmes_plan_destroy(p);
    world_fini(&w);
}

Test(plan, keeps_the_files_order_in_one_cluster)
{
    for (int tensor = 1; tensor <= 8; tensor *= 2)
        for (int pipeline = 1; pipeline <= 4; pipeline *= 2) {
            struct world_of w;
            struct holmes_plan_request r = request_of("gpt2-124m", 64);
            struct holmes_plan *p;
            int t;

            world_init(&w);
            t = world_type(&w, "a100", 8, 312, 80, 25);
            world_fabric(&w, "A", true, 200);
            world_group(&w, "z9,b[1-2]", t, 0);
            world_group(&w, "a7", t, 0);
            r.tensor = tensor;
            r.pipeline = pipeline;
            r.model.heads = 16;
            p = plan_of(&w, &r);
            cr_expect_str_eq(order_of(&w, p), "z9 b1 b2 a7");
            cr_expect_eq(p->world, 32);
            cr_expect_eq(p->data, 32 / tensor / pipeline);
            holmes_plan_destroy(p);
            world_fini(&w);
        }
}

/* Case C14: clusters of 2, 2 and 1 nodes, pipeline 2. */
Test(plan, uses_two_of_three_clusters_rather_than_split_a_data_group)
{
    struct world_of w;
    struct holmes_plan_request r = request_of("gpt-3.6b", 64);
    struct holmes_plan *p;
    int t;

    world_init(&w);
    t = world_type(&w, "a100", 8, 312, 80, 25);
    world_fabric(&w, "A", true, 200);
    world_fabric(&w, "B", true, 200);
    world_fabric(&w, "C", true, 200);
    world_group(&w, "a[1-2]", t, 0);
    world_group(&w, "c1", t, 2);
    world_group(&w, "b[1-2]", t, 1);
    r.tensor = 8;
    r.pipeline = 2;
    p = plan_of(&w, &r);
    cr_assert_str_eq(order_of(&w, p), "a1 a2 b1 b2");
    cr_assert_eq(p->nidle, 1);
    cr_assert_eq(p->idle[0].group, 1);
    cr_assert(strstr(p->idle[0].reason, "fabric C has no stage"), "%s", p->idle[0].reason);
    holmes_plan_destroy(p);
    r.pipeline = 1;
    r.data = 4;
    refused(&w, &r, "straddle");
    refused(&w, &r, "fabric A has room for 2");
    world_fini(&w);
}

Test(plan, straddles_only_where_that_is_allowed_and_warns)
{
    struct world_of w;
    struct holmes_plan_request r = request_of("gpt-3.6b", 64);
    struct holmes_plan *p;

    slurm_order(&w);
    world_link(&w, "A", "B", 25, 2);
    r.tensor = 8;
    r.pipeline = 1;
    r.data = 4;
    refused(&w, &r, "--allow-cross");
    r.allow_cross = true;
    p = plan_of(&w, &r);
    cr_assert(p->stages[0].crosses);
    cr_assert(has_note(p, "warning: the data groups of stage 0 straddle"));
    cr_assert_gt(p->cost.cross_bytes, 0);
    /* Together by fabric even so: the ring crosses twice, not four times. */
    cr_assert_str_eq(order_of(&w, p), "n1 n3 n2 n4");
    cr_assert_gt(p->naive.step_s, p->cost.step_s);
    holmes_plan_destroy(p);
    world_fini(&w);
}

Test(plan, gives_megatrons_layers)
{
    static const struct {
        int layers, stages;
        const char *layers_are;
    } rows[] = {{30, 4, "7,8,8,7"}, {5, 4, "1,1,1,2"}, {30, 1, "30"}, {24, 2, "12,12"}};
    struct world_of w;
    struct holmes_plan_request r = request_of("gpt-3.6b", 64);

    slurm_order(&w);
    r.tensor = 8;
    r.model.vocabulary = 0; /* so that layers alone count */
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct holmes_plan *p;

        r.model.layers = rows[i].layers;
        r.pipeline = rows[i].stages;
        p = plan_of(&w, &r);
        cr_expect_str_eq(layers_of(p), rows[i].layers_are);
        holmes_plan_destroy(p);
    }
    r.model.layers = 3;
    r.pipeline = 4;
    refused(&w, &r, "3 layers are fewer than 4 pipeline stages");
    world_fini(&w);
}

Test(plan, gives_the_faster_cluster_more_layers)
{
    struct world_of w;
    struct holmes_plan_request r = request_of("gpt-3.6b", 64);
    struct holmes_plan *p;

    world_init(&w);
    world_fabric(&w, "A", true, 200);
    world_fabric(&w, "B", true, 200);
    world_group(&w, "a[1-2]", world_type(&w, "fast", 8, 600, 80, 25), 0);
    world_group(&w, "b[1-2]", world_type(&w, "slow", 8, 300, 80, 25), 1);
    r.tensor = 8;
    r.pipeline = 2;
    r.model.layers = 24;
    r.model.vocabulary = 0;
    p = plan_of(&w, &r);
    for (int i = 0; i < 2; i++)
        cr_expect_eq(p->stages[i].layers, p->stages[i].fabric == 0 ? 16 : 8, "%s", layers_of(p));
    cr_expect_gt(p->naive.compute_s, p->cost.compute_s * 1.2);
    holmes_plan_destroy(p);
    world_fini(&w);
}

Test(plan, keeps_slow_nodes_of_a_fabric_in_stages_of_their_own)
{
    struct world_of w;
    struct holmes_plan_request r = request_of("gpt-3.6b", 64);
    struct holmes_plan *p;
    int fast, slow;

    world_init(&w);
    fast = world_type(&w, "fast", 8, 600, 80, 25);
    slow = world_type(&w, "slow", 8, 300, 80, 25);
    world_fabric(&w, "A", true, 200);
    world_group(&w, "n1", slow, 0);
    world_group(&w, "n2", fast, 0);
    world_group(&w, "n3", slow, 0);
    world_group(&w, "n4", fast, 0);
    r.tensor = 8;
    r.pipeline = 2;
    p = plan_of(&w, &r);
    cr_expect_eq(fabs(p->stages[0].tflops - p->stages[1].tflops), 300);
    holmes_plan_destroy(p);
    /* One stage takes all: sorting would bring nothing. */
    r.pipeline = 1;
    p = plan_of(&w, &r);
    cr_expect_str_eq(order_of(&w, p), "n1 n2 n3 n4");
    holmes_plan_destroy(p);
    world_fini(&w);
}

Test(plan, puts_slow_links_off_the_path)
{
    /* A - C and C - B are fast, A - B is slow. */
    struct world_of w;
    struct holmes_plan_request r = request_of("gpt-3.6b", 64);
    struct holmes_plan *p;
    int t;

    world_init(&w);
    t = world_type(&w, "a100", 8, 312, 80, 100);
    for (int i = 0; i < 3; i++)
        world_fabric(&w, (const char *[]){"A", "B", "C"}[i], true, 200);
    world_group(&w, "a1", t, 0);
    world_group(&w, "b1", t, 1);
    world_group(&w, "c1", t, 2);
    world_link(&w, "A", "B", 1, 50);
    world_link(&w, "B", "C", 100, 1);
    world_link(&w, "C", "A", 100, 1);
    r.tensor = 8;
    r.pipeline = 3;
    r.model.tied = false;
    p = plan_of(&w, &r);
    cr_expect_str_eq(order_of(&w, p), "a1 c1 b1");
    holmes_plan_destroy(p);
    world_fini(&w);
}

Test(plan, leaves_defective_and_idle_nodes_out_and_says_so)
{
    struct world_of w;
    struct holmes_plan_request r = request_of("gpt-3.6b", 64);
    struct holmes_plan *p;
    int t, g;

    world_init(&w);
    t = world_type(&w, "a100", 8, 312, 80, 25);
    world_fabric(&w, "A", true, 200);
    world_group(&w, "n[1-2]", t, 0);
    g = world_group(&w, "n3", t, 0);
    w.groups[g].state = HOLMES_NODE_DEFECTIVE;
    w.groups[g].why = (char *)"ECC errors";
    world_group(&w, "n[4-5]", t, 0);
    w.groups[world_group(&w, "n6", t, 0)].state = HOLMES_NODE_IDLE;
    r.tensor = 8;
    p = plan_of(&w, &r);
    cr_expect_str_eq(order_of(&w, p), "n1 n2 n4 n5");
    cr_expect_eq(p->nidle, 2);
    cr_expect_str_eq(p->idle[0].reason, "defective: ECC errors");
    cr_expect_str_eq(p->idle[1].reason, "idle");
    holmes_plan_destroy(p);
    world_fini(&w);
}

Test(plan, takes_layers_from_stages_whose_memory_is_short)
{
    struct world_of w;
    struct holmes_plan_request r = request_of("gpt-3.6b", 64);
    struct holmes_plan *p;

    world_init(&w);
    world_fabric(&w, "A", true, 200);
    world_fabric(&w, "B", true, 200);
    world_group(&w, "a1", world_type(&w, "large", 8, 300, 80, 25), 0);
    world_group(&w, "b1", world_type(&w, "small", 8, 300, 3, 25), 1);
    r.tensor = 8;
    r.pipeline = 2;
    r.micro_batch = 1;
    p = plan_of(&w, &r);
    for (int i = 0; i < 2; i++) {
        bool small = p->stages[i].fabric == 1;

        cr_expect(small ? p->stages[i].layers < 15 : p->stages[i].layers > 15, "%s", layers_of(p));
        cr_expect_leq(p->stages[i].memory_gib, p->stages[i].memory_limit_gib);
    }
    holmes_plan_destroy(p);
    w.types[1].memory_gib = 0.3;
    refused(&w, &r, "does not fit");
    refused(&w, &r, "GiB per GPU");
    world_fini(&w);
}

Test(plan, refuses_sizes_that_cannot_be)
{
    static const struct {
        int tensor, pipeline, data, micro;
        int64_t batch;
        const char *word;
    } rows[] = {
        {16, 0, 0, 0, 64, "none has more than 8"},
        {3, 0, 0, 0, 64, "tensor 3 does not divide"},
        {0, 31, 0, 0, 64, "30 layers are fewer than 31"},
        {0, 0, 5, 0, 64, "64 sequences is not a multiple of data 5"},
        {0, 0, 8, 3, 64, "data 8 x microbatch 3"},
        {0, 0, 0, 0, 0, "global batch is 0"},
        {8, 5, 0, 0, 64, "room for 5 stages"},
        {-1, 0, 0, 0, 64, "negative"},
    };
    struct world_of w;

    slurm_order(&w);
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct holmes_plan_request r = request_of("gpt-3.6b", rows[i].batch);

        r.tensor = rows[i].tensor;
        r.pipeline = rows[i].pipeline;
        r.data = rows[i].data;
        r.micro_batch = rows[i].micro;
        refused(&w, &r, rows[i].word);
    }
    world_fini(&w);
}

Test(plan, refuses_speeds_that_are_told_for_some_nodes_only)
{
    struct world_of w;
    struct holmes_plan_request r = request_of("gpt-3.6b", 64);
    struct holmes_plan *p;

    slurm_order(&w);
    w.groups[1].type = world_type(&w, "other", 8, 0, 80, 25);
    refused(&w, &r, "other has none");
    w.types[0].tflops = 0;
    p = plan_of(&w, &r);
    cr_expect(has_note(p, "all GPUs count as equal"));
    holmes_plan_destroy(p);
    world_fini(&w);
}

Test(plan, asks_for_the_window_that_the_slow_link_needs)
{
    struct world_of w;
    struct holmes_plan_request r = request_of("gpt-3.6b", 64);
    struct holmes_plan *p;
    double step;

    slurm_order(&w);
    world_link(&w, "A", "B", 25, 20);
    r.tensor = 8;
    r.pipeline = 2;
    p = plan_of(&w, &r);
    /* 16 GPUs share 92% of 25 Gb/s, for 20 ms. */
    cr_expect_float_eq((double)p->window_bytes, 0.92 * 25e9 / 8 / 16 * 0.020, 2);
    cr_expect(has_note(p, "emit raises them"));
    step = p->cost.step_s;
    holmes_plan_destroy(p);
    r.window_bytes = HOLMES_NCCL_WINDOW;
    p = plan_of(&w, &r);
    cr_expect_gt(p->cost.step_s, step);
    holmes_plan_destroy(p);
    world_fini(&w);
}

Test(plan, is_the_same_each_time)
{
    struct world_of w;
    struct holmes_plan_request r = request_of("gpt-7.5b", 96);
    struct holmes_plan *a, *b;

    slurm_order(&w);
    a = plan_of(&w, &r);
    b = plan_of(&w, &r);
    cr_assert_eq(a->nnodes, b->nnodes);
    cr_assert_arr_eq(a->nodes, b->nodes, (size_t)a->nnodes * sizeof(*a->nodes));
    cr_assert_eq(memcmp(&a->cost, &b->cost, sizeof(a->cost)), 0);
    holmes_plan_destroy(a);
    holmes_plan_destroy(b);
    world_fini(&w);
}

/* Processor time, so that a busy machine does not count against it. */
Test(plan, takes_less_than_a_second_for_ten_thousand_nodes)
{
    struct world_of w;
    struct holmes_plan_request r = request_of("gpt-39.1b", 15360);
    struct holmes_plan *p;
    clock_t start;
    int64_t idle = 0;
    int a, b, c;

    world_init(&w);
    a = world_type(&w, "a", 8, 312, 80, 25);
    b = world_type(&w, "b", 8, 989, 80, 100);
    c = world_type(&w, "c", 4, 125, 32, 25);
    for (int i = 0; i < 3; i++)
        world_fabric(&w, (const char *[]){"A", "B", "C"}[i], true, 200 * (i + 1));
    world_group(&w, "a[00001-04000]", a, 0);
    w.groups[world_group(&w, "a[04001-04050]", a, 0)].state = HOLMES_NODE_DEFECTIVE;
    world_group(&w, "b[00001-03450]", b, 1);
    w.groups[world_group(&w, "b[03451-03500]", b, 1)].state = HOLMES_NODE_IDLE;
    world_group(&w, "c[00001-01450]", c, 2);
    world_group(&w, "d[00001-01000]", a, 2);
    world_link(&w, NULL, NULL, 400, 10);
    start = clock();
    p = plan_of(&w, &r);
    cr_assert_lt((double)(clock() - start) / CLOCKS_PER_SEC, 1.0 * (double)patience());
    for (int i = 0; i < p->nidle; i++)
        idle += (int64_t)p->idle[i].gpus * p->idle[i].nhosts;
    cr_assert_eq(p->world + idle, 8 * 10000 - 4 * 1450);
    cr_assert_gt(p->world, 8 * 5000);
    holmes_plan_destroy(p);
    world_fini(&w);
}

Test(plan, says_when_the_batch_leaves_gpus_idle)
{
    struct world_of w;
    struct holmes_plan_request r = request_of("gpt-3.6b", 64);
    struct holmes_plan *p;

    world_init(&w);
    world_fabric(&w, "A", true, 200);
    world_group(&w, "n[1-6]", world_type(&w, "a100", 8, 312, 80, 25), 0);
    r.tensor = 8;
    r.pipeline = 2;
    p = plan_of(&w, &r);
    cr_expect_eq(p->data, 2);
    cr_expect(
        has_note(p, "data 3 would fit, but the batch of 64 sequences does not divide by it: 16"));
    holmes_plan_destroy(p);
    r.global_batch = 60;
    p = plan_of(&w, &r);
    cr_expect_eq(p->data, 3);
    cr_expect_not(has_note(p, "would fit"));
    holmes_plan_destroy(p);
    world_fini(&w);
}

Test(plan, tells_links_that_are_missing_in_one_sentence)
{
    struct holmes_plan_request r = request_of("gpt-3.6b", 64);
    char names[WORLD_MOST][8];
    struct world_of w;
    struct holmes_plan *p;
    int told = 0;

    world_init(&w);
    world_type(&w, "any", 8, 312, 80, 25);
    for (int i = 0; i < WORLD_MOST; i++) {
        snprintf(names[i], sizeof(names[i]), "f%d", i);
        world_group(&w, names[i], 0, world_fabric(&w, names[i], true, 200));
    }
    world_link(&w, "f1", "f0", 100, 1);
    p = plan_of(&w, &r);
    for (int i = 0; i < p->nnotes; i++)
        told += strstr(p->notes[i], "no link between") != NULL;
    cr_expect_eq(told, 1);
    cr_expect(has_note(p, "no link between fabrics f0 and f2 (and 2014 other pairs) is told"));
    holmes_plan_destroy(p);
    world_fini(&w);
}

/* Three nodes of two slots carry two stages of three: the middle one has rings of both. */
Test(plan, rings_of_two_stages_share_the_nics_of_their_common_node)
{
    struct world_of w;
    struct holmes_plan_request r = request_of("gpt-3.6b", 48);
    struct holmes_plan *p;
    double ring_gbps;

    world_init(&w);
    world_type(&w, "any", 8, 312, 80, 25);
    world_group(&w, "n[1-3]", 0, world_fabric(&w, "A", true, 200));
    r.tensor = 4;
    r.pipeline = 2;
    r.data = 3;
    r.no_overlap = true;
    p = plan_of(&w, &r);
    cr_assert_eq(p->stages[0].last_node, p->stages[1].first_node);
    ring_gbps = p->stages[0].data_bytes * 8 / p->stages[0].data_s / 1e9;
    cr_expect_float_eq(ring_gbps, 200 * 0.41 / (2 * 4), 1e-6);
    holmes_plan_destroy(p);
    world_fini(&w);
}
