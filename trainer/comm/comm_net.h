/* Collectives over any NCCL net plugin (ABI v8 to v12), loaded as NCCL loads it. */
#ifndef HOLMES_COMM_NET_H
#define HOLMES_COMM_NET_H

#include "comm.h"
#include "rendezvous.h"

/* One loaded plugin and the one progress thread of this process that makes all of its isend,
 * irecv and test calls. */
struct holmes_net;

struct holmes_net_attr {
    const char *plugin;    /* path, file name or NCCL_NET_PLUGIN-style NAME: as NCCL searches it */
    const char *device;    /* device by name; NULL: the first */
    int connect_timeout_s; /* bounds every wait for a peer to connect */
    int op_timeout_s;      /* bounds holmes_comm_ops.wait when it is given no timeout */
};

/* On failure `why` says which library was looked for, which symbols, or what the plugin answered.
 */
int holmes_net_open(const struct holmes_net_attr *attr, struct holmes_net **out, char *why,
                    size_t why_len);
void holmes_net_close(struct holmes_net *n); /* after its communicators; NULL is fine */

struct holmes_net_info {
    char path[512], name[64], device[64];
    int abi; /* 8 to 12 */
    int speed_mbps, ndev;
};
void holmes_net_info(const struct holmes_net *n, struct holmes_net_info *out);

/* CPU seconds that the progress thread has used. */
double holmes_net_cpu_seconds(const struct holmes_net *n);

/* The id under which the plugin (ABI v11 and later) knows a communicator of this name. */
uint64_t holmes_comm_net_id(const char *name);

/* Memory given to an operation of more than 32 KiB is registered with the plugin and used in place;
 * it stays registered, so that using it again costs nothing, until the communicator is destroyed or
 * has used 256 other ranges since. Until then it has to stay mapped: do not unmap it and map other
 * memory at its address. Smaller operations are copied.
 *
 * `rdv` must outlive the communicator, which watches it: when the job is aborted, every operation
 * under way completes with -ECONNABORTED.
 *
 * Collective over the group: `ranks` are world ranks (rendezvous ranks), `rank` this process's
 * index in it. `name` is unique in the job (rendezvous keys carry it). Ring neighbours are
 * connected here; send/recv pairs that are no neighbours at first use. */
int holmes_comm_net_create(struct holmes_net *n, struct holmes_rdv *rdv, const char *name,
                           const char *kind, const int *ranks, int size, int rank,
                           struct holmes_comm **out);

/* Bytes that a communicator of `size` ranks takes of its own once it summed `count` elements, for
 * all or (`scatter`) a block for each; what the plugin takes comes on top. Pure. */
size_t holmes_comm_net_bytes(int size, size_t count, enum holmes_dtype t, bool scatter);

#endif
