/* The learning rate of the measured steps is 0, so that ranks whose gradients were not summed still
 * agree on the weights; moments do change, and all of it is put back at the end. */
#include "measure.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "clock.h"
#include "table.h"

#define TIMED_STEPS 3

/* ---- what is put back ---- */

enum what { COUNT, SAVE, RESTORE };

struct saved {
    char *data; /* of all chunks: weights, then masters that are not these, and moments */
    size_t bytes;
};

static void move(const struct holmes_kernels *k, struct saved *s, void *mine, size_t bytes,
                 enum what what)
{
    if (what == SAVE)
        k->copy(s->data + s->bytes, mine, bytes);
    if (what == RESTORE)
        k->copy(mine, s->data + s->bytes, bytes);
    s->bytes += bytes;
}

static void move_owned(const struct holmes_kernels *k, struct saved *s,
                       const struct holmes_owned *o, enum what what)
{
    if (k->dtype != HOLMES_FLOAT32)
        move(k, s, o->w, o->count * sizeof *o->w, what);
    move(k, s, o->m, o->count * sizeof *o->m, what);
    move(k, s, o->v, o->count * sizeof *o->v, what);
}

/* Replica 0 owns what it shares with the others, which is then moved twice: no harm. */
static void move_chunk(struct holmes_trainer *t, int chunk, struct saved *s, enum what what)
{
    struct holmes_stage *stage = holmes_trainer_stage(t, chunk);
    const struct holmes_kernels *k = holmes_stage_kernels(stage);
    const struct holmes_dp *dp = holmes_trainer_dp(t, chunk);
    struct holmes_owned o;

    move(k, s, holmes_stage_weights(stage),
         holmes_stage_nparams(stage) * holmes_dtype_size(k->dtype), what);
    for (int i = 0; i < holmes_dp_nowned(dp); i++) {
        holmes_dp_owned(dp, i, &o);
        move_owned(k, s, &o, what);
    }
    for (int i = 0; i < holmes_dp_nshared(dp); i++) {
        holmes_dp_shared(dp, i, &o);
        move_owned(k, s, &o, what);
    }
}

static void move_all(struct holmes_trainer *t, struct saved *s, enum what what)
{
    s->bytes = 0;
    for (int c = 0; c < holmes_trainer_nchunks(t); c++)
        move_chunk(t, c, s, what);
}

/* ---- measuring ---- */

struct bench {
    struct holmes_trainer *t;
    struct holmes_links *links;
    int rounds, step; /* steps so far */
    /* (modes, rounds, TIMED_STEPS) ms, of this rank and then of the slowest */
    float *ms;
    size_t count;
};

static float *sample(const struct bench *b, int mode, int round)
{
    return b->ms + ((size_t)mode * (size_t)b->rounds + (size_t)round) * TIMED_STEPS;
}

static int barrier(struct holmes_links *l)
{
    struct holmes_comm *c = l->world->comm;
    struct holmes_op *op = NULL;
    int rc = c->ops->barrier(c, &op);

    return rc ? rc : holmes_links_wait(l, l->world, &op);
}

static void set_overlap(struct holmes_trainer *t, bool overlap)
{
    for (int c = 0; c < holmes_trainer_nchunks(t); c++)
        holmes_dp_set_overlap(holmes_trainer_dp(t, c), overlap);
}

/* The first step comes into the rhythm: with overlap it begins while weights are still coming. */
static int run_mode(struct bench *b, int mode, int round)
{
    struct holmes_step_result ignored;
    int rc = barrier(b->links);

    set_overlap(b->t, mode == HOLMES_MEASURE_ON);
    if (rc == 0 && mode == HOLMES_MEASURE_NONE)
        rc = holmes_links_mute(b->links);
    for (int i = -1; i < TIMED_STEPS && rc == 0; i++) {
        uint64_t start = holmes_now_ns();

        rc = holmes_trainer_step_at(b->t, ++b->step, 0, &ignored);
        if (i >= 0)
            sample(b, mode, round)[i] = (float)(holmes_now_ns() - start) / 1e6f;
    }
    if (rc == 0)
        rc = holmes_trainer_settle(b->t);
    holmes_links_unmute(b->links);
    return rc;
}

/* Over all ranks: without communication each runs for itself, and the slowest counts. A few samples
 * at a time: small operations are copied, so that `all` may be freed. */
static int take_slowest(struct bench *b)
{
    struct holmes_comm *c = b->links->world->comm;
    size_t ranks = (size_t)c->size;
    float *all = calloc(TIMED_STEPS * ranks, sizeof *all);
    int rc = all ? 0 : -ENOMEM;

    for (size_t at = 0; at < b->count && rc == 0; at += TIMED_STEPS) {
        float *mine = b->ms + at;
        struct holmes_op *op = NULL;

        rc = c->ops->all_gather(c, mine, all, TIMED_STEPS, HOLMES_FLOAT32, &op);
        if (rc == 0)
            rc = holmes_links_wait(b->links, b->links->world, &op);
        for (size_t i = 0; rc == 0 && i < TIMED_STEPS * ranks; i++)
            if (all[i] > mine[i % TIMED_STEPS])
                mine[i % TIMED_STEPS] = all[i];
    }
    if (rc == 0) /* else an operation may still own it */
        free(all);
    return rc;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

/* Sorts the values. */
static struct holmes_spread spread_of(double *v, int n)
{
    if (n == 0)
        return (struct holmes_spread){NAN, NAN, NAN};
    qsort(v, (size_t)n, sizeof *v, by_value);
    return (struct holmes_spread){(v[(n - 1) / 2] + v[n / 2]) / 2, v[0], v[n - 1]};
}

static double mean(const float *v)
{
    double sum = 0;

    for (int i = 0; i < TIMED_STEPS; i++)
        sum += (double)v[i];
    return sum / TIMED_STEPS;
}

static int summarise(const struct bench *b, struct holmes_measure *out)
{
    double *v = calloc((size_t)b->rounds * TIMED_STEPS, sizeof *v);
    int n = 0;

    if (!v)
        return -ENOMEM;
    *out = (struct holmes_measure){.rounds = b->rounds, .steps = TIMED_STEPS};
    for (int mode = 0; mode < HOLMES_MEASURE_MODES; mode++) {
        for (int i = 0; i < b->rounds * TIMED_STEPS; i++)
            v[i] = (double)sample(b, mode, 0)[i];
        out->step_ms[mode] = spread_of(v, b->rounds * TIMED_STEPS);
    }
    for (int round = 0; round < b->rounds; round++) {
        double on = mean(sample(b, HOLMES_MEASURE_ON, round));
        double off = mean(sample(b, HOLMES_MEASURE_OFF, round));
        double none = mean(sample(b, HOLMES_MEASURE_NONE, round));

        if (off - none > none / 100)
            v[n++] = 1 - (on - none) / (off - none);
    }
    out->hidden = spread_of(v, n);
    free(v);
    return 0;
}

static int measure(struct bench *b, struct holmes_measure *out)
{
    int rc = 0;

    for (int round = 0; round < b->rounds; round++)
        for (int i = 0; i < HOLMES_MEASURE_MODES && rc == 0; i++)
            rc = run_mode(b, (round + i) % HOLMES_MEASURE_MODES, round);
    if (rc == 0)
        rc = take_slowest(b);
    return rc ? rc : summarise(b, out);
}

/* The log tells what training sent and waited for: what was sent here is counted as evaluation, and
 * not waited for. */
static int measure_aside(struct bench *b, struct holmes_measure *out)
{
    struct holmes_links *l = b->links;
    uint64_t waited[HOLMES_LINKS_MAX] = {0};
    int rc;

    for (int i = 0; i < l->count; i++)
        waited[i] = l->all[i].wait_ns;
    holmes_links_eval_begin(l);
    rc = measure(b, out);
    holmes_links_eval_end(l);
    for (int i = 0; i < l->count; i++)
        l->all[i].wait_ns = waited[i];
    return rc;
}

int holmes_measure_overlap(struct holmes_trainer *t, struct holmes_links *links, int rounds,
                           bool overlap, struct holmes_measure *out)
{
    struct bench b = {.t = t,
                      .links = links,
                      .rounds = rounds,
                      .count = (size_t)HOLMES_MEASURE_MODES * (size_t)rounds * TIMED_STEPS};
    struct saved saved = {0};
    int rc;

    move_all(t, &saved, COUNT);
    saved.data = malloc(saved.bytes + 1);
    b.ms = calloc(b.count, sizeof *b.ms);
    rc = saved.data && b.ms ? holmes_trainer_settle(t) : -ENOMEM;
    if (rc == 0) {
        move_all(t, &saved, SAVE);
        rc = measure_aside(&b, out);
        move_all(t, &saved, RESTORE);
    }
    set_overlap(t, overlap);
    free(saved.data);
    free(b.ms);
    return rc;
}

/* ---- telling ---- */

int holmes_measure_print(const struct holmes_measure *m, FILE *out)
{
    static const char *const headings[] = {"step time, ms", "median", "least", "most", NULL};
    static const char *const names[] = {"overlap on", "overlap off", "no communication"};
    struct holmes_table *table = holmes_table_of(headings, "lrrr");
    int rc;

    if (!table)
        return -ENOMEM;
    for (int i = 0; i < HOLMES_MEASURE_MODES; i++) {
        holmes_table_cell(table, "%s", names[i]);
        holmes_table_cell(table, "%.1f", m->step_ms[i].median);
        holmes_table_cell(table, "%.1f", m->step_ms[i].min);
        holmes_table_cell(table, "%.1f", m->step_ms[i].max);
    }
    rc = holmes_table_print(table, out);
    holmes_table_destroy(table);
    if (rc != 0)
        return rc;
    if (isnan(m->hidden.median))
        fprintf(out, "Communication took no time that could be hidden.\n");
    else
        fprintf(out,
                "Overlap hid %.0f %% of the time that communication takes (%.0f to %.0f %% in %d "
                "rounds of %d steps each).\n",
                100 * m->hidden.median, 100 * m->hidden.min, 100 * m->hidden.max, m->rounds,
                m->steps);
    return fflush(out) == 0 ? 0 : -errno;
}

static json_t *spread_object(struct holmes_spread s)
{
    if (isnan(s.median))
        return json_null();
    return json_pack("{s:f, s:f, s:f}", "median", s.median, "min", s.min, "max", s.max);
}

json_t *holmes_measure_record(const struct holmes_measure *m)
{
    return json_pack(
        "{s:s, s:i, s:i, s:o, s:o, s:o, s:o}", "record", "overlap", "rounds", m->rounds, "steps",
        m->steps, "on_ms", spread_object(m->step_ms[HOLMES_MEASURE_ON]), "off_ms",
        spread_object(m->step_ms[HOLMES_MEASURE_OFF]), "none_ms",
        spread_object(m->step_ms[HOLMES_MEASURE_NONE]), "hidden", spread_object(m->hidden));
}
