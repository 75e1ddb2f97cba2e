/* A GPT's arithmetic: floating-point operations, parameters, bytes of memory. Pure.
 *
 * Sources. FLOPs: Narayanan et al., arXiv 2104.04473, section 5.1 and appendix: a product of
 * (m, k) and (k, n) is 2mkn; the backward costs twice the forward; recomputation one more forward
 * of the layers. With ffn = 4 hidden the sum is their 96 B s l h^2 (1 + s/6h + V/16lh), but for the
 * head, which is not recomputed. Activations: Korthikanti et al., arXiv 2205.05198, equations 1 to
 * 6. Bytes per parameter: Megatron-LM, dist_optimizer.md (bf16 with fp32
 * gradients 18, or 6 + 12/d; fp16 20, or 4 + 16/d; fp32 16, or 8 + 8/d). */
#ifndef HOLMES_GPT_H
#define HOLMES_GPT_H

#include "plan.h"

/* 0, or -EINVAL with a sentence in `why`: sizes below 1, hidden not a multiple of heads, ... */
int holmes_gpt_check(const struct holmes_gpt *g, char *why, size_t why_len);

/* Forward of one sequence. */
double holmes_gpt_layer_flops(const struct holmes_gpt *g);
double holmes_gpt_head_flops(const struct holmes_gpt *g);
/* Forward, backward, and recomputation where the model asks for it, of one sequence through all. */
double holmes_gpt_sequence_flops(const struct holmes_gpt *g);
/* How many forwards a layer costs per step: 3, or 4 with recomputation. */
int holmes_gpt_layer_passes(const struct holmes_gpt *g);

/* Parameters of the whole model. */
double holmes_gpt_parameters(const struct holmes_gpt *g);
/* Parameters that one GPU of a stage holds; `first` and `last`: the stage has embedding, head. */
double holmes_gpt_stage_parameters(const struct holmes_gpt *g, int layers, bool first, bool last,
                                   int tensor);
/* Weights, gradients and optimizer state of one parameter, bytes. */
double holmes_gpt_parameter_bytes(const struct holmes_gpt *g, int data);

/* Bytes that a GPU keeps of one layer for each microbatch under way. */
double holmes_gpt_layer_activation(const struct holmes_gpt *g, int micro_batch, int tensor);
/* What a stage needs once: the layer being recomputed; logits and their loss on the last. */
double holmes_gpt_working_set(const struct holmes_gpt *g, int micro_batch, int tensor, bool last);
/* What the embedding keeps on the first stage for each microbatch under way. */
double holmes_gpt_embedding_activation(const struct holmes_gpt *g, int micro_batch);

/* One microbatch's activations from a GPU to the next stage: with sequence parallelism each tensor
 * rank sends its share, else each sends all of them (Megatron-LM's schedules.py); holmes-train's
 * send a share always. */
double holmes_gpt_message_bytes(const struct holmes_gpt *g, int micro_batch, int tensor);
/* Reduce-scatter and all-gather of `parameters`: sent by one GPU per step. Without the distributed
 * optimizer both halves are the all-reduce of the gradients. */
double holmes_gpt_scatter_bytes(const struct holmes_gpt *g, double parameters, int data);
double holmes_gpt_gather_bytes(const struct holmes_gpt *g, double parameters, int data);
/* The tied embedding's gradient, per GPU of the first and the last stage: all-reduce of two. */
double holmes_gpt_embedding_bytes(const struct holmes_gpt *g, int tensor);
/* All-reduces of tensor parallelism (or the same bytes as halves, with sequence parallelism): sent
 * by one GPU for one layer and microbatch. */
double holmes_gpt_tensor_bytes(const struct holmes_gpt *g, int micro_batch, int tensor);

#endif
