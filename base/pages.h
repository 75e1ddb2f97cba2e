/* Zeroed memory of which only what is touched costs anything: for tables that are large because
 * they could be full, and seldom are. */
#ifndef HOLMES_PAGES_H
#define HOLMES_PAGES_H

#include <stddef.h>

/* At least `bytes` (1 or more) from a page boundary on; NULL when there is no memory. Untouched
 * pages stay free also where the kernel hands out huge ones. */
void *holmes_pages_get(size_t bytes);
/* With the same `bytes`; NULL is fine. */
void holmes_pages_put(void *pages, size_t bytes);

#endif
