/* What this process did when: a recorder of the whole process, and the file that shows all ranks.
 *
 * Tracks are named. "compute" is the training thread's work, "waiting" the time that it stood still
 * for a communicator; every communicator has one, "dp.0", and those between two pipeline stages
 * two, "pp.0.0 send" and "pp.0.0 recv", as both run at once. Events of one track are nested or
 * follow each other. What is recorded:
 *
 *   compute   "forward 3", "backward 3" of microbatch 3 ("forward 3.1" of chunk 1 with virtual
 *             stages), within them "layer 5", "embedding", "head"; "norm 2", "adamw 2" of bucket 2
 *   dp.S      "reduce-scatter 2", "all-gather 2" of bucket 2, from the first byte that could leave
 *             until the last one was here
 *   embed.R   "tied": the sum of the embedding over both stages
 *   pp.R.S    "send 3", "recv 3": activations of microbatch 3; "send d3", "recv d3": gradients
 *   world     "sums": loss and norm
 *   waiting   "wait dp.0"
 *   step      "step 7": one training step
 *
 * The file is JSON in Chrome's trace event format: open it in chrome://tracing or
 * https://ui.perfetto.dev. `traceEvents` has, one per line,
 *   {"ph":"M","name":"process_name","pid":3,"args":{"name":"rank 3 (stage 1, replica 1) on b0"}}
 *   {"ph":"M","name":"thread_name","pid":3,"tid":1,"args":{"name":"compute"}}
 *   {"ph":"X","name":"forward 0","cat":"compute","pid":3,"tid":1,"ts":1234.5,"dur":67.8,
 *    "args":{"step":7,"bytes":4096}}
 * pid is the rank, tid a track of it, cat the track's kind: compute, waiting, step, dp, pp, embed,
 * tp, world. ts and dur are microseconds, ts counted from when tracing began on rank 0; step is
 * left out outside of training steps, bytes where nothing was sent. `otherData` has "dropped", the
 * number of events that were lost because memory for them is bounded: each rank keeps its last
 * ones.
 *
 * Thread safe. While it is off every call costs a load and a branch. */
#ifndef HOLMES_TRACE_H
#define HOLMES_TRACE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#define HOLMES_TRACE_NAME     32
#define HOLMES_TRACE_CAPACITY 131072 /* events kept by default */

/* Starts recording, `capacity` events at most: later ones replace the oldest. -ENOMEM. */
int holmes_trace_start(size_t capacity);
/* Ends it and forgets what was recorded. */
void holmes_trace_stop(void);
bool holmes_trace_on(void);

/* The training step that events belong to from now on; 0: none. */
void holmes_trace_step(int step);

/* The time now, or 0 while the recorder is off. */
uint64_t holmes_trace_begin(void);
/* One event of `track`, from `begin` until now. Nothing happens for begin 0. A track that does not
 * exist yet is made, its kind being `track` up to the first dot or blank. */
void holmes_trace_end(uint64_t begin, const char *track, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

/* The operation of a communicator that this thread starts next is named so in the trace. */
void holmes_trace_name_next(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
/* Takes that name: `name` holds HOLMES_TRACE_NAME bytes; `otherwise` when there is none. */
void holmes_trace_take_name(char *name, const char *otherwise);
/* An event with a given begin and end that carried `bytes`. */
void holmes_trace_add(uint64_t begin, uint64_t end, size_t bytes, const char *track,
                      const char *name);

/* Notes the time. All ranks call it as they leave the same barrier, a few times: from these marks
 * the clocks of the ranks are aligned (those of one machine are taken to be one clock). */
void holmes_trace_mark(void);

/* Everything recorded as bytes for holmes_trace_write, which may run on another machine of the same
 * architecture: HOLMES_TRACE_EVENT_BYTES for an event, and less than 8 KiB. The caller frees *out.
 */
#define HOLMES_TRACE_EVENT_BYTES 64
int holmes_trace_pack(void **out, size_t *len);

/* One rank's packed events. */
struct holmes_trace_part {
    int rank;
    const char *process; /* "rank 3 (stage 1, replica 1) on b0" */
    const void *data;
    size_t len;
};

/* Writes the file; the first part's clock counts. Parts come from other processes and are checked:
 * -EBADMSG, with nothing written. -errno when the file cannot be written. *events: written;
 * *dropped: lost before. */
int holmes_trace_write(FILE *f, const struct holmes_trace_part *parts, int nparts, uint64_t *events,
                       uint64_t *dropped);

#endif
