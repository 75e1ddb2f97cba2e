/* Signals that ask a rank to end: SIGTERM, SIGINT, SIGUSR1. A thread hears them, so that a rank
 * that computes or waits answers at once; all other threads block them, and no system call of
 * theirs is interrupted. */
#include "rank_priv.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "clock.h"
#include "launch.h"
#include "log.h"

#define NO_SIGNAL 0 /* in place of a signal's number: the listener ends */

static const int heard[] = {SIGTERM, SIGINT, SIGUSR1};
static int signal_out = -1; /* write end, for the handler */

static void on_signal(int sig)
{
    unsigned char byte = (unsigned char)sig;
    int saved = errno;

    if (write(signal_out, &byte, 1) < 0)
        byte = 0; /* full of signals that nobody has read yet: nothing is lost */
    errno = saved;
}

/* The others are told why, when they can be. */
static void end_at_once(struct rank *r, int sig, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
static void end_at_once(struct rank *r, int sig, const char *fmt, ...)
{
    struct holmes_rdv *rdv = atomic_load(&r->stop.rdv);
    char text[400], sentence[500];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    snprintf(sentence, sizeof sentence, "%s%s", holmes_signal_name(sig), text);
    atomic_store(&r->stop.ending, true);
    if (holmes_rank_may_speak(r))
        holmes_rank_say(r, sentence);
    if (rdv) {
        holmes_rdv_on_abort(rdv, NULL, NULL); /* it is this rank's end */
        holmes_rdv_abort(rdv, sentence);
    }
    if (rdv && r->server)
        holmes_rdv_server_wait(r->server, RANK_BLAME_MS);
    _exit(128 + sig);
}

static void heard_first(struct rank *r, int sig)
{
    struct rank_stop *s = &r->stop;

    if (!r->config->save)
        end_at_once(r, sig, ": ended at once, nothing is saved without --save");
    if (!atomic_load(&s->training))
        end_at_once(r, sig, ": ended before the first step");
    s->deadline = holmes_deadline_ms((uint64_t)r->config->stop_timeout_s * 1000);
    atomic_store(&s->asked, sig);
    if (r->config->launcher_fd >= 0)
        return; /* the launcher has said it */
    fprintf(stderr,
            "holmes-train: rank %d on %s: %s: all ranks finish this step, save and end; a second "
            "one ends at once\n",
            r->rank, r->hosts[r->rank], holmes_signal_name(sig));
}

/* A terminal and a launcher may both deliver what was one signal. */
static bool is_again(const struct rank_stop *s)
{
    return holmes_now_ns() - s->first_ns > HOLMES_SIGNAL_AGAIN_NS;
}

static void hear(struct rank *r, int sig)
{
    struct rank_stop *s = &r->stop;

    if (s->first_ns == 0) {
        s->first_ns = holmes_now_ns();
        heard_first(r, sig);
    } else if (is_again(s)) {
        end_at_once(r, sig, " again: ended at once, what was saved before stays");
    }
}

static int wait_ms(const struct rank_stop *s)
{
    uint64_t now = holmes_now_ns();

    if (s->deadline == UINT64_MAX)
        return -1;
    return s->deadline > now ? (int)((s->deadline - now) / 1000000) + 1 : 0;
}

static void *listen_main(void *arg)
{
    struct rank *r = arg;
    struct rank_stop *s = &r->stop;
    sigset_t set;

    pthread_setname_np(pthread_self(), "holmes-signals");
    sigemptyset(&set);
    for (size_t i = 0; i < sizeof heard / sizeof *heard; i++)
        sigaddset(&set, heard[i]);
    pthread_sigmask(SIG_UNBLOCK, &set, NULL);
    for (;;) {
        struct pollfd fd = {.fd = s->fds[0], .events = POLLIN};
        unsigned char sig;

        if (poll(&fd, 1, wait_ms(s)) > 0) {
            ssize_t n = read(s->fds[0], &sig, 1);

            if (n == 1 && sig == NO_SIGNAL)
                return NULL;
            if (n == 1)
                hear(r, sig);
        }
        if (holmes_deadline_passed(s->deadline))
            end_at_once(r, atomic_load(&s->asked),
                        ": the step and its checkpoint took longer than --stop-timeout %d s; what "
                        "was saved before stays",
                        r->config->stop_timeout_s);
    }
}

/* What whoever started this rank ignores, it ignores. */
static int take_signals(void)
{
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_RESTART}, before;
    sigset_t set;

    sigemptyset(&set);
    for (size_t i = 0; i < sizeof heard / sizeof *heard; i++) {
        sigaddset(&set, heard[i]);
        if (sigaction(heard[i], NULL, &before) != 0)
            return -errno;
        if (before.sa_handler != SIG_IGN && sigaction(heard[i], &action, NULL) != 0)
            return -errno;
    }
    return -pthread_sigmask(SIG_BLOCK, &set, NULL);
}

int holmes_rank_stop_open(struct rank *r)
{
    struct rank_stop *s = &r->stop;
    int rc = pipe2(s->fds, O_CLOEXEC | O_NONBLOCK) == 0 ? 0 : -errno;

    /* Else libinfinipath, which Debian's libfabric pulls in, takes SIGTERM and SIGINT to itself
     * while the plugin opens that, and ends the process with status 1 and no word. */
    setenv("IPATH_NO_BACKTRACE", "1", 0);
    s->deadline = UINT64_MAX;
    signal_out = s->fds[1];
    if (rc == 0)
        rc = take_signals();
    if (rc == 0)
        rc = -pthread_create(&s->thread, NULL, listen_main, r);
    if (rc != 0)
        return holmes_rank_fail(r, HOLMES_EXIT_FAILED, false, "cannot listen for signals: %s",
                                holmes_strerror(rc));
    s->listening = true;
    return 0;
}

void holmes_rank_stop_yield(struct rank *r)
{
    if (atomic_load(&r->stop.ending))
        pthread_join(r->stop.thread, NULL);
}

void holmes_rank_stop_close(struct rank *r)
{
    struct rank_stop *s = &r->stop;
    const bool stopped = r->last_step < r->config->steps || atomic_load(&s->asked);

    if (!s->listening)
        return;
    /* Nothing is left that a late copy of the signal could end. */
    for (size_t i = 0; i < sizeof heard / sizeof *heard; i++)
        signal(heard[i], stopped ? SIG_IGN : SIG_DFL);
    while (write(s->fds[1], &(unsigned char){NO_SIGNAL}, 1) != 1)
        poll(NULL, 0, 1); /* full of signals, which the listener takes out */
    pthread_join(s->thread, NULL);
    /* The pipe stays open: on some thread of a library a handler may still be about to write. */
    s->listening = false;
}
