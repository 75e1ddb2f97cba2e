/* Limits of time in tests say that something is bounded, and tell one way of ending from a slower
 * one; they do not measure. Each is written for an idle machine and multiplied by how much slower
 * this one may be: HOLMES_TEST_PATIENCE, which the sanitizers' set-ups and the guests raise. */
#ifndef HOLMES_TEST_PATIENCE_H
#define HOLMES_TEST_PATIENCE_H

#include <stdint.h>
#include <stdlib.h>

static inline uint64_t patience(void)
{
    const char *text = getenv("HOLMES_TEST_PATIENCE");
    int factor = text ? atoi(text) : 0;

    return factor > 0 ? (uint64_t)factor : 3;
}

/* For poll() and deadlines; and for differences of holmes_now_ns(). */
static inline int patience_ms(int idle_ms)
{
    return idle_ms * (int)patience();
}

static inline uint64_t patience_ns(int idle_ms)
{
    return (uint64_t)idle_ms * 1000000u * patience();
}

#endif
