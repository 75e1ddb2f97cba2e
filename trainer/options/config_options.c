/* The options of holmes-train: the table, and the command line and --help made from it. An option
 * that is added here can be given in files of --config and is printed by --print-config. */
#include <argp.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "config_spec.h"
#include "near_name.h"

#define AT(field) offsetof(struct holmes_config, field)
#define BATCH_MAX (1 << 20)

const struct holmes_spec holmes_specs[] = {
    {.doc = "Configuration: defaults, then --preset, then --config, then the other options",
     .type = SPEC_GROUP},
    {"preset", "NAME", "sizes of a model that has a name; \"help\" lists them", SPEC_START,
     AT(preset)},
    {"config", "FILE",
     "a YAML file of options: their names without dashes, and values; "
     "see docs/config.md",
     SPEC_START, AT(config_file)},
    {"print-config", NULL, "print what all of this amounts to, as such a file, and end", SPEC_START,
     AT(print_config)},
    {"dry-run", NULL,
     "print what would run and the memory that every rank would take, and end; needs neither ranks "
     "nor, if --vocab is given, data",
     SPEC_START, AT(dry_run)},

    {.doc = "Model", .type = SPEC_GROUP},
    {"layers", "N", "transformer blocks", SPEC_INT, AT(model.layers), 1, 1000, "4"},
    {"channels", "N", "width of the model, a multiple of the heads", SPEC_INT, AT(model.channels),
     1, 65536, "128"},
    {"heads", "N", "attention heads", SPEC_INT, AT(model.heads), 1, 1024, "4"},
    {"seq-len", "N", "tokens in a sequence: bytes of a text file", SPEC_INT, AT(model.seq_len), 1,
     65536, "64"},
    {"vocab", "N",
     "size of the vocabulary: tokens are below it (256 for a text file, else what PREFIX.json "
     "says)",
     SPEC_INT, AT(model.vocab), 2, 1 << 20},
    {"tied", NULL, "the head uses the token embedding", SPEC_FLAG, AT(model.tied)},

    {.doc = "Data", .type = SPEC_GROUP},
    {"data", "FILE|PREFIX",
     "any text file, whose bytes are the tokens; or the tokens in PREFIX.bin and PREFIX.idx, as "
     "Megatron-LM and holmes-data write them",
     SPEC_TEXT, AT(data)},
    {"held-out", "X", "fraction of the data, its end, kept for evaluation", SPEC_REAL, AT(heldout),
     0.001, 0.9, "0.05"},
    {"split", "A,B,C",
     "instead: shares to train on, to evaluate on and to leave alone, of the documents or of the "
     "bytes of a text file, as in Megatron-LM: 969,30,1",
     SPEC_LIST, AT(split)},
    {"eval-every", "N", "evaluate on held-out text every N steps; 0: only at the end", SPEC_INT,
     AT(eval_every), 0, 1e9, "0"},
    {"eval-sequences", "N", "held-out sequences of an evaluation at most; 0: none", SPEC_INT,
     AT(eval_sequences), 0, 1e9, "64"},

    {.doc = "Training", .type = SPEC_GROUP},
    {"batch", "N",
     "sequences in a step, over all replicas: a multiple of --data-parallel times --microbatch; "
     "gradients are accumulated over the microbatches",
     SPEC_INT, AT(batch), 1, BATCH_MAX, "16"},
    {"microbatch", "N", "sequences that move through the pipeline together", SPEC_INT,
     AT(microbatch), 1, BATCH_MAX, "2"},
    {"steps", "N", "optimizer steps", SPEC_INT, AT(steps), 1, 1e9, "100"},
    {"lr", "X", "learning rate after the warm-up", SPEC_REAL, AT(lr), 1e-12, 10, "0.001"},
    {"lr-decay", "cosine|linear|constant", "how it goes from --lr to --final-lr after the warm-up",
     SPEC_CHOICE, AT(lr_decay), .def = "cosine"},
    {"final-lr", "X", "learning rate of the last step (a tenth of --lr)", SPEC_REAL, AT(final_lr),
     0, 10},
    {"warmup", "N", "steps of linear warm-up", SPEC_INT, AT(warmup), 0, 1e9, "0"},
    {"clip", "X", "largest global gradient norm; 0: no limit", SPEC_REAL, AT(clip), 0, 1e9, "1"},
    {"weight-decay", "X", "AdamW's decay of matrices; biases and norms have none", SPEC_REAL,
     AT(weight_decay), 0, 10, "0.01"},
    {"beta1", "X", "AdamW's memory of gradients", SPEC_REAL, AT(beta1), 0, 0.999999, "0.9"},
    {"beta2", "X", "AdamW's memory of their squares", SPEC_REAL, AT(beta2), 0, 0.999999, "0.95"},
    {"adam-eps", "X", "AdamW's epsilon", SPEC_REAL, AT(adam_eps), 1e-30, 1, "1e-08"},
    {"on-nan", "stop|skip",
     "when loss or gradients are no finite numbers: end, or leave the weights as they are in that "
     "step",
     SPEC_CHOICE, AT(on_nan), .def = "stop"},
    {"max-skipped", "N", "steps in a row that --on-nan skip leaves out before it ends", SPEC_INT,
     AT(max_skipped), 1, 1000000, "10"},
    {"seed", "N", "of weights and data; every split of the ranks sees the same", SPEC_U64, AT(seed),
     .def = "1"},
    {"kernels", "NAME",
     "ref: plain C; cpu: OpenBLAS and vectorised loops; cuda: an NVIDIA GPU, all numbers in "
     "float32; cuda-bf16: activations in bfloat16, master weights in float32; see docs/gpu.md",
     SPEC_TEXT, AT(kernels), .def = "cpu"},
    {"threads", "N", "threads of the kernels per rank; 0: cores / local ranks", SPEC_INT,
     AT(threads), 0, 1024, "0"},

    {.doc = "Split and placement", .type = SPEC_GROUP},
    {"pipeline", "P", "pipeline stages", SPEC_INT, AT(stages), 1, 1000, "1"},
    {"data-parallel", "D", "replicas of the pipeline", SPEC_INT, AT(replicas), 1, 100000, "1"},
    {"tensor", "T",
     "ranks that share the layers of each stage, heads and columns divided between them; they must "
     "be on one host",
     SPEC_INT, AT(tensors), 1, 1024, "1"},
    {"recompute", NULL,
     "keep of each block only its input and run its forward again in backward: less memory for a "
     "third more arithmetic, the same bits",
     SPEC_FLAG, AT(recompute)},
    {"placement", "planned|naive",
     "planned: tensor groups inside hosts, each stage inside one --cluster, pipelines across them; "
     "naive: pipelines on consecutive ranks, replicas across",
     SPEC_CHOICE, AT(placement), .def = "planned"},
    {"rank-order", "LIST",
     "explicit placement: entry (stage*D + replica)*T + tensor of the list is the rank that takes "
     "this place",
     SPEC_ORDER, AT(rank_order)},
    {"stage-layers", "LIST",
     "layers of each stage (as even as it goes); with virtual stages of each of their V*P parts, "
     "in the model's order",
     SPEC_LIST, AT(stage_layers)},
    {"virtual-stages", "V",
     "parts of the model that each rank of the pipeline has: the bubble is V times smaller, V "
     "times as many activations are sent; see docs/overlap.md",
     SPEC_INT, AT(virtual_stages), 1, 16, "1"},
    {"overlap", "on|off",
     "on: gradients are summed over the replicas while backward still runs, and new weights come "
     "in while the next forward does; the results are the same",
     SPEC_CHOICE, AT(overlap), .def = "on"},
    {"bucket-mb", "X",
     "MiB of gradients that are summed at a time; 0: a sixteenth of the stage, 1 to 64 MiB",
     SPEC_REAL, AT(bucket_mb), 0, 65536, "0"},

    {.doc = "Ranks", .type = SPEC_GROUP},
    {"local", "N", "start N = P*D*T ranks on this machine", SPEC_INT, AT(local), 1, 1024},
    {"rank", "R",
     "be rank R of --world, started by hand on any machine; srun, mpirun and torchrun tell it "
     "by themselves; see docs/launch.md",
     SPEC_START, AT(rank), 0, 100000},
    {"world", "N", "number of ranks = P*D*T", SPEC_INT, AT(world), 1, 100000},
    {"rendezvous", "HOST:PORT", "where the ranks find each other", SPEC_TEXT, AT(rendezvous)},
    {"secret-file", "FILE",
     "first line: the secret that the ranks share, else in HOLMES_JOB_SECRET; nobody else may read "
     "the file",
     SPEC_TEXT, AT(secret_file)},
    {"serve", NULL,
     "host the rendezvous service: together with --rank in this rank; alone in a process of its "
     "own, that ends with the job",
     SPEC_START, AT(serve)},
    {"host-label", "NAME[,...]",
     "name of this rank's host in the log, or one for each rank "
     "(the host's name)",
     SPEC_LIST, AT(host_labels)},
    {"cluster", "NAME[,...]", "cluster of this rank, or one for each rank", SPEC_LIST,
     AT(clusters)},
    {"planned-hosts", "NAME[,...]",
     "host on which a plan has this rank, or one for each rank, as in the files of holmes-topo: a "
     "rank that runs in another cluster ends the job, another host is warned of",
     SPEC_LIST, AT(planned_hosts)},
    {"join-timeout", "SECONDS", "wait so long for other ranks", SPEC_INT, AT(join_timeout_s), 1,
     86400, "60"},
    {"op-timeout", "SECONDS", "wait so long for one operation between ranks", SPEC_INT,
     AT(op_timeout_s), 1, 86400, "120"},

    {.doc = "Network", .type = SPEC_GROUP},
    {"plugin", "PATH|NAME",
     "NCCL net plugin that carries the bytes, found as NCCL finds "
     "NCCL_NET_PLUGIN",
     SPEC_TEXT, AT(plugin), .def = "holmes"},
    {"net-device", "NAME", "device of the plugin (its first)", SPEC_TEXT, AT(device)},
    {"comm", "net|loopback|nccl",
     "net: rings of our own over --plugin; loopback: no network, for one rank; nccl: NCCL over "
     "--plugin, what ranks on GPUs need",
     SPEC_CHOICE, AT(comm), .def = "net"},

    {.doc = "Checkpoints (docs/checkpoint.md)", .type = SPEC_GROUP},
    {"save", "DIR",
     "write checkpoints into DIR, which all hosts must see: step-00000100 after step 100; always "
     "one after the last step",
     SPEC_TEXT, AT(save)},
    {"save-every", "N", "and one every N steps; 0: only after the last step", SPEC_INT,
     AT(save_every), 0, 1e9, "0"},
    {"keep", "K", "the newest K checkpoints stay, older ones are removed", SPEC_INT, AT(keep), 1,
     1e6, "2"},
    {"stop-timeout", "SECONDS",
     "SIGTERM, SIGINT or SIGUSR1 to any rank: all finish their step, save and end with status 4, "
     "or are ended after so long; see docs/launch.md",
     SPEC_INT, AT(stop_timeout_s), 1, 86400, "120"},
    {"resume", "DIR|latest",
     "go on from a checkpoint: DIR is one, or the newest in DIR is taken; latest: the newest in "
     "--save DIR, and a new run while there is none. The split may be another one",
     SPEC_TEXT, AT(resume)},
    {"init", "DIR|FILE",
     "begin with the weights of a GPT-2 as Hugging Face has it, model.safetensors, or as "
     "`holmes-train export` writes it",
     SPEC_TEXT, AT(init)},

    {.doc = "Output", .type = SPEC_GROUP},
    {"log", "FILE", "write every step as one line of JSON; see docs/trainer.md", SPEC_TEXT,
     AT(log)},
    {"trace", "FILE",
     "write what every rank computed, sent and waited for, and when: JSON for chrome://tracing and "
     "ui.perfetto.dev; told to all ranks, rank 0 writes it",
     SPEC_TEXT, AT(trace)},
    {"measure-overlap", "N",
     "before training, N rounds of steps with --overlap on, off and without communication: prints "
     "their times and the share of communication that was hidden; training is not changed by it",
     SPEC_INT, AT(measure_overlap), 0, 1000, "0"},
    {"quiet", NULL, "no progress line", SPEC_FLAG, AT(quiet)},
    {"progress-every", "SECONDS",
     "in a file or pipe, a line of progress every so often; 0: one for each step", SPEC_INT,
     AT(progress_s), 0, 86400, "10"},
    {"peak-tflops", "X",
     "TFLOPS that the processor of a rank can do: the progress then tells the share that the model "
     "uses (MFU)",
     SPEC_REAL, AT(peak_tflops), 0, 1e6},
    {"launched", "PID:FD", NULL, SPEC_START, AT(launcher_pid)}, /* hidden: of the launcher */
};
#define NSPECS    (sizeof holmes_specs / sizeof *holmes_specs)
#define KEY_OF(i) ((int)(i) + 1000)

const int holmes_nspecs = NSPECS;
_Static_assert(NSPECS <= HOLMES_CONFIG_OPTIONS, "raise HOLMES_CONFIG_OPTIONS");

static const char program_doc[] =
    "Trains a GPT on the bytes of a text file or on the tokens of an indexed dataset, in one "
    "process or split over ranks as pipeline stages, replicas and tensor groups that talk through "
    "an NCCL "
    "net plugin.\v"
    "Values in brackets are what holds when nothing is said.\n"
    "\n"
    "Examples:\n"
    "  holmes-train --data FILE\n"
    "      one process\n"
    "  holmes-train --preset gpt2-124m --data FILE --batch 8 --microbatch 1\n"
    "      a model by name; --preset help lists them\n"
    "  holmes-train --data FILE --local 4 --pipeline 2 --data-parallel 2\n"
    "      four ranks on this machine\n"
    "  holmes-train --data FILE --local 8 --tensor 2 --pipeline 2 --data-parallel 2\n"
    "      eight, the layers of each stage shared by two\n"
    "  holmes-train --config run.yaml --lr 3e-4\n"
    "      options from a file, one of them changed\n"
    "  holmes-train --data FILE --steps 500 --print-config > run.yaml\n"
    "      such a file, with every option in it\n"
    "  mpirun -x HOLMES_JOB_SECRET -n 4 holmes-train --config run.yaml\n"
    "      ranks of mpirun; srun and torchrun likewise\n"
    "  HOLMES_JOB_SECRET=... holmes-train --data FILE --rank 1 --world 2 \\\n"
    "      --pipeline 2 --rendezvous 10.0.0.1:29500\n"
    "      one rank, started by hand; rank 0 gets --serve as well\n"
    "  holmes-train --data FILE --save DIR --save-every 1000 --resume latest\n"
    "      saves, and goes on from what it has saved when it is started again\n"
    "  holmes-train export DIR -o MODEL\n"
    "      the trained model for others (holmes-train export --help)\n"
    "  holmes-train compare NAIVE.jsonl PLANNED.jsonl\n"
    "      what the placement of ranks changed (holmes-train compare --help)\n"
    "  holmes-train report RUN.jsonl -o run.html\n"
    "      what a run did, as pictures (holmes-train report --help)\n"
    "\n"
    "Exit status: 0 done; 1 this run failed; 2 bad usage or input; 3 another rank failed; "
    "4 stopped by a signal, saved, to be resumed; 130, 138 or 143 ended by SIGINT, SIGUSR1 or "
    "SIGTERM.";

const struct holmes_spec *holmes_spec_find(const char *name)
{
    for (size_t i = 0; i < NSPECS; i++)
        if (holmes_specs[i].name && strcmp(holmes_specs[i].name, name) == 0)
            return &holmes_specs[i];
    return NULL;
}

const char *holmes_spec_near(const char *name)
{
    const char *words[NSPECS + 1];
    size_t n = 0;

    for (size_t i = 0; i < NSPECS; i++)
        if (holmes_specs[i].name && holmes_specs[i].doc && holmes_specs[i].type != SPEC_START)
            words[n++] = holmes_specs[i].name;
    words[n] = NULL;
    return holmes_near_name(name, words);
}

/* What the command line says, in its order: it is set after what it names has been read. */
struct said {
    struct holmes_config seen; /* to try values on, and for what comes first */
    struct {
        const struct holmes_spec *spec;
        const char *text;
    } * options;
    size_t n;
};

static error_t parse_option(int key, char *arg, struct argp_state *state)
{
    struct said *said = state->input;
    const struct holmes_spec *s;
    char why[400];
    int rc;

    if (key == ARGP_KEY_ARG) {
        argp_error(state,
                   "\"%s\" is no option: export, compare and report are the only words without "
                   "dashes",
                   arg);
        return 0;
    }
    if (key < KEY_OF(0) || key >= KEY_OF(NSPECS))
        return ARGP_ERR_UNKNOWN;
    s = &holmes_specs[key - KEY_OF(0)];
    if (!arg)
        arg = "yes";
    rc = holmes_spec_set(s, arg, &said->seen, why, sizeof why);
    if (rc == -ENOMEM)
        return ENOMEM;
    if (rc != 0)
        argp_error(state, "--%s", why);
    said->options[said->n].spec = s;
    said->options[said->n++].text = arg;
    return 0;
}

/* A default is told where the table has it. */
static char *add_default(int key, const char *text, void *input)
{
    const struct holmes_spec *s =
        key >= KEY_OF(0) && key < KEY_OF(NSPECS) ? &holmes_specs[key - KEY_OF(0)] : NULL;
    char *longer;

    (void)input;
    if (!text || !s || !s->name || !s->def || asprintf(&longer, "%s (%s)", text, s->def) < 0)
        return (char *)text;
    return longer;
}

static struct argp_option option_of(const struct holmes_spec *s, int key, int group)
{
    bool optional = s->type == SPEC_FLAG;

    return (struct argp_option){.name = s->name,
                                .key = s->name ? key : 0,
                                .arg = optional ? "yes|no" : s->arg,
                                .flags = (s->doc ? 0 : OPTION_HIDDEN) |
                                         (optional ? OPTION_ARG_OPTIONAL : 0),
                                .doc = s->doc,
                                .group = group};
}

static void give_up(int status, const char *why)
{
    fprintf(stderr, "holmes-train: %s\n", why);
    exit(status);
}

/* Layer on layer: what is set later wins. */
static int apply(const struct said *said, struct holmes_config *c, char *why, size_t why_len)
{
    const char *preset = said->seen.preset, *path = said->seen.config_file;
    char *data = NULL;
    size_t len = 0;
    int rc = 0;

    if (preset) {
        snprintf(why, why_len, "--");
        rc = holmes_preset_apply(preset, c, why + 2, why_len - 2);
    }
    if (rc == 0 && path)
        rc = holmes_config_file_read(path, &data, &len, why, why_len);
    if (rc == 0 && path)
        rc = holmes_config_file_apply(path, data, len, preset != NULL, c, why, why_len);
    free(data);
    for (size_t i = 0; i < said->n && rc == 0; i++)
        rc = holmes_spec_set(said->options[i].spec, said->options[i].text, c, why, why_len);
    if (rc == 0)
        holmes_config_derive(c);
    return rc;
}

int holmes_config_parse(int argc, char **argv, struct holmes_config *c, char *why, size_t why_len)
{
    struct argp_option options[NSPECS + 1] = {0};
    struct argp argp = {
        .options = options, .parser = parse_option, .doc = program_doc, .help_filter = add_default};
    struct said said = {.options = calloc((size_t)argc + 1, sizeof *said.options)};
    int group = 0, rc;

    snprintf(why, why_len, "out of memory");
    if (!said.options)
        give_up(1, why);
    for (size_t i = 0; i < NSPECS; i++) {
        if (holmes_specs[i].type == SPEC_GROUP)
            group++;
        options[i] = option_of(&holmes_specs[i], KEY_OF(i), group);
    }
    holmes_config_init(&said.seen);
    holmes_config_init(c);
    argp_err_exit_status = 2;
    if (argp_parse(&argp, argc, argv, 0, NULL, &said) != 0)
        give_up(1, why);
    if (said.seen.preset && strcmp(said.seen.preset, "help") == 0)
        exit(holmes_preset_list(stdout) == 0 ? 0 : 1);
    rc = apply(&said, c, why, why_len);
    free(said.options);
    if (rc == -ENOMEM || (rc != 0 && said.seen.print_config))
        give_up(rc == -ENOMEM ? 1 : 2, why);
    holmes_config_fini(rc == 0 ? &said.seen : c);
    if (rc != 0)
        *c = said.seen;
    if (rc != 0 || !c->print_config)
        return rc;
    if (holmes_config_print(c, stdout, why, why_len) != 0)
        give_up(2, why);
    exit(0);
}
