/* See text_list.h. */
#include "text_list.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

void holmes_text_add(struct holmes_text_list *l, const char *fmt, ...)
{
    char **grown = realloc(l->texts, (size_t)(l->n + 1) * sizeof(*grown));
    char *text = NULL;
    va_list ap;
    int len;

    if (grown)
        l->texts = grown;
    va_start(ap, fmt);
    len = grown ? vasprintf(&text, fmt, ap) : -1;
    va_end(ap);
    if (len < 0) {
        l->failed = true;
        return;
    }
    l->texts[l->n++] = text;
}

void holmes_text_fini(struct holmes_text_list *l)
{
    for (int i = 0; i < l->n; i++)
        free(l->texts[i]);
    free(l->texts);
    *l = (struct holmes_text_list){0};
}
