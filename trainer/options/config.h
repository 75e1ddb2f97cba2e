/* Everything a run of holmes-train is told, and the checks that need no other rank. */
#ifndef HOLMES_CONFIG_H
#define HOLMES_CONFIG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "dataloader.h"
#include "model.h"

enum holmes_placement { HOLMES_PLACEMENT_PLANNED, HOLMES_PLACEMENT_NAIVE, HOLMES_PLACEMENT_ORDER };
enum holmes_overlap { HOLMES_OVERLAP_ON, HOLMES_OVERLAP_OFF };
enum holmes_lr_decay { HOLMES_DECAY_COSINE, HOLMES_DECAY_LINEAR, HOLMES_DECAY_CONSTANT };
enum holmes_on_nan { HOLMES_NAN_STOP, HOLMES_NAN_SKIP };
enum holmes_comm_kind { HOLMES_COMM_NET, HOLMES_COMM_LOOPBACK, HOLMES_COMM_NCCL };

#define HOLMES_CONFIG_OPTIONS 128 /* room for that many in the table */

struct holmes_config_text;

/* Strings are its own, until holmes_config_fini. */
struct holmes_config {
    const char *preset, *config_file; /* of the command line */
    bool print_config, dry_run;

    struct holmes_model model; /* vocab 0: not given; holmes_config_check settles it */

    const char *data;
    double heldout;    /* fraction of the data kept from training */
    const char *split; /* NULL: by heldout */
    int batch;         /* sequences in a step, over all replicas */
    int microbatch;    /* sequences that move through the pipeline together */
    int steps, warmup;
    double lr, final_lr;
    enum holmes_lr_decay lr_decay;
    double beta1, beta2, adam_eps;
    enum holmes_on_nan on_nan;
    int max_skipped; /* steps in a row */
    double clip;     /* of the global gradient norm; 0: none */
    double weight_decay;
    uint64_t seed;
    int eval_every;     /* steps; 0: only at the end */
    int eval_sequences; /* at most so many held-out sequences; 0: no evaluation */

    int stages, replicas, tensors;
    enum holmes_placement placement;
    const char *rank_order;   /* with HOLMES_PLACEMENT_ORDER */
    const char *stage_layers; /* NULL: even */
    bool recompute;           /* activations of blocks, in backward */
    int virtual_stages;       /* chunks of the model on each rank of the pipeline */
    enum holmes_overlap overlap;
    double bucket_mb; /* 0: by the size of the stage */

    int local;              /* ranks to start on this machine; 0: none */
    int rank, world;        /* this process; rank -1: not given */
    const char *rendezvous; /* HOST:PORT or NULL */
    bool serve;
    const char *secret_file;            /* NULL: HOLMES_JOB_SECRET */
    const char *launcher;               /* "srun", ...: it said rank and world; NULL: none */
    int local_ranks;                    /* on this host, as the launcher says; 0: not told */
    const char *host_labels, *clusters; /* one, or one for each rank; NULL: host name, none */
    const char *planned_hosts;          /* likewise; NULL: no plan says */
    int threads;                        /* of the kernels, per rank; 0: cores / local ranks */
    int join_timeout_s, op_timeout_s;
    int launcher_pid, launcher_fd; /* given by the launcher to its ranks; 0 and -1: by hand */

    enum holmes_comm_kind comm;
    const char *plugin, *device;
    const char *kernels;
    const char *save, *resume; /* folders, or NULL; resume may be "latest" */
    const char *init;          /* weights to begin with, or NULL */
    int save_every, keep;
    int stop_timeout_s; /* from a signal to the end */
    const char *log, *trace;
    int measure_overlap; /* rounds; 0: none */
    bool quiet;
    double peak_tflops; /* of one rank; 0: not known */
    int progress_s;     /* between lines of progress where they are not rewritten */

    bool given[HOLMES_CONFIG_OPTIONS]; /* by the table's order: not a default */
    struct holmes_config_text *texts;
};

/* Fills *c from defaults, preset, file and command line. Prints a sentence and exits with 2 on what
 * is no option or no fitting value, with 0 after --help, --preset help and --print-config. -EINVAL
 * with a sentence for what is wrong with preset or file, which others of the job may have right:
 * *c then is what the command line says by itself. */
int holmes_config_parse(int argc, char **argv, struct holmes_config *c, char *why, size_t why_len);
void holmes_config_fini(struct holmes_config *c); /* frees its strings */
/* Whether the option was set, by whatever, rather than left at its default. */
bool holmes_config_given(const struct holmes_config *c, const char *option);
/* Given, and another value than its default: --print-config gives all values. */
bool holmes_config_changed(const struct holmes_config *c, const char *option);

/* Sets an option as the command line would: for what is found out later. */
int holmes_config_set(struct holmes_config *c, const char *option, const char *text, char *why,
                      size_t why_len);
/* How this process is one of several: rank, world and rendezvous. -EINVAL with a sentence. */
int holmes_config_check_place(const struct holmes_config *c, char *why, size_t why_len);
/* What the values must be to each other; opens the data and settles model.vocab if it was not
 * given. -EINVAL with a sentence. */
int holmes_config_check(struct holmes_config *c, char *why, size_t why_len);

/* Warns, in a line for each reason, of options that have no effect beside the others. Of what
 * holmes_config_check found well. */
void holmes_config_warn_pairs(const struct holmes_config *c, FILE *out);

/* How the data are to be opened, by --data, --held-out, --split and others. -EINVAL with a
 * sentence.
 */
int holmes_config_data(const struct holmes_config *c, struct holmes_data_attr *out, char *why,
                       size_t why_len);
int holmes_config_world(const struct holmes_config *c);
int holmes_config_microbatches(const struct holmes_config *c); /* per replica and step */
/* Learning rate of step `t`, counted from 1: linear warm-up, then lr_decay to final_lr. */
double holmes_config_lr(const struct holmes_config *c, int t);
/* Entry `rank` of a list with one element for all or one for each rank, into `out`. */
void holmes_config_label(const char *list, int rank, char *out, size_t out_len);
/* "HOST:PORT" or "[v6]:PORT" into its parts. */
int holmes_config_endpoint(const char *text, char *host, size_t host_len, uint16_t *port);

#endif
