/* Private to the `verbs` wire: lanes are reliable-connection queue pairs of libibverbs, which is
 * opened at run time.
 *
 * wire_nic.lock covers the list of lanes and their raising. A wire_cq, its lanes' posts and their
 * rings belong to one thread at a time (driver.h); only wire_lane.status crosses threads, and is
 * atomic. Each NIC has one thread that reads the device's asynchronous events.
 */
#ifndef HOLMES_VERBS_H
#define HOLMES_VERBS_H

#include <infiniband/verbs.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <sys/types.h>

#include "../driver.h"
#include "list.h"

/* ---- library ------------------------------------------------------------------------------ */

/* What is not inline in libibverbs' headers. */
struct verbs_lib {
    int (*fork_init)(void);
    struct ibv_device **(*get_device_list)(int *count);
    void (*free_device_list)(struct ibv_device **list);
    const char *(*get_device_name)(struct ibv_device *device);
    struct ibv_context *(*open_device)(struct ibv_device *device);
    int (*close_device)(struct ibv_context *ctx);
    int (*get_async_event)(struct ibv_context *ctx, struct ibv_async_event *event);
    void (*ack_async_event)(struct ibv_async_event *event);
    int (*query_device)(struct ibv_context *ctx, struct ibv_device_attr *out);
    int (*query_port)(struct ibv_context *ctx, uint8_t port, struct _compat_ibv_port_attr *out);
    int (*query_gid)(struct ibv_context *ctx, uint8_t port, int index, union ibv_gid *out);
    struct ibv_pd *(*alloc_pd)(struct ibv_context *ctx);
    int (*dealloc_pd)(struct ibv_pd *pd);
    struct ibv_mr *(*reg_mr)(struct ibv_pd *pd, void *addr, size_t len, int access);
    int (*dereg_mr)(struct ibv_mr *mr);
    struct ibv_cq *(*create_cq)(struct ibv_context *ctx, int cqe, void *cq_context,
                                struct ibv_comp_channel *channel, int vector);
    int (*resize_cq)(struct ibv_cq *cq, int cqe);
    int (*destroy_cq)(struct ibv_cq *cq);
    struct ibv_qp *(*create_qp)(struct ibv_pd *pd, struct ibv_qp_init_attr *attr);
    int (*modify_qp)(struct ibv_qp *qp, struct ibv_qp_attr *attr, int mask);
    int (*destroy_qp)(struct ibv_qp *qp);
    const char *(*wc_status_str)(enum ibv_wc_status status);
    const char *(*event_type_str)(enum ibv_event_type event);
    /* NULL where the library is older. */
    struct ibv_mr *(*reg_mr_iova2)(struct ibv_pd *pd, void *addr, size_t len, uint64_t iova,
                                   unsigned access);
    struct ibv_mr *(*reg_dmabuf_mr)(struct ibv_pd *pd, uint64_t offset, size_t len, uint64_t iova,
                                    int fd, int access);
};
/* Valid after holmes_verbs_load returned 0. */
extern struct verbs_lib holmes_verbs;

int holmes_verbs_load(char *why, size_t why_len);

/* Newer fields included, as ibv_query_port of the headers does. 0 or a negative errno. */
int holmes_verbs_query_port(struct ibv_context *ctx, uint8_t port, struct ibv_port_attr *out);

/* ---- options: NCCL's variables ------------------------------------------------------------- */

struct verbs_options {
    int timeout, retry_cnt; /* of a queue pair, in the units of InfiniBand */
    int pkey_index;
    int sl, tc, fifo_tc; /* -1: not given */
    int relaxed_ordering;
    int adaptive_routing; /* 0, 1, negative: where the link is InfiniBand */
    size_t ar_threshold;
    bool async_errors; /* fatal events end lanes */
    bool retry_all;    /* modify is tried again after any error, not only a time-out */
    int retry_max, retry_sleep_ms;
};
void holmes_verbs_options_read(struct verbs_options *out);

/* Names the variables that are set and have no effect on this wire, separated by ", "; returns how
 * many. */
int holmes_verbs_options_idle(char *names, size_t len);

/* Service level and traffic class of a lane. `communicator`: its class, or -1. */
uint8_t holmes_verbs_sl(const struct verbs_options *o, int communicator);
uint8_t holmes_verbs_tc(const struct verbs_options *o, enum wire_role role, int communicator);

/* ---- what crosses the network ------------------------------------------------------------- */

#define VERBS_WIRE_MAGIC   0x48565242u /* "HVRB" */
#define VERBS_WIRE_VERSION 1           /* 1: first */

/* Blob of a lane. Big endian, 36 bytes: magic 4, version 1, role 1, link layer 1 (of ibverbs), path
 * MTU 1 (of ibverbs), queue pair number 4, packet sequence number 4, LID 2, zero 2, GID 16. */
#define VERBS_BLOB_LEN 36

/* One end of a lane, as the other must know it. */
struct verbs_end {
    enum wire_role role;
    uint8_t link_layer; /* IBV_LINK_LAYER_* */
    uint8_t mtu;        /* enum ibv_mtu */
    uint32_t qpn, psn;  /* 24 bits each */
    uint16_t lid;       /* InfiniBand only */
    union ibv_gid gid;
    bool needs_grh; /* not told: this port sends nothing without a global header */
};
size_t holmes_verbs_blob_encode(const struct verbs_end *e, uint8_t out[VERBS_BLOB_LEN]);
/* 0 or -EPROTO; every byte is checked. */
int holmes_verbs_blob_decode(const void *bytes, size_t len, struct verbs_end *out);

/* enum ibv_mtu of the largest path MTU of at most `bytes`; 0 for less than 256. */
uint8_t holmes_verbs_mtu(unsigned bytes);

/* Fills address vector and path MTU from the two ends. -EPROTO when their links differ. */
int holmes_verbs_path(const struct verbs_end *own, const struct verbs_end *peer, uint8_t port,
                      uint8_t gid_index, uint8_t sl, uint8_t tc, struct ibv_qp_attr *out);

bool holmes_verbs_gid_is_zero(const union ibv_gid *g); /* an entry of the table that is free */

/* "::ffff:10.0.0.1" or "lid 7", in `buf`. */
#define VERBS_END_TEXT 64
const char *holmes_verbs_end_text(const struct verbs_end *e, char buf[VERBS_END_TEXT]);

/* ---- objects ------------------------------------------------------------------------------ */

#define VERBS_SQ_DEPTH   256u /* work requests posted and not known to be done; a power of two */
#define VERBS_SIGNAL     64u  /* at least every so manieth asks for a completion */
#define VERBS_RQ_MIN     256u /* receives a peer that keeps to the protocol can need at once */
#define VERBS_RQ_BATCH   32u  /* receives posted again together */
#define VERBS_RQ_DEPTH   (VERBS_RQ_MIN + VERBS_RQ_BATCH)
#define VERBS_LANE_CQES  (2 * VERBS_SQ_DEPTH + VERBS_RQ_DEPTH) /* with those of flushes */
#define VERBS_INLINE_MAX 64u
#define VERBS_CQ_LANES   64u

struct wire_nic {
    struct holmes_nic nic;
    struct verbs_options opts;
    struct ibv_context *ctx;
    struct ibv_pd *pd;
    struct wire_limits limits;
    int max_cqe, max_qp_wr;
    bool endless;     /* it takes the largest retry count for "for ever": lanes are timed here */
    unsigned access;  /* of memory registrations */
    atomic_int fatal; /* negative errno once the device is lost */
    atomic_bool link_lost; /* the port was down at some time since */
    atomic_bool link_down; /* and is */

    pthread_mutex_t lock;
    pthread_cond_t raised;    /* some lane's `raising` ended */
    struct holmes_list lanes; /* wire_lane.node */
    atomic_int nretrying;     /* lanes whose raising is to be tried again */
    struct wire_mr flush_mr;  /* where flushes read to; priv NULL until one is asked for */
    uint8_t flush_bytes[64];

    pthread_t watcher;
    pid_t watched_by; /* the process that has the watcher; 0: none */
    int stop_fd;      /* eventfd that ends the watcher */
};

/* Work requests of one send queue, oldest first. */
struct verbs_ring {
    uint32_t head, tail;  /* posted, known to be done; free-running */
    uint32_t nsignalled;  /* between them, those that asked for a completion */
    uint32_t unsignalled; /* since the last that asked for a completion */
    struct verbs_slot {
        void *context;
        uint32_t len;
        bool report;    /* its completion is an event for the caller */
        bool signalled; /* there will be one */
    } slots[VERBS_SQ_DEPTH];
};

struct wire_cq {
    struct wire_nic *wn;
    struct ibv_cq *cq;
    unsigned nlanes;
    unsigned idle_polls; /* that found nothing */
    uint32_t generation; /* of the next lane */
    struct wire_lane *lanes[VERBS_CQ_LANES];
    /* Taken from the queue when a lane closed, for lanes that stay. */
    struct ibv_wc *saved;
    size_t nsaved, saved_cap, saved_at;
};

struct wire_lane {
    struct wire_nic *wn;
    struct wire_cq *cq;
    uint32_t id;             /* in work request ids: generation and place in cq->lanes */
    struct holmes_list node; /* in wire_nic.lanes */
    struct ibv_qp *qp;
    struct verbs_end own, peer;
    uint8_t gid_index, sl, tc;
    bool probe, adaptive;
    atomic_int status;    /* -EAGAIN rising, 0 up, else the first error */
    bool raising;         /* the kernel is at work for it, without the lock */
    uint64_t retry_at_ns; /* raising is tried again then; 0: it is not */
    int retries;
    unsigned rq_taken; /* receives used up and not posted again */
    unsigned sq_depth;
    uint64_t moved_ns; /* endless device: since when the oldest that asked is the oldest */
    struct verbs_ring sq;
    struct ibv_qp *flush_qp; /* connected to itself; NULL without `flush` */
    struct verbs_ring flush;
};

/* Leaves -EAGAIN or 0 for an error once; later errors are dropped. Returns the lane's error. */
int holmes_verbs_lane_fail(struct wire_lane *lane, int error);

/* Makes the device give back all that is posted. */
void holmes_verbs_qp_end(struct ibv_qp *qp);

/* verbs_async.c: starts and stops the thread that reads the device's events. */
int holmes_verbs_watch(struct wire_nic *wn);
void holmes_verbs_unwatch(struct wire_nic *wn);

/* verbs_err.c: a completion's status as 0 or a negative errno; the errno that a call left, with
 * `fallback` where it left none; the same for calls that open descriptors and hide that they ran
 * out of them. */
int holmes_verbs_status_errno(enum ibv_wc_status status);
int holmes_verbs_errno(int fallback);
int holmes_verbs_open_errno(int fallback);

/* verbs_data.c */
int holmes_verbs_lane_receives(struct wire_lane *lane, unsigned count); /* posts so many */
/* Gives the lane a place in its cq, which grows as needed. */
int holmes_verbs_cq_add(struct wire_cq *cq, struct wire_lane *lane);
/* After the lane's queue pairs are gone: none of its completions is reported any more. */
void holmes_verbs_cq_remove(struct wire_cq *cq, struct wire_lane *lane);

/* The slots of holmes_wire_verbs, by file. */
int holmes_verbs_nic_open(const struct holmes_nic *nic, uint16_t listen_port,
                          uint16_t listen_port_end, struct wire_nic **out);
void holmes_verbs_nic_close(struct wire_nic *wn);
void holmes_verbs_nic_limits(const struct wire_nic *wn, struct wire_limits *out);
int holmes_verbs_mr_reg(struct wire_nic *wn, void *addr, size_t len, struct wire_mr *out);
int holmes_verbs_mr_reg_dmabuf(struct wire_nic *wn, void *addr, size_t len, uint64_t offset, int fd,
                               struct wire_mr *out);
void holmes_verbs_mr_dereg(struct wire_nic *wn, struct wire_mr *mr);
int holmes_verbs_nic_status(const struct wire_nic *wn);
void holmes_verbs_nic_progress(struct wire_nic *wn);
int holmes_verbs_lane_create(struct wire_nic *wn, struct wire_cq *cq, enum wire_role role,
                             const struct wire_lane_params *params, void *blob, size_t *blob_len,
                             struct wire_lane **out);
int holmes_verbs_lane_connect(struct wire_lane *lane, const void *blob, size_t blob_len);
int holmes_verbs_lane_poll(struct wire_lane *lane);
void holmes_verbs_lane_close(struct wire_lane *lane);
int holmes_verbs_cq_open(struct wire_nic *wn, struct wire_cq **out);
void holmes_verbs_cq_close(struct wire_cq *cq);
int holmes_verbs_cq_poll(struct wire_cq *cq, struct wire_event *events, int max);
int holmes_verbs_lane_post(struct wire_lane *lane, const struct wire_write *w);
int holmes_verbs_lane_flush(struct wire_lane *lane, const void *buf, const struct wire_mr *mr,
                            void *context);

#endif
