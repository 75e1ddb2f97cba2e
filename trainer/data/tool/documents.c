/* Lines with getline; no more than a document is ever in memory. */
#include "documents.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "file.h"

int holmes_documents_open(struct holmes_documents *d, const char *path,
                          enum holmes_documents_form form, const char *key, char *why,
                          size_t why_len)
{
    int rc;

    *d = (struct holmes_documents){.path = path, .form = form, .key = key};
    if (strcmp(path, "-") == 0) {
        d->path = "stdin";
        d->f = stdin;
        rc = holmes_file_check(STDIN_FILENO);
    } else {
        rc = holmes_file_open(path, &d->f);
    }
    if (rc != 0)
        snprintf(why, why_len, "%s: %s", d->path, holmes_file_strerror(rc));
    return rc;
}

void holmes_documents_close(struct holmes_documents *d)
{
    if (d->f && d->f != stdin)
        fclose(d->f);
    json_decref(d->object);
    free(d->text);
    free(d->line);
    *d = (struct holmes_documents){0};
}

static int failed(const struct holmes_documents *d, int rc, char *why, size_t why_len)
{
    snprintf(why, why_len, "%s: %s", d->path, strerror(-rc));
    return rc;
}

static int append(struct holmes_documents *d, const char *bytes, size_t n)
{
    if (d->room - d->len < n) {
        const size_t more = 2 * (d->len + n);
        char *text = realloc(d->text, more);

        if (!text)
            return -ENOMEM;
        d->text = text;
        d->room = more;
    }
    memcpy(d->text + d->len, bytes, n);
    d->len += n;
    return 0;
}

/* 1 and a line with its end, 0 at the end of the file. */
static int next_line(struct holmes_documents *d, size_t *len, char *why, size_t why_len)
{
    ssize_t n;

    errno = 0;
    n = getline(&d->line, &d->line_room, d->f);
    if (n < 0 && (ferror(d->f) || errno == ENOMEM))
        return failed(d, errno ? -errno : -EIO, why, why_len);
    if (n < 0)
        return 0;
    d->lines++;
    d->bytes += (uint64_t)n;
    *len = (size_t)n;
    return 1;
}

/* The line without "\n" or "\r\n". */
static size_t bare(const char *line, size_t len)
{
    if (len > 0 && line[len - 1] == '\n')
        len--;
    if (len > 0 && line[len - 1] == '\r')
        len--;
    return len;
}

static int next_file(struct holmes_documents *d, char *why, size_t why_len)
{
    static char part[1 << 16];
    size_t n;

    if (d->bytes > 0)
        return 0;
    while ((n = fread(part, 1, sizeof part, d->f)) > 0) {
        d->bytes += n;
        if (append(d, part, n) != 0)
            return failed(d, -ENOMEM, why, why_len);
    }
    if (ferror(d->f))
        return failed(d, errno ? -errno : -EIO, why, why_len);
    return d->bytes > 0;
}

static int next_between_blanks(struct holmes_documents *d, char *why, size_t why_len)
{
    size_t n = 0;
    int rc;

    while ((rc = next_line(d, &n, why, why_len)) > 0) {
        if (bare(d->line, n) == 0 && d->len > 0)
            return 1;
        if (bare(d->line, n) > 0 && append(d, d->line, n) != 0)
            return failed(d, -ENOMEM, why, why_len);
    }
    return rc < 0 ? rc : d->len > 0;
}

/* Takes the text out of the line's object; it lives as long as that. */
static int take_json(struct holmes_documents *d, size_t len, const char **text, size_t *text_len,
                     char *why, size_t why_len)
{
    json_error_t error;
    const json_t *v;

    json_decref(d->object);
    d->object = json_loadb(d->line, len, JSON_ALLOW_NUL, &error);
    if (!d->object) {
        snprintf(why, why_len, "%s: line %" PRIu64 ", column %d: %s", d->path, d->lines,
                 error.column, error.text);
        return -EINVAL;
    }
    v = json_object_get(d->object, d->key);
    if (!json_is_string(v)) {
        snprintf(why, why_len,
                 "%s: line %" PRIu64 ": %s \"%s\" %s; an object with a text under it "
                 "is right",
                 d->path, d->lines, v ? "what is under" : "the key", d->key,
                 v ? "is no text" : "is missing");
        return -EINVAL;
    }
    *text = json_string_value(v);
    *text_len = json_string_length(v);
    return 1;
}

int holmes_documents_next(struct holmes_documents *d, const char **text, size_t *len, char *why,
                          size_t why_len)
{
    size_t n = 0;
    int rc;

    d->len = 0;
    switch (d->form) {
    case HOLMES_DOCUMENTS_FILE:
        rc = next_file(d, why, why_len);
        break;
    case HOLMES_DOCUMENTS_BLANK:
        rc = next_between_blanks(d, why, why_len);
        break;
    default: /* a document a line */
        do {
            rc = next_line(d, &n, why, why_len);
        } while (rc > 0 && bare(d->line, n) == 0);
        if (rc <= 0)
            return rc;
        if (d->form == HOLMES_DOCUMENTS_JSON)
            return take_json(d, n, text, len, why, why_len);
        *text = d->line;
        *len = bare(d->line, n);
        return 1;
    }
    *text = d->text;
    *len = d->len;
    return rc;
}
