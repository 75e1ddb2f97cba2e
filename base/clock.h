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

/* When work that began at `start_ns` and ends now may begin again, so that it takes half of the
 * time at most; but after `most_ns` at the latest, since what took long may have been another
 * process. */
static inline uint64_t holmes_half_time(uint64_t start_ns, uint64_t most_ns)
{
    uint64_t now = holmes_now_ns(), took = now - start_ns;

    return now + (took < most_ns ? took : most_ns);
}

static inline bool holmes_deadline_passed(uint64_t deadline_ns)
{
    return holmes_now_ns() >= deadline_ns;
}

#endif
