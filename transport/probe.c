#include "probe.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "context.h"

#define EVENTS 4

struct probe {
    struct device *dev;
    bool lead;
    struct wire_cq *cq;
    struct wire_lane *lane;
    uint8_t *buf; /* the peer writes into the first half, our writes start from the second */
    struct wire_mr mr;
    uint32_t len;
    uint64_t own_nonce, peer_nonce, peer_addr, peer_key;
    bool connected, bulk_posted, posted, written, seen;
};

int probe_open(struct device *dev, bool lead, struct proto_probe *frame, struct probe **out)
{
    struct wire_lane_params params = {.gid_index =
                                          lead ? frame->rail.accept_gid : frame->rail.dial_gid,
                                      .mtu = frame->rail.mtu,
                                      .probe = true,
                                      .traffic_class = -1};
    struct probe *p = calloc(1, sizeof *p);
    size_t blob_len = 0;
    int rc;

    if (!p)
        return -ENOMEM;
    p->dev = dev;
    p->lead = lead;
    p->len = frame->len;
    if (posix_memalign((void **)&p->buf, 4096, 2 * PROTO_PROBE_MAX) != 0) {
        free(p);
        return -ENOMEM;
    }
    memset(p->buf, 0, 2 * PROTO_PROBE_MAX);
    rc = getrandom(&p->own_nonce, sizeof p->own_nonce, 0) == sizeof p->own_nonce ? 0 : -EIO;
    if (rc == 0)
        rc = dev->ops->mr_reg(dev->wn, p->buf, 2 * PROTO_PROBE_MAX, &p->mr);
    if (rc != 0) {
        free(p->buf);
        free(p);
        return rc;
    }
    rc = dev->ops->cq_open(dev->wn, &p->cq);
    if (rc == 0)
        rc = dev->ops->lane_create(dev->wn, p->cq, lead ? WIRE_ACCEPT : WIRE_CONNECT, &params,
                                   frame->lane.bytes, &blob_len, &p->lane);
    if (rc != 0) {
        probe_close(p);
        return rc;
    }
    frame->lane.len = (uint16_t)blob_len;
    frame->nonce = p->own_nonce;
    frame->addr = p->mr.base;
    frame->key = p->mr.key;
    *out = p;
    return 0;
}

void probe_close(struct probe *p)
{
    if (!p)
        return;
    if (p->lane)
        p->dev->ops->lane_close(p->lane);
    if (p->cq)
        p->dev->ops->cq_close(p->cq);
    p->dev->ops->mr_dereg(p->dev->wn, &p->mr);
    free(p->buf);
    free(p);
}

int probe_connect(struct probe *p, const struct proto_probe *peer)
{
    int rc = p->dev->ops->lane_connect(p->lane, peer->lane.bytes, peer->lane.len);

    p->peer_nonce = peer->nonce;
    p->peer_addr = peer->addr;
    p->peer_key = peer->key;
    p->connected = rc == 0;
    return rc;
}

/* What the owner of a nonce wants to see. */
static uint8_t pattern(uint64_t nonce, uint32_t i)
{
    return (uint8_t)(nonce >> 8 * (i % 8)) ^ (uint8_t)(i >> 8);
}

static bool arrived_whole(const struct probe *p)
{
    bool whole = true;

    for (uint32_t i = 0; whole && i < p->len; i++)
        whole = p->buf[i] == pattern(p->own_nonce, i);
    return whole;
}

static int post(struct probe *p)
{
    struct wire_write bulk = {.buf = p->buf + PROTO_PROBE_MAX,
                              .len = p->len,
                              .mr = &p->mr,
                              .remote_addr = p->peer_addr,
                              .remote_key = p->peer_key,
                              .flags = WIRE_QUIET};
    struct wire_write end = {
        .mr = &p->mr, .flags = WIRE_WITH_IMM, .imm = (uint32_t)p->peer_nonce, .context = p};
    int rc = 0;

    if (!p->bulk_posted) {
        for (uint32_t i = 0; i < p->len; i++)
            p->buf[PROTO_PROBE_MAX + i] = pattern(p->peer_nonce, i);
        rc = p->dev->ops->lane_post(p->lane, &bulk);
        p->bulk_posted = rc == 0;
    }
    if (rc == 0)
        rc = p->dev->ops->lane_post(p->lane, &end);
    p->posted = rc == 0;
    return rc == -EAGAIN ? 0 : rc;
}

static int take_event(struct probe *p, const struct wire_event *e)
{
    switch (e->type) {
    case WIRE_WRITE_DONE:
        p->written = true;
        return 0;
    case WIRE_IMM:
        /* Not our nonce: somebody else's queue pair, or bytes lost on the way. */
        if (e->imm != (uint32_t)p->own_nonce || !arrived_whole(p))
            return -EBADMSG;
        p->seen = true;
        return 0;
    case WIRE_ERROR:
        return e->error ? e->error : -EIO;
    }
    return -EIO;
}

int probe_progress(struct probe *p)
{
    struct wire_event events[EVENTS];
    int n, rc = 0;

    if (!p->connected)
        return -EAGAIN;
    p->dev->ops->nic_progress(p->dev->wn);
    n = p->dev->ops->cq_poll(p->cq, events, EVENTS);
    if (n < 0)
        return n;
    for (int i = 0; rc == 0 && i < n; i++)
        rc = take_event(p, &events[i]);
    if (rc == 0)
        rc = p->dev->ops->lane_poll(p->lane);
    if (rc == 0 && !p->posted && (p->lead || p->seen))
        rc = post(p);
    if (rc != 0)
        return rc;
    return p->written && p->seen ? 0 : -EAGAIN;
}
