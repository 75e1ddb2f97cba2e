/* Staggered dialling of a peer's addresses; see dial.h. */
#include "dial.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "clock.h"
#include "context.h"
#include "log.h"
#include "route.h"

#define STAGGER_MS 250
/* A refused or unreachable address is tried again this long: the listener may be behind a link
 * that is still coming up. The peer's listener itself exists before its handle does. */
#define RETRY_FOR_MS 3000
#define RETRY_MS     100

enum candidate_state {
    CAND_IDLE,    /* not dialled yet, or waiting to be dialled again (`start_ns`) */
    CAND_DIALING, /* TCP handshake under way */
    CAND_WELCOME, /* HELLO sent, proof awaited */
    CAND_DEAD,    /* failed for good with `error` */
};

struct candidate {
    enum candidate_state state;
    struct holmes_addr peer, source;
    bool has_source;
    struct device *dev;
    struct oob oob;
    uint8_t nonce[16];
    uint64_t start_ns;
    int error;
    char why[160];
};

struct dialer {
    struct holmes_transport *t;
    uint8_t token[PROTO_TOKEN_SIZE];
    uint64_t retry_until_ns;
    int ncands;
    struct candidate cands[PROTO_ADDRS];
};

/* ---- choice and order of addresses ---- */

static bool same_subnet(const struct holmes_addr *a, const struct holmes_addr *b, unsigned bits)
{
    const uint8_t *pa, *pb;

    if (a->sa.sa_family != b->sa.sa_family)
        return false;
    pa = a->sa.sa_family == AF_INET ? (const uint8_t *)&a->in.sin_addr : a->in6.sin6_addr.s6_addr;
    pb = b->sa.sa_family == AF_INET ? (const uint8_t *)&b->in.sin_addr : b->in6.sin6_addr.s6_addr;
    if (memcmp(pa, pb, bits / 8) != 0)
        return false;
    return bits % 8 == 0 || (pa[bits / 8] ^ pb[bits / 8]) >> (8 - bits % 8) == 0;
}

static const struct holmes_addr *addr_in_subnet(const struct device *d,
                                                const struct holmes_addr *peer)
{
    for (int i = 0; i < d->nic.naddrs; i++) {
        if (same_subnet(&d->nic.addrs[i], peer, d->nic.addrs[i].prefix_len))
            return &d->nic.addrs[i];
    }
    return NULL;
}

/* Source and NIC for one peer address: the wanted NIC if it shares a subnet with the peer, else
 * another one that does, else the wanted one's first address of that family. Returns a rank, lower
 * is better. */
static int choose_source(struct device *wanted, struct candidate *c)
{
    struct holmes_transport *t = wanted->t;
    const struct holmes_addr *source = addr_in_subnet(wanted, &c->peer);
    int rank = 0;

    c->dev = wanted;
    for (int i = 0; !source && i < t->ndevices; i++) {
        source = addr_in_subnet(t->devices[i], &c->peer);
        if (source)
            c->dev = t->devices[i];
        rank = 1;
    }
    for (int i = 0; !source && i < wanted->nic.naddrs; i++) {
        if (wanted->nic.addrs[i].sa.sa_family == c->peer.sa.sa_family)
            source = &wanted->nic.addrs[i];
        rank = 2;
    }
    c->has_source = source != NULL;
    if (source)
        c->source = *source;
    return source ? rank : 3;
}

static bool same_ip(const struct holmes_addr *a, const struct holmes_addr *b)
{
    return same_subnet(a, b, a->sa.sa_family == AF_INET ? 32 : 128);
}

static bool worked_before(struct holmes_transport *t, const struct holmes_addr *peer)
{
    bool good = false;

    pthread_mutex_lock(&t->lock);
    for (unsigned i = 0; i < t->ngood && i < GOOD_ADDRS_MAX && !good; i++)
        good = same_ip(&t->good_addrs[i], peer);
    pthread_mutex_unlock(&t->lock);
    return good;
}

static void remember_good(struct holmes_transport *t, const struct holmes_addr *peer)
{
    if (worked_before(t, peer))
        return;
    pthread_mutex_lock(&t->lock);
    t->good_addrs[t->ngood++ % GOOD_ADDRS_MAX] = *peer;
    pthread_mutex_unlock(&t->lock);
}

int dialer_create(struct device *dev, const struct proto_handle *handle, struct dialer **out)
{
    struct dialer *d = calloc(1, sizeof *d);
    int ranks[PROTO_ADDRS];

    if (!d)
        return -ENOMEM;
    d->t = dev->t;
    memcpy(d->token, handle->token, sizeof d->token);
    d->retry_until_ns = holmes_deadline_ms(RETRY_FOR_MS);
    for (int i = 0; i < PROTO_ADDRS; i++) {
        struct candidate c = {.state = CAND_IDLE, .oob = {.fd = -1}};
        int rank, at = d->ncands;

        if (proto_addr_decode(&handle->addrs[i], &c.peer) != 0)
            continue;
        /* What worked before decides among equals only: the wanted NIC comes first. */
        rank = 2 * choose_source(dev, &c) + !worked_before(d->t, &c.peer);
        /* Insertion keeps the peer's own order among equals. */
        for (; at > 0 && ranks[at - 1] > rank; at--) {
            ranks[at] = ranks[at - 1];
            d->cands[at] = d->cands[at - 1];
        }
        ranks[at] = rank;
        d->cands[at] = c;
        d->ncands++;
    }
    if (d->ncands == 0) {
        holmes_warn(NET, "the peer's handle has no address that can be dialled");
        free(d);
        return -EPROTO;
    }
    for (int i = 0; i < d->ncands; i++)
        d->cands[i].start_ns = holmes_deadline_ms((uint64_t)i * STAGGER_MS);
    *out = d;
    return 0;
}

void dialer_destroy(struct dialer *d)
{
    if (!d)
        return;
    for (int i = 0; i < d->ncands; i++)
        oob_close(&d->cands[i].oob);
    free(d);
}

/* ---- one address ---- */

static bool worth_retrying(int rc)
{
    return rc == -ECONNREFUSED || rc == -ENETUNREACH || rc == -EHOSTUNREACH || rc == -ECONNRESET;
}

static void candidate_fail(struct dialer *d, struct candidate *c, int rc)
{
    oob_close(&c->oob);
    c->error = rc;
    if (rc == -EBUSY || (worth_retrying(rc) && !holmes_deadline_passed(d->retry_until_ns))) {
        c->state = CAND_IDLE;
        c->start_ns = holmes_deadline_ms(RETRY_MS);
    } else {
        c->state = CAND_DEAD;
    }
}

static int candidate_dialing(struct dialer *d, struct candidate *c)
{
    struct proto_hello hello = {.listen_id = proto_listen_id(d->token)};
    int rc = oob_dial_poll(&c->oob);

    if (rc != 0)
        return rc;
    if (getrandom(c->nonce, sizeof c->nonce, 0) != sizeof c->nonce)
        return -EIO;
    memcpy(hello.nonce, c->nonce, sizeof hello.nonce);
    c->state = CAND_WELCOME;
    rc = oob_send(&c->oob, PROTO_HELLO, &hello);
    return rc == -ECONNRESET ? 0 : rc; /* it may have said why */
}

/* The listener has too many peers to hear for now: it is tried again until the connection's own
 * deadline. */
static bool says_busy(const struct oob *oob)
{
    struct proto_abort frame;

    memcpy(&frame, oob->in_payload, sizeof frame);
    return oob->in_frame.type == PROTO_ABORT && frame.error == EBUSY;
}

static int candidate_welcome(struct dialer *d, struct candidate *c, struct dial_result *out)
{
    struct proto_welcome welcome;
    int sent = oob_flush(&c->oob), rc = oob_recv(&c->oob, c->why, sizeof c->why);

    /* What it said before it went comes first. */
    if (rc == -EAGAIN && sent != 0)
        rc = sent;
    if (rc != 0)
        return rc;
    if (says_busy(&c->oob)) {
        snprintf(c->why, sizeof c->why, "it has too many peers to hear");
        return -EBUSY;
    }
    memcpy(&welcome, c->oob.in_payload, sizeof welcome);
    if (c->oob.in_frame.type != PROTO_WELCOME ||
        welcome.mac != proto_mac(d->token, 'S', c->nonce, welcome.nonce)) {
        snprintf(c->why, sizeof c->why, "it is not the peer: it does not know the token");
        return -EACCES;
    }
    out->mac = proto_mac(d->token, 'C', c->nonce, welcome.nonce);
    out->dev = c->dev;
    oob_move(&out->oob, &c->oob);
    return 0;
}

/* 0: won. */
static int candidate_progress(struct dialer *d, struct candidate *c, struct dial_result *out)
{
    int rc = -EAGAIN;

    if (c->state == CAND_IDLE && holmes_deadline_passed(c->start_ns)) {
        rc = oob_dial(&c->oob, c->has_source ? &c->source : NULL, &c->peer);
        if (rc == 0) {
            c->state = CAND_DIALING;
            rc = -EAGAIN;
        }
    }
    if (c->state == CAND_DIALING) { /* at once where the peer is near */
        rc = candidate_dialing(d, c);
        if (rc == 0)
            rc = -EAGAIN;
    } else if (c->state == CAND_WELCOME) {
        rc = candidate_welcome(d, c, out);
    }
    if (rc != 0 && rc != -EAGAIN)
        candidate_fail(d, c, rc);
    return rc == 0 ? 0 : -EAGAIN;
}

static void log_failure(const struct dialer *d)
{
    for (int i = 0; i < d->ncands; i++) {
        const struct candidate *c = &d->cands[i];
        char text[64];

        holmes_warn(NET, "cannot connect to %s: %s", oob_addr_text(&c->peer.sa, text, sizeof text),
                    c->why[0] ? c->why : holmes_strerror(c->error));
    }
}

int dialer_progress(struct dialer *d, struct dial_result *out)
{
    bool alive = false;

    for (int i = 0; i < d->ncands; i++) {
        struct candidate *c = &d->cands[i];

        if (candidate_progress(d, c, out) == 0) {
            remember_good(d->t, &c->peer);
            if (c->has_source)
                route_check(c->dev, &c->source, &c->peer);
            return 0;
        }
        /* The next one need not wait for its turn when this one has failed. */
        if (c->error != 0 && i + 1 < d->ncands && d->cands[i + 1].state == CAND_IDLE &&
            d->cands[i + 1].error == 0)
            d->cands[i + 1].start_ns = 0;
        alive = alive || c->state != CAND_DEAD;
    }
    if (alive)
        return -EAGAIN;
    log_failure(d);
    return d->cands[0].error;
}
