/* The plan as text: what is written is read back, and what contradicts itself is refused. */
#include <errno.h>
#include <math.h>
#include <stdio.h>

#include "plans.h"

static const int layers_7887[] = {7, 8, 8, 7};
static const struct plan_part two_clusters[] = {
    {"a[001-004]", 8, "ib", HOLMES_LINK_INFINIBAND, true},
    {"b[1-3],c7", 8, "B", HOLMES_LINK_ETHERNET, false},
};

static struct holmes_plan_doc two(void)
{
    const struct plan_shape shape = {.model = "gpt-3.6b",
                                     .layers = 30,
                                     .tensor = 2,
                                     .pipeline = 4,
                                     .data = 8,
                                     .stage_layers = layers_7887,
                                     .tied = true,
                                     .rtt_ms = 20,
                                     .gbps = 12.5,
                                     .window_bytes = 31250000};

    return plan_make(&shape, two_clusters, 2);
}

/* The document as text, malloc()ed. */
static char *written(const struct holmes_plan_doc *doc)
{
    char *text = NULL;
    size_t len = 0;
    FILE *out = open_memstream(&text, &len);

    cr_assert(holmes_plan_write(doc, out) == 0);
    fclose(out);
    return text;
}

Test(plan_io, reads_what_it_wrote)
{
    struct holmes_plan_doc doc = two(), again;
    char *text, *second, why[512] = "";

    doc.plan->cost.step_s = 1.0 / 3;
    doc.plan->nnotes = 1;
    doc.plan->notes = calloc(1, sizeof *doc.plan->notes);
    doc.plan->notes[0] = strdup("tensor 2: \"as asked\"");
    doc.plan->nidle = 1;
    doc.plan->idle = calloc(1, sizeof *doc.plan->idle);
    doc.plan->idle[0] = (struct holmes_plan_idle){1, 2, 2, 8, strdup("no pair")};
    text = written(&doc);
    cr_assert(holmes_plan_parse("p", text, strlen(text), &again, why, sizeof why) == 0, "%s", why);
    cr_expect(again.plan->world == 64 && again.plan->nnodes == 8 && again.plan->nstages == 4);
    cr_expect(again.plan->nodes[7].first_rank == 56 && again.plan->nodes[7].group == 1 &&
              again.plan->nodes[7].host == 3);
    cr_expect(again.plan->stages[2].layers == 8 && again.plan->stages[2].fabric == 1);
    cr_expect(again.plan->nedges == 4 && again.plan->edges[1].crosses &&
              again.plan->edges[3].to_stage == 0);
    cr_expect(fabs(again.plan->cost.step_s - 1.0 / 3) < 1e-15);
    cr_expect_str_eq(again.plan->notes[0], "tensor 2: \"as asked\"");
    cr_expect_str_eq(again.plan->idle[0].reason, "no pair");
    cr_expect(again.request.model.tied && again.request.global_batch == 768);
    cr_expect_str_eq(again.cluster->groups[0].fabric, "ib");
    cr_expect(!again.cluster->groups[1].fabric);
    cr_expect(again.cluster->types[0].nics[0].numa == -1);
    second = written(&again);
    cr_expect_str_eq(second, text);
    free(text);
    free(second);
    holmes_plan_doc_fini(&doc);
    holmes_plan_doc_fini(&again);
}

Test(plan_io, ten_thousand_equal_nodes_are_a_few_lines)
{
    static const int even[] = {12, 12};
    static const struct plan_part parts[] = {
        {"a[00001-10000]", 8, "A", HOLMES_LINK_INFINIBAND, false}};
    const struct plan_shape shape = {.model = "big",
                                     .layers = 24,
                                     .tensor = 8,
                                     .pipeline = 2,
                                     .data = 5000,
                                     .stage_layers = even};
    struct holmes_plan_doc doc = plan_make(&shape, parts, 1), again;
    char *text = written(&doc), why[512];
    int lines = 0;

    for (const char *p = text; *p; p++)
        lines += *p == '\n';
    cr_expect(lines < 80 && strlen(text) < 8192, "%d lines, %zu bytes", lines, strlen(text));
    cr_expect(strstr(text, "\"a[00001-10000]\""));
    cr_assert(holmes_plan_parse("p", text, strlen(text), &again, why, sizeof why) == 0, "%s", why);
    cr_expect(again.plan->nodes[9999].first_rank == 79992);
    free(text);
    holmes_plan_doc_fini(&doc);
    holmes_plan_doc_fini(&again);
}

/* Each changes the first `from` of a good document into `to`. */
static const struct {
    const char *from, *to, *says;
} bad[] = {
    {"\"holmes-plan\": 1", "\"holmes-plan\": 2", "version 2"},
    {"\"holmes-plan\": 1", "\"x\": 1", "no plan of holmes-topo"},
    {"{\n", "[\n", "line"},
    {"\"tensor\": 2,", "\"tensor\": 2 \"x\"", "line"},
    {"\"tensor\": 2,", "\"tensor\": 2, \"tensor\": 2,", "uplicate"},
    {"\"tensor\": 2,", "", "plan.tensor is missing"},
    {"\"tensor\": 2,", "\"tensor\": 2, \"tensors\": 2,", "\"tensors\""},
    {"\"tensor\": 2,", "\"tensor\": 0,", "plan.tensor is 0: a whole number from 1"},
    {"\"tensor\": 2,", "\"tensor\": 2.5,", "plan.tensor is 2.5"},
    {"\"tensor\": 2,", "\"tensor\": \"2\",", "plan.tensor is a text"},
    {"\"tensor\": 2,", "\"tensor\": 4,", "plan.world is 64, but tensor 4 x data 8 x pipeline 4"},
    {"\"data\": 8,", "\"data\": 1000000000,", "plan.world"},
    {"\"microbatches\": 24", "\"microbatches\": 23", "plan.microbatches is 23"},
    {"\"layers\": 8", "\"layers\": 9", "stages[2].first_layer is 15, but layer 16 is next"},
    {"\"layers\": 8", "\"layers\": 0", "plan.stages[1].layers is 0"},
    {"\"layers\": 30", "\"layers\": 31", "add up to the model's 31"},
    {"\"layers\": 30", "\"layers\": 6", "add up to the model's 6"},
    {"\"layers\": 30", "\"layers\": 15", "add up to the model's 15"}, /* two stages' */
    {"\"nhosts\": 4", "\"nhosts\": 3", "first_host and nhosts say"},
    {"\"nhosts\": 4", "\"nhosts\": 5", "hosts 0 to 4 of a group of 4"},
    {"\"nhosts\": 4", "\"nhosts\": 200000", "of a group of 4"},
    {"\"first_host\": 0", "\"first_host\": -1", "first_host is -1"},
    {"\"group\": 0", "\"group\": 2", "plan.nodes[0].group is 2, but there are 2 groups"},
    {"\"gpus\": 8, \"first_rank\": 0", "\"gpus\": 9, \"first_rank\": 0",
     "9 GPUs of a001, which has 8"},
    {"\"gpus\": 8, \"first_rank\": 0", "\"gpus\": 7, \"first_rank\": 0", "no multiple of tensor 2"},
    {"\"first_rank\": 32", "\"first_rank\": 31", "first_rank 31, but 32 is next"},
    {"{\"hosts\": \"b[1-3],c7\", \"group\": 1, \"first_host\": 0",
     "{\"hosts\": \"a[001-004]\", \"group\": 0, \"first_host\": 0", "the host a001 twice"},
    {"\"fabric\": \"B\"", "\"fabric\": \"Q\"", "stages[2].fabric is \"Q\": there is no fabric"},
    {"\"fabric\": \"B\"", "\"fabric\": \"ib\"", "stages[2].fabric is \"ib\", but its first node"},
    {"\"last_node\": 1", "\"last_node\": 0", "nodes 0 to 0 do not hold its ranks 0 to 15"},
    {"\"last_node\": 1", "\"last_node\": 9", "nodes 0 to 9 do not hold"},
    {"\"to_stage\": 1", "\"to_stage\": 2", "edges[0] goes from stage 0 to 2"},
    {"\"from_stage\": 1, \"to_stage\": 2", "\"from_stage\": 0, \"to_stage\": 1",
     "edges[1] goes from stage 0 to 1"}, /* twice, and one is missing */
    {"\"from_stage\": 2, \"to_stage\": 3", "\"from_stage\": 3, \"to_stage\": 0",
     "edges[2] goes from stage 3 to 0"},
    {"\"hosts\": \"b[1-3],c7\", \"type\"", "\"hosts\": \"b[3-1]\", \"type\"",
     "cluster.groups[1].hosts: "},
    {"\"hosts\": \"b[1-3],c7\", \"type\"", "\"hosts\": \"b[1-2],a002,c7\", \"type\"",
     "groups[1] has the host a002"},
    {"\"in\": \"B\"", "\"in\": \"C\"", "groups[1].in is \"C\""},
    {"\"in\": \"B\"", "\"slots\": 0", "b1, which is in no fabric"},
    {"\"type\": \"type1\"", "\"type\": \"type1\", \"state\": \"idle\"",
     "b1, which the cluster calls"},
    {"\"type\": \"type1\"", "\"type\": \"type1\", \"state\": \"gone\"",
     "state is \"gone\": one of ok, idle, defective"},
    {"\"type\": \"type1\"", "\"type\": \"type1\", \"slots\": 4", "8 GPUs of b1, which has 4"},
    {"\"type\": \"type1\"", "\"type\": \"type9\"", "no node type of that name"},
    {"\"name\": \"type1\"", "\"name\": \"type0\"", "as that of types[0]"},
    {"\"name\": \"ib\"", "\"name\": \"i\\nb\"", "fabrics[0].name has a control character"},
    {"\"name\": \"gpt-3.6b\"", "\"name\": \"gpt\\u001b\"", "model.name has a control character"},
    {"\"step_s\": 8.25", "\"step_s\": -1", "plan.cost.step_s is -1"},
    {"\"step_s\": 8.25", "\"step_s\": 1e300", "plan.cost.step_s"},
    {"\"global_batch\": 768", "\"global_batch\": 4611686018427387904", "request.global_batch"},
};

static char *replaced(const char *text, const char *from, const char *to)
{
    const char *at = strstr(text, from);
    char *out;

    cr_assert(at, "the document has no %s:\n%s", from, text);
    cr_assert(asprintf(&out, "%.*s%s%s", (int)(at - text), text, to, at + strlen(from)) > 0);
    return out;
}

Test(plan_io, refuses_what_contradicts_itself)
{
    struct holmes_plan_doc doc = two(), out = {0};
    char *text = written(&doc), why[512];

    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        char *changed = replaced(text, bad[i].from, bad[i].to);
        int rc = holmes_plan_parse("plan.json", changed, strlen(changed), &out, why, sizeof why);

        cr_expect(rc == -EINVAL, "%s: %d", bad[i].to, rc);
        cr_expect(strncmp(why, "plan.json: ", 11) == 0 && strstr(why, bad[i].says), "%s: \"%s\"",
                  bad[i].to, why);
        cr_expect(!out.plan, "touched on failure");
        free(changed);
    }
    for (size_t len = 0; len < strlen(text) - 2; len += 7)
        cr_expect(holmes_plan_parse("plan.json", text, len, &out, why, sizeof why) == -EINVAL);
    free(text);
    holmes_plan_doc_fini(&doc);
}

/* People's texts come from files that take any. */
Test(plan_io, what_is_written_is_read_whatever_its_texts_are)
{
    struct holmes_plan_doc doc = two(), again = {0};
    char *text, why[512] = "";

    free(doc.cluster->name);
    doc.cluster->name = strdup("two\nfloors\t\x1b[31m \u00e9");
    free(doc.cluster->groups[1].why);
    doc.cluster->groups[1].why = strdup("line 1\nline 2");
    text = written(&doc);
    cr_assert_eq(holmes_plan_parse("p", text, strlen(text), &again, why, sizeof why), 0, "%s", why);
    cr_expect_str_eq(again.cluster->name, "two?floors??[31m \u00e9");
    cr_expect_str_eq(again.cluster->groups[1].why, "line 1?line 2");
    free(text);
    holmes_plan_doc_fini(&doc);
    holmes_plan_doc_fini(&again);
}

Test(plan_io, refuses_stages_that_nothing_joins)
{
    struct holmes_plan_doc doc = two(), out = {0};
    char *text = written(&doc), why[512] = "";
    char *edges = strstr(text, "\"edges\": [") + strlen("\"edges\": [");
    char *end = strchr(edges, ']');

    memset(edges, ' ', (size_t)(end - edges));
    cr_expect(holmes_plan_parse("p", text, strlen(text), &out, why, sizeof why) == -EINVAL);
    cr_expect_str_eq(why, "p: plan.edges: 0 of them do not join 4 stages");
    free(text);
    holmes_plan_doc_fini(&doc);
}

Test(plan_io, names_the_file_that_is_not_there)
{
    struct holmes_plan_doc out;
    char why[256];

    cr_expect(holmes_plan_read("/nonexistent/plan.json", &out, why, sizeof why) == -ENOENT);
    cr_expect_str_eq(why, "/nonexistent/plan.json: No such file or directory");
}

Test(plan_io, tells_that_the_disk_is_full)
{
    struct holmes_plan_doc doc = two();
    FILE *full = fopen("/dev/full", "w");

    if (full) {
        cr_expect(holmes_plan_write(&doc, full) == -EIO);
        fclose(full);
    }
    holmes_plan_doc_fini(&doc);
}
