/* Byte tokens from any text file: V = 256. Microbatch contents depend on (seed, step, index of the
 * microbatch in the global batch) alone, so every split of the ranks sees the same data. */
#ifndef HOLMES_DATALOADER_H
#define HOLMES_DATALOADER_H

#include <stddef.h>
#include <stdint.h>

struct holmes_dataloader;

/* Maps the file, which must not shrink while it is open. The last `heldout_fraction` of it, in
 * [0, 1), is never given by holmes_dataloader_train. On failure `why` has a sentence: -EINVAL when
 * the file is shorter than it must be (both parts hold at least one sequence and its last target)
 * or no regular file, else the errno of opening it. */
int holmes_dataloader_open(const char *path, int seq_len, double heldout_fraction, uint64_t seed,
                           struct holmes_dataloader **out, char *why, size_t why_len);
void holmes_dataloader_close(struct holmes_dataloader *d);

/* tokens, targets: (n, T): n sequences at random places. `sequence` is the index in the global
 * batch of the first one. */
void holmes_dataloader_train(struct holmes_dataloader *d, uint64_t step, int sequence, int n,
                             int32_t *tokens, int32_t *targets);
/* Number of disjoint held-out sequences, and n of them from `first`. */
int holmes_dataloader_heldout_count(const struct holmes_dataloader *d);
void holmes_dataloader_heldout(struct holmes_dataloader *d, int first, int n, int32_t *tokens,
                               int32_t *targets);
/* Entropy of single bytes of the held-out part under the training part's byte frequencies (add-one
 * smoothed), nats per byte: what a model that knows only the unigrams would lose. NAN when nothing
 * is held out. Reads the whole file. */
double holmes_dataloader_unigram_nats(const struct holmes_dataloader *d);
uint64_t holmes_dataloader_bytes(const struct holmes_dataloader *d);

#endif
