/* Warnings of a rank are kept back while nobody knows whether they are the cause of a failure: if
 * the step succeeds they are shown, if the rank fails the last one becomes part of its one error
 * sentence. Thread safe. */
#ifndef HOLMES_NOTES_H
#define HOLMES_NOTES_H

#include <stddef.h>

/* Becomes the sink of base/log.h, until holmes_notes_stop. */
void holmes_notes_start(void);
void holmes_notes_stop(void); /* shows what is kept */

/* Shows what is kept; `before` (NULL is fine) is called first when there is anything to show. */
void holmes_notes_show(void (*before)(void *ctx), void *ctx);
/* Takes the last warning, "" when there is none, and drops the others. */
void holmes_notes_take_last(char *out, size_t out_len);

void holmes_notes_drop(void);

#endif
