/* Links of our own: each rank gets a network namespace, and between them there are links of a given
 * rate, round trip and loss. All of it belongs to this process and its children: the kernel takes
 * everything away when they end, however they end.
 *
 *     two ranks, no delay:   rank 0 [link0]--tbf-->       <--tbf--[link0] rank 1
 *     else, with netem:      rank r [link0]--tbf--> bridge --netem, tbf--> [link0] rank s
 *     else, without netem:   rank r [link0]--tbf--> holmes_relay_run   --> [link0] rank s
 *
 * Rank r is 10.78.K.(r+1) on linkK. A struct holmes_link * may be NULL everywhere: then the ranks
 * are on this host's loopback. Not thread safe.
 */
#ifndef HOLMES_BENCH_LINK_H
#define HOLMES_BENCH_LINK_H

#include <netinet/in.h>
#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#define HOLMES_LINKS_MAX    8
#define HOLMES_LINK_OUTSIDE (-1) /* no rank's namespace but the parent's */
#define HOLMES_LINK_MTU     9000
#define HOLMES_SUPER_PACKET (64u << 10) /* bytes; what kernels hand to a NIC at once by default */

struct holmes_link_shape {
    uint64_t bits_per_s; /* each way; 0: as fast as it goes */
    uint64_t rtt_us;     /* added to the machine's own, half of it each way */
    uint64_t loss_ppm;   /* of the packets, each way */
};

struct holmes_link_attr {
    int nlinks; /* NICs of each rank; 0: none are made */
    struct holmes_link_shape shapes[HOLMES_LINKS_MAX];
    bool relay; /* even where the kernel has netem, or nothing is delayed or lost */
};

/* --- the command line's words; pure ----------------------------------------------------------- */

enum holmes_link_list { HOLMES_LINK_RATE, HOLMES_LINK_RTT, HOLMES_LINK_LOSS };

/* "1G,2.5G", "20ms" or "0%,1%" into `values` in the units of holmes_link_shape: how many, or
 * -EINVAL for what is malformed, out of range, or more than HOLMES_LINKS_MAX. */
int holmes_link_list_parse(enum holmes_link_list what, const char *text,
                           uint64_t values[HOLMES_LINKS_MAX]);
/* What holmes_link_list_parse takes, for messages. */
const char *holmes_link_list_help(enum holmes_link_list what);

/* What waits at most at a receiver's NIC, in bytes, behind a bridge or a relay; more is dropped. 0
 * without a rate. */
uint64_t holmes_link_queue(const struct holmes_link_shape *shape);
/* Bytes of a super-packet on a link that is no relay's: 200 us of its rate, HOLMES_SUPER_PACKET at
 * least, and no more than that where packets get lost. */
uint32_t holmes_link_super_packet(const struct holmes_link_shape *shape);
/* "1 Gbit/s each way, queue 5 ms, round trip +20 ms, loss 1 % each way"; the queue where there is
 * one (`queues`). */
void holmes_link_describe(const struct holmes_link_shape *shape, bool queues, char *buf,
                          size_t len);
/* Stream i of n goes over link i modulo their number, and streams carry in proportion to their
 * links' rates: what share the first `first` of them have. Equal shares where a link has no rate,
 * and for NULL. */
double holmes_link_part(const struct holmes_link_attr *attr, size_t first, size_t n);
/* All links together, one way; 0 when one has no rate. */
uint64_t holmes_link_total_rate(const struct holmes_link_attr *attr);

/* --- the links -------------------------------------------------------------------------------- */

struct holmes_link;

/* Makes the links of `nranks` ranks and moves this process to a network namespace of its own (in a
 * user namespace where it has no right to that). The process must have no threads. *out is NULL for
 * attr->nlinks == 0. On failure `why` is a sentence and nothing is left. */
int holmes_link_create(const struct holmes_link_attr *attr, int nranks, struct holmes_link **out,
                       char *why, size_t why_len);
/* Ends the relay and gives the namespaces up; they go with the last process in them. */
void holmes_link_destroy(struct holmes_link *l);

/* The calling thread's network is now that of this rank, or HOLMES_LINK_OUTSIDE. */
int holmes_link_enter(const struct holmes_link *l, int rank);
/* NCCL_SOCKET_IFNAME names the links. */
int holmes_link_environ(const struct holmes_link *l);
/* The calling process lives at this rank from now on: its /sys too shows these interfaces only. */
int holmes_link_settle(const struct holmes_link *l, int rank, char *why, size_t why_len);

/* Who a hook is called for. Where a relay runs, BENCH_RELAY is a file that takes its orders
 * (holmes_relay_order_parse). */
struct holmes_link_call {
    const char *command; /* of sh */
    const char *side;    /* BENCH_SIDE */
    int rank;            /* BENCH_RANK */
    pid_t pid;           /* BENCH_PID: the rank's process */
    uint64_t size_bytes; /* BENCH_SIZE */
    int timeout_s;
};

/* Runs the command in the rank's network; what it prints goes to stderr. 0; -EIO when it did not
 * end with 0, -ETIMEDOUT when it had to be killed, -EINTR when *stop was set: then `why` is a
 * sentence. */
int holmes_link_hook(const struct holmes_link *l, const struct holmes_link_call *call,
                     volatile sig_atomic_t *stop, char *why, size_t why_len);

/* What it was made with; NULL on loopback. */
const struct holmes_link_attr *holmes_link_attr(const struct holmes_link *l);
int holmes_link_count(const struct holmes_link *l); /* 1 on loopback */
struct in_addr holmes_link_address(const struct holmes_link *l, int link, int rank);
/* False when the relay has died, which the ranks only see as silence. */
bool holmes_link_works(struct holmes_link *l);
/* "netem", "a relay", or "" where nothing is delayed or lost. */
const char *holmes_link_delayed_by(const struct holmes_link *l);

/* Bytes with headers that all ranks have sent over this link so far; 0 on loopback. Any thread. */
uint64_t holmes_link_sent(const struct holmes_link *l, int link);

#endif
