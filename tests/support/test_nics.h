/* The two NICs between which tests of a wire run, and the wire that serves them: 127.0.0.1 twice
 * over TCP or, where HOLMES_TEST_VERBS=DEVICE,DEVICE names two RDMA devices, their first ports over
 * verbs (tests/soft-roce sets it). */
#ifndef HOLMES_TEST_NICS_H
#define HOLMES_TEST_NICS_H

#include <stdbool.h>

#include "transport/driver.h"

struct test_nics {
    const struct wire_ops *ops;
    struct holmes_nic from, to;
    bool notices_close; /* an idle lane ends when its peer closes it or dies; else only a write
                           that is not answered tells */
};

/* Read once, then the same. Fails the test when a named device is not there or not up. */
const struct test_nics *test_nics(void);

/* The wire of HOLMES_TCP. */
const struct wire_ops *test_tcp_wire(void);

/* A NIC on the IPv4 address `ip` of the loopback interface. */
struct holmes_nic test_loopback_nic(const char *ip);

#endif
