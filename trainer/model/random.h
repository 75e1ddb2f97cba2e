/* Random numbers by counter: a value is a pure function of (key, counter), so it does not matter
 * who draws it, nor when. The output function is that of splitmix64 (Steele, Lea and Flood, "Fast
 * Splittable Pseudorandom Number Generators", 2014); keys come from SipHash. */
#ifndef HOLMES_RANDOM_H
#define HOLMES_RANDOM_H

#include "siphash.h"

#include <math.h>
#include <stdint.h>
#include <string.h>

/* Key of the stream that `label` (any `len` bytes) names under a seed. */
static inline uint64_t holmes_random_key(uint64_t seed, const void *label, size_t len)
{
    uint8_t key[16] = "holmes";

    memcpy(key + 8, &seed, sizeof seed);
    return holmes_siphash(key, label, len);
}

static inline uint64_t holmes_random_u64(uint64_t key, uint64_t counter)
{
    uint64_t z = key + (counter + 1) * 0x9e3779b97f4a7c15u;

    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

/* Uniform in [0, n), n at least 1; the bias is below n / 2^64. */
static inline uint64_t holmes_random_below(uint64_t key, uint64_t counter, uint64_t n)
{
    return (uint64_t)(((unsigned __int128)holmes_random_u64(key, counter) * n) >> 64);
}

/* Where i, below n, lies in a random order of 0 to n-1, n at most 2^62: a Feistel network over the
 * next power of four, walked until it comes back below n. Every key is another order. */
static inline uint64_t holmes_random_permute(uint64_t key, uint64_t i, uint64_t n)
{
    const int half = n > 1 ? (65 - __builtin_clzll(n - 1)) / 2 : 1;
    const uint64_t mask = (UINT64_C(1) << half) - 1;

    do {
        uint64_t left = i >> half, right = i & mask;

        for (uint64_t round = 0; round < 6; round++) {
            const uint64_t mixed = left ^ (holmes_random_u64(key, round << 32 | right) & mask);

            left = right;
            right = mixed;
        }
        i = left << half | right;
    } while (i >= n);
    return i;
}

/* Standard normal, by Box and Muller from two uniforms. */
static inline double holmes_random_normal(uint64_t key, uint64_t counter)
{
    const double unit = 1.0 / 9007199254740992.0; /* 2^-53 */
    const double u = (double)((holmes_random_u64(key, 2 * counter) >> 11) + 1) * unit;
    const double v = (double)(holmes_random_u64(key, 2 * counter + 1) >> 11) * unit;

    return sqrt(-2 * log(u)) * cos(2 * M_PI * v);
}

#endif
