#include "path.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "env.h"
#include "pages.h"

static size_t control_size(bool sending)
{
    return sending ? sizeof(struct proto_send_control) : sizeof(struct proto_recv_control);
}

struct path_plan path_plain(struct device *dev, int nlanes)
{
    return (struct path_plan){
        .dev = dev, .nrails = 1, .nlanes = nlanes, .rails[0].params.traffic_class = -1};
}

struct path_plan path_tcp(struct device *const *devs, int n, int streams)
{
    bool bundles = devs[0]->t->tcp && devs[0]->t->tcp->bundles;
    struct path_plan plan = path_plain(devs[0], bundles ? 1 : streams);
    struct wire_lane_params *params = &plan.rails[0].params;

    params->streams = streams;
    for (int i = 1; i < n; i++)
        params->mates[params->nmates++] = devs[i]->wn;
    return plan;
}

int path_streams(const struct holmes_conn *c)
{
    int n = 0;

    for (int i = 0; i < c->nlanes; i++)
        n += c->ops->bundles ? c->ops->lane_streams(c->lanes[i]) : 1;
    return n;
}

/* ---- opening ---- */

static int rail_open(struct holmes_conn *c, struct conn_rail *rail)
{
    int rc = c->ops->cq_open(rail->dev->wn, &rail->cq);

    if (rc != 0)
        rail->cq = NULL;
    if (rc == 0)
        rc = c->ops->mr_reg(rail->dev->wn, c->control, control_size(c->sending), &rail->control_mr);
    rail->control_registered = rc == 0;
    return rc;
}

static void take_limits(struct holmes_conn *c, const struct wire_limits *l)
{
    if (c->nrails == 1)
        c->limits = *l;
    if (l->max_write < c->limits.max_write)
        c->limits.max_write = l->max_write;
    if (l->inline_max < c->limits.inline_max)
        c->limits.inline_max = l->inline_max;
}

static int rails_open(struct holmes_conn *c, const struct path_plan *plan)
{
    int rc = 0;

    c->control = holmes_pages_get(control_size(c->sending));
    if (!c->control)
        return -ENOMEM;
    for (int i = 0; rc == 0 && i < plan->nrails; i++) {
        struct conn_rail *rail = &c->rails[i];

        rail->member = plan->rails[i].member;
        rail->dev = plan->dev->members[rail->member];
        c->ops = rail->dev->ops;
        c->nrails = i + 1;
        take_limits(c, &rail->dev->limits);
        rc = rail_open(c, rail);
    }
    return rc;
}

static int lanes_open(struct holmes_conn *c, const struct path_plan *plan, struct proto_info *info)
{
    int rc = 0;

    for (int i = 0; rc == 0 && i < plan->nlanes; i++) {
        struct conn_rail *rail = &c->rails[i % c->nrails];
        size_t len = 0;

        rc = c->ops->lane_create(rail->dev->wn, rail->cq, c->sending ? WIRE_CONNECT : WIRE_ACCEPT,
                                 &plan->rails[i % c->nrails].params, info->lanes[i].bytes, &len,
                                 &c->lanes[i]);
        if (rc != 0)
            c->lanes[i] = NULL;
        info->lanes[i].len = (uint16_t)len;
        c->nlanes = i + (rc == 0);
    }
    return rc;
}

/* NCCL's NCCL_IB_SPLIT_DATA_ON_QPS: a message goes over all queue pairs, or over one of each rail
 * in turn. A stream of tcp is no queue pair: there, lanes are cores. */
static int width(const struct holmes_conn *c)
{
    if (!device_is_rdma(c->dev) || holmes_env_int(HOLMES_ENV_NCCL_IB_SPLIT_DATA_ON_QPS))
        return c->nlanes;
    return c->nrails;
}

int path_open(struct holmes_conn *c, const struct path_plan *plan, struct proto_info *info)
{
    int rc = device_open(plan->dev);

    memset(info, 0, sizeof *info);
    c->dev = plan->dev;
    if (rc == 0)
        rc = rails_open(c, plan);
    if (rc == 0)
        rc = lanes_open(c, plan, info);
    if (rc != 0)
        return rc;
    c->width = width(c);
    info->control_addr = c->rails[0].control_mr.base;
    for (int i = 0; i < c->nrails; i++)
        info->control_keys[i] = c->rails[i].control_mr.key;
    info->control_len = (uint32_t)control_size(c->sending);
    info->nlanes = (uint16_t)c->nlanes;
    info->max_group = HOLMES_MAX_GROUP;
    proto_text(info->nic, sizeof info->nic, c->dev->nic.name);
    return 0;
}

/* ---- closing ---- */

void path_close_lanes(struct holmes_conn *c, int nlanes)
{
    for (int i = nlanes; i < HOLMES_MAX_LANES; i++) {
        if (c->lanes[i])
            c->ops->lane_close(c->lanes[i]);
        c->lanes[i] = NULL;
    }
    if (c->nlanes > nlanes && nlanes > 0)
        c->nlanes = nlanes;
}

void path_close(struct holmes_conn *c)
{
    path_close_lanes(c, 0);
    for (int i = 0; i < c->nrails; i++) {
        struct conn_rail *rail = &c->rails[i];

        if (rail->control_registered)
            c->ops->mr_dereg(rail->dev->wn, &rail->control_mr);
        if (rail->cq)
            c->ops->cq_close(rail->cq);
    }
    holmes_pages_put(c->control, control_size(c->sending));
    c->control = NULL;
    memset(c->rails, 0, sizeof c->rails);
    c->nrails = c->nlanes = 0;
}

/* ---- the peer's half ---- */

int path_take_peer(struct holmes_conn *c, const struct proto_info *info, char *why, size_t why_len)
{
    if (info->control_len < control_size(!c->sending)) {
        snprintf(why, why_len, "offers %u bytes of control memory, %zu are needed",
                 info->control_len, control_size(!c->sending));
        return -EPROTO;
    }
    if (info->nlanes > c->nlanes || info->nlanes < c->nrails) {
        snprintf(why, why_len, "answers %u lanes to an offer of %d over %d rails", info->nlanes,
                 c->nlanes, c->nrails);
        return -EPROTO;
    }
    path_close_lanes(c, info->nlanes);
    c->width = width(c);
    c->peer = *info;
    return 0;
}

int path_connect(struct holmes_conn *c)
{
    struct holmes_addr via;
    int rc = 0;

    if (c->lanes_connected)
        return 0;
    oob_peer_addr(&c->oob, &via);
    for (int i = 0; rc == 0 && i < c->nlanes; i++) {
        if (c->sending && c->ops->lane_via)
            c->ops->lane_via(c->lanes[i], &via);
        rc = c->ops->lane_connect(c->lanes[i], c->peer.lanes[i].bytes, c->peer.lanes[i].len);
    }
    c->lanes_connected = rc == 0;
    return rc;
}
