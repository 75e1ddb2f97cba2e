/* A whole file mapped for reading. */
#ifndef HOLMES_FILEMAP_H
#define HOLMES_FILEMAP_H

#include <stddef.h>
#include <stdint.h>

struct holmes_filemap {
    const uint8_t *bytes;
    size_t size;
};

/* Maps a regular file of at least one byte, which must not shrink while it is mapped. On failure
 * -errno (-EINVAL: no regular file, or empty) with a sentence in `why`, and *m is not touched. */
int holmes_filemap_open(const char *path, struct holmes_filemap *m, char *why, size_t why_len);
void holmes_filemap_close(struct holmes_filemap *m); /* of a zeroed one: nothing */

#endif
