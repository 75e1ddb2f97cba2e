/* A shard of a checkpoint: what is read says of each element where it lies, within the file. */
#include <stdlib.h>
#include <string.h>

#include "shard.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void use(const struct holmes_shard_piece *p)
{
    const uint64_t whole = (uint64_t)p->cols * (uint64_t)(p->rows > 0 ? p->rows : 1);
    char *text = holmes_runs_text(&p->runs);
    struct holmes_runs again;
    uint64_t local, length;

    if (!text || holmes_runs_parse(text, whole, &again) != 0 || again.total != p->runs.total)
        __builtin_trap();
    free(text);
    holmes_runs_fini(&again);
    if (p->runs.total > whole || p->data[0]->count != p->runs.total)
        __builtin_trap();
    for (uint64_t at = 0; at < whole && at < 64; at++)
        if (holmes_runs_find(&p->runs, at, &local, &length) == 0 &&
            (length == 0 || local + length > p->runs.total || at + length > whole))
            __builtin_trap();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct holmes_shard *s = NULL;
    char why[512] = "";

    if (holmes_shard_parse("fuzz", data, size, &s, why, sizeof why) != 0) {
        if (s || strncmp(why, "fuzz: ", 6) != 0)
            __builtin_trap();
        return 0;
    }
    for (int i = 0; i < s->npieces; i++)
        use(&s->pieces[i]);
    holmes_shard_close(s);
    return 0;
}
