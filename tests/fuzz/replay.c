/* Runs a fuzz target without a fuzzer: growing random inputs from a fixed generator, mutated from
 * each other, so that a plain build tests the same property. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static uint64_t next(uint64_t *state)
{
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state;
}

int main(void)
{
    enum { ROUNDS = 20000, MAX = 4096 };
    static uint8_t data[MAX];
    uint64_t state = 0x9e3779b97f4a7c15u;
    size_t size = 0;

    for (int i = 0; i < ROUNDS; i++) {
        if (i % 64 == 0)
            size = next(&state) % (MAX + 1);
        for (uint64_t n = next(&state) % 16; n > 0 && size > 0; n--)
            data[next(&state) % size] = (uint8_t)next(&state);
        uint8_t *exact = malloc(size > 0 ? size : 1); /* so that a sanitizer sees the end */

        memcpy(exact, data, size);
        LLVMFuzzerTestOneInput(exact, size);
        free(exact);
    }
    printf("%d inputs\n", ROUNDS);
    return 0;
}
