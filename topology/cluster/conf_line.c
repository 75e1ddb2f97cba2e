/* Lines of a text file: comments, continuation, blanks. */
#include "cluster/conf_line.h"

#include <ctype.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void conf_lines_init(struct conf_lines *l, const char *name, const char *data, size_t len,
                     bool continued, char *why, size_t why_len)
{
    *l = (struct conf_lines){.name = name,
                             .at = data,
                             .end = data + len,
                             .next_line = 1,
                             .continued = continued,
                             .why = why,
                             .why_len = why_len};
}

void conf_lines_fini(struct conf_lines *l)
{
    free(l->text);
    l->text = NULL;
}

int conf_lines_fail(const struct conf_lines *l, const char *fmt, ...)
{
    int n = snprintf(l->why, l->why_len, "%s:%d: ", l->name, l->line);
    va_list ap;

    va_start(ap, fmt);
    if (n >= 0 && (size_t)n < l->why_len)
        vsnprintf(l->why + n, l->why_len - (size_t)n, fmt, ap);
    va_end(ap);
    return -EINVAL;
}

/* Adds one line of the file to l->text[len]; *more: the next one belongs to it. */
static int line_add(struct conf_lines *l, size_t *len, bool *more)
{
    const char *newline = memchr(l->at, '\n', (size_t)(l->end - l->at));
    size_t n = (size_t)((newline ? newline : l->end) - l->at);
    const char *from = l->at, *comment = memchr(from, '#', n);

    l->at = newline ? newline + 1 : l->end;
    l->next_line++;
    if (memchr(from, '\0', n))
        return conf_lines_fail(l, "a zero byte; this is no text file");
    if (comment)
        n = (size_t)(comment - from);
    while (n > 0 && isspace((unsigned char)from[n - 1]))
        n--;
    *more = l->continued && !comment && n > 0 && from[n - 1] == '\\';
    n -= *more;
    if (*len + n + 2 > l->cap) {
        char *text = realloc(l->text, l->cap = 2 * (*len + n + 2));

        if (!text)
            return -ENOMEM;
        l->text = text;
    }
    memcpy(l->text + *len, from, n);
    *len += n;
    if (*more)
        l->text[(*len)++] = ' ';
    l->text[*len] = '\0';
    return 0;
}

int conf_lines_next(struct conf_lines *l)
{
    while (l->at < l->end) {
        size_t len = 0, blank;
        bool more = true;

        l->line = l->next_line;
        while (more && l->at < l->end) {
            int rc = line_add(l, &len, &more);

            if (rc != 0)
                return rc;
        }
        for (blank = 0; isspace((unsigned char)l->text[blank]);)
            blank++;
        memmove(l->text, l->text + blank, len - blank + 1);
        len -= blank;
        while (len > 0 && isspace((unsigned char)l->text[len - 1]))
            l->text[--len] = '\0';
        if (len > 0)
            return 1;
    }
    return 0;
}
