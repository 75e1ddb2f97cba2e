/* Connection events: reads the NIC's event queue and tells each lane what happened to it. Connect
 * requests are matched to the accepting lane whose secret they quote; others are rejected. */
#include <errno.h>
#include <netdb.h>
#include <stdio.h>
#include <string.h>

#include "log.h"
#include "ofi.h"

#define EQ_DATA_MAX 512 /* private data of a request: 256 B in libfabric 1.17 */

static const char *addr_text(const void *sa, size_t len, char *buf, size_t buf_len)
{
    char host[64], port[16];

    if (!sa || getnameinfo(sa, (socklen_t)len, host, sizeof host, port, sizeof port,
                           NI_NUMERICHOST | NI_NUMERICSERV) != 0)
        return "unknown";
    snprintf(buf, buf_len, "%s port %s", host, port);
    return buf;
}

static struct wire_lane *lane_by_secret(struct wire_nic *wn, uint64_t secret)
{
    holmes_list_each(lane, tmp, &wn->lanes, struct wire_lane, node)
    {
        if (lane->role == WIRE_ACCEPT && lane->secret == secret && !lane->ep)
            return lane;
    }
    return NULL;
}

static void request_reject(struct wire_nic *wn, struct fi_info *req, const char *reason)
{
    char peer[96];

    holmes_warn(NET, "nic %s: request from %s rejected: %s", wn->nic.name,
                addr_text(req->dest_addr, req->dest_addrlen, peer, sizeof peer), reason);
    fi_reject(wn->pep, req->handle, NULL, 0);
    holmes_ofi.freeinfo(req);
}

static void on_request(struct wire_nic *wn, struct fi_info *req, const void *data, size_t len)
{
    struct wire_lane *lane;
    uint64_t secret;
    int rc;

    if (tcp_request_decode(OFI_MAGIC, data, len, &secret) != 0) {
        request_reject(wn, req, "its private data is not ours");
        return;
    }
    lane = lane_by_secret(wn, secret);
    if (!lane) {
        request_reject(wn, req, "it quotes no secret of a waiting lane");
        return;
    }
    lane->secret = 0; /* quoted once */
    rc = holmes_ofi_lane_answer(lane, req);
    if (rc != 0) {
        request_reject(wn, req, holmes_strerror(rc));
        holmes_ofi_lane_fail(lane, rc);
    }
}

static void on_event(struct wire_nic *wn, uint32_t event, const struct fi_eq_cm_entry *entry,
                     size_t data_len)
{
    struct wire_lane *lane;
    int rising = -EAGAIN;

    if (event == FI_CONNREQ) {
        on_request(wn, entry->info, entry->data, data_len);
        return;
    }
    if (entry->fid->fclass != FI_CLASS_EP)
        return;
    /* Events of a closed endpoint are gone from the queue, so this context is a live lane. */
    lane = entry->fid->context;
    if (event == FI_CONNECTED)
        atomic_compare_exchange_strong(&lane->status, &rising, 0);
    else if (event == FI_SHUTDOWN)
        holmes_ofi_lane_fail(lane, -ECONNRESET);
}

static void on_error(struct wire_nic *wn)
{
    struct fi_eq_err_entry err = {0};

    if (fi_eq_readerr(wn->eq, &err, 0) < 0)
        return;
    if (err.fid && err.fid->fclass == FI_CLASS_EP)
        holmes_ofi_lane_fail(err.fid->context, err.err > 0 ? holmes_ofi_errno(-err.err) : -EIO);
    else
        holmes_warn(NET, "nic %s: event queue reports %s", wn->nic.name,
                    holmes_strerror(holmes_ofi_errno(-err.err)));
}

void holmes_ofi_events(struct wire_nic *wn)
{
    union {
        struct fi_eq_cm_entry entry;
        char bytes[sizeof(struct fi_eq_cm_entry) + EQ_DATA_MAX];
    } buf;

    /* Bounded, so that a flood of requests cannot keep the caller here. */
    for (int i = 0; i < 256; i++) {
        uint32_t event;
        ssize_t n;

        /* After a short read the provider asks errno why, and takes a stale EAGAIN for "wait":
         * a stranger's closed connection would then stay for ever. */
        errno = 0;
        n = fi_eq_read(wn->eq, &event, &buf, sizeof buf, 0);
        if (n == -FI_EAVAIL)
            on_error(wn);
        else if (n >= (ssize_t)sizeof buf.entry)
            on_event(wn, event, &buf.entry, (size_t)n - sizeof buf.entry);
        else
            break;
    }
}

void holmes_ofi_nic_progress(struct wire_nic *wn)
{
    /* Another thread that holds the lock reads the events or closes a lane. */
    if (pthread_mutex_trylock(&wn->lock) != 0)
        return;
    holmes_ofi_events(wn);
    holmes_ofi_sweep(wn, false);
    pthread_mutex_unlock(&wn->lock);
}
