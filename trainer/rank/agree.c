#include "agree.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "config_spec.h"
#include "siphash.h"

#define TEXT_MAX 60 /* longer ones, orders of many ranks, are compared by their hash */

const char *const holmes_agree_own[] = {
    "data",        "threads",        "local",         "world",      "rendezvous",
    "secret-file", "host-label",     "planned-hosts", "cluster",    "join-timeout",
    "op-timeout",  "stop-timeout",   "plugin",        "net-device", "log",
    "quiet",       "progress-every", "peak-tflops",   NULL};

const char *const holmes_agree_given[] = {"save", "resume", "init", "trace", NULL};

static bool is_in(const char *const *list, const char *name)
{
    while (*list && strcmp(*list, name) != 0)
        list++;
    return *list != NULL;
}

static json_t *term(const struct holmes_spec *s, const struct holmes_config *c)
{
    const uint8_t key[16] = "holmes agree";
    char buf[64];
    const char *text = holmes_spec_get(s, c, buf, sizeof buf);

    if (!text)
        return json_string("default");
    if (is_in(holmes_agree_given, s->name))
        return json_string("given");
    if (strlen(text) > TEXT_MAX)
        return json_sprintf("(hash %016" PRIx64 ")", holmes_siphash(key, text, strlen(text)));
    return json_string(text);
}

json_t *holmes_agree_terms(const struct holmes_config *c, const struct holmes_ckpt_data *data)
{
    struct holmes_config all = *c; /* to read from: values that were derived count as well */
    json_t *o = json_pack("{s:o}", "data",
                          json_sprintf("%" PRIu64 " bytes, hash %s", data->bytes, data->sum));
    int rc = o ? 0 : -ENOMEM;

    memset(all.given, 1, sizeof all.given);
    for (int i = 0; i < holmes_nspecs && rc == 0; i++) {
        const struct holmes_spec *s = &holmes_specs[i];

        if (s->name && s->type != SPEC_START && !is_in(holmes_agree_own, s->name))
            rc = json_object_set_new(o, s->name, term(s, &all));
    }
    if (rc == 0)
        return o;
    json_decref(o);
    return NULL;
}

int holmes_agree_check(const json_t *mine, const json_t *rank0, char *why, size_t why_len)
{
    const char *option;
    json_t *value;

    json_object_foreach((json_t *)mine, option, value)
    {
        const char *here = json_string_value(value);
        const char *there = json_string_value(json_object_get(rank0, option));

        if (here && there && strcmp(here, there) == 0)
            continue;
        snprintf(why, why_len,
                 "--%s: %.80s here, %.80s for rank 0: all ranks must be told the same and read the "
                 "same data",
                 option, here ? here : "nothing", there ? there : "nothing");
        return -EINVAL;
    }
    return 0;
}
