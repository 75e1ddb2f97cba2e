/* The work requests that Holmes posts for a message, with nothing around them: an inline write of
 * 64 bytes that clears to send, a write with an immediate that carries the message and asks for a
 * completion, receives without buffers posted ahead in batches. One queue pair for each direction,
 * each with a completion queue, as two connections have. */
#include <arpa/inet.h>
#include <infiniband/verbs.h>
#include <stdlib.h>
#include <string.h>

#include "side.h"

#define CTS_SLOTS 256u
#define SQ_DEPTH  256u
#define RQ_DEPTH  288u
#define RQ_BATCH  32u
#define SIGNAL    64u /* every so manieth clear-to-send asks for a completion */

/* What a receiver writes to its sender, one cache line. */
struct cts {
    uint64_t addr, key, size, reserved[4];
    uint64_t seq; /* of the message, from 1 */
};

/* What one end must know of the other's queue pair. */
struct address {
    uint32_t qpn, psn;
    union ibv_gid gid;
    uint64_t cts_addr;
    uint32_t cts_key;
    int mtu;
};

struct pair {
    struct ibv_cq *cq;
    struct ibv_qp *qp;
};

struct side {
    struct side_config config;
    struct ibv_context *ctx;
    struct ibv_pd *pd;
    struct pair out, in;
    char *buffers; /* SIDE_WINDOW to send from, as many to receive into */
    struct ibv_mr *buffers_mr;
    struct cts *cts; /* written by the peer */
    struct ibv_mr *cts_mr;
    uint64_t peer_cts;
    uint32_t peer_cts_key;
    unsigned sent, arrived; /* completed */
    unsigned rq_taken, silent;
};

static void device_open(struct side *s)
{
    int n = 0;
    struct ibv_device **list = ibv_get_device_list(&n);

    for (int i = 0; i < n && !s->ctx; i++) {
        if (strcmp(ibv_get_device_name(list[i]), s->config.device) == 0)
            s->ctx = ibv_open_device(list[i]);
    }
    if (list)
        ibv_free_device_list(list);
    s->pd = s->ctx ? ibv_alloc_pd(s->ctx) : NULL;
    if (!s->pd)
        side_die("cannot open RDMA device %s", s->config.device);
}

static void memory_make(struct side *s)
{
    size_t len = 2 * SIDE_WINDOW * s->config.size;

    if (posix_memalign((void **)&s->buffers, 4096, len) != 0 ||
        posix_memalign((void **)&s->cts, 4096, CTS_SLOTS * sizeof *s->cts) != 0)
        side_die("out of memory");
    memset(s->buffers, 0x5a, len);
    memset(s->cts, 0, CTS_SLOTS * sizeof *s->cts);
    s->buffers_mr =
        ibv_reg_mr(s->pd, s->buffers, len, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
    s->cts_mr = ibv_reg_mr(s->pd, s->cts, CTS_SLOTS * sizeof *s->cts,
                           IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
    if (!s->buffers_mr || !s->cts_mr)
        side_die("cannot register %zu bytes", len);
}

static void receives_post(struct pair *p, unsigned n)
{
    struct ibv_recv_wr wrs[RQ_BATCH], *bad;

    for (unsigned i = 0; i < n; i++)
        wrs[i] = (struct ibv_recv_wr){.next = i + 1 < n ? &wrs[i + 1] : NULL};
    if (ibv_post_recv(p->qp, wrs, &bad) != 0)
        side_die("cannot post receives");
}

static void pair_make(struct side *s, struct pair *p)
{
    struct ibv_qp_init_attr init = {.qp_type = IBV_QPT_RC,
                                    .cap = {.max_send_wr = SQ_DEPTH,
                                            .max_recv_wr = RQ_DEPTH,
                                            .max_send_sge = 1,
                                            .max_recv_sge = 1,
                                            .max_inline_data = sizeof(struct cts)}};
    struct ibv_qp_attr attr = {
        .qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = IBV_ACCESS_REMOTE_WRITE};

    p->cq = ibv_create_cq(s->ctx, SQ_DEPTH + RQ_DEPTH, NULL, NULL, 0);
    init.send_cq = init.recv_cq = p->cq;
    p->qp = p->cq ? ibv_create_qp(s->pd, &init) : NULL;
    if (!p->qp ||
        ibv_modify_qp(p->qp, &attr,
                      IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS) != 0)
        side_die("cannot create a queue pair on %s", s->config.device);
    for (unsigned i = 0; i < RQ_DEPTH; i += RQ_BATCH)
        receives_post(p, RQ_BATCH);
}

static void pair_raise(const struct side *s, struct pair *p, const struct address *own,
                       const struct address *peer)
{
    struct ibv_qp_attr rtr = {.qp_state = IBV_QPS_RTR,
                              .path_mtu =
                                  (enum ibv_mtu)(own->mtu < peer->mtu ? own->mtu : peer->mtu),
                              .dest_qp_num = peer->qpn,
                              .rq_psn = peer->psn,
                              .max_dest_rd_atomic = 1,
                              .min_rnr_timer = 12,
                              .ah_attr = {.is_global = 1,
                                          .port_num = 1,
                                          .grh = {.dgid = peer->gid,
                                                  .sgid_index = (uint8_t)s->config.gid_index,
                                                  .hop_limit = 255}}};
    struct ibv_qp_attr rts = {.qp_state = IBV_QPS_RTS,
                              .timeout = 14,
                              .retry_cnt = 6,
                              .rnr_retry = 7,
                              .sq_psn = own->psn,
                              .max_rd_atomic = 1};

    if (ibv_modify_qp(p->qp, &rtr,
                      IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                          IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER) != 0 ||
        ibv_modify_qp(p->qp, &rts,
                      IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
                          IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC) != 0)
        side_die("cannot connect a queue pair of %s", s->config.device);
}

static struct side *bare_open(const struct side_config *config)
{
    struct side *s = calloc(1, sizeof *s);
    struct address mine[2] = {{0}}, theirs[2]; /* of out, of in */
    struct ibv_port_attr port;
    union ibv_gid gid;

    if (!s)
        side_die("out of memory");
    s->config = *config;
    device_open(s);
    memory_make(s);
    pair_make(s, &s->out);
    pair_make(s, &s->in);
    if (ibv_query_port(s->ctx, 1, &port) != 0 ||
        ibv_query_gid(s->ctx, 1, config->gid_index, &gid) != 0)
        side_die("cannot read port 1 of %s", config->device);
    for (int i = 0; i < 2; i++)
        mine[i] = (struct address){.qpn = (i == 0 ? s->out : s->in).qp->qp_num,
                                   .psn = 0x123456,
                                   .gid = gid,
                                   .cts_addr = (uintptr_t)s->cts,
                                   .cts_key = s->cts_mr->rkey,
                                   .mtu = (int)port.active_mtu};
    side_swap(config->socket, mine, theirs, sizeof mine);
    pair_raise(s, &s->out, &mine[0], &theirs[1]);
    pair_raise(s, &s->in, &mine[1], &theirs[0]);
    s->peer_cts = theirs[0].cts_addr;
    s->peer_cts_key = theirs[0].cts_key;
    side_swap(config->socket, mine, theirs, 1); /* both are up */
    return s;
}

static void bare_close(struct side *s)
{
    ibv_destroy_qp(s->out.qp);
    ibv_destroy_qp(s->in.qp);
    ibv_destroy_cq(s->out.cq);
    ibv_destroy_cq(s->in.cq);
    ibv_dereg_mr(s->buffers_mr);
    ibv_dereg_mr(s->cts_mr);
    ibv_dealloc_pd(s->pd);
    ibv_close_device(s->ctx);
    free(s->buffers);
    free(s->cts);
    free(s);
}

static void post(struct pair *p, struct ibv_send_wr *wr)
{
    struct ibv_send_wr *bad;

    if (ibv_post_send(p->qp, wr, &bad) != 0)
        side_die("cannot post a write");
}

static void bare_recv(struct side *s, unsigned i)
{
    char *buf = s->buffers + (SIDE_WINDOW + i % SIDE_WINDOW) * s->config.size;
    struct cts cts = {.addr = (uintptr_t)buf,
                      .key = s->buffers_mr->rkey,
                      .size = s->config.size,
                      .seq = (uint64_t)i + 1};
    struct ibv_sge sge = {.addr = (uintptr_t)&cts, .length = sizeof cts};
    struct ibv_send_wr wr = {.opcode = IBV_WR_RDMA_WRITE,
                             .send_flags = IBV_SEND_INLINE,
                             .sg_list = &sge,
                             .num_sge = 1,
                             .wr.rdma = {.remote_addr = s->peer_cts + i % CTS_SLOTS * sizeof cts,
                                         .rkey = s->peer_cts_key}};

    if (++s->silent == SIGNAL) {
        s->silent = 0;
        wr.send_flags |= IBV_SEND_SIGNALED;
    }
    post(&s->in, &wr);
}

static bool bare_send(struct side *s, unsigned i)
{
    const struct cts *cts = &s->cts[i % CTS_SLOTS];
    struct ibv_sge sge = {.addr = (uintptr_t)s->buffers + i % SIDE_WINDOW * s->config.size,
                          .length = (uint32_t)s->config.size,
                          .lkey = s->buffers_mr->lkey};
    struct ibv_send_wr wr = {.opcode = IBV_WR_RDMA_WRITE_WITH_IMM,
                             .send_flags = IBV_SEND_SIGNALED,
                             .imm_data = htonl(i),
                             .sg_list = &sge,
                             .num_sge = 1};

    if (__atomic_load_n(&cts->seq, __ATOMIC_ACQUIRE) != (uint64_t)i + 1)
        return false;
    wr.wr.rdma.remote_addr = cts->addr;
    wr.wr.rdma.rkey = (uint32_t)cts->key;
    post(&s->out, &wr);
    return true;
}

static void poll_pair(struct side *s, struct pair *p)
{
    struct ibv_wc wcs[16];
    int n = ibv_poll_cq(p->cq, 16, wcs);

    for (int i = 0; i < n; i++) {
        if (wcs[i].status != IBV_WC_SUCCESS)
            side_die("%s: %s", s->config.device, ibv_wc_status_str(wcs[i].status));
        if (wcs[i].opcode == IBV_WC_RECV_RDMA_WITH_IMM) {
            s->arrived++;
            if (++s->rq_taken == RQ_BATCH) {
                s->rq_taken = 0;
                receives_post(p, RQ_BATCH);
            }
        } else if (p == &s->out) {
            s->sent++;
        }
    }
}

static bool bare_recv_done(struct side *s, unsigned i)
{
    if (s->arrived <= i)
        poll_pair(s, &s->in);
    return s->arrived > i;
}

static bool bare_send_done(struct side *s, unsigned i)
{
    if (s->sent <= i)
        poll_pair(s, &s->out);
    return s->sent > i;
}

const struct side_ops side_bare = {
    .name = "bare",
    .open = bare_open,
    .close = bare_close,
    .recv = bare_recv,
    .send = bare_send,
    .recv_done = bare_recv_done,
    .send_done = bare_send_done,
};
