#include "gpt2.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#define PREFIX "transformer."

/* The parts that differ. Biases follow their matrices. */
static const struct {
    const char *ours, *theirs;
    bool matrix;
} parts[] = {
    {"attn.qkv.", "attn.c_attn.", true}, {"attn.proj.", "attn.c_proj.", true},
    {"mlp.fc.", "mlp.c_fc.", true},      {"mlp.proj.", "mlp.c_proj.", true},
    {"ln_1.", "ln_1.", false},           {"ln_2.", "ln_2.", false},
};

static const char *const outside[] = {"wte.weight", "wpe.weight", "ln_f.weight", "ln_f.bias",
                                      "lm_head.weight"};

static bool is_outside(const char *name)
{
    for (size_t i = 0; i < sizeof outside / sizeof *outside; i++)
        if (strcmp(outside[i], name) == 0)
            return true;
    return false;
}

/* Length of "h.12." at the beginning, 0 when there is none. */
static size_t layer_prefix(const char *name)
{
    size_t digits = strncmp(name, "h.", 2) == 0 ? strspn(name + 2, "0123456789") : 0;

    return digits > 0 && digits < 6 && name[2 + digits] == '.' ? 2 + digits + 1 : 0;
}

/* Puts to[] in the place of from[] behind the layer's number. */
static int translate(const char *name, bool to_theirs, char *out, size_t len, bool *transposed)
{
    const size_t layer = layer_prefix(name);

    for (size_t i = 0; layer > 0 && i < sizeof parts / sizeof *parts; i++) {
        const char *from = to_theirs ? parts[i].ours : parts[i].theirs;
        const char *to = to_theirs ? parts[i].theirs : parts[i].ours;
        const char *rest = name + layer + strlen(from);

        if (strncmp(name + layer, from, strlen(from)) != 0 ||
            (strcmp(rest, "weight") != 0 && strcmp(rest, "bias") != 0))
            continue;
        snprintf(out, len, "%.*s%s%s", (int)layer, name, to, rest);
        *transposed = parts[i].matrix && strcmp(rest, "weight") == 0;
        return 0;
    }
    return -ENOENT;
}

int holmes_gpt2_name(const char *ours, char *out, size_t len, bool *transposed)
{
    *transposed = false;
    if (!is_outside(ours))
        return translate(ours, true, out, len, transposed) == 0 ? 0 : -EINVAL;
    snprintf(out, len, "%s", ours);
    return 0;
}

int holmes_gpt2_ours(const char *theirs, char *out, size_t len)
{
    bool transposed;

    if (strncmp(theirs, PREFIX, strlen(PREFIX)) == 0)
        theirs += strlen(PREFIX);
    if (!is_outside(theirs))
        return translate(theirs, false, out, len, &transposed);
    snprintf(out, len, "%s", theirs);
    return 0;
}
