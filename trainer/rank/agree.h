/* Ranks that train together must have been told the same, and read the same data: nothing else
 * would show that they were not, the losses would only be wrong. */
#ifndef HOLMES_AGREE_H
#define HOLMES_AGREE_H

#include <jansson.h>

#include "checkpoint.h"

/* What this rank was told that has to be the same for all: option -> text (of paths, whether they
 * were given), and of its data the size and the hash of samples. NULL without memory. */
json_t *holmes_agree_terms(const struct holmes_config *c, const struct holmes_ckpt_data *data);

/* -EINVAL with a sentence that names the first option that is another one for rank 0. */
int holmes_agree_check(const json_t *mine, const json_t *rank0, char *why, size_t why_len);

/* Options that each rank may have as it likes, and those of which it only matters whether they were
 * given. End with NULL. */
extern const char *const holmes_agree_own[], *const holmes_agree_given[];

#endif
