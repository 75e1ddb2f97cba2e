#include "held.h"

#include <errno.h>
#include <signal.h>
#include <time.h>

#include "conn.h"
#include "log.h"

#define IDLE_TICKS 8 /* in a row with nothing held: the thread sleeps until it is woken */

void held_init(struct held *h, uint64_t wait_ns)
{
    pthread_condattr_t attr;

    h->wait_ns = wait_ns;
    holmes_list_init(&h->conns);
    holmes_list_init(&h->due);
    pthread_mutex_init(&h->lock, NULL);
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&h->wake, &attr);
    pthread_cond_init(&h->settled, NULL);
    pthread_cond_init(&h->gone, NULL);
    pthread_condattr_destroy(&attr);
}

void held_fini(struct held *h)
{
    held_rest(h);
    pthread_cond_destroy(&h->gone);
    pthread_cond_destroy(&h->settled);
    pthread_cond_destroy(&h->wake);
    pthread_mutex_destroy(&h->lock);
}

/* Lock held, but not while a connection is settled: one that fails may take its time, and the
 * others shall go on. One that its caller is using sends for itself, or is here again at the next
 * tick, as is one that cannot send all of it now. */
static void send_for(struct held *h, struct holmes_conn *c)
{
    bool sent;

    holmes_list_remove(&c->held_link);
    if (pthread_mutex_trylock(&c->lock) != 0) {
        holmes_list_append(&h->conns, &c->held_link);
        return;
    }
    h->settling = c;
    pthread_mutex_unlock(&h->lock);
    sent = conn_settle(c);
    pthread_mutex_lock(&h->lock);
    h->settling = NULL;
    c->held = !sent;
    if (c->held)
        holmes_list_append(&h->conns, &c->held_link);
    pthread_mutex_unlock(&c->lock);
    pthread_cond_broadcast(&h->settled);
}

/* Lock held. */
static bool holds_nothing(const struct held *h)
{
    return holmes_list_empty(&h->conns) && holmes_list_empty(&h->due) && !h->settling;
}

static void wait_a_tick(struct held *h)
{
    struct timespec until;

    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_nsec += (long)(h->wait_ns % 1000000000u);
    until.tv_sec += (time_t)(h->wait_ns / 1000000000u) + until.tv_nsec / 1000000000;
    until.tv_nsec %= 1000000000;
    while (!h->stop && pthread_cond_timedwait(&h->wake, &h->lock, &until) != ETIMEDOUT)
        continue;
}

static void *held_main(void *arg)
{
    struct held *h = arg;
    int idle = 0;

    pthread_mutex_lock(&h->lock);
    while (!h->stop) {
        if (idle == IDLE_TICKS) {
            h->asleep = true;
            pthread_cond_wait(&h->wake, &h->lock);
            h->asleep = false;
            idle = 0;
            continue;
        }
        wait_a_tick(h);
        idle = holmes_list_empty(&h->conns) ? idle + 1 : 0;
        holmes_list_splice(&h->due, &h->conns);
        while (!holmes_list_empty(&h->due))
            send_for(h, holmes_list_entry(h->due.next, struct holmes_conn, held_link));
    }
    h->ended = true;
    pthread_cond_broadcast(&h->gone);
    pthread_mutex_unlock(&h->lock);
    return NULL;
}

/* Lock held. One that has ended needs it no more. */
static void bury(struct held *h)
{
    if (!h->ended)
        return;
    pthread_join(h->thread, NULL);
    h->running = h->stop = h->ended = false;
}

/* Lock held. */
static bool running(struct held *h)
{
    sigset_t all, before;

    bury(h);
    if (h->stop) { /* it has not seen that yet, and goes on */
        h->stop = false;
        pthread_cond_broadcast(&h->gone);
    }
    if (h->running)
        return true;
    sigfillset(&all); /* the host program's handlers run on its own threads */
    pthread_sigmask(SIG_SETMASK, &all, &before);
    h->running = pthread_create(&h->thread, NULL, held_main, h) == 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (!h->running) {
        holmes_info(NET, "no thread for what is held back: nothing is");
        h->wait_ns = 0;
    }
    return h->running;
}

bool held_add(struct held *h, struct holmes_conn *c)
{
    if (c->held)
        return true;
    pthread_mutex_lock(&h->lock);
    c->held = h->wait_ns > 0 && running(h);
    if (c->held) {
        holmes_list_append(&h->conns, &c->held_link);
        if (h->asleep)
            pthread_cond_signal(&h->wake);
    }
    pthread_mutex_unlock(&h->lock);
    return c->held;
}

void held_remove(struct held *h, struct holmes_conn *c)
{
    pthread_mutex_lock(&h->lock);
    while (h->settling == c)
        pthread_cond_wait(&h->settled, &h->lock);
    holmes_list_remove(&c->held_link);
    pthread_mutex_unlock(&h->lock);
}

void held_rest(struct held *h)
{
    pthread_mutex_lock(&h->lock);
    if (h->running && holds_nothing(h)) {
        h->stop = true;
        pthread_cond_signal(&h->wake);
        while (h->stop && !h->ended)
            pthread_cond_wait(&h->gone, &h->lock);
        bury(h);
    }
    pthread_mutex_unlock(&h->lock);
}
