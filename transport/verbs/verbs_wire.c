/* What the two ends of a lane tell each other, and what follows from it: the path between them.
 * Pure functions. The decoder takes foreign bytes. */
#include <arpa/inet.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "verbs.h"

#define LID_UNICAST_END 0xc000u
#define QPN_FIRST       2u /* 0 and 1 are for management */
#define HOP_LIMIT       255

static void put_be(uint8_t *p, uint64_t v, int bytes)
{
    for (int i = bytes - 1; i >= 0; i--, v >>= 8)
        p[i] = (uint8_t)v;
}

static uint64_t get_be(const uint8_t *p, int bytes)
{
    uint64_t v = 0;

    for (int i = 0; i < bytes; i++)
        v = v << 8 | p[i];
    return v;
}

size_t holmes_verbs_blob_encode(const struct verbs_end *e, uint8_t out[VERBS_BLOB_LEN])
{
    put_be(out, VERBS_WIRE_MAGIC, 4);
    out[4] = VERBS_WIRE_VERSION;
    out[5] = (uint8_t)e->role;
    out[6] = e->link_layer;
    out[7] = e->mtu;
    put_be(out + 8, e->qpn, 4);
    put_be(out + 12, e->psn, 4);
    put_be(out + 16, e->lid, 2);
    put_be(out + 18, 0, 2);
    memcpy(out + 20, e->gid.raw, 16);
    return VERBS_BLOB_LEN;
}

bool holmes_verbs_gid_is_zero(const union ibv_gid *g)
{
    static const union ibv_gid zero;

    return memcmp(g, &zero, sizeof zero) == 0;
}

/* An InfiniBand port is found by its LID, a RoCE port by its GID. */
static bool end_has_address(const struct verbs_end *e)
{
    if (e->link_layer == IBV_LINK_LAYER_INFINIBAND)
        return e->lid != 0 && e->lid < LID_UNICAST_END;
    return e->link_layer == IBV_LINK_LAYER_ETHERNET && e->lid == 0 &&
           !holmes_verbs_gid_is_zero(&e->gid);
}

int holmes_verbs_blob_decode(const void *bytes, size_t len, struct verbs_end *out)
{
    const uint8_t *p = bytes;
    struct verbs_end e = {0};

    if (len != VERBS_BLOB_LEN || get_be(p, 4) != VERBS_WIRE_MAGIC || p[4] != VERBS_WIRE_VERSION ||
        p[5] > WIRE_ACCEPT || get_be(p + 18, 2) != 0)
        return -EPROTO;
    e.role = (enum wire_role)p[5];
    e.link_layer = p[6];
    e.mtu = p[7];
    e.qpn = (uint32_t)get_be(p + 8, 4);
    e.psn = (uint32_t)get_be(p + 12, 4);
    e.lid = (uint16_t)get_be(p + 16, 2);
    memcpy(e.gid.raw, p + 20, 16);
    if (e.mtu < IBV_MTU_256 || e.mtu > IBV_MTU_4096 || e.qpn < QPN_FIRST || e.qpn >> 24 != 0 ||
        e.psn >> 24 != 0 || !end_has_address(&e))
        return -EPROTO;
    *out = e;
    return 0;
}

uint8_t holmes_verbs_mtu(unsigned bytes)
{
    uint8_t mtu = 0;

    for (unsigned size = 256; size <= 4096 && size <= bytes; size *= 2)
        mtu++; /* IBV_MTU_256 is 1, each next is twice as large */
    return mtu;
}

/* Bits that a router uses to find a port from another subnet. */
static uint16_t gid_flid(const union ibv_gid *g)
{
    return (uint16_t)get_be(g->raw + 4, 2);
}

/* Of InfiniBand GIDs. The bits of the FLID name a port, not a subnet. */
static bool same_subnet(const union ibv_gid *a, const union ibv_gid *b)
{
    return memcmp(a->raw, b->raw, 4) == 0 && memcmp(a->raw + 6, b->raw + 6, 2) == 0;
}

int holmes_verbs_path(const struct verbs_end *own, const struct verbs_end *peer, uint8_t port,
                      uint8_t gid_index, uint8_t sl, uint8_t tc, struct ibv_qp_attr *out)
{
    struct ibv_ah_attr *ah = &out->ah_attr;
    bool infiniband = own->link_layer == IBV_LINK_LAYER_INFINIBAND;

    if (own->link_layer != peer->link_layer)
        return -EPROTO;
    out->path_mtu = (enum ibv_mtu)(own->mtu < peer->mtu ? own->mtu : peer->mtu);
    *ah = (struct ibv_ah_attr){.port_num = port, .sl = sl};
    ah->is_global = !infiniband || own->needs_grh || !same_subnet(&own->gid, &peer->gid);
    if (infiniband)
        ah->dlid = ah->is_global && gid_flid(&peer->gid) ? gid_flid(&peer->gid) : peer->lid;
    if (ah->is_global)
        ah->grh = (struct ibv_global_route){.dgid = peer->gid,
                                            .sgid_index = gid_index,
                                            .hop_limit = HOP_LIMIT,
                                            .traffic_class = tc};
    return 0;
}

const char *holmes_verbs_end_text(const struct verbs_end *e, char buf[VERBS_END_TEXT])
{
    char gid[INET6_ADDRSTRLEN];

    if (e->link_layer == IBV_LINK_LAYER_INFINIBAND)
        snprintf(buf, VERBS_END_TEXT, "lid %u qp 0x%x", e->lid, e->qpn);
    else
        snprintf(buf, VERBS_END_TEXT, "%s qp 0x%x", inet_ntop(AF_INET6, &e->gid, gid, sizeof gid),
                 e->qpn);
    return buf;
}
