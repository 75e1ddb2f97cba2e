/* A plan as the settings of those who start jobs. A form (megatron, slurm, ...) has parts, each of
 * which is one file; forms share the environment and Megatron-LM's arguments.
 *
 * Texts of a plan come from strangers: what goes into a script is quoted, what goes into a comment
 * has its control characters replaced.
 */
#ifndef HOLMES_EMIT_H
#define HOLMES_EMIT_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "plan.h"

struct holmes_emit_options {
    const char *plugin;  /* absolute path of the plugin; NULL: found by its name */
    const char *program; /* what each rank runs; NULL: pretrain_gpt.py */
    const char *master;  /* where ranks meet; NULL: the host of rank 0 */
    int port;            /* of that; 0: 29500 */
    int cores;           /* per rank, in rankfiles; 0: 1 */
    bool naive;          /* holmes: file order and even layers, to compare with */
};

/* Writes the part. -EINVAL with a sentence where it cannot say the plan; errors of `out` are the
 * caller's to see. */
typedef int holmes_emit_write(const struct holmes_plan_doc *doc,
                              const struct holmes_emit_options *o, FILE *out, char *why,
                              size_t why_len);

struct holmes_emit_part {
    const char *name, *file, *summary;
    holmes_emit_write *write;
    bool script;                                       /* to be made executable */
    bool (*wanted)(const struct holmes_plan_doc *doc); /* NULL: always */
};

#define HOLMES_EMIT_PARTS_MAX 8

struct holmes_emit_form {
    const char *name, *summary;
    struct holmes_emit_part parts[HOLMES_EMIT_PARTS_MAX]; /* ends with a NULL name */
};

/* Ends with NULL. */
extern const struct holmes_emit_form *const holmes_emit_forms[];
extern const struct holmes_emit_form holmes_emit_megatron, holmes_emit_torchrun, holmes_emit_slurm,
    holmes_emit_mpirun, holmes_emit_holmes, holmes_emit_fabrics;

const struct holmes_emit_form *holmes_emit_find(const char *name);
const struct holmes_emit_part *holmes_emit_find_part(const struct holmes_emit_form *form,
                                                     const char *name);
/* Whether the options fit together. -EINVAL with a sentence. */
int holmes_emit_check(const struct holmes_emit_options *o, char *why, size_t why_len);

/* --- what several forms use ------------------------------------------------------------------ */

/* Environment and arguments, as parts of any form. */
holmes_emit_write holmes_emit_env, holmes_emit_fabric_map, holmes_emit_args, holmes_emit_hostfile,
    holmes_emit_rankfile;

/* Name of a plan node; `buf` has HOLMES_HOST_NAME_MAX. */
const char *holmes_emit_host(const struct holmes_plan_doc *doc, int node, char *buf);
/* All plan nodes as one list in rank order; the caller ends it. 0 or -ENOMEM. */
int holmes_emit_hosts(const struct holmes_plan_doc *doc, struct holmes_hostlist *out);
const char *holmes_emit_master(const struct holmes_plan_doc *doc,
                               const struct holmes_emit_options *o, char *buf);
int holmes_emit_port(const struct holmes_emit_options *o);
const char *holmes_emit_program(const struct holmes_emit_options *o);
/* "# " and what this is, for files that take comments. */
void holmes_emit_title(const struct holmes_plan_doc *doc, const char *what, FILE *out);
/* A text in a comment, or as one word of a shell: in single quotes where it needs them. */
void holmes_emit_plain(const char *text, FILE *out);
void holmes_emit_quote(const char *text, FILE *out);

/* Whether the user gave ids of fabrics. */
bool holmes_emit_has_fabrics(const struct holmes_plan_doc *doc);

/* The ids that the user gave NICs and groups, as a file for HOLMES_FABRIC=@FILE
 * (docs/environment.md). -EINVAL with a sentence for a name that cannot stand there, -ENOMEM. */
int holmes_fabric_map_write(const struct holmes_cluster *c, FILE *out, char *why, size_t why_len);

/* --- NCCL's window --------------------------------------------------------------------------- */

/* Settings that let so many bytes be under way to one peer. */
struct holmes_nccl_window {
    int64_t chunk;  /* NCCL_P2P_NET_CHUNKSIZE; 0: nothing need be set */
    int channels;   /* NCCL_NCHANNELS_PER_NET_PEER, NCCL_MIN_P2P_NCHANNELS */
    int64_t buffer; /* NCCL_BUFFSIZE; 0: its default does */
    int64_t bytes;  /* the window that this makes; below what was asked where NCCL's limits end */
};
void holmes_nccl_window_choose(int64_t bytes, struct holmes_nccl_window *out);

/* --- Megatron-LM's layers -------------------------------------------------------------------- */

#define HOLMES_MEGATRON_LAYOUT_MAX 4096

/* How Megatron-LM is told of the layers of each stage: nothing (even), the first and maybe the last
 * stage's number, or a layout. */
struct holmes_megatron_layers {
    int first, last;                         /* 0: not given */
    char layout[HOLMES_MEGATRON_LAYOUT_MAX]; /* "": not given; never together with first and last */
};
/* -EINVAL with a sentence: a stage without layers, or more stages than a layout has room for. */
int holmes_megatron_layers_find(const int *layers, int stages, struct holmes_megatron_layers *out,
                                char *why, size_t why_len);

#endif
