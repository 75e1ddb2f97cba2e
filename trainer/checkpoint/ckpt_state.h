/* What of a training state lies on this rank, between the trainer's flat arrays and the pieces of
 * tensors that checkpoints are made of. */
#ifndef HOLMES_CKPT_STATE_H
#define HOLMES_CKPT_STATE_H

#include "checkpoint.h"
#include "train.h"

/* The pieces that this rank writes: of all ranks together, every element of every tensor once. They
 * point into the trainer, and hold until its next step. *out: freed by holmes_state_free. -ENOMEM.
 */
int holmes_state_pieces(const struct holmes_trainer *t, const struct holmes_links *links,
                        struct holmes_piece **out, int *count);
void holmes_state_free(struct holmes_piece *pieces, int count);

/* Sets weights and moments of everything this rank holds, reading no more than that. Not
 * collective; after a failure the trainer's state is undefined. */
int holmes_state_load(struct holmes_ckpt *c, struct holmes_trainer *t, char *why, size_t why_len);

/* Elements of a whole tensor, `count` from `first` on. A negative errno with a sentence. */
typedef int (*holmes_state_reader)(void *ctx, uint64_t first, size_t count, float *out, char *why,
                                   size_t why_len);
/* Sets the weights of this rank's part of a tensor, and so their masters. */
int holmes_state_fill_weights(struct holmes_stage *s, const struct holmes_tensor *t,
                              holmes_state_reader read, void *ctx, char *why, size_t why_len);

/* As a manifest has it: rows 0 for a vector. */
void holmes_state_shape(const struct holmes_tensor *t, int *rows, int *cols);

#endif
