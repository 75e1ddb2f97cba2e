/* The relay's loop: packets are read from every device, those of the wire are lost one by one, the
 * rest waits half a round trip and then its turn at the receiver's NIC. What a NIC cannot take in
 * time is dropped, as a switch would. The sender's rate is the kernel's matter (tbf on its device).
 */
#include "link_relay.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/ethtool.h>
#include <linux/if_tun.h>
#include <linux/sockios.h>
#include <malloc.h>
#include <net/if.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "clock.h"
#include "link_packet.h"
#include "rank.h"
#include "size.h"

#define READS_IN_TURN  32                    /* of one device before the others have theirs */
#define DEVICE_PACKETS 5000                  /* that wait while we do something else */
#define WAITING_MAX    (UINT64_C(512) << 20) /* bytes in all: ten links of 10 Gbit/s and 20 ms */
#define ORDERS_MAX     256
#define SEED           UINT64_C(0x686f6c6d6573)

struct parcel {
    struct parcel *next;
    uint64_t due_ns;
    size_t len;
    uint8_t bytes[];
};

struct port {
    int fd, link;
    struct parcel *first, *last; /* by due_ns */
    uint64_t free_ns;            /* when its NIC has taken all that waits */
    uint64_t random;
};

struct relay {
    const struct holmes_relay_attr *attr;
    struct port *ports;
    struct pollfd *polls;
    int nports;
    uint64_t waiting; /* bytes */
    struct holmes_relay_order orders[ORDERS_MAX];
    int norders;
    char line[256]; /* of the orders, as far as it has come */
    size_t line_len;
};

/* --- devices ---------------------------------------------------------------------------------- */

/* A TUN device claims 10 Mbit/s, and the plugin counts its lanes by speed. Without a rate it stays.
 */
static void tell_speed(int sock, struct ifreq *ifr, uint64_t bits_per_s)
{
    struct ethtool_cmd cmd = {.cmd = ETHTOOL_SSET, .duplex = DUPLEX_FULL};
    uint64_t mbps = bits_per_s ? bits_per_s / 1000000 : 10000;

    ethtool_cmd_speed_set(&cmd, (uint32_t)mbps);
    ifr->ifr_data = (char *)&cmd;
    (void)!ioctl(sock, SIOCETHTOOL, ifr);
}

int holmes_relay_port_open(int link, const struct holmes_link_shape *shape, int *out)
{
    int fd = open("/dev/net/tun", O_RDWR | O_NONBLOCK | O_CLOEXEC), rc = 0;
    int sock = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    struct ifreq ifr = {.ifr_flags = IFF_TUN | IFF_NO_PI | IFF_VNET_HDR};

    snprintf(ifr.ifr_name, sizeof ifr.ifr_name, "link%d", link);
    if (fd < 0 || sock < 0 || ioctl(fd, TUNSETIFF, &ifr) != 0 ||
        ioctl(fd, TUNSETOFFLOAD, TUN_F_CSUM | TUN_F_TSO4) != 0) {
        rc = -errno;
    } else {
        tell_speed(sock, &ifr, shape->bits_per_s);
        ifr.ifr_qlen = DEVICE_PACKETS;
        (void)!ioctl(sock, SIOCSIFTXQLEN, &ifr);
    }
    if (sock >= 0)
        close(sock);
    if (rc != 0 && fd >= 0)
        close(fd);
    if (rc == 0)
        *out = fd;
    return rc;
}

/* --- orders ----------------------------------------------------------------------------------- */

int holmes_relay_order_parse(const char *line, struct holmes_relay_order *out)
{
    static const long maxima[] = {HOLMES_BENCH_RANKS_MAX - 1, UINT16_MAX, UINT16_MAX};
    uint64_t loss[HOLMES_LINKS_MAX];
    long numbers[3];
    char word[16];

    for (int i = 0; i < 3; i++) {
        size_t len = strcspn(line, " ");

        if (len >= sizeof word || line[len] != ' ')
            return -EINVAL;
        memcpy(word, line, len);
        word[len] = '\0';
        if (holmes_number_parse(word, 0, maxima[i], &numbers[i]) != 0)
            return -EINVAL;
        line += len + 1;
    }
    if (holmes_link_list_parse(HOLMES_LINK_LOSS, line, loss) != 1)
        return -EINVAL;
    *out = (struct holmes_relay_order){.rank = (int)numbers[0],
                                       .port = (uint16_t)numbers[1],
                                       .peer_port = (uint16_t)numbers[2],
                                       .loss_ppm = loss[0]};
    return 0;
}

static void order_take(struct relay *r, const char *line)
{
    if (r->norders == ORDERS_MAX)
        fprintf(stderr, "holmes-bench: \"%s\": the relay has %d orders already\n", line,
                ORDERS_MAX);
    else if (holmes_relay_order_parse(line, &r->orders[r->norders]) != 0)
        fprintf(stderr,
                "holmes-bench: \"%s\": give the relay RANK PORT PEER-PORT LOSS, like 0 40001 5000 "
                "1%%\n",
                line);
    else
        r->norders++;
}

/* Lines end anywhere in what a read gives; one too long for an order is none. */
static void orders_read(struct relay *r)
{
    ssize_t n = read(r->attr->orders_fd, r->line + r->line_len, sizeof r->line - 1 - r->line_len);
    char *end;

    if (n <= 0)
        return;
    r->line_len += (size_t)n;
    r->line[r->line_len] = '\0';
    while ((end = memchr(r->line, '\n', r->line_len)) != NULL) {
        *end = '\0';
        order_take(r, r->line);
        r->line_len -= (size_t)(end + 1 - r->line);
        memmove(r->line, end + 1, r->line_len);
    }
    if (r->line_len == sizeof r->line - 1)
        r->line_len = 0;
}

/* The latest order for this stream, or what holds for its link. */
static uint64_t loss_of(const struct relay *r, int from_rank, const struct port *to,
                        const struct holmes_packet *p)
{
    for (int i = r->norders - 1; i >= 0 && p->port; i--) {
        const struct holmes_relay_order *o = &r->orders[i];

        if (o->port == p->port && o->peer_port == p->peer_port && o->rank == from_rank)
            return o->loss_ppm;
    }
    return r->attr->shapes[to->link].loss_ppm;
}

/* --- what comes in ---------------------------------------------------------------------------- */

/* xorshift64*: the same losses in every run. */
static bool is_lost(struct port *p, uint64_t ppm)
{
    p->random ^= p->random >> 12;
    p->random ^= p->random << 25;
    p->random ^= p->random >> 27;
    return (p->random * UINT64_C(2685821657736338717) >> 32) * 1000000 >> 32 < ppm;
}

/* When `bytes` that are there at `at_ns` have left through this NIC; 0: its queue is full. */
static uint64_t departure(struct port *p, const struct holmes_link_shape *s, uint64_t at_ns,
                          size_t bytes)
{
    uint64_t start = p->free_ns > at_ns ? p->free_ns : at_ns;

    if (s->bits_per_s) {
        if ((double)(start - at_ns) * (double)s->bits_per_s / 8e9 > (double)holmes_link_queue(s))
            return 0;
        start += (uint64_t)((double)bytes * 8e9 / (double)s->bits_per_s);
    }
    return p->free_ns = start;
}

static void forward(struct relay *r, struct port *to, const struct holmes_packet *p, size_t first,
                    size_t count)
{
    const struct holmes_link_shape *s = &r->attr->shapes[to->link];
    struct parcel *parcel;
    uint64_t due;

    if (r->waiting + p->len > WAITING_MAX)
        return;
    due = departure(to, s, holmes_now_ns() + s->rtt_us * 500,
                    holmes_packet_wire_bytes(p, first, count));
    parcel = due ? malloc(sizeof *parcel + p->len) : NULL;
    if (!parcel)
        return;
    parcel->next = NULL;
    parcel->due_ns = due;
    parcel->len = holmes_packet_cut(p, first, count, parcel->bytes);
    r->waiting += parcel->len;
    if (to->first)
        to->last->next = parcel;
    else
        to->first = parcel;
    to->last = parcel;
}

/* What is left of a packet goes on in runs of neighbours. */
static void route(struct relay *r, const struct port *from, const struct holmes_packet *p)
{
    uint32_t rank = (p->to & 0xff) - 1; /* see holmes_link_address */
    struct port *to;
    uint64_t loss_ppm;
    size_t run = 0;

    if (p->to >> 16 != (10 << 8 | 78) || (p->to >> 8 & 0xff) != (uint32_t)from->link ||
        rank >= (uint32_t)r->attr->nranks)
        return;
    to = &r->ports[rank * (uint32_t)r->attr->nlinks + (uint32_t)from->link];
    loss_ppm = loss_of(r, (int)(from - r->ports) / r->attr->nlinks, to, p);
    for (size_t i = 0; i < p->segments; i++) {
        if (!is_lost(to, loss_ppm)) {
            run++;
            continue;
        }
        if (run > 0)
            forward(r, to, p, i - run, run);
        run = 0;
    }
    if (run > 0)
        forward(r, to, p, p->segments - run, run);
}

static void port_read(struct relay *r, struct port *from)
{
    static uint8_t bytes[HOLMES_PACKET_BYTES_MAX];
    struct holmes_packet p;

    for (int i = 0; i < READS_IN_TURN; i++) {
        ssize_t n = read(from->fd, bytes, sizeof bytes);

        if (n <= 0)
            return;
        if (holmes_packet_parse(bytes, (size_t)n, &p) == 0)
            route(r, from, &p);
    }
}

/* --- what goes out ---------------------------------------------------------------------------- */

static void port_write(struct relay *r, struct port *to)
{
    uint64_t now = holmes_now_ns();

    while (to->first && to->first->due_ns <= now) {
        struct parcel *p = to->first;

        to->first = p->next;
        r->waiting -= p->len;
        /* What the kernel does not take is lost, as on any network. */
        (void)!write(to->fd, p->bytes, p->len);
        free(p);
    }
}

/* Until the next packet is due: NULL for ever. */
static const struct timespec *next_due(const struct relay *r, struct timespec *ts)
{
    uint64_t first = UINT64_MAX, now = holmes_now_ns(), ns;

    for (int i = 0; i < r->nports; i++)
        if (r->ports[i].first && r->ports[i].first->due_ns < first)
            first = r->ports[i].first->due_ns;
    if (first == UINT64_MAX)
        return NULL;
    ns = first > now ? first - now : 0;
    *ts = (struct timespec){(time_t)(ns / 1000000000), (long)(ns % 1000000000)};
    return ts;
}

/* A wire does not wait for a core. */
static void take_precedence(void)
{
    prctl(PR_SET_TIMERSLACK, 1);
    (void)!setpriority(PRIO_PROCESS, 0, -10);
    mallopt(M_TRIM_THRESHOLD, 64 << 20); /* packets come and go: their memory stays */
    mallopt(M_TOP_PAD, 16 << 20);
    mallopt(M_MMAP_THRESHOLD, 1 << 20);
}

_Noreturn void holmes_relay_run(const struct holmes_relay_attr *attr)
{
    static struct relay r;
    struct timespec ts;

    r.attr = attr;
    r.nports = attr->nranks * attr->nlinks;
    signal(SIGINT, SIG_IGN); /* the parent hears the terminal and ends us */
    signal(SIGTERM, SIG_DFL);
    signal(SIGHUP, SIG_DFL);
    take_precedence();
    r.ports = calloc((size_t)r.nports, sizeof *r.ports);
    r.polls = calloc((size_t)r.nports + 1, sizeof *r.polls);
    if (!r.ports || !r.polls)
        _exit(1);
    for (int i = 0; i < r.nports; i++) {
        r.ports[i] = (struct port){
            .fd = attr->fds[i], .link = i % attr->nlinks, .random = SEED + (uint64_t)i};
        r.polls[i] = (struct pollfd){.fd = attr->fds[i], .events = POLLIN};
    }
    r.polls[r.nports] = (struct pollfd){.fd = attr->orders_fd, .events = POLLIN};
    for (;;) {
        for (int i = 0; i < r.nports; i++)
            port_write(&r, &r.ports[i]);
        if (ppoll(r.polls, (nfds_t)r.nports + 1, next_due(&r, &ts), NULL) <= 0)
            continue;
        if (r.polls[r.nports].revents)
            orders_read(&r);
        for (int i = 0; i < r.nports; i++) {
            if (r.polls[i].revents & (POLLERR | POLLNVAL))
                _exit(1); /* its network is gone */
            if (r.polls[i].revents)
                port_read(&r, &r.ports[i]);
        }
    }
}
