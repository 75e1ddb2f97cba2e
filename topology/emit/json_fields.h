/* Structs as JSON objects and back, by tables of their plain fields, and a reader that knows where
 * in the document it is. What a table does not say (arrays, references by name) its user adds.
 */
#ifndef HOLMES_JSON_FIELDS_H
#define HOLMES_JSON_FIELDS_H

#include <stdbool.h>
#include <stddef.h>

#include <jansson.h>

enum holmes_json_kind {
    HOLMES_JSON_INT,   /* int */
    HOLMES_JSON_I64,   /* int64_t */
    HOLMES_JSON_REAL,  /* double, finite */
    HOLMES_JSON_BOOL,  /* bool */
    HOLMES_JSON_TEXT,  /* char *, malloc()ed */
    HOLMES_JSON_CHARS, /* char[max] */
    HOLMES_JSON_ENUM,  /* an enum of int's size, by the names of `choices` */
};

struct holmes_json_field {
    const char *name;
    enum holmes_json_kind kind;
    size_t offset;
    double min, max;            /* numbers; CHARS: max is the array's size */
    bool optional;              /* left out where it is 0, false or NULL, and read as that */
    const char *const *choices; /* ENUM: ends with NULL */
};

/* `path` is the place in the document, "plan.stages[2]". A failure is told once, in `why`. */
struct holmes_json_reader {
    const char *file;
    char path[128];
    char *why;
    size_t why_len;
};

/* Goes down by a formatted step; returns what holmes_json_leave takes to come back. */
size_t holmes_json_enter(struct holmes_json_reader *r, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));
void holmes_json_leave(struct holmes_json_reader *r, size_t mark);
/* -EINVAL, with "FILE: PATH<sentence>" in `why`: the sentence starts with a blank or a colon. */
int holmes_json_refuse(const struct holmes_json_reader *r, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));

/* The fields of the table into *out, which is zeroed before the first call. Keys that are neither
 * in the table nor in `others` (ends with NULL; may be NULL) are refused. -EINVAL, -ENOMEM; texts
 * that were read stay in *out. */
int holmes_json_fields_read(struct holmes_json_reader *r, const json_t *object,
                            const struct holmes_json_field *fields, const char *const *others,
                            void *out);
/* Adds the fields to `object`; the table ends with a NULL name. 0, -ENOMEM, -EINVAL (a number that
 * JSON cannot hold). */
int holmes_json_fields_write(json_t *object, const struct holmes_json_field *fields,
                             const void *in);

/* A text as holmes_json_need_text takes it: control characters become '?'. NULL: no memory, or no
 * UTF-8. */
json_t *holmes_json_text(const char *text);

/* The member that must be there and be an object or an array; NULL after holmes_json_refuse. */
const json_t *holmes_json_need(const struct holmes_json_reader *r, const json_t *object,
                               const char *key, json_type type);
/* A text without control characters; NULL after holmes_json_refuse. */
const char *holmes_json_need_text(const struct holmes_json_reader *r, const json_t *value);

#endif
