/* The preflight: what is measured between which nodes, and what came out. A run is filled in by the
 * session (check_session.c), judged against a plan (check_judge.c) and shown (check_report.c). */
#ifndef HOLMES_TOPO_CHECK_H
#define HOLMES_TOPO_CHECK_H

#include <stdbool.h>
#include <stdio.h>

#include "plan.h"
#include "tool/check_msg.h"
#include "tool/schedule.h"

#define HOLMES_CHECK_NODES_MAX 2048
#define HOLMES_CHECK_TRIES     3 /* peers in a row that a node may fail to reach, and none else */

enum holmes_check_node_state {
    HOLMES_CHECK_STARTING,
    HOLMES_CHECK_THERE,
    HOLMES_CHECK_UNREACHED,  /* the launcher failed */
    HOLMES_CHECK_NO_PROGRAM, /* the host does not have holmes-topo */
    HOLMES_CHECK_REFUSED,    /* the agent cannot work there, and says why */
    HOLMES_CHECK_SILENT,     /* did not answer in time */
    HOLMES_CHECK_GARBLED,    /* said what an agent does not say */
    HOLMES_CHECK_OTHER,      /* another version of the program */
    HOLMES_CHECK_LOST,       /* ended in the middle */
    HOLMES_CHECK_CUT_OFF,    /* reached none of HOLMES_CHECK_TRIES peers, and is not tried again */
};

struct holmes_check_node {
    const char *host; /* the caller's */
    enum holmes_check_node_state state;
    char why[512]; /* of a state that is not THERE */
    int nnics;
    struct holmes_check_nic *nics; /* those that NCCL is shown */
    int failures, successes;       /* pairs */
};

enum holmes_check_pair_state {
    HOLMES_CHECK_WAITING, /* time ran out before it, or the run was ended */
    HOLMES_CHECK_MEASURED,
    HOLMES_CHECK_BROKEN,  /* `why` */
    HOLMES_CHECK_SKIPPED, /* a node of it is not there */
};

struct holmes_check_result {
    int a, b; /* a < b */
    enum holmes_check_pair_state state;
    char why[HOLMES_CHECK_REASON_MAX + 64];
    char wire[16], reason[HOLMES_CHECK_REASON_MAX], local[64],
        peer[64]; /* of a's connection to b */
    double rtt_us;
    double gbps[2]; /* a to b, b to a */
    int round;      /* of the schedule: pairs of one round were measured at the same time */
    bool alone;     /* tried again by itself, the better outcome kept */
};

/* How fast the nodes of a run are to be asked, and how. */
struct holmes_check_options {
    const char *launcher; /* NULL: ssh */
    char *const *argv;    /* of the agent */
    int time_limit_s;     /* of everything */
    bool progress;        /* a bar on standard error */
};

struct holmes_check_run {
    int nnodes;
    struct holmes_check_node *nodes;
    int npairs, nrounds;
    struct holmes_check_result *pairs; /* in the order of the schedule */
    double took_s;
    int signal; /* that ended it; 0: none */
};

/* -ENOMEM. Keeps the host names, not the schedule. */
int holmes_check_run_create(const char *const *hosts, int n, const struct holmes_schedule *s,
                            struct holmes_check_run **out);
void holmes_check_run_destroy(struct holmes_check_run *run);

/* --- session ---------------------------------------------------------------------------------- */

struct holmes_check_session;

/* Starts an agent on every node and waits until each has said hello or failed. -EINVAL with a
 * sentence for a launcher or host name that cannot be meant; -EINTR; -ENOMEM. */
int holmes_check_session_open(struct holmes_check_run *run, const struct holmes_check_options *o,
                              struct holmes_check_session **out, char *why, size_t why_len);
/* Measures all pairs round by round, until they are done or the time is. 0 or -EINTR. */
int holmes_check_session_measure(struct holmes_check_session *s);
/* Tries these pairs (indices), measured or broken, again, one at a time, as far as the time goes,
 * and keeps the better outcome. 0 or -EINTR. */
int holmes_check_session_again(struct holmes_check_session *s, const int *pairs, int n);
/* Ends the agents. NULL is fine. */
void holmes_check_session_close(struct holmes_check_session *s);

/* --- judgement: pure -------------------------------------------------------------------------- */

/* What a plan counts on between two of its nodes, over one NIC of each. */
struct holmes_check_expect {
    bool rdma;
    double gbps;      /* each way; 0: not told */
    double link_gbps; /* of the whole link that all pairs across it share; 0: none or not told */
    double rtt_ms;    /* 0: not told */
    int from, to;     /* fabrics, from <= to */
    char what[160];
};
void holmes_check_expect(const struct holmes_plan_doc *doc, int a, int b,
                         struct holmes_check_expect *out);

struct holmes_check_limits {
    const struct holmes_plan_doc *doc; /* its nodes are the run's; NULL: no plan */
    double share;                      /* of the planned rate that is enough */
    double min_gbps;                   /* of every pair, each way; 0: none */
};

/* One thing that is not as it should be. */
struct holmes_check_finding {
    int node, pair; /* index, or -1 */
    bool slow;      /* it may be better when tried alone */
    int like;       /* equal for findings that have one cause in all likelihood; 0: none other */
    char what[800]; /* a sentence that names the hosts */
    char remedy[400];
};
/* Nodes first, then pairs in the order of the run. The caller frees *out. 0 or -ENOMEM. */
int holmes_check_judge(const struct holmes_check_run *run, const struct holmes_check_limits *limits,
                       struct holmes_check_finding **out, int *n);

/* Hosts between which measured pairs are fast, where a gap parts fast pairs from slow ones. */
struct holmes_check_groups {
    int n;              /* 0: no such gap, or it parts nothing */
    int *group;         /* [nnodes]; -1: nothing was measured there */
    double within_gbps; /* the least inside the groups */
};
int holmes_check_groups(const struct holmes_check_run *run, struct holmes_check_groups *out);
void holmes_check_groups_fini(struct holmes_check_groups *g);

/* --- report ----------------------------------------------------------------------------------- */

void holmes_check_print(const struct holmes_check_run *run,
                        const struct holmes_check_groups *groups,
                        const struct holmes_check_finding *findings, int n, FILE *out);
/* 0, -ENOMEM or -EIO. */
int holmes_check_print_json(const struct holmes_check_run *run,
                            const struct holmes_check_groups *groups,
                            const struct holmes_check_finding *findings, int n, FILE *out);

#endif
