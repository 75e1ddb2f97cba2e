/* Reads the environment through one table, so that documentation, checks and defaults cannot
 * drift apart. */
#include "env.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

const struct holmes_env_var holmes_env_vars[HOLMES_ENV_COUNT] = {
#define X(id, name, type, dflt, min, max, choices, help)                                           \
    [HOLMES_ENV_##id] = {name, HOLMES_ENV_##type, dflt, min, max, choices, help},
    HOLMES_ENV_TABLE(X)
#undef X
};

extern char **environ;

static bool is_ours(const char *name)
{
    /* HOLMES_TEST_* tells the test suite what to test on. */
    return strncmp(name, "HOLMES_", 7) == 0 && strncmp(name, "HOLMES_TEST_", 12) != 0;
}

static int parse_int(const char *text, int64_t *out)
{
    char *end;
    long long v;

    errno = 0;
    v = strtoll(text, &end, 0);
    if (end == text || *end != '\0' || errno != 0)
        return -EINVAL;
    *out = v;
    return 0;
}

static int parse_range(const char *text, uint16_t *low, uint16_t *high)
{
    unsigned long port[2];
    const char *p = text;

    for (int i = 0; i < 2; i++) {
        char *end;

        if (*p < '0' || *p > '9')
            return -EINVAL;
        errno = 0;
        port[i] = strtoul(p, &end, 10);
        if (errno != 0 || port[i] < 1 || port[i] > 65535 || *end != (i == 0 ? '-' : '\0'))
            return -EINVAL;
        p = end + 1;
    }
    if (port[0] > port[1])
        return -EINVAL;
    *low = (uint16_t)port[0];
    *high = (uint16_t)port[1];
    return 0;
}

static bool is_choice(const char *choices, const char *value)
{
    size_t n = strlen(value);

    for (const char *p = choices; p; p = strchr(p, '|')) {
        p += *p == '|';
        if (n > 0 && strncmp(p, value, n) == 0 && (p[n] == '|' || p[n] == '\0'))
            return true;
    }
    return false;
}

static int check_one(const struct holmes_env_var *v, const char *value, char *why, size_t why_len)
{
    uint16_t low, high;
    int64_t n;

    switch (v->type) {
    case HOLMES_ENV_INT:
        if (parse_int(value, &n) == 0 && n >= v->min && n <= v->max)
            return 0;
        snprintf(why, why_len, "%s=\"%s\": an integer from %lld to %lld is right", v->name, value,
                 (long long)v->min, (long long)v->max);
        return -EINVAL;
    case HOLMES_ENV_CHOICE:
        if (is_choice(v->choices, value))
            return 0;
        snprintf(why, why_len, "%s=\"%s\": one of %s is right", v->name, value, v->choices);
        return -EINVAL;
    case HOLMES_ENV_RANGE:
        if (parse_range(value, &low, &high) == 0)
            return 0;
        snprintf(why, why_len, "%s=\"%s\": low-high with 1 <= low <= high <= 65535 is right",
                 v->name, value);
        return -EINVAL;
    case HOLMES_ENV_STRING:
        break;
    }
    return 0;
}

int holmes_env_check(char *why, size_t why_len)
{
    for (char **e = environ; e && *e; e++) {
        const char *eq = strchr(*e, '=');
        bool known = false;

        if (!eq || !is_ours(*e))
            continue;
        for (int i = 0; i < HOLMES_ENV_COUNT; i++) {
            const struct holmes_env_var *v = &holmes_env_vars[i];
            size_t n = strlen(v->name);

            if ((size_t)(eq - *e) != n || strncmp(*e, v->name, n) != 0)
                continue;
            known = true;
            if (check_one(v, eq + 1, why, why_len) != 0)
                return -EINVAL;
        }
        if (!known) {
            snprintf(why, why_len, "%.*s is not a variable of Holmes: see docs/environment.md",
                     (int)(eq - *e), *e);
            return -EINVAL;
        }
    }
    return 0;
}

int64_t holmes_env_int(enum holmes_env_id id)
{
    const struct holmes_env_var *v = &holmes_env_vars[id];
    const char *value = getenv(v->name);
    int64_t n = 0;

    if (value && parse_int(value, &n) == 0 && n >= v->min && n <= v->max)
        return n;
    if (v->dflt)
        parse_int(v->dflt, &n);
    return n;
}

const char *holmes_env_string(enum holmes_env_id id)
{
    const struct holmes_env_var *v = &holmes_env_vars[id];
    const char *value = getenv(v->name);

    return value ? value : v->dflt;
}

bool holmes_env_is_set(enum holmes_env_id id)
{
    return getenv(holmes_env_vars[id].name) != NULL;
}

const char *holmes_env_fact(const char *name)
{
    return getenv(name);
}

int holmes_env_range(enum holmes_env_id id, uint16_t *low, uint16_t *high)
{
    const char *value = holmes_env_string(id);

    if (!value)
        return -ENOENT;
    return parse_range(value, low, high);
}

int holmes_env_path(enum holmes_env_id id, char *out, size_t cap)
{
    const char *pattern = holmes_env_string(id);
    size_t n = 0;

    if (!pattern || !pattern[0])
        return -ENOENT;
    for (const char *p = pattern; *p; p++) {
        char piece[256] = {*p};

        if (p[0] == '%' && p[1] == 'h') {
            if (gethostname(piece, sizeof piece) != 0)
                return -errno;
            piece[sizeof piece - 1] = '\0';
            p++;
        } else if (p[0] == '%' && p[1] == 'p') {
            snprintf(piece, sizeof piece, "%ld", (long)getpid());
            p++;
        }
        if (n + strlen(piece) >= cap)
            return -ENAMETOOLONG;
        memcpy(out + n, piece, strlen(piece) + 1);
        n += strlen(piece);
    }
    return 0;
}
