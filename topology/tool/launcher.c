/* Launcher templates. Words are measured and written by the same code, so that the argument vector
 * is one allocation. */
#include "tool/launcher.h"

#include <ctype.h>
#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define HOST    "{host}"
#define COMMAND "{command}"

static bool is_blank(char c)
{
    return c == ' ' || c == '\t' || c == '\n';
}

/* The word at *text without its quotes into `out`, which has room for all of it. */
static const char *read_word(const char **text, char *out)
{
    const char *p = *text;
    char quote = '\0';

    for (; *p && (quote || !is_blank(*p)); p++) {
        if (quote ? *p == quote : (*p == '\'' || *p == '"')) {
            quote = quote ? '\0' : *p;
        } else if (*p == '\\' && quote != '\'') {
            if (!*++p)
                return "a backslash is its last character";
            *out++ = *p;
        } else {
            *out++ = *p;
        }
    }
    *out = '\0';
    *text = p;
    return quote ? "a quotation mark is not closed" : NULL;
}

static const char *split(const char *template, struct holmes_launcher *l)
{
    size_t room = strlen(template) + 1;

    for (const char *p = template;;) {
        const char *what;

        while (is_blank(*p))
            p++;
        if (!*p)
            return NULL;
        if (l->nwords == HOLMES_LAUNCHER_WORDS_MAX)
            return "it has more than 64 words";
        l->words[l->nwords] = malloc(room);
        if (!l->words[l->nwords])
            return "";
        what = read_word(&p, l->words[l->nwords++]);
        if (what)
            return what;
    }
}

static bool has(const struct holmes_launcher *l, const char *mark)
{
    for (int i = 0; i < l->nwords; i++)
        if (strstr(l->words[i], mark))
            return true;
    return false;
}

int holmes_launcher_parse(const char *template, struct holmes_launcher *out, char *why,
                          size_t why_len)
{
    struct holmes_launcher l = {.nwords = 0};
    const char *what = split(template, &l);
    bool no_memory = what && !*what;

    if (!what && l.nwords == 0)
        what = "it is empty";
    if (!what && !has(&l, HOST))
        what = "it has no {host}";
    if (!what) {
        *out = l;
        return 0;
    }
    holmes_launcher_fini(&l);
    if (no_memory)
        snprintf(why, why_len, "out of memory");
    else
        snprintf(why, why_len,
                 "launcher \"%s\": %s; a command with {host} in it is right, like \"%s\"", template,
                 what, HOLMES_LAUNCHER_SSH);
    return no_memory ? -ENOMEM : -EINVAL;
}

void holmes_launcher_fini(struct holmes_launcher *l)
{
    for (int i = 0; i < l->nwords; i++)
        free(l->words[i]);
    l->nwords = 0;
}

int holmes_launcher_check_host(const char *host, char *why, size_t why_len)
{
    bool right = host[0] && host[0] != '-';

    for (const char *p = host; *p; p++)
        right = right && (isalnum((unsigned char)*p) || strchr("-_.:@", *p));
    if (right)
        return 0;
    snprintf(why, why_len,
             "host \"%s\": a name of letters, digits and -_.:@ that does not begin with '-' is "
             "right",
             host);
    return -EINVAL;
}

/* --- writing, or measuring where `out` is NULL ------------------------------------------------ */

static size_t put(char *out, size_t at, const char *s, size_t len)
{
    if (out)
        memcpy(out + at, s, len);
    return at + len;
}

static bool is_plain(const char *s)
{
    for (const char *p = s; *p; p++)
        if (!isalnum((unsigned char)*p) && !strchr("-_./:=@%+,", *p))
            return false;
    return *s != '\0';
}

/* As one word of a POSIX shell. */
static size_t put_quoted(char *out, size_t at, const char *s)
{
    if (is_plain(s))
        return put(out, at, s, strlen(s));
    at = put(out, at, "'", 1);
    for (; *s; s++)
        at = *s == '\'' ? put(out, at, "'\\''", 4) : put(out, at, s, 1);
    return put(out, at, "'", 1);
}

static size_t put_command(char *out, size_t at, char *const *argv)
{
    for (int i = 0; argv[i]; i++) {
        if (i > 0)
            at = put(out, at, " ", 1);
        at = put_quoted(out, at, argv[i]);
    }
    return at;
}

static size_t put_word(char *out, size_t at, const char *word, const char *host, char *const *argv)
{
    while (*word) {
        if (strncmp(word, HOST, sizeof HOST - 1) == 0) {
            at = put(out, at, host, strlen(host));
            word += sizeof HOST - 1;
        } else if (strncmp(word, COMMAND, sizeof COMMAND - 1) == 0) {
            at = put_command(out, at, argv);
            word += sizeof COMMAND - 1;
        } else {
            at = put(out, at, word++, 1);
        }
    }
    return put(out, at, "", 1);
}

static bool wants_quoting(const struct holmes_launcher *l)
{
    const char *slash = strrchr(l->words[0], '/');
    const char *name = slash ? slash + 1 : l->words[0];

    return strcmp(name, "ssh") == 0 || strcmp(name, "rsh") == 0;
}

/* All words; the vector is filled when there is one. Returns the bytes, and the words in *n. */
static size_t put_all(const struct holmes_launcher *l, const char *host, char *const *argv,
                      char **vector, char *out, size_t *n)
{
    size_t at = 0;

    *n = 0;
    for (int i = 0; i < l->nwords; i++) {
        if (vector)
            vector[*n] = out + at;
        at = put_word(out, at, l->words[i], host, argv);
        ++*n;
    }
    if (has(l, COMMAND))
        return at;
    if (wants_quoting(l)) {
        if (vector)
            vector[*n] = out + at;
        at = put_command(out, at, argv);
        ++*n;
        return put(out, at, "", 1);
    }
    for (int i = 0; argv[i]; i++) {
        if (vector)
            vector[*n] = out + at;
        at = put(out, at, argv[i], strlen(argv[i]) + 1);
        ++*n;
    }
    return at;
}

char **holmes_launcher_argv(const struct holmes_launcher *l, const char *host, char *const *argv)
{
    size_t n, bytes = put_all(l, host, argv, NULL, NULL, &n);
    char **vector = malloc((n + 1) * sizeof *vector + bytes);

    if (!vector)
        return NULL;
    put_all(l, host, argv, vector, (char *)(vector + n + 1), &n);
    vector[n] = NULL;
    return vector;
}
