/* GPTs as their sizes, and those that have names: planned by holmes-topo, trained by holmes-train.
 */
#ifndef HOLMES_GPT_MODEL_H
#define HOLMES_GPT_MODEL_H

#include <stdbool.h>
#include <stddef.h>

/* A GPT as its sizes. */
struct holmes_gpt {
    char name[64];
    int layers, hidden, heads, sequence;
    int vocabulary;         /* 0: not told; then embedding and head count nothing */
    int ffn;                /* 0: 4 * hidden */
    bool tied;              /* embedding and head share their weights */
    bool recompute;         /* activations are recomputed in the backward */
    bool sequence_parallel; /* what tensor groups do not divide is divided over the sequence;
                               counts where tensor > 1 (Megatron-LM's --sequence-parallel) */
    bool scores_stored;     /* attention scores are kept for the backward: no flash attention */
    bool half_gradients;    /* kept and reduced in the weights' 2 bytes, not in fp32: Megatron-LM's
                               --fp16 without --accumulate-allreduce-grads-in-fp32 */
    bool distributed_optimizer; /* optimizer state is divided over the data ranks */
    int bytes_per_weight;       /* 2: bf16 with fp32 master weights; 4: fp32 */
    bool holmes_train;          /* memory as holmes-train takes it on CPUs, in fp32 */
};

/* "gpt-3.6b", ... into *out; -ENOENT with the names that exist in `why`. */
int holmes_gpt_preset(const char *name, struct holmes_gpt *out, char *why, size_t why_len);
/* All of them, from the smallest on; *n: how many. */
const struct holmes_gpt *holmes_gpt_presets(int *n);

#endif
