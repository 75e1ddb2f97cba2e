/* The loop over many children: one poll for all of their pipes and for signals, which come through
 * a signalfd. */
#include "tool/fanout.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "clock.h"
#include "progress.h"
#include "tool/child.h"
#include "tool/launcher.h"

#define LINE_CAP      (64u << 10)
#define READ_BYTES    (16u << 10)
#define DRAIN_READS   128 /* more than the largest pipe holds */
#define KILL_AFTER_MS 500
#define LOSE_AFTER_MS 2000 /* a killed process that does not end hangs in the kernel */

struct host {
    struct holmes_fanout_result r;
    struct holmes_child child;
    uint64_t deadline_ns;             /* 0: none */
    enum holmes_fanout_state verdict; /* why it is being ended; RUNNING: it is not */
    uint64_t kill_ns, lose_ns;        /* then; 0: not yet */
    size_t out_room, err_room;
    char *in; /* to be sent: in_len bytes from in_at */
    size_t in_at, in_len, in_room;
    bool hang_up;
};

struct holmes_fanout {
    struct holmes_fanout_options o;
    struct holmes_launcher launcher;
    struct host *hosts;
    int n, first, next, running, ended, failed; /* before `first` all are at their end */
    int sigfd, signal;
    sigset_t old_mask;
    struct pollfd *polls;
    int *poll_hosts;
    struct holmes_progress progress;
};

/* --- life ------------------------------------------------------------------------------------- */

static void room_for_descriptors(int at_once)
{
    struct rlimit limit;
    rlim_t wanted = (rlim_t)at_once * 3 + 64;

    if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= wanted)
        return;
    limit.rlim_cur = limit.rlim_max < wanted ? limit.rlim_max : wanted;
    setrlimit(RLIMIT_NOFILE, &limit);
}

static int take_signals(struct holmes_fanout *f)
{
    static const int caught[] = {SIGCHLD, SIGINT, SIGTERM, SIGHUP};
    sigset_t set, blocked;

    sigemptyset(&set);
    for (size_t i = 0; i < sizeof caught / sizeof caught[0]; i++)
        sigaddset(&set, caught[i]);
    f->sigfd = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
    if (f->sigfd < 0)
        return -errno;
    blocked = set;
    sigaddset(&blocked, SIGPIPE);
    sigprocmask(SIG_BLOCK, &blocked, &f->old_mask);
    return 0;
}

int holmes_fanout_create(const struct holmes_fanout_options *o, const char *const *hosts, int n,
                         struct holmes_fanout **out, char *why, size_t why_len)
{
    struct holmes_fanout *f = calloc(1, sizeof *f);
    int rc = -ENOMEM;

    if (!f)
        goto no_memory;
    f->o = *o;
    f->sigfd = -1;
    if (f->o.at_once <= 0)
        f->o.at_once = HOLMES_FANOUT_AT_ONCE;
    if (f->o.out_cap == 0)
        f->o.out_cap = o->on_line ? LINE_CAP : HOLMES_FANOUT_OUT_CAP;
    rc = holmes_launcher_parse(o->launcher ? o->launcher : HOLMES_LAUNCHER_SSH, &f->launcher, why,
                               why_len);
    if (rc != 0)
        goto fail;
    rc = -ENOMEM;
    f->hosts = calloc((size_t)n + 1, sizeof *f->hosts);
    f->polls = calloc(3 * (size_t)f->o.at_once + 1, sizeof *f->polls);
    f->poll_hosts = calloc(3 * (size_t)f->o.at_once + 1, sizeof *f->poll_hosts);
    if (!f->hosts || !f->polls || !f->poll_hosts)
        goto no_memory;
    for (f->n = 0; f->n < n; f->n++) {
        struct host *h = &f->hosts[f->n];

        *h = (struct host){.child = {0, -1, -1, -1}, .verdict = HOLMES_FANOUT_RUNNING};
        rc = holmes_launcher_check_host(hosts[f->n], why, why_len);
        if (rc != 0)
            goto fail;
        h->r = (struct holmes_fanout_result){
            .host = strdup(hosts[f->n]), .out = calloc(1, 1), .err = calloc(1, 1)};
        rc = -ENOMEM;
        if (!h->r.host || !h->r.out || !h->r.err) {
            f->n++;
            goto no_memory;
        }
    }
    room_for_descriptors(f->o.at_once < n ? f->o.at_once : n);
    rc = take_signals(f);
    if (rc != 0) {
        snprintf(why, why_len, "signalfd: %s", strerror(-rc));
        goto fail;
    }
    if (o->label)
        holmes_progress_init(&f->progress, stderr, o->label, (uint64_t)n, true);
    *out = f;
    return 0;
no_memory:
    snprintf(why, why_len, "out of memory");
fail:
    holmes_fanout_destroy(f);
    return rc;
}

/* Output that is not wanted any more: a child that writes on is told by SIGPIPE. */
static void close_pipes(struct host *h)
{
    holmes_child_close(&h->child.in);
    holmes_child_close(&h->child.out);
    holmes_child_close(&h->child.err);
    free(h->in);
    h->in = NULL;
    h->in_at = h->in_len = h->in_room = 0;
}

static void host_finish(struct holmes_fanout *f, struct host *h, enum holmes_fanout_state state,
                        int code)
{
    close_pipes(h);
    if (h->r.state == HOLMES_FANOUT_RUNNING)
        f->running--;
    h->r.state = state;
    h->r.code = code;
    f->ended++;
    f->failed += state != HOLMES_FANOUT_DONE;
    if (f->o.on_end)
        f->o.on_end(f->o.ctx, f, (int)(h - f->hosts));
}

static void host_end(struct host *h, enum holmes_fanout_state verdict)
{
    if (h->r.state != HOLMES_FANOUT_RUNNING || h->verdict != HOLMES_FANOUT_RUNNING)
        return;
    h->verdict = verdict;
    close_pipes(h);
    holmes_child_signal(&h->child, SIGTERM);
    h->kill_ns = holmes_deadline_ms(KILL_AFTER_MS);
}

static void host_start(struct holmes_fanout *f, struct host *h)
{
    char **argv = holmes_launcher_argv(&f->launcher, h->r.host, f->o.argv);
    int rc =
        argv ? holmes_child_spawn(argv, f->o.on_line != NULL, &f->old_mask, &h->child) : -ENOMEM;

    free(argv);
    if (rc != 0) {
        host_finish(f, h, HOLMES_FANOUT_FAILED, rc);
        return;
    }
    h->r.state = HOLMES_FANOUT_RUNNING;
    f->running++;
    h->deadline_ns = f->o.deadline_ms ? holmes_deadline_ms(f->o.deadline_ms) : 0;
}

void holmes_fanout_stop(struct holmes_fanout *f, int host)
{
    struct host *h = &f->hosts[host];

    if (h->r.state == HOLMES_FANOUT_WAITING)
        host_finish(f, h, HOLMES_FANOUT_STOPPED, 0);
    else
        host_end(h, HOLMES_FANOUT_STOPPED);
}

static void stop_all(struct holmes_fanout *f)
{
    for (int i = 0; i < f->n; i++)
        holmes_fanout_stop(f, i);
}

/* --- what the hosts say ----------------------------------------------------------------------- */

static bool grow(char **buf, size_t *room, size_t wanted)
{
    size_t size = *room ? *room : 1024;
    char *grown;

    while (size < wanted)
        size *= 2;
    if (size == *room)
        return true;
    grown = realloc(*buf, size);
    if (!grown)
        return false;
    *buf = grown;
    *room = size;
    return true;
}

/* Gives the complete lines in the buffer to the caller, and the rest too at the end. */
static void give_lines(struct holmes_fanout *f, struct host *h, bool at_end)
{
    size_t from = 0;

    while (from < h->r.out_len && h->verdict == HOLMES_FANOUT_RUNNING) {
        char *line = h->r.out + from, *newline = memchr(line, '\n', h->r.out_len - from);
        size_t len = newline ? (size_t)(newline - line) : h->r.out_len - from;

        if (!newline && !at_end)
            break;
        line[len] = '\0';
        from += len + (newline != NULL);
        f->o.on_line(f->o.ctx, f, (int)(h - f->hosts), line, len);
    }
    h->r.out_len -= from;
    memmove(h->r.out, h->r.out + from, h->r.out_len);
    h->r.out[h->r.out_len] = '\0';
}

static void take_out(struct holmes_fanout *f, struct host *h, const char *bytes, size_t n)
{
    bool fits;

    if (!grow(&h->r.out, &h->out_room, h->r.out_len + n + 1)) {
        host_end(h, HOLMES_FANOUT_FLOODED);
        return;
    }
    memcpy(h->r.out + h->r.out_len, bytes, n);
    h->r.out_len += n;
    h->r.out[h->r.out_len] = '\0';
    if (f->o.on_line)
        give_lines(f, h, false);
    fits = h->r.out_len <= f->o.out_cap;
    if (!fits) {
        h->r.out_len = f->o.out_cap;
        h->r.out[h->r.out_len] = '\0';
        host_end(h, HOLMES_FANOUT_FLOODED);
    }
}

/* The last words of a program tell more than its first. */
static void take_err(struct host *h, const char *bytes, size_t n)
{
    size_t cap = HOLMES_FANOUT_ERR_CAP, lost;

    if (n > cap) {
        bytes += n - cap;
        n = cap;
    }
    lost = h->r.err_len + n > cap ? h->r.err_len + n - cap : 0;
    if (!grow(&h->r.err, &h->err_room, h->r.err_len - lost + n + 1))
        return;
    memmove(h->r.err, h->r.err + lost, h->r.err_len - lost);
    h->r.err_len -= lost;
    memcpy(h->r.err + h->r.err_len, bytes, n);
    h->r.err_len += n;
    h->r.err[h->r.err_len] = '\0';
}

/* One read; false when there is nothing more for now. */
static bool host_read(struct holmes_fanout *f, struct host *h, bool err)
{
    int *fd = err ? &h->child.err : &h->child.out;
    char bytes[READ_BYTES];
    ssize_t n;

    if (*fd < 0)
        return false;
    n = read(*fd, bytes, sizeof bytes);
    if (n < 0)
        return errno == EINTR;
    if (n == 0)
        holmes_child_close(fd);
    else if (err)
        take_err(h, bytes, (size_t)n);
    else
        take_out(f, h, bytes, (size_t)n);
    return n > 0;
}

static void host_write(struct host *h)
{
    while (h->in_len > 0 && h->child.in >= 0) {
        ssize_t n = write(h->child.in, h->in + h->in_at, h->in_len);

        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && errno == EAGAIN)
            return;
        if (n < 0) {
            sigset_t pipe;

            sigemptyset(&pipe);
            sigaddset(&pipe, SIGPIPE);
            sigtimedwait(&pipe, NULL, &(struct timespec){0});
            holmes_child_close(&h->child.in);
            return;
        }
        h->in_at += (size_t)n;
        h->in_len -= (size_t)n;
    }
    h->in_at = 0;
    if (h->hang_up)
        holmes_child_close(&h->child.in);
}

int holmes_fanout_send(struct holmes_fanout *f, int host, const char *line)
{
    struct host *h = &f->hosts[host];
    size_t len = strlen(line);

    if (h->child.in < 0 || h->hang_up)
        return -EPIPE;
    if (h->in_at > 0)
        memmove(h->in, h->in + h->in_at, h->in_len);
    h->in_at = 0;
    if (!grow(&h->in, &h->in_room, h->in_len + len + 1))
        return -ENOMEM;
    memcpy(h->in + h->in_len, line, len);
    h->in[h->in_len + len] = '\n';
    h->in_len += len + 1;
    host_write(h);
    return h->child.in < 0 ? -EPIPE : 0;
}

void holmes_fanout_hang_up(struct holmes_fanout *f, int host)
{
    f->hosts[host].hang_up = true;
    host_write(&f->hosts[host]);
}

/* --- one turn of the loop --------------------------------------------------------------------- */

static void host_ended(struct holmes_fanout *f, struct host *h)
{
    int status;

    for (int i = 0; i < DRAIN_READS && host_read(f, h, false); i++)
        ;
    for (int i = 0; i < DRAIN_READS && host_read(f, h, true); i++)
        ;
    if (f->o.on_line)
        give_lines(f, h, true);
    status = holmes_child_reap(&h->child);
    if (h->verdict != HOLMES_FANOUT_RUNNING)
        host_finish(f, h, h->verdict, 0);
    else if (WIFSIGNALED(status))
        host_finish(f, h, HOLMES_FANOUT_SIGNALLED, WTERMSIG(status));
    else if (WEXITSTATUS(status) != 0)
        host_finish(f, h, HOLMES_FANOUT_EXITED, WEXITSTATUS(status));
    else
        host_finish(f, h, HOLMES_FANOUT_DONE, 0);
}

/* Deadlines, and what follows them. Returns the next moment to look again, or `until`. */
static uint64_t look_at_clock(struct holmes_fanout *f, uint64_t until)
{
    uint64_t now = holmes_now_ns();

    while (f->first < f->next && f->hosts[f->first].r.state > HOLMES_FANOUT_RUNNING)
        f->first++;
    for (int i = f->first; i < f->next; i++) {
        struct host *h = &f->hosts[i];
        uint64_t at;

        if (h->r.state != HOLMES_FANOUT_RUNNING)
            continue;
        if (h->deadline_ns && now >= h->deadline_ns)
            host_end(h, HOLMES_FANOUT_LATE);
        if (h->kill_ns && !h->lose_ns && now >= h->kill_ns) {
            holmes_child_signal(&h->child, SIGKILL);
            h->lose_ns = holmes_deadline_ms(LOSE_AFTER_MS);
        }
        if (h->lose_ns && now >= h->lose_ns) {
            h->child.pid = 0;
            host_finish(f, h, h->verdict, 0);
            continue;
        }
        at = h->lose_ns ? h->lose_ns : h->kill_ns ? h->kill_ns : h->deadline_ns;
        if (at && at < until)
            until = at;
    }
    return until;
}

static void take_signal(struct holmes_fanout *f)
{
    struct signalfd_siginfo info;

    while (read(f->sigfd, &info, sizeof info) == (ssize_t)sizeof info) {
        if (info.ssi_signo == SIGCHLD || f->signal)
            continue;
        f->signal = (int)info.ssi_signo;
        stop_all(f);
    }
    for (int i = f->first; i < f->next; i++) {
        struct host *h = &f->hosts[i];

        if (h->r.state == HOLMES_FANOUT_RUNNING && holmes_child_ended(&h->child))
            host_ended(f, h);
    }
}

static void poll_add(struct holmes_fanout *f, int *n, int fd, short events, int host)
{
    if (fd < 0)
        return;
    f->polls[*n] = (struct pollfd){.fd = fd, .events = events};
    f->poll_hosts[(*n)++] = host;
}

static void turn(struct holmes_fanout *f, uint64_t until)
{
    uint64_t now;
    int n = 0, wait_ms;

    until = look_at_clock(f, until);
    now = holmes_now_ns();
    wait_ms = until > now ? (int)((until - now + 999999) / 1000000) : 0;
    poll_add(f, &n, f->sigfd, POLLIN, -1);
    for (int i = f->first; i < f->next; i++) {
        struct host *h = &f->hosts[i];

        if (h->r.state != HOLMES_FANOUT_RUNNING)
            continue;
        poll_add(f, &n, h->child.out, POLLIN, i);
        poll_add(f, &n, h->child.err, POLLIN, i);
        if (h->in_len > 0)
            poll_add(f, &n, h->child.in, POLLOUT, i);
    }
    if (poll(f->polls, (nfds_t)n, wait_ms) <= 0)
        return;
    for (int i = 1; i < n; i++) {
        struct host *h = &f->hosts[f->poll_hosts[i]];
        int fd = f->polls[i].fd;

        /* A call back may have closed it meanwhile. */
        if (!f->polls[i].revents)
            continue;
        if (fd == h->child.out)
            host_read(f, h, false);
        else if (fd == h->child.err)
            host_read(f, h, true);
        else if (fd == h->child.in)
            host_write(h);
    }
    if (f->polls[0].revents)
        take_signal(f);
}

int holmes_fanout_step(struct holmes_fanout *f, int timeout_ms)
{
    while (f->next < f->n && f->running < f->o.at_once && !f->signal) {
        struct host *h = &f->hosts[f->next++];

        if (h->r.state == HOLMES_FANOUT_WAITING)
            host_start(f, h);
    }
    if (f->ended < f->n)
        turn(f, holmes_deadline_ms((uint64_t)timeout_ms));
    while (f->signal && f->ended < f->n)
        turn(f, holmes_deadline_ms(1000));
    if (f->o.label) {
        if (f->failed)
            holmes_progress_update(&f->progress, (uint64_t)f->ended, "%d failed", f->failed);
        else
            holmes_progress_update(&f->progress, (uint64_t)f->ended, "%s", "");
        if (f->ended == f->n) {
            holmes_progress_finish(&f->progress);
            f->o.label = NULL;
        }
    }
    return f->signal ? -EINTR : f->ended < f->n ? -EAGAIN : 0;
}

int holmes_fanout_run(struct holmes_fanout *f)
{
    int rc;

    do
        rc = holmes_fanout_step(f, 1000);
    while (rc == -EAGAIN);
    return rc;
}

void holmes_fanout_destroy(struct holmes_fanout *f)
{
    if (!f)
        return;
    f->o.on_line = NULL;
    f->o.on_end = NULL;
    stop_all(f);
    while (f->running > 0)
        turn(f, holmes_deadline_ms(1000));
    if (f->sigfd >= 0) {
        close(f->sigfd);
        sigprocmask(SIG_SETMASK, &f->old_mask, NULL);
    }
    for (int i = 0; i < f->n; i++) {
        free((char *)f->hosts[i].r.host);
        free(f->hosts[i].r.out);
        free(f->hosts[i].r.err);
        close_pipes(&f->hosts[i]);
    }
    holmes_launcher_fini(&f->launcher);
    free(f->hosts);
    free(f->polls);
    free(f->poll_hosts);
    free(f);
}

/* --- results ---------------------------------------------------------------------------------- */

int holmes_fanout_signal(const struct holmes_fanout *f)
{
    return f->signal;
}

int holmes_fanout_hosts(const struct holmes_fanout *f)
{
    return f->n;
}

const struct holmes_fanout_result *holmes_fanout_result(const struct holmes_fanout *f, int host)
{
    return &f->hosts[host].r;
}

/* The last line that is not blank, harmless. */
static void last_words(const struct holmes_fanout_result *r, char *buf, size_t len)
{
    size_t end = r->err_len, from;

    while (end > 0 && (unsigned char)r->err[end - 1] <= ' ')
        end--;
    for (from = end; from > 0 && r->err[from - 1] != '\n'; from--)
        ;
    snprintf(buf, len, "%s%.*s", end > from ? ": " : "", (int)(end - from), r->err + from);
    for (char *p = buf; *p; p++)
        if ((unsigned char)*p < ' ' || *p == 0x7f)
            *p = '?';
}

void holmes_fanout_explain(const struct holmes_fanout *f, int host, char *buf, size_t len)
{
    const struct holmes_fanout_result *r = &f->hosts[host].r;
    char words[400];

    last_words(r, words, sizeof words);
    switch (r->state) {
    case HOLMES_FANOUT_WAITING:
        snprintf(buf, len, "not started yet");
        break;
    case HOLMES_FANOUT_RUNNING:
        snprintf(buf, len, "running");
        break;
    case HOLMES_FANOUT_DONE:
        snprintf(buf, len, "done");
        break;
    case HOLMES_FANOUT_EXITED:
        snprintf(buf, len, "exit status %d%s", r->code, words);
        break;
    case HOLMES_FANOUT_SIGNALLED:
        snprintf(buf, len, "ended by signal %d (%s)%s", r->code, strsignal(r->code), words);
        break;
    case HOLMES_FANOUT_LATE:
        snprintf(buf, len, "not done after %g s%s", (double)f->o.deadline_ms / 1000, words);
        break;
    case HOLMES_FANOUT_FLOODED:
        snprintf(buf, len, "said more than %zu bytes%s", f->o.out_cap,
                 f->o.on_line ? " in one line" : "");
        break;
    case HOLMES_FANOUT_FAILED:
        snprintf(buf, len, "cannot start %s: %s", f->launcher.words[0], strerror(-r->code));
        break;
    case HOLMES_FANOUT_STOPPED:
        snprintf(buf, len, "stopped");
        break;
    }
}
