/* The command line of holmes-train as one table, from which argp's options, --help and the check of
 * every single value are made; then the checks of values against each other. */
#include "config.h"

#include <argp.h>
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "group.h"

enum spec_type { SPEC_GROUP, SPEC_INT, SPEC_U64, SPEC_REAL, SPEC_TEXT, SPEC_FLAG, SPEC_OTHER };

struct spec {
    const char *name, *arg, *doc;
    enum spec_type type;
    size_t offset;
    double min, max;
};

#define AT(field)     offsetof(struct holmes_config, field)
#define INT_MAX_BATCH (1 << 20)

enum other { OTHER_PLACEMENT, OTHER_ORDER, OTHER_COMM, OTHER_LAUNCHED };

static const struct spec specs[] = {
    {.doc = "Model", .type = SPEC_GROUP},
    {"layers", "N", "transformer blocks (4)", SPEC_INT, AT(model.layers), 1, 1000},
    {"channels", "N", "width of the model, a multiple of the heads (128)", SPEC_INT,
     AT(model.channels), 1, 65536},
    {"heads", "N", "attention heads (4)", SPEC_INT, AT(model.heads), 1, 1024},
    {"seq-len", "N", "bytes in a sequence (64)", SPEC_INT, AT(model.seq_len), 1, 65536},
    {"tied", NULL, "the head uses the token embedding", SPEC_FLAG, AT(model.tied)},

    {.doc = "Training", .type = SPEC_GROUP},
    {"data", "FILE", "any text file; its bytes are the tokens", SPEC_TEXT, AT(data)},
    {"held-out", "X", "fraction of the file, its end, kept for evaluation (0.05)", SPEC_REAL,
     AT(heldout), 0.001, 0.9},
    {"batch", "N", "sequences in a step, over all replicas (16)", SPEC_INT, AT(batch), 1,
     INT_MAX_BATCH},
    {"microbatch", "N", "sequences that move through the pipeline together (2)", SPEC_INT,
     AT(microbatch), 1, INT_MAX_BATCH},
    {"steps", "N", "optimizer steps (100)", SPEC_INT, AT(steps), 1, 1e9},
    {"lr", "X", "learning rate after the warm-up (1e-3)", SPEC_REAL, AT(lr), 1e-12, 10},
    {"final-lr", "X", "learning rate of the last step, reached on half a cosine (a tenth of --lr)",
     SPEC_REAL, AT(final_lr), 0, 10},
    {"warmup", "N", "steps of linear warm-up (0)", SPEC_INT, AT(warmup), 0, 1e9},
    {"clip", "X", "largest global gradient norm, 0 for no limit (1)", SPEC_REAL, AT(clip), 0, 1e9},
    {"weight-decay", "X", "AdamW's decay of matrices (0.01)", SPEC_REAL, AT(weight_decay), 0, 10},
    {"seed", "N", "of weights and data; every split of the ranks sees the same (1)", SPEC_U64,
     AT(seed)},
    {"eval-every", "N", "evaluate on held-out text every N steps; 0: only at the end (0)", SPEC_INT,
     AT(eval_every), 0, 1e9},
    {"eval-sequences", "N", "held-out sequences of an evaluation at most; 0: none (64)", SPEC_INT,
     AT(eval_sequences), 0, 1e9},
    {"kernels", "ref|cpu", "plain C, or OpenBLAS and vectorised loops (cpu)", SPEC_TEXT,
     AT(kernels)},
    {"threads", "N", "threads of the kernels per rank; 0: cores / local ranks (0)", SPEC_INT,
     AT(threads), 0, 1024},

    {.doc = "Split and placement", .type = SPEC_GROUP},
    {"pipeline", "P", "pipeline stages (1)", SPEC_INT, AT(stages), 1, 1000},
    {"data-parallel", "D", "replicas of the pipeline (1)", SPEC_INT, AT(replicas), 1, 100000},
    {"placement", "planned|naive",
     "planned: tensor groups inside hosts, each stage inside one --cluster, pipelines across them "
     "(default); naive: pipelines "
     "on consecutive ranks, replicas across",
     SPEC_OTHER, OTHER_PLACEMENT},
    {"rank-order", "LIST",
     "explicit placement: entry (stage*D + replica)*T + tensor of the list is the rank that takes "
     "this place",
     SPEC_OTHER, OTHER_ORDER},
    {"stage-layers", "LIST", "layers of each stage (as even as it goes)", SPEC_TEXT,
     AT(stage_layers)},

    {.doc = "Ranks", .type = SPEC_GROUP},
    {"local", "N", "start N = P*D*T ranks on this machine", SPEC_INT, AT(local), 1, 1024},
    {"rank", "R",
     "be rank R of --world, started by hand on any machine; HOLMES_JOB_SECRET must be "
     "set, the same for all",
     SPEC_INT, AT(rank), 0, 100000},
    {"world", "N", "number of ranks = P*D*T", SPEC_INT, AT(world), 1, 100000},
    {"rendezvous", "HOST:PORT", "where the ranks find each other", SPEC_TEXT, AT(rendezvous)},
    {"serve", NULL,
     "host the rendezvous service: together with --rank in this rank; alone in a process of its "
     "own, that ends with the job",
     SPEC_FLAG, AT(serve)},
    {"host-label", "NAME[,NAME...]",
     "name of this rank's host in the log, or one for each rank "
     "(the host's name)",
     SPEC_TEXT, AT(host_labels)},
    {"cluster", "NAME[,NAME...]", "cluster of this rank, or one for each rank", SPEC_TEXT,
     AT(clusters)},
    {"join-timeout", "SECONDS", "wait so long for other ranks (60)", SPEC_INT, AT(join_timeout_s),
     1, 86400},
    {"op-timeout", "SECONDS", "wait so long for one operation between ranks (120)", SPEC_INT,
     AT(op_timeout_s), 1, 86400},

    {.doc = "Network", .type = SPEC_GROUP},
    {"plugin", "PATH|NAME",
     "NCCL net plugin that carries the bytes, found as NCCL finds "
     "NCCL_NET_PLUGIN (holmes)",
     SPEC_TEXT, AT(plugin)},
    {"net-device", "NAME", "device of the plugin (its first)", SPEC_TEXT, AT(device)},
    {"comm", "net|loopback", "loopback: no network, for one rank", SPEC_OTHER, OTHER_COMM},

    {.doc = "Output", .type = SPEC_GROUP},
    {"log", "FILE", "write every step as one line of JSON; see docs/trainer.md", SPEC_TEXT,
     AT(log)},
    {"quiet", NULL, "no progress line", SPEC_FLAG, AT(quiet)},
    {"launched", "PID:FD", NULL, SPEC_OTHER, OTHER_LAUNCHED}, /* no help: hidden */
};
#define NSPECS    (sizeof specs / sizeof *specs)
#define KEY_OF(i) ((int)(i) + 1000)

static const char program_doc[] =
    "Trains a GPT on the bytes of a text file, on one process or split over ranks as pipeline "
    "stages and replicas that talk through an NCCL net plugin.\v"
    "Examples:\n"
    "  holmes-train --data FILE\n"
    "      one process\n"
    "  holmes-train --data FILE --local 4 --pipeline 2 --data-parallel 2 --log run.jsonl\n"
    "      four ranks on this machine\n"
    "  HOLMES_JOB_SECRET=... holmes-train --data FILE --rank 1 --world 2 --pipeline 2 \\\n"
    "      --rendezvous 10.0.0.1:29500\n"
    "      one rank, started by hand; rank 0 gets --serve as well\n"
    "  holmes-train compare NAIVE.jsonl PLANNED.jsonl\n"
    "      what the placement of ranks changed (holmes-train compare --help)\n"
    "\n"
    "Exit status: 0 done; 1 this run failed; 2 bad usage or input; 3 another rank failed; "
    "130 or 143 ended by SIGINT or SIGTERM.";

static void bad_value(struct argp_state *state, const struct spec *s, const char *arg)
{
    if (s->type == SPEC_U64)
        argp_error(state, "--%s \"%s\": a whole number from 0 to 2^64-1 is right", s->name, arg);
    else
        argp_error(state, "--%s \"%s\": a %snumber from %.12g to %.12g is right", s->name, arg,
                   s->type == SPEC_INT ? "whole " : "", s->min, s->max);
}

static bool parse_number(const struct spec *s, const char *arg, void *field)
{
    char *end;
    double v = strtod(arg, &end);

    if (end == arg || *end != '\0' || !(v >= s->min && v <= s->max))
        return false;
    if (s->type == SPEC_REAL)
        *(double *)field = v;
    else if (v == floor(v))
        *(int *)field = (int)v;
    else
        return false;
    return true;
}

static bool parse_u64(const char *arg, uint64_t *out)
{
    char *end;

    errno = 0;
    if (*arg < '0' || *arg > '9')
        return false;
    *out = strtoull(arg, &end, 0);
    return *end == '\0' && errno == 0;
}

static void parse_other(struct argp_state *state, const struct spec *s, const char *arg,
                        struct holmes_config *c)
{
    switch ((enum other)s->offset) {
    case OTHER_PLACEMENT:
        if (strcmp(arg, "planned") == 0)
            c->placement = HOLMES_PLACEMENT_PLANNED;
        else if (strcmp(arg, "naive") == 0)
            c->placement = HOLMES_PLACEMENT_NAIVE;
        else
            argp_error(state, "--placement \"%s\": planned or naive is right", arg);
        break;
    case OTHER_ORDER:
        c->placement = HOLMES_PLACEMENT_ORDER;
        c->rank_order = arg;
        break;
    case OTHER_COMM:
        c->comm_given = true;
        if (strcmp(arg, "net") == 0)
            c->comm = HOLMES_COMM_NET;
        else if (strcmp(arg, "loopback") == 0)
            c->comm = HOLMES_COMM_LOOPBACK;
        else
            argp_error(state, "--comm \"%s\": net or loopback is right", arg);
        break;
    case OTHER_LAUNCHED:
        if (sscanf(arg, "%d:%d", &c->launcher_pid, &c->launcher_fd) != 2)
            argp_error(state, "--launched is for the launcher's own use");
        break;
    }
}

static error_t parse_option(int key, char *arg, struct argp_state *state)
{
    struct holmes_config *c = state->input;
    const struct spec *s;
    char *field;

    if (key == ARGP_KEY_ARG) {
        argp_error(state, "\"%s\" is no option: compare is the only word without dashes", arg);
        return 0;
    }
    if (key < KEY_OF(0) || key >= KEY_OF(NSPECS))
        return ARGP_ERR_UNKNOWN;
    s = &specs[key - KEY_OF(0)];
    field = (char *)c + s->offset;
    switch (s->type) {
    case SPEC_INT:
    case SPEC_REAL:
        if (!parse_number(s, arg, field))
            bad_value(state, s, arg);
        break;
    case SPEC_U64:
        if (!parse_u64(arg, (uint64_t *)field))
            bad_value(state, s, arg);
        break;
    case SPEC_TEXT:
        *(const char **)field = arg;
        break;
    case SPEC_FLAG:
        *(bool *)field = true;
        break;
    case SPEC_OTHER:
        parse_other(state, s, arg, c);
        break;
    case SPEC_GROUP:
        break;
    }
    return 0;
}

void holmes_config_parse(int argc, char **argv, struct holmes_config *c)
{
    struct argp_option options[NSPECS + 1] = {0};
    struct argp argp = {.options = options, .parser = parse_option, .doc = program_doc};
    int group = 0;

    for (size_t i = 0; i < NSPECS; i++) {
        if (specs[i].type == SPEC_GROUP)
            group++;
        options[i] = (struct argp_option){.name = specs[i].name,
                                          .key = specs[i].name ? KEY_OF(i) : 0,
                                          .arg = specs[i].arg,
                                          .flags = specs[i].doc ? 0 : OPTION_HIDDEN,
                                          .doc = specs[i].doc,
                                          .group = group};
    }
    *c = (struct holmes_config){
        .model = {.layers = 4, .channels = 128, .heads = 4, .seq_len = 64, .vocab = HOLMES_VOCAB},
        .heldout = 0.05,
        .batch = 16,
        .microbatch = 2,
        .steps = 100,
        .lr = 1e-3,
        .final_lr = -1,
        .clip = 1,
        .weight_decay = 0.01,
        .seed = 1,
        .eval_sequences = 64,
        .stages = 1,
        .replicas = 1,
        .tensors = 1,
        .rank = -1,
        .join_timeout_s = 60,
        .op_timeout_s = 120,
        .launcher_fd = -1,
        .plugin = "holmes",
        .kernels = "cpu",
    };
    argp_err_exit_status = 2;
    argp_parse(&argp, argc, argv, 0, NULL, c);
    if (c->final_lr < 0)
        c->final_lr = c->lr / 10;
}

int holmes_config_world(const struct holmes_config *c)
{
    if (c->world > 0)
        return c->world;
    return c->local > 0 ? c->local : 1;
}

int holmes_config_microbatches(const struct holmes_config *c)
{
    return c->batch / (c->replicas * c->microbatch);
}

double holmes_config_lr(const struct holmes_config *c, int t)
{
    double left;

    if (t <= c->warmup)
        return c->lr * t / c->warmup;
    if (c->steps <= c->warmup + 1)
        return c->lr;
    left = (double)(c->steps - t) / (c->steps - c->warmup - 1);
    return c->final_lr + (c->lr - c->final_lr) * 0.5 * (1 - cos(M_PI * left));
}

void holmes_config_label(const char *list, int rank, char *out, size_t out_len)
{
    const char *p = list ? list : "";
    size_t n;

    if (strchr(p, ','))
        for (int i = 0; i < rank && p; i++)
            p = strchr(p, ',') ? strchr(p, ',') + 1 : "";
    n = strcspn(p, ",");
    snprintf(out, out_len, "%.*s", (int)n, p);
}

int holmes_config_endpoint(const char *text, char *host, size_t host_len, uint16_t *port)
{
    const char *colon = strrchr(text, ':');
    size_t n = colon ? (size_t)(colon - text) : 0;
    char *end;
    long v;

    if (!colon || n == 0 || colon[1] < '0' || colon[1] > '9')
        return -EINVAL;
    v = strtol(colon + 1, &end, 10);
    if (*end != '\0' || v < 0 || v > 65535)
        return -EINVAL;
    if (text[0] == '[' && text[n - 1] == ']') {
        text++;
        n -= 2;
    } else if (memchr(text, ':', n)) {
        return -EINVAL;
    }
    if (n == 0 || n >= host_len)
        return -EINVAL;
    memcpy(host, text, n);
    host[n] = '\0';
    *port = (uint16_t)v;
    return 0;
}

#define REFUSE(...)                                                                                \
    do {                                                                                           \
        snprintf(why, why_len, __VA_ARGS__);                                                       \
        return -EINVAL;                                                                            \
    } while (0)

/* How this process is one of several. */
static int check_launch(const struct holmes_config *c, char *why, size_t why_len)
{
    char host[256];
    uint16_t port;

    if (c->local > 0 && c->launcher_fd < 0 && (c->rank >= 0 || c->world > 0 || c->serve))
        REFUSE("--local starts all ranks by itself: leave out --rank, --world and --serve");
    if (c->rank < 0 && c->world > 0 && !c->serve)
        REFUSE("--world needs --rank, the number of this process in it, or --serve");
    if (c->rank >= 0 && c->world == 0)
        REFUSE("--rank needs --world, the number of ranks");
    if (c->rank >= 0 && c->rank >= c->world)
        REFUSE("--rank %d: ranks of --world %d are 0 to %d", c->rank, c->world, c->world - 1);
    if ((c->rank >= 0 || c->serve) && !c->rendezvous)
        REFUSE("--rank and --serve need --rendezvous HOST:PORT");
    if (c->serve && c->world == 0)
        REFUSE("--serve needs --world, the number of ranks");
    if (c->rendezvous && holmes_config_endpoint(c->rendezvous, host, sizeof host, &port) != 0)
        REFUSE("--rendezvous \"%s\": HOST:PORT is right", c->rendezvous);
    if (c->rendezvous && port == 0 && c->local == 0)
        REFUSE("--rendezvous \"%s\": all ranks must know the port, from 1 to 65535", c->rendezvous);
    return 0;
}

static int check_ranks(const struct holmes_config *c, char *why, size_t why_len)
{
    int world = holmes_config_world(c);
    long long places = (long long)c->stages * c->replicas * c->tensors;

    if (world != places)
        REFUSE("--pipeline %d times --data-parallel %d times --tensor %d are %lld ranks, but there "
               "%s %d: they must agree",
               c->stages, c->replicas, c->tensors, places, world == 1 ? "is" : "are", world);
    if (c->comm_given && c->comm == HOLMES_COMM_LOOPBACK && world > 1)
        REFUSE("--comm loopback carries one rank, not %d", world);
    return 0;
}

static int check_labels(const char *list, const char *option, int world, char *why, size_t why_len)
{
    int n = 1;

    for (const char *p = list; p && *p; p++)
        n += *p == ',';
    if (list && (!*list || (n > 1 && n != world)))
        REFUSE("--%s \"%s\": one name, or one for each of the %d ranks, is right", option, list,
               world);
    return 0;
}

static int check_data(const struct holmes_config *c, char *why, size_t why_len)
{
    struct stat st;
    int fd;

    if (!c->data)
        REFUSE("--data FILE is missing: name a text file to train on");
    fd = open(c->data, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0)
        REFUSE("--data %s: %s", c->data, strerror(errno));
    if (fstat(fd, &st) != 0 || !S_ISREG(st.st_mode)) {
        close(fd);
        REFUSE("--data %s: a regular file is right", c->data);
    }
    close(fd);
    return 0;
}

static int check_split(const struct holmes_config *c, char *why, size_t why_len)
{
    int world = holmes_config_world(c), rc = 0;
    int *order;

    if (c->batch % (c->replicas * c->microbatch) != 0)
        REFUSE("--batch %d cannot be divided by --data-parallel %d times --microbatch %d: a "
               "multiple of %d is right",
               c->batch, c->replicas, c->microbatch, c->replicas * c->microbatch);
    if (c->model.heads % c->tensors != 0)
        REFUSE("--tensor %d does not divide the model's --heads %d: each of its ranks takes as "
               "many heads",
               c->tensors, c->model.heads);
    if (c->model.vocab < c->tensors)
        REFUSE("--tensor %d is more than the vocabulary of %d tokens has rows to share", c->tensors,
               c->model.vocab);
    if (!c->stage_layers && c->stages > c->model.layers)
        REFUSE("--pipeline %d is deeper than the model's --layers %d: %d stages at most", c->stages,
               c->model.layers, c->model.layers);
    order = calloc((size_t)world + (size_t)c->stages, sizeof *order);
    if (!order)
        REFUSE("out of memory");
    if (c->placement == HOLMES_PLACEMENT_ORDER)
        rc = holmes_order_parse(c->rank_order, world, order, why, why_len);
    if (rc == 0 && c->stage_layers) {
        struct holmes_group *g = NULL;

        rc = holmes_list_parse(c->stage_layers, "--stage-layers", c->stages, 0, c->model.layers,
                               order + world, why, why_len);
        if (rc == 0)
            rc = holmes_group_create(c->stages, c->replicas, c->tensors, NULL, c->model.layers,
                                     order + world, &g, why, why_len);
        holmes_group_destroy(g);
    }
    free(order);
    return rc;
}

int holmes_config_check(const struct holmes_config *c, char *why, size_t why_len)
{
    int rc = check_launch(c, why, why_len);

    if (rc != 0 || (c->serve && c->rank < 0)) /* a mere host of the service */
        return rc;
    rc = holmes_model_check(&c->model, why, why_len);
    if (rc == 0)
        rc = check_ranks(c, why, why_len);
    if (rc == 0)
        rc = check_split(c, why, why_len);
    if (rc == 0)
        rc = check_labels(c->host_labels, "host-label", holmes_config_world(c), why, why_len);
    if (rc == 0)
        rc = check_labels(c->clusters, "cluster", holmes_config_world(c), why, why_len);
    if (rc == 0 && strcmp(c->kernels, "ref") != 0 && strcmp(c->kernels, "cpu") != 0)
        REFUSE("--kernels \"%s\": ref or cpu is right", c->kernels);
    if (rc == 0)
        rc = check_data(c, why, why_len);
    return rc;
}
