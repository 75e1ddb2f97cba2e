#ifndef HOLMES_PREFIX_H
#define HOLMES_PREFIX_H

#include <stdbool.h>

#define HOLMES_PREFIX_MAX 20 /* "ffff:ffff:ffff:ffff" */

/* Reads an InfiniBand subnet prefix ("fe80::", "fe80:0:0:0", "fe80000000000000") into its plain
 * form, "fe80:0:0:0". -EINVAL. */
int holmes_prefix_read(const char *text, char out[HOLMES_PREFIX_MAX]);
/* Whether this, in its plain form, is what every subnet manager uses that was not told another. */
bool holmes_prefix_is_default(const char *prefix);

#endif
