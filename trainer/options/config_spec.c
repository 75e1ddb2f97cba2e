/* One option's value from text and to text, for wherever it comes from. */
#include "config_spec.h"

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Copies of texts live as long as the configuration. */
struct holmes_config_text {
    struct holmes_config_text *next;
    char text[];
};

static const char *keep(struct holmes_config *c, const char *text)
{
    size_t len = strlen(text) + 1;
    struct holmes_config_text *t = malloc(sizeof *t + len);

    if (!t)
        return NULL;
    memcpy(t->text, text, len);
    t->next = c->texts;
    c->texts = t;
    return t->text;
}

void holmes_config_fini(struct holmes_config *c)
{
    while (c->texts) {
        struct holmes_config_text *next = c->texts->next;

        free(c->texts);
        c->texts = next;
    }
}

static void *field_of(const struct holmes_spec *s, const struct holmes_config *c)
{
    return (char *)c + s->offset;
}

static bool parse_number(const struct holmes_spec *s, const char *text, void *field)
{
    char *end;
    double v = strtod(text, &end);

    if (end == text || *end != '\0' || !(v >= s->min && v <= s->max))
        return false;
    if (s->type == SPEC_REAL)
        *(double *)field = v;
    else if (v == floor(v))
        *(int *)field = (int)v;
    else
        return false;
    return true;
}

static bool parse_u64(const char *text, uint64_t *out)
{
    char *end;

    errno = 0;
    if (*text < '0' || *text > '9')
        return false;
    *out = strtoull(text, &end, 0);
    return *end == '\0' && errno == 0;
}

static bool parse_flag(const char *text, bool *out)
{
    static const char *const words[] = {"yes", "no", "on", "off", "true", "false", "1", "0"};

    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (strcmp(text, words[i]) == 0) {
            *out = i % 2 == 0;
            return true;
        }
    return false;
}

/* Word `index` of "a|b|c" into `word`; false where there are no more. */
static bool choice_word(const char *words, int index, char *word, size_t len)
{
    for (; index > 0 && words; index--) {
        words = strchr(words, '|');
        words = words ? words + 1 : NULL;
    }
    if (!words)
        return false;
    snprintf(word, len, "%.*s", (int)strcspn(words, "|"), words);
    return true;
}

static bool parse_choice(const struct holmes_spec *s, const char *text, int *field)
{
    char word[32];

    for (int i = 0; choice_word(s->arg, i, word, sizeof word); i++)
        if (strcmp(word, text) == 0) {
            *field = i;
            return true;
        }
    return false;
}

/* "a, b or c" */
static void choice_text(const char *words, char *out, size_t len)
{
    char word[32], next[32];
    size_t n = 0;

    out[0] = '\0';
    for (int i = 0; choice_word(words, i, word, sizeof word) && n < len; i++) {
        const char *join = i == 0                                         ? ""
                           : choice_word(words, i + 1, next, sizeof next) ? ", "
                                                                          : " or ";

        n += (size_t)snprintf(out + n, len - n, "%s%s", join, word);
    }
}

static int bad_value(const struct holmes_spec *s, const char *text, char *why, size_t why_len)
{
    char words[200];

    switch (s->type) {
    case SPEC_INT:
    case SPEC_REAL:
        snprintf(why, why_len, "%s \"%.60s\": a %snumber from %.12g to %.12g is right", s->name,
                 text, s->type == SPEC_INT ? "whole " : "", s->min, s->max);
        break;
    case SPEC_U64:
        snprintf(why, why_len, "%s \"%.60s\": a whole number from 0 to 2^64-1 is right", s->name,
                 text);
        break;
    case SPEC_FLAG:
        snprintf(why, why_len, "%s \"%.60s\": yes or no is right", s->name, text);
        break;
    case SPEC_CHOICE:
        choice_text(s->arg, words, sizeof words);
        snprintf(why, why_len, "%s \"%.60s\": %s is right", s->name, text, words);
        break;
    default:
        snprintf(why, why_len, "%s: nothing is given", s->name);
        break;
    }
    return -EINVAL;
}

/* The few options that are no matter of training. */
static int set_start(const struct holmes_spec *s, const char *text, struct holmes_config *c,
                     char *why, size_t why_len)
{
    const struct holmes_spec rank = {s->name, NULL, NULL, SPEC_INT, 0, s->min, s->max, NULL};

    if (strcmp(s->name, "launched") == 0) {
        if (sscanf(text, "%d:%d", &c->launcher_pid, &c->launcher_fd) == 2)
            return 0;
        snprintf(why, why_len, "launched is for the launcher's own use");
        return -EINVAL;
    }
    if (strcmp(s->name, "rank") == 0)
        return parse_number(&rank, text, &c->rank) ? 0 : bad_value(&rank, text, why, why_len);
    if (!s->arg) {
        *(bool *)field_of(s, c) = true;
        return 0;
    }
    if (text[0] == '\0')
        return bad_value(s, text, why, why_len);
    *(const char **)field_of(s, c) = keep(c, text);
    return *(const char **)field_of(s, c) ? 0 : -ENOMEM;
}

static int set_text(const struct holmes_spec *s, const char *text, struct holmes_config *c)
{
    const char *kept = keep(c, text);

    if (!kept)
        return -ENOMEM;
    *(const char **)field_of(s, c) = kept;
    if (s->type == SPEC_ORDER)
        c->placement = HOLMES_PLACEMENT_ORDER;
    return 0;
}

int holmes_spec_set(const struct holmes_spec *s, const char *text, struct holmes_config *c,
                    char *why, size_t why_len)
{
    void *field = field_of(s, c);
    bool good = true;
    int rc = 0;

    switch (s->type) {
    case SPEC_INT:
    case SPEC_REAL:
        good = parse_number(s, text, field);
        break;
    case SPEC_U64:
        good = parse_u64(text, field);
        break;
    case SPEC_FLAG:
        good = parse_flag(text, field);
        break;
    case SPEC_CHOICE:
        good = parse_choice(s, text, field);
        break;
    case SPEC_TEXT:
    case SPEC_LIST:
    case SPEC_ORDER:
        good = text[0] != '\0';
        rc = good ? set_text(s, text, c) : 0;
        break;
    case SPEC_START:
        rc = set_start(s, text, c, why, why_len);
        break;
    case SPEC_GROUP:
        break;
    }
    if (!good)
        return bad_value(s, text, why, why_len);
    if (rc == 0)
        c->given[s - holmes_specs] = true;
    return rc;
}

/* The shortest text that reads as the same number. */
static void real_text(double v, char *buf, size_t len)
{
    for (int digits = 6; digits <= 17; digits++) {
        snprintf(buf, len, "%.*g", digits, v);
        if (strtod(buf, NULL) == v)
            return;
    }
}

const char *holmes_spec_get(const struct holmes_spec *s, const struct holmes_config *c, char *buf,
                            size_t len)
{
    const void *field = field_of(s, c);

    switch (s->type) {
    case SPEC_INT:
        if (!s->def && !c->given[s - holmes_specs])
            return NULL;
        snprintf(buf, len, "%d", *(const int *)field);
        return buf;
    case SPEC_REAL:
        if (!s->def && !c->given[s - holmes_specs])
            return NULL;
        real_text(*(const double *)field, buf, len);
        return buf;
    case SPEC_U64:
        snprintf(buf, len, "%" PRIu64, *(const uint64_t *)field);
        return buf;
    case SPEC_FLAG:
        return *(const bool *)field ? "yes" : "no";
    case SPEC_CHOICE:
        return choice_word(s->arg, *(const int *)field, buf, len) ? buf : NULL;
    case SPEC_ORDER:
        return c->placement == HOLMES_PLACEMENT_ORDER ? *(const char *const *)field : NULL;
    case SPEC_TEXT:
    case SPEC_LIST:
        return *(const char *const *)field;
    case SPEC_START:
    case SPEC_GROUP:
        break;
    }
    return NULL;
}

void holmes_config_init(struct holmes_config *c)
{
    char why[200];

    *c = (struct holmes_config){.rank = -1, .launcher_fd = -1};
    for (int i = 0; i < holmes_nspecs; i++)
        if (holmes_specs[i].def)
            holmes_spec_set(&holmes_specs[i], holmes_specs[i].def, c, why, sizeof why);
    memset(c->given, 0, sizeof c->given);
}

bool holmes_config_given(const struct holmes_config *c, const char *name)
{
    const struct holmes_spec *s = holmes_spec_find(name);

    return s && c->given[s - holmes_specs];
}

bool holmes_config_changed(const struct holmes_config *c, const char *name)
{
    const struct holmes_spec *s = holmes_spec_find(name);
    const char *text;
    char buf[64];

    if (!s || !c->given[s - holmes_specs])
        return false;
    text = holmes_spec_get(s, c, buf, sizeof buf);
    return !s->def || !text || strcmp(text, s->def) != 0;
}

int holmes_config_set(struct holmes_config *c, const char *option, const char *text, char *why,
                      size_t why_len)
{
    return holmes_spec_set(holmes_spec_find(option), text, c, why, why_len);
}

void holmes_config_derive(struct holmes_config *c)
{
    if (!holmes_config_given(c, "final-lr"))
        c->final_lr = c->lr / 10;
}
