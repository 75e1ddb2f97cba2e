/* Connections meet through the rendezvous: the receiver listens and publishes the plugin's handle
 * under a key that names communicator and both ranks; the sender fetches it and dials. Both sides
 * are stepped without blocking, as the plugin contract wants connect and accept polled.
 *
 *   receiver  LISTEN --put key--> ACCEPT ------------------> READY
 *   sender           FETCH --key is there--> CONNECT ------> READY
 */
#include "net_conn.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "clock.h"
#include "log.h"

enum {
    LOOK_EVERY_MS = 2,  /* FETCH asks the rendezvous at most this often */
    REGIONS_KEPT = 256, /* registrations above this are dropped, oldest first; a step uses a
                           range of gradients and one of weights for each bucket */
    CARD_VERSION = 1,
};

/* What the receiver publishes. NCCL never checks that two ranks use the same net; we do. */
struct card {
    char magic[8];
    uint32_t version;
    char plugin[64];
    unsigned char handle[HOLMES_PLUGIN_HANDLE_BYTES];
};
static const char card_magic[8] = "holmesC";

int holmes_conn_create(const struct holmes_conn_attr *attr, struct holmes_conn **out)
{
    struct holmes_conn *c = calloc(1, sizeof *c);

    if (!c)
        return -ENOMEM;
    c->attr = *attr;
    snprintf(c->key, sizeof c->key, "comm/%s/%d-%d", attr->what, attr->from, attr->to);
    atomic_init(&c->state, attr->sends ? HOLMES_CONN_FETCH : HOLMES_CONN_LISTEN);
    if (!attr->lazy)
        c->deadline_ns = holmes_deadline_ms((uint64_t)attr->timeout_ms);
    holmes_list_init(&c->in_setup);
    holmes_list_init(&c->regions);
    pthread_mutex_init(&c->lock, NULL);
    *out = c;
    return 0;
}

static void conn_enter(struct holmes_conn *c, enum holmes_conn_state next)
{
    holmes_trace(NET, "conn %s: state %d -> %d", c->key, atomic_load(&c->state), next);
    atomic_store_explicit(&c->state, next, memory_order_release);
}

static int step_listen(struct holmes_conn *c)
{
    const struct holmes_conn_attr *a = &c->attr;
    struct card card = {.version = CARD_VERSION};
    int rc = holmes_plugin_listen(a->plugin, a->ctx, a->dev, c->handle, &c->listen_comm);

    if (rc)
        return rc;
    memcpy(card.magic, card_magic, sizeof card.magic);
    snprintf(card.plugin, sizeof card.plugin, "%s", holmes_plugin_name(a->plugin));
    memcpy(card.handle, c->handle, sizeof card.handle);
    rc = holmes_rdv_put(a->rdv, c->key, &card, sizeof card);
    if (rc)
        return rc;
    conn_enter(c, HOLMES_CONN_ACCEPT);
    return 0;
}

static int step_accept(struct holmes_conn *c)
{
    int rc = holmes_plugin_accept(c->attr.plugin, c->listen_comm, &c->comm);

    if (rc)
        return rc;
    holmes_plugin_close_listen(c->attr.plugin, c->listen_comm);
    c->listen_comm = NULL;
    conn_enter(c, HOLMES_CONN_READY);
    return 0;
}

static int card_check(const struct holmes_conn *c, const struct card *card, size_t len)
{
    const char *own = holmes_plugin_name(c->attr.plugin);

    if (len != sizeof *card || memcmp(card->magic, card_magic, sizeof card_magic) != 0 ||
        card->version != CARD_VERSION) {
        holmes_warn(NET, "conn %s: rank %d runs another version of Holmes", c->key, c->attr.peer);
        return -EPROTO;
    }
    if (strncmp(card->plugin, own, sizeof card->plugin - 1) != 0) {
        holmes_warn(NET, "conn %s: rank %d uses net %.63s, this rank %s: all ranks need the same",
                    c->key, c->attr.peer, card->plugin, own);
        return -EPROTO;
    }
    return 0;
}

static int step_fetch(struct holmes_conn *c)
{
    struct card card;
    size_t len;
    uint64_t now = holmes_now_ns();
    int rc;

    if (now < c->next_look_ns)
        return -EAGAIN;
    rc = holmes_rdv_get(c->attr.rdv, c->key, &card, sizeof card, &len, 0);
    if (rc == -ETIMEDOUT) {
        c->next_look_ns = now + LOOK_EVERY_MS * 1000000u;
        return -EAGAIN;
    }
    if (rc)
        return rc;
    rc = card_check(c, &card, len);
    if (rc)
        return rc;
    memcpy(c->handle, card.handle, sizeof c->handle);
    if (!c->deadline_ns)
        c->deadline_ns = holmes_deadline_ms((uint64_t)c->attr.timeout_ms);
    conn_enter(c, HOLMES_CONN_CONNECT);
    return 0;
}

static int step_connect(struct holmes_conn *c)
{
    const struct holmes_conn_attr *a = &c->attr;
    int rc = holmes_plugin_connect(a->plugin, a->ctx, a->dev, c->handle, &c->comm);

    if (rc)
        return rc;
    conn_enter(c, HOLMES_CONN_READY);
    return 0;
}

static int (*const conn_steps[])(struct holmes_conn *) = {
    [HOLMES_CONN_LISTEN] = step_listen,
    [HOLMES_CONN_ACCEPT] = step_accept,
    [HOLMES_CONN_FETCH] = step_fetch,
    [HOLMES_CONN_CONNECT] = step_connect,
};

int holmes_conn_step(struct holmes_conn *c)
{
    int state = atomic_load(&c->state);
    int rc = holmes_rdv_poll(c->attr.rdv);

    if (rc == 0)
        rc = conn_steps[state](c);
    if (rc == -EAGAIN && c->deadline_ns && holmes_deadline_passed(c->deadline_ns))
        rc = -ETIMEDOUT;
    if (rc && rc != -EAGAIN) {
        c->error = rc;
        conn_enter(c, HOLMES_CONN_FAILED);
    }
    return rc;
}

/* ---- registrations ---- */

static void region_drop(struct holmes_conn *c, struct holmes_region *r)
{
    holmes_plugin_dereg(c->attr.plugin, c->comm, r->mr);
    holmes_list_remove(&r->node);
    c->nregions--;
    free(r);
}

static void regions_trim(struct holmes_conn *c)
{
    holmes_list_each(r, tmp, &c->regions, struct holmes_region, node)
    {
        if (c->nregions < REGIONS_KEPT)
            return;
        if (r->users == 0)
            region_drop(c, r);
    }
}

static struct holmes_region *region_find(struct holmes_conn *c, char *data, size_t len)
{
    holmes_list_each(r, tmp, &c->regions, struct holmes_region, node)
    {
        if (data >= r->base && len <= r->len && (size_t)(data - r->base) <= r->len - len)
            return r;
    }
    return NULL;
}

static int region_add(struct holmes_conn *c, char *data, size_t len, struct holmes_region **out)
{
    struct holmes_region *r = calloc(1, sizeof *r);
    int rc;

    if (!r)
        return -ENOMEM;
    regions_trim(c);
    rc = holmes_plugin_reg(c->attr.plugin, c->comm, data, len, &r->mr);
    if (rc) {
        free(r);
        return rc;
    }
    r->base = data;
    r->len = len;
    holmes_list_init(&r->node);
    c->nregions++;
    *out = r;
    return 0;
}

int holmes_conn_register(struct holmes_conn *c, const void *data, size_t len,
                         struct holmes_region **out)
{
    struct holmes_region *r;
    int rc = 0;

    pthread_mutex_lock(&c->lock);
    if (c->closed) {
        rc = -ECANCELED;
        goto unlock;
    }
    r = region_find(c, (char *)data, len);
    if (!r)
        rc = region_add(c, (char *)data, len, &r);
    if (rc)
        goto unlock;
    r->users++;
    holmes_list_remove(&r->node);
    holmes_list_append(&c->regions, &r->node);
    *out = r;
unlock:
    pthread_mutex_unlock(&c->lock);
    return rc;
}

void holmes_conn_release(struct holmes_conn *c, struct holmes_region *r)
{
    if (!r)
        return;
    pthread_mutex_lock(&c->lock);
    if (!c->closed)
        r->users--;
    pthread_mutex_unlock(&c->lock);
}

void holmes_conn_forget(struct holmes_conn *c, struct holmes_region *r)
{
    if (!r)
        return;
    pthread_mutex_lock(&c->lock);
    if (!c->closed && --r->users == 0)
        region_drop(c, r);
    pthread_mutex_unlock(&c->lock);
}

/* ---- end ---- */

void holmes_conn_close(struct holmes_conn *c)
{
    pthread_mutex_lock(&c->lock);
    if (c->closed)
        goto unlock;
    holmes_list_each(r, tmp, &c->regions, struct holmes_region, node) region_drop(c, r);
    if (c->comm && c->attr.sends)
        holmes_plugin_close_send(c->attr.plugin, c->comm);
    else if (c->comm)
        holmes_plugin_close_recv(c->attr.plugin, c->comm);
    if (c->listen_comm)
        holmes_plugin_close_listen(c->attr.plugin, c->listen_comm);
    c->closed = true;
unlock:
    pthread_mutex_unlock(&c->lock);
}

void holmes_conn_destroy(struct holmes_conn *c)
{
    if (!c)
        return;
    holmes_conn_close(c);
    pthread_mutex_destroy(&c->lock);
    free(c);
}
