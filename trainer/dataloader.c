/* Sequences of bytes out of a mapped text file: random ones from the part to train on, all disjoint
 * ones from the tail that is held out. Holds no position, so any rank can ask for any sequence. */
#include "dataloader.h"

#include "random.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define BYTE_VALUES 256

struct holmes_dataloader {
    const uint8_t *bytes;
    size_t size;       /* of the file */
    size_t train_size; /* the rest is held out */
    size_t seq_len;
    uint64_t seed;
};

/* Opens a regular file of at least one byte and maps it; its errno on failure. */
static int map_file(const char *path, const uint8_t **bytes, size_t *size, char *why,
                    size_t why_len)
{
    /* O_NONBLOCK: opening a FIFO must not wait for its writer. */
    const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    struct stat st = {0};
    void *map = MAP_FAILED;
    int rc = 0;

    if (fd < 0 || fstat(fd, &st) != 0) {
        rc = -errno;
        snprintf(why, why_len, "cannot open %s: %s", path, strerror(errno));
    } else if (!S_ISREG(st.st_mode)) {
        rc = -EINVAL;
        snprintf(why, why_len, "%s is no regular file", path);
    } else if (st.st_size == 0) {
        rc = -EINVAL;
        snprintf(why, why_len, "%s is empty", path);
    } else {
        map = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
        if (map == MAP_FAILED) {
            rc = -errno;
            snprintf(why, why_len, "cannot map %s: %s", path, strerror(errno));
        }
    }
    if (fd >= 0)
        close(fd);
    if (rc != 0)
        return rc;
    *bytes = map;
    *size = (size_t)st.st_size;
    return 0;
}

/* A sequence needs seq_len tokens and the target of the last one. */
static int check_parts(const struct holmes_dataloader *d, const char *path, double heldout_fraction,
                       char *why, size_t why_len)
{
    const size_t need = d->seq_len + 1, heldout = d->size - d->train_size;

    if (d->train_size < need) {
        snprintf(why, why_len,
                 "%s has %zu bytes, %zu of them to train on; a sequence of %zu needs %zu", path,
                 d->size, d->train_size, d->seq_len, need);
        return -EINVAL;
    }
    if (heldout_fraction > 0 && heldout < need) {
        snprintf(why, why_len,
                 "%s has %zu bytes, %zu of them held out; a sequence of %zu needs %zu", path,
                 d->size, heldout, d->seq_len, need);
        return -EINVAL;
    }
    return 0;
}

int holmes_dataloader_open(const char *path, int seq_len, double heldout_fraction, uint64_t seed,
                           struct holmes_dataloader **out, char *why, size_t why_len)
{
    struct holmes_dataloader *d;
    int rc;

    if (seq_len < 1) {
        snprintf(why, why_len, "the sequence length is %d; it must be 1 or more", seq_len);
        return -EINVAL;
    }
    if (!(heldout_fraction >= 0 && heldout_fraction < 1)) {
        snprintf(why, why_len, "the held-out fraction is %g; it must lie in [0, 1)",
                 heldout_fraction);
        return -EINVAL;
    }
    d = calloc(1, sizeof *d);
    if (!d) {
        snprintf(why, why_len, "no memory");
        return -ENOMEM;
    }
    d->seq_len = (size_t)seq_len;
    d->seed = seed;
    rc = map_file(path, &d->bytes, &d->size, why, why_len);
    if (rc != 0)
        goto fail;
    d->train_size = d->size - (size_t)((double)d->size * heldout_fraction);
    rc = check_parts(d, path, heldout_fraction, why, why_len);
    if (rc != 0)
        goto fail;
    *out = d;
    return 0;

fail:
    holmes_dataloader_close(d);
    return rc;
}

void holmes_dataloader_close(struct holmes_dataloader *d)
{
    if (!d)
        return;
    if (d->bytes)
        munmap((void *)(uintptr_t)d->bytes, d->size);
    free(d);
}

static void put_sequence(const struct holmes_dataloader *d, size_t start, int32_t *tokens,
                         int32_t *targets)
{
    for (size_t t = 0; t < d->seq_len; t++) {
        tokens[t] = d->bytes[start + t];
        targets[t] = d->bytes[start + t + 1];
    }
}

void holmes_dataloader_train(struct holmes_dataloader *d, uint64_t step, int sequence, int n,
                             int32_t *tokens, int32_t *targets)
{
    const uint64_t key = holmes_random_key(d->seed, &step, sizeof step);

    for (int i = 0; i < n; i++) {
        const uint64_t starts = d->train_size - d->seq_len;
        const uint64_t start = holmes_random_below(key, (uint64_t)(sequence + i), starts);
        const size_t at = (size_t)i * d->seq_len;

        put_sequence(d, start, tokens + at, targets + at);
    }
}

int holmes_dataloader_heldout_count(const struct holmes_dataloader *d)
{
    const size_t heldout = d->size - d->train_size;
    const size_t count = heldout > 0 ? (heldout - 1) / d->seq_len : 0;

    return count < INT32_MAX ? (int)count : INT32_MAX;
}

void holmes_dataloader_heldout(struct holmes_dataloader *d, int first, int n, int32_t *tokens,
                               int32_t *targets)
{
    for (int i = 0; i < n; i++) {
        const size_t at = (size_t)i * d->seq_len;

        put_sequence(d, d->train_size + (size_t)(first + i) * d->seq_len, tokens + at,
                     targets + at);
    }
}

double holmes_dataloader_unigram_nats(const struct holmes_dataloader *d)
{
    uint64_t seen[BYTE_VALUES] = {0};
    const double total = (double)d->train_size + BYTE_VALUES;
    double loss[BYTE_VALUES], sum = 0;

    for (size_t i = 0; i < d->train_size; i++)
        seen[d->bytes[i]]++;
    for (int b = 0; b < BYTE_VALUES; b++)
        loss[b] = -log(((double)seen[b] + 1) / total);
    for (size_t i = d->train_size; i < d->size; i++)
        sum += loss[d->bytes[i]];
    return d->size > d->train_size ? sum / (double)(d->size - d->train_size) : (double)NAN;
}

uint64_t holmes_dataloader_bytes(const struct holmes_dataloader *d)
{
    return d->size;
}
