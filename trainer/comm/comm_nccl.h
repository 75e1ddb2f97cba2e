/* Collectives by NCCL on GPU memory, over the net plugin of our choice. Host memory may be given
 * too: it passes through memory of the GPU, which is meant for a few numbers.
 *
 * An operation starts when what was queued on the table's stream before it is done, and runs beside
 * what is queued after, until that stream follows it. Every operation is waited for by the host
 * some time, which looks at NCCL's own error and at the job meanwhile: a dead peer ends every wait,
 * and the communicator is aborted, so that its kernels leave the GPU.
 *
 * NCCL sums bfloat16 in its own way: each hop rounds to bfloat16. The result is the same on every
 * rank all the same.
 */
#ifndef HOLMES_COMM_NCCL_H
#define HOLMES_COMM_NCCL_H

#include "comm.h"
#include "rendezvous.h"

struct holmes_nccl; /* one per process */

struct holmes_nccl_attr {
    /* What NCCL takes its network from, and no other; unless NCCL_NET_PLUGIN is set, or NULL */
    const char *plugin;
    const char *nccl, *cuda; /* libraries; NULL: libnccl.so.2, libcuda.so.1 */
    void *stream;            /* kernels.h's: operations come after what is queued there */
    int connect_timeout_s;   /* bounds the setting up of a communicator */
    int op_timeout_s;        /* bounds holmes_comm_ops.wait when it is given no timeout */
};

/* A GPU must have been chosen for the process. On failure `why` says what is missing. */
int holmes_nccl_open(const struct holmes_nccl_attr *attr, struct holmes_nccl **out, char *why,
                     size_t why_len);
void holmes_nccl_close(struct holmes_nccl *n);        /* after its communicators; NULL is fine */
int holmes_nccl_version(const struct holmes_nccl *n); /* 22809 is 2.28.9 */

/* As holmes_comm_net_create. Communicators of kind "pp" have one or two ranks and are two of
 * NCCL's, one for each direction, since operations of one follow each other: a receive posted ahead
 * would hold up the send behind it. Others have one, on which sends and receives keep the order
 * they were posted in; the first message between two ranks starts when the other end has called
 * too, and the next call waits for that.
 *
 * Traffic is what a ring carries for the operations made, computed from their sizes; which bytes
 * NCCL moved in which algorithm it does not tell. */
int holmes_comm_nccl_create(struct holmes_nccl *n, struct holmes_rdv *rdv, const char *name,
                            const char *kind, const int *ranks, int size, int rank,
                            struct holmes_comm **out);

#endif
