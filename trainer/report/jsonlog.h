/* The log of a run: one JSON object per line, written as it happens. docs/trainer.md lists the
 * records. */
#ifndef HOLMES_JSONLOG_H
#define HOLMES_JSONLOG_H

#include <jansson.h>
#include <stdbool.h>

struct holmes_jsonlog;

/* Creates or empties the file. -errno when it cannot be written. */
int holmes_jsonlog_open(const char *path, struct holmes_jsonlog **out);
void holmes_jsonlog_close(struct holmes_jsonlog *l); /* NULL is fine */

/* Gives a file that is there the first free name of PATH.1, PATH.2, ...: a run that goes on has a
 * log of its own, and keeps that of the run before. -errno. */
int holmes_jsonlog_keep(const char *path);

/* Writes one line and gives the reference to `record` back. Does nothing but that when `l` is NULL.
 * -ENOMEM for a NULL record, -errno when the disk is full. */
int holmes_jsonlog_write(struct holmes_jsonlog *l, json_t *record);

/* All records of a file as an array of objects, which the caller owns; lines of unknown kinds are
 * kept. *cut: a last line that is not whole, which a run that was killed leaves, is not among them.
 * -EINVAL or -errno with a sentence that names the line. */
int holmes_jsonlog_read(const char *path, json_t **out, bool *cut, char *why, size_t why_len);

#endif
