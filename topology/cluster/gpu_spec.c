/* Peaks by data sheet, without sparsity. */
#include "cluster/gpu_spec.h"

#include <ctype.h>
#include <stdbool.h>
#include <stddef.h>
#include <string.h>

/* Words that must all be in the name; the first row that fits counts. NVLink only where the name is
 * that of a module (SXM), whose boards all have it. */
static const struct {
    const char *words[2];
    double tflops, nvlink_gbps;
} specs[] = {
    {{"GB200", NULL}, 2500, 7200}, {{"B200", NULL}, 2250, 7200}, {{"B100", NULL}, 1750, 7200},
    {{"GH200", NULL}, 989, 0},     {{"H200", "NVL"}, 835, 0},    {{"H200", NULL}, 989, 3600},
    {{"H100", "PCIe"}, 756, 0},    {{"H100", "NVL"}, 835, 0},    {{"H100", NULL}, 989, 3600},
    {{"H800", "PCIe"}, 756, 0},    {{"H800", NULL}, 989, 1600},  {{"H20", NULL}, 148, 3600},
    {{"A100", "SXM4"}, 312, 2400}, {{"A100", NULL}, 312, 0},     {{"A800", "SXM4"}, 312, 1600},
    {{"A800", NULL}, 312, 0},      {{"A40", NULL}, 150, 0},      {{"A30", NULL}, 165, 0},
    {{"A10", NULL}, 125, 0},       {{"L40S", NULL}, 362, 0},     {{"L40", NULL}, 181, 0},
    {{"L4", NULL}, 121, 0},        {{"V100", "PCIE"}, 112, 0},   {{"V100", "SXM2"}, 125, 1200},
    {{"V100", "SXM3"}, 125, 1200}, {{"V100", NULL}, 125, 0},     {{"T4", NULL}, 65, 0},
    {{"MI325X", NULL}, 1307, 0},   {{"MI300X", NULL}, 1307, 0},  {{"MI250X", NULL}, 383, 0},
    {{"MI250", NULL}, 362, 0},     {{"MI210", NULL}, 181, 0},    {{"MI100", NULL}, 185, 0},
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

static int spec_find(const char *model)
{
    for (int i = 0; i < (int)(sizeof specs / sizeof specs[0]); i++)
        if (has_word(model, specs[i].words[0]) &&
            (!specs[i].words[1] || has_word(model, specs[i].words[1])))
            return i;
    return -1;
}

double holmes_gpu_spec_tflops(const char *model)
{
    int i = spec_find(model);

    return i < 0 ? 0 : specs[i].tflops;
}

double holmes_gpu_spec_nvlink_gbps(const char *model)
{
    int i = spec_find(model);

    return i < 0 ? 0 : specs[i].nvlink_gbps;
}
