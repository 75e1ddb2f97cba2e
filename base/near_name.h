#ifndef HOLMES_NEAR_NAME_H
#define HOLMES_NEAR_NAME_H

/* The word of `words` (NULL at the end) that `text` may have been meant to be, or NULL. */
const char *holmes_near_name(const char *text, const char *const *words);

#endif
