/* Silent strangers on the passive endpoint. The provider accepts every TCP connection and waits
 * without limit for its connect request; it neither tells us of such connections nor ends them, and
 * forgets them, descriptor and all, when the endpoint closes. So they are looked for among this
 * process's own descriptors (local address of the passive endpoint, peer of no lane) and shut down,
 * upon which the provider reads end of file and closes them itself.
 */
#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "clock.h"
#include "log.h"
#include "ofi.h"

#define SWEEP_BUSY_MS    2000 /* while there are strangers */
#define SWEEP_IDLE_MS    5000
#define SWEEP_SHARE      100   /* a sweep takes at most this part of the time */
#define SILENCE_LIMIT_MS 60000 /* a true peer sends its request as soon as it polls its connect */

enum fd_kind { FD_OTHER, FD_LISTENER, FD_STREAM };

/* What a sweep knows of the lanes, and finds. */
struct sweep {
    uint64_t now;
    bool all;
    struct holmes_addr *lanes; /* the other ends of accepted lanes' streams, sorted */
    size_t nlanes;
    int awaited; /* lanes whose streams have not come, or are not known to have */
    int streams; /* found that are no lane's */
};

static int addr_compare(const void *va, const void *vb)
{
    const struct holmes_addr *a = va, *b = vb;
    int ports = (int)tcp_addr_port(a) - (int)tcp_addr_port(b);

    if (a->sa.sa_family != b->sa.sa_family)
        return (int)a->sa.sa_family - (int)b->sa.sa_family;
    if (ports != 0)
        return ports;
    return a->sa.sa_family == AF_INET6
               ? memcmp(&a->in6.sin6_addr, &b->in6.sin6_addr, sizeof a->in6.sin6_addr)
               : memcmp(&a->in.sin_addr, &b->in.sin_addr, sizeof a->in.sin_addr);
}

static bool addr_equal(const struct holmes_addr *a, const struct holmes_addr *b)
{
    return addr_compare(a, b) == 0;
}

/* Whether a socket's own address belongs to the passive endpoint, which may listen on all. */
static bool is_listen_addr(const struct wire_nic *wn, const struct holmes_addr *local)
{
    struct holmes_addr at = wn->listen;

    if (at.sa.sa_family != local->sa.sa_family)
        return false;
    if (tcp_addr_is_unspecified(&at) && at.sa.sa_family == AF_INET)
        at.in.sin_addr = local->in.sin_addr;
    else if (tcp_addr_is_unspecified(&at))
        at.in6.sin6_addr = local->in6.sin6_addr;
    return addr_equal(&at, local);
}

/* `peer` is zeroed when the stream is already dead and has none. */
static enum fd_kind fd_classify(const struct wire_nic *wn, int fd, struct holmes_addr *peer)
{
    struct holmes_addr local = {0};
    socklen_t len = sizeof local;
    int listening = 0;

    if (getsockname(fd, &local.sa, &len) != 0 || !is_listen_addr(wn, &local))
        return FD_OTHER;
    len = sizeof listening;
    if (getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listening, &len) == 0 && listening)
        return FD_LISTENER;
    memset(peer, 0, sizeof *peer);
    len = sizeof *peer;
    getpeername(fd, &peer->sa, &len);
    return FD_STREAM;
}

/* -ENOMEM: what is nobody's cannot be told. */
static int sweep_note_lanes(struct wire_nic *wn, struct sweep *sweep)
{
    size_t n = 0;

    holmes_list_each(one, tmp, &wn->lanes, struct wire_lane, node) n++;
    sweep->lanes = malloc((n + 1) * sizeof *sweep->lanes);
    if (!sweep->lanes)
        return -ENOMEM;
    holmes_list_each(lane, tmp2, &wn->lanes, struct wire_lane, node)
    {
        if (lane->role != WIRE_ACCEPT)
            continue;
        if (lane->ep)
            sweep->lanes[sweep->nlanes++] = lane->peer;
        else
            sweep->awaited++;
    }
    qsort(sweep->lanes, sweep->nlanes, sizeof *sweep->lanes, addr_compare);
    return 0;
}

static bool is_lane(const struct sweep *sweep, const struct holmes_addr *peer)
{
    return bsearch(peer, sweep->lanes, sweep->nlanes, sizeof *sweep->lanes, addr_compare) != NULL;
}

static void stranger_drop(struct wire_nic *wn, struct ofi_stranger *s, const char *reason)
{
    if (s->dropped)
        return;
    holmes_warn(NET, "nic %s: a silent connection to port %u is dropped: %s", wn->nic.name,
                ntohs(wn->listen.in.sin_port), reason);
    shutdown(s->fd, SHUT_RDWR);
    s->dropped = true;
}

/* Room for one more, for twice the bound at most: those that were dropped stay until they close. */
static bool strangers_grow(struct wire_nic *wn, const struct sweep *sweep)
{
    int most = 2 * (OFI_STRANGERS_MAX + sweep->awaited), cap = wn->strangers_cap + 64;
    struct ofi_stranger *grown;

    if (wn->nstrangers < wn->strangers_cap)
        return true;
    if (wn->nstrangers >= most)
        return false;
    grown = realloc(wn->strangers, (size_t)cap * sizeof *grown);
    if (!grown)
        return false;
    wn->strangers = grown;
    wn->strangers_cap = cap;
    return true;
}

/* The list is in order of arrival; the oldest makes room. */
static void stranger_see(struct wire_nic *wn, int fd, const struct holmes_addr *peer,
                         const struct sweep *sweep)
{
    for (int i = 0; i < wn->nstrangers; i++) {
        struct ofi_stranger *s = &wn->strangers[i];

        if (s->fd == fd && (s->dropped || addr_equal(&s->peer, peer))) {
            s->seen = true;
            return;
        }
    }
    if (!strangers_grow(wn, sweep)) {
        if (wn->nstrangers == 0)
            return;
        stranger_drop(wn, &wn->strangers[0], "too many");
        wn->nstrangers--;
        memmove(wn->strangers, wn->strangers + 1, (size_t)wn->nstrangers * sizeof *wn->strangers);
    }
    wn->strangers[wn->nstrangers++] =
        (struct ofi_stranger){.fd = fd, .peer = *peer, .since_ns = sweep->now, .seen = true};
}

static void strangers_forget_unseen(struct wire_nic *wn)
{
    int kept = 0;

    for (int i = 0; i < wn->nstrangers; i++) {
        if (wn->strangers[i].seen)
            wn->strangers[kept++] = wn->strangers[i];
    }
    wn->nstrangers = kept;
}

/* Calls `see` for every descriptor of this process until it returns false. */
static void each_fd(bool (*see)(struct wire_nic *wn, int fd, void *arg), struct wire_nic *wn,
                    void *arg)
{
    DIR *dir = opendir("/proc/self/fd");
    bool more = true;

    if (!dir)
        return;
    for (struct dirent *e = readdir(dir); e && more; e = readdir(dir)) {
        char *end;
        int fd = (int)strtol(e->d_name, &end, 10);

        if (end != e->d_name && *end == '\0')
            more = see(wn, fd, arg);
    }
    closedir(dir);
}

static bool sweep_see(struct wire_nic *wn, int fd, void *arg)
{
    struct sweep *sweep = arg;
    struct holmes_addr peer;

    switch (fd_classify(wn, fd, &peer)) {
    case FD_LISTENER:
        if (sweep->all)
            shutdown(fd, SHUT_RDWR); /* or new ones would come while the old ones go */
        break;
    case FD_STREAM:
        if (is_lane(sweep, &peer))
            break;
        sweep->streams++;
        if (peer.sa.sa_family != AF_UNSPEC || sweep->all)
            stranger_see(wn, fd, &peer, sweep);
        break;
    case FD_OTHER:
        break;
    }
    return true;
}

static bool listener_see(struct wire_nic *wn, int fd, void *arg)
{
    struct holmes_addr peer;

    if (fd_classify(wn, fd, &peer) != FD_LISTENER)
        return true;
    *(int *)arg = fd;
    return false;
}

int holmes_ofi_listener_fd(struct wire_nic *wn)
{
    int fd = -1;

    each_fd(listener_see, wn, &fd);
    return fd;
}

/* With thousands of descriptors a sweep takes milliseconds. */
static void sweep_schedule(struct wire_nic *wn, uint64_t started_ns)
{
    uint64_t took = holmes_now_ns() - started_ns;
    uint64_t pause = (wn->nstrangers > 0 ? SWEEP_BUSY_MS : SWEEP_IDLE_MS) * 1000000ull;

    wn->next_sweep_ns = started_ns + (took * SWEEP_SHARE > pause ? took * SWEEP_SHARE : pause);
}

int holmes_ofi_sweep(struct wire_nic *wn, bool all)
{
    struct sweep sweep = {.now = holmes_now_ns(), .all = all};

    if ((!all && sweep.now < wn->next_sweep_ns) || sweep_note_lanes(wn, &sweep) != 0)
        return 0;
    for (int i = 0; i < wn->nstrangers; i++)
        wn->strangers[i].seen = false;
    each_fd(sweep_see, wn, &sweep);
    strangers_forget_unseen(wn);

    for (int i = 0; i < wn->nstrangers; i++) {
        struct ofi_stranger *s = &wn->strangers[i];

        if (all)
            stranger_drop(wn, s, "closing");
        else if (i < wn->nstrangers - OFI_STRANGERS_MAX - sweep.awaited)
            stranger_drop(wn, s, "too many");
        else if (sweep.now - s->since_ns > SILENCE_LIMIT_MS * 1000000ull)
            stranger_drop(wn, s, "it said nothing for a minute");
    }
    free(sweep.lanes);
    sweep_schedule(wn, sweep.now);
    return sweep.streams;
}
