/* Tables of struct fields against JSON objects. Every number has bounds and every text is free of
 * control characters, so that what was read can be put into scripts and pictures. */
#include "json_fields.h"

#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "utf8.h"

size_t holmes_json_enter(struct holmes_json_reader *r, const char *fmt, ...)
{
    size_t mark = strlen(r->path);
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(r->path + mark, sizeof r->path - mark, fmt, ap);
    va_end(ap);
    return mark;
}

void holmes_json_leave(struct holmes_json_reader *r, size_t mark)
{
    r->path[mark] = '\0';
}

int holmes_json_refuse(const struct holmes_json_reader *r, const char *fmt, ...)
{
    size_t n;
    va_list ap;

    snprintf(r->why, r->why_len, "%s: %s", r->file, r->path[0] == '.' ? r->path + 1 : r->path);
    n = strlen(r->why);
    if (!r->path[0] && *fmt == '.') /* a member of the document itself */
        fmt++;
    va_start(ap, fmt);
    vsnprintf(r->why + n, r->why_len - n, fmt, ap);
    va_end(ap);
    return -EINVAL;
}

static const char *type_name(const json_t *value)
{
    switch (json_typeof(value)) {
    case JSON_OBJECT:
        return "an object";
    case JSON_ARRAY:
        return "an array";
    case JSON_STRING:
        return "a text";
    case JSON_INTEGER:
    case JSON_REAL:
        return "a number";
    case JSON_NULL:
        return "null";
    default:
        return "true or false";
    }
}

const json_t *holmes_json_need(const struct holmes_json_reader *r, const json_t *object,
                               const char *key, json_type type)
{
    const json_t *value = json_object_get(object, key);
    const char *want = type == JSON_OBJECT ? "an object" : "an array";

    if (value && json_typeof(value) == type)
        return value;
    if (value)
        holmes_json_refuse(r, ".%s is %s: %s is right", key, type_name(value), want);
    else
        holmes_json_refuse(r, ".%s is missing: %s is right", key, want);
    return NULL;
}

const char *holmes_json_need_text(const struct holmes_json_reader *r, const json_t *value)
{
    const char *text = json_string_value(value);
    size_t n;

    if (!text) {
        holmes_json_refuse(r, " is %s: a text is right", type_name(value));
        return NULL;
    }
    for (const char *p = text; *p; p += n) {
        if (holmes_utf8_is_control(holmes_utf8_decode(p, &n))) {
            holmes_json_refuse(r, " has a control character at byte %zu", (size_t)(p - text));
            return NULL;
        }
    }
    return text;
}

json_t *holmes_json_text(const char *text)
{
    char *clean = malloc(strlen(text) + 1), *at = clean;
    json_t *value = NULL;
    size_t n;

    if (!clean)
        return NULL;
    for (const char *p = text; *p; p += n) {
        if (holmes_utf8_is_control(holmes_utf8_decode(p, &n))) {
            *at++ = '?';
        } else {
            memcpy(at, p, n);
            at += n;
        }
    }
    *at = '\0';
    value = json_string(clean);
    free(clean);
    return value;
}

static int read_number(const struct holmes_json_reader *r, const json_t *value,
                       const struct holmes_json_field *f, void *out)
{
    bool whole = f->kind != HOLMES_JSON_REAL;
    double v = json_number_value(value);

    if (!json_is_number(value))
        return holmes_json_refuse(r, " is %s: a %snumber is right", type_name(value),
                                  whole ? "whole " : "");
    if ((whole && !json_is_integer(value)) || !isfinite(v) || v < f->min || v > f->max)
        return holmes_json_refuse(r, " is %.12g: a %snumber from %.12g to %.12g is right", v,
                                  whole ? "whole " : "", f->min, f->max);
    if (f->kind == HOLMES_JSON_REAL)
        *(double *)out = v;
    else if (f->kind == HOLMES_JSON_I64)
        *(int64_t *)out = json_integer_value(value);
    else
        *(int *)out = (int)json_integer_value(value);
    return 0;
}

static int read_enum(const struct holmes_json_reader *r, const json_t *value,
                     const struct holmes_json_field *f, int *out)
{
    const char *text = holmes_json_need_text(r, value);
    char names[128] = "";

    if (!text)
        return -EINVAL;
    for (int i = 0; f->choices[i]; i++) {
        size_t n = strlen(names);

        if (strcmp(f->choices[i], text) == 0) {
            *out = i;
            return 0;
        }
        snprintf(names + n, sizeof names - n, "%s%s", n ? ", " : "", f->choices[i]);
    }
    return holmes_json_refuse(r, " is \"%.40s\": one of %s is right", text, names);
}

static int read_text(const struct holmes_json_reader *r, const json_t *value,
                     const struct holmes_json_field *f, void *out)
{
    const char *text = holmes_json_need_text(r, value);

    if (!text)
        return -EINVAL;
    if (f->kind == HOLMES_JSON_TEXT) {
        *(char **)out = strdup(text);
        return *(char **)out ? 0 : -ENOMEM;
    }
    if (strlen(text) >= (size_t)f->max)
        return holmes_json_refuse(r, " is longer than %d bytes", (int)f->max - 1);
    memcpy(out, text, strlen(text) + 1);
    return 0;
}

static int read_field(const struct holmes_json_reader *r, const json_t *value,
                      const struct holmes_json_field *f, void *out)
{
    switch (f->kind) {
    case HOLMES_JSON_BOOL:
        if (!json_is_boolean(value))
            return holmes_json_refuse(r, " is %s: true or false is right", type_name(value));
        *(bool *)out = json_is_true(value);
        return 0;
    case HOLMES_JSON_ENUM:
        return read_enum(r, value, f, out);
    case HOLMES_JSON_TEXT:
    case HOLMES_JSON_CHARS:
        return read_text(r, value, f, out);
    default:
        return read_number(r, value, f, out);
    }
}

static bool known(const struct holmes_json_field *fields, const char *const *others,
                  const char *key)
{
    for (; fields->name; fields++)
        if (strcmp(fields->name, key) == 0)
            return true;
    for (; others && *others; others++)
        if (strcmp(*others, key) == 0)
            return true;
    return false;
}

int holmes_json_fields_read(struct holmes_json_reader *r, const json_t *object,
                            const struct holmes_json_field *fields, const char *const *others,
                            void *out)
{
    const char *key;
    json_t *value;

    if (!json_is_object(object))
        return holmes_json_refuse(r, " is %s: an object is right", type_name(object));
    json_object_foreach(
        (json_t *)object, key,
        value) if (!known(fields, others,
                          key)) return holmes_json_refuse(r,
                                                          " has a field \"%.40s\" that this "
                                                          "version does not know",
                                                          key);
    for (const struct holmes_json_field *f = fields; f->name; f++) {
        const json_t *member = json_object_get(object, f->name);
        size_t mark = holmes_json_enter(r, ".%s", f->name);
        int rc = 0;

        if (member)
            rc = read_field(r, member, f, (char *)out + f->offset);
        else if (!f->optional)
            rc = holmes_json_refuse(r, " is missing");
        if (rc != 0)
            return rc;
        holmes_json_leave(r, mark);
    }
    return 0;
}

/* NULL with *skip: an optional field that says nothing. */
static json_t *field_value(const struct holmes_json_field *f, const void *in, bool *skip)
{
    switch (f->kind) {
    case HOLMES_JSON_INT:
        *skip = f->optional && *(const int *)in == 0;
        return *skip ? NULL : json_integer(*(const int *)in);
    case HOLMES_JSON_I64:
        *skip = f->optional && *(const int64_t *)in == 0;
        return *skip ? NULL : json_integer(*(const int64_t *)in);
    case HOLMES_JSON_REAL:
        *skip = f->optional && !(fabs(*(const double *)in) > 0) && !isnan(*(const double *)in);
        return *skip ? NULL : json_real(*(const double *)in);
    case HOLMES_JSON_BOOL:
        *skip = f->optional && !*(const bool *)in;
        return *skip ? NULL : json_boolean(*(const bool *)in);
    case HOLMES_JSON_TEXT:
        *skip = f->optional && !*(char *const *)in;
        return *skip || !*(char *const *)in ? NULL : holmes_json_text(*(char *const *)in);
    case HOLMES_JSON_CHARS:
        *skip = f->optional && !*(const char *)in;
        return *skip ? NULL : holmes_json_text(in);
    case HOLMES_JSON_ENUM:
        *skip = f->optional && *(const int *)in == 0;
        return *skip ? NULL : json_string(f->choices[*(const int *)in]);
    }
    return NULL;
}

int holmes_json_fields_write(json_t *object, const struct holmes_json_field *fields, const void *in)
{
    for (const struct holmes_json_field *f = fields; f->name; f++) {
        bool skip = false;
        json_t *value = field_value(f, (const char *)in + f->offset, &skip);

        if (skip)
            continue;
        if (!value) /* not finite, no text, or no memory */
            return -EINVAL;
        if (json_object_set_new(object, f->name, value) != 0)
            return -ENOMEM;
    }
    return 0;
}
