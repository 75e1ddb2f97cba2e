/* HOLMES_FABRIC: an id for all RDMA ports, device[:port]=id[,...], or @FILE that has a line for
 * each host. */
#ifndef HOLMES_FABRIC_IDS_H
#define HOLMES_FABRIC_IDS_H

#include <stdbool.h>
#include <stddef.h>

#include "nic.h"

#define FABRIC_IDS_MAX 32

struct fabric_ids {
    char all[HOLMES_RDMA_NAME_MAX]; /* for every port that is not named; "": none */
    int n;
    struct fabric_entry {
        char device[HOLMES_RDMA_NAME_MAX];
        int port; /* 0: all ports of the device */
        char id[HOLMES_RDMA_NAME_MAX];
        int line; /* of the file; 0: it stands in the variable */
    } entries[FABRIC_IDS_MAX];
};

/* NULL or "" says nothing. Returns -EINVAL with a sentence in `why`. A file is not read: that is
 * fabric_ids_read, for the host of this name (NULL: this one), which may put a sentence into `why`
 * on success too. */
int fabric_ids_read(const char *text, const char *host, struct fabric_ids *out, char *why,
                    size_t why_len);
int fabric_ids_parse(const char *text, struct fabric_ids *out, char *why, size_t why_len);

/* The port's id, "" when nothing is said about it. An entry with the port goes before one without.
 */
const char *fabric_ids_find(const struct fabric_ids *ids, const char *device, int port);

/* --- the file: lines "HOSTS [DEVICE[:PORT]] ID", # begins a comment
 * -------------------------------
 *
 * HOSTS is a list like a[01-16],b7 (hostlist.h); a host is found by its name or by that without its
 * domain. Without a device the id is that of all RDMA ports of the host that no other line names.
 */

/* What the file says about `host`, and in *named whether a line has it. `name` stands for the file
 * in messages, which name line and value. -EINVAL, -ENOMEM. */
int fabric_map_parse(const char *name, const char *data, size_t len, const char *host,
                     struct fabric_ids *out, bool *named, char *why, size_t why_len);
int fabric_map_read(const char *path, const char *host, struct fabric_ids *out, char *why,
                    size_t why_len);

/* A word of letters, digits and -_. that fits: 0 or -EINVAL. A port: 1 to 255 or -EINVAL. */
int fabric_word_copy(const char *s, size_t len, char out[HOLMES_RDMA_NAME_MAX]);
int fabric_port_parse(const char *s, size_t len);

#endif
