/* What the log of one run says about speed, loss and the bytes that crossed the slow link. The run
 * may have been killed, or still run: what its log does not tell is negative. */
#ifndef HOLMES_SUMMARY_H
#define HOLMES_SUMMARY_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* What bytes are sent for; the kinds of communicators, in the order of reports. */
enum holmes_kind {
    HOLMES_KIND_DP,
    HOLMES_KIND_PP,
    HOLMES_KIND_TP,
    HOLMES_KIND_EMBED,
    HOLMES_KIND_WORLD,
    HOLMES_KIND_COUNT
};
extern const char *const holmes_kind_names[HOLMES_KIND_COUNT];  /* as in the log */
extern const char *const holmes_kind_titles[HOLMES_KIND_COUNT]; /* for people */

/* Which hosts lie on which side of the slow link. */
struct holmes_sides {
    const char *peers; /* "a0,a1:b0,b1" by host label; NULL: every cluster is a side */
};

struct holmes_summary {
    const char *path;
    char placement[16];
    bool finished; /* it has its end record */
    bool cut;      /* its last line is not whole */
    bool counted;  /* every rank told what it sent; else crossing and busiest are not known */
    int steps, ranks, planned_steps;
    bool by_token; /* losses are per token, not per byte of text */
    uint64_t parameters, tokens_per_step;
    double *step, *loss;                /* [steps] */
    double step_seconds;                /* mean without the first step */
    double tokens_per_s;                /* from it */
    double final_loss;                  /* mean of the last 10 steps */
    double held_out, unigram;           /* nats; negative: not evaluated */
    int nsides;                         /* 0 or 1: nothing can cross */
    double crossing[HOLMES_KIND_COUNT]; /* bytes per step over the slow link, both directions */
    double busiest; /* bytes per step in the fuller direction between two sides */
};

/* 0, or -EINVAL with a sentence that says what the log lacks: one step is the least. `path` must
 * outlive the summary. */
int holmes_summary_read(const char *path, const struct holmes_sides *sides,
                        struct holmes_summary *out, char *why, size_t why_len);
void holmes_summary_fini(struct holmes_summary *s);

#endif
