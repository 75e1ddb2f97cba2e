/* Documents one after another out of a text file or a pipe. */
#ifndef HOLMES_DOCUMENTS_H
#define HOLMES_DOCUMENTS_H

#include <jansson.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

enum holmes_documents_form {
    HOLMES_DOCUMENTS_FILE,  /* the file is one */
    HOLMES_DOCUMENTS_BLANK, /* blank lines between them, which belong to none */
    HOLMES_DOCUMENTS_LINE,  /* each line, without its end */
    HOLMES_DOCUMENTS_JSON,  /* each line is an object with the text under a key */
};

struct holmes_documents {
    FILE *f;
    const char *path, *key;
    enum holmes_documents_form form;
    char *text; /* of this document, or line */
    size_t len, room;
    char *line;
    size_t line_room;
    json_t *object;
    uint64_t lines; /* read so far */
    uint64_t bytes; /* of the file */
};

/* "-" is stdin. Strings are kept, not copied. -errno with a sentence. */
int holmes_documents_open(struct holmes_documents *d, const char *path,
                          enum holmes_documents_form form, const char *key, char *why,
                          size_t why_len);
/* 1 and the next document, valid until the next call; 0 at the end; -errno with a sentence that
 * names file and line. */
int holmes_documents_next(struct holmes_documents *d, const char **text, size_t *len, char *why,
                          size_t why_len);
void holmes_documents_close(struct holmes_documents *d); /* of a zeroed one: nothing */

#endif
