/* A file that is there whole or not at all: written beside its place and renamed at the end. */
#ifndef HOLMES_TOPO_OUTPUT_H
#define HOLMES_TOPO_OUTPUT_H

#include <stddef.h>
#include <stdio.h>
#include <sys/types.h>

struct topo_output {
    FILE *file;
    char *path, *temporary; /* temporary NULL: `file` is the standard output, or what is no file */
};

/* `path` "-" is the standard output; what exists and is no regular file (a pipe, a device) is
 * written as it is. `mode` is the new file's, less the umask. 0, or a negative errno with a
 * sentence that names the file. */
int topo_output_open(const char *path, mode_t mode, struct topo_output *out, char *why,
                     size_t why_len);
/* With `rc` 0 puts the file in its place; else, or where writing failed, removes it. Returns `rc`,
 * or what went wrong here, with a sentence. */
int topo_output_close(struct topo_output *out, int rc, char *why, size_t why_len);

#endif
