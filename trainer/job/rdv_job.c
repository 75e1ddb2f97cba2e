/* What each frame means, and who is told when a rank has gone. A connection is a stranger until it
 * has proved itself; a rank whose connection ends before it left aborts the job, and everybody is
 * told which one and where it ran. */
#include "rdv_job.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "log.h"

void holmes_rdv_job_abort(struct holmes_rdv_job *s, int rank, const char *reason)
{
    const struct holmes_rdv_member *m = &s->members[rank];

    if (*s->aborted)
        return;
    snprintf(s->aborted, sizeof s->aborted, "rank %d on %s (pid %u): %s", rank, m->host, m->pid,
             reason);
    holmes_info(NET, "rendezvous: job aborted, %s", s->aborted);
    holmes_list_each(p, tmp, &s->peers, struct holmes_rdv_peer, node)
    {
        if (p->state == HOLMES_RDV_PEER_MEMBER)
            holmes_rdv_peer_say(p, HOLMES_RDV_ABORTED, 0, s->aborted, strlen(s->aborted), NULL, 0);
    }
}

static void store_answer(void *ctx, struct holmes_rdv_waiter w, int status, const void *data,
                         size_t len)
{
    struct holmes_rdv_job *s = ctx;
    struct holmes_rdv_peer *p = s->members[w.rank].peer;

    if (p)
        holmes_rdv_peer_reply(p, w.id, status, data, len);
}

static void store_expired(void *ctx, struct holmes_rdv_waiter w, const char *name,
                          const bool *arrived, unsigned int timeout_ms)
{
    struct holmes_rdv_job *s = ctx;
    char text[HOLMES_RDV_TEXT_MAX];
    int used, missing = 0;

    used = snprintf(text, sizeof text, "%s '%.80s' %s after %u.%01u s", arrived ? "barrier" : "key",
                    name, arrived ? "not complete" : "not set", timeout_ms / 1000,
                    timeout_ms % 1000 / 100);
    for (int r = 0; r < s->nranks && used < (int)sizeof text - 80; r++) {
        const struct holmes_rdv_member *m = &s->members[r];

        if (arrived ? arrived[r] : m->seen)
            continue;
        used += snprintf(text + used, sizeof text - (size_t)used, "%s rank %d",
                         missing++ ? "," : "; missing:", r);
        if (!m->seen)
            used += snprintf(text + used, sizeof text - (size_t)used, " (never connected)");
        else
            used += snprintf(text + used, sizeof text - (size_t)used, " (on %.30s%s)", m->host,
                             m->left ? ", has left" : "");
    }
    store_answer(s, w, -ETIMEDOUT, text, strlen(text));
}

static const struct holmes_rdv_store_ops store_ops = {store_answer, store_expired};

/* ---- frames ---- */

static void on_hello(struct holmes_rdv_job *s, struct holmes_rdv_peer *p, const uint8_t *data,
                     size_t len)
{
    struct holmes_rdv_hello hello;

    (void)s;
    if (len != sizeof hello || memcmp(data, HOLMES_RDV_MAGIC, sizeof hello.magic) != 0 ||
        holmes_rdv_nonce(p->server_nonce) != 0) {
        holmes_warn(NET, "rendezvous: %s does not speak this protocol", p->from);
        p->doomed = true;
        return;
    }
    memcpy(&hello, data, sizeof hello);
    memcpy(p->client_nonce, hello.nonce, sizeof p->client_nonce);
    holmes_rdv_peer_say(p, HOLMES_RDV_CHALLENGE, 0, p->server_nonce, sizeof p->server_nonce, NULL,
                        0);
    p->state = HOLMES_RDV_PEER_CHALLENGED;
}

static void welcome(struct holmes_rdv_job *s, struct holmes_rdv_peer *p,
                    const struct holmes_rdv_prove *c)
{
    struct holmes_rdv_member *m = &s->members[c->rank];
    uint8_t mac[8];

    m->peer = p;
    m->seen = true;
    m->pid = c->pid;
    memcpy(m->host, c->host, sizeof m->host);
    p->rank = (int)c->rank;
    p->state = HOLMES_RDV_PEER_MEMBER;
    s->nstrangers--;
    holmes_rdv_u64_write(mac, holmes_rdv_server_mac(&s->key, p->client_nonce, p->server_nonce));
    holmes_rdv_peer_say(p, HOLMES_RDV_WELCOME, 0, mac, sizeof mac, NULL, 0);
    if (*s->aborted)
        holmes_rdv_peer_say(p, HOLMES_RDV_ABORTED, 0, s->aborted, strlen(s->aborted), NULL, 0);
}

static void on_prove(struct holmes_rdv_job *s, struct holmes_rdv_peer *p, const uint8_t *data,
                     size_t len)
{
    struct holmes_rdv_prove claim;
    char text[160];

    if (len != HOLMES_RDV_PROVE_BYTES) {
        holmes_rdv_peer_refuse(p, -EPROTO, "malformed proof");
        return;
    }
    holmes_rdv_prove_read(data, &claim);
    if (claim.mac != holmes_rdv_client_mac(&s->key, p->client_nonce, p->server_nonce, &claim)) {
        holmes_rdv_peer_refuse(p, -EACCES, "it does not know this job's secret");
    } else if (claim.nranks != (uint32_t)s->nranks || claim.rank >= claim.nranks) {
        snprintf(text, sizeof text, "it claims to be rank %u of %u, this job has %d ranks",
                 claim.rank, claim.nranks, s->nranks);
        holmes_rdv_peer_refuse(p, -EINVAL, text);
    } else if (s->members[claim.rank].seen) {
        snprintf(text, sizeof text, "rank %u is taken by pid %u on %s", claim.rank,
                 s->members[claim.rank].pid, s->members[claim.rank].host);
        holmes_rdv_peer_refuse(p, -EEXIST, text);
    } else {
        welcome(s, p, &claim);
    }
}

/* A name in a frame: not empty, no zero byte, bounded. */
static bool name_read(char name[HOLMES_RDV_KEY_MAX + 1], const uint8_t *data, size_t len)
{
    if (len == 0 || len > HOLMES_RDV_KEY_MAX || memchr(data, 0, len))
        return false;
    memcpy(name, data, len);
    name[len] = '\0';
    return true;
}

static int on_put(struct holmes_rdv_job *s, struct holmes_rdv_peer *p, uint32_t id,
                  const uint8_t *data, size_t len)
{
    char key[HOLMES_RDV_KEY_MAX + 1];
    size_t key_len = len ? data[0] : 0;
    int rc;

    if (len < 1 + key_len || !name_read(key, data + 1, key_len))
        return -EPROTO;
    if (len - 1 - key_len > HOLMES_RDV_VALUE_MAX)
        return -EPROTO;
    rc = holmes_rdv_store_put(s->store, key, data + 1 + key_len, len - 1 - key_len);
    holmes_rdv_peer_reply(p, id, rc, NULL, 0);
    return 0;
}

static int on_wait(struct holmes_rdv_job *s, struct holmes_rdv_peer *p, uint32_t id,
                   const uint8_t *data, size_t len, bool barrier)
{
    struct holmes_rdv_waiter who = {p->rank, id};
    char name[HOLMES_RDV_KEY_MAX + 1];
    int rc;

    if (len < 4 || !name_read(name, data + 4, len - 4))
        return -EPROTO;
    rc = barrier ? holmes_rdv_store_barrier(s->store, who, name, holmes_rdv_u32_read(data))
                 : holmes_rdv_store_get(s->store, who, name, holmes_rdv_u32_read(data));
    if (rc)
        holmes_rdv_peer_reply(p, id, rc, NULL, 0);
    return 0;
}

static int on_member(struct holmes_rdv_job *s, struct holmes_rdv_peer *p,
                     const struct holmes_rdv_header *h, const uint8_t *data)
{
    char text[HOLMES_RDV_TEXT_MAX / 2];

    switch (h->type) {
    case HOLMES_RDV_PUT:
        return on_put(s, p, h->id, data, h->len);
    case HOLMES_RDV_GET:
    case HOLMES_RDV_BARRIER:
        return on_wait(s, p, h->id, data, h->len, h->type == HOLMES_RDV_BARRIER);
    case HOLMES_RDV_ABORT:
        snprintf(text, sizeof text, "%.*s", (int)(h->len < sizeof text ? h->len : sizeof text - 1),
                 (const char *)data);
        holmes_rdv_job_abort(s, p->rank, text);
        return 0;
    case HOLMES_RDV_LEAVE:
        s->members[p->rank].left = true;
        p->doomed = true;
        return 0;
    default:
        return -EPROTO;
    }
}

static void on_frame(struct holmes_rdv_job *s, struct holmes_rdv_peer *p,
                     const struct holmes_rdv_header *h, const uint8_t *data)
{
    if (p->state == HOLMES_RDV_PEER_NEW && h->type == HOLMES_RDV_HELLO) {
        on_hello(s, p, data, h->len);
    } else if (p->state == HOLMES_RDV_PEER_CHALLENGED && h->type == HOLMES_RDV_PROVE) {
        on_prove(s, p, data, h->len);
    } else if (p->state != HOLMES_RDV_PEER_MEMBER || on_member(s, p, h, data) != 0) {
        holmes_warn(NET, "rendezvous: %s sent a malformed message", p->from);
        p->doomed = true;
    }
}

/* ---- input ---- */

static size_t frame_limit(const struct holmes_rdv_peer *p)
{
    return p->state == HOLMES_RDV_PEER_MEMBER ? HOLMES_RDV_FRAME_MAX : HOLMES_RDV_STRANGER_MAX;
}

bool holmes_rdv_job_frames(struct holmes_rdv_job *s, struct holmes_rdv_peer *p)
{
    size_t at = 0;

    while (!p->doomed && p->in_len - at >= HOLMES_RDV_HEADER) {
        struct holmes_rdv_header h = holmes_rdv_header_read(p->in + at);

        if (h.len > frame_limit(p))
            return false;
        if (p->in_len - at < HOLMES_RDV_HEADER + h.len) {
            memmove(p->in, p->in + at, p->in_len - at);
            p->in_len -= at;
            return holmes_rdv_peer_reserve(p, HOLMES_RDV_HEADER + h.len);
        }
        on_frame(s, p, &h, p->in + at + HOLMES_RDV_HEADER);
        at += HOLMES_RDV_HEADER + h.len;
    }
    memmove(p->in, p->in + at, p->in_len - at);
    p->in_len -= at;
    return true;
}

/* ---- coming and going ---- */

int holmes_rdv_job_init(struct holmes_rdv_job *s, const char *secret, int nranks)
{
    *s = (struct holmes_rdv_job){.nranks = nranks, .key = holmes_rdv_key(secret)};
    holmes_list_init(&s->peers);
    s->members = calloc((size_t)nranks, sizeof *s->members);
    return s->members ? holmes_rdv_store_create(nranks, &store_ops, s, &s->store) : -ENOMEM;
}

void holmes_rdv_job_fini(struct holmes_rdv_job *s)
{
    holmes_list_each(p, tmp, &s->peers, struct holmes_rdv_peer, node)
    {
        p->doomed = true;
        s->members[p->rank].left = true; /* nobody is left to be told */
        holmes_rdv_job_close(s, p);
    }
    holmes_rdv_store_destroy(s->store);
    free(s->members);
}

struct holmes_rdv_peer *holmes_rdv_job_add(struct holmes_rdv_job *s, int fd)
{
    struct holmes_rdv_peer *p = calloc(1, sizeof *p);

    if (!p || !holmes_rdv_peer_reserve(p, HOLMES_RDV_HEADER + HOLMES_RDV_STRANGER_MAX)) {
        free(p);
        return NULL;
    }
    p->fd = fd;
    holmes_list_append(&s->peers, &p->node);
    s->nstrangers++;
    s->npeers++;
    return p;
}

/* What the kernel knows of the end of a connection. */
static const char *ended_how(const struct holmes_rdv_peer *p, char *text, size_t len)
{
    if (p->error == -ETIMEDOUT || p->error == -EHOSTUNREACH || p->error == -ENETUNREACH)
        snprintf(text, len, "its host does not answer any more (%s): it is down or cut off",
                 holmes_strerror(p->error));
    else if (p->doomed)
        snprintf(text, len, "it did not keep to the protocol");
    else
        snprintf(text, len, "its process ended without a word (killed, or it crashed)");
    return text;
}

void holmes_rdv_job_close(struct holmes_rdv_job *s, struct holmes_rdv_peer *p)
{
    char text[120];

    if (p->state == HOLMES_RDV_PEER_MEMBER) {
        s->members[p->rank].peer = NULL;
        holmes_rdv_store_drop(s->store, p->rank);
        if (!s->members[p->rank].left)
            holmes_rdv_job_abort(s, p->rank, ended_how(p, text, sizeof text));
    } else {
        s->nstrangers--;
        if (!p->doomed)
            holmes_warn(NET, "rendezvous: %s went away before it proved itself", p->from);
    }
    holmes_list_remove(&p->node);
    s->npeers--;
    holmes_rdv_peer_free(p);
}
