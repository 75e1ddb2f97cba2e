/* Overlap as the built program does it, over the plugin: what its trace shows ran when, that
 * measuring changes nothing, and what is refused. */
#include <criterion/criterion.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "../support/test_folder.h"
#include "jsonlog.h"
#include "process.h"

#define PATIENCE_MS 120000
#define STEPS       6
#define RANKS       4
#define ROUNDED     0.002 /* us: times are written with three digits */
/* Enough layers and buckets for something to run while something else does. */
#define MODEL "--layers 8 --channels 64 --heads 2 --seq-len 32 --batch 8 --microbatch 1 --threads 1"

static char dir[TEST_FOLDER_MAX];

static void set_up(void)
{
    char path[128];

    test_folder_make(dir, "overlap");
    snprintf(path, sizeof path, "%s/text", dir);
    test_folder_text(path, "the adventure of the dancing men ", "elementary\n");
}

static void tear_down(void)
{
    test_folder_remove(dir);
}

TestSuite(overlap, .init = set_up, .fini = tear_down, .timeout = 600);

/* Four ranks train; returns what they printed, static. */
static const char *train(const char *more)
{
    static struct process p;
    const char *plugin = getenv("TEST_NET_PLUGIN");

    cr_assert_not_null(plugin);
    process_start(&p, NULL,
                  "--data %s/text " MODEL " --local %d --pipeline 2 --data-parallel 2 --steps %d "
                  "--bucket-mb 0.1 --plugin %s --log %s/log %s",
                  dir, RANKS, STEPS, plugin, dir, more);
    cr_assert(process_wait(&p, PATIENCE_MS), "still running: %s", more);
    cr_assert_eq(p.status, 0, "%s: %s", more, p.err);
    return p.out;
}

/* --- the trace ---------------------------------------------------------------------------------
 */

struct span {
    char name[32], track[32];
    int rank, step;
    double begin, end;
};

struct trace {
    struct span *spans;
    size_t n;
};

static const char *text_of(const json_t *object, const char *key)
{
    const char *s = json_string_value(json_object_get(object, key));

    return s ? s : "";
}

static int number(const json_t *object, const char *key)
{
    return (int)json_integer_value(json_object_get(object, key));
}

/* Every complete event with the name of its track, which must have one. */
static struct trace read_trace(void)
{
    static char tracks[RANKS][64][32];
    struct trace t = {0};
    char path[128];
    json_error_t error;
    json_t *doc, *events, *e;
    size_t i;

    snprintf(path, sizeof path, "%s/trace", dir);
    doc = json_load_file(path, 0, &error);
    cr_assert_not_null(doc, "trace: line %d: %s", error.line, error.text);
    events = json_object_get(doc, "traceEvents");
    t.spans = calloc(json_array_size(events), sizeof *t.spans);
    memset(tracks, 0, sizeof tracks);
    json_array_foreach(events, i, e)
    {
        json_t *args = json_object_get(e, "args");
        int rank = number(e, "pid"), track = number(e, "tid");
        struct span *s = &t.spans[t.n];

        cr_assert(rank >= 0 && rank < RANKS && track >= 0 && track < 64);
        if (strcmp(text_of(e, "name"), "thread_name") == 0)
            snprintf(tracks[rank][track], 32, "%s", text_of(args, "name"));
        if (strcmp(text_of(e, "ph"), "X") != 0)
            continue;
        cr_assert_neq(tracks[rank][track][0], '\0', "an event on a track without a name");
        *s = (struct span){.rank = rank,
                           .step = number(args, "step"),
                           .begin = json_number_value(json_object_get(e, "ts"))};
        s->end = s->begin + json_number_value(json_object_get(e, "dur"));
        snprintf(s->name, sizeof s->name, "%s", text_of(e, "name"));
        snprintf(s->track, sizeof s->track, "%s", tracks[rank][track]);
        t.n++;
    }
    json_decref(doc);
    return t;
}

static bool is(const struct span *s, const char *what)
{
    return strncmp(s->name, what, strlen(what)) == 0;
}

/* The earliest begin, or the latest end, of the spans of a kind in a step; of one rank or, with -1,
 * of all. NAN when there is none. */
static double earliest(const struct trace *t, const char *what, int step, int rank)
{
    double at = NAN;

    for (size_t i = 0; i < t->n; i++) {
        const struct span *s = &t->spans[i];

        if (is(s, what) && s->step == step && (rank < 0 || s->rank == rank))
            at = fmin(at, s->begin);
    }
    return at;
}

static double latest(const struct trace *t, const char *what, int step, int rank)
{
    double at = NAN;

    for (size_t i = 0; i < t->n; i++) {
        const struct span *s = &t->spans[i];

        if (is(s, what) && s->step == step && (rank < 0 || s->rank == rank))
            at = fmax(at, s->end);
    }
    return at;
}

/* Reductions that began before the last backward of their rank and step had ended. */
static int under_backward(const struct trace *t)
{
    int n = 0;

    for (size_t i = 0; i < t->n; i++) {
        const struct span *s = &t->spans[i];

        if (is(s, "reduce-scatter") && s->begin < latest(t, "backward", s->step, s->rank))
            n++;
    }
    return n;
}

/* Gathers that ended after their rank's next step had begun to compute. */
static int under_forward(const struct trace *t)
{
    int n = 0;

    for (size_t i = 0; i < t->n; i++) {
        const struct span *s = &t->spans[i];

        for (int step = 1; is(s, "all-gather") && step <= STEPS; step++) {
            double from = earliest(t, "forward", step, s->rank);

            n += s->begin < latest(t, "forward", step, s->rank) && s->end > from;
        }
    }
    return n;
}

static void check_nesting(const struct trace *t)
{
    for (size_t i = 0; i < t->n; i++)
        for (size_t j = 0; j < t->n; j++) {
            const struct span *a = &t->spans[i], *b = &t->spans[j];

            if (a->rank == b->rank && strcmp(a->track, b->track) == 0 && a->begin < b->begin &&
                b->begin < a->end - ROUNDED)
                cr_assert_leq(b->end, a->end + ROUNDED, "rank %d, %s: \"%s\" and \"%s\" cross",
                              a->rank, a->track, a->name, b->name);
        }
}

static void run_traced(const char *more, struct trace *t)
{
    char arguments[256];

    snprintf(arguments, sizeof arguments, "--trace %s/trace %s", dir, more);
    cr_assert_not_null(strstr(train(arguments), "events"));
    *t = read_trace();
}

Test(overlap, with_clipping_no_update_starts_before_the_last_reduction_has_ended)
{
    struct trace t;

    run_traced("--clip 0.01 --tied", &t);
    for (int step = 1; step <= STEPS; step++) {
        double update = earliest(&t, "adamw", step, -1);
        double reduced = latest(&t, "reduce-scatter", step, -1);
        double summed = latest(&t, "norm", step, -1);

        cr_expect_geq(update, reduced, "step %d: an update began %g us before", step,
                      reduced - update);
        cr_expect_geq(update, summed, "step %d: an update began before the norm was known", step);
    }
    check_nesting(&t);
    free(t.spans);
}

Test(overlap, reductions_run_under_backward_and_gathers_under_the_next_forward)
{
    struct trace t;

    run_traced("", &t);
    cr_expect_gt(under_backward(&t), 0);
    cr_expect_gt(under_forward(&t), 0);
    free(t.spans);
    run_traced("--overlap off", &t);
    cr_expect_eq(under_backward(&t), 0);
    cr_expect_eq(under_forward(&t), 0);
    free(t.spans);
}

/* Chunk 1 is done with backward before chunk 0: its gradients are summed meanwhile. */
Test(overlap, virtual_stages_are_traced_chunk_by_chunk)
{
    struct trace t;

    run_traced("--virtual-stages 2", &t);
    for (int rank = 0; rank < RANKS; rank++) {
        cr_expect(latest(&t, "backward 3.1", 2, rank) <= earliest(&t, "backward 3.0", 2, rank));
        cr_expect(!isnan(earliest(&t, "layer 0", 2, rank)) == (rank < RANKS / 2));
        cr_expect(!isnan(earliest(&t, "layer 7", 2, rank)) == (rank >= RANKS / 2));
    }
    check_nesting(&t);
    free(t.spans);
}

/* --- measuring ---------------------------------------------------------------------------------
 */

struct curve {
    double loss[STEPS], held_out;
    bool measured;
    double off_ms;
};

static struct curve read_log(void)
{
    struct curve c = {0};
    char path[128], why[200];
    json_t *records, *r;
    bool cut;
    size_t i;

    snprintf(path, sizeof path, "%s/log", dir);
    cr_assert_eq(holmes_jsonlog_read(path, &records, &cut, why, sizeof why), 0, "%s", why);
    json_array_foreach(records, i, r)
    {
        const char *kind = text_of(r, "record");
        double loss = json_real_value(json_object_get(r, "loss"));

        if (strcmp(kind, "step") == 0)
            c.loss[number(r, "step") - 1] = loss;
        else if (strcmp(kind, "held_out") == 0)
            c.held_out = loss;
        else if (strcmp(kind, "overlap") == 0) {
            c.measured = true;
            c.off_ms = json_real_value(json_object_get(json_object_get(r, "off_ms"), "median"));
        }
    }
    json_decref(records);
    return c;
}

Test(overlap, measuring_it_leaves_training_as_it_was)
{
    struct curve with, without;
    const char *says;

    train("--tied");
    without = read_log();
    says = train("--tied --measure-overlap 2");
    with = read_log();
    cr_expect_not_null(strstr(says, "no communication"), "%s", says);
    cr_expect(with.measured && !without.measured);
    cr_expect_gt(with.off_ms, 0);
    for (int i = 0; i < STEPS; i++)
        cr_expect(with.loss[i] == without.loss[i], "step %d: loss %.17g, %.17g without measuring",
                  i + 1, with.loss[i], without.loss[i]);
    cr_expect(with.held_out == without.held_out);
}

/* --- bad input ---------------------------------------------------------------------------------
 */

Test(overlap, refuses_what_does_not_go_together)
{
    static const struct {
        const char *arguments, *says;
    } cases[] = {
        {"--overlap maybe", "on or off"},
        {"--bucket-mb -1", "from 0 to"},
        {"--virtual-stages 0", "from 1 to 16"},
        {"--virtual-stages 2", "--pipeline 1 there is no bubble"},
        {"--virtual-stages 2 --pipeline 2 --local 2 --layers 3", "4 parts"},
        {"--virtual-stages 2 --pipeline 2 --local 2 --batch 6", "multiple of 2"},
        {"--virtual-stages 2 --pipeline 2 --local 2 --stage-layers 2,2", "4 numbers"},
        {"--trace /nowhere/trace", "/nowhere/trace"},
    };

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct process p;

        process_start(&p, NULL, "--data %s/text --layers 4 %s", dir, cases[i].arguments);
        cr_expect(process_wait(&p, PATIENCE_MS));
        cr_expect_eq(p.status, 2, "%s: status %d", cases[i].arguments, p.status);
        cr_expect_not_null(strstr(p.err, cases[i].says), "%s: \"%s\" expected, it says: %s",
                           cases[i].arguments, cases[i].says, p.err);
        process_kill_group(&p);
    }
}
