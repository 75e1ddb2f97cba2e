/* Two ends of a connection in one process over the NICs of test_nics.h, for tests of the message
 * protocol. Every
 * wait has a deadline. */
#ifndef HOLMES_TEST_LINK_H
#define HOLMES_TEST_LINK_H

#include "../support/patience.h"
#include "transport.h"

/* 16 MiB over RDMA that loses one packet in twenty. */
#define LINK_TIMEOUT_MS patience_ms(7000)

struct link {
    struct holmes_transport *a, *b; /* a sends, b receives */
    struct holmes_listen *listen;
    struct holmes_conn *send, *recv;
};

/* The NICs of one end as test_nics.h has them: one Ethernet NIC, or an RDMA port and the Ethernet
 * NIC that it needs beside it. Returns how many. */
enum link_end { LINK_FROM, LINK_TO };
int link_nics(enum link_end end, struct holmes_nic nics[2]);
struct holmes_transport *link_transport(enum link_end end);
/* Each asserts success. */
void link_open(struct link *l);
void link_connect(struct link *l); /* called by link_open; again for a further connection of the
                                      same transports after `send` and `recv` were put aside */
void link_close(struct link *l);

/* Polls connect and accept until both ends are there or one fails; returns the first error. */
int link_try_connect(struct link *l, void *handle);

/* Posts until taken. */
struct holmes_request *link_isend(struct holmes_conn *c, const void *buf, size_t len, int tag,
                                  struct holmes_mr *mr);
struct holmes_request *link_irecv(struct holmes_conn *c, void *buf, size_t len, int tag,
                                  struct holmes_mr *mr);
/* Tests until done; the size is returned. */
size_t link_wait(struct holmes_request *r);
/* Tests both until both are done, as two processes would. Returns the received size. */
size_t link_wait_both(struct holmes_request *send, struct holmes_request *recv);
/* Tests until it fails; the error is returned. Fails when it completes. */
int link_wait_error(struct holmes_request *r);

/* Fills with bytes that depend on the seed, and compares. */
void link_fill(void *buf, size_t len, unsigned seed);
bool link_check(const void *buf, size_t len, unsigned seed);

/* Log lines of the test, captured; a warning begins with "WARN ". */
void link_capture_log(void);
int link_log_count(const char *needle);

#endif
