/* Whole files in memory. */
#ifndef HOLMES_FILE_H
#define HOLMES_FILE_H

#include <stddef.h>

/* A whole file, or of "-" standard input, with a NUL behind; the caller frees *out. 0 or a negative
 * errno; -EFBIG above `max` bytes. */
int holmes_file_read(const char *path, size_t max, char **out, size_t *len);

#endif
