/* Sequences of tokens out of a text file, whose bytes are the tokens, or out of PREFIX.bin and
 * PREFIX.idx (indexed.h).
 *
 * Training data is read in epochs. In each, all documents are put in a random order, one after
 * another, and cut into samples of seq_len tokens and the target of the last one, which may span
 * documents; a document ends with an end token if it was written with one. Samples are then taken
 * in a random order, each once. A single document, as a text file is, is begun at a random place
 * instead and goes on from its start. Sequence i of step s is sample (s - 1) * batch + i, counted
 * over all epochs: it depends on data, seed, batch, s and i alone, so that every split of the ranks
 * sees the same, and a run that goes on needs to know no more than its step. */
#ifndef HOLMES_DATALOADER_H
#define HOLMES_DATALOADER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define HOLMES_BYTE_VOCAB 256

struct holmes_data_attr {
    const char *path; /* a text file, else PREFIX, PREFIX.bin or PREFIX.idx; not kept */
    int seq_len, batch, vocab;
    double split[3]; /* shares to train on, held out, and left alone; any sum above 0 */
    uint64_t seed;
};

struct holmes_dataloader;

/* How `path` is understood: a regular file is text, unless it is one of a pair PREFIX.bin and
 * PREFIX.idx; what is no file is a PREFIX. Gives the size of the vocabulary: 256 for text; else
 * what PREFIX.json says, and -ENOENT when there is no such note. -EINVAL, or -errno, with a
 * sentence, when `path` is neither. */
int holmes_data_vocab(const char *path, int *vocab, char *why, size_t why_len);

/* Maps the files, which must not change while they are open. Documents (bytes of a text file)
 * [0, a) are trained on, [a, b) are held out: a and b are the ends of the shares, rounded, as in
 * Megatron-LM. On failure `why` has a sentence: -EINVAL for wrong files and for parts that do not
 * hold a sample, else the errno of opening them. */
int holmes_dataloader_open(const struct holmes_data_attr *attr, struct holmes_dataloader **out,
                           char *why, size_t why_len);
void holmes_dataloader_close(struct holmes_dataloader *d);

/* tokens, targets: (n, T). `sequence` is the index in the global batch of the first one; `step` is
 * 1 or more. -ERANGE when a token lies outside the vocabulary: holmes_dataloader_error says where.
 * -ENOMEM. */
int holmes_dataloader_train(struct holmes_dataloader *d, uint64_t step, int sequence, int n,
                            int32_t *tokens, int32_t *targets);
/* Number of disjoint held-out sequences, and n of them from `first`; errors as above. */
int holmes_dataloader_heldout_count(const struct holmes_dataloader *d);
int holmes_dataloader_heldout(struct holmes_dataloader *d, int first, int n, int32_t *tokens,
                              int32_t *targets);
/* What a model that knows only how often each token occurs would lose on the held-out part, nats
 * per token: frequencies are the training part's, add-one smoothed. NAN when nothing is held out.
 * Of each part at most 64 Mi tokens are counted, in blocks spread over it. Errors as above. Counted
 * once, at the first call. */
int holmes_dataloader_unigram_nats(struct holmes_dataloader *d, double *nats);

/* The sentence of the first token that was out of the vocabulary; "" while there was none. */
const char *holmes_dataloader_error(const struct holmes_dataloader *d);

const char *holmes_dataloader_unit(const struct holmes_dataloader *d);   /* "byte" or "token" */
uint64_t holmes_dataloader_tokens(const struct holmes_dataloader *d);    /* of all parts */
uint64_t holmes_dataloader_documents(const struct holmes_dataloader *d); /* 1 for text */
uint64_t holmes_dataloader_epoch(const struct holmes_dataloader *d);     /* samples in an epoch */

#endif
