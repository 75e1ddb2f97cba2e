/* The secret that the ranks of a job share. It travels in the environment, never in arguments,
 * which everybody sees. */
#ifndef HOLMES_SECRET_H
#define HOLMES_SECRET_H

#include "config.h"

/* Puts what --secret-file holds into the environment. -EINVAL with a sentence where the file can be
 * read by others, is no text, or contradicts HOLMES_JOB_SECRET; does nothing without a file. */
int holmes_secret_load(const struct holmes_config *c, char *why, size_t why_len);
/* The secret, or NULL with a sentence that says how to make one for whatever started this process.
 */
const char *holmes_secret(const struct holmes_config *c, char *why, size_t why_len);

#endif
