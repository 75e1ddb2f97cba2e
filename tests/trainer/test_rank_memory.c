/* Memory as predicted: against what stages allocate, byte by byte, and against what the kernel
 * counts for the ranks of the built program, within a tenth. */
#include <criterion/criterion.h>
#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "../support/test_folder.h"
#include "jsonlog.h"
#include "memory.h"
#include "process.h"
#include "stage.h"

#define PATIENCE_MS 300000

/* Kernels that count what is taken of them. */
static size_t taken;

static void *counting_alloc(size_t bytes)
{
    taken += bytes;
    return malloc(bytes);
}

static struct holmes_kernels counting(enum holmes_dtype t)
{
    struct holmes_kernels k = *holmes_kernels_find("ref");

    k.alloc = counting_alloc;
    k.free = free;
    k.dtype = t;
    return k;
}

Test(memory, a_stage_takes_what_was_measured_to_the_byte)
{
    const struct holmes_model models[] = {
        {.layers = 5, .channels = 48, .heads = 6, .seq_len = 21, .vocab = 77, .tied = true},
        {.layers = 5, .channels = 64, .heads = 4, .seq_len = 16, .vocab = 50},
    };
    int cases = 0;

    for (int n = 0; n < 2 * 3 * 2 * 2 * 2; n++, cases++) {
        const struct holmes_kernels k = counting(n & 1 ? HOLMES_BFLOAT16 : HOLMES_FLOAT32);
        const struct holmes_stage_group group = {.rank = 1, .size = 2};
        const int part = n / 8 % 3;
        const struct holmes_stage_attr attr = {.model = models[n / 24],
                                               .first_layer = part == 0 ? 0 : 2,
                                               .last_layer = part == 0   ? 2
                                                             : part == 1 ? 4
                                                                         : 5,
                                               .is_first = part == 0,
                                               .is_last = part == 2,
                                               .batch = 3,
                                               .slots = 2,
                                               .recompute = n & 2,
                                               .group = n & 4 ? &group : NULL,
                                               .kernels = &k};
        struct holmes_stage_memory expected, told;
        struct holmes_stage *s;
        size_t nparams;

        taken = 0;
        cr_assert_eq(holmes_stage_measure(&attr, &expected, &nparams), 0);
        cr_assert_eq(taken, 0, "measuring takes nothing");
        cr_assert_eq(holmes_stage_create(&attr, &s), 0);
        told = holmes_stage_memory(s);
        cr_expect_eq(taken, expected.parameters + expected.gradients + expected.activations,
                     "case %d: %zu bytes taken", n, taken);
        cr_expect_eq(memcmp(&told, &expected, sizeof told), 0, "case %d", n);
        cr_expect_eq(nparams, holmes_stage_nparams(s), "case %d", n);
        holmes_stage_destroy(s);
    }
    cr_expect_eq(cases, 48);
}

Test(memory, what_no_machine_holds_is_told_without_trying)
{
    const struct holmes_kernels k = counting(HOLMES_FLOAT32);
    const struct holmes_stage_attr attr = {
        .model = {.layers = 1000, .channels = 1 << 20, .heads = 1, .seq_len = 1 << 20, .vocab = 2},
        .last_layer = 1000,
        .is_first = true,
        .is_last = true,
        .batch = 1024,
        .slots = 1 << 20,
        .kernels = &k};
    struct holmes_stage_memory m;
    size_t nparams;

    cr_expect_eq(holmes_stage_measure(&attr, &m, &nparams), -ENOMEM);
    cr_expect_eq(taken, 0);
}

/* --- of processes --------------------------------------------------------------------------------
 */

/* Shadow memory and quarantines are no memory of the trainer. */
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)

static char dir[TEST_FOLDER_MAX];

static void set_up(void)
{
    char path[96];

    test_folder_make(dir, "memory");
    snprintf(path, sizeof path, "%s/text", dir);
    test_folder_text(path, "the hound of the baskervilles ", "the hound of the baskervilles ");
}

static void tear_down(void)
{
    test_folder_remove(dir);
}

TestSuite(memory_of_ranks, .init = set_up, .fini = tear_down, .timeout = 900);

/* Of small runs the libraries' own part is larger. */
static void check_rank(const json_t *record, const char *arguments, bool small)
{
    const double least = small ? 9e6 : 300e6, off = small ? 0.1 : 0.03;
    const json_t *m = json_object_get(record, "memory");
    double predicted = json_number_value(json_object_get(m, "predicted_bytes"));
    double measured = json_number_value(json_object_get(m, "measured_bytes"));
    int rank = (int)json_integer_value(json_object_get(record, "rank"));

    cr_expect_gt(measured, least, "%s: rank %d: %.0f MB are too few to compare", arguments, rank,
                 measured / 1e6);
    cr_expect(predicted > (1 - off) * measured && predicted < (1 + off) * measured,
              "%s: rank %d: %.1f MB predicted, %.1f MB measured", arguments, rank, predicted / 1e6,
              measured / 1e6);
}

static void check(const char *arguments, int ranks, bool small)
{
    const char *plugin = getenv("TEST_NET_PLUGIN");
    char path[96], why[300] = "";
    json_t *records, *record;
    bool cut;
    struct process p;
    size_t i;
    int n = 0;

    cr_assert_not_null(plugin, "TEST_NET_PLUGIN is not set");
    snprintf(path, sizeof path, "%s/log", dir);
    process_start(&p, NULL,
                  "--data %s/text --plugin %s --log %s --steps 1 --eval-sequences 0 --threads 1 "
                  "--quiet %s",
                  dir, plugin, path, arguments);
    cr_assert(process_wait(&p, PATIENCE_MS), "%s: still running", arguments);
    cr_assert_eq(p.status, 0, "%s: %s", arguments, p.err);
    process_kill_group(&p);
    cr_assert_eq(holmes_jsonlog_read(path, &records, &cut, why, sizeof why), 0, "%s", why);
    json_array_foreach(records, i, record)
    {
        if (strcmp(json_string_value(json_object_get(record, "record")), "traffic") != 0)
            continue;
        check_rank(record, arguments, small);
        n++;
    }
    cr_expect_eq(n, ranks, "%s: %d ranks told", arguments, n);
    json_decref(records);
}

static void check_run(const char *arguments, int ranks)
{
    check(arguments, ranks, false);
}

/* What is taken before training, and what is reserved and never written, would show here. */
Test(memory_of_ranks, small_models)
{
    static const struct {
        const char *arguments;
        int ranks;
    } rows[] = {{"", 1},
                {"--local 2 --data-parallel 2", 2},
                {"--local 2 --pipeline 2", 2},
                {"--local 2 --tensor 2", 2},
                {"--local 4 --pipeline 2 --data-parallel 2 --tied", 4}};

    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        check(rows[i].arguments, rows[i].ranks, true);
}

/* Weights and optimizer outweigh everything in the first, activations in the second. */
#define WIDE "--layers 2 --channels 1024 --heads 16 --seq-len 16 --batch 4 --microbatch 2 "
#define LONG "--layers 6 --channels 128 --heads 2 --seq-len 512 --microbatch 16 "

Test(memory_of_ranks, one_rank_wide)
{
    check_run(WIDE, 1);
}

Test(memory_of_ranks, one_rank_long)
{
    check_run(LONG "--batch 16 ", 1);
}

Test(memory_of_ranks, recomputed_activations)
{
    check_run("--layers 8 --channels 128 --heads 2 --seq-len 256 --batch 64 --microbatch 64 "
              "--recompute ",
              1);
}

Test(memory_of_ranks, replicas_share_the_optimizer)
{
    check_run(WIDE "--local 2 --data-parallel 2 ", 2);
}

Test(memory_of_ranks, stages_with_tied_embedding)
{
    check_run("--layers 4 --channels 1024 --heads 16 --seq-len 16 --batch 4 --microbatch 2 "
              "--local 2 --pipeline 2 --tied --vocab 4000 ",
              2);
}

Test(memory_of_ranks, tensor_ranks)
{
    check_run("--layers 4 --channels 1024 --heads 16 --seq-len 16 --batch 4 --microbatch 2 "
              "--local 2 --tensor 2 ",
              2);
}

Test(memory_of_ranks, virtual_stages)
{
    check_run("--layers 4 --channels 1024 --heads 16 --seq-len 16 --batch 8 --microbatch 2 "
              "--local 2 --pipeline 2 --virtual-stages 2 ",
              2);
}

#endif

/* --- before anything runs ------------------------------------------------------------------------
 */

Test(memory, dry_run_prints_every_stage_without_data_or_ranks)
{
    struct process p;

    process_start(&p, NULL,
                  "--dry-run --layers 6 --channels 64 --heads 4 --vocab 100 --pipeline 2 "
                  "--stage-layers 2,4 --tensor 2 --data-parallel 4 --batch 64");
    cr_assert(process_wait(&p, PATIENCE_MS));
    cr_expect_eq(p.status, 0, "%s", p.err);
    cr_expect_not_null(strstr(p.out, "over tensor 2 x pipeline 2 x data 4 = 16 ranks"), "%s",
                       p.out);
    cr_expect_not_null(strstr(p.out, "\n    1       1       4 "), "%s", p.out);
    process_start(&p, NULL, "--dry-run --layers 6");
    cr_assert(process_wait(&p, PATIENCE_MS));
    cr_expect_eq(p.status, 2);
    cr_expect_not_null(strstr(p.err, "--dry-run without --data needs --vocab"), "%s", p.err);
}

/* bf16: half the parameters and activations, and masters beside the moments of the optimizer. */
Test(memory, dry_run_needs_no_gpu_to_tell_what_one_holds)
{
    static const char *const expected[][2] = {{"cuda", " 1.3        1.3        2.5 "},
                                              {"cuda-bf16", " 0.6        1.3        3.8 "}};
    struct process p;

    for (size_t i = 0; i < 2; i++) {
        process_start(&p, NULL,
                      "--dry-run --layers 6 --channels 64 --heads 4 --vocab 100 --kernels %s",
                      expected[i][0]);
        cr_assert(process_wait(&p, PATIENCE_MS));
        cr_expect_eq(p.status, 0, "%s: status %d, %s", expected[i][0], p.status, p.err);
        cr_expect_not_null(strstr(p.out, expected[i][1]), "%s", p.out);
    }
}
