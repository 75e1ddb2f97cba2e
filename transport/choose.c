#include "choose.h"

#include <arpa/inet.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* Kinds of GID that can talk to their like, best first (NCCL's users know these rules as
 * NCCL_IB_GID_INDEX=3). */
enum gid_class {
    GID_V2_IPV4,
    GID_V2_IPV6,
    GID_V1_IPV4,
    GID_V1_IPV6,
    GID_V2_LINK_LOCAL,
    GID_V1_LINK_LOCAL,
    GID_CLASSES,
};

static bool is_mapped(const uint8_t *gid)
{
    static const uint8_t prefix[12] = {[10] = 0xff, [11] = 0xff};

    return memcmp(gid, prefix, sizeof prefix) == 0;
}

/* fe80::/10, and 169.254/16 and 127/8 mapped: leads nowhere else */
static bool is_link_local(const uint8_t *gid)
{
    if (is_mapped(gid))
        return (gid[12] == 169 && gid[13] == 254) || gid[12] == 127;
    return gid[0] == 0xfe && (gid[1] & 0xc0) == 0x80;
}

static bool is_zero(const uint8_t *gid)
{
    static const uint8_t zero[16];

    return memcmp(gid, zero, sizeof zero) == 0;
}

static enum gid_class gid_class(const struct proto_gid *g)
{
    bool v2 = g->type == HOLMES_GID_ROCE_V2;

    if (g->type == HOLMES_GID_INFINIBAND || is_zero(g->bytes))
        return GID_CLASSES;
    if (is_link_local(g->bytes))
        return v2 ? GID_V2_LINK_LOCAL : GID_V1_LINK_LOCAL;
    if (is_mapped(g->bytes))
        return v2 ? GID_V2_IPV4 : GID_V1_IPV4;
    return v2 ? GID_V2_IPV6 : GID_V1_IPV6;
}

static int common_bits(const uint8_t *a, const uint8_t *b)
{
    int i = 0;

    while (i < 128 && !((a[i / 8] ^ b[i / 8]) >> (7 - i % 8) & 1))
        i++;
    return i;
}

static const char *gid_text(const struct proto_gid *g, char *buf, size_t len)
{
    if (!(is_mapped(g->bytes) ? inet_ntop(AF_INET, g->bytes + 12, buf, (socklen_t)len)
                              : inet_ntop(AF_INET6, g->bytes, buf, (socklen_t)len)))
        snprintf(buf, len, "?");
    return buf;
}

/* The pair of GIDs of the best class that both have; among equals the two with the longest common
 * prefix, so that of several subnets the same is taken. */
static enum gid_class common_gids(const struct proto_port *dial, const struct proto_port *accept,
                                  const struct proto_gid **d, const struct proto_gid **a)
{
    enum gid_class best = GID_CLASSES;
    int bits = -1;

    for (int i = 0; i < dial->ngids; i++) {
        enum gid_class class = gid_class(&dial->gids[i]);

        for (int j = 0; j < accept->ngids && class < GID_CLASSES; j++) {
            int common = common_bits(dial->gids[i].bytes, accept->gids[j].bytes);

            if (gid_class(&accept->gids[j]) != class || class > best ||
                (class == best && common <= bits))
                continue;
            best = class;
            bits = common;
            *d = &dial->gids[i];
            *a = &accept->gids[j];
        }
    }
    return best;
}

static const char *layer_name(uint8_t layer)
{
    return layer == HOLMES_LINK_INFINIBAND ? "InfiniBand" : "RoCE";
}

static void answer(struct choose_pair *out, enum choose_answer a, const char *reason)
{
    out->answer = a;
    snprintf(out->reason, sizeof out->reason, "%s", reason);
}

#define DEFAULT_PREFIX 0xfe80000000000000ull

static uint64_t subnet_prefix(const struct proto_gid *g)
{
    uint64_t v = 0;

    for (int i = 0; i < 8; i++)
        v = v << 8 | g->bytes[i];
    return v;
}

/* A GID for routing between InfiniBand subnets carries the router's LID in bytes 4 and 5. */
static bool has_flid(const struct proto_gid *g)
{
    return (g->bytes[4] | g->bytes[5]) != 0;
}

static void choose_infiniband(const struct proto_port *dial, const struct proto_port *accept,
                              struct choose_pair *out)
{
    uint64_t d = subnet_prefix(&dial->gids[0]), a = subnet_prefix(&accept->gids[0]);

    out->dial_gid = dial->gids[0].index;
    out->accept_gid = accept->gids[0].index;
    if (dial->lid == 0 && accept->lid == 0 && !has_flid(&dial->gids[0])) {
        answer(out, CHOOSE_APART, "no subnet manager has given the InfiniBand ports a LID");
    } else if (has_flid(&dial->gids[0]) && has_flid(&accept->gids[0])) {
        answer(out, CHOOSE_UNKNOWN, "routed InfiniBand (FLID) on both ends");
    } else if (d != a) {
        out->answer = CHOOSE_APART;
        snprintf(out->reason, sizeof out->reason,
                 "InfiniBand subnets differ (%016" PRIx64 ", %016" PRIx64 ")", d, a);
    } else if (d == DEFAULT_PREFIX) {
        answer(out, CHOOSE_UNKNOWN, "both InfiniBand subnets have the default prefix fe80::");
    } else {
        out->answer = CHOOSE_SHARED;
        snprintf(out->reason, sizeof out->reason, "same InfiniBand subnet %016" PRIx64, d);
    }
}

static void choose_roce(const struct proto_port *dial, const struct proto_port *accept,
                        struct choose_pair *out)
{
    static const char *const names[] = {
        [GID_V2_IPV4] = "RoCE v2 IPv4",
        [GID_V2_IPV6] = "RoCE v2 IPv6",
        [GID_V1_IPV4] = "RoCE v1 IPv4",
        [GID_V1_IPV6] = "RoCE v1 IPv6",
        [GID_V2_LINK_LOCAL] = "RoCE v2 link-local",
        [GID_V1_LINK_LOCAL] = "RoCE v1 link-local",
    };
    const struct proto_gid *d = NULL, *a = NULL;
    enum gid_class class = common_gids(dial, accept, &d, &a);
    char dial_text[48], accept_text[48];

    if (class == GID_CLASSES) {
        answer(out, CHOOSE_APART, "the RoCE ports have no GID version and family in common");
        return;
    }
    out->answer = CHOOSE_UNKNOWN;
    out->dial_gid = d->index;
    out->accept_gid = a->index;
    out->link_local = class == GID_V2_LINK_LOCAL || class == GID_V1_LINK_LOCAL;
    snprintf(out->reason, sizeof out->reason, "%s %s, %s", names[class],
             gid_text(d, dial_text, sizeof dial_text),
             gid_text(a, accept_text, sizeof accept_text));
}

void choose_pair(const struct proto_port *dial, const struct proto_port *accept,
                 struct choose_pair *out)
{
    memset(out, 0, sizeof *out);
    out->mtu = dial->mtu < accept->mtu ? dial->mtu : accept->mtu;
    if (dial->fabric[0] && accept->fabric[0] && strcmp(dial->fabric, accept->fabric) != 0) {
        out->answer = CHOOSE_APART;
        snprintf(out->reason, sizeof out->reason, "HOLMES_FABRIC differs (%.31s, %.31s)",
                 dial->fabric, accept->fabric);
        return;
    }
    if (dial->link_layer != accept->link_layer) {
        out->answer = CHOOSE_APART;
        snprintf(out->reason, sizeof out->reason, "link layers differ (%s, %s)",
                 layer_name(dial->link_layer), layer_name(accept->link_layer));
        return;
    }
    if (dial->ngids == 0 || accept->ngids == 0) {
        out->answer = CHOOSE_APART;
        snprintf(out->reason, sizeof out->reason, "%.31s has no usable GID",
                 dial->ngids == 0 ? dial->name : accept->name);
        return;
    }
    if (dial->link_layer == HOLMES_LINK_INFINIBAND)
        choose_infiniband(dial, accept, out);
    else
        choose_roce(dial, accept, out);
    /* The user's word stands above a subnet prefix, but gives no RoCE port a GID. */
    if (dial->fabric[0] && accept->fabric[0] &&
        (out->answer != CHOOSE_APART || dial->link_layer == HOLMES_LINK_INFINIBAND)) {
        out->answer = CHOOSE_SHARED;
        snprintf(out->reason, sizeof out->reason, "same HOLMES_FABRIC %.31s", dial->fabric);
    }
}

int choose_policy(enum proto_policy dial, const char *dial_host, enum proto_policy accept,
                  const char *accept_host, enum proto_policy *out, char reason[CHOOSE_REASON_MAX])
{
    static const char *const names[] = {[PROTO_POLICY_VERBS] = "verbs", [PROTO_POLICY_TCP] = "tcp"};

    *out = dial != PROTO_POLICY_AUTO ? dial : accept;
    reason[0] = '\0';
    if (*out == PROTO_POLICY_AUTO)
        return 0;
    if (dial != PROTO_POLICY_AUTO && accept != PROTO_POLICY_AUTO && dial != accept) {
        snprintf(reason, CHOOSE_REASON_MAX, "HOLMES_WIRE=%s on %.31s, HOLMES_WIRE=%s on %.31s",
                 names[dial], dial_host, names[accept], accept_host);
        return -EPROTONOSUPPORT;
    }
    snprintf(reason, CHOOSE_REASON_MAX, "HOLMES_WIRE=%s on %.63s", names[*out],
             dial != PROTO_POLICY_AUTO ? dial_host : accept_host);
    return 0;
}

int choose_rails(int ndial, int naccept, struct choose_ports ports[HOLMES_MAX_RAILS])
{
    int n = ndial > naccept ? ndial : naccept;

    if (ndial == 0 || naccept == 0)
        return 0;
    for (int i = 0; i < n; i++)
        ports[i] =
            (struct choose_ports){.dial = (uint8_t)(i % ndial), .accept = (uint8_t)(i % naccept)};
    return n;
}
