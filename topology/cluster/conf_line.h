/* Lines of a text file, without comments and blanks around them. */
#ifndef HOLMES_CONF_LINE_H
#define HOLMES_CONF_LINE_H

#include <stdbool.h>
#include <stddef.h>

struct conf_lines {
    const char *name, *at, *end;
    int line; /* of the text below, from 1: its first where it was continued */
    int next_line;
    bool continued; /* a backslash at the end of a line joins it to the next */
    char *text;     /* this line; valid until the next call */
    size_t cap;
    char *why;
    size_t why_len;
};

void conf_lines_init(struct conf_lines *l, const char *name, const char *data, size_t len,
                     bool continued, char *why, size_t why_len);
/* The next line that is not blank: 1; 0 at the end; -EINVAL (a zero byte in the text), -ENOMEM. */
int conf_lines_next(struct conf_lines *l);
void conf_lines_fini(struct conf_lines *l);

/* Puts "NAME:LINE: ..." into `why`; returns -EINVAL. */
int conf_lines_fail(const struct conf_lines *l, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));

#endif
