/* What may change when a run goes on. Options are compared by name, as text; one that is in neither
 * list may have a say in the result and is told. */
#include "checkpoint.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ckpt_options.h"
#include "config_spec.h"
#include "siphash.h"

#define SAMPLES      256
#define SAMPLE_BYTES 4096

#define FAIL(rc, ...)                                                                              \
    do {                                                                                           \
        snprintf(why, why_len, __VA_ARGS__);                                                       \
        return rc;                                                                                 \
    } while (0)

/* Another value would train another model, or on other sequences. */
const char *const holmes_ckpt_fixed[] = {"seed", "batch", "held-out", "split", NULL};

/* How it is computed, where, and what is told of it: the same result but for rounding. The model's
 * shape and the data are compared by themselves. */
const char *const holmes_ckpt_free[] = {"layers",
                                        "channels",
                                        "heads",
                                        "seq-len",
                                        "vocab",
                                        "tied",
                                        "data",
                                        "microbatch",
                                        "kernels",
                                        "threads",
                                        "pipeline",
                                        "data-parallel",
                                        "tensor",
                                        "recompute",
                                        "placement",
                                        "rank-order",
                                        "stage-layers",
                                        "local",
                                        "world",
                                        "rendezvous",
                                        "host-label",
                                        "planned-hosts",
                                        "cluster",
                                        "join-timeout",
                                        "op-timeout",
                                        "stop-timeout",
                                        "plugin",
                                        "net-device",
                                        "comm",
                                        "log",
                                        "trace",
                                        "measure-overlap",
                                        "quiet",
                                        "eval-every",
                                        "eval-sequences",
                                        "save",
                                        "save-every",
                                        "keep",
                                        "resume",
                                        "virtual-stages",
                                        "overlap",
                                        "bucket-mb",
                                        "init",
                                        "secret-file",
                                        "progress-every",
                                        "peak-tflops",
                                        NULL};

static bool is_in(const char *const *list, const char *name)
{
    while (*list && strcmp(*list, name) != 0)
        list++;
    return *list != NULL;
}

/* --- data ------------------------------------------------------------------------------------ */

/* Adds one file: its size, and samples at even distances. */
static int add_file(const char *path, struct holmes_ckpt_data *d, uint8_t key[16])
{
    uint8_t sample[SAMPLE_BYTES + 8];
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK), rc = 0;
    struct stat st;
    uint64_t size, hash;

    if (fd < 0 || fstat(fd, &st) != 0) {
        rc = -errno;
        if (fd >= 0)
            close(fd);
        return rc;
    }
    size = (uint64_t)st.st_size;
    d->bytes += size;
    for (uint64_t i = 0; i < SAMPLES && rc == 0; i++) {
        const uint64_t at = size > SAMPLE_BYTES ? (size - SAMPLE_BYTES) / (SAMPLES - 1) * i : 0;
        const ssize_t n = pread(fd, sample + 8, SAMPLE_BYTES, (off_t)at);

        if (n < 0)
            rc = -errno;
        memcpy(sample, &at, 8);
        hash = holmes_siphash(key, sample, 8 + (size_t)(n > 0 ? n : 0));
        memcpy(key, &hash, sizeof hash);
        if (size <= SAMPLE_BYTES)
            break;
    }
    close(fd);
    return rc;
}

int holmes_ckpt_data_of(const char *path, struct holmes_ckpt_data *out, char *why, size_t why_len)
{
    static const char *const suffixes[] = {".bin", ".idx"};
    struct holmes_ckpt_data d = {0};
    uint8_t key[16] = "holmes data";
    size_t len = strlen(path);
    struct stat st;
    uint64_t hash;
    int rc = 0;

    for (int i = 0; i < 2; i++) /* either of the pair stands for both */
        if (len > 4 && strcmp(path + len - 4, suffixes[i]) == 0)
            len -= 4;
    if (len == strlen(path) && stat(path, &st) == 0 && S_ISREG(st.st_mode))
        rc = -ENOENT; /* a text, whatever lies beside it */
    for (int i = 0; i < 2 && rc == 0; i++) {
        char file[4200];

        snprintf(file, sizeof file, "%.*s%s", (int)len, path, suffixes[i]);
        rc = add_file(file, &d, key);
    }
    if (rc != 0 && stat(path, &st) == 0) { /* no pair: a text */
        d = (struct holmes_ckpt_data){0};
        memcpy(key, "holmes text\0\0\0\0", 16);
        rc = add_file(path, &d, key);
    }
    if (rc != 0)
        FAIL(rc, "--data %s: %s", path, strerror(-rc));
    memcpy(&hash, key, sizeof hash);
    snprintf(d.sum, sizeof d.sum, "%016" PRIx64, hash);
    *out = d;
    return 0;
}

/* --- model and options -------------------------------------------------------------------------
 */

static int check_model(const struct holmes_ckpt *ck, const struct holmes_model *now, char *why,
                       size_t why_len)
{
    const struct holmes_model *then = &holmes_ckpt_manifest(ck)->model;
    const struct {
        const char *option;
        int then, now;
    } dims[] = {
        {"layers", then->layers, now->layers}, {"channels", then->channels, now->channels},
        {"heads", then->heads, now->heads},    {"seq-len", then->seq_len, now->seq_len},
        {"vocab", then->vocab, now->vocab},
    };

    for (size_t i = 0; i < sizeof dims / sizeof *dims; i++)
        if (dims[i].then != dims[i].now)
            FAIL(-EINVAL, "--%s %d: the model of %s has %d", dims[i].option, dims[i].now,
                 holmes_ckpt_path(ck), dims[i].then);
    if (then->tied != now->tied)
        FAIL(-EINVAL, "--tied=%s: the model of %s was trained with --tied=%s",
             now->tied ? "yes" : "no", holmes_ckpt_path(ck), then->tied ? "yes" : "no");
    return 0;
}

static int check_data(const struct holmes_ckpt *ck, const struct holmes_config *c,
                      const struct holmes_ckpt_data *now, char *why, size_t why_len)
{
    const struct holmes_manifest *m = holmes_ckpt_manifest(ck);

    if (m->data_bytes != now->bytes)
        FAIL(-EINVAL, "--data %s has %" PRIu64 " bytes, what %s was trained on had %" PRIu64,
             c->data, now->bytes, holmes_ckpt_path(ck), m->data_bytes);
    if (strcmp(m->data_sum, now->sum) != 0)
        FAIL(-EINVAL,
             "--data %s has other contents than what %s was trained on, of the same size (hash of "
             "samples %s, %s then)",
             c->data, holmes_ckpt_path(ck), now->sum, m->data_sum);
    return 0;
}

static const char *or_default(const char *text)
{
    return text ? text : "default";
}

static int compare_option(const struct holmes_ckpt *ck, const struct holmes_spec *s,
                          const char *now, json_t *changes, char *why, size_t why_len)
{
    const json_t *options = holmes_ckpt_manifest(ck)->options;
    const char *then = json_string_value(json_object_get(options, s->name));

    if (strcmp(or_default(then), or_default(now)) == 0 || is_in(holmes_ckpt_free, s->name))
        return 0;
    if (is_in(holmes_ckpt_fixed, s->name))
        FAIL(-EINVAL, "--%s %s: %s was trained with %s, and goes on with no other", s->name,
             or_default(now), holmes_ckpt_path(ck), or_default(then));
    if (json_object_set_new(changes, s->name,
                            json_pack("[s, s]", or_default(then), or_default(now))) != 0)
        FAIL(-ENOMEM, "out of memory");
    return 0;
}

int holmes_ckpt_fits(const struct holmes_ckpt *ck, const struct holmes_config *c,
                     const struct holmes_ckpt_data *data, json_t **changes, char *why,
                     size_t why_len)
{
    json_t *found = json_object();
    int rc = check_model(ck, &c->model, why, why_len);

    if (rc == 0)
        rc = check_data(ck, c, data, why, why_len);
    for (int i = 0; i < holmes_nspecs && rc == 0; i++) {
        const struct holmes_spec *s = &holmes_specs[i];
        char buf[64];

        if (s->name && s->type != SPEC_START)
            rc = compare_option(ck, s, holmes_spec_get(s, c, buf, sizeof buf), found, why, why_len);
    }
    if (rc == 0 && holmes_ckpt_manifest(ck)->step > c->steps) {
        rc = -EINVAL;
        snprintf(why, why_len, "--steps %d: %s is at step %d already", c->steps,
                 holmes_ckpt_path(ck), holmes_ckpt_manifest(ck)->step);
    }
    if (rc != 0)
        json_decref(found);
    else
        *changes = found;
    return rc;
}
