/* Encoding and checking of what crosses between processes; see proto.h. */
#include "proto.h"

#include <arpa/inet.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "siphash.h"

static const uint8_t handle_magic[8] = {0xff, 0xfe, 'H', 'O', 'L', 'M', 'E', 'S'};
/* Not a secret: the checksum finds damage, the token keeps strangers out. */
static const uint8_t checksum_key[16] = "holmes checksum";

static uint32_t handle_checksum(const struct proto_handle *h)
{
    struct proto_handle copy = *h;

    copy.checksum = 0;
    return (uint32_t)holmes_siphash(checksum_key, &copy, offsetof(struct proto_handle, state));
}

void proto_handle_seal(struct proto_handle *h)
{
    memcpy(h->magic, handle_magic, sizeof h->magic);
    h->version = PROTO_VERSION;
    h->length = sizeof *h;
    h->checksum = handle_checksum(h);
}

int proto_handle_check(const struct proto_handle *h, char *why, size_t why_len)
{
    if (memcmp(h->magic, handle_magic, sizeof h->magic) != 0) {
        snprintf(why, why_len,
                 "the peer's handle is not from Holmes (it begins %02x %02x %02x %02x): all ranks "
                 "of a communicator must load the same net plugin",
                 h->magic[0], h->magic[1], h->magic[2], h->magic[3]);
        return -EPROTO;
    }
    if (h->version != PROTO_VERSION) {
        snprintf(why, why_len,
                 "the peer's handle has protocol version %u, this library speaks %u: install the "
                 "same release on all nodes",
                 h->version, PROTO_VERSION);
        return -EPROTONOSUPPORT;
    }
    if (h->length != sizeof *h || h->checksum != handle_checksum(h)) {
        snprintf(why, why_len, "the peer's handle was damaged on its way (length %u, checksum %s)",
                 h->length, h->checksum == handle_checksum(h) ? "right" : "wrong");
        return -EPROTO;
    }
    return 0;
}

void proto_addr_encode(const struct sockaddr *sa, uint16_t port, struct proto_addr *out)
{
    memset(out, 0, sizeof *out);
    if (sa->sa_family == AF_INET) {
        out->family = 4;
        memcpy(out->ip, &((const struct sockaddr_in *)sa)->sin_addr, 4);
    } else if (sa->sa_family == AF_INET6) {
        out->family = 6;
        memcpy(out->ip, &((const struct sockaddr_in6 *)sa)->sin6_addr, 16);
    }
    out->port = port;
}

int proto_addr_decode(const struct proto_addr *a, struct holmes_addr *out)
{
    struct holmes_addr addr = {.prefix_len = 0};

    if (a->port == 0)
        return -EPROTO;
    if (a->family == 4) {
        addr.in.sin_family = AF_INET;
        addr.in.sin_port = htons(a->port);
        memcpy(&addr.in.sin_addr, a->ip, 4);
    } else if (a->family == 6) {
        addr.in6.sin6_family = AF_INET6;
        addr.in6.sin6_port = htons(a->port);
        memcpy(&addr.in6.sin6_addr, a->ip, 16);
    } else {
        return -EPROTO;
    }
    *out = addr;
    return 0;
}

uint64_t proto_listen_id(const uint8_t token[PROTO_TOKEN_SIZE])
{
    return holmes_siphash(token, "listen", 6);
}

uint64_t proto_mac(const uint8_t token[PROTO_TOKEN_SIZE], char side, const uint8_t client_nonce[16],
                   const uint8_t server_nonce[16])
{
    uint8_t msg[33];

    msg[0] = (uint8_t)side;
    memcpy(msg + 1, client_nonce, 16);
    memcpy(msg + 17, server_nonce, 16);
    return holmes_siphash(token, msg, sizeof msg);
}

int proto_payload_size(uint16_t type)
{
    switch (type) {
    case PROTO_HELLO:
        return sizeof(struct proto_hello);
    case PROTO_WELCOME:
        return sizeof(struct proto_welcome);
    case PROTO_AUTH:
        return sizeof(struct proto_offer);
    case PROTO_PROBE:
        return sizeof(struct proto_probe);
    case PROTO_VERDICT:
        return sizeof(struct proto_verdict);
    case PROTO_INFO:
        return sizeof(struct proto_info);
    case PROTO_ABORT:
        return sizeof(struct proto_abort);
    case PROTO_BYE:
        return sizeof(struct proto_bye);
    case PROTO_UP:
        return 0;
    default:
        return -1;
    }
}
_Static_assert(sizeof(struct proto_offer) <= PROTO_PAYLOAD_MAX, "an offer fits a frame");
_Static_assert(sizeof(struct proto_verdict) <= PROTO_PAYLOAD_MAX, "a verdict fits a frame");

int proto_frame_check(const struct proto_frame *f, char *why, size_t why_len)
{
    int size = proto_payload_size(f->type);

    if (f->magic != PROTO_FRAME_MAGIC) {
        snprintf(why, why_len, "does not speak this protocol (first bytes %08x)", f->magic);
        return -EPROTO;
    }
    if (f->version != PROTO_VERSION) {
        snprintf(why, why_len, "speaks protocol version %u, not %u", f->version, PROTO_VERSION);
        return -EPROTONOSUPPORT;
    }
    if (size < 0 || f->length != (uint32_t)size) {
        snprintf(why, why_len, "sent a frame of type %u with length %u", f->type, f->length);
        return -EPROTO;
    }
    return 0;
}

static bool is_printable(char c)
{
    return c >= 0x20 && c <= 0x7e;
}

static bool is_text(const char *s, size_t cap)
{
    size_t n = strnlen(s, cap);

    for (size_t i = 0; i < n; i++) {
        if (!is_printable(s[i]))
            return false;
    }
    return n < cap; /* an unterminated string is none */
}

void proto_text(char *out, size_t cap, const char *text)
{
    size_t i = 0;

    for (; i + 1 < cap && text[i]; i++)
        out[i] = is_printable(text[i]) ? text[i] : '?';
    out[i] = '\0';
}

static int invalid(const char *bad, char *why, size_t why_len)
{
    if (!bad)
        return 0;
    snprintf(why, why_len, "sent an invalid %s", bad);
    return -EPROTO;
}

/* 0: not told. */
static bool mtu_is_valid(uint16_t mtu)
{
    return mtu == 0 || (mtu >= 256 && mtu <= 4096 && (mtu & (mtu - 1)) == 0);
}

static bool port_is_valid(const struct proto_port *p)
{
    bool valid = is_text(p->name, sizeof p->name) && is_text(p->fabric, sizeof p->fabric) &&
                 p->port > 0 && p->ngids <= HOLMES_GIDS_MAX && mtu_is_valid(p->mtu) &&
                 (p->link_layer == HOLMES_LINK_INFINIBAND || p->link_layer == HOLMES_LINK_ETHERNET);

    for (int i = 0; valid && i < p->ngids; i++)
        valid = p->gids[i].type <= HOLMES_GID_ROCE_V2;
    return valid;
}

int proto_offer_check(const struct proto_offer *o, char *why, size_t why_len)
{
    const char *bad = NULL;

    if (o->tcp_lanes < 1 || o->tcp_lanes > HOLMES_MAX_LANES || o->qps < 1 ||
        o->qps > HOLMES_MAX_LANES)
        bad = "lane count";
    else if (!is_text(o->host, sizeof o->host) || !is_text(o->nic, sizeof o->nic) ||
             !is_text(o->no_rdma, sizeof o->no_rdma))
        bad = "name";
    else if (o->policy > PROTO_POLICY_TCP)
        bad = "policy";
    else if (o->nports > HOLMES_MAX_RAILS)
        bad = "port count";
    for (int i = 0; !bad && i < o->nports; i++) {
        if (!port_is_valid(&o->ports[i]))
            bad = "port description";
    }
    return invalid(bad, why, why_len);
}

int proto_info_check(const struct proto_info *i, char *why, size_t why_len)
{
    const char *bad = NULL;

    if (i->nlanes < 1 || i->nlanes > HOLMES_MAX_LANES)
        bad = "lane count";
    else if (i->max_group < 1 || i->max_group > HOLMES_MAX_GROUP)
        bad = "group size";
    else if (!is_text(i->nic, sizeof i->nic))
        bad = "name";
    for (int l = 0; !bad && l < i->nlanes; l++) {
        if (i->lanes[l].len > HOLMES_LANE_BLOB_MAX)
            bad = "lane description";
    }
    return invalid(bad, why, why_len);
}

static bool has_gid(const struct proto_port *p, uint8_t index)
{
    int i = 0;

    while (i < p->ngids && p->gids[i].index != index)
        i++;
    return i < p->ngids;
}

/* `accept_port` is the accepting end's own affair: only it knows how many ports it has. */
static bool rail_is_valid(const struct proto_rail *r, const struct proto_offer *offer)
{
    return r->dial_port < offer->nports && r->accept_port < HOLMES_MAX_RAILS &&
           mtu_is_valid(r->mtu) && has_gid(&offer->ports[r->dial_port], r->dial_gid);
}

int proto_verdict_check(const struct proto_verdict *v, const struct proto_offer *offer, char *why,
                        size_t why_len)
{
    const char *bad = NULL;

    if (!is_text(v->wire, sizeof v->wire) || !is_text(v->reason, sizeof v->reason) ||
        !is_text(v->host, sizeof v->host) || !is_text(v->nic, sizeof v->nic))
        bad = "name";
    else if (v->rdma ? offer->policy == PROTO_POLICY_TCP : offer->policy == PROTO_POLICY_VERBS)
        bad = "choice: HOLMES_WIRE forbids it here";
    else if (v->nrails < 1 || v->nrails > HOLMES_MAX_RAILS || v->info.nlanes < v->nrails)
        bad = "rail count";
    for (int i = 0; v->rdma && !bad && i < v->nrails; i++) {
        if (!rail_is_valid(&v->rails[i], offer))
            bad = "rail";
    }
    return bad ? invalid(bad, why, why_len) : proto_info_check(&v->info, why, why_len);
}

int proto_probe_check(const struct proto_probe *p, const struct proto_offer *offer, char *why,
                      size_t why_len)
{
    const char *bad = NULL;

    if (!rail_is_valid(&p->rail, offer))
        bad = "rail";
    else if (p->len < 1 || p->len > PROTO_PROBE_MAX)
        bad = "probe length";
    else if (p->lane.len > HOLMES_LANE_BLOB_MAX)
        bad = "lane description";
    return invalid(bad, why, why_len);
}

/* mode 2 | generation 3 | slot 8 | size 19 */
uint32_t proto_imm_encode(const struct proto_imm *i)
{
    return (uint32_t)i->mode << 30 | i->generation << 27 | i->slot << 19 | i->size;
}

int proto_imm_decode(uint32_t wire, struct proto_imm *out)
{
    out->mode = (enum proto_imm_mode)(wire >> 30);
    out->generation = wire >> 27 & (PROTO_GENERATIONS - 1);
    out->slot = wire >> 19 & 0xff;
    out->size = wire & PROTO_IMM_SIZE_MAX;
    if (out->mode == PROTO_IMM_EAGER && (out->slot >= PROTO_EAGERS || out->size > PROTO_EAGER_MAX))
        return -EPROTO;
    return 0;
}
_Static_assert(PROTO_SLOTS <= 256, "a slot has 8 bits in the immediate");
