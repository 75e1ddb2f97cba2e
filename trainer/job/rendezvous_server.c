/* The rendezvous server's sockets: one thread, one poll loop. Strangers are few, small and
 * short-lived. What peers say is understood in rdv_job.c. */
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
#include "log.h"
#include "rdv_job.h"
#include "rendezvous.h"

enum {
    STRANGERS_MAX = 32,
    STRANGER_MS = 5000,
    DRAIN_MS = 2000, /* holmes_rdv_stop waits this long for ranks to leave */
    NRANKS_MAX = 1 << 20,
    RUNNING = 1,
};

struct holmes_rdv_server {
    pthread_t thread;
    struct holmes_rdv_job job;
    int listen_fd, wake_fd;
    uint16_t port;
    struct pollfd *polls;
    struct holmes_rdv_peer **polled;
    int npolls;
    atomic_bool stop;
    uint64_t stop_ns, listen_again_ns;
    pthread_mutex_t lock; /* `verdict`, which holmes_rdv_server_wait waits for */
    pthread_cond_t judged;
    int verdict; /* RUNNING, 0, or -ECONNABORTED */
};

/* ---- connections ---- */

/* false: the connection is over. */
static bool peer_read(struct holmes_rdv_server *s, struct holmes_rdv_peer *p)
{
    bool more = true;

    while (more && !p->doomed) {
        if (!holmes_rdv_peer_read(p, &more))
            return false;
        if (!holmes_rdv_job_frames(&s->job, p)) {
            holmes_warn(NET, "rendezvous: %s sent a message that is too long", p->from);
            return false;
        }
    }
    return true;
}

static struct holmes_rdv_peer *oldest_stranger(struct holmes_rdv_server *s)
{
    holmes_list_each(p, tmp, &s->job.peers, struct holmes_rdv_peer, node)
    {
        if (p->state != HOLMES_RDV_PEER_MEMBER)
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
    struct holmes_rdv_peer *p = holmes_rdv_job_add(&s->job, fd);

    if (!p)
        return false;
    holmes_rdv_keep_alive(fd);
    p->deadline_ns = holmes_deadline_ms(STRANGER_MS);
    address_text(sa, len, p->from);
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
    if (s->job.nstrangers >= STRANGERS_MAX) {
        struct holmes_rdv_peer *oldest = oldest_stranger(s);

        holmes_warn(NET, "rendezvous: more than %d strangers, dropping %s", STRANGERS_MAX,
                    oldest->from);
        oldest->doomed = true;
        holmes_rdv_job_close(&s->job, oldest);
    }
    if (!peer_add(s, fd, &sa, len))
        close(fd);
}

/* ---- loop ---- */

static bool polls_reserve(struct holmes_rdv_server *s, int n)
{
    struct pollfd *polls;
    struct holmes_rdv_peer **polled;

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
    int timeout =
        sooner(holmes_rdv_store_expire(s->job.store), stopping ? until_ms(s->stop_ns) : -1);

    listening = !stopping && holmes_deadline_passed(s->listen_again_ns);
    if (!listening && !stopping)
        timeout = sooner(timeout, until_ms(s->listen_again_ns));
    s->polls[0] = (struct pollfd){s->wake_fd, POLLIN, 0};
    s->polls[1] = (struct pollfd){listening ? s->listen_fd : -1, POLLIN, 0};
    *n = 2;
    holmes_list_each(p, tmp, &s->job.peers, struct holmes_rdv_peer, node)
    {
        short events = (short)((p->doomed ? 0 : POLLIN) | (p->out_at < p->out_len ? POLLOUT : 0));

        if (p->state != HOLMES_RDV_PEER_MEMBER)
            timeout = sooner(timeout, until_ms(p->deadline_ns));
        s->polled[*n] = p;
        s->polls[(*n)++] = (struct pollfd){p->fd, events, 0};
    }
    return timeout;
}

static void peer_serve(struct holmes_rdv_server *s, struct holmes_rdv_peer *p, short events)
{
    bool alive = true;

    if (!p->doomed && (events & (POLLIN | POLLHUP | POLLERR)))
        alive = peer_read(s, p);
    if (alive)
        alive = holmes_rdv_peer_flush(p);
    if (alive && p->state != HOLMES_RDV_PEER_MEMBER && !p->doomed &&
        holmes_deadline_passed(p->deadline_ns)) {
        holmes_warn(NET, "rendezvous: %s stayed silent", p->from);
        p->doomed = true;
    }
    if (!alive || (p->doomed && p->out_at == p->out_len))
        holmes_rdv_job_close(&s->job, p);
}

/* While stopping: the members have left, or the bad news is out, or time is up. */
static bool server_drained(struct holmes_rdv_server *s)
{
    bool members = false, output = false;

    holmes_list_each(p, tmp, &s->job.peers, struct holmes_rdv_peer, node)
    {
        members |= p->state == HOLMES_RDV_PEER_MEMBER;
        output |= p->out_at < p->out_len;
    }
    return !members || (*s->job.aborted && !output) || holmes_deadline_passed(s->stop_ns);
}

static void server_judge(struct holmes_rdv_server *s)
{
    int connected = 0, left = 0, verdict = RUNNING;

    if (s->verdict != RUNNING)
        return;
    for (int r = 0; r < s->job.nranks; r++) {
        connected += s->job.members[r].peer != NULL;
        left += s->job.members[r].left;
    }
    if (*s->job.aborted && connected == 0)
        verdict = -ECONNABORTED;
    else if (left == s->job.nranks)
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
        if (!polls_reserve(s, s->job.npeers + 2))
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
    holmes_rdv_job_fini(&s->job);
    if (s->listen_fd >= 0)
        close(s->listen_fd);
    if (s->wake_fd >= 0)
        close(s->wake_fd);
    pthread_cond_destroy(&s->judged);
    pthread_mutex_destroy(&s->lock);
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
    rc = holmes_rdv_job_init(&s->job, secret, nranks);
    s->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (rc == 0 && s->wake_fd < 0)
        rc = -errno;
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
