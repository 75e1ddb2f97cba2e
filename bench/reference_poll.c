/* The reference as a plugin works: few threads that never block. Each drives its share of the
 * streams with non-blocking send and recv, one call for each end in turn, and yields the processor
 * when nothing moved. One thread is the rank's own.
 *
 * A send waits for what has to have come before it, which depends on the run alone: a message back
 * and forth for the one before it, a step of a ring for the last step where blocks are small, an
 * operation for the last operation. What has come is what all streams have.
 */
#include <errno.h>
#include <pthread.h>
#include <sys/socket.h>

#include "clock.h"
#include "reference.h"

#define STREAMS_MAX HOLMES_BENCH_STREAMS_MAX

enum { LOOK_EVERY = 1024 }; /* idle turns between two looks at the clock */

/* One end of one stream. Only its thread touches it, but for `done`. */
struct end {
    int fd;
    size_t stream;
    bool sends;
    char *at;
    size_t left; /* of the piece under way */
    bool under_way;
    uint64_t total;            /* pieces in all */
    atomic_uint_fast64_t done; /* pieces */
};

struct run {
    const struct holmes_reference_run *is;
    struct end ins[STREAMS_MAX], outs[STREAMS_MAX];
    uint64_t steps; /* pieces of an operation */
    float *us;      /* half of each round trip; NULL: not wanted */
    uint64_t noted, last_ns;
    pthread_mutex_t gate; /* held until the clock starts */
    atomic_int error;     /* the first */
};

struct worker {
    struct run *run;
    size_t which;
    pthread_t thread;
};

static void run_fail(struct run *run, int rc)
{
    int none = 0;

    if (rc != 0)
        atomic_compare_exchange_strong(&run->error, &none, rc);
}

/* Pieces that have come on every stream. */
static uint64_t received(const struct run *run)
{
    uint64_t least = UINT64_MAX;

    for (size_t s = 0; s < run->is->streams; s++) {
        uint64_t done = atomic_load_explicit(&run->ins[s].done, memory_order_acquire);

        least = done < least ? done : least;
    }
    return least;
}

static bool may_send(const struct run *run, uint64_t piece)
{
    switch (run->is->measure) {
    case HOLMES_BENCH_LATENCY:
        return received(run) >= piece + (run->is->r->attr->rank % 2 != 0);
    case HOLMES_BENCH_TIME:
        return received(run) >=
               (holmes_reference_chained(run->is) ? piece : piece / run->steps * run->steps);
    default:
        return true;
    }
}

/* The end's next piece; false when it has to wait. */
static bool end_begin(const struct run *run, struct end *e, uint64_t piece)
{
    const struct holmes_rank_work *w = run->is->w;
    const struct holmes_shape *s = &w->shape;
    size_t step = piece % run->steps;

    if (e->sends && !may_send(run, piece))
        return false;
    e->at = e->sends ? w->in : w->out;
    e->at += holmes_reference_share(w, e->sends ? s->in_bytes : s->out_bytes,
                                    e->sends ? s->in_blocks : s->out_blocks, step, e->stream,
                                    run->is->streams, &e->left);
    e->under_way = true;
    return true;
}

/* One call into the kernel, if there is anything to do. */
static int end_turn(const struct run *run, struct end *e, bool *moved)
{
    uint64_t done = atomic_load_explicit(&e->done, memory_order_relaxed);
    ssize_t n = 0;

    if (done == e->total || (!e->under_way && !end_begin(run, e, done)))
        return 0;
    if (e->left) {
        n = e->sends ? send(e->fd, e->at, e->left, MSG_DONTWAIT | MSG_NOSIGNAL)
                     : recv(e->fd, e->at, e->left, MSG_DONTWAIT);
        if (n < 0)
            return errno == EAGAIN || errno == EINTR ? 0 : -errno;
        if (n == 0)
            return -ECONNRESET;
    }
    e->at += n;
    e->left -= (size_t)n;
    *moved = true;
    if (e->left == 0) {
        e->under_way = false;
        atomic_store_explicit(&e->done, done + 1, memory_order_release);
        holmes_reference_beat(run->is);
    }
    return 0;
}

static int idle_turn(const struct run *run, uint64_t *turns, uint64_t *deadline)
{
    holmes_rank_idle(run->is->r->attr);
    if ((*turns)++ == 0)
        *deadline = holmes_deadline_ms((uint64_t)run->is->r->attr->timeout_s * 1000);
    return *turns % LOOK_EVERY == 0 && holmes_deadline_passed(*deadline) ? -ETIMEDOUT : 0;
}

static void messages_note(struct run *run)
{
    uint64_t come = received(run), now;

    if (come == run->noted)
        return;
    now = holmes_now_ns();
    run->us[run->noted++] = (float)((double)(now - run->last_ns) / 2e3);
    run->last_ns = now;
}

static bool end_finished(const struct end *e)
{
    return atomic_load_explicit(&e->done, memory_order_relaxed) == e->total;
}

/* The streams of one thread. The first one also writes down when messages came. */
static int streams_drive(struct run *run, size_t which)
{
    bool notes = which == 0 && run->us, finished;
    uint64_t idle = 0, deadline = 0;
    int rc = 0;

    do {
        bool moved = false;

        finished = !notes || run->noted == run->is->iters;
        for (size_t s = which; s < run->is->streams && rc == 0; s += run->is->threads) {
            rc = end_turn(run, &run->ins[s], &moved);
            if (rc == 0)
                rc = end_turn(run, &run->outs[s], &moved);
            finished &= end_finished(&run->ins[s]) && end_finished(&run->outs[s]);
        }
        if (notes)
            messages_note(run);
        if (moved)
            idle = 0;
        else if (rc == 0 && !finished)
            rc = idle_turn(run, &idle, &deadline);
    } while (rc == 0 && !finished && !atomic_load_explicit(&run->error, memory_order_relaxed));
    return rc;
}

static void *worker_main(void *arg)
{
    struct worker *wk = arg;

    pthread_mutex_lock(&wk->run->gate);
    pthread_mutex_unlock(&wk->run->gate);
    run_fail(wk->run, streams_drive(wk->run, wk->which));
    return NULL;
}

static void run_init(struct run *run, const struct holmes_reference_run *is,
                     const struct holmes_timing *t)
{
    const struct holmes_rank_attr *a = is->r->attr;
    bool one_way = is->measure == HOLMES_BENCH_BANDWIDTH && !a->both_ways;
    uint64_t total;

    run->is = is;
    run->steps = is->measure == HOLMES_BENCH_TIME ? holmes_reference_steps(a) : 1;
    run->us = t->message_us;
    pthread_mutex_init(&run->gate, NULL);
    total = is->iters * run->steps;
    for (size_t s = 0; s < is->streams; s++) {
        run->ins[s].fd = is->r->in_fd[s];
        run->outs[s].fd = is->r->out_fd[s];
        run->ins[s].stream = run->outs[s].stream = s;
        run->outs[s].sends = true;
        run->ins[s].total = one_way && a->rank % 2 == 0 ? 0 : total;
        run->outs[s].total = one_way && a->rank % 2 == 1 ? 0 : total;
    }
}

/* A byte on the first stream from whom has received everything to whom has sent. */
static int words_exchange(const struct run *run)
{
    char word = 0;
    int rc = 0;

    if (run->ins[0].total)
        rc = holmes_reference_send(run->is->r->out_fd[0], &word, 1);
    if (rc == 0 && run->outs[0].total)
        rc = holmes_reference_recv(run->is->r->in_fd[0], &word, 1);
    return rc;
}

/* All threads but the caller's. Those that could be started number *started. */
static void workers_start(struct run *run, struct worker *workers, size_t *started)
{
    for (*started = 0; *started + 1 < run->is->threads; ++*started) {
        struct worker *wk = &workers[*started];
        int rc;

        *wk = (struct worker){.run = run, .which = *started + 1};
        rc = pthread_create(&wk->thread, NULL, worker_main, wk);
        if (rc != 0) {
            run_fail(run, -rc);
            return;
        }
    }
}

int holmes_reference_poll(const struct holmes_reference_run *is, struct holmes_timing *t)
{
    struct run run = {.steps = 0};
    struct worker workers[STREAMS_MAX];
    size_t started;

    run_init(&run, is, t);
    pthread_mutex_lock(&run.gate);
    workers_start(&run, workers, &started);
    run_fail(&run, holmes_reference_meet(is->r));
    run.last_ns = holmes_now_ns();
    holmes_timing_start(t);
    pthread_mutex_unlock(&run.gate);
    run_fail(&run, streams_drive(&run, 0));
    for (size_t i = 0; i < started; i++)
        pthread_join(workers[i].thread, NULL);
    if (is->measure == HOLMES_BENCH_BANDWIDTH && atomic_load(&run.error) == 0)
        run_fail(&run, words_exchange(&run));
    holmes_timing_stop(t);
    pthread_mutex_destroy(&run.gate);
    return atomic_load(&run.error);
}
