/* Is a text well-formed XML? Enough of the rules for what we write: one root, tags that nest and
 * close, quoted and unique attributes, known entities, no control characters. */
#ifndef HOLMES_TEST_XML_CHECK_H
#define HOLMES_TEST_XML_CHECK_H

#include <ctype.h>
#include <stdbool.h>
#include <string.h>

struct xml_check {
    const char *at;
    const char *open[32];
    size_t open_len[32];
    int depth, roots;
};

static inline bool xml_name(const char **at, size_t *len)
{
    const char *start = *at;

    if (!isalpha((unsigned char)**at) && **at != '_')
        return false;
    while (isalnum((unsigned char)**at) || (**at && strchr("_-:.", **at)))
        (*at)++;
    *len = (size_t)(*at - start);
    return true;
}

/* One character of text or of a value; `at` moves past it. */
static inline bool xml_char(const char **at)
{
    static const char *const entities[] = {"&amp;", "&lt;", "&gt;", "&quot;", "&#39;", "&#xFFFD;"};
    unsigned char c = (unsigned char)**at;

    if (c == '&') {
        for (size_t i = 0; i < sizeof entities / sizeof entities[0]; i++) {
            if (strncmp(*at, entities[i], strlen(entities[i])) == 0) {
                *at += strlen(entities[i]);
                return true;
            }
        }
        return false;
    }
    (*at)++;
    return c != '<' && c != 0x7f && (c >= 0x20 || c == '\n' || c == '\t');
}

static inline bool xml_attributes(const char **at)
{
    const char *names[32];
    size_t lens[32];

    for (int n = 0; n < 32; n++) {
        size_t spaces = strspn(*at, " \n\t");

        *at += spaces;
        if (**at == '>' || **at == '/' || **at == '?')
            return true;
        names[n] = *at;
        if (spaces == 0 || !xml_name(at, &lens[n]) || strncmp(*at, "=\"", 2) != 0)
            return false;
        for (int i = 0; i < n; i++)
            if (lens[i] == lens[n] && strncmp(names[i], names[n], lens[n]) == 0)
                return false;
        for (*at += 2; **at != '"';)
            if (!xml_char(at))
                return false;
        (*at)++;
    }
    return false;
}

static inline bool xml_tag(struct xml_check *x)
{
    const char *name = x->at + 1;
    size_t len;

    if (*name == '/') {
        x->at += 2;
        name++;
        return xml_name(&x->at, &len) && *x->at++ == '>' && x->depth > 0 &&
               x->open_len[--x->depth] == len && strncmp(x->open[x->depth], name, len) == 0;
    }
    x->at++;
    if (!xml_name(&x->at, &len) || !xml_attributes(&x->at))
        return false;
    x->roots += x->depth == 0;
    if (*x->at == '/')
        return *++x->at == '>' && x->at++;
    x->open[x->depth] = name;
    x->open_len[x->depth] = len;
    return *x->at++ == '>' && ++x->depth < 32;
}

/* NULL when it is well-formed, else where it is not. */
static inline const char *xml_check(const char *text)
{
    struct xml_check x = {.at = text};

    if (strncmp(x.at, "<?xml ", 6) == 0) {
        x.at += 5;
        if (!xml_attributes(&x.at) || strncmp(x.at, "?>", 2) != 0)
            return x.at;
        x.at += 2;
    }
    while (*x.at) {
        const char *before = x.at;
        bool good = *x.at == '<'   ? xml_tag(&x)
                    : x.depth == 0 ? isspace((unsigned char)*x.at++) != 0
                                   : xml_char(&x.at);
        if (!good)
            return before;
    }
    return x.depth == 0 && x.roots == 1 ? NULL : x.at;
}

#endif
