/* The log of one run as columns that can be drawn. The file may be anybody's, and may be that of a
 * run that was killed or still runs: what is missing is told by the fields, what is no log of
 * holmes-train is refused with its line. docs/trainer.md lists the records; unknown ones, and
 * unknown fields, are passed over. */
#ifndef HOLMES_RUNLOG_H
#define HOLMES_RUNLOG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define HOLMES_RUNLOG_KINDS 8 /* of communicators: "dp", "pp", ... */
#define HOLMES_RUNLOG_WIRES 8 /* "tcp", ... */
#define HOLMES_RUNLOG_RANKS 65536

/* Numbers by step. What a record did not have, or is no sensible number, is NaN. */
struct holmes_runlog_steps {
    size_t n;
    double *step, *loss, *grad_norm, *lr, *seconds, *tokens_per_s;
};

struct holmes_runlog_evals {
    size_t n;
    double *step, *loss;
};

struct holmes_runlog_rank {
    int stage, replica;
    char host[64], cluster[64];
    bool told;                                /* it has a traffic record */
    double wait_seconds[HOLMES_RUNLOG_KINDS]; /* that training stood still, by kind */
    double net_cpu_seconds;
    double predicted_bytes, measured_bytes; /* memory, NaN: not told */
};

struct holmes_runlog {
    char name[64]; /* the file's, without folder and ending */
    /* From the config record. 0 or "" where it is silent. */
    int layers, channels, heads, seq_len, vocab;
    int batch, microbatch, pipeline, data_parallel, tensor_parallel;
    double parameters;
    char placement[16];
    double planned_steps;
    double flops_per_token; /* forward and backward; 0: shape not told */

    struct holmes_runlog_steps steps;
    struct holmes_runlog_evals evals;
    double unigram_nats; /* NaN: never evaluated */

    int nranks;
    struct holmes_runlog_rank *ranks;
    int nkinds, nwires;
    char kinds[HOLMES_RUNLOG_KINDS][16], wires[HOLMES_RUNLOG_WIRES][16];
    /* Bytes that all ranks sent, evaluations included. Wires that nobody told are "untold". */
    double bytes[HOLMES_RUNLOG_KINDS][HOLMES_RUNLOG_WIRES];

    bool finished; /* it has its end record */
    bool cut;      /* its last line is not whole */
};

/* `name` stands for the file in sentences. -EINVAL with a sentence that names the line, -ENOMEM. On
 * success the caller ends it with fini. */
int holmes_runlog_parse(const char *name, const void *data, size_t len, struct holmes_runlog *out,
                        char *why, size_t why_len);
/* The same from a file; -errno when it cannot be read. */
int holmes_runlog_read(const char *path, struct holmes_runlog *out, char *why, size_t why_len);
void holmes_runlog_fini(struct holmes_runlog *l);

/* Figures over the steps, without the first, which warms caches, where there are others. NaN
 * without steps. `values` is one of the columns. */
double holmes_runlog_median(const struct holmes_runlog *l, const double *values);
/* Mean of the last ten losses. */
double holmes_runlog_final_loss(const struct holmes_runlog *l);
/* For people: "data parallel" for "dp"; the name itself where it is unknown. */
const char *holmes_runlog_kind_title(const char *kind);

#endif
