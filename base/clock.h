/* Monotonic time and deadlines. */
#ifndef HOLMES_CLOCK_H
#define HOLMES_CLOCK_H

#include <stdbool.h>
#include <stdint.h>
#include <time.h>

static inline uint64_t holmes_now_ns(void)
{
    struct timespec ts;

    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

/* Deadlines are absolute values of holmes_now_ns(). */
static inline uint64_t holmes_deadline_ms(uint64_t timeout_ms)
{
    return holmes_now_ns() + timeout_ms * 1000000u;
}

static inline bool holmes_deadline_passed(uint64_t deadline_ns)
{
    return holmes_now_ns() >= deadline_ns;
}

#endif
