/* Checks of a model's shape and its size in parameters. Pure arithmetic: what a stage allocates is
 * decided in stage.c, whose tensors add up to the number given here. */
#include "model.h"

#include <errno.h>
#include <stdio.h>

/* Far above any model that fits a machine, and low enough that no product of three overflows. */
#define MODEL_DIM_MAX (1 << 20)

int holmes_model_check(const struct holmes_model *m, char *why, size_t why_len)
{
    const struct {
        const char *name;
        int value, least;
    } dims[] = {
        {"layers", m->layers, 1},   {"channels", m->channels, 1}, {"heads", m->heads, 1},
        {"seq_len", m->seq_len, 1}, {"vocab", m->vocab, 2},
    };

    for (size_t i = 0; i < sizeof dims / sizeof dims[0]; i++) {
        if (dims[i].value >= dims[i].least && dims[i].value <= MODEL_DIM_MAX)
            continue;
        snprintf(why, why_len, "%s is %d; it must be between %d and %d", dims[i].name,
                 dims[i].value, dims[i].least, MODEL_DIM_MAX);
        return -EINVAL;
    }
    if (m->channels % m->heads != 0) {
        snprintf(why, why_len, "channels is %d, which is no multiple of heads (%d)", m->channels,
                 m->heads);
        return -EINVAL;
    }
    return 0;
}

size_t holmes_model_params(const struct holmes_model *m)
{
    const size_t L = (size_t)m->layers, C = (size_t)m->channels;
    const size_t embedding = (size_t)m->vocab * C, positions = (size_t)m->seq_len * C;
    const size_t norm = 2 * C;
    const size_t attention = 3 * C * C + 3 * C + C * C + C; /* qkv, proj */
    const size_t mlp = 4 * C * C + 4 * C + 4 * C * C + C;   /* fc, proj */
    const size_t head = m->tied ? 0 : embedding;

    return embedding + positions + L * (2 * norm + attention + mlp) + norm + head;
}

double holmes_model_flops_per_token(const struct holmes_model *m)
{
    const double C = m->channels, T = m->seq_len;
    const double layer = 24 * C * C + 4 * T * C; /* qkv, proj, fc, proj; scores and values */

    return 3 * (m->layers * layer + 2 * C * m->vocab);
}
