/* Writes and reads JSON lines, each line whole: a run that is cut short leaves a log that reads. */
#include "jsonlog.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "file.h"

#define KEPT_MAX 10000 /* logs of runs before */

struct holmes_jsonlog {
    FILE *file;
};

int holmes_jsonlog_open(const char *path, struct holmes_jsonlog **out)
{
    struct holmes_jsonlog *l = calloc(1, sizeof *l);
    int rc;

    if (!l)
        return -ENOMEM;
    rc = holmes_file_create(path, &l->file);
    if (rc != 0) {
        free(l);
        return rc;
    }
    *out = l;
    return 0;
}

int holmes_jsonlog_keep(const char *path)
{
    char kept[4200];
    struct stat st;

    if (lstat(path, &st) != 0 || !S_ISREG(st.st_mode)) /* a terminal or pipe keeps its name */
        return 0;
    for (int i = 1; i < KEPT_MAX; i++) {
        if (snprintf(kept, sizeof kept, "%s.%d", path, i) >= (int)sizeof kept)
            return -ENAMETOOLONG;
        if (access(kept, F_OK) != 0)
            return rename(path, kept) == 0 ? 0 : -errno;
    }
    return -EEXIST;
}

void holmes_jsonlog_close(struct holmes_jsonlog *l)
{
    if (!l)
        return;
    fclose(l->file);
    free(l);
}

int holmes_jsonlog_write(struct holmes_jsonlog *l, json_t *record)
{
    char *line;
    int rc = 0;

    if (!l || !record) {
        json_decref(record);
        return l && !record ? -ENOMEM : 0;
    }
    line = json_dumps(record, JSON_COMPACT | JSON_REAL_PRECISION(9));
    json_decref(record);
    if (!line)
        return -ENOMEM;
    if (fprintf(l->file, "%s\n", line) < 0 || fflush(l->file) != 0)
        rc = -errno;
    free(line);
    return rc;
}

static int read_lines(FILE *f, const char *path, json_t *records, bool *cut, char *why,
                      size_t why_len)
{
    char *line = NULL;
    size_t cap = 0;
    int number = 0, rc = 0;

    while (rc == 0 && getline(&line, &cap, f) > 0) {
        json_error_t error;
        json_t *record = json_loads(line, 0, &error);

        number++;
        if (!record && !strchr(line, '\n')) {
            *cut = true;
        } else if (!json_is_object(record)) {
            snprintf(why, why_len, "%s: line %d is no JSON object: not a log of holmes-train", path,
                     number);
            rc = -EINVAL;
        } else if (json_array_append(records, record) != 0) {
            rc = -ENOMEM;
        }
        json_decref(record);
    }
    free(line);
    if (rc == 0 && ferror(f)) {
        rc = -errno;
        snprintf(why, why_len, "%s: %s", path, strerror(-rc));
    }
    if (rc == 0 && number == 0) {
        snprintf(why, why_len, "%s is empty: not a log of holmes-train", path);
        rc = -EINVAL;
    }
    return rc;
}

int holmes_jsonlog_read(const char *path, json_t **out, bool *cut, char *why, size_t why_len)
{
    FILE *f;
    json_t *records;
    int rc = holmes_file_open(path, &f);

    if (rc != 0) {
        snprintf(why, why_len, "%s: %s", path, holmes_file_strerror(rc));
        return rc;
    }
    *cut = false;
    records = json_array();
    rc = records ? read_lines(f, path, records, cut, why, why_len) : -ENOMEM;
    fclose(f);
    if (rc != 0) {
        json_decref(records);
        return rc;
    }
    *out = records;
    return 0;
}
