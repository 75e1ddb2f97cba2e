/* Files that others name, and whole files in memory. */
#ifndef HOLMES_FILE_H
#define HOLMES_FILE_H

#include <stddef.h>
#include <stdio.h>

/* Opens what comes to an end, for reading: a regular file, or a pipe that somebody writes to, for
 * whom it waits two seconds. Not a device. A negative errno, for holmes_file_strerror. */
int holmes_file_open(const char *path, FILE **out);
/* The same for an open one, such as stdin, which may be a terminal. */
int holmes_file_check(int fd);
/* Makes a file, or empties it, for writing; a pipe that nobody reads is refused after two seconds.
 * Devices are fine. A negative errno, for holmes_file_strerror. */
int holmes_file_create(const char *path, FILE **out);
/* What was wrong with the file: errors of this header have words of their own. */
const char *holmes_file_strerror(int rc);

/* A whole file, or of "-" standard input, with a NUL behind; the caller frees *out. 0 or a negative
 * errno as above; -EFBIG above `max` bytes. */
int holmes_file_read(const char *path, size_t max, char **out, size_t *len);

#endif
