/* A table of cases that differ in numbers only need not run whole where faults of memory and
 * threads are looked for, and a case takes ten times as long: HOLMES_TEST_EVERY, which the
 * sanitizers' set-ups raise, takes every nth. */
#ifndef HOLMES_TEST_SAMPLE_H
#define HOLMES_TEST_SAMPLE_H

#include <stddef.h>
#include <stdlib.h>

static inline size_t sample_every(void)
{
    const char *text = getenv("HOLMES_TEST_EVERY");
    int n = text ? atoi(text) : 0;

    return n > 0 ? (size_t)n : 1;
}

#endif
