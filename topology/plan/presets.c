/* Models by name. GPT-2: Radford et al. 2019, table 2 (head counts from the released weights).
 * gpt-3.6b, gpt-7.5b, gpt-39.1b: Narayanan et al., arXiv 2104.04473, table 1, whose sizes arXiv
 * 2312.03549 measures. The bytes-* are for text files as bytes, on a CPU. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "gpt_model.h"

#define GPT2_VOCABULARY     50257
#define MEGATRON_VOCABULARY 51200 /* 50257, padded for division by tensor groups */

#define GPT2(preset, l, h, a)                                                                      \
    {                                                                                              \
        .name = preset, .layers = l, .hidden = h, .heads = a, .sequence = 1024,                    \
        .vocabulary = GPT2_VOCABULARY, .tied = true, .sequence_parallel = true,                    \
        .distributed_optimizer = true, .bytes_per_weight = 2                                       \
    }
#define MEGATRON(preset, l, h, a)                                                                  \
    {                                                                                              \
        .name = preset, .layers = l, .hidden = h, .heads = a, .sequence = 2048,                    \
        .vocabulary = MEGATRON_VOCABULARY, .tied = true, .sequence_parallel = true,                \
        .distributed_optimizer = true, .bytes_per_weight = 2                                       \
    }

#define BYTES(preset, l, h, a, s)                                                                  \
    {                                                                                              \
        .name = preset, .layers = l, .hidden = h, .heads = a, .sequence = s, .vocabulary = 256,    \
        .distributed_optimizer = true, .bytes_per_weight = 4                                       \
    }

static const struct holmes_gpt presets[] = {
    BYTES("bytes-tiny", 4, 128, 4, 64),  BYTES("bytes-small", 6, 384, 6, 256),
    GPT2("gpt2-124m", 12, 768, 12),      GPT2("gpt2-355m", 24, 1024, 16),
    GPT2("gpt2-774m", 36, 1280, 20),     GPT2("gpt2-1.5b", 48, 1600, 25),
    MEGATRON("gpt-1.7b", 24, 2304, 24),  MEGATRON("gpt-3.6b", 30, 3072, 32),
    MEGATRON("gpt-7.5b", 36, 4096, 32),  MEGATRON("gpt-18b", 40, 6144, 48),
    MEGATRON("gpt-39.1b", 48, 8192, 64), MEGATRON("gpt-76b", 60, 10240, 80),
    MEGATRON("gpt-145b", 80, 12288, 96), MEGATRON("gpt-175b", 96, 12288, 96),
};

#define NPRESETS (sizeof(presets) / sizeof(presets[0]))

const struct holmes_gpt *holmes_gpt_presets(int *n)
{
    *n = NPRESETS;
    return presets;
}

int holmes_gpt_preset(const char *name, struct holmes_gpt *out, char *why, size_t why_len)
{
    size_t used;

    for (size_t i = 0; i < NPRESETS; i++)
        if (strcmp(presets[i].name, name) == 0) {
            *out = presets[i];
            return 0;
        }
    used = (size_t)snprintf(why, why_len, "no model \"%.64s\"; there are:", name);
    for (size_t i = 0; i < NPRESETS && used < why_len; i++)
        used += (size_t)snprintf(why + used, why_len - used, " %s", presets[i].name);
    return -ENOENT;
}
