/* Models by name, of which holmes-topo plans the same. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "config_spec.h"
#include "gpt_model.h"
#include "near_name.h"
#include "table.h"

#define PRESETS_MAX 64

static int set_number(const char *option, int value, struct holmes_config *c, char *why,
                      size_t why_len)
{
    char text[16];

    snprintf(text, sizeof text, "%d", value);
    return holmes_spec_set(holmes_spec_find(option), text, c, why, why_len);
}

static int no_preset(const char *name, char *why, size_t why_len)
{
    const char *words[PRESETS_MAX + 1] = {NULL}, *near;
    int n;
    const struct holmes_gpt *presets = holmes_gpt_presets(&n);

    for (int i = 0; i < n && i < PRESETS_MAX; i++)
        words[i] = presets[i].name;
    near = holmes_near_name(name, words);
    snprintf(why, why_len, "preset \"%.60s\": no model of that name; %s%s%s", name,
             near ? "did you mean \"" : "--preset help lists them", near ? near : "",
             near ? "\"?" : "");
    return -EINVAL;
}

int holmes_preset_apply(const char *name, struct holmes_config *c, char *why, size_t why_len)
{
    struct holmes_gpt g;
    int rc;

    if (holmes_gpt_preset(name, &g, why, why_len) != 0)
        return no_preset(name, why, why_len);
    rc = set_number("layers", g.layers, c, why, why_len);
    if (rc == 0)
        rc = set_number("channels", g.hidden, c, why, why_len);
    if (rc == 0)
        rc = set_number("heads", g.heads, c, why, why_len);
    if (rc == 0)
        rc = set_number("seq-len", g.sequence, c, why, why_len);
    if (rc == 0)
        rc = set_number("vocab", g.vocabulary, c, why, why_len);
    c->model.tied = g.tied;
    return rc;
}

static void count_text(double n, char *out, size_t len)
{
    if (n >= 1e9)
        snprintf(out, len, "%.1f B", n / 1e9);
    else
        snprintf(out, len, "%.1f M", n / 1e6);
}

int holmes_preset_list(FILE *out)
{
    static const char *const headings[] = {"preset",  "layers",     "channels",  "heads",
                                           "seq-len", "vocabulary", "parameters"};
    struct holmes_table *t = holmes_table_of(headings, "lrrrrrr");
    int n, rc;
    const struct holmes_gpt *g = holmes_gpt_presets(&n);

    if (!t)
        return -ENOMEM;
    for (int i = 0; i < n; i++, g++) {
        struct holmes_model m = {g->layers,   g->hidden,     g->heads,
                                 g->sequence, g->vocabulary, g->tied};
        char count[32];

        count_text((double)holmes_model_params(&m), count, sizeof count);
        holmes_table_cell(t, "%s", g->name);
        holmes_table_cell(t, "%d", g->layers);
        holmes_table_cell(t, "%d", g->hidden);
        holmes_table_cell(t, "%d", g->heads);
        holmes_table_cell(t, "%d", g->sequence);
        holmes_table_cell(t, "%d", g->vocabulary);
        holmes_table_cell(t, "%s", count);
    }
    rc = holmes_table_print(t, out);
    holmes_table_destroy(t);
    return rc;
}
