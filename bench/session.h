/* One command's worth of measuring: processes of every side, turns, results. */
#ifndef HOLMES_BENCH_SESSION_H
#define HOLMES_BENCH_SESSION_H

#include <signal.h>

#include "results.h"

/* Fills `r`, size by size, with a progress bar on stderr; r->nsizes_done tells how far it came. The
 * process must have no threads yet. No process is left behind, whatever happens. 0, -EINTR when
 * *stop was set, or another negative errno; then `why` is a sentence. */
int holmes_session_run(struct holmes_results *r, volatile sig_atomic_t *stop, char *why,
                       size_t why_len);

/* Bytes of buffers that all processes together need for the largest size. */
uint64_t holmes_session_memory(const struct holmes_results *r);

#endif
