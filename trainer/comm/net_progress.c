/* Drives the streams that have work, round robin. Whatever goes wrong ends here: the communicator
 * keeps its first error, its connections in use are closed (so that nothing is written to user
 * memory any more), and its operations complete with that error. */
#include "net_progress.h"

#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>

#include "clock.h"
#include "log.h"

enum {
    SPIN_NS = 50 * 1000,
    WAIT_MIN_NS = 20 * 1000,
    WAIT_MAX_NS = 200 * 1000,
    WATCH_JOB_NS = 20 * 1000 * 1000, /* how often the rendezvous is asked for an abort */
};

struct holmes_progress {
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t work;     /* something for the thread */
    pthread_cond_t answered; /* a communicator's request was carried out */
    atomic_bool pending;     /* incoming or requests is not empty, or stop, or woken */
    struct holmes_list incoming, requests;
    atomic_bool stop;
    /* The thread's own. */
    struct holmes_list active;
    uint64_t idle_since_ns, wait_ns, watched_ns;
};

static void comm_fail(struct holmes_progress *p, struct holmes_net_comm *c, int rc, const char *why)
{
    const char *result = holmes_plugin_result_name(rc);
    const char *text = rc == -ECONNABORTED ? holmes_rdv_reason(c->rdv) : holmes_strerror(rc);
    bool first = atomic_load(&c->error) == 0;

    if (first)
        atomic_store(&c->error, rc);
    rc = atomic_load(&c->error);
    if (first && why)
        holmes_warn(NET, "communicator %s, rank %d of %d: %s: %s%s%s%s", c->base.kind, c->base.rank,
                    c->base.size, why, text, result ? " (" : "", result ? result : "",
                    result ? ")" : "");
    holmes_list_each(st, tmp, &p->active, struct holmes_stream, in_active)
    {
        if (st->comm != c)
            continue;
        holmes_list_remove(&st->in_active);
        holmes_stream_cancel(st, rc);
    }
}

/* The oldest operation of each stream, as far as there is room. */
static void comm_describe(struct holmes_progress *p, struct holmes_net_comm *c, char *text,
                          size_t len)
{
    size_t used = 0;

    *text = '\0';
    holmes_list_each(st, tmp, &p->active, struct holmes_stream, in_active)
    {
        char one[160];

        if (st->comm != c || used >= len)
            continue;
        holmes_stream_describe(st, one, sizeof one);
        used += (size_t)snprintf(text + used, len - used, "%s%s", used ? "; " : "", one);
    }
}

static bool comm_has_work(struct holmes_progress *p, struct holmes_net_comm *c)
{
    holmes_list_each(st, tmp, &p->active, struct holmes_stream, in_active)
    {
        if (st->comm == c)
            return true;
    }
    return false;
}

static void answer_request(struct holmes_progress *p, struct holmes_net_comm *c, int rc)
{
    char state[400], why[480];

    if (comm_has_work(p, c)) {
        comm_describe(p, c, state, sizeof state);
        snprintf(why, sizeof why, rc == -ECANCELED ? "ended during %s" : "stuck in %s", state);
        comm_fail(p, c, rc, why);
    } else {
        comm_fail(p, c, rc, NULL);
    }
}

static void take_op(struct holmes_progress *p, struct holmes_op *op)
{
    struct holmes_stream *st = op->stream;
    int error = atomic_load(&st->comm->error);

    if (error) {
        holmes_op_complete(op, error);
        return;
    }
    holmes_list_append(&st->ops, &op->node);
    holmes_list_remove(&st->in_active);
    holmes_list_append(&p->active, &st->in_active);
}

/* Work that other threads left. False when there was none. */
static bool take_work(struct holmes_progress *p)
{
    if (!atomic_exchange_explicit(&p->pending, false, memory_order_acquire))
        return false;
    pthread_mutex_lock(&p->lock);
    holmes_list_each(op, tmp, &p->incoming, struct holmes_op, node)
    {
        holmes_list_remove(&op->node);
        take_op(p, op);
    }
    holmes_list_each(c, tmp, &p->requests, struct holmes_net_comm, in_requests)
    {
        holmes_list_remove(&c->in_requests);
        answer_request(p, c, c->cancel);
        c->answered = true;
        pthread_cond_broadcast(&p->answered);
    }
    pthread_mutex_unlock(&p->lock);
    return true;
}

static void watch_job(struct holmes_progress *p)
{
    uint64_t now = holmes_now_ns();

    if (now - p->watched_ns < WATCH_JOB_NS)
        return;
    p->watched_ns = now;
    /* comm_fail takes streams off the list: one communicator per look is enough. */
    holmes_list_each(st, tmp, &p->active, struct holmes_stream, in_active)
    {
        int rc = holmes_rdv_poll(st->comm->rdv);

        if (rc) {
            comm_fail(p, st->comm, rc, "the job was aborted");
            return;
        }
    }
}

static bool drive_streams(struct holmes_progress *p)
{
    bool moved = false;
    char why[200] = "";

    holmes_list_each(st, tmp, &p->active, struct holmes_stream, in_active)
    {
        int rc = holmes_stream_progress(st, &moved, why, sizeof why);

        if (rc) {
            comm_fail(p, st->comm, rc, why);
            return true; /* `tmp` may be gone from the list */
        }
        if (holmes_list_empty(&st->ops))
            holmes_list_remove(&st->in_active);
    }
    return moved;
}

static void wait_for_work(struct holmes_progress *p, bool timed)
{
    uint64_t until = holmes_now_ns() + p->wait_ns;
    struct timespec ts = {(time_t)(until / 1000000000u), (long)(until % 1000000000u)};

    pthread_mutex_lock(&p->lock);
    if (!atomic_load(&p->pending)) {
        if (timed)
            pthread_cond_timedwait(&p->work, &p->lock, &ts);
        else
            pthread_cond_wait(&p->work, &p->lock);
    }
    pthread_mutex_unlock(&p->lock);
    if (p->wait_ns < WAIT_MAX_NS)
        p->wait_ns *= 2;
    if (p->wait_ns > WAIT_MAX_NS)
        p->wait_ns = WAIT_MAX_NS;
}

static void rest(struct holmes_progress *p)
{
    uint64_t now = holmes_now_ns();

    if (holmes_list_empty(&p->active)) {
        wait_for_work(p, false);
        p->idle_since_ns = 0;
    } else if (p->idle_since_ns == 0) {
        p->idle_since_ns = now;
        p->wait_ns = WAIT_MIN_NS;
    } else if (now - p->idle_since_ns < SPIN_NS) {
        sched_yield();
    } else {
        wait_for_work(p, true);
    }
}

static void *progress_main(void *arg)
{
    struct holmes_progress *p = arg;

    pthread_setname_np(pthread_self(), "holmes-progress");
    prctl(PR_SET_TIMERSLACK, 1000ul, 0, 0, 0); /* else every short wait is 50 us longer */
    /* No lock in this loop while nothing comes in: it spins against whoever submits. */
    while (!atomic_load_explicit(&p->stop, memory_order_acquire)) {
        bool moved = take_work(p);

        moved |= drive_streams(p);
        watch_job(p);
        if (moved)
            p->idle_since_ns = 0;
        else
            rest(p);
    }
    return NULL;
}

static void progress_free(struct holmes_progress *p)
{
    pthread_cond_destroy(&p->answered);
    pthread_cond_destroy(&p->work);
    pthread_mutex_destroy(&p->lock);
    free(p);
}

int holmes_progress_start(struct holmes_progress **out)
{
    struct holmes_progress *p = calloc(1, sizeof *p);
    pthread_condattr_t mono;
    int rc;

    if (!p)
        return -ENOMEM;
    holmes_list_init(&p->incoming);
    holmes_list_init(&p->requests);
    holmes_list_init(&p->active);
    p->wait_ns = WAIT_MIN_NS;
    pthread_mutex_init(&p->lock, NULL);
    pthread_condattr_init(&mono);
    pthread_condattr_setclock(&mono, CLOCK_MONOTONIC);
    pthread_cond_init(&p->work, &mono);
    pthread_cond_init(&p->answered, &mono);
    pthread_condattr_destroy(&mono);
    rc = pthread_create(&p->thread, NULL, progress_main, p);
    if (rc) {
        progress_free(p);
        return -rc;
    }
    *out = p;
    return 0;
}

/* Lets go of the lock before it wakes the thread, which wants it at once. */
static void unlock_and_signal(struct holmes_progress *p)
{
    atomic_store_explicit(&p->pending, true, memory_order_release);
    pthread_mutex_unlock(&p->lock);
    pthread_cond_signal(&p->work);
}

void holmes_progress_stop(struct holmes_progress *p)
{
    if (!p)
        return;
    pthread_mutex_lock(&p->lock);
    atomic_store_explicit(&p->stop, true, memory_order_release);
    unlock_and_signal(p);
    pthread_join(p->thread, NULL);
    progress_free(p);
}

void holmes_progress_wake(struct holmes_progress *p)
{
    pthread_mutex_lock(&p->lock);
    unlock_and_signal(p);
}

double holmes_progress_cpu_seconds(const struct holmes_progress *p)
{
    struct timespec ts = {0};
    clockid_t clock;

    if (pthread_getcpuclockid(p->thread, &clock) == 0)
        clock_gettime(clock, &ts);
    return (double)ts.tv_sec + (double)ts.tv_nsec * 1e-9;
}

void holmes_progress_submit(struct holmes_progress *p, struct holmes_op *op)
{
    pthread_mutex_lock(&p->lock);
    holmes_list_append(&p->incoming, &op->node);
    unlock_and_signal(p);
}

void holmes_progress_cancel(struct holmes_progress *p, struct holmes_net_comm *c, int rc)
{
    pthread_mutex_lock(&p->lock);
    c->cancel = rc;
    c->answered = false;
    holmes_list_append(&p->requests, &c->in_requests);
    unlock_and_signal(p);
    pthread_mutex_lock(&p->lock);
    while (!c->answered)
        pthread_cond_wait(&p->answered, &p->lock);
    pthread_mutex_unlock(&p->lock);
}
