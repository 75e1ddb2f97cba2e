/* The launcher: one poll loop over the pipe on which ranks say why they fail and the one into which
 * signals are turned. Handlers, because a signalfd would lose signals to the threads that the BLAS
 * library starts before main. */
#include "launch.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/wait.h>
#include <unistd.h>

#include "clock.h"
#include "env.h"
#include "log.h"
#include "notes.h"
#include "rendezvous.h"
#include "secret.h"

#define LAUNCH_GRACE_MS 3000 /* for ranks to end by themselves, then again after SIGTERM */

extern char **environ;

static const int watched[] = {SIGCHLD, SIGINT, SIGTERM, SIGUSR1};
static int signal_out = -1; /* write end, for the handler */

struct child {
    pid_t pid; /* 0: ended */
    int status;
};

struct launcher {
    const struct holmes_config *config;
    struct child *children;
    int running;
    int stopped;      /* ended as a signal asked them to */
    int failed;       /* in any other way than well */
    int first_failed; /* rank, or -1 */
    int exit_code;
    int signal;             /* that ends the job, or 0 */
    uint64_t signal_ns;     /* when it came */
    int signal_fd, pipe_fd; /* read ends */
    char error[2048];       /* the first sentence of a rank, as far as it is here */
    size_t error_len;
    uint64_t deadline; /* of the present grace, or UINT64_MAX */
    int kills;
};

const char *holmes_signal_name(int sig)
{
    return sig == SIGINT ? "SIGINT" : sig == SIGUSR1 ? "SIGUSR1" : "SIGTERM";
}

void holmes_host_label(const struct holmes_config *c, int rank, char *out, size_t out_len)
{
    holmes_config_label(c->host_labels, rank, out, out_len);
    if (out[0] == '\0' && gethostname(out, out_len) != 0)
        snprintf(out, out_len, "this host");
    out[out_len - 1] = '\0';
}

int holmes_launch_bind_to_parent(const struct holmes_config *c)
{
    if (c->launcher_pid <= 0)
        return HOLMES_EXIT_OK;
    if (prctl(PR_SET_PDEATHSIG, SIGKILL) != 0 || getppid() != c->launcher_pid)
        return HOLMES_EXIT_PEER;
    return HOLMES_EXIT_OK;
}

/* Ranks find the secret in their environment: an argument would be seen by everyone in ps. */
static int make_secret(void)
{
    uint8_t raw[16];
    char hex[2 * sizeof raw + 1];

    if (holmes_env_string(HOLMES_ENV_JOB_SECRET))
        return 0;
    if (getrandom(raw, sizeof raw, 0) != sizeof raw)
        return -errno;
    for (size_t i = 0; i < sizeof raw; i++)
        snprintf(hex + 2 * i, 3, "%02x", raw[i]);
    return setenv(holmes_env_vars[HOLMES_ENV_JOB_SECRET].name, hex, 1) == 0 ? 0 : -errno;
}

static int serve(const char *where, const struct holmes_config *c, struct holmes_rdv_server **out)
{
    char host[256] = "127.0.0.1";
    uint16_t port = 0;
    int rc;

    if (where)
        holmes_config_endpoint(where, host, sizeof host, &port);
    holmes_notes_start(); /* the service's own words would repeat the sentence below */
    rc = holmes_rdv_serve(host, port, holmes_env_string(HOLMES_ENV_JOB_SECRET),
                          holmes_config_world(c), out);
    if (rc != 0)
        holmes_notes_drop();
    holmes_notes_stop();
    if (rc != 0)
        fprintf(stderr, "holmes-train: cannot serve the rendezvous on %s port %u: %s\n", host, port,
                holmes_strerror(rc));
    return rc;
}

int holmes_serve(const struct holmes_config *c)
{
    struct holmes_rdv_server *server;
    char why[400];
    int rc;

    if (!holmes_secret(c, why, sizeof why)) {
        fprintf(stderr, "holmes-train: %s\n", why);
        return HOLMES_EXIT_USAGE;
    }
    if (serve(c->rendezvous, c, &server) != 0)
        return HOLMES_EXIT_FAILED;
    rc = holmes_rdv_server_wait(server, -1);
    holmes_rdv_stop(server);
    return rc == 0 ? HOLMES_EXIT_OK : HOLMES_EXIT_PEER;
}

/* Later options win over earlier ones, so what a rank must know stands last. */
static int spawn_rank(struct launcher *l, int rank, uint16_t port, int error_fd, int argc,
                      char **argv)
{
    char rank_text[16], world_text[16], where[32], launched[32];
    char *extra[] = {"--rank", rank_text,    "--world", world_text, "--rendezvous",
                     where,    "--launched", launched,  NULL};
    char **args = calloc((size_t)argc + sizeof extra / sizeof *extra, sizeof *args);
    posix_spawnattr_t attr;
    sigset_t none, pipe_only;
    int rc;

    if (!args)
        return -ENOMEM;
    snprintf(rank_text, sizeof rank_text, "%d", rank);
    snprintf(world_text, sizeof world_text, "%d", l->config->local);
    snprintf(where, sizeof where, "127.0.0.1:%u", port);
    snprintf(launched, sizeof launched, "%d:%d", (int)getpid(), error_fd);
    memcpy(args, argv, (size_t)argc * sizeof *args);
    memcpy(args + argc, extra, sizeof extra);

    sigemptyset(&none);
    sigemptyset(&pipe_only);
    sigaddset(&pipe_only, SIGPIPE);
    posix_spawnattr_init(&attr);
    posix_spawnattr_setsigmask(&attr, &none);
    posix_spawnattr_setsigdefault(&attr, &pipe_only);
    posix_spawnattr_setflags(&attr, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
    rc = posix_spawn(&l->children[rank].pid, "/proc/self/exe", NULL, &attr, args, environ);
    posix_spawnattr_destroy(&attr);
    free(args);
    if (rc != 0) {
        l->children[rank].pid = 0;
        return -rc;
    }
    l->running++;
    return 0;
}

static void signal_all(struct launcher *l, int sig)
{
    for (int r = 0; r < l->config->local; r++)
        if (l->children[r].pid > 0)
            kill(l->children[r].pid, sig);
}

/* The job is over for `rank`'s sake (or a signal's): the others get a moment to notice. */
static void start_ending(struct launcher *l, uint64_t grace_ms)
{
    uint64_t deadline = holmes_deadline_ms(grace_ms);

    if (deadline < l->deadline)
        l->deadline = deadline;
}

static bool is_cause(int status)
{
    return !(WIFEXITED(status) &&
             (WEXITSTATUS(status) == HOLMES_EXIT_OK || WEXITSTATUS(status) == HOLMES_EXIT_PEER));
}

/* While a signal ends the job, ranks that could not save what they were asked to still fail. */
static bool may_be_cause(const struct launcher *l, int status)
{
    if (l->kills > 0)
        return false;
    return l->signal == 0 || (l->config->save && is_cause(status) &&
                              !(WIFEXITED(status) && WEXITSTATUS(status) > 128));
}

static void child_ended(struct launcher *l, int rank, int status)
{
    l->children[rank].pid = 0;
    l->children[rank].status = status;
    l->running--;
    if (WIFEXITED(status) && WEXITSTATUS(status) == HOLMES_EXIT_STOPPED)
        l->stopped++;
    if (WIFEXITED(status) &&
        (WEXITSTATUS(status) == HOLMES_EXIT_OK || WEXITSTATUS(status) == HOLMES_EXIT_STOPPED))
        return;
    l->failed++;
    if (may_be_cause(l, status) &&
        (l->first_failed < 0 ||
         (is_cause(status) && !is_cause(l->children[l->first_failed].status))))
        l->first_failed = rank;
    start_ending(l, LAUNCH_GRACE_MS);
}

static void reap(struct launcher *l)
{
    for (int r = 0; r < l->config->local; r++) {
        int status;

        if (l->children[r].pid > 0 && waitpid(l->children[r].pid, &status, WNOHANG) > 0)
            child_ended(l, r, status);
    }
}

/* Only the first sentence counts: what follows is the same cause seen by others. */
static void read_errors(struct launcher *l)
{
    char buf[1024];
    ssize_t n;

    while ((n = read(l->pipe_fd, buf, sizeof buf)) > 0) {
        size_t room = sizeof l->error - 1 - l->error_len;
        size_t take = (size_t)n < room ? (size_t)n : room;

        memcpy(l->error + l->error_len, buf, take);
        l->error_len += take;
    }
}

static void on_signal(int sig)
{
    unsigned char byte = (unsigned char)sig;
    int saved = errno;

    if (write(signal_out, &byte, 1) < 0)
        byte = 0; /* full of signals that nobody has read yet: nothing is lost */
    errno = saved;
}

/* Ranks that save may take their time, which they watch themselves. */
static void ask_to_end(struct launcher *l, int sig)
{
    const struct holmes_config *c = l->config;

    l->signal = sig;
    l->signal_ns = holmes_now_ns();
    signal_all(l, SIGTERM);
    start_ending(l, LAUNCH_GRACE_MS + (c->save ? (uint64_t)c->stop_timeout_s * 1000 : 0));
    if (c->save)
        fprintf(stderr,
                "holmes-train: %s: the ranks finish their step, save and end; a second one ends "
                "them at once\n",
                holmes_signal_name(sig));
}

static void read_signals(struct launcher *l)
{
    unsigned char sig;

    while (read(l->signal_fd, &sig, 1) == 1) {
        if (sig == SIGCHLD)
            continue;
        if (l->signal == 0) {
            ask_to_end(l, sig);
        } else if (holmes_now_ns() - l->signal_ns > HOLMES_SIGNAL_AGAIN_NS) {
            l->kills++;
            signal_all(l, SIGKILL);
        }
    }
}

static void supervise(struct launcher *l)
{
    while (l->running > 0) {
        struct pollfd fds[2] = {{.fd = l->signal_fd, .events = POLLIN},
                                {.fd = l->pipe_fd, .events = POLLIN}};
        uint64_t now = holmes_now_ns();
        int wait_ms = 1000;

        if (l->deadline != UINT64_MAX)
            wait_ms = l->deadline > now ? (int)((l->deadline - now) / 1000000) + 1 : 0;
        if (poll(fds, l->running > 0 ? 2 : 1, wait_ms) < 0 && errno != EINTR)
            break;
        read_signals(l);
        read_errors(l);
        reap(l);
        if (holmes_deadline_passed(l->deadline)) {
            signal_all(l, l->kills++ == 0 ? SIGTERM : SIGKILL);
            l->deadline = holmes_deadline_ms(LAUNCH_GRACE_MS);
        }
    }
    read_errors(l);
}

static int report(struct launcher *l)
{
    int rank = l->first_failed;
    char host[64];

    if (l->failed == 0)
        return l->stopped > 0 ? HOLMES_EXIT_STOPPED : HOLMES_EXIT_OK;
    if (l->signal != 0 && rank < 0) {
        fprintf(stderr, "holmes-train: %s: all ranks ended%s%.*s\n", strsignal(l->signal),
                l->error_len > 0 ? ": " : "", (int)strcspn(l->error, "\n"), l->error);
        return 128 + l->signal;
    }
    if (rank < 0)
        return HOLMES_EXIT_OK;
    holmes_host_label(l->config, rank, host, sizeof host);
    if (l->error_len > 0)
        fprintf(stderr, "holmes-train: %.*s\n", (int)strcspn(l->error, "\n"), l->error);
    else if (WIFSIGNALED(l->children[rank].status))
        fprintf(stderr, "holmes-train: rank %d on %s was ended by signal %d (%s)\n", rank, host,
                WTERMSIG(l->children[rank].status), strsignal(WTERMSIG(l->children[rank].status)));
    else
        fprintf(stderr, "holmes-train: rank %d on %s exited with %d and did not say why\n", rank,
                host, WEXITSTATUS(l->children[rank].status));
    if (WIFSIGNALED(l->children[rank].status))
        return HOLMES_EXIT_FAILED;
    return WEXITSTATUS(l->children[rank].status);
}

static int start_ranks(struct launcher *l, uint16_t port, int error_fd, int argc, char **argv)
{
    int rc = 0;

    for (int r = 0; r < l->config->local && rc == 0; r++)
        rc = spawn_rank(l, r, port, error_fd, argc, argv);
    if (rc == 0)
        return 0;
    fprintf(stderr, "holmes-train: cannot start a rank: %s\n", holmes_strerror(rc));
    signal_all(l, SIGKILL);
    return rc;
}

/* What whoever started this process ignores, it and its ranks ignore. */
static int open_signals(struct launcher *l)
{
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_RESTART | SA_NOCLDSTOP};
    struct sigaction before;
    int fds[2];

    if (pipe2(fds, O_CLOEXEC | O_NONBLOCK) != 0)
        return -errno;
    l->signal_fd = fds[0];
    signal_out = fds[1];
    for (size_t i = 0; i < sizeof watched / sizeof *watched; i++) {
        if (sigaction(watched[i], NULL, &before) != 0)
            return -errno;
        if ((watched[i] == SIGCHLD || before.sa_handler != SIG_IGN) &&
            sigaction(watched[i], &action, NULL) != 0)
            return -errno;
    }
    return 0;
}

static void close_signals(struct launcher *l)
{
    for (size_t i = 0; i < sizeof watched / sizeof *watched; i++) {
        struct sigaction now;

        if (sigaction(watched[i], NULL, &now) == 0 && now.sa_handler == on_signal)
            signal(watched[i], SIG_DFL);
    }
    if (l->signal_fd >= 0)
        close(l->signal_fd);
    if (signal_out >= 0)
        close(signal_out);
    signal_out = -1;
}

/* The write end alone is inherited by the ranks. */
static int open_error_pipe(struct launcher *l, int *error_fd)
{
    int fds[2];

    if (pipe2(fds, O_CLOEXEC | O_NONBLOCK) != 0)
        return -errno;
    l->pipe_fd = fds[0];
    *error_fd = fds[1];
    return fcntl(fds[1], F_SETFD, 0) == 0 ? 0 : -errno;
}

int holmes_launch(const struct holmes_config *c, int argc, char **argv)
{
    struct launcher l = {
        .config = c, .first_failed = -1, .signal_fd = -1, .pipe_fd = -1, .deadline = UINT64_MAX};
    struct holmes_rdv_server *server = NULL;
    int error_fd = -1, code = HOLMES_EXIT_FAILED, rc;

    l.children = calloc((size_t)c->local, sizeof *l.children);
    rc = l.children ? make_secret() : -ENOMEM;
    if (rc == 0)
        rc = open_signals(&l);
    if (rc == 0)
        rc = open_error_pipe(&l, &error_fd);
    if (rc != 0) {
        fprintf(stderr, "holmes-train: cannot start: %s\n", holmes_strerror(rc));
        goto out;
    }
    if (serve(c->rendezvous, c, &server) != 0)
        goto out;
    rc = start_ranks(&l, holmes_rdv_port(server), error_fd, argc, argv);
    close(error_fd);
    error_fd = -1;
    supervise(&l);
    if (rc == 0)
        code = report(&l);
out:
    holmes_rdv_stop(server);
    if (error_fd >= 0)
        close(error_fd);
    if (l.pipe_fd >= 0)
        close(l.pipe_fd);
    close_signals(&l);
    free(l.children);
    return code;
}
