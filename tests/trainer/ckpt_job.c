#include "ckpt_job.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "config_spec.h"
#include "measure.h"
#include "support/thread_comm.h"

/* A barrier that the death of a rank ends. */
struct meeting {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    int world, arrived, round;
    bool dead;
};

struct shared {
    struct ckpt_job *job;
    struct holmes_config config;
    struct holmes_group *group;
    struct thread_hub *hub;
    struct meeting meeting;
};

struct thread {
    struct shared *shared;
    int rank;
};

void ckpt_job_text(const char *path)
{
    static const char *const words[] = {"ta", "kora", "mi", "selo", "vantu", "re", "ipo", "nesh"};
    uint64_t state = 1;
    FILE *f = fopen(path, "we");

    cr_assert_not_null(f);
    for (int i = 0; i < 6000; i++) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        fprintf(f, "%s%c", words[state >> 61], i % 11 == 10 ? '\n' : ' ');
    }
    cr_assert_eq(fclose(f), 0);
}

int ckpt_job_world(const struct ckpt_job *job)
{
    return job->split.stages * job->split.replicas * job->split.tensors;
}

struct holmes_config ckpt_job_config(const struct ckpt_job *job)
{
    struct holmes_config c;

    holmes_config_init(&c);
    c.model = (struct holmes_model){.layers = 4,
                                    .channels = job->channels ? job->channels : 24,
                                    .heads = 4,
                                    .seq_len = 16,
                                    .vocab = 256,
                                    .tied = job->tied};
    c.data = job->text;
    c.heldout = 0.1;
    c.batch = 12;
    c.microbatch = 1;
    c.steps = CKPT_JOB_STEPS;
    c.lr = 3e-3;
    c.final_lr = 3e-4;
    c.warmup = 3;
    c.seed = 8;
    c.stages = job->split.stages;
    c.replicas = job->split.replicas;
    c.tensors = job->split.tensors;
    c.virtual_stages = job->split.chunks > 1 ? job->split.chunks : 1;
    c.overlap = job->split.no_overlap ? HOLMES_OVERLAP_OFF : HOLMES_OVERLAP_ON;
    c.recompute = job->split.recompute;
    c.bucket_mb = 8.0 / 1024; /* several to a stage */
    c.save = job->save;
    c.keep = job->keep > 0 ? job->keep : 2;
    return c;
}

static int meet(void *ctx, const char *name)
{
    struct thread *t = ctx;
    struct ckpt_job *job = t->shared->job;
    struct meeting *m = &t->shared->meeting;
    const char *what = strrchr(name, '/') + 1;
    int round, rc;

    pthread_mutex_lock(&m->lock);
    if (job->fail_at && t->rank == job->fail_rank && strcmp(what, job->fail_at) == 0)
        m->dead = true;
    round = m->round;
    if (++m->arrived == m->world) {
        m->arrived = 0;
        m->round++;
    }
    pthread_cond_broadcast(&m->changed);
    while (m->round == round && !m->dead)
        pthread_cond_wait(&m->changed, &m->lock);
    rc = m->dead ? -ECONNABORTED : 0;
    pthread_mutex_unlock(&m->lock);
    return rc;
}

int ckpt_job_no_barrier(void *ctx, const char *name)
{
    (void)ctx;
    (void)name;
    return 0;
}

static void die(struct thread *t)
{
    struct meeting *m = &t->shared->meeting;

    pthread_mutex_lock(&m->lock);
    m->dead = true;
    pthread_cond_broadcast(&m->changed);
    pthread_mutex_unlock(&m->lock);
}

static int save(struct thread *th, struct holmes_trainer *t, const struct holmes_links *links,
                int step)
{
    struct shared *s = th->shared;
    struct ckpt_job *job = s->job;
    const struct holmes_ckpt_team team = {th->rank, ckpt_job_world(job), meet, th};
    char *why = job->why[th->rank];
    struct holmes_saver *saver = NULL;
    struct holmes_piece *pieces = NULL;
    struct holmes_ckpt_data data;
    struct holmes_saved saved;
    int count = 0, rc = holmes_trainer_settle(t);

    if (rc == 0)
        rc = holmes_ckpt_data_of(job->text, &data, why, sizeof job->why[0]);
    if (rc == 0)
        rc = holmes_saver_open(&s->config, &data, &team, job->resume, &saver, why,
                               sizeof job->why[0]);
    if (rc == 0)
        rc = holmes_state_pieces(t, links, &pieces, &count);
    if (rc == 0)
        rc = holmes_saver_save(saver, step, pieces, count,
                               holmes_stage_kernels(holmes_trainer_stage(t, 0))->copy, &saved, why,
                               sizeof job->why[0]);
    if (rc != 0)
        die(th);
    holmes_state_free(pieces, count);
    holmes_saver_close(saver);
    return rc;
}

static int load(struct thread *th, struct holmes_trainer *t)
{
    struct ckpt_job *job = th->shared->job;
    struct holmes_ckpt *c = NULL;
    int rc = holmes_ckpt_open(job->resume, &c, job->why[th->rank], sizeof job->why[0]);

    if (rc == 0)
        rc = holmes_state_load(c, t, job->why[th->rank], sizeof job->why[0]);
    holmes_ckpt_close(c);
    return rc;
}

static int poison(struct holmes_trainer *t)
{
    struct holmes_stage *s = holmes_trainer_stage(t, 0);
    const float none = NAN;
    int rc = holmes_trainer_settle(t);

    if (rc == 0)
        holmes_stage_set_weights(s, holmes_stage_nparams(s) - 1, 1, &none);
    return rc;
}

static int run_steps(struct thread *th, struct holmes_trainer *t, const struct holmes_links *links)
{
    struct ckpt_job *job = th->shared->job;
    int rc = 0;

    for (int step = job->first; step <= job->last && rc == 0; step++) {
        struct holmes_step_result result;

        if (step == job->poison_at && th->rank == 0)
            rc = poison(t);
        if (job->before_step)
            job->before_step(th->rank, step);
        if (rc == 0)
            rc = holmes_trainer_step(t, step, &result);
        if (job->after_step)
            job->after_step(th->rank, step);
        if (th->rank == 0)
            job->steps[step] = result;
        if (rc == 0 && job->save && step == job->save_at)
            rc = save(th, t, links, step);
    }
    if (rc == -EDOM && holmes_trainer_unfit(t))
        snprintf(job->why[th->rank], sizeof job->why[0], "%s", holmes_trainer_unfit(t));
    return rc;
}

static int evaluate(struct thread *th, struct holmes_trainer *t)
{
    double loss = 0;
    int sequences, rc = holmes_trainer_evaluate(t, &loss, &sequences);

    if (th->rank == 0)
        th->shared->job->held_out = loss;
    return rc;
}

static int run_trainer(struct thread *th, struct holmes_links *links,
                       struct holmes_dataloader *data)
{
    struct shared *s = th->shared;
    struct ckpt_job *job = s->job;
    const struct holmes_trainer_attr attr = {.config = &s->config,
                                             .group = s->group,
                                             .links = links,
                                             .data = data,
                                             .kernels = job->kernels ? job->kernels
                                                                     : holmes_kernels_find("ref")};
    struct holmes_trainer *t = NULL;
    struct holmes_measure measured;
    int rc = holmes_trainer_create(&attr, &t);

    if (rc == 0 && job->resume)
        rc = load(th, t);
    if (rc == 0 && job->init)
        rc = holmes_gpt2_import(job->init, &s->config, t, job->why[th->rank], sizeof job->why[0]);
    if (rc == 0 && job->save && job->save_at < job->first)
        rc = save(th, t, links, job->save_at);
    if (rc == 0 && job->measure)
        rc = holmes_measure_overlap(t, links, 1, !job->split.no_overlap, &measured);
    if (rc == 0)
        rc = run_steps(th, t, links);
    if (rc == 0 && job->evaluate)
        rc = evaluate(th, t);
    if (rc == 0)
        rc = holmes_trainer_settle(t);
    if (rc == 0 && job->look)
        job->look(job, th->rank, t);
    holmes_trainer_destroy(t);
    return rc;
}

static void *run_rank(void *arg)
{
    struct thread *th = arg;
    struct shared *s = th->shared;
    struct holmes_links links = {.timeout_ms = 60000};
    struct holmes_dataloader *data = NULL;
    struct holmes_data_attr attr;
    const struct ckpt_job *job = s->job;
    void *ctx = job->enter ? job->enter(th->rank, ckpt_job_world(job)) : s->hub;
    char *why = s->job->why[th->rank];
    int rc = holmes_config_data(&s->config, &attr, why, sizeof s->job->why[0]);

    if (rc == 0)
        rc = holmes_dataloader_open(&attr, &data, why, sizeof s->job->why[0]);
    if (rc == 0)
        rc = holmes_links_open(&links, s->group, th->rank, s->config.model.tied,
                               job->factory ? job->factory : thread_comm_create, ctx);
    if (rc == 0)
        rc = run_trainer(th, &links, data);
    holmes_links_close(&links);
    if (job->leave)
        job->leave(ctx);
    holmes_dataloader_close(data);
    s->job->rc[th->rank] = rc;
    return NULL;
}

void ckpt_job_run(struct ckpt_job *job)
{
    const int world = ckpt_job_world(job);
    struct shared s = {.job = job,
                       .config = ckpt_job_config(job),
                       .hub = thread_hub_create(),
                       .meeting = {.lock = PTHREAD_MUTEX_INITIALIZER,
                                   .changed = PTHREAD_COND_INITIALIZER,
                                   .world = world}};
    struct thread threads[CKPT_JOB_RANKS];
    pthread_t ids[CKPT_JOB_RANKS];
    char why[200];

    cr_assert_leq(world, CKPT_JOB_RANKS);
    cr_assert_eq(holmes_group_create(job->split.stages, job->split.replicas, job->split.tensors,
                                     NULL, s.config.model.layers, NULL, &s.group, why, sizeof why),
                 0, "%s", why);
    if (s.config.virtual_stages > 1)
        cr_assert_eq(holmes_group_set_chunks(s.group, s.config.virtual_stages,
                                             s.config.model.layers, NULL, why, sizeof why),
                     0, "%s", why);
    thread_hub_touch(s.hub, job->touch);
    for (int r = 0; r < world; r++) {
        job->why[r][0] = '\0';
        threads[r] = (struct thread){&s, r};
        cr_assert_eq(pthread_create(&ids[r], NULL, run_rank, &threads[r]), 0);
    }
    for (int r = 0; r < world; r++)
        pthread_join(ids[r], NULL);
    thread_hub_destroy(s.hub);
    holmes_group_destroy(s.group);
    holmes_config_fini(&s.config);
}

void ckpt_job_ok(struct ckpt_job *job)
{
    ckpt_job_run(job);
    for (int r = 0; r < ckpt_job_world(job); r++)
        cr_assert_eq(job->rc[r], 0, "rank %d: %d %s", r, job->rc[r], job->why[r]);
}

static void read_part(struct holmes_ckpt *c, const struct holmes_manifest_tensor *t,
                      enum holmes_part part, float *out)
{
    char why[600] = "";

    cr_assert_eq(holmes_ckpt_select(c, t->name, part, t->rows, t->cols, why, sizeof why), 0, "%s",
                 why);
    cr_assert_eq(holmes_ckpt_read(c, 0, t->count, out, why, sizeof why), 0, "%s", why);
}

static void compare_parts(const char *a, const char *b, int first, int last)
{
    struct holmes_ckpt *ca, *cb;
    const struct holmes_manifest *m;
    char why[600] = "";

    cr_assert_eq(holmes_ckpt_open(a, &ca, why, sizeof why), 0, "%s", why);
    cr_assert_eq(holmes_ckpt_open(b, &cb, why, sizeof why), 0, "%s", why);
    m = holmes_ckpt_manifest(ca);
    cr_assert_eq(holmes_ckpt_manifest(cb)->ntensors, m->ntensors);
    for (int i = 0; i < m->ntensors; i++) {
        const struct holmes_manifest_tensor *t = &m->tensors[i];
        float *x = malloc(t->count * sizeof *x), *y = malloc(t->count * sizeof *y);

        for (int part = first; part <= last; part++) {
            read_part(ca, t, (enum holmes_part)part, x);
            read_part(cb, t, (enum holmes_part)part, y);
            cr_expect_eq(memcmp(x, y, t->count * sizeof *x), 0, "%s of %s differ in %s and %s",
                         holmes_part_names[part], t->name, a, b);
        }
        free(x);
        free(y);
    }
    holmes_ckpt_close(ca);
    holmes_ckpt_close(cb);
}

void ckpt_job_same_part(const char *a, const char *b, enum holmes_part part)
{
    compare_parts(a, b, (int)part, (int)part);
}

void ckpt_job_same_state(const char *a, const char *b)
{
    compare_parts(a, b, 0, HOLMES_PARTS - 1);
}
