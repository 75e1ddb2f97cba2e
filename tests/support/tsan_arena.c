/* Makes Criterion work under the thread sanitizer. Criterion (BoxFort's arena.c) maps the memory
 * that it shares with its test processes at 0x200000000000 + (rand_r() & 0x3fffff) * 16 MiB, nearly
 * all of which the sanitizer keeps for its shadow. This rand_r comes before libc's and leads it to
 * the part that programs may use and where the kernel puts nothing of its own. Linked into every
 * test of a -Db_sanitize=thread build, x86-64 only. */
#include <stdlib.h>

enum {
    ARENA_FIRST = (0x550000000000 - 0x200000000000) >> 24,
    ARENA_COUNT = (0x555500000000 - 0x550000000000) >> 24, /* executables start at 0x555555554000 */
};

__attribute__((visibility("default"))) int rand_r(unsigned int *seed)
{
    *seed = *seed * 1664525u + 1013904223u; /* Numerical Recipes' generator */
    return ARENA_FIRST + (int)((*seed >> 8) % ARENA_COUNT);
}
