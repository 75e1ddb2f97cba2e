#include "ckpt_state.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "dp.h"

#define FILL_FLOATS HOLMES_SHARD_BLOCK /* moved to the kernels' memory at a time */

void holmes_state_shape(const struct holmes_tensor *t, int *rows, int *cols)
{
    *rows = t->dims == 2 ? (int)t->rows : 0;
    *cols = t->dims == 2 ? (int)t->cols : (int)t->rows;
}

/* --- saving ------------------------------------------------------------------------------------
 */

struct list {
    struct holmes_piece *at;
    int n;
};

/* The second copy of a tied embedding, beside the head, is equal to the first. */
static bool is_second_copy(const struct holmes_stage *s, const struct holmes_tensor *t)
{
    const struct holmes_tensor *tied = holmes_stage_tied(s);

    if (!tied || strcmp(t->name, tied->name) != 0)
        return false;
    for (int i = 0; i < holmes_stage_ntensors(s); i++)
        if (strcmp(holmes_stage_tensor(s, i)->name, "wpe.weight") == 0)
            return false; /* the embedding is here */
    return true;
}

static int add_piece(struct list *l, const struct holmes_tensor *t, const struct holmes_owned *o,
                     size_t from, size_t to)
{
    struct holmes_piece *more = realloc(l->at, ((size_t)l->n + 1) * sizeof *more), *p;
    size_t at = from - t->offset;
    int rc = 0;

    if (!more)
        return -ENOMEM;
    l->at = more;
    p = &more[l->n++];
    *p = (struct holmes_piece){
        .tensor = t->name,
        .parts = {o->w + (from - o->offset), o->m + (from - o->offset), o->v + (from - o->offset)}};
    holmes_state_shape(t, &p->rows, &p->cols);
    while (at < to - t->offset && rc == 0) {
        size_t whole, run = holmes_tensor_run(t, at, &whole);

        if (run > to - t->offset - at)
            run = to - t->offset - at;
        rc = holmes_runs_add(&p->runs, whole, run);
        at += run;
    }
    return rc;
}

static int add_range(struct list *l, const struct holmes_stage *s, int tensor_rank,
                     const struct holmes_owned *o)
{
    int rc = 0;

    for (int i = 0; i < holmes_stage_ntensors(s) && rc == 0; i++) {
        const struct holmes_tensor *t = holmes_stage_tensor(s, i);
        const size_t from = t->offset > o->offset ? t->offset : o->offset;
        const size_t t_end = t->offset + t->count, o_end = o->offset + o->count;
        const size_t to = t_end < o_end ? t_end : o_end;

        if (from < to && !(t->shared && tensor_rank > 0) && !is_second_copy(s, t))
            rc = add_piece(l, t, o, from, to);
    }
    return rc;
}

int holmes_state_pieces(const struct holmes_trainer *t, const struct holmes_links *links,
                        struct holmes_piece **out, int *count)
{
    struct list l = {0};
    int rc = 0;

    for (int chunk = 0; chunk < holmes_trainer_nchunks(t); chunk++) {
        const struct holmes_dp *dp = holmes_trainer_dp(t, chunk);

        for (int i = 0; i < holmes_dp_nowned(dp) && rc == 0; i++) {
            struct holmes_owned o;

            holmes_dp_owned(dp, i, &o);
            rc = add_range(&l, holmes_trainer_stage(t, chunk), links->tensor, &o);
        }
    }
    if (rc != 0) {
        holmes_state_free(l.at, l.n);
        return rc;
    }
    *out = l.at;
    *count = l.n;
    return 0;
}

void holmes_state_free(struct holmes_piece *pieces, int count)
{
    for (int i = 0; i < count; i++)
        holmes_runs_fini(&pieces[i].runs);
    free(pieces);
}

/* --- loading -----------------------------------------------------------------------------------
 */

/* Where elements of this rank's part of a tensor go: moments to memory of the kernels, weights,
 * where that is NULL, into the stage. */
struct target {
    struct holmes_stage *stage;
    float *moments; /* of element `at` */
    size_t at;      /* in the stage's flat arrays */
};

static void put(struct target *to, const float *values, size_t count)
{
    if (to->moments) {
        holmes_stage_kernels(to->stage)->copy(to->moments, values, count * sizeof *values);
        to->moments += count;
    } else {
        holmes_stage_set_weights(to->stage, to->at, count, values);
    }
    to->at += count;
}

/* Elements [to.at, to.at + count) of the flat arrays, all of them of tensor t. */
static int fill(struct target to, const struct holmes_tensor *t, size_t count,
                holmes_state_reader read, void *ctx, char *why, size_t why_len)
{
    size_t local = to.at - t->offset, filled = 0;
    const size_t end = local + count;
    float *buffer = malloc(FILL_FLOATS * sizeof *buffer);
    int rc = buffer ? 0 : -ENOMEM;

    if (rc != 0)
        snprintf(why, why_len, "out of memory");
    while (rc == 0 && local < end) {
        size_t whole, n = holmes_tensor_run(t, local, &whole);

        n = n < end - local ? n : end - local;
        n = n < FILL_FLOATS - filled ? n : FILL_FLOATS - filled;
        rc = read(ctx, whole, n, buffer + filled, why, why_len);
        filled += n;
        local += n;
        if (rc == 0 && (filled == FILL_FLOATS || local == end)) {
            put(&to, buffer, filled);
            filled = 0;
        }
    }
    free(buffer);
    return rc;
}

int holmes_state_fill_weights(struct holmes_stage *s, const struct holmes_tensor *t,
                              holmes_state_reader read, void *ctx, char *why, size_t why_len)
{
    return fill((struct target){.stage = s, .at = t->offset}, t, t->count, read, ctx, why, why_len);
}

struct loader {
    struct holmes_ckpt *ckpt;
    struct holmes_stage *stage;
    const struct holmes_dp *dp;
    char *why;
    size_t why_len;
};

static int read_ckpt(void *ctx, uint64_t first, size_t count, float *out, char *why, size_t why_len)
{
    return holmes_ckpt_read(ctx, first, count, out, why, why_len);
}

static int select_part(struct loader *l, const struct holmes_tensor *t, enum holmes_part part)
{
    int rows, cols;

    holmes_state_shape(t, &rows, &cols);
    return holmes_ckpt_select(l->ckpt, t->name, part, rows, cols, l->why, l->why_len);
}

static int load_weights(struct loader *l, const struct holmes_tensor *t)
{
    int rc = t->count > 0 ? select_part(l, t, HOLMES_PART_WEIGHTS) : 0;

    if (rc == 0)
        rc = holmes_state_fill_weights(l->stage, t, read_ckpt, l->ckpt, l->why, l->why_len);
    return rc;
}

/* The part of the tensor's moments that lies in `o`. */
static int load_moments(struct loader *l, const struct holmes_tensor *t, enum holmes_part part,
                        const struct holmes_owned *o)
{
    const size_t from = t->offset > o->offset ? t->offset : o->offset;
    const size_t t_end = t->offset + t->count, o_end = o->offset + o->count;
    const size_t to = t_end < o_end ? t_end : o_end;
    float *moments = part == HOLMES_PART_M ? o->m : o->v;
    int rc;

    if (from >= to)
        return 0;
    rc = select_part(l, t, part);
    if (rc == 0)
        rc = fill((struct target){l->stage, moments + (from - o->offset), from}, t, to - from,
                  read_ckpt, l->ckpt, l->why, l->why_len);
    return rc;
}

static int load_tensor(struct loader *l, const struct holmes_tensor *t)
{
    static const enum holmes_part moments[] = {HOLMES_PART_M, HOLMES_PART_V};
    struct holmes_owned o;
    int rc = load_weights(l, t);

    for (int p = 0; p < 2; p++) {
        for (int i = 0; i < holmes_dp_nowned(l->dp) && rc == 0; i++) {
            holmes_dp_owned(l->dp, i, &o);
            rc = load_moments(l, t, moments[p], &o);
        }
        for (int i = 0; i < holmes_dp_nshared(l->dp) && rc == 0; i++) {
            holmes_dp_shared(l->dp, i, &o);
            rc = load_moments(l, t, moments[p], &o);
        }
    }
    return rc;
}

int holmes_state_load(struct holmes_ckpt *c, struct holmes_trainer *t, char *why, size_t why_len)
{
    int rc = 0;

    for (int chunk = 0; chunk < holmes_trainer_nchunks(t) && rc == 0; chunk++) {
        struct loader l = {c, holmes_trainer_stage(t, chunk), holmes_trainer_dp(t, chunk), why,
                           why_len};

        for (int i = 0; i < holmes_stage_ntensors(l.stage) && rc == 0; i++)
            rc = load_tensor(&l, holmes_stage_tensor(l.stage, i));
    }
    return rc;
}
