/* HOLMES_FABRIC: an id for all RDMA ports, or device[:port]=id[,...]. */
#ifndef HOLMES_FABRIC_IDS_H
#define HOLMES_FABRIC_IDS_H

#include <stddef.h>

#include "nic.h"

#define FABRIC_IDS_MAX 32

struct fabric_ids {
    char all[HOLMES_RDMA_NAME_MAX]; /* for every port; "" when ports are named */
    int n;
    struct fabric_entry {
        char device[HOLMES_RDMA_NAME_MAX];
        int port; /* 0: all ports of the device */
        char id[HOLMES_RDMA_NAME_MAX];
    } entries[FABRIC_IDS_MAX];
};

/* NULL or "" says nothing. Returns -EINVAL with a sentence in `why`. */
int fabric_ids_parse(const char *text, struct fabric_ids *out, char *why, size_t why_len);

/* The port's id, "" when nothing is said about it. An entry with the port goes before one without.
 */
const char *fabric_ids_find(const struct fabric_ids *ids, const char *device, int port);

#endif
