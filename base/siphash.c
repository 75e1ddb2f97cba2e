#include "siphash.h"

#include <string.h>

static uint64_t rotl(uint64_t x, int b)
{
    return (x << b) | (x >> (64 - b));
}

static uint64_t load_le64(const uint8_t *p)
{
    uint64_t v = 0;

    for (int i = 7; i >= 0; i--)
        v = (v << 8) | p[i];
    return v;
}

static void rounds(uint64_t v[4], int n)
{
    while (n-- > 0) {
        v[0] += v[1];
        v[1] = rotl(v[1], 13) ^ v[0];
        v[0] = rotl(v[0], 32);
        v[2] += v[3];
        v[3] = rotl(v[3], 16) ^ v[2];
        v[0] += v[3];
        v[3] = rotl(v[3], 21) ^ v[0];
        v[2] += v[1];
        v[1] = rotl(v[1], 17) ^ v[2];
        v[2] = rotl(v[2], 32);
    }
}

uint64_t holmes_siphash(const uint8_t key[16], const void *data, size_t len)
{
    const uint8_t *p = data;
    uint64_t k0 = load_le64(key), k1 = load_le64(key + 8), m;
    uint64_t v[4] = {k0 ^ 0x736f6d6570736575u, k1 ^ 0x646f72616e646f6du, k0 ^ 0x6c7967656e657261u,
                     k1 ^ 0x7465646279746573u};
    uint8_t tail[8] = {0};
    size_t left = len;

    for (; left >= 8; p += 8, left -= 8) {
        m = load_le64(p);
        v[3] ^= m;
        rounds(v, 2);
        v[0] ^= m;
    }
    if (left > 0)
        memcpy(tail, p, left);
    tail[7] = (uint8_t)len;
    m = load_le64(tail);
    v[3] ^= m;
    rounds(v, 2);
    v[0] ^= m;
    v[2] ^= 0xff;
    rounds(v, 4);
    return v[0] ^ v[1] ^ v[2] ^ v[3];
}
