/* The reference with blocking send and recv, and a thread for each end of each stream. */
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>

#include "clock.h"
#include "reference.h"

#define STREAMS_MAX HOLMES_BENCH_STREAMS_MAX

/* One run: what its threads share. */
struct run {
    const struct holmes_reference_run *is;
    pthread_mutex_t gate;   /* held until the clock starts */
    pthread_barrier_t pass; /* where the threads meet after each pass */
    atomic_int error;       /* the first */
};

struct worker {
    struct run *run;
    size_t stream;
    bool sends;
    float *us; /* pingpong: half of each round trip of this stream; NULL: not wanted */
    void (*work)(struct worker *w);
    pthread_t thread;
};

static int step_send(const struct run *run, size_t s, size_t step)
{
    const struct holmes_rank_work *w = run->is->w;
    size_t len;
    size_t at = holmes_reference_share(w, w->shape.in_bytes, w->shape.in_blocks, step, s,
                                       run->is->streams, &len);

    return holmes_reference_send(run->is->r->out_fd[s], (const char *)w->in + at, len);
}

static int step_recv(const struct run *run, size_t s, size_t step)
{
    const struct holmes_rank_work *w = run->is->w;
    size_t len;
    size_t at = holmes_reference_share(w, w->shape.out_bytes, w->shape.out_blocks, step, s,
                                       run->is->streams, &len);

    return holmes_reference_recv(run->is->r->in_fd[s], (char *)w->out + at, len);
}

static void run_fail(struct run *run, int rc)
{
    int none = 0;

    if (rc != 0)
        atomic_compare_exchange_strong(&run->error, &none, rc);
}

/* Small blocks: each step's send waits for the receive of the step before. */
static void ring_chained(struct worker *wk)
{
    struct run *run = wk->run;
    int rc = 0;

    for (size_t i = 0; i < run->is->iters && rc == 0; i++) {
        for (size_t step = 0; step < holmes_reference_steps(run->is->r->attr) && rc == 0; step++) {
            for (size_t s = 0; s < run->is->streams && rc == 0; s++)
                rc = step_send(run, s, step);
            for (size_t s = 0; s < run->is->streams && rc == 0; s++)
                rc = step_recv(run, s, step);
        }
        holmes_reference_beat(run->is);
    }
    run_fail(run, rc);
}

/* Large blocks: this end of this stream, pass by pass. After a failure the others must still meet
 * at the barrier, so this one goes on meeting them without moving bytes. */
static void ring_free(struct worker *wk)
{
    struct run *run = wk->run;

    for (size_t i = 0; i < run->is->iters; i++) {
        for (size_t step = 0;
             step < holmes_reference_steps(run->is->r->attr) && !atomic_load(&run->error); step++)
            run_fail(run, wk->sends ? step_send(run, wk->stream, step)
                                    : step_recv(run, wk->stream, step));
        holmes_reference_beat(run->is);
        pthread_barrier_wait(&run->pass);
    }
}

static void pingpong(struct worker *wk)
{
    struct run *run = wk->run;
    bool serves = run->is->r->attr->rank % 2 == 0;
    uint64_t last = holmes_now_ns(), now;
    int rc = 0;

    for (size_t i = 0; i < run->is->iters && rc == 0; i++) {
        rc = serves ? step_send(run, wk->stream, 0) : step_recv(run, wk->stream, 0);
        if (rc == 0)
            rc = serves ? step_recv(run, wk->stream, 0) : step_send(run, wk->stream, 0);
        if (wk->us) {
            now = holmes_now_ns();
            wk->us[i] = (float)((double)(now - last) / 2e3);
            last = now;
        }
        holmes_reference_beat(run->is);
    }
    run_fail(run, rc);
}

/* This end of this stream, in one of the two directions. When all of a rank's are through, it sends
 * a byte on each stream, which says that everything has come. Threads meet at the barrier whatever
 * happened to them. */
static void stream_both_ways(struct worker *wk)
{
    struct run *run = wk->run;
    char word = 0;

    for (size_t i = 0; i < run->is->iters && !atomic_load(&run->error); i++) {
        run_fail(run, wk->sends ? step_send(run, wk->stream, 0) : step_recv(run, wk->stream, 0));
        holmes_reference_beat(run->is);
    }
    pthread_barrier_wait(&run->pass);
    if (!atomic_load(&run->error))
        run_fail(run, wk->sends ? holmes_reference_send(run->is->r->out_fd[wk->stream], &word, 1)
                                : holmes_reference_recv(run->is->r->in_fd[wk->stream], &word, 1));
}

/* Even ranks send all messages in one go; a byte back says that they have come. */
static void stream_one_way(struct worker *wk)
{
    struct run *run = wk->run;
    bool sends = run->is->r->attr->rank % 2 == 0;
    char word = 0;
    int rc = 0;

    for (size_t i = 0; i < run->is->iters && rc == 0; i++) {
        rc = sends ? step_send(run, wk->stream, 0) : step_recv(run, wk->stream, 0);
        holmes_reference_beat(run->is);
    }
    if (rc == 0)
        rc = sends ? holmes_reference_recv(run->is->r->in_fd[wk->stream], &word, 1)
                   : holmes_reference_send(run->is->r->out_fd[wk->stream], &word, 1);
    run_fail(run, rc);
}

static void *worker_main(void *arg)
{
    struct worker *wk = arg;

    pthread_mutex_lock(&wk->run->gate);
    pthread_mutex_unlock(&wk->run->gate);
    if (!atomic_load(&wk->run->error))
        wk->work(wk);
    return NULL;
}

/* The workers of a run; returns their number. */
static size_t workers_of(struct run *run, struct worker *wk)
{
    enum holmes_bench_measure measure = run->is->measure;
    bool both_ways = measure == HOLMES_BENCH_BANDWIDTH && run->is->r->attr->both_ways;
    void (*work)(struct worker *) = measure == HOLMES_BENCH_TIME      ? ring_free
                                    : measure == HOLMES_BENCH_LATENCY ? pingpong
                                    : both_ways                       ? stream_both_ways
                                                                      : stream_one_way;
    size_t n = 0;

    if (holmes_reference_chained(run->is)) {
        wk[n++] = (struct worker){.run = run, .work = ring_chained};
        return n;
    }
    for (size_t s = 0; s < run->is->streams; s++) {
        wk[n++] = (struct worker){.run = run, .stream = s, .work = work, .sends = true};
        if (measure == HOLMES_BENCH_TIME || both_ways)
            wk[n++] = (struct worker){.run = run, .stream = s, .work = work};
    }
    return n;
}

/* Room for the times of every stream's messages; NULL when they are not wanted. */
static float *messages_begin(struct run *run, struct worker *wk, size_t n,
                             const struct holmes_timing *t)
{
    float *us;

    if (!t->message_us || n * run->is->iters == 0)
        return NULL;
    us = calloc(n * run->is->iters, sizeof *us);
    if (!us)
        run_fail(run, -ENOMEM);
    for (size_t i = 0; i < n && us; i++)
        wk[i].us = us + i * run->is->iters;
    return us;
}

/* A message has come when its last share has: each counts with the slowest of its streams. */
static void messages_end(const struct run *run, size_t n, float *us, struct holmes_timing *t)
{
    for (size_t i = 0; us && i < run->is->iters; i++) {
        t->message_us[i] = us[i];
        for (size_t s = 1; s < n; s++)
            if (us[s * run->is->iters + i] > t->message_us[i])
                t->message_us[i] = us[s * run->is->iters + i];
    }
    free(us);
}

int holmes_reference_block(const struct holmes_reference_run *is, struct holmes_timing *t)
{
    struct run run = {.is = is, .gate = PTHREAD_MUTEX_INITIALIZER};
    struct worker workers[2 * STREAMS_MAX];
    size_t n = workers_of(&run, workers), started;
    float *us = messages_begin(&run, workers, n, t);

    pthread_barrier_init(&run.pass, NULL, (unsigned)n);
    pthread_mutex_lock(&run.gate);
    for (started = 0; started < n; started++) {
        int rc = pthread_create(&workers[started].thread, NULL, worker_main, &workers[started]);

        run_fail(&run, -rc);
        if (rc != 0)
            break;
    }
    run_fail(&run, holmes_reference_meet(is->r));
    holmes_timing_start(t);
    pthread_mutex_unlock(&run.gate);
    for (size_t i = 0; i < started; i++)
        pthread_join(workers[i].thread, NULL);
    holmes_timing_stop(t);
    messages_end(&run, n, us, t);
    pthread_barrier_destroy(&run.pass);
    return atomic_load(&run.error);
}
