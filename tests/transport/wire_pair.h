/* Two ends of lanes in one process, for tests of any wire_ops, between the NICs of test_nics().
 * Every wait has a deadline. */
#ifndef HOLMES_WIRE_PAIR_H
#define HOLMES_WIRE_PAIR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "../support/patience.h"
#include "test_nics.h"
#include "transport/driver.h"

#define PAIR_LANES_MAX  4
#define PAIR_EVENTS_MAX 4096
#define PAIR_TIMEOUT_MS patience_ms(4000) /* of each wait */

struct wire_end {
    const struct wire_ops *ops;
    struct wire_nic *wn;
    struct wire_cq *cq;
    uint8_t gid_index; /* of the NIC's best GID */
    struct wire_lane *lanes[PAIR_LANES_MAX];
    int nlanes;
    struct wire_event events[PAIR_EVENTS_MAX]; /* polled, not yet asked for: a ring */
    unsigned first, count;
};

/* `from` connects, `to` accepts. */
struct wire_pair {
    struct wire_end from, to;
};

/* A lane of its own with its blob. */
struct half {
    struct wire_lane *lane;
    uint8_t blob[HOLMES_LANE_BLOB_MAX];
    size_t len;
};

/* Each asserts success. end_open opens NIC (kernel's port) and cq. */
void end_open(struct wire_end *e, const struct wire_ops *ops, const struct holmes_nic *nic);
void end_close(struct wire_end *e);
/* Between the two ends of test_nics(); `ops` is its wire, or the fault driver in front of it. */
void pair_open(struct wire_pair *p, const struct wire_ops *ops, int nlanes);
void pair_close(struct wire_pair *p);

/* Streams of a lane, where the wire bundles: TEST_STREAMS of the environment, or one. */
int pair_streams(void);
struct half half_make(struct wire_end *e, enum wire_role role);

/* Adds one lane to both ends and waits until both say it is up. */
void pair_raise(struct wire_pair *p);

/* Polls connection events of both ends until `lane` is not rising any more; its status, or
 * -ETIMEDOUT. `other` may be NULL. */
int lane_wait(struct wire_end *e, struct wire_end *other, struct wire_lane *lane, int timeout_ms);

/* Drives both ends until `lane` of `e` is not up any more; its status, or 0 at the deadline. */
int lane_wait_end(struct wire_end *e, struct wire_end *other, struct wire_lane *lane,
                  int timeout_ms);

/* Polls the cq once and keeps what it gives. `e` may be NULL. */
void end_drive(struct wire_end *e);

/* Drives both ends until `e` has an event. False at the deadline. */
bool end_wait_event(struct wire_end *e, struct wire_end *other, struct wire_event *out);

/* Posts, driving the other end while there is no room. Asserts that it is taken. */
void end_post(struct wire_end *e, struct wire_end *other, int lane, const struct wire_write *w);

/* Gives this process a loopback interface that nobody else takes ports from. As root only; others
 * share the host's. */
void loopback_alone(void);

#endif
