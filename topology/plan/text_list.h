/* A growing list of sentences. */
#ifndef HOLMES_TEXT_LIST_H
#define HOLMES_TEXT_LIST_H

#include <stdbool.h>

struct holmes_text_list {
    int n;
    char **texts;
    bool failed; /* one was lost for want of memory */
};

void holmes_text_add(struct holmes_text_list *l, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));
void holmes_text_fini(struct holmes_text_list *l);

#endif
