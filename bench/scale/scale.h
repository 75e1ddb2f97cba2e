/* `holmes-bench connections` and `holmes-bench ranks`: what many connections of one process cost,
 * and whether they all come about. docs/scale.md explains the figures. */
#ifndef HOLMES_SCALE_H
#define HOLMES_SCALE_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "usage.h"

#define HOLMES_SCALE_COUNTS_MAX      8
#define HOLMES_SCALE_CONNECTIONS_MAX 100000
#define HOLMES_SCALE_PEERS_MAX       256
#define HOLMES_SCALE_RANKS_MAX       1024

struct holmes_scale_options {
    bool ranks; /* the command: ranks, else connections */
    const char *plugin, *json;
    int counts[HOLMES_SCALE_COUNTS_MAX], ncounts; /* connections: of each turn; ranks: one number */
    int npeers;                                   /* processes at the other ends */
    int idle_s;                                   /* how long to do nothing, and how long to poll */
    int timeout_s;
};

/* Whether `word` names a command of this kind. */
bool holmes_scale_is_command(const char *word);
/* `argv[0]` is the command. -EINVAL with a sentence. --help ends the program. */
int holmes_scale_options_parse(int argc, char **argv, struct holmes_scale_options *out, char *why,
                               size_t why_len);

/* Nanoseconds until the last connection was raised, and of single ones. */
struct holmes_scale_times {
    int64_t total_ns, p50_ns, p99_ns, max_ns;
};
/* Sorts `took`. */
struct holmes_scale_times holmes_scale_times_of(int64_t *took, int n, int64_t total_ns);

/* One turn of `connections`. `near` is the process under measure, `far` all its peers together. */
struct holmes_scale_turn {
    int connections;
    struct holmes_scale_times raise;
    /* Before, all raised, after a message over each, all closed. */
    struct holmes_scale_usage near_before, near_up, near_used, near_after;
    struct holmes_scale_usage far_before, far_up, far_used, far_after;
    double idle_cpu, poll_cpu; /* seconds of CPU per second */
    int64_t idle_switches;
    uint64_t looks;       /* calls of test while polling */
    int64_t looks_cpu_ns; /* of all of them */
    int64_t exchange_ns, close_ns;
};

struct holmes_scale_results {
    char about[256];                          /* the plugin */
    struct holmes_scale_usage alone, at_home; /* before the plugin; with it, its NIC in use */
    int64_t nofile;                           /* descriptors allowed */
    int nturns;
    struct holmes_scale_turn turns[HOLMES_SCALE_COUNTS_MAX];
};

/* One negative errno and a sentence; what was finished is in the results. */
int holmes_scale_hub_run(const struct holmes_scale_options *o, struct holmes_scale_results *out,
                         char *why, size_t why_len);

struct holmes_scale_mesh {
    char about[256];
    int ranks, connections;
    bool finalizes;   /* the plugin's ABI has a way to end it (v11 and later) */
    int64_t start_ns; /* every rank's plugin loaded and initialised */
    struct holmes_scale_times raise;
    int64_t raise_cpu_ns, exchange_ns, close_ns;
    struct holmes_scale_usage before, started, up, used, closed,
        after; /* after: plugins unloaded */
};
/* Of its connections, and, where the plugin can be ended, of itself. */
int64_t holmes_scale_mesh_left(const struct holmes_scale_mesh *m);
int holmes_scale_mesh_run(const struct holmes_scale_options *o, struct holmes_scale_mesh *out,
                          char *why, size_t why_len);

/* Descriptors or threads that did not go away; 0 is right. */
int64_t holmes_scale_left(const struct holmes_scale_usage *before,
                          const struct holmes_scale_usage *after);

/* -EIO or -ENOMEM. */
int holmes_scale_print(const struct holmes_scale_results *r, FILE *out);
int holmes_scale_json(const struct holmes_scale_options *o, const struct holmes_scale_results *r,
                      FILE *out);
int holmes_scale_mesh_print(const struct holmes_scale_mesh *m, FILE *out);
int holmes_scale_mesh_json(const struct holmes_scale_mesh *m, FILE *out);

/* The command: exit status. */
int holmes_scale_main(int argc, char **argv);

#endif
