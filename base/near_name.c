/* The known word that a misspelt one is nearest to. */
#include <string.h>
#include <strings.h>

#include "near_name.h"

#define WORD_MAX 40

static int least(int a, int b)
{
    return a < b ? a : b;
}

/* Levenshtein's distance of words of up to WORD_MAX characters, without regard to case. */
static int distance(const char *a, size_t na, const char *b, size_t nb)
{
    int row[WORD_MAX + 1];

    for (size_t k = 0; k <= nb; k++)
        row[k] = (int)k;
    for (size_t i = 1; i <= na; i++) {
        int diagonal = row[0];

        row[0] = (int)i;
        for (size_t k = 1; k <= nb; k++) {
            int change = diagonal + (strncasecmp(a + i - 1, b + k - 1, 1) != 0);

            diagonal = row[k];
            row[k] = least(change, 1 + least(row[k], row[k - 1]));
        }
    }
    return row[nb];
}

const char *holmes_near_name(const char *text, const char *const *words)
{
    size_t len = strlen(text);
    int best = WORD_MAX;
    const char *near = NULL;

    if (len > WORD_MAX)
        return NULL;
    for (; *words; words++) {
        size_t n = strlen(*words);
        int d = n <= WORD_MAX ? distance(text, len, *words, n) : WORD_MAX;

        if (n > 2 && len > 2 && (strncmp(text, *words, n) == 0 || strncmp(text, *words, len) == 0))
            d = least(d, 2); /* "memory" for "memory-gib" */
        if (d < best) {
            best = d;
            near = *words;
        }
    }
    return best <= 2 && (size_t)best < len ? near : NULL;
}
