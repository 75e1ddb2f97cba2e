/* Writes of this process that fail on cue. The program is linked with --wrap for pwrite64,
 * write and fsync, so that the library's own calls come here. */
#ifndef HOLMES_TEST_FAIL_WRITE_H
#define HOLMES_TEST_FAIL_WRITE_H

#include <stdbool.h>
#include <stddef.h>

/* pwrite fails with `err` once `bytes` have been written; from now on. */
void fail_write_after(size_t bytes, int err);
/* The next write(2) of a file fails. */
void fail_write_manifest(int err);
void fail_write_never(void);

/* Whether fsync was called on what is there under this name, among the first 64 calls. */
bool fail_write_synced(const char *path);

#endif
