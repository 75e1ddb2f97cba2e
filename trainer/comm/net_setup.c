/* Steps every pending connection in turn. A round in which nothing moved is followed by a timed
 * wait, 50 microseconds at first and doubling to a millisecond: connecting is rare and its latency
 * is the network's. */
#include "net_setup.h"

#include <errno.h>
#include <stdlib.h>

#include "clock.h"
#include "log.h"

enum { WAIT_MIN_NS = 50 * 1000, WAIT_MAX_NS = 1000 * 1000 };

struct holmes_setup {
    pthread_t thread;
    pthread_mutex_t lock; /* all members; not held during a step */
    pthread_cond_t work;  /* something was added, or stop */
    pthread_cond_t moved; /* a connection left, or a step ended */
    struct holmes_list pending;
    struct holmes_conn *stepping;
    bool stop;
    void (*ready)(void *arg);
    void *arg;
};

/* One step of the connection that has waited longest; true when something moved. Called and returns
 * with the lock held. */
static bool setup_step(struct holmes_setup *s)
{
    struct holmes_conn *c = holmes_list_entry(s->pending.next, struct holmes_conn, in_setup);
    int rc, state;

    s->stepping = c;
    pthread_mutex_unlock(&s->lock);
    rc = holmes_conn_step(c);
    state = atomic_load(&c->state);
    pthread_mutex_lock(&s->lock);
    s->stepping = NULL;
    holmes_list_remove(&c->in_setup);
    if (state == HOLMES_CONN_READY || state == HOLMES_CONN_FAILED)
        s->ready(s->arg);
    else
        holmes_list_append(&s->pending, &c->in_setup);
    pthread_cond_broadcast(&s->moved);
    return rc != -EAGAIN;
}

static bool setup_round(struct holmes_setup *s)
{
    bool moved = false;
    int n = 0;

    holmes_list_each(c, tmp, &s->pending, struct holmes_conn, in_setup) n++;
    while (n-- > 0 && !holmes_list_empty(&s->pending))
        moved |= setup_step(s);
    return moved;
}

static void *setup_main(void *arg)
{
    struct holmes_setup *s = arg;
    uint64_t wait_ns = WAIT_MIN_NS, until;
    struct timespec ts;

    pthread_mutex_lock(&s->lock);
    while (!s->stop) {
        if (holmes_list_empty(&s->pending)) {
            pthread_cond_wait(&s->work, &s->lock);
            wait_ns = WAIT_MIN_NS;
            continue;
        }
        if (setup_round(s)) {
            wait_ns = WAIT_MIN_NS;
            continue;
        }
        until = holmes_now_ns() + wait_ns;
        ts = (struct timespec){(time_t)(until / 1000000000u), (long)(until % 1000000000u)};
        pthread_cond_timedwait(&s->work, &s->lock, &ts);
        wait_ns = wait_ns * 2 > WAIT_MAX_NS ? WAIT_MAX_NS : wait_ns * 2;
    }
    pthread_mutex_unlock(&s->lock);
    return NULL;
}

int holmes_setup_start(void (*ready)(void *arg), void *arg, struct holmes_setup **out)
{
    struct holmes_setup *s = calloc(1, sizeof *s);
    pthread_condattr_t mono;
    int rc;

    if (!s)
        return -ENOMEM;
    s->ready = ready;
    s->arg = arg;
    holmes_list_init(&s->pending);
    pthread_mutex_init(&s->lock, NULL);
    pthread_condattr_init(&mono);
    pthread_condattr_setclock(&mono, CLOCK_MONOTONIC);
    pthread_cond_init(&s->work, &mono);
    pthread_cond_init(&s->moved, &mono);
    pthread_condattr_destroy(&mono);
    rc = pthread_create(&s->thread, NULL, setup_main, s);
    if (rc) {
        pthread_cond_destroy(&s->moved);
        pthread_cond_destroy(&s->work);
        pthread_mutex_destroy(&s->lock);
        free(s);
        return -rc;
    }
    *out = s;
    return 0;
}

void holmes_setup_stop(struct holmes_setup *s)
{
    if (!s)
        return;
    pthread_mutex_lock(&s->lock);
    s->stop = true;
    pthread_cond_signal(&s->work);
    pthread_mutex_unlock(&s->lock);
    pthread_join(s->thread, NULL);
    pthread_cond_destroy(&s->moved);
    pthread_cond_destroy(&s->work);
    pthread_mutex_destroy(&s->lock);
    free(s);
}

void holmes_setup_add(struct holmes_setup *s, struct holmes_conn *c)
{
    pthread_mutex_lock(&s->lock);
    holmes_list_append(&s->pending, &c->in_setup);
    pthread_cond_signal(&s->work);
    pthread_mutex_unlock(&s->lock);
}

void holmes_setup_remove(struct holmes_setup *s, struct holmes_conn *c)
{
    pthread_mutex_lock(&s->lock);
    while (s->stepping == c)
        pthread_cond_wait(&s->moved, &s->lock);
    holmes_list_remove(&c->in_setup);
    pthread_mutex_unlock(&s->lock);
}

int holmes_setup_wait(struct holmes_setup *s, struct holmes_conn *c)
{
    int rc;

    pthread_mutex_lock(&s->lock);
    while (!holmes_list_empty(&c->in_setup))
        pthread_cond_wait(&s->moved, &s->lock);
    rc = atomic_load(&c->state) == HOLMES_CONN_READY ? 0 : c->error;
    pthread_mutex_unlock(&s->lock);
    return rc;
}
