/* Which elements of a whole tensor a piece of it has: runs of consecutive elements, equal ones at
 * equal distances written as one, so that a block of columns is one entry. Pure.
 *
 * As text: "START+LENGTH" or "START+LENGTH*COUNT/STRIDE", joined by commas; the piece's elements
 * lie in this order.
 */
#ifndef HOLMES_RUNS_H
#define HOLMES_RUNS_H

#include <stddef.h>
#include <stdint.h>

struct holmes_run {
    uint64_t start, length, count, stride; /* count runs; stride >= length, 0 for one */
};

struct holmes_runs {
    struct holmes_run *at;
    int n, cap;
    uint64_t total; /* elements */
};

/* Adds `length` elements from `start` of the whole tensor on. -ENOMEM. */
int holmes_runs_add(struct holmes_runs *r, uint64_t start, uint64_t length);
void holmes_runs_fini(struct holmes_runs *r); /* leaves it empty */

/* Where element `whole` of the tensor lies in the piece, and how many lie there one after the other
 * as they do in the tensor. -ENOENT when the piece does not have it. */
int holmes_runs_find(const struct holmes_runs *r, uint64_t whole, uint64_t *local,
                     uint64_t *length);

char *holmes_runs_text(const struct holmes_runs *r); /* malloc'ed; NULL: no memory */
/* -EINVAL for what is no such text, is empty, or goes beyond `limit` elements of the tensor. */
int holmes_runs_parse(const char *text, uint64_t limit, struct holmes_runs *out);

#endif
