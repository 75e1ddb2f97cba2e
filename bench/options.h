/* The command line of holmes-bench. */
#ifndef HOLMES_BENCH_OPTIONS_H
#define HOLMES_BENCH_OPTIONS_H

#include "link.h"
#include "rank.h"

#define HOLMES_BENCH_PLUGINS_MAX  8
#define HOLMES_BENCH_SETTINGS_MAX 16

/* A side: a plugin, and what its processes find in their environment. */
struct holmes_bench_plugin {
    char label[64];                                  /* unique */
    const char *path;                                /* as given */
    const char *settings[HOLMES_BENCH_SETTINGS_MAX]; /* "NAME=value" */
    int nsettings;
};

struct holmes_bench_options {
    enum holmes_collective collective;
    enum holmes_dtype type;
    int nranks;
    uint64_t min_bytes, max_bytes;
    int factor;
    int iters; /* 0: as many as fill a tenth of a second */
    int rounds;
    int window;
    int timeout_s;
    bool both_ways; /* sendrecv */
    int idle_us;
    bool no_latency, no_bandwidth; /* sendrecv: left out; one at most */
    bool reference, check;
    int streams[HOLMES_BENCH_STREAMS_MAX], nstreams; /* of the reference, ascending */
    int threads[HOLMES_BENCH_THREADS_MAX],
        nthreads; /* likewise; 0: each end of each stream's own */
    struct holmes_bench_plugin plugins[HOLMES_BENCH_PLUGINS_MAX];
    int nplugins;
    const char *device;
    bool through_nccl;            /* --backend nccl */
    struct holmes_link_attr link; /* nlinks 0: loopback */
    const char *link_hook;        /* NULL: none */
    const char *csv, *json, *svg; /* NULL: not wanted */
};

/* Parses and checks. 0, or -EINVAL with a sentence that names the value and what is right. --help
 * and --version print and exit. `out` points into argv, whose words it cuts where they hold
 * several. */
int holmes_bench_options_parse(int argc, char **argv, struct holmes_bench_options *out, char *why,
                               size_t why_len);

/* "1-8", "4" or "1,2,4" into ascending numbers within [1, 8]: their count, or -EINVAL. */
int holmes_streams_parse(const char *text, int streams[HOLMES_BENCH_STREAMS_MAX]);
/* The same with "streams" for 0: "1,streams". */
int holmes_threads_parse(const char *text, int threads[HOLMES_BENCH_THREADS_MAX]);

#endif
