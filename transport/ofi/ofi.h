/* Private to the `ofi` wire: lanes are FI_EP_MSG endpoints of libfabric's provider "tcp".
 *
 * wire_nic.lock covers the event queue, the lists of lanes and strangers and the life of endpoints.
 * A wire_cq, its lanes' posts and its operations belong to one thread at a time (driver.h); only
 * wire_lane.status crosses threads, and is atomic.
 */
#ifndef HOLMES_OFI_H
#define HOLMES_OFI_H

#include <pthread.h>
#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_eq.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "../driver.h"
#include "../tcp_peer.h"
#include "list.h"

/* The API this code is written for. A newer library serves it; an older one refuses. */
#define OFI_API_VERSION FI_VERSION(1, 17)

/* Of the blob and of the private data of a connect request (tcp_peer.h). */
#define OFI_MAGIC 0x484f4649u /* "HOFI" */

/* ---- library ------------------------------------------------------------------------------ */

/* The few symbols that are not inline in libfabric's headers. */
struct ofi_lib {
    int (*getinfo)(uint32_t version, const char *node, const char *service, uint64_t flags,
                   const struct fi_info *hints, struct fi_info **info);
    void (*freeinfo)(struct fi_info *info);
    struct fi_info *(*dupinfo)(const struct fi_info *info);
    int (*fabric)(struct fi_fabric_attr *attr, struct fid_fabric **fabric, void *context);
    uint32_t (*version)(void);
};
/* Valid after holmes_ofi_load returned 0. */
extern struct ofi_lib holmes_ofi;

int holmes_ofi_load(char *why, size_t why_len);

/* The provider's offer for endpoints at `addr`; freed with holmes_ofi.freeinfo. -ENODATA when this
 * libfabric has no provider tcp. */
int holmes_ofi_query(const struct holmes_addr *addr, struct fi_info **out);

/* ---- objects ------------------------------------------------------------------------------ */

/* A connection to the passive endpoint that has not sent its request yet. */
struct ofi_stranger {
    int fd; /* the provider's; never closed here */
    struct holmes_addr peer;
    uint64_t since_ns;
    bool seen, dropped;
};

#define OFI_STRANGERS_MAX 64 /* beside one for each lane that waits for its stream */

struct wire_nic {
    struct holmes_nic nic;
    struct fi_info *info; /* with nic.addrs[0] as source */
    struct fid_fabric *fabric;
    struct fid_domain *domain;
    struct fid_eq *eq;
    struct fid_pep *pep;
    struct holmes_addr listen; /* where pep listens */
    int listen_fd;             /* the provider's socket for it; -1 when not found */
    struct wire_limits limits;
    bool virt_addr, prov_key;

    pthread_mutex_t lock;
    struct holmes_list lanes; /* wire_lane.node */

    struct ofi_stranger *strangers; /* in order of arrival */
    int nstrangers, strangers_cap;
    uint64_t next_sweep_ns;
};

/* What a post gives the provider as context. Lives in its cq until that closes, so that a late
 * event of a closed lane finds `lane` NULL instead of freed memory. */
struct ofi_op {
    struct wire_lane *lane; /* NULL: free, or its lane is closed */
    void *context;          /* of the caller */
    bool silent;            /* stands for all writes of its lane that are not reported; never free
                               again */
    struct ofi_op *next;    /* free list */
};

struct ofi_op_chunk {
    struct ofi_op_chunk *next;
    struct ofi_op ops[128];
};

struct wire_cq {
    struct wire_nic *wn;
    struct fid_cq *cq;
    struct ofi_op *free_ops;
    struct ofi_op_chunk *chunks;
};

struct wire_lane {
    struct wire_nic *wn;
    struct wire_cq *cq;
    enum wire_role role;
    struct holmes_list node;  /* in wire_nic.lanes */
    struct fid_ep *ep;        /* NULL until connect or request */
    struct holmes_addr peer;  /* accepting: the other end of the stream once there is one */
    struct holmes_addr via;   /* connecting: see wire_ops.lane_via; family 0 until told */
    uint64_t secret;          /* accepting; 0 once quoted */
    atomic_int status;        /* -EAGAIN rising, 0 up, else the first error */
    struct ofi_op *silent_op; /* names this lane when a write fails that is not reported */
};

/* Leaves -EAGAIN or 0 for an error once; later errors are dropped. */
void holmes_ofi_lane_fail(struct wire_lane *lane, int error);

/* ofi_ep.c; both with wn->lock held. Takes over `req` (info and handle) on success. */
int holmes_ofi_lane_answer(struct wire_lane *lane, struct fi_info *req);

/* ofi_cm.c; wn->lock held. Reads all events and dispatches them. */
void holmes_ofi_events(struct wire_nic *wn);

/* ofi_stranger.c; wn->lock held. Drops silent connections; with `all`, every one. Returns how many
 * there are, the dropped ones included until the provider has closed them. */
int holmes_ofi_sweep(struct wire_nic *wn, bool all);
/* The descriptor of the passive endpoint, or -1. */
int holmes_ofi_listener_fd(struct wire_nic *wn);

/* ofi_data.c. A lane that closes leaves its ops in the cq without a lane; their events are dropped.
 * op_get returns NULL when out of memory. */
struct ofi_op *holmes_ofi_op_get(struct wire_lane *lane, void *context, bool silent);
void holmes_ofi_ops_orphan(struct wire_lane *lane);

/* ofi_err.c: a libfabric result (0, -errno or -FI_E*) as 0 or a negative errno. */
int holmes_ofi_errno(ssize_t ret);
/* The same for calls that open descriptors: the provider says EIO for some that ran out of them,
 * this says -EMFILE or -ENFILE. */
int holmes_ofi_open_errno(ssize_t ret);

/* The slots of holmes_wire_ofi, by file. */
int holmes_ofi_nic_open(const struct holmes_nic *nic, uint16_t listen_port,
                        uint16_t listen_port_end, struct wire_nic **out);
void holmes_ofi_nic_close(struct wire_nic *wn);
void holmes_ofi_nic_limits(const struct wire_nic *wn, struct wire_limits *out);
int holmes_ofi_mr_reg(struct wire_nic *wn, void *addr, size_t len, struct wire_mr *out);
void holmes_ofi_mr_dereg(struct wire_nic *wn, struct wire_mr *mr);
void holmes_ofi_nic_progress(struct wire_nic *wn);
int holmes_ofi_lane_create(struct wire_nic *wn, struct wire_cq *cq, enum wire_role role,
                           const struct wire_lane_params *params, void *blob, size_t *blob_len,
                           struct wire_lane **out);
void holmes_ofi_lane_via(struct wire_lane *lane, const struct holmes_addr *peer);
int holmes_ofi_lane_connect(struct wire_lane *lane, const void *blob, size_t blob_len);
int holmes_ofi_lane_poll(struct wire_lane *lane);
void holmes_ofi_lane_close(struct wire_lane *lane);
int holmes_ofi_cq_open(struct wire_nic *wn, struct wire_cq **out);
void holmes_ofi_cq_close(struct wire_cq *cq);
int holmes_ofi_cq_poll(struct wire_cq *cq, struct wire_event *events, int max);
int holmes_ofi_lane_post(struct wire_lane *lane, const struct wire_write *w);

#endif
