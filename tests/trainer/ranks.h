/* Ranks as processes, each with its rendezvous client and, when asked for, its net. The calling
 * process serves the rendezvous. A rank is a fresh process: it shares no memory with the test, sees
 * its environment, and runs nothing but the body. */
#ifndef HOLMES_TEST_RANKS_H
#define HOLMES_TEST_RANKS_H

#include <stdbool.h>
#include <stdio.h>
#include <unistd.h>

#include "comm_net.h"
#include "rendezvous.h"

struct rank {
    int rank, size;
    struct holmes_rdv *rdv;
    struct holmes_net *net;  /* NULL without a plugin */
    struct holmes_comm *all; /* all ranks; NULL without a plugin */
};

struct ranks {
    int size;
    const char *plugin; /* NULL: rendezvous only */
    int op_timeout_s;   /* 0: 30 */
    bool dies[16];      /* this rank is meant to end by signal */
    void (*body)(struct rank *r);
};

/* The plugin of this build, from the environment that meson sets. */
const char *holmes_test_plugin(void);
/* True when every rank ended as it should within `limit_s`; those that did not are killed. */
bool holmes_test_ranks_run(const struct ranks *r, int limit_s);

/* In a rank: a claim that does not hold ends it with a line on stderr. */
#define EXPECT(cond, ...)                                                                          \
    do {                                                                                           \
        if (!(cond)) {                                                                             \
            fprintf(stderr, "%s:%d: %s: ", __FILE__, __LINE__, #cond);                             \
            fprintf(stderr, " " __VA_ARGS__);                                                      \
            fputc('\n', stderr);                                                                   \
            _exit(1);                                                                              \
        }                                                                                          \
    } while (0)

/* Waits for an operation and expects it to end with `want`. */
void holmes_test_wait(struct holmes_comm *c, struct holmes_op *op, int want);

#endif
