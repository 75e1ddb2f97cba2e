/* All ranks write their shards into a folder that rank 0 has made; when all are on the disk, rank 0
 * looks at every header, writes the manifest, and gives the folder its name:
 *
 *   rank 0   mkdir .partial --+            +-- write shard --+          headers, manifest, rename
 *   others                    +- "begun" --+-- write shard --+- "written" --                    +
 * "named"
 *
 * Whatever ends a rank on the way leaves a .partial, which is no checkpoint. */
#include "checkpoint.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "clock.h"
#include "config_spec.h"
#include "log.h"

struct holmes_saver {
    const struct holmes_config *config;
    struct holmes_ckpt_data data;
    struct holmes_ckpt_team team;
    int lock_fd;
};

#define FAIL(rc, ...)                                                                              \
    do {                                                                                           \
        snprintf(why, why_len, __VA_ARGS__);                                                       \
        return rc;                                                                                 \
    } while (0)

int holmes_saver_open(const struct holmes_config *c, const struct holmes_ckpt_data *data,
                      const struct holmes_ckpt_team *team, const char *resumed,
                      struct holmes_saver **out, char *why, size_t why_len)
{
    struct holmes_saver *s = calloc(1, sizeof *s);
    int rc = 0;

    if (!s)
        FAIL(-ENOMEM, "out of memory");
    *s = (struct holmes_saver){.config = c, .data = *data, .team = *team, .lock_fd = -1};
    if (team->rank == 0)
        rc = holmes_ckpt_claim(c->save, resumed, &s->lock_fd, why, why_len);
    if (rc != 0)
        free(s);
    else
        *out = s;
    return rc;
}

void holmes_saver_close(struct holmes_saver *s)
{
    if (!s)
        return;
    if (s->lock_fd >= 0)
        close(s->lock_fd); /* and with it the lock */
    free(s);
}

/* --- what rank 0 finds in the shards -----------------------------------------------------------
 */

/* A tensor of the manifest under way, with what each shard has of it. */
struct found {
    struct holmes_manifest_tensor t;
    struct holmes_runs *runs; /* [nruns] */
    int nruns;
};

struct survey {
    struct holmes_manifest m;
    struct found *found;
    int nfound;
    json_t *index; /* name -> number in `found` */
    uint64_t bytes;
    char *why;
    size_t why_len;
};

static int no_memory(struct survey *v)
{
    snprintf(v->why, v->why_len, "out of memory");
    return -ENOMEM;
}

static struct found *find_or_add(struct survey *v, const struct holmes_shard_piece *p)
{
    const json_t *number = json_object_get(v->index, p->tensor);
    struct found *more, *f;

    if (number)
        return &v->found[json_integer_value(number)];
    more = realloc(v->found, ((size_t)v->nfound + 1) * sizeof *more);
    if (!more || json_object_set_new(v->index, p->tensor, json_integer(v->nfound)) != 0) {
        v->found = more ? more : v->found;
        return NULL;
    }
    v->found = more;
    f = &more[v->nfound++];
    *f = (struct found){.t = {.rows = p->rows, .cols = p->cols}};
    f->t.count = (uint64_t)p->cols * (uint64_t)(p->rows > 0 ? p->rows : 1);
    memcpy(f->t.name, p->tensor, sizeof f->t.name);
    return f;
}

/* Takes the piece's runs. */
static int add_found(struct survey *v, int shard, struct holmes_shard_piece *p)
{
    struct found *f = find_or_add(v, p);
    struct holmes_runs *runs;
    int *shards;

    if (!f)
        return no_memory(v);
    runs = realloc(f->runs, ((size_t)f->nruns + 1) * sizeof *runs);
    if (!runs)
        return no_memory(v);
    f->runs = runs;
    f->runs[f->nruns++] = p->runs;
    p->runs = (struct holmes_runs){0};
    if (f->t.nshards > 0 && f->t.shards[f->t.nshards - 1] == shard)
        return 0;
    shards = realloc(f->t.shards, ((size_t)f->t.nshards + 1) * sizeof *shards);
    if (!shards)
        return no_memory(v);
    f->t.shards = shards;
    f->t.shards[f->t.nshards++] = shard;
    return 0;
}

static int survey_shard(struct survey *v, const char *partial, int i)
{
    struct holmes_manifest_shard *m = &v->m.shards[i];
    char path[HOLMES_CKPT_PATH_MAX + 128];
    struct holmes_shard *s;
    int rc;

    holmes_manifest_shard_name(i, v->m.nshards, m->file, sizeof m->file);
    snprintf(path, sizeof path, "%s/%s", partial, m->file);
    if (access(path, F_OK) != 0) {
        snprintf(v->why, v->why_len,
                 "rank %d has written %s, rank 0 does not see it: --save must name a folder that "
                 "all hosts share",
                 i, path);
        return -ENOENT;
    }
    rc = holmes_shard_open(path, &s, v->why, v->why_len);
    if (rc != 0)
        return rc;
    m->bytes = holmes_st_file_bytes(s->st);
    m->header_crc = holmes_st_header_crc(s->st);
    v->bytes += m->bytes;
    for (int j = 0; j < s->npieces && rc == 0; j++)
        rc = add_found(v, i, &s->pieces[j]);
    holmes_shard_close(s);
    return rc;
}

/* Every element of the tensor is in one piece at least: a checkpoint with a hole must never be. */
static int check_cover(struct survey *v, const struct found *f)
{
    uint64_t at = 0, local, length = 0;
    int last = 0;

    while (at < f->t.count) {
        int i = 0;

        while (i < f->nruns &&
               holmes_runs_find(&f->runs[(last + i) % f->nruns], at, &local, &length) != 0)
            i++;
        if (i == f->nruns) {
            snprintf(v->why, v->why_len,
                     "no rank has written element %" PRIu64 " of tensor %s: please report this", at,
                     f->t.name);
            return -EINVAL;
        }
        last = (last + i) % f->nruns;
        at += length;
    }
    return 0;
}

static int survey_all(struct survey *v, const char *partial)
{
    int rc = 0;

    for (int i = 0; i < v->m.nshards && rc == 0; i++)
        rc = survey_shard(v, partial, i);
    for (int i = 0; i < v->nfound && rc == 0; i++)
        rc = check_cover(v, &v->found[i]);
    if (rc != 0)
        return rc;
    v->m.tensors = calloc((size_t)v->nfound + 1, sizeof *v->m.tensors);
    if (!v->m.tensors)
        return no_memory(v);
    for (int i = 0; i < v->nfound; i++) {
        v->m.tensors[v->m.ntensors++] = v->found[i].t;
        v->found[i].t.shards = NULL; /* the manifest's now */
    }
    return 0;
}

static void survey_fini(struct survey *v)
{
    for (int i = 0; i < v->nfound; i++) {
        for (int j = 0; j < v->found[i].nruns; j++)
            holmes_runs_fini(&v->found[i].runs[j]);
        free(v->found[i].runs);
        free(v->found[i].t.shards);
    }
    free(v->found);
    json_decref(v->index);
    holmes_manifest_fini(&v->m);
}

/* --- the manifest ------------------------------------------------------------------------------
 */

static int write_file(const char *path, const char *text, size_t len)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666), rc = 0;

    if (fd < 0)
        return -errno;
    while (rc == 0 && len > 0) {
        ssize_t n = write(fd, text, len);

        if (n < 0 && errno != EINTR)
            rc = -errno;
        if (n > 0) {
            text += n;
            len -= (size_t)n;
        }
    }
    if (rc == 0 && fsync(fd) != 0)
        rc = -errno;
    if (close(fd) != 0 && rc == 0)
        rc = -errno;
    return rc;
}

static json_t *options_of(const struct holmes_config *c)
{
    json_t *o = json_object();

    for (int i = 0; i < holmes_nspecs; i++) {
        char buf[64];
        const char *text =
            holmes_specs[i].name ? holmes_spec_get(&holmes_specs[i], c, buf, sizeof buf) : NULL;

        if (text) /* paths that are not UTF-8 are left out: they have no say in the result */
            json_object_set_new(o, holmes_specs[i].name, json_string(text));
    }
    return o;
}

static int write_manifest(const struct holmes_saver *s, int step, const char *partial,
                          uint64_t *bytes, char *why, size_t why_len)
{
    struct survey v = {.m = {.step = step,
                             .model = s->config->model,
                             .data_bytes = s->data.bytes,
                             .options = options_of(s->config),
                             .shards = calloc((size_t)s->team.world, sizeof *v.m.shards),
                             .nshards = s->team.world},
                       .index = json_object(),
                       .why = why,
                       .why_len = why_len};
    char path[HOLMES_CKPT_PATH_MAX + 128], *text = NULL;
    size_t len = 0;
    int rc = v.m.options && v.m.shards && v.index ? 0 : no_memory(&v);

    memcpy(v.m.data_sum, s->data.sum, sizeof v.m.data_sum);
    if (rc == 0)
        rc = survey_all(&v, partial);
    if (rc == 0) {
        text = holmes_manifest_text(&v.m, &len);
        rc = text ? 0 : no_memory(&v);
    }
    snprintf(path, sizeof path, "%s/%s", partial, HOLMES_MANIFEST_NAME);
    if (rc == 0 && (rc = write_file(path, text, len)) != 0)
        snprintf(why, why_len, "--save %s: cannot write %s: %s", s->config->save, path,
                 strerror(-rc));
    *bytes = v.bytes;
    free(text);
    survey_fini(&v);
    return rc;
}

/* --- saving ------------------------------------------------------------------------------------
 */

/* The sentence says what is still good. */
static int write_shard(const struct holmes_saver *s, const char *partial,
                       const struct holmes_piece *pieces, int count,
                       void (*copy)(void *to, const void *from, size_t bytes), char *why,
                       size_t why_len)
{
    char path[HOLMES_CKPT_PATH_MAX + 128], name[48];
    uint64_t bytes;
    int rc;

    holmes_manifest_shard_name(s->team.rank, s->team.world, name, sizeof name);
    snprintf(path, sizeof path, "%s/%s", partial, name);
    if (access(partial, F_OK) != 0)
        FAIL(-errno,
             "--save %s: %s, which rank 0 has made, is not there (%s): a folder that all hosts "
             "share is right",
             s->config->save, partial, strerror(errno));
    rc = holmes_shard_write(path, pieces, count, copy, &bytes);
    if (rc == 0)
        rc = holmes_ckpt_sync_folder(partial);
    if (rc != 0)
        FAIL(rc, "--save %s: cannot write %s, %.1f MB: %s; earlier checkpoints are as they were",
             s->config->save, path, (double)bytes / 1e6, strerror(-rc));
    return 0;
}

static int meet(const struct holmes_saver *s, int step, const char *what, struct holmes_saved *out)
{
    char name[48];
    int rc;

    snprintf(name, sizeof name, "save/%d/%s", step, what);
    rc = s->team.barrier(s->team.ctx, name);
    out->barrier_failed = rc != 0;
    return rc;
}

static int complete(struct holmes_saver *s, int step, const char *partial, struct holmes_saved *out,
                    char *why, size_t why_len)
{
    const char *dir = s->config->save;
    int rc = write_manifest(s, step, partial, &out->bytes, why, why_len);

    if (rc == 0)
        rc = holmes_ckpt_commit(dir, step, partial, why, why_len);
    /* What cannot be removed is no reason to lose a run: somebody reads it, or has put something
     * there. */
    if (rc == 0 && holmes_ckpt_prune(dir, s->config->keep, why, why_len) != 0)
        holmes_warn(TRAIN, "%s", why);
    return rc;
}

int holmes_saver_save(struct holmes_saver *s, int step, const struct holmes_piece *pieces,
                      int count, void (*copy)(void *to, const void *from, size_t bytes),
                      struct holmes_saved *out, char *why, size_t why_len)
{
    const uint64_t started = holmes_now_ns();
    const char *dir = s->config->save;
    char partial[HOLMES_CKPT_PATH_MAX + 80];
    int rc = 0;

    *out = (struct holmes_saved){0};
    snprintf(out->path, sizeof out->path, "%s/step-%08d", dir, step);
    snprintf(partial, sizeof partial, "%s.partial", out->path);
    if (s->team.rank == 0)
        rc = holmes_ckpt_begin(dir, step, partial, sizeof partial, why, why_len);
    if (rc == 0)
        rc = meet(s, step, "begun", out);
    if (rc == 0)
        rc = write_shard(s, partial, pieces, count, copy, why, why_len);
    if (rc == 0)
        rc = meet(s, step, "written", out);
    if (rc == 0 && s->team.rank == 0)
        rc = complete(s, step, partial, out, why, why_len);
    if (rc == 0)
        rc = meet(s, step, "named", out);
    out->seconds = (double)(holmes_now_ns() - started) / 1e9;
    return rc;
}
