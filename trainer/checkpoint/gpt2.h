/* Weights as the GPT-2 of Hugging Face's transformers has them: a folder with model.safetensors and
 * config.json. Its names differ from ours in a few parts ("attn.c_attn" for our "attn.qkv"), and
 * the matrices of its layers are (in, out) where ours are (out, in). */
#ifndef HOLMES_GPT2_H
#define HOLMES_GPT2_H

#include <stdbool.h>
#include <stddef.h>

#include "checkpoint.h"
#include "progress.h"
#include "train.h"

/* Their name for our tensor, without the "transformer." that most have before it. *transposed:
 * their matrix is ours with rows and columns exchanged. -EINVAL for a name that is none of ours. */
int holmes_gpt2_name(const char *ours, char *out, size_t len, bool *transposed);
/* Ours for theirs, "transformer." or not. -ENOENT: none. */
int holmes_gpt2_ours(const char *theirs, char *out, size_t len);

/* Writes the weights of a checkpoint as such a folder, which must not have them yet, one tensor at
 * a time. `progress`, of holmes_progress_init with the model's parameters as its total, may be
 * NULL. *bytes: of the weights. */
int holmes_gpt2_export(struct holmes_ckpt *c, const char *dir, struct holmes_progress *progress,
                       uint64_t *bytes, char *why, size_t why_len);

/* Sets the weights of what this rank holds from such a folder, or from a .safetensors file alone;
 * F32, F16 and BF16 are taken. A tensor that is missing, of another shape, or of no place in the
 * model is refused with its name. Not collective; after a failure the weights are undefined. */
int holmes_gpt2_import(const char *path, const struct holmes_config *c, struct holmes_trainer *t,
                       char *why, size_t why_len);

/* `holmes-train export`: argv[0] is the word. Returns an exit status of launch.h. */
int holmes_export_main(int argc, char **argv);

#endif
