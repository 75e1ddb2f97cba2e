/* Forking, commanding and watching rank processes. A rank that dies ends its socket; a rank that
 * hangs stops counting in the page it shares with us; either way the team fails and all of its
 * processes are killed. They also die with us, by PR_SET_PDEATHSIG. */
#include "team.h"

#include <arpa/inet.h>
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "clock.h"
#include "env.h"
#include "log.h"
#include "rendezvous.h"
#include "runner_nccl.h"

#define BEAT_STRIDE 64  /* bytes: one cache line for each rank */
#define GRACE_MS    500 /* after one rank's error, for the death that may have caused it */
#define EXIT_MS     10000

struct member {
    pid_t pid; /* 0: reaped */
    int fd;    /* our end; -1: closed */
    bool owes; /* an answer */
};

struct holmes_team {
    struct holmes_team_attr attr;
    struct member members[HOLMES_BENCH_RANKS_MAX];
    int listen_fds[HOLMES_BENCH_RANKS_MAX];
    struct sockaddr_in listen_addrs[HOLMES_BENCH_RANKS_MAX];
    uint64_t token;
    char *beats;
    float *message_us; /* (ranks, max_iters); sendrecv only */
    struct holmes_rdv_server *rdv;
    int error;
    bool died; /* a rank, which explains the errors of its neighbours */
    char why[768], about[400];
    struct holmes_team *next;
};

/* Every team alive: a child must close what its siblings use, or their end is never seen. */
static struct holmes_team *teams;

static atomic_uint_fast64_t *beat_of(const struct holmes_team *t, int rank)
{
    return (atomic_uint_fast64_t *)(void *)(t->beats + (size_t)rank * BEAT_STRIDE);
}

static float *message_us_of(const struct holmes_team *t, int rank)
{
    return t->message_us ? t->message_us + (size_t)rank * t->attr.rank.max_iters : NULL;
}

const float *holmes_team_message_us(const struct holmes_team *t, int rank)
{
    return message_us_of(t, rank);
}

static uint64_t beats_of(const struct holmes_team *t)
{
    uint64_t sum = 0;

    for (int i = 0; i < t->attr.rank.nranks; i++)
        sum += atomic_load_explicit(beat_of(t, i), memory_order_relaxed);
    return sum;
}

static int team_fail(struct holmes_team *t, int rc, int rank, const char *what)
{
    if (t->error)
        return t->error;
    t->error = rc;
    if (rank >= 0)
        snprintf(t->why, sizeof t->why, "%s: rank %d: %s", t->attr.label, rank, what);
    else
        snprintf(t->why, sizeof t->why, "%s: %s", t->attr.label, what);
    return rc;
}

pid_t holmes_team_pid(const struct holmes_team *t, int rank)
{
    return t->members[rank].pid;
}

const char *holmes_team_why(const struct holmes_team *t)
{
    return t->why;
}

const char *holmes_team_about(const struct holmes_team *t)
{
    return t->about;
}

/* --- birth ------------------------------------------------------------------------------------ */

/* On all addresses of the rank: on loopback there is one. */
static int listen_at(struct holmes_team *t, int rank)
{
    struct sockaddr_in *sa = &t->listen_addrs[rank];
    socklen_t len = sizeof *sa;
    int rc = holmes_link_enter(t->attr.rank.link, rank), fd;

    if (rc != 0)
        return rc;
    fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return -errno;
    t->listen_fds[rank] = fd;
    *sa = (struct sockaddr_in){.sin_family = AF_INET,
                               .sin_addr.s_addr =
                                   htonl(t->attr.rank.link ? INADDR_ANY : INADDR_LOOPBACK)};
    if (bind(fd, (struct sockaddr *)sa, len) != 0 || listen(fd, 64) != 0 ||
        getsockname(fd, (struct sockaddr *)sa, &len) != 0)
        return -errno;
    return 0;
}

static void close_team_fds(struct holmes_team *t, int but_listen)
{
    for (int i = 0; i < t->attr.rank.nranks; i++) {
        if (t->members[i].fd >= 0)
            close(t->members[i].fd);
        t->members[i].fd = -1;
        if (t->listen_fds[i] >= 0 && t->listen_fds[i] != but_listen) {
            close(t->listen_fds[i]);
            t->listen_fds[i] = -1;
        }
    }
}

/* Before the plugin is loaded, and of this process alone. */
static void settings_apply(const struct holmes_team_attr *a, const struct holmes_rank_attr *rank)
{
    enum holmes_log_level level;

    if (a->rank.through_nccl && a->rank.plugin)
        holmes_nccl_environ(rank);
    for (int i = 0; i < a->nsettings; i++)
        putenv((char *)a->settings[i]);
    if (holmes_log_level_parse(holmes_env_string(HOLMES_ENV_LOG), &level) == 0)
        holmes_log_set_level(level);
}

static _Noreturn void child_main(struct holmes_team *t, int rank, int fd, pid_t parent)
{
    struct holmes_rank_attr attr = t->attr.rank;
    int next =
        attr.collective == HOLMES_SENDRECV ? holmes_rank_partner(rank) : (rank + 1) % attr.nranks;

    attr.rank = rank;
    attr.listen_fd = t->listen_fds[rank];
    attr.next = t->listen_addrs[next];
    attr.next_rank = next;
    attr.token = t->token;
    attr.beat = beat_of(t, rank);
    attr.message_us = message_us_of(t, rank);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent)
        _exit(1);
    /* The parent hears the terminal and ends us in order. */
    signal(SIGINT, SIG_IGN);
    for (struct holmes_team *other = teams; other; other = other->next)
        close_team_fds(other, attr.listen_fd);
    if (holmes_link_environ(attr.link) != 0)
        _exit(1);
    settings_apply(&t->attr, &attr);
    exit(holmes_rank_serve(&attr, fd));
}

static int team_fork_rank(struct holmes_team *t, int rank)
{
    pid_t parent = getpid(), pid;
    int pair[2];

    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) != 0)
        return -errno;
    pid = fork();
    if (pid == 0) {
        close(pair[0]);
        child_main(t, rank, pair[1], parent);
    }
    close(pair[1]);
    if (pid < 0) {
        close(pair[0]);
        return -errno;
    }
    t->members[rank] = (struct member){.pid = pid, .fd = pair[0]};
    return 0;
}

static void *shared_map(size_t bytes)
{
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE,
                   -1, 0);

    return p == MAP_FAILED ? NULL : p;
}

static size_t message_us_bytes(const struct holmes_team *t)
{
    return (size_t)t->attr.rank.nranks * t->attr.rank.max_iters * sizeof *t->message_us;
}

static int team_birth(struct holmes_team *t)
{
    int rc = getrandom(&t->token, sizeof t->token, 0) == sizeof t->token ? 0 : -EIO;

    t->beats = shared_map(BEAT_STRIDE * HOLMES_BENCH_RANKS_MAX);
    if (t->attr.rank.collective == HOLMES_SENDRECV)
        t->message_us = shared_map(message_us_bytes(t));
    if (!t->beats || (t->attr.rank.collective == HOLMES_SENDRECV && !t->message_us))
        return -ENOMEM;
    for (int i = 0; i < t->attr.rank.nranks && rc == 0 && !t->attr.rank.plugin; i++)
        rc = listen_at(t, i);
    if (rc == 0)
        rc = holmes_link_enter(t->attr.rank.link, HOLMES_LINK_OUTSIDE);
    for (int i = 0; i < t->attr.rank.nranks && rc == 0; i++)
        rc = team_fork_rank(t, i);
    for (int i = 0; i < t->attr.rank.nranks; i++) {
        if (t->listen_fds[i] >= 0)
            close(t->listen_fds[i]);
        t->listen_fds[i] = -1;
    }
    return rc;
}

int holmes_team_fork(const struct holmes_team_attr *attr, struct holmes_team **out, char *why,
                     size_t why_len)
{
    struct holmes_team *t = calloc(1, sizeof *t);
    int rc;

    if (!t) {
        snprintf(why, why_len, "%s: no memory", attr->label);
        return -ENOMEM;
    }
    t->attr = *attr;
    for (int i = 0; i < HOLMES_BENCH_RANKS_MAX; i++)
        t->members[i].fd = t->listen_fds[i] = -1;
    t->next = teams;
    teams = t;
    rc = team_birth(t);
    if (rc != 0) {
        snprintf(why, why_len, "%s: cannot start %d processes: %s", attr->label, attr->rank.nranks,
                 holmes_strerror(rc));
        holmes_team_destroy(t);
        return rc;
    }
    *out = t;
    return 0;
}

/* --- end -------------------------------------------------------------------------------------- */

static void describe_status(int status, char *buf, size_t len)
{
    if (WIFSIGNALED(status))
        snprintf(buf, len, "died of signal %d (%s)", WTERMSIG(status), strsignal(WTERMSIG(status)));
    else
        snprintf(buf, len, "ended with exit status %d", WEXITSTATUS(status));
}

/* Waits up to `ms` for a process that should be ending; kills it then. Returns its status. */
static int member_reap(struct member *m, int ms)
{
    uint64_t deadline = holmes_deadline_ms((uint64_t)ms);
    int status = 0;

    while (waitpid(m->pid, &status, WNOHANG) == 0) {
        if (holmes_deadline_passed(deadline))
            kill(m->pid, SIGKILL);
        poll(NULL, 0, 1);
    }
    m->pid = 0;
    return status;
}

void holmes_team_destroy(struct holmes_team *t)
{
    struct holmes_team **at = &teams;

    if (!t)
        return;
    for (int i = 0; i < t->attr.rank.nranks; i++)
        if (t->members[i].pid)
            kill(t->members[i].pid, SIGKILL);
    for (int i = 0; i < t->attr.rank.nranks; i++)
        if (t->members[i].pid)
            member_reap(&t->members[i], EXIT_MS);
    close_team_fds(t, -1);
    holmes_rdv_stop(t->rdv);
    if (t->beats)
        munmap(t->beats, BEAT_STRIDE * HOLMES_BENCH_RANKS_MAX);
    if (t->message_us)
        munmap(t->message_us, message_us_bytes(t));
    while (*at != t)
        at = &(*at)->next;
    *at = t->next;
    free(t);
}

int holmes_team_leave(struct holmes_team *t)
{
    struct holmes_bench_command cmd = {.verb = HOLMES_BENCH_LEAVE};
    int rc = holmes_team_call(t, &cmd, NULL);

    for (int i = 0; i < t->attr.rank.nranks && rc == 0; i++) {
        int status = member_reap(&t->members[i], EXIT_MS);
        char what[96];

        if (status != 0) {
            describe_status(status, what, sizeof what);
            rc = team_fail(t, -ECHILD, i, what);
        }
    }
    return rc;
}

/* --- commands --------------------------------------------------------------------------------- */

/* One answer, or the news that there will be none. */
static int member_hear(struct holmes_team *t, int rank, struct holmes_bench_reply *reply)
{
    struct member *m = &t->members[rank];
    ssize_t n = recv(m->fd, reply, sizeof *reply, 0);
    char what[96];

    if (n < 0 && errno == EINTR)
        return 0;
    m->owes = false;
    if (n == (ssize_t)sizeof *reply) {
        reply->text[sizeof reply->text - 1] = '\0';
        return reply->rc;
    }
    close(m->fd);
    m->fd = -1;
    describe_status(member_reap(m, GRACE_MS), what, sizeof what);
    if (!t->died)
        t->error = 0;
    t->died = true;
    return team_fail(t, -ECHILD, rank, what);
}

static int first_owing(const struct holmes_team *t)
{
    for (int i = 0; i < t->attr.rank.nranks; i++)
        if (t->members[i].owes)
            return i;
    return -1;
}

static int team_poll(struct holmes_team *t, int timeout_ms, struct holmes_bench_reply *replies)
{
    struct pollfd fds[HOLMES_BENCH_RANKS_MAX];
    int n = t->attr.rank.nranks;

    for (int i = 0; i < n; i++)
        fds[i] =
            (struct pollfd){.fd = t->members[i].owes ? t->members[i].fd : -1, .events = POLLIN};
    if (poll(fds, (nfds_t)n, timeout_ms) <= 0)
        return 0;
    for (int i = 0; i < n; i++) {
        if (fds[i].revents && member_hear(t, i, &replies[i]) != 0 && !t->error)
            team_fail(t, replies[i].rc, i, replies[i].text);
    }
    return t->error;
}

/* All answers, or the first failure with a moment's grace for a better explanation. */
static int team_gather(struct holmes_team *t, struct holmes_bench_reply *replies)
{
    uint64_t timeout_ms = (uint64_t)t->attr.rank.timeout_s * 1000, seen = beats_of(t);
    uint64_t deadline = holmes_deadline_ms(timeout_ms + 2000); /* the ranks' own comes first */
    char what[160];

    while (first_owing(t) >= 0 && !holmes_deadline_passed(deadline)) {
        bool well = t->error == 0;
        uint64_t now;

        if (*t->attr.stop)
            return team_fail(t, -EINTR, -1, "interrupted");
        if (team_poll(t, 100, replies) != 0 && well)
            deadline = holmes_deadline_ms(GRACE_MS);
        now = beats_of(t);
        if (now != seen && t->error == 0)
            deadline = holmes_deadline_ms(timeout_ms + 2000);
        seen = now;
    }
    if (t->error == 0 && first_owing(t) >= 0) {
        snprintf(what, sizeof what, "hangs: no operation done for %d s (--timeout)",
                 t->attr.rank.timeout_s);
        team_fail(t, -ETIMEDOUT, first_owing(t), what);
    } else if (first_owing(t) >= 0) {
        size_t at = strlen(t->why);

        /* Silence of one rank is often what the error of another means. */
        snprintf(t->why + at, sizeof t->why - at, "; rank %d does not answer", first_owing(t));
    }
    return t->error;
}

int holmes_team_call(struct holmes_team *t, const struct holmes_bench_command *cmd,
                     struct holmes_bench_reply *replies)
{
    struct holmes_bench_reply own[HOLMES_BENCH_RANKS_MAX];

    if (t->error)
        return t->error;
    for (int i = 0; i < t->attr.rank.nranks; i++) {
        t->members[i].owes = true;
        /* A rank that is gone is noticed when its answer is awaited. */
        (void)!send(t->members[i].fd, cmd, sizeof *cmd, MSG_NOSIGNAL);
    }
    return team_gather(t, replies ? replies : own);
}

/* A secret that only the processes of this team know. */
static int secret_make(char *buf, size_t len)
{
    unsigned char raw[16];

    if (getrandom(raw, sizeof raw, 0) != sizeof raw)
        return -EIO;
    for (size_t i = 0; i < sizeof raw && 2 * i + 2 < len; i++)
        snprintf(buf + 2 * i, 3, "%02x", raw[i]);
    return 0;
}

int holmes_team_join(struct holmes_team *t)
{
    struct holmes_bench_reply replies[HOLMES_BENCH_RANKS_MAX];
    struct holmes_bench_command cmd = {.verb = HOLMES_BENCH_JOIN};
    int rc = 0;

    if (t->attr.rank.plugin) {
        rc = secret_make(cmd.secret, sizeof cmd.secret);
        if (rc == 0)
            rc = holmes_rdv_serve("127.0.0.1", 0, cmd.secret, t->attr.rank.nranks, &t->rdv);
        if (rc != 0)
            return team_fail(t, rc, -1, "cannot serve the rendezvous");
        cmd.port = holmes_rdv_port(t->rdv);
    }
    rc = holmes_team_call(t, &cmd, replies);
    if (rc == 0)
        snprintf(t->about, sizeof t->about, "%s", replies[0].text);
    return rc;
}
