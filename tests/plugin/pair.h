/* One connection with both ends in the hands of one thread, for tests of single calls. Everything
 * here asserts: use it from the test's own thread. */
#ifndef PAIR_H
#define PAIR_H

#include <criterion/criterion.h>
#include <stdbool.h>

#include "nccl_side.h"

struct pair {
    struct net_api api;
    void *ctx;
    void *send, *recv;
};

/* Loads and initialises; the log of this process is captured. */
void pair_init(struct pair *p, int version);
/* Listen, connect and accept on devices `from` and `to`, within 10 s. */
void pair_connect_dev(struct pair *p, int from, int to);
void pair_connect(struct pair *p);
/* Registered for one call each: sends `len` bytes and receives them into a buffer of `max`. */
void pair_move(struct pair *p, size_t len, size_t max);
void pair_close(struct pair *p); /* the connection */
void pair_fini(struct pair *p);  /* and all the rest */

/* Posts until a request comes out; 10 s. */
void *pair_isend(struct pair *p, void *buf, size_t len, void *mr);
void *pair_irecv(struct pair *p, void *buf, size_t len, void *mr);
/* Tests `n` requests in turn until all are done or one fails; returns the first failure. A
 * finished request becomes NULL. -1 in *failed when none failed. Fails the test after `ms`. */
ncclResult_t pair_wait(struct pair *p, void **requests, int n, int ms, int *failed);

/* ---- this process, and others, as the kernel shows them ---- */

/* Ports of TCP sockets of this process that listen, at most `max`; returns their number. */
int listening_ports(int *ports, int max);

/* Whether the plugin finds RDMA ports here: in a guest of tests/soft-roce. */
bool over_rdma(void);

/* What a line of the log says of a connection over TCP, with the wire of HOLMES_TCP. */
const char *over_tcp(void);

/* Moves this process into a network namespace with nothing but loopback, where all ports are free.
 * RDMA devices belong to no namespace and are turned off.
 * Without root it stays where it is, which is good enough for ports that are asked for politely. */
void private_loopback(void);

/* Evaluates `cond` until it holds, at most `ms` long. */
#define WAIT_UNTIL(cond, ms)                                                                       \
    ({                                                                                             \
        uint64_t until_ = holmes_deadline_ms(ms);                                                  \
        bool met_;                                                                                 \
        while (!(met_ = (cond)) && !holmes_deadline_passed(until_))                                \
            sched_yield();                                                                         \
        met_;                                                                                      \
    })

#endif
