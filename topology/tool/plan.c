/* holmes-topo plan: reads a cluster, asks for a model, and shows or writes the plan. */
#include <argp.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "hostfile.h"
#include "log.h"
#include "output.h"
#include "plan_hosts.h"
#include "plan_show.h"
#include "verbs.h"

enum {
    KEY_HOSTFILE = 256,
    KEY_GPUS,
    KEY_MODEL,
    KEY_LAYERS,
    KEY_HIDDEN,
    KEY_HEADS,
    KEY_SEQUENCE,
    KEY_VOCABULARY,
    KEY_FFN,
    KEY_UNTIED,
    KEY_RECOMPUTE,
    KEY_NO_SEQUENCE,
    KEY_SCORES,
    KEY_FP32,
    KEY_HOLMES_TRAIN,
    KEY_HALF_GRADIENTS,
    KEY_WHOLE_OPTIMIZER,
    KEY_TENSOR,
    KEY_PIPELINE,
    KEY_DATA,
    KEY_MICRO,
    KEY_BATCH,
    KEY_CROSS,
    KEY_NO_OVERLAP,
    KEY_EFFICIENCY,
    KEY_WINDOW,
    KEY_SEPARATE,
    KEY_JSON,
    KEY_EXPLAIN,
};

struct options {
    const char *cluster, *hostfile, *output;
    int gpus_per_node;
    struct holmes_plan_request request;
    struct holmes_gpt given; /* sizes told one by one; 0: not told */
    bool has_model, has_vocabulary, untied, recompute, no_sequence, scores, fp32, half_gradients;
    bool holmes_train, whole_optimizer, separate, json, explain;
};

static const struct argp_option argp_options[] = {
    {NULL, 0, NULL, 0, "Which machines, where there is no cluster file:", 1},
    {"hostfile", KEY_HOSTFILE, "FILE", 0,
     "hosts and slots (GPUs) as launchers take them, as one cluster of equal GPUs of which nothing "
     "else is known",
     0},
    {"gpus-per-node", KEY_GPUS, "N", 0, "GPUs of hosts whose slots the hostfile does not tell", 0},
    {NULL, 0, NULL, 0, "The model:", 2},
    {"model", KEY_MODEL, "NAME", 0,
     "gpt2-124m, gpt2-1.5b, gpt-3.6b, gpt-7.5b, gpt-39.1b, ... (a wrong name lists all); sizes "
     "given "
     "besides replace its own",
     0},
    {"layers", KEY_LAYERS, "N", 0, "transformer layers", 0},
    {"hidden", KEY_HIDDEN, "N", 0, "hidden size", 0},
    {"heads", KEY_HEADS, "N", 0, "attention heads", 0},
    {"sequence", KEY_SEQUENCE, "N", 0, "tokens of a sequence (default 2048)", 0},
    {"vocabulary", KEY_VOCABULARY, "N", 0,
     "tokens known; without it embedding and head count nothing", 0},
    {"ffn", KEY_FFN, "N", 0, "inner size of the MLP (default 4 x hidden)", 0},
    {"untied", KEY_UNTIED, NULL, 0, "the head has weights of its own", 0},
    {"recompute", KEY_RECOMPUTE, NULL, 0, "recompute all activations in the backward", 0},
    {"no-sequence-parallel", KEY_NO_SEQUENCE, NULL, 0,
     "every GPU of a tensor group keeps, and sends to the next stage, all activations", 0},
    {"store-scores", KEY_SCORES, NULL, 0, "attention scores are kept (no flash attention)", 0},
    {"fp32", KEY_FP32, NULL, 0, "weights in fp32 (default: bf16 with fp32 master weights)", 0},
    {"holmes-train", KEY_HOLMES_TRAIN, NULL, 0,
     "for holmes-train on CPUs: fp32, no sequence parallelism, its memory", 0},
    {"half-gradients", KEY_HALF_GRADIENTS, NULL, 0,
     "gradients in 2 bytes, as Megatron-LM's --fp16 keeps them (default: fp32)", 0},
    {"whole-optimizer", KEY_WHOLE_OPTIMIZER, NULL, 0,
     "every replica keeps the whole optimizer state (default: the distributed optimizer)", 0},
    {NULL, 0, NULL, 0, "The job (sizes left out are chosen):", 3},
    {"global-batch", KEY_BATCH, "N", 0, "sequences per step; needed", 0},
    {"micro-batch", KEY_MICRO, "N", 0, "sequences of one microbatch", 0},
    {"tensor", KEY_TENSOR, "N", 0, "GPUs that share each layer, inside a node", 0},
    {"pipeline", KEY_PIPELINE, "N", 0, "stages", 0},
    {"data", KEY_DATA, "N", 0, "replicas", 0},
    {"allow-cross", KEY_CROSS, NULL, 0,
     "let data groups straddle fabrics, with a warning, in place of a refusal", 0},
    {"separate-ambiguous", KEY_SEPARATE, NULL, 0,
     "nodes of which nobody knows whether RDMA joins them are kept apart, in place of a refusal",
     0},
    {NULL, 0, NULL, 0, "The cost model:", 4},
    {"efficiency", KEY_EFFICIENCY, "SHARE", 0,
     "of the told TFLOPS that a layer reaches (default 0.565)", 0},
    {"no-overlap", KEY_NO_OVERLAP, NULL, 0, "the data groups' traffic is not hidden behind compute",
     0},
    {"window", KEY_WINDOW, "BYTES", 0,
     "what NCCL keeps under way to a peer; 2097152 is its own (default: what the slowest link "
     "needs, "
     "which emit sets)",
     0},
    {NULL, 0, NULL, 0, "What to write:", 5},
    {"output", 'o', "FILE", 0, "the plan for emit, draw and check, as JSON; - is the output", 0},
    {"json", KEY_JSON, NULL, 0, "that in place of the tables", 0},
    {"explain", KEY_EXPLAIN, NULL, 0, "why it is so: fabrics, choices, assumptions", 0},
    {NULL, 0, NULL, 0, "Help:", -1},
    {0},
};

static const char argp_doc[] =
    "Plans who does what: the sizes of tensor, pipeline and data parallelism, which nodes carry "
    "which stage, the layers of every stage, and what a step will cost."
    "\v"
    "CLUSTER is a cluster file (docs/cluster-file.md), as `holmes-topo gather` writes it. A tensor "
    "group lies in a node, a data group in one RDMA fabric; only the messages between stages cross "
    "from fabric to fabric. What does not fit is refused with the reason. The rules and a worked "
    "example: docs/plan.md.\n"
    "\n"
    "Examples:\n"
    "  holmes-topo plan c.yaml --model gpt-3.6b --global-batch 768\n"
    "  holmes-topo plan c.yaml --model gpt-39.1b --global-batch 1536 --tensor 8\n"
    "  holmes-topo plan c.yaml --layers 24 --hidden 2048 --heads 16 \\\n"
    "      --vocabulary 50304 --global-batch 512 --explain -o plan.json\n"
    "  holmes-topo plan --hostfile hosts --model gpt2-1.5b --global-batch 512\n"
    "\n"
    "Exit status: 0 a plan; 1 it cannot be written; 2 usage, a bad file, or no plan meets the "
    "request.";

static int number(struct argp_state *state, const char *option, const char *text, long min,
                  long max)
{
    char *end;
    long value;

    errno = 0;
    value = strtol(text, &end, 10);
    if (end == text || *end || errno != 0 || value < min || value > max)
        argp_error(state, "--%s \"%s\": give a whole number from %ld to %ld", option, text, min,
                   max);
    return (int)value;
}

static double share(struct argp_state *state, const char *option, const char *text)
{
    char *end;
    double value = strtod(text, &end);

    if (end == text || *end || !(value > 0 && value <= 1))
        argp_error(state, "--%s \"%s\": give a share above 0, at most 1", option, text);
    return value;
}

#define SIZE_MOST (1 << 26)

static error_t parse_model(int key, char *arg, struct argp_state *state)
{
    struct options *o = state->input;
    char why[512];

    switch (key) {
    case KEY_MODEL:
        if (holmes_gpt_preset(arg, &o->request.model, why, sizeof(why)) != 0)
            argp_error(state, "%s", why);
        o->has_model = true;
        return 0;
    case KEY_LAYERS:
        o->given.layers = number(state, "layers", arg, 1, SIZE_MOST);
        return 0;
    case KEY_HIDDEN:
        o->given.hidden = number(state, "hidden", arg, 1, SIZE_MOST);
        return 0;
    case KEY_HEADS:
        o->given.heads = number(state, "heads", arg, 1, SIZE_MOST);
        return 0;
    case KEY_SEQUENCE:
        o->given.sequence = number(state, "sequence", arg, 1, SIZE_MOST);
        return 0;
    case KEY_VOCABULARY:
        o->given.vocabulary = number(state, "vocabulary", arg, 0, SIZE_MOST);
        o->has_vocabulary = true;
        return 0;
    case KEY_FFN:
        o->given.ffn = number(state, "ffn", arg, 1, SIZE_MOST);
        return 0;
    case KEY_UNTIED:
        o->untied = true;
        return 0;
    case KEY_RECOMPUTE:
        o->recompute = true;
        return 0;
    case KEY_NO_SEQUENCE:
        o->no_sequence = true;
        return 0;
    case KEY_SCORES:
        o->scores = true;
        return 0;
    case KEY_FP32:
        o->fp32 = true;
        return 0;
    case KEY_HOLMES_TRAIN:
        o->holmes_train = true;
        return 0;
    case KEY_HALF_GRADIENTS:
        o->half_gradients = true;
        return 0;
    case KEY_WHOLE_OPTIMIZER:
        o->whole_optimizer = true;
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static error_t parse_job(int key, char *arg, struct argp_state *state)
{
    struct options *o = state->input;
    struct holmes_plan_request *r = &o->request;

    switch (key) {
    case KEY_BATCH:
        r->global_batch = number(state, "global-batch", arg, 1, 1000000000);
        return 0;
    case KEY_MICRO:
        r->micro_batch = number(state, "micro-batch", arg, 1, INT32_MAX);
        return 0;
    case KEY_TENSOR:
        r->tensor = number(state, "tensor", arg, 1, SIZE_MOST);
        return 0;
    case KEY_PIPELINE:
        r->pipeline = number(state, "pipeline", arg, 1, SIZE_MOST);
        return 0;
    case KEY_DATA:
        r->data = number(state, "data", arg, 1, SIZE_MOST);
        return 0;
    case KEY_CROSS:
        r->allow_cross = true;
        return 0;
    case KEY_NO_OVERLAP:
        r->no_overlap = true;
        return 0;
    case KEY_EFFICIENCY:
        r->efficiency = share(state, "efficiency", arg);
        return 0;
    case KEY_WINDOW:
        r->window_bytes = number(state, "window", arg, 1, INT32_MAX);
        return 0;
    case KEY_SEPARATE:
        o->separate = true;
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

/* The preset, or a bf16 model with a tied head, with what was told put over it. */
static void model_settle(struct options *o, struct argp_state *state)
{
    struct holmes_gpt *m = &o->request.model;
    const struct holmes_gpt *g = &o->given;

    if (!o->has_model) {
        *m = (struct holmes_gpt){.sequence = 2048,
                                 .tied = true,
                                 .sequence_parallel = true,
                                 .distributed_optimizer = true,
                                 .bytes_per_weight = 2};
        if (!g->layers || !g->hidden || !g->heads)
            argp_error(state, "give --model, or --layers, --hidden and --heads");
    } else if (g->layers || g->hidden || g->heads || g->sequence || o->has_vocabulary || g->ffn) {
        m->name[0] = '\0';
    }
    m->layers = g->layers ? g->layers : m->layers;
    m->hidden = g->hidden ? g->hidden : m->hidden;
    m->heads = g->heads ? g->heads : m->heads;
    m->sequence = g->sequence ? g->sequence : m->sequence;
    m->vocabulary = o->has_vocabulary ? g->vocabulary : m->vocabulary;
    m->ffn = g->ffn ? g->ffn : m->ffn;
    m->tied &= !o->untied;
    m->recompute |= o->recompute;
    m->sequence_parallel &= !o->no_sequence;
    m->scores_stored |= o->scores;
    m->half_gradients |= o->half_gradients;
    m->distributed_optimizer &= !o->whole_optimizer;
    m->holmes_train |= o->holmes_train;
    m->sequence_parallel &= !m->holmes_train;
    if (o->fp32 || m->holmes_train)
        m->bytes_per_weight = 4;
}

static error_t parse_key(int key, char *arg, struct argp_state *state)
{
    struct options *o = state->input;
    error_t rc;

    switch (key) {
    case KEY_HOSTFILE:
        o->hostfile = arg;
        return 0;
    case KEY_GPUS:
        o->gpus_per_node = number(state, "gpus-per-node", arg, 1, HOLMES_SLOTS_MAX);
        return 0;
    case 'o':
        o->output = arg;
        return 0;
    case KEY_JSON:
        o->json = true;
        return 0;
    case KEY_EXPLAIN:
        o->explain = true;
        return 0;
    case ARGP_KEY_ARG:
        if (o->cluster)
            argp_error(state, "\"%s\": one cluster file at a time", arg);
        o->cluster = arg;
        return 0;
    case ARGP_KEY_END:
        if (!o->cluster && !o->hostfile)
            argp_error(state, "which cluster file?");
        if (o->cluster && o->hostfile)
            argp_error(state, "\"%s\" and --hostfile %s: one of them", o->cluster, o->hostfile);
        if (o->gpus_per_node && !o->hostfile)
            argp_error(state, "--gpus-per-node goes with --hostfile");
        if (o->request.global_batch == 0)
            argp_error(state, "--global-batch is needed: sequences per step, Megatron-LM's "
                              "--global-batch-size");
        if (o->json && o->output && strcmp(o->output, "-") == 0)
            argp_error(state, "--json and --output - are the same: give one");
        model_settle(o, state);
        return 0;
    default:
        rc = parse_model(key, arg, state);
        return rc == ARGP_ERR_UNKNOWN ? parse_job(key, arg, state) : rc;
    }
}

static int write_plan(const struct holmes_plan_doc *doc, const char *path, char *why,
                      size_t why_len)
{
    struct topo_output out;
    int rc = topo_output_open(path, 0666, &out, why, why_len);

    if (rc != 0)
        return rc;
    rc = holmes_plan_write(doc, out.file);
    if (rc != 0)
        snprintf(why, why_len, "%s: %s", path, holmes_strerror(rc));
    return topo_output_close(&out, rc, why, why_len);
}

static int refuse(int rc, const char *why)
{
    fprintf(stderr, "holmes-topo: %s\n", why[0] ? why : holmes_strerror(rc));
    return rc == -ENOMEM || rc == -EIO ? TOPO_FAILED : TOPO_USAGE;
}

/* What is wrong with fabrics, links and probes is wrong in the file. */
static int fabrics_find(const struct options *o, struct holmes_plan_doc *doc, char *why,
                        size_t why_len)
{
    char what[800] = "";
    int rc = holmes_fabrics_find(doc->cluster, o->separate, &doc->fabrics, what, sizeof(what));

    if (what[0])
        snprintf(why, why_len, "%.200s: %s", o->hostfile ? o->hostfile : o->cluster, what);
    return rc;
}

int topo_plan(int argc, char **argv)
{
    static const struct argp argp = {
        argp_options, parse_key, "CLUSTER\n--hostfile FILE", argp_doc, NULL, NULL, NULL};
    struct options o = {0};
    struct holmes_plan_doc doc = {0};
    char why[1024] = "";
    int rc, written = 0;

    argv[0] = (char *)"holmes-topo plan";
    argp_err_exit_status = TOPO_USAGE;
    argp_parse(&argp, argc, argv, 0, NULL, &o);
    doc.request = o.request;
    rc = o.hostfile ? topo_plan_hosts(o.hostfile, o.gpus_per_node, &doc.cluster, why, sizeof(why))
                    : holmes_cluster_read(o.cluster, &doc.cluster, why, sizeof(why));
    if (rc == 0)
        rc = fabrics_find(&o, &doc, why, sizeof(why));
    if (rc == 0)
        rc = holmes_plan_build(doc.cluster, doc.fabrics, &doc.request, &doc.plan, why, sizeof(why));
    if (rc != 0) {
        holmes_plan_doc_fini(&doc);
        return refuse(rc, why);
    }
    if (o.output)
        written = write_plan(&doc, o.output, why, sizeof(why));
    if (written != 0)
        fprintf(stderr, "holmes-topo: %s\n", why);
    if (o.json)
        rc = holmes_plan_write(&doc, stdout);
    else if (!o.output || strcmp(o.output, "-") != 0)
        rc = topo_plan_show(&doc, o.explain, stdout);
    if (rc == 0 && fflush(stdout) != 0)
        rc = -errno;
    if (rc != 0)
        fprintf(stderr, "holmes-topo: the output: %s\n", holmes_strerror(rc));
    holmes_plan_doc_fini(&doc);
    return rc == 0 && written == 0 ? TOPO_OK : TOPO_FAILED;
}
