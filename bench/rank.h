/* One rank process of a side (a plugin, or the reference): what it is told, what it answers, and
 * the two ways to do the work.
 *
 * Parent and rank speak over a SOCK_SEQPACKET pair, one command at a time, one reply to each. Both
 * ends are the same program on the same machine, so the structs travel as they are.
 */
#ifndef HOLMES_BENCH_RANK_H
#define HOLMES_BENCH_RANK_H

#include <netinet/in.h>
#include <stdatomic.h>

#include "collective.h"
#include "link.h"

#define HOLMES_BENCH_RANKS_MAX   64
#define HOLMES_BENCH_STREAMS_MAX 8
#define HOLMES_BENCH_THREADS_MAX (HOLMES_BENCH_STREAMS_MAX + 1) /* a list of them */

enum holmes_bench_verb {
    HOLMES_BENCH_JOIN,    /* meet the other ranks */
    HOLMES_BENCH_PREPARE, /* buffers for size_bytes; with `check` one verified, untimed pass */
    HOLMES_BENCH_RUN,     /* a timed run */
    HOLMES_BENCH_LEAVE,   /* close everything in order and exit */
};

/* What a run measures. */
enum holmes_bench_measure {
    HOLMES_BENCH_TIME,      /* one collective after the other */
    HOLMES_BENCH_LATENCY,   /* sendrecv: half the round trip of a message sent back and forth */
    HOLMES_BENCH_BANDWIDTH, /* sendrecv: several messages under way, the last confirmed */
};

struct holmes_bench_command {
    enum holmes_bench_verb verb;
    /* JOIN of a plugin */
    uint16_t port;
    char secret[40];
    /* PREPARE */
    uint64_t size_bytes;
    uint32_t salt;
    bool check;
    /* RUN; streams also with PREPARE, and only for the reference */
    enum holmes_bench_measure measure;
    uint32_t warmups, iters, streams;
    uint32_t threads; /* with streams: 0 blocks, others poll */
};

struct holmes_bench_reply {
    int rc;          /* 0, or negative errno with a sentence in `text` */
    uint64_t ns;     /* RUN: of all its iterations */
    uint64_t cpu_ns; /* RUN: user and system time of all threads of the process meanwhile */
    uint64_t wrong;  /* PREPARE: elements of this rank */
    char text[400];  /* JOIN: what was opened */
};

/* What a rank process is told at its birth. */
struct holmes_rank_attr {
    enum holmes_collective collective;
    enum holmes_dtype type;
    int rank, nranks;
    uint64_t max_bytes;          /* largest size there will be */
    uint32_t max_iters;          /* of any timed run */
    size_t window;               /* sendrecv */
    bool both_ways;              /* sendrecv: the bandwidth test sends in both directions at once */
    int idle_us;                 /* how long who polls sleeps when nothing moved; 0: yields */
    int timeout_s;               /* of any single operation */
    const char *plugin, *device; /* plugin NULL: the reference */
    bool through_nccl;           /* and its kernels, on GPUs; plugin "none": its own network */
    const char *nccl, *cuda;     /* libraries; NULL: libnccl.so.2, libcuda.so.1 */
    /* reference: this rank's listening socket, where the next one (or the partner) listens, and
     * what a connection must say first */
    int listen_fd;
    struct sockaddr_in next; /* its port; holmes_link_address tells the addresses */
    int next_rank;
    uint64_t token;
    const struct holmes_link *link; /* NULL: loopback */
    /* Counts operations done, in memory shared with the parent: how it tells slow from stuck. */
    atomic_uint_fast64_t *beat;
    float *message_us; /* sendrecv: room for max_iters, shared with the parent */
};

/* Buffers of the present size, and the shape that they have. They stay mapped at their place for as
 * long as there is a runner, which may keep them registered. */
struct holmes_rank_work {
    const struct holmes_rank_attr *attr;
    struct holmes_shape shape;
    size_t window; /* sendrecv: messages under way, each with its own part of `out` */
    void *in, *out;
    size_t in_room, out_room; /* bytes mapped there: for the largest size */
    uint32_t salt;
};

/* What a timed run leaves. */
struct holmes_timing {
    uint64_t ns, cpu_ns;
    float *message_us; /* LATENCY on even ranks: half of each round trip; elsewhere NULL */
};

/* Around what is timed, after the warm-up. */
void holmes_timing_start(struct holmes_timing *t);
void holmes_timing_stop(struct holmes_timing *t);

/* What does the work. Calls return 0 or a negative errno with a sentence in `why`. */
struct holmes_runner;
struct holmes_runner_ops {
    int (*join)(const struct holmes_rank_attr *attr, const struct holmes_bench_command *cmd,
                struct holmes_runner **out, char *about, size_t about_len);
    /* One pass over poisoned buffers; *wrong counts the elements that are not what they must be. */
    int (*verify)(struct holmes_runner *r, const struct holmes_rank_work *w,
                  const struct holmes_bench_command *cmd, uint64_t *wrong, char *why,
                  size_t why_len);
    int (*run)(struct holmes_runner *r, const struct holmes_rank_work *w,
               const struct holmes_bench_command *cmd, struct holmes_timing *t, char *why,
               size_t why_len);
    void (*leave)(struct holmes_runner *r); /* NULL is fine */
};
extern const struct holmes_runner_ops holmes_runner_plugin;   /* collectives */
extern const struct holmes_runner_ops holmes_runner_sendrecv; /* of a plugin */
extern const struct holmes_runner_ops holmes_runner_nccl;     /* all of a plugin's, by NCCL */
extern const struct holmes_runner_ops holmes_runner_reference;

/* Connects a plugin's rank with the rendezvous that the JOIN command tells of. */
struct holmes_rdv;
int holmes_rank_meet(const struct holmes_rank_attr *a, const struct holmes_bench_command *cmd,
                     struct holmes_rdv **out);

/* What a thread that polls does after a turn in which nothing moved. */
void holmes_rank_idle(const struct holmes_rank_attr *a);

/* What went wrong with an operation of the present size, as a sentence. */
void holmes_rank_explain(const struct holmes_rank_work *w, int rc, char *why, size_t why_len);

/* Serves commands from `fd` until told to leave, the parent is gone, or one fails. Returns the exit
 * status of the process. */
int holmes_rank_serve(const struct holmes_rank_attr *attr, int fd);

/* sendrecv works in pairs. */
static inline int holmes_rank_partner(int rank)
{
    return rank ^ 1;
}

#endif
