/* Peaks by data sheet, without sparsity. */
#include "cluster/gpu_spec.h"

#include <ctype.h>
#include <stdbool.h>
#include <stddef.h>
#include <string.h>

/* Words that must all be in the name; the first row that fits counts. */
static const struct {
    const char *words[2];
    double tflops;
} specs[] = {
    {{"GB200", NULL}, 2500},  {{"B200", NULL}, 2250},  {{"B100", NULL}, 1750},
    {{"GH200", NULL}, 989},   {{"H200", "NVL"}, 835},  {{"H200", NULL}, 989},
    {{"H100", "PCIe"}, 756},  {{"H100", "NVL"}, 835},  {{"H100", NULL}, 989},
    {{"H800", "PCIe"}, 756},  {{"H800", NULL}, 989},   {{"H20", NULL}, 148},
    {{"A100", NULL}, 312},    {{"A800", NULL}, 312},   {{"A40", NULL}, 150},
    {{"A30", NULL}, 165},     {{"A10", NULL}, 125},    {{"L40S", NULL}, 362},
    {{"L40", NULL}, 181},     {{"L4", NULL}, 121},     {{"V100", "PCIE"}, 112},
    {{"V100", NULL}, 125},    {{"T4", NULL}, 65},      {{"MI325X", NULL}, 1307},
    {{"MI300X", NULL}, 1307}, {{"MI250X", NULL}, 383}, {{"MI250", NULL}, 362},
    {{"MI210", NULL}, 181},   {{"MI100", NULL}, 185},
};

/* Whether the word stands by itself: "A10" is not in "A100", nor in "RTX A1000". */
static bool has_word(const char *text, const char *word)
{
    size_t len = strlen(word);

    for (const char *at = text; (at = strstr(at, word)); at++)
        if ((at == text || !isalnum((unsigned char)at[-1])) && !isalnum((unsigned char)at[len]))
            return true;
    return false;
}

double holmes_gpu_spec_tflops(const char *model)
{
    for (size_t i = 0; i < sizeof specs / sizeof specs[0]; i++)
        if (has_word(model, specs[i].words[0]) &&
            (!specs[i].words[1] || has_word(model, specs[i].words[1])))
            return specs[i].tflops;
    return 0;
}
