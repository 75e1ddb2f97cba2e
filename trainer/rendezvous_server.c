/* The rendezvous server: one thread, one poll loop. A connection is a stranger until it has proved
 * itself; strangers are few, small and short-lived. A rank whose connection ends before it left
 * aborts the job, and everybody is told which one and where it ran. */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "clock.h"
#include "list.h"
#include "log.h"
#include "rdv_store.h"
#include "rdv_wire.h"
#include "rendezvous.h"

enum {
    STRANGERS_MAX = 32,
    STRANGER_MS = 5000,
    DRAIN_MS = 2000, /* holmes_rdv_stop waits this long for ranks to leave */
    OUT_MAX = 8 << 20,
    NRANKS_MAX = 1 << 20,
    RUNNING = 1,
};

enum peer_state {
    PEER_NEW,        /* HELLO is due */
    PEER_CHALLENGED, /* PROVE is due */
    PEER_MEMBER,
};

struct peer {
    struct holmes_list node;
    int fd;
    enum peer_state state;
    bool doomed; /* closed once its output is written */
    char from[64];
    uint64_t deadline_ns; /* strangers */
    uint8_t client_nonce[HOLMES_RDV_NONCE], server_nonce[HOLMES_RDV_NONCE];
    int rank;
    uint8_t *in, *out;
    size_t in_len, in_cap, out_len, out_cap, out_at;
};

struct member {
    struct peer *peer; /* NULL: not connected (yet, or any more) */
    bool seen, left;
    char host[HOLMES_RDV_HOST_MAX];
    uint32_t pid;
};

struct holmes_rdv_server {
    pthread_t thread;
    int listen_fd, wake_fd, nranks;
    uint16_t port;
    struct holmes_rdv_key key;
    struct holmes_rdv_store *store;
    struct holmes_list peers;
    struct member *members; /* by rank */
    int nstrangers, npeers;
    char aborted[HOLMES_RDV_TEXT_MAX];
    struct pollfd *polls;
    struct peer **polled;
    int npolls;
    atomic_bool stop;
    uint64_t stop_ns, listen_again_ns;
    pthread_mutex_t lock; /* `verdict`, which holmes_rdv_server_wait waits for */
    pthread_cond_t judged;
    int verdict; /* RUNNING, 0, or -ECONNABORTED */
};

/* ---- output ---- */

static bool out_reserve(struct peer *p, size_t more)
{
    size_t cap = p->out_cap ? p->out_cap : 512;
    uint8_t *grown;

    if (p->out_at == p->out_len)
        p->out_at = p->out_len = 0;
    while (cap < p->out_len + more)
        cap *= 2;
    if (cap > OUT_MAX)
        return false;
    if (cap == p->out_cap)
        return true;
    grown = realloc(p->out, cap);
    if (!grown)
        return false;
    p->out = grown;
    p->out_cap = cap;
    return true;
}

/* Appends a frame of two parts. A peer that does not read is given up. */
static void peer_say(struct peer *p, enum holmes_rdv_type type, uint32_t id, const void *a,
                     size_t a_len, const void *b, size_t b_len)
{
    struct holmes_rdv_header h = {(uint32_t)(a_len + b_len), type, id};

    if (!out_reserve(p, HOLMES_RDV_HEADER + a_len + b_len)) {
        p->doomed = true;
        return;
    }
    holmes_rdv_header_write(p->out + p->out_len, &h);
    p->out_len += HOLMES_RDV_HEADER;
    if (a_len)
        memcpy(p->out + p->out_len, a, a_len);
    p->out_len += a_len;
    if (b_len)
        memcpy(p->out + p->out_len, b, b_len);
    p->out_len += b_len;
}

static void peer_reply(struct peer *p, uint32_t id, int status, const void *data, size_t len)
{
    uint8_t code[4];

    holmes_rdv_u32_write(code, (uint32_t)-status);
    peer_say(p, HOLMES_RDV_REPLY, id, code, sizeof code, data, len);
}

static void peer_refuse(struct peer *p, int status, const char *text)
{
    uint8_t code[4];

    holmes_warn(NET, "rendezvous: refused %s: %s", p->from, text);
    holmes_rdv_u32_write(code, (uint32_t)-status);
    peer_say(p, HOLMES_RDV_REFUSED, 0, code, sizeof code, text, strlen(text));
    p->doomed = true;
}

/* false: the connection is over. */
static bool peer_flush(struct peer *p)
{
    while (p->out_at < p->out_len) {
        ssize_t n = send(p->fd, p->out + p->out_at, p->out_len - p->out_at, MSG_NOSIGNAL);

        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return errno == EAGAIN || errno == EWOULDBLOCK;
        p->out_at += (size_t)n;
    }
    return true;
}

/* ---- the job ---- */

static void server_abort(struct holmes_rdv_server *s, int rank, const char *reason)
{
    const struct member *m = &s->members[rank];

    if (*s->aborted)
        return;
    snprintf(s->aborted, sizeof s->aborted, "rank %d on %s (pid %u): %s", rank, m->host, m->pid,
             reason);
    holmes_info(NET, "rendezvous: job aborted, %s", s->aborted);
    holmes_list_each(p, tmp, &s->peers, struct peer, node)
    {
        if (p->state == PEER_MEMBER)
            peer_say(p, HOLMES_RDV_ABORTED, 0, s->aborted, strlen(s->aborted), NULL, 0);
    }
}

static void store_answer(void *ctx, struct holmes_rdv_waiter w, int status, const void *data,
                         size_t len)
{
    struct holmes_rdv_server *s = ctx;
    struct peer *p = s->members[w.rank].peer;

    if (p)
        peer_reply(p, w.id, status, data, len);
}

static void store_expired(void *ctx, struct holmes_rdv_waiter w, const char *name,
                          const bool *arrived, unsigned int timeout_ms)
{
    struct holmes_rdv_server *s = ctx;
    char text[HOLMES_RDV_TEXT_MAX];
    int used, missing = 0;

    used = snprintf(text, sizeof text, "%s '%.80s' %s after %u.%01u s", arrived ? "barrier" : "key",
                    name, arrived ? "not complete" : "not set", timeout_ms / 1000,
                    timeout_ms % 1000 / 100);
    for (int r = 0; r < s->nranks && used < (int)sizeof text - 80; r++) {
        const struct member *m = &s->members[r];

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

static void on_hello(struct holmes_rdv_server *s, struct peer *p, const uint8_t *data, size_t len)
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
    peer_say(p, HOLMES_RDV_CHALLENGE, 0, p->server_nonce, sizeof p->server_nonce, NULL, 0);
    p->state = PEER_CHALLENGED;
}

static void welcome(struct holmes_rdv_server *s, struct peer *p, const struct holmes_rdv_prove *c)
{
    struct member *m = &s->members[c->rank];
    uint8_t mac[8];

    m->peer = p;
    m->seen = true;
    m->pid = c->pid;
    memcpy(m->host, c->host, sizeof m->host);
    p->rank = (int)c->rank;
    p->state = PEER_MEMBER;
    s->nstrangers--;
    holmes_rdv_u64_write(mac, holmes_rdv_server_mac(&s->key, p->client_nonce, p->server_nonce));
    peer_say(p, HOLMES_RDV_WELCOME, 0, mac, sizeof mac, NULL, 0);
    if (*s->aborted)
        peer_say(p, HOLMES_RDV_ABORTED, 0, s->aborted, strlen(s->aborted), NULL, 0);
}

static void on_prove(struct holmes_rdv_server *s, struct peer *p, const uint8_t *data, size_t len)
{
    struct holmes_rdv_prove claim;
    char text[160];

    if (len != HOLMES_RDV_PROVE_BYTES) {
        peer_refuse(p, -EPROTO, "malformed proof");
        return;
    }
    holmes_rdv_prove_read(data, &claim);
    if (claim.mac != holmes_rdv_client_mac(&s->key, p->client_nonce, p->server_nonce, &claim)) {
        peer_refuse(p, -EACCES, "it does not know this job's secret");
    } else if (claim.nranks != (uint32_t)s->nranks || claim.rank >= claim.nranks) {
        snprintf(text, sizeof text, "it claims to be rank %u of %u, this job has %d ranks",
                 claim.rank, claim.nranks, s->nranks);
        peer_refuse(p, -EINVAL, text);
    } else if (s->members[claim.rank].seen) {
        snprintf(text, sizeof text, "rank %u is taken by pid %u on %s", claim.rank,
                 s->members[claim.rank].pid, s->members[claim.rank].host);
        peer_refuse(p, -EEXIST, text);
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

static int on_put(struct holmes_rdv_server *s, struct peer *p, uint32_t id, const uint8_t *data,
                  size_t len)
{
    char key[HOLMES_RDV_KEY_MAX + 1];
    size_t key_len = len ? data[0] : 0;
    int rc;

    if (len < 1 + key_len || !name_read(key, data + 1, key_len))
        return -EPROTO;
    if (len - 1 - key_len > HOLMES_RDV_VALUE_MAX)
        return -EPROTO;
    rc = holmes_rdv_store_put(s->store, key, data + 1 + key_len, len - 1 - key_len);
    peer_reply(p, id, rc, NULL, 0);
    return 0;
}

static int on_wait(struct holmes_rdv_server *s, struct peer *p, uint32_t id, const uint8_t *data,
                   size_t len, bool barrier)
{
    struct holmes_rdv_waiter who = {p->rank, id};
    char name[HOLMES_RDV_KEY_MAX + 1];
    int rc;

    if (len < 4 || !name_read(name, data + 4, len - 4))
        return -EPROTO;
    rc = barrier ? holmes_rdv_store_barrier(s->store, who, name, holmes_rdv_u32_read(data))
                 : holmes_rdv_store_get(s->store, who, name, holmes_rdv_u32_read(data));
    if (rc)
        peer_reply(p, id, rc, NULL, 0);
    return 0;
}

static int on_member(struct holmes_rdv_server *s, struct peer *p, const struct holmes_rdv_header *h,
                     const uint8_t *data)
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
        server_abort(s, p->rank, text);
        return 0;
    case HOLMES_RDV_LEAVE:
        s->members[p->rank].left = true;
        p->doomed = true;
        return 0;
    default:
        return -EPROTO;
    }
}

static void on_frame(struct holmes_rdv_server *s, struct peer *p, const struct holmes_rdv_header *h,
                     const uint8_t *data)
{
    if (p->state == PEER_NEW && h->type == HOLMES_RDV_HELLO) {
        on_hello(s, p, data, h->len);
    } else if (p->state == PEER_CHALLENGED && h->type == HOLMES_RDV_PROVE) {
        on_prove(s, p, data, h->len);
    } else if (p->state != PEER_MEMBER || on_member(s, p, h, data) != 0) {
        holmes_warn(NET, "rendezvous: %s sent a malformed message", p->from);
        p->doomed = true;
    }
}

/* ---- input ---- */

static size_t frame_limit(const struct peer *p)
{
    return p->state == PEER_MEMBER ? HOLMES_RDV_FRAME_MAX : HOLMES_RDV_STRANGER_MAX;
}

static bool in_reserve(struct peer *p, size_t cap)
{
    uint8_t *grown;

    if (cap <= p->in_cap)
        return true;
    grown = realloc(p->in, cap);
    if (!grown)
        return false;
    p->in = grown;
    p->in_cap = cap;
    return true;
}

/* Handles whole frames; false when the next one is longer than it may be. */
static bool peer_frames(struct holmes_rdv_server *s, struct peer *p)
{
    size_t at = 0;

    while (!p->doomed && p->in_len - at >= HOLMES_RDV_HEADER) {
        struct holmes_rdv_header h = holmes_rdv_header_read(p->in + at);

        if (h.len > frame_limit(p))
            return false;
        if (p->in_len - at < HOLMES_RDV_HEADER + h.len) {
            memmove(p->in, p->in + at, p->in_len - at);
            p->in_len -= at;
            return in_reserve(p, HOLMES_RDV_HEADER + h.len);
        }
        on_frame(s, p, &h, p->in + at + HOLMES_RDV_HEADER);
        at += HOLMES_RDV_HEADER + h.len;
    }
    memmove(p->in, p->in + at, p->in_len - at);
    p->in_len -= at;
    return true;
}

/* false: the connection is over. */
static bool peer_read(struct holmes_rdv_server *s, struct peer *p)
{
    for (;;) {
        ssize_t n = recv(p->fd, p->in + p->in_len, p->in_cap - p->in_len, 0);

        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return errno == EAGAIN || errno == EWOULDBLOCK;
        if (n == 0)
            return false;
        p->in_len += (size_t)n;
        if (!peer_frames(s, p)) {
            holmes_warn(NET, "rendezvous: %s sent a message that is too long", p->from);
            return false;
        }
        if (p->doomed)
            return true;
    }
}

static void peer_close(struct holmes_rdv_server *s, struct peer *p)
{
    if (p->state == PEER_MEMBER) {
        s->members[p->rank].peer = NULL;
        holmes_rdv_store_drop(s->store, p->rank);
        if (!s->members[p->rank].left)
            server_abort(s, p->rank, "its connection ended (the process died or its host is gone)");
    } else {
        s->nstrangers--;
        if (!p->doomed)
            holmes_warn(NET, "rendezvous: %s went away before it proved itself", p->from);
    }
    holmes_list_remove(&p->node);
    s->npeers--;
    close(p->fd);
    free(p->in);
    free(p->out);
    free(p);
}

/* ---- connections ---- */

static void keep_alive(int fd)
{
    int one = 1, idle_s = 5, every_s = 3, count = 3, user_ms = 15000;

    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &one, sizeof one);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle_s, sizeof idle_s);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &every_s, sizeof every_s);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &count, sizeof count);
    setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &user_ms, sizeof user_ms);
}

static struct peer *oldest_stranger(struct holmes_rdv_server *s)
{
    holmes_list_each(p, tmp, &s->peers, struct peer, node)
    {
        if (p->state != PEER_MEMBER)
            return p;
    }
    return NULL;
}

static void address_text(const struct sockaddr_storage *sa, socklen_t len, char text[64])
{
    char host[46], port[8];

    if (getnameinfo((const struct sockaddr *)sa, len, host, sizeof host, port, sizeof port,
                    NI_NUMERICHOST | NI_NUMERICSERV) == 0)
        snprintf(text, 64, "%s port %s", host, port);
    else
        snprintf(text, 64, "a stranger");
}

static bool peer_add(struct holmes_rdv_server *s, int fd, const struct sockaddr_storage *sa,
                     socklen_t len)
{
    struct peer *p = calloc(1, sizeof *p);

    if (!p || !in_reserve(p, HOLMES_RDV_HEADER + HOLMES_RDV_STRANGER_MAX)) {
        free(p);
        return false;
    }
    keep_alive(fd);
    p->fd = fd;
    p->deadline_ns = holmes_deadline_ms(STRANGER_MS);
    address_text(sa, len, p->from);
    holmes_list_append(&s->peers, &p->node);
    s->nstrangers++;
    s->npeers++;
    return true;
}

static void server_accept(struct holmes_rdv_server *s)
{
    struct sockaddr_storage sa;
    socklen_t len = sizeof sa;
    int fd = accept4(s->listen_fd, (struct sockaddr *)&sa, &len, SOCK_NONBLOCK | SOCK_CLOEXEC);

    if (fd < 0) {
        if (errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS) {
            holmes_warn(NET, "rendezvous: cannot accept: %s", holmes_strerror(-errno));
            s->listen_again_ns = holmes_deadline_ms(200);
        }
        return;
    }
    if (s->nstrangers >= STRANGERS_MAX) {
        struct peer *oldest = oldest_stranger(s);

        holmes_warn(NET, "rendezvous: more than %d strangers, dropping %s", STRANGERS_MAX,
                    oldest->from);
        oldest->doomed = true;
        peer_close(s, oldest);
    }
    if (!peer_add(s, fd, &sa, len))
        close(fd);
}

/* ---- loop ---- */

static bool polls_reserve(struct holmes_rdv_server *s, int n)
{
    struct pollfd *polls;
    struct peer **polled;

    if (n <= s->npolls)
        return true;
    polls = realloc(s->polls, (size_t)n * 2 * sizeof *polls);
    if (polls)
        s->polls = polls;
    polled = realloc(s->polled, (size_t)n * 2 * sizeof *polled);
    if (polled)
        s->polled = polled;
    if (!polls || !polled)
        return false;
    s->npolls = n * 2;
    return true;
}

static int sooner(int a, int b)
{
    if (a < 0 || b < 0)
        return a < 0 ? b : a;
    return a < b ? a : b;
}

static int until_ms(uint64_t deadline_ns)
{
    uint64_t now = holmes_now_ns();

    return deadline_ns <= now ? 0 : (int)((deadline_ns - now) / 1000000u) + 1;
}

/* Fills s->polls and returns the time poll may take. */
static int server_prepare(struct holmes_rdv_server *s, int *n)
{
    bool stopping = atomic_load(&s->stop), listening;
    int timeout = sooner(holmes_rdv_store_expire(s->store), stopping ? until_ms(s->stop_ns) : -1);

    listening = !stopping && holmes_deadline_passed(s->listen_again_ns);
    if (!listening && !stopping)
        timeout = sooner(timeout, until_ms(s->listen_again_ns));
    s->polls[0] = (struct pollfd){s->wake_fd, POLLIN, 0};
    s->polls[1] = (struct pollfd){listening ? s->listen_fd : -1, POLLIN, 0};
    *n = 2;
    holmes_list_each(p, tmp, &s->peers, struct peer, node)
    {
        short events = (short)((p->doomed ? 0 : POLLIN) | (p->out_at < p->out_len ? POLLOUT : 0));

        if (p->state != PEER_MEMBER)
            timeout = sooner(timeout, until_ms(p->deadline_ns));
        s->polled[*n] = p;
        s->polls[(*n)++] = (struct pollfd){p->fd, events, 0};
    }
    return timeout;
}

static void peer_serve(struct holmes_rdv_server *s, struct peer *p, short events)
{
    bool alive = true;

    if (!p->doomed && (events & (POLLIN | POLLHUP | POLLERR)))
        alive = peer_read(s, p);
    if (alive)
        alive = peer_flush(p);
    if (alive && p->state != PEER_MEMBER && !p->doomed && holmes_deadline_passed(p->deadline_ns)) {
        holmes_warn(NET, "rendezvous: %s stayed silent", p->from);
        p->doomed = true;
    }
    if (!alive || (p->doomed && p->out_at == p->out_len))
        peer_close(s, p);
}

/* While stopping: the members have left, or the bad news is out, or time is up. */
static bool server_drained(struct holmes_rdv_server *s)
{
    bool members = false, output = false;

    holmes_list_each(p, tmp, &s->peers, struct peer, node)
    {
        members |= p->state == PEER_MEMBER;
        output |= p->out_at < p->out_len;
    }
    return !members || (*s->aborted && !output) || holmes_deadline_passed(s->stop_ns);
}

static void server_judge(struct holmes_rdv_server *s)
{
    int connected = 0, left = 0, verdict = RUNNING;

    if (s->verdict != RUNNING)
        return;
    for (int r = 0; r < s->nranks; r++) {
        connected += s->members[r].peer != NULL;
        left += s->members[r].left;
    }
    if (*s->aborted && connected == 0)
        verdict = -ECONNABORTED;
    else if (left == s->nranks)
        verdict = 0;
    if (verdict == RUNNING)
        return;
    pthread_mutex_lock(&s->lock);
    s->verdict = verdict;
    pthread_cond_broadcast(&s->judged);
    pthread_mutex_unlock(&s->lock);
}

static void *server_main(void *arg)
{
    struct holmes_rdv_server *s = arg;
    uint64_t count;
    int n, timeout;

    pthread_setname_np(pthread_self(), "holmes-rdv");
    while (!atomic_load(&s->stop) || !server_drained(s)) {
        if (!polls_reserve(s, s->npeers + 2))
            break;
        timeout = server_prepare(s, &n);
        if (poll(s->polls, (nfds_t)n, timeout) < 0 && errno != EINTR)
            break;
        if (s->polls[0].revents && read(s->wake_fd, &count, sizeof count) < 0)
            break;
        for (int i = 2; i < n; i++)
            peer_serve(s, s->polled[i], s->polls[i].revents);
        server_judge(s);
        if (s->polls[1].revents)
            server_accept(s);
    }
    return NULL;
}

/* ---- life ---- */

static int listen_on(const struct addrinfo *a, int *out)
{
    int fd = socket(a->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    int one = 1, zero = 0, rc = 0;

    if (fd < 0)
        return -errno;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (a->ai_family == AF_INET6)
        setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &zero, sizeof zero);
    if (bind(fd, a->ai_addr, a->ai_addrlen) != 0 || listen(fd, 512) != 0)
        rc = -errno;
    if (rc)
        close(fd);
    else
        *out = fd;
    return rc;
}

static int server_listen(struct holmes_rdv_server *s, const char *host, uint16_t port)
{
    struct addrinfo hints = {.ai_flags = AI_PASSIVE | AI_NUMERICSERV, .ai_socktype = SOCK_STREAM};
    struct addrinfo *found, *families[2] = {NULL, NULL};
    struct sockaddr_storage sa = {0};
    socklen_t len = sizeof sa;
    char service[8];
    int rc;

    snprintf(service, sizeof service, "%u", port);
    rc = getaddrinfo(host, service, &hints, &found);
    if (rc) {
        holmes_warn(NET, "rendezvous: address '%s': %s", host ? host : "*", gai_strerror(rc));
        return -EINVAL;
    }
    for (struct addrinfo *a = found; a; a = a->ai_next) {
        bool six = a->ai_family == AF_INET6; /* takes IPv4 too when bound to all addresses */

        if (!families[six ? 0 : 1])
            families[six ? 0 : 1] = a;
    }
    rc = -EAFNOSUPPORT;
    for (int i = 0; i < 2 && rc; i++) {
        if (families[i])
            rc = listen_on(families[i], &s->listen_fd);
    }
    freeaddrinfo(found);
    if (rc) {
        holmes_warn(NET, "rendezvous: cannot listen on %s port %u: %s", host ? host : "*", port,
                    holmes_strerror(rc));
        return rc;
    }
    getsockname(s->listen_fd, (struct sockaddr *)&sa, &len);
    /* NOLINTNEXTLINE: getsockname has filled it */
    s->port = ntohs(sa.ss_family == AF_INET6 ? ((struct sockaddr_in6 *)&sa)->sin6_port
                                             : ((struct sockaddr_in *)&sa)->sin_port);
    return 0;
}

static void server_free(struct holmes_rdv_server *s)
{
    holmes_list_each(p, tmp, &s->peers, struct peer, node)
    {
        p->doomed = true;
        s->members[p->rank].left = true; /* nobody is left to be told */
        peer_close(s, p);
    }
    if (s->listen_fd >= 0)
        close(s->listen_fd);
    if (s->wake_fd >= 0)
        close(s->wake_fd);
    holmes_rdv_store_destroy(s->store);
    pthread_cond_destroy(&s->judged);
    pthread_mutex_destroy(&s->lock);
    free(s->members);
    free(s->polls);
    free(s->polled);
    free(s);
}

int holmes_rdv_serve(const char *host, uint16_t port, const char *secret, int nranks,
                     struct holmes_rdv_server **out)
{
    struct holmes_rdv_server *s;
    pthread_condattr_t mono;
    int rc;

    if (nranks < 1 || nranks > NRANKS_MAX || !secret || !*secret)
        return -EINVAL;
    s = calloc(1, sizeof *s);
    if (!s)
        return -ENOMEM;
    s->listen_fd = s->wake_fd = -1;
    s->verdict = RUNNING;
    pthread_mutex_init(&s->lock, NULL);
    pthread_condattr_init(&mono);
    pthread_condattr_setclock(&mono, CLOCK_MONOTONIC);
    pthread_cond_init(&s->judged, &mono);
    pthread_condattr_destroy(&mono);
    s->nranks = nranks;
    s->key = holmes_rdv_key(secret);
    holmes_list_init(&s->peers);
    s->members = calloc((size_t)nranks, sizeof *s->members);
    s->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    rc = !s->members ? -ENOMEM : s->wake_fd < 0 ? -errno : 0;
    if (rc == 0)
        rc = holmes_rdv_store_create(nranks, &store_ops, s, &s->store);
    if (rc == 0)
        rc = server_listen(s, host, port);
    if (rc == 0)
        rc = -pthread_create(&s->thread, NULL, server_main, s);
    if (rc) {
        server_free(s);
        return rc;
    }
    *out = s;
    return 0;
}

uint16_t holmes_rdv_port(const struct holmes_rdv_server *s)
{
    return s->port;
}

int holmes_rdv_server_wait(struct holmes_rdv_server *s, int timeout_ms)
{
    uint64_t until = holmes_deadline_ms(timeout_ms < 0 ? 0 : (uint64_t)timeout_ms);
    struct timespec ts = {(time_t)(until / 1000000000u), (long)(until % 1000000000u)};
    int rc = 0, verdict;

    pthread_mutex_lock(&s->lock);
    while (s->verdict == RUNNING && rc == 0) {
        if (timeout_ms < 0)
            pthread_cond_wait(&s->judged, &s->lock);
        else
            rc = pthread_cond_timedwait(&s->judged, &s->lock, &ts);
    }
    verdict = s->verdict == RUNNING ? -ETIMEDOUT : s->verdict;
    pthread_mutex_unlock(&s->lock);
    return verdict;
}

void holmes_rdv_stop(struct holmes_rdv_server *s)
{
    uint64_t one = 1;

    if (!s)
        return;
    s->stop_ns = holmes_deadline_ms(DRAIN_MS);
    atomic_store(&s->stop, true);
    if (write(s->wake_fd, &one, sizeof one) < 0)
        holmes_warn(NET, "rendezvous: cannot wake the server: %s", holmes_strerror(-errno));
    pthread_join(s->thread, NULL);
    server_free(s);
}
