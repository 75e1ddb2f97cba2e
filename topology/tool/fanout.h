/* Runs a command on many hosts at once, each through a launcher (launcher.h), and keeps what it
 * says. Either run and collect, or a conversation: lines out of the command to a callback, lines of
 * the caller to its standard input.
 *
 *     struct holmes_fanout_options o = {.argv = argv, .deadline_ms = 30000, .label = "gather"};
 *
 *     rc = holmes_fanout_create(&o, hosts, n, &f, why, sizeof why);
 *     rc = holmes_fanout_run(f);
 *     r = holmes_fanout_result(f, i);      one for each host, in order
 *     holmes_fanout_destroy(f);
 *
 * Whatever a host does is bounded: its time, its output, its last words. Nothing stays behind:
 * holmes_fanout_destroy ends every process that is left. One fanout per process at a time, made and
 * driven by the main thread: while it exists SIGCHLD, SIGINT, SIGTERM, SIGHUP and SIGPIPE are
 * blocked and arrive here.
 */
#ifndef HOLMES_TOPO_FANOUT_H
#define HOLMES_TOPO_FANOUT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define HOLMES_FANOUT_AT_ONCE 64
#define HOLMES_FANOUT_OUT_CAP (4u << 20) /* bytes of standard output of one host */
#define HOLMES_FANOUT_ERR_CAP 4096u      /* bytes of standard error kept: the last ones */

struct holmes_fanout;

enum holmes_fanout_state {
    HOLMES_FANOUT_WAITING, /* for its turn */
    HOLMES_FANOUT_RUNNING,
    HOLMES_FANOUT_DONE,      /* exit status 0 */
    HOLMES_FANOUT_EXITED,    /* another one, in `code` */
    HOLMES_FANOUT_SIGNALLED, /* ended by signal `code` */
    HOLMES_FANOUT_LATE,      /* past its deadline, ended */
    HOLMES_FANOUT_FLOODED,   /* said more than the cap, ended */
    HOLMES_FANOUT_FAILED,    /* could not be started: -errno in `code` */
    HOLMES_FANOUT_STOPPED,   /* by holmes_fanout_stop or a signal to this process */
};

struct holmes_fanout_result {
    const char *host;
    enum holmes_fanout_state state;
    int code;
    char *out; /* ends in a 0 byte beyond out_len; empty in a conversation */
    size_t out_len;
    char *err; /* the last of standard error, likewise */
    size_t err_len;
};

struct holmes_fanout_options {
    const char *launcher; /* NULL: HOLMES_LAUNCHER_SSH */
    char *const *argv;    /* the command, NULL-terminated; copied by nobody, must live */
    int at_once;          /* 0: HOLMES_FANOUT_AT_ONCE */
    uint64_t deadline_ms; /* of each host from its start; 0: none */
    size_t out_cap;       /* 0: HOLMES_FANOUT_OUT_CAP; of one line in a conversation */
    const char *label;    /* of a progress bar on standard error, counted in hosts; NULL: none */

    /* Makes it a conversation: one call for each line of standard output, without its newline and
     * with a 0 byte behind it (bytes are the host's and may contain others). */
    void (*on_line)(void *ctx, struct holmes_fanout *f, int host, const char *line, size_t len);
    /* The host came to its end, whatever that was. May be NULL. */
    void (*on_end)(void *ctx, struct holmes_fanout *f, int host);
    void *ctx;
};

/* Starts nothing yet. `hosts` are copied. -EINVAL with a sentence for a launcher or host name that
 * cannot be meant, -ENOMEM, or what the system said. */
int holmes_fanout_create(const struct holmes_fanout_options *o, const char *const *hosts, int n,
                         struct holmes_fanout **out, char *why, size_t why_len);

/* Starts what has a place, waits up to `timeout_ms` for something to happen, and calls back. 0: all
 * hosts are at their end. -EAGAIN: call again. -EINTR: SIGINT, SIGTERM or SIGHUP came; everything
 * has been ended (holmes_fanout_signal tells which). */
int holmes_fanout_step(struct holmes_fanout *f, int timeout_ms);
/* All of it: 0 when every host is at its end, or -EINTR. */
int holmes_fanout_run(struct holmes_fanout *f);
int holmes_fanout_signal(const struct holmes_fanout *f);

/* A line to a running host's standard input (the newline is added), sent as it takes it. -EPIPE
 * when it no longer listens, -ENOMEM. In a conversation only. */
int holmes_fanout_send(struct holmes_fanout *f, int host, const char *line);
/* End of its standard input, after what was sent. */
void holmes_fanout_hang_up(struct holmes_fanout *f, int host);
/* Ends a host's command, or never starts it. */
void holmes_fanout_stop(struct holmes_fanout *f, int host);

int holmes_fanout_hosts(const struct holmes_fanout *f);
/* Lives as long as the fanout. */
const struct holmes_fanout_result *holmes_fanout_result(const struct holmes_fanout *f, int host);
/* How it ended, for people: "exit status 127: sh: holmes-topo: not found". Control characters are
 * shown as '?'. */
void holmes_fanout_explain(const struct holmes_fanout *f, int host, char *buf, size_t len);

/* NULL is fine. Ends what still runs: SIGTERM, and SIGKILL after half a second. */
void holmes_fanout_destroy(struct holmes_fanout *f);

#endif
