/* Runs a fuzz target without a fuzzer, so that a plain build tests the same property: every file of
 * the seed folder (argument 1, may be absent) as it is, then, from a fixed generator, damaged
 * copies of seeds and random inputs mutated from each other. */
#include <dirent.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { ROUNDS = 20000, MAX = 4096, SEED_MAX = 1 << 16, SEEDS_MAX = 256 };

struct seed {
    uint8_t *data;
    size_t size;
};

static uint64_t next(uint64_t *state)
{
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state;
}

static void run(const uint8_t *data, size_t size)
{
    uint8_t *exact = malloc(size > 0 ? size : 1); /* so that a sanitizer sees the end */

    memcpy(exact, data, size);
    LLVMFuzzerTestOneInput(exact, size);
    free(exact);
}

static int by_name(const struct dirent **a, const struct dirent **b)
{
    return strcmp((*a)->d_name, (*b)->d_name);
}

/* Their number, or -1 after a line that says which file could not be read. */
static int seeds_read(const char *folder, struct seed *seeds)
{
    struct dirent **names;
    int n = scandir(folder, &names, NULL, by_name), nseeds = 0;

    for (int i = 0; i < n; i++) {
        char path[4096];
        FILE *f;

        snprintf(path, sizeof path, "%s/%s", folder, names[i]->d_name);
        if (names[i]->d_name[0] == '.' || nseeds == SEEDS_MAX) {
            free(names[i]);
            continue;
        }
        free(names[i]);
        f = fopen(path, "rbe");
        seeds[nseeds].data = malloc(SEED_MAX);
        seeds[nseeds].size = f ? fread(seeds[nseeds].data, 1, SEED_MAX, f) : 0;
        if (!f || ferror(f)) {
            fprintf(stderr, "cannot read seed %s\n", path);
            return -1;
        }
        fclose(f);
        nseeds++;
    }
    if (n < 0)
        fprintf(stderr, "cannot read the seeds in %s\n", folder);
    else
        free(names);
    return n < 0 ? -1 : nseeds;
}

/* Overwrites some bytes, or cuts the input short. */
static size_t damage(uint8_t *data, size_t size, uint64_t *state)
{
    if (size > 0 && next(state) % 8 == 0)
        size = next(state) % size;
    for (uint64_t n = next(state) % 16; n > 0 && size > 0; n--)
        data[next(state) % size] = (uint8_t)next(state);
    return size;
}

int main(int argc, char **argv)
{
    static uint8_t data[MAX], copy[SEED_MAX];
    static struct seed seeds[SEEDS_MAX];
    uint64_t state = 0x9e3779b97f4a7c15u;
    int nseeds = argc > 1 ? seeds_read(argv[1], seeds) : 0;
    size_t size = 0;

    if (nseeds < 0)
        return 1;
    for (int i = 0; i < nseeds; i++)
        run(seeds[i].data, seeds[i].size);
    /* Long seeds take longer, so fewer of their copies. */
    for (int i = 0; nseeds > 0 && i < ROUNDS / 4; i++) {
        const struct seed *seed = &seeds[next(&state) % (unsigned)nseeds];

        memcpy(copy, seed->data, seed->size);
        run(copy, damage(copy, seed->size, &state));
    }
    for (int i = 0; i < ROUNDS; i++) {
        if (i % 64 == 0)
            size = next(&state) % (MAX + 1);
        for (uint64_t n = next(&state) % 16; n > 0 && size > 0; n--)
            data[next(&state) % size] = (uint8_t)next(&state);
        run(data, size);
    }
    printf("%d seeds, %d inputs\n", nseeds, (nseeds > 0 ? ROUNDS / 4 : 0) + ROUNDS);
    for (int i = 0; i < nseeds; i++)
        free(seeds[i].data);
    return 0;
}
