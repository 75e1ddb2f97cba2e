/* Takes connections on the shared listener and lets through those that know a listen's token.
 * Everything a stranger can do costs it one log line and us one bounded struct for a bounded time.
 */
#include "listener.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "clock.h"
#include "context.h"
#include "env.h"
#include "log.h"

#define PENDINGS_MAX   1024
#define SILENCE_S      10 /* a peer that dialled has this long to speak */
#define PAUSE_MAX_NS   1000000
#define EVICT_AFTER_MS 500 /* when the table is full, silence this long loses its place */

struct pending {
    struct holmes_list link;
    struct oob oob;
    struct holmes_listen *listen; /* NULL until a valid HELLO */
    uint8_t client_nonce[16], server_nonce[16];
    uint64_t since_ns; /* it came, or said HELLO */
};

/* ---- the socket ---- */

static int bind_and_listen(const struct holmes_addr *addr, uint16_t port, int *out)
{
    struct holmes_addr a = *addr;
    int on = 1, off = 0, rc;
    int fd = socket(a.sa.sa_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);

    if (fd < 0)
        return -errno;
    /* Lets the next job use the port while connections of the last one linger in TIME_WAIT. */
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (a.sa.sa_family == AF_INET6) {
        setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
        a.in6.sin6_port = htons(port);
    } else {
        a.in.sin_port = htons(port);
    }
    if (bind(fd, &a.sa, holmes_addr_len(&a)) != 0 || listen(fd, 4096) != 0) {
        rc = -errno;
        close(fd);
        return rc;
    }
    *out = fd;
    return 0;
}

/* All addresses of both families, or of IPv4 where IPv6 is switched off. */
static int bind_any(uint16_t port, int *out)
{
    struct holmes_addr any6 = {.in6 = {.sin6_family = AF_INET6}};
    struct holmes_addr any4 = {.in = {.sin_family = AF_INET}};
    int rc = bind_and_listen(&any6, port, out);

    return rc == -EAFNOSUPPORT || rc == -EADDRNOTAVAIL ? bind_and_listen(&any4, port, out) : rc;
}

int listener_open(struct listener *l, const struct holmes_addr *addr, uint16_t low, uint16_t high)
{
    struct holmes_addr bound = {.prefix_len = 0};
    socklen_t len = sizeof bound.in6;
    int rc = -EADDRINUSE, fd = -1;

    holmes_list_init(&l->pendings);
    l->npendings = 0;
    l->fd = -1;
    for (unsigned port = low; port <= high && rc == -EADDRINUSE; port++)
        rc = addr ? bind_and_listen(addr, (uint16_t)port, &fd) : bind_any((uint16_t)port, &fd);
    if (rc == 0 && getsockname(fd, &bound.sa, &len) != 0) {
        rc = -errno;
        close(fd);
    }
    if (rc != 0) {
        if (rc == -EADDRINUSE && low > 0)
            holmes_warn(INIT,
                        "no free port in HOLMES_PORT_RANGE=%u-%u: widen it (two ports per "
                        "process are needed)",
                        low, high);
        else
            holmes_warn(INIT, "cannot open the listener: %s", holmes_strerror(rc));
        return rc;
    }
    l->fd = fd;
    l->port = ntohs(bound.sa.sa_family == AF_INET6 ? bound.in6.sin6_port : bound.in.sin_port);
    oob_fork_guard_add(fd);
    return 0;
}

static void pending_free(struct listener *l, struct pending *p)
{
    holmes_list_remove(&p->link);
    l->npendings--;
    oob_close(&p->oob);
    free(p);
}

void listener_close(struct listener *l)
{
    if (l->fd < 0)
        return;
    holmes_list_each(p, tmp, &l->pendings, struct pending, link) pending_free(l, p);
    oob_fork_guard_remove(l->fd);
    close(l->fd);
    l->fd = -1;
}

void listener_forget(struct listener *l, const struct holmes_listen *listen)
{
    holmes_list_each(p, tmp, &l->pendings, struct pending, link)
    {
        if (p->listen == listen)
            pending_free(l, p);
    }
}

void listen_free(struct holmes_listen *l)
{
    holmes_list_remove(&l->link);
    listener_forget(&l->t->listener, l);
    holmes_list_each(a, tmp, &l->arrivals, struct arrival, link) arrival_free(a);
    free(l);
}

void arrival_free(struct arrival *a)
{
    holmes_list_remove(&a->link);
    oob_close(&a->oob);
    free(a);
}

/* ---- one peer's proof ---- */

static void turn_away(struct listener *l, struct pending *p, const char *why)
{
    struct holmes_addr from;
    char text[64];

    oob_peer_addr(&p->oob, &from);
    holmes_warn(NET, "stranger %s on listener port %u: %s",
                oob_addr_text(&from.sa, text, sizeof text), l->port, why);
    pending_free(l, p);
}

/* Its place is needed, or its time is over. A true peer may be one whose thread has a thousand
 * connections to look after: it hears that it may come again. */
static void turn_away_for_now(struct listener *l, struct pending *p, const char *why)
{
    static const struct proto_abort busy = {.error = EBUSY};

    oob_send(&p->oob, PROTO_ABORT, &busy);
    turn_away(l, p, why);
}

/* A true peer dials several addresses at once and drops all but the first that answers. */
static void let_go(struct listener *l, struct pending *p, const char *why)
{
    struct holmes_addr from;
    char text[64];

    oob_peer_addr(&p->oob, &from);
    if (!p->listen)
        holmes_info(NET, "%s on listener port %u said nothing: %s",
                    oob_addr_text(&from.sa, text, sizeof text), l->port, why);
    pending_free(l, p);
}

static struct holmes_listen *listen_by_id(struct holmes_transport *t, uint64_t id)
{
    holmes_list_each(l, tmp, &t->listens, struct holmes_listen, link)
    {
        if (l->id == id)
            return l;
    }
    return NULL;
}

static int pending_hello(struct holmes_transport *t, struct pending *p, char *why, size_t why_len)
{
    struct proto_hello hello;
    struct proto_welcome welcome;

    if (p->oob.in_frame.type != PROTO_HELLO) {
        snprintf(why, why_len, "sent frame type %u instead of a hello", p->oob.in_frame.type);
        return -EPROTO;
    }
    memcpy(&hello, p->oob.in_payload, sizeof hello);
    p->listen = listen_by_id(t, hello.listen_id);
    if (!p->listen) {
        snprintf(why, why_len, "asks for a listen that is not here (of another job or closed)");
        return -EACCES;
    }
    memcpy(p->client_nonce, hello.nonce, sizeof p->client_nonce);
    if (getrandom(p->server_nonce, sizeof p->server_nonce, 0) != sizeof p->server_nonce)
        return -EIO;
    memcpy(welcome.nonce, p->server_nonce, sizeof welcome.nonce);
    welcome.mac = proto_mac(p->listen->token, 'S', p->client_nonce, p->server_nonce);
    return oob_send(&p->oob, PROTO_WELCOME, &welcome);
}

static int pending_auth(struct pending *p, char *why, size_t why_len)
{
    struct arrival *a;
    struct proto_offer offer;
    int rc;

    if (p->oob.in_frame.type != PROTO_AUTH) {
        snprintf(why, why_len, "sent frame type %u instead of its proof", p->oob.in_frame.type);
        return -EPROTO;
    }
    memcpy(&offer, p->oob.in_payload, sizeof offer);
    if (offer.mac != proto_mac(p->listen->token, 'C', p->client_nonce, p->server_nonce)) {
        snprintf(why, why_len, "does not know the token of this listen");
        return -EACCES;
    }
    rc = proto_offer_check(&offer, why, why_len);
    if (rc != 0)
        return rc;
    a = malloc(sizeof *a);
    if (!a) {
        snprintf(why, why_len, "out of memory");
        return -ENOMEM;
    }
    a->offer = offer;
    oob_move(&a->oob, &p->oob);
    holmes_list_append(&p->listen->arrivals, &a->link);
    return 0;
}

/* Who names a listen knows its handle: it has as long as its own connect, whose thread may have
 * thousands to look after, or no core. */
static uint64_t patience_s(const struct pending *p)
{
    return p->listen ? (uint64_t)holmes_env_int(HOLMES_ENV_CONNECT_TIMEOUT) : SILENCE_S;
}

static void pending_progress(struct holmes_transport *t, struct pending *p, uint64_t now)
{
    char why[160] = "failed";
    int rc = oob_flush(&p->oob);

    if (rc == 0)
        rc = oob_recv(&p->oob, why, sizeof why);
    if (rc == 0 && !p->listen) {
        rc = pending_hello(t, p, why, sizeof why);
        p->since_ns = now;
        if (rc == 0)
            rc = -EAGAIN;
    } else if (rc == 0) {
        rc = pending_auth(p, why, sizeof why);
        if (rc == 0) {
            pending_free(&t->listener, p);
            return;
        }
    }
    if (rc == -EAGAIN && now - p->since_ns > patience_s(p) * 1000000000ull) {
        snprintf(why, sizeof why, "silent for %llu s", (unsigned long long)patience_s(p));
        turn_away_for_now(&t->listener, p, why);
        return;
    }
    if (rc == 0 || rc == -EAGAIN)
        return;
    if (rc == -ECONNRESET && (p->listen || p->oob.in_done == 0))
        let_go(&t->listener, p, why);
    else
        turn_away(&t->listener, p, why);
}

/* ---- taking connections ---- */

/* The table is full of peers that say nothing: the oldest loses its place. */
static bool make_room(struct listener *l, uint64_t now)
{
    if (l->npendings < PENDINGS_MAX)
        return true;
    /* NOLINTNEXTLINE: the analyzer does not see nodes leave the list */
    holmes_list_each(p, tmp, &l->pendings, struct pending, link)
    {
        if (!p->listen && now - p->since_ns > EVICT_AFTER_MS * 1000000ull) {
            turn_away_for_now(l, p, "silent while others wait");
            return true;
        }
    }
    return false;
}

static int take_one(struct listener *l, uint64_t now)
{
    int fd = accept4(l->fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
    struct pending *p;

    if (fd < 0)
        return errno == ECONNABORTED || errno == EINTR ? 0 : -errno;
    p = calloc(1, sizeof *p);
    if (!p) {
        close(fd);
        return -ENOMEM;
    }
    oob_init(&p->oob, fd);
    p->since_ns = now;
    holmes_list_append(&l->pendings, &p->link);
    l->npendings++;
    return 0;
}

int listener_progress(struct holmes_transport *t)
{
    struct listener *l = &t->listener;
    uint64_t now = holmes_now_ns();
    int rc = 0;

    if (now < l->next_ns)
        return 0;
    while (rc == 0 && make_room(l, now))
        rc = take_one(l, now);
    /* NOLINTNEXTLINE: the analyzer does not see nodes leave the list */
    holmes_list_each(p, tmp, &l->pendings, struct pending, link) pending_progress(t, p, now);
    l->next_ns = holmes_half_time(now, PAUSE_MAX_NS);
    return rc == -EAGAIN ? 0 : rc;
}
