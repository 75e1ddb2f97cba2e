/* The local half of what a connection runs over: completion queues, control memory and lanes on the
 * ports of one NIC. All functions are called with the connection's lock held. */
#ifndef HOLMES_PATH_H
#define HOLMES_PATH_H

#include "conn.h"

struct path_plan {
    struct device *dev;
    int nrails, nlanes;
    struct {
        int member;
        struct wire_lane_params params;
    } rails[HOLMES_MAX_RAILS];
};

/* Over the device alone, as its wire does by default. */
struct path_plan path_plain(struct device *dev, int nlanes);
/* Over the first of `n` opened Ethernet devices: `streams` lanes, or where its wire bundles one
 * lane of so many streams, over all of them. */
struct path_plan path_tcp(struct device *const *devs, int n, int streams);
/* Queue pairs or streams that a raised connection has. */
int path_streams(const struct holmes_conn *c);

/* Opens everything and describes it in `info`. After an error path_close clears what is there. */
int path_open(struct holmes_conn *c, const struct path_plan *plan, struct proto_info *info);
/* The first `nlanes` lanes stay. */
void path_close_lanes(struct holmes_conn *c, int nlanes);
void path_close(struct holmes_conn *c);

/* Takes the peer's description; lanes it did not make are closed. -EPROTO with a sentence. */
int path_take_peer(struct holmes_conn *c, const struct proto_info *info, char *why, size_t why_len);
/* Gives the peer's blobs to the lanes; once. */
int path_connect(struct holmes_conn *c);

#endif
