/* Namespaces, the links between them and their shapes. The namespaces have no names: they are held
 * by descriptors of this process and by the processes in them, so nothing has to be cleaned up
 * after a death. What is in them is made by ip and tc, which read their commands from a descriptor.
 */
#include "link.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <net/if.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "clock.h"
#include "link_device.h"
#include "link_relay.h"
#include "log.h"
#include "rank.h"

#define BURST_US     100        /* of the rate, beside a super-packet: what timers are late by */
#define SENDER_QUEUE (16 << 20) /* bytes; TCP keeps to about a millisecond of each stream */
#define QUEUE_LEN    4000       /* packets of each priority: more than that */
#define CARRIER_MS   5000
#define NETEM_QUEUE  1000000 /* packets: whatever is under way fits */

enum { NS_HUB, NS_SWITCH, NS_RANK0 }; /* ours, that of the bridges, those of the ranks */

struct holmes_link {
    struct holmes_link_attr attr;
    int nranks;
    int before_fd; /* the namespace that the process came from */
    int ns_fds[NS_RANK0 + HOLMES_BENCH_RANKS_MAX];
    bool delays, bridged;
    const char *delayed_by;
    pid_t relay; /* 0: none */
    bool relay_died;
    int orders[2]; /* a pipe to it */
    char *why;
    size_t why_len;
};

static int link_fail(struct holmes_link *l, int rc, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
static int link_fail(struct holmes_link *l, int rc, const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(l->why, l->why_len, fmt, ap);
    va_end(ap);
    return rc;
}

static int ns_of(int rank)
{
    return rank == HOLMES_LINK_OUTSIDE ? NS_HUB : NS_RANK0 + rank;
}

static int ns_count(const struct holmes_link *l)
{
    return NS_RANK0 + l->nranks;
}

/* --- commands of ip and tc -------------------------------------------------------------------- */

/* The words of one batch, in memory that a child reads as its standard input. */
static FILE *batch_begin(void)
{
    int fd = memfd_create("batch", MFD_CLOEXEC);
    FILE *f = fd >= 0 ? fdopen(fd, "w+") : NULL;

    if (!f && fd >= 0)
        close(fd);
    return f;
}

static _Noreturn void tool_main(const struct holmes_link *l, int ns, const char *tool, int in,
                                int err)
{
    const char *path = getenv("PATH");
    char with_sbin[4096];

    prctl(PR_SET_PDEATHSIG, SIGKILL);
    snprintf(with_sbin, sizeof with_sbin, "%s:/usr/sbin:/sbin", path ? path : "/usr/bin:/bin");
    setenv("PATH", with_sbin, 1);
    for (int i = 0; i < ns_count(l); i++)
        fcntl(l->ns_fds[i], F_SETFD, 0); /* "netns /proc/self/fd/N" */
    in = fcntl(in, F_DUPFD,
               3); /* were they among the first three, they would get in each other's way */
    err = fcntl(err, F_DUPFD, 3);
    if (setns(l->ns_fds[ns], CLONE_NEWNET) == 0 && dup2(in, 0) == 0 && dup2(err, 1) == 1 &&
        dup2(err, 2) == 2)
        execlp(tool, tool, "-batch", "-", (char *)NULL);
    dprintf(err, "cannot run: %s", strerror(errno));
    _exit(127);
}

/* What the tool said, without line ends; "" when it said nothing. */
static void read_complaint(int fd, char *buf, size_t len)
{
    ssize_t n = pread(fd, buf, len - 1, 0);

    buf[n > 0 ? n : 0] = '\0';
    for (size_t end = strlen(buf); end > 0 && buf[end - 1] == '\n'; end--)
        buf[end - 1] = '\0';
    for (char *p = buf; (p = strchr(p, '\n')) != NULL;)
        *p = ' ';
}

/* Runs the batch in that namespace and closes it. A complaint goes to `said`. */
static int batch_run(const struct holmes_link *l, int ns, const char *tool, FILE *batch, char *said,
                     size_t said_len)
{
    int err = memfd_create("complaints", MFD_CLOEXEC), status = -1;
    pid_t pid = -1;

    snprintf(said, said_len, "cannot run");
    if (batch && err >= 0 && fflush(batch) == 0 && lseek(fileno(batch), 0, SEEK_SET) == 0)
        pid = fork();
    if (pid == 0)
        tool_main(l, ns, tool, fileno(batch), err);
    if (pid > 0) {
        while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
            ;
        read_complaint(err, said, said_len);
    }
    if (batch)
        fclose(batch);
    if (err >= 0)
        close(err);
    return status == 0 ? 0 : -EIO;
}

static int batch_must(struct holmes_link *l, int ns, const char *tool, FILE *batch)
{
    char said[300];
    int rc = batch_run(l, ns, tool, batch, said, sizeof said);

    if (rc != 0)
        return link_fail(l, rc, "cannot make the links: %s (iproute2): %s", tool, said);
    return 0;
}

/* --- namespaces ------------------------------------------------------------------------------- */

static int write_file(const char *path, const char *text)
{
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    bool well = fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text);

    if (fd >= 0)
        close(fd);
    return well ? 0 : -errno;
}

/* A user namespace in which we are root gives its rights over what is made inside. */
static int become_root(void)
{
    unsigned uid = geteuid(), gid = getegid();
    char map[64];

    if (unshare(CLONE_NEWUSER) != 0)
        return -errno;
    snprintf(map, sizeof map, "0 %u 1", uid);
    if (write_file("/proc/self/setgroups", "deny") != 0 ||
        write_file("/proc/self/uid_map", map) != 0)
        return -EPERM;
    snprintf(map, sizeof map, "0 %u 1", gid);
    return write_file("/proc/self/gid_map", map) == 0 ? 0 : -EPERM;
}

static int own_netns(void)
{
    return open("/proc/thread-self/ns/net", O_RDONLY | O_CLOEXEC);
}

/* The hub's, the bridges' and the ranks'; this process ends up in the hub's. */
static int make_namespaces(struct holmes_link *l)
{
    int rc;

    l->before_fd = own_netns();
    if (unshare(CLONE_NEWNET) != 0) {
        rc = -errno;
        if (rc == -EPERM && become_root() == 0 && unshare(CLONE_NEWNET) == 0)
            rc = 0;
        if (rc != 0)
            return link_fail(l, rc,
                             "--rate, --rtt and --loss need network namespaces, which this user "
                             "may not make: run as root, or where user namespaces are allowed (%s)",
                             holmes_strerror(rc));
    }
    for (int i = 0; i < ns_count(l); i++) {
        if (i > 0 && unshare(CLONE_NEWNET) != 0)
            return link_fail(l, -errno, "cannot make %d network namespaces: %s", ns_count(l),
                             strerror(errno));
        l->ns_fds[i] = own_netns();
        if (l->ns_fds[i] < 0)
            return link_fail(l, -errno, "cannot hold a network namespace: %s", strerror(errno));
    }
    rc = holmes_link_enter(l, HOLMES_LINK_OUTSIDE);
    return rc == 0 ? 0 : link_fail(l, rc, "cannot enter a network namespace: %s", strerror(-rc));
}

int holmes_link_enter(const struct holmes_link *l, int rank)
{
    if (!l)
        return 0;
    return setns(l->ns_fds[ns_of(rank)], CLONE_NEWNET) == 0 ? 0 : -errno;
}

int holmes_link_environ(const struct holmes_link *l)
{
    char names[16 * HOLMES_LINKS_MAX] = "=";

    for (int k = 0; l && k < l->attr.nlinks; k++)
        snprintf(names + strlen(names), sizeof names - strlen(names), "%slink%d", k ? "," : "", k);
    return !l || setenv("NCCL_SOCKET_IFNAME", names, 1) == 0 ? 0 : -ENOMEM;
}

int holmes_link_settle(const struct holmes_link *l, int rank, char *why, size_t why_len)
{
    int rc = holmes_link_enter(l, rank);

    if (rc != 0)
        snprintf(why, why_len, "cannot enter its network namespace: %s", holmes_strerror(rc));
    if (!l || rc != 0)
        return rc;
    /* Containers may forbid it; then interfaces are known by what the kernel's calls tell. */
    if (unshare(CLONE_NEWNS) != 0 || mount("", "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0 ||
        mount("sysfs", "/sys", "sysfs", MS_NOSUID | MS_NODEV | MS_NOEXEC, NULL) != 0)
        holmes_info(TOPO, "rank %d sees another network's /sys: %s", rank, strerror(errno));
    return 0;
}

/* --- interfaces ------------------------------------------------------------------------------- */

/* Local IPv6 addresses would take a second to settle and are not wanted. */
static const char *without_ipv6(void)
{
    return access("/proc/sys/net/ipv6", F_OK) == 0 ? " addrgenmode none" : "";
}

/* Both ends of a cable; the far one in another namespace. */
static void put_cable(const struct holmes_link *l, FILE *f, const char *near, const char *far,
                      int far_ns)
{
    fprintf(f, "link add %s mtu %d type veth peer name %s mtu %d netns /proc/self/fd/%d\n", near,
            HOLMES_LINK_MTU, far, HOLMES_LINK_MTU, l->ns_fds[far_ns]);
}

static void put_pairs(const struct holmes_link *l, FILE *f)
{
    char name[16];

    for (int k = 0; k < l->attr.nlinks; k++) {
        snprintf(name, sizeof name, "link%d", k);
        put_cable(l, f, name, name, ns_of(1));
    }
}

static void put_bridges(const struct holmes_link *l, FILE *f)
{
    char near[32], far[32];

    for (int k = 0; k < l->attr.nlinks; k++) {
        fprintf(f, "link add br%d type bridge\nlink set br%d mtu %d up\n", k, k, HOLMES_LINK_MTU);
        for (int r = 0; r < l->nranks; r++) {
            snprintf(near, sizeof near, "p%d-%d", k, r);
            snprintf(far, sizeof far, "link%d", k);
            put_cable(l, f, near, far, ns_of(r));
            fprintf(f, "link set %s master br%d%s up\n", near, k, without_ipv6());
        }
    }
}

static int make_cables(struct holmes_link *l)
{
    FILE *f = batch_begin();

    if (f && l->bridged)
        put_bridges(l, f);
    else if (f)
        put_pairs(l, f);
    return batch_must(l, l->bridged ? NS_SWITCH : ns_of(0), "ip", f);
}

static int set_up_rank(struct holmes_link *l, int rank)
{
    char text[INET_ADDRSTRLEN];
    FILE *f = batch_begin();

    if (f)
        fprintf(f, "link set lo up\n");
    for (int k = 0; f && k < l->attr.nlinks; k++) {
        struct in_addr a = holmes_link_address(l, k, rank);

        inet_ntop(AF_INET, &a, text, sizeof text);
        fprintf(
            f,
            "link set link%d mtu %d txqueuelen %d%s up\naddress add %s/24 broadcast + dev link%d\n",
            k, HOLMES_LINK_MTU, QUEUE_LEN, without_ipv6(), text, k);
    }
    return batch_must(l, ns_of(rank), "ip", f);
}

/* That both ends of a cable are up is told to the interfaces a moment later. */
static int await_carrier(struct holmes_link *l, int rank)
{
    uint64_t deadline = holmes_deadline_ms(CARRIER_MS);
    int rc = holmes_link_enter(l, rank), sock = -1;

    if (rc == 0 && (sock = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0)) < 0)
        rc = -errno;
    for (int k = 0; k < l->attr.nlinks && rc == 0; k++) {
        struct ifreq ifr = {.ifr_flags = 0};

        snprintf(ifr.ifr_name, sizeof ifr.ifr_name, "link%d", k);
        while ((rc = ioctl(sock, SIOCGIFFLAGS, &ifr) == 0 ? 0 : -errno) == 0 &&
               !(ifr.ifr_flags & IFF_RUNNING)) {
            if (holmes_deadline_passed(deadline)) {
                rc = -ENETDOWN;
                break;
            }
            poll(NULL, 0, 1);
        }
    }
    if (sock >= 0)
        close(sock);
    return rc == 0
               ? 0
               : link_fail(l, rc, "rank %d's links do not come up: %s", rank, holmes_strerror(rc));
}

/* --- shapes ----------------------------------------------------------------------------------- */

/* A super-packet with the headers of its pieces always fits, so that it is never cut up. */
static void put_rate(FILE *f, const char *dev, const char *where,
                     const struct holmes_link_shape *shape, uint64_t queue)
{
    uint64_t super = holmes_link_super_packet(shape);
    uint64_t burst = super + super / 32 + shape->bits_per_s / 8 * BURST_US / 1000000;

    if (shape->bits_per_s)
        fprintf(f, "qdisc add dev %s %s tbf rate %jubit burst %ju limit %ju\n", dev, where,
                (uintmax_t)shape->bits_per_s, (uintmax_t)burst, (uintmax_t)queue);
}

/* What waits for the wire goes by priority, as it does in the queue that a kernel gives its NICs.
 */
static void put_sender(FILE *f, const char *dev, const struct holmes_link_shape *shape)
{
    put_rate(f, dev, "root handle 1:", shape, SENDER_QUEUE);
    if (shape->bits_per_s)
        fprintf(f, "qdisc add dev %s parent 1:1 pfifo_fast\n", dev);
}

static int shape_rank(struct holmes_link *l, int rank)
{
    FILE *f = batch_begin();
    char dev[32];

    for (int k = 0; f && k < l->attr.nlinks; k++) {
        snprintf(dev, sizeof dev, "link%d", k);
        put_sender(f, dev, &l->attr.shapes[k]);
    }
    return batch_must(l, ns_of(rank), "tc", f);
}

/* A bridge's port towards a rank: half the round trip, the loss, and what the rank's NIC can take.
 * netem would lose a super-packet as a whole, so where packets get lost there are none. */
static int shape_ports(struct holmes_link *l)
{
    FILE *f = batch_begin();
    char dev[32];

    for (int k = 0; f && k < l->attr.nlinks; k++) {
        const struct holmes_link_shape *s = &l->attr.shapes[k];

        for (int r = 0; r < l->nranks; r++) {
            snprintf(dev, sizeof dev, "p%d-%d", k, r);
            if (s->rtt_us || s->loss_ppm)
                fprintf(f,
                        "qdisc add dev %s root handle 1: netem delay %juus loss %ju.%04ju%% "
                        "limit %d\n",
                        dev, (uintmax_t)s->rtt_us / 2, (uintmax_t)s->loss_ppm / 10000,
                        (uintmax_t)s->loss_ppm % 10000, NETEM_QUEUE);
            put_rate(f, dev, s->rtt_us || s->loss_ppm ? "parent 1:1" : "root", s,
                     holmes_link_queue(s));
        }
    }
    return batch_must(l, NS_SWITCH, "tc", f);
}

static int without_super_packets(struct holmes_link *l)
{
    int rc = 0;

    for (int r = 0; r < l->nranks && rc == 0; r++) {
        FILE *f = batch_begin();

        for (int k = 0; f && k < l->attr.nlinks; k++)
            if (l->attr.shapes[k].loss_ppm)
                fprintf(f, "link set link%d gso_max_segs 1\n", k);
        rc = batch_must(l, ns_of(r), "ip", f);
    }
    return rc;
}

/* On an interface in that namespace. */
static int super_packets_set(const struct holmes_link *l, int ns, const char *dev, uint32_t bytes)
{
    if (setns(l->ns_fds[ns], CLONE_NEWNET) != 0)
        return -errno;
    return holmes_device_super_packets(dev, bytes);
}

static int link_super_packets(const struct holmes_link *l, int link, int rank)
{
    uint32_t bytes = holmes_link_super_packet(&l->attr.shapes[link]);
    char dev[32];
    int rc;

    if (bytes == HOLMES_SUPER_PACKET)
        return 0;
    snprintf(dev, sizeof dev, "link%d", link);
    rc = super_packets_set(l, ns_of(rank), dev, bytes);
    snprintf(dev, sizeof dev, "p%d-%d", link, rank);
    return rc == 0 && l->bridged ? super_packets_set(l, NS_SWITCH, dev, bytes) : rc;
}

/* Each packet costs a shaper a timer. At 64 KiB those are 19,000 a second of each direction at
 * 10 Gbit/s: more than the processors of a virtual machine may have time for. */
static void with_super_packets(const struct holmes_link *l)
{
    int rc = 0;

    for (int k = 0; k < l->attr.nlinks; k++)
        for (int r = 0; r < l->nranks && rc == 0; r++)
            rc = link_super_packets(l, k, r);
    if (rc != 0)
        holmes_warn(NET,
                    "the kernel has no super-packets above 64 KiB (%s): shaping costs more "
                    "processor time",
                    holmes_strerror(rc));
}

static bool kernel_has_netem(struct holmes_link *l)
{
    FILE *f = batch_begin();
    char said[300];

    if (f)
        fprintf(f, "qdisc add dev lo root netem delay 1ms\nqdisc del dev lo root\n");
    return batch_run(l, NS_HUB, "tc", f, said, sizeof said) == 0;
}

/* --- the whole -------------------------------------------------------------------------------- */

static int make_by_relay(struct holmes_link *l)
{
    struct holmes_relay_attr relay = {.nranks = l->nranks, .nlinks = l->attr.nlinks};
    int fds[HOLMES_LINKS_MAX * HOLMES_BENCH_RANKS_MAX], n = 0, rc = 0;
    pid_t parent = getpid();

    for (int r = 0; r < l->nranks && rc == 0; r++) {
        rc = holmes_link_enter(l, r);
        for (int k = 0; k < l->attr.nlinks && rc == 0; k++) {
            rc = holmes_relay_port_open(k, &l->attr.shapes[k], &fds[n]);
            n += rc == 0;
        }
    }
    if (rc == 0 && pipe2(l->orders, O_CLOEXEC | O_NONBLOCK) != 0)
        rc = -errno;
    relay.orders_fd = l->orders[0];
    relay.fds = fds;
    relay.shapes = l->attr.shapes;
    if (holmes_link_enter(l, HOLMES_LINK_OUTSIDE) != 0 && rc == 0)
        rc = -errno;
    if (rc != 0)
        link_fail(l, rc,
                  "--rtt and --loss need netem in the kernel, which has none, or /dev/net/tun: %s",
                  holmes_strerror(rc));
    if (rc == 0 && (l->relay = fork()) == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (getppid() == parent)
            holmes_relay_run(&relay);
        _exit(1);
    }
    if (rc == 0 && l->relay < 0) {
        l->relay = 0;
        rc = link_fail(l, -errno, "cannot start a relay: %s", strerror(errno));
    }
    while (n > 0)
        close(fds[--n]);
    return rc;
}

static int make_links(struct holmes_link *l)
{
    FILE *f;
    bool loses = false, relayed;
    int rc = make_namespaces(l);

    if (rc != 0)
        return rc;
    for (int k = 0; k < l->attr.nlinks; k++) {
        l->delays |= l->attr.shapes[k].rtt_us || l->attr.shapes[k].loss_ppm;
        loses |= l->attr.shapes[k].loss_ppm > 0;
    }
    relayed = l->attr.relay || (l->delays && !kernel_has_netem(l));
    l->bridged = !relayed && (l->delays || l->nranks > 2);
    l->delayed_by = relayed ? "a relay" : l->delays ? "netem" : "";
    f = batch_begin(); /* the ranks meet on the hub's loopback */
    if (f)
        fprintf(f, "link set lo up\n");
    rc = batch_must(l, NS_HUB, "ip", f);
    if (rc == 0)
        rc = relayed ? make_by_relay(l) : make_cables(l);
    for (int r = 0; r < l->nranks && rc == 0; r++) {
        rc = set_up_rank(l, r);
        if (rc == 0)
            rc = shape_rank(l, r);
    }
    for (int r = 0; r < l->nranks && rc == 0; r++)
        rc = await_carrier(l, r);
    if (rc == 0 && !relayed)
        with_super_packets(l);
    if (rc == 0)
        rc = holmes_link_enter(l, HOLMES_LINK_OUTSIDE);
    if (rc == 0 && l->bridged)
        rc = shape_ports(l);
    if (rc == 0 && l->bridged && loses)
        rc = without_super_packets(l);
    return rc;
}

int holmes_link_create(const struct holmes_link_attr *attr, int nranks, struct holmes_link **out,
                       char *why, size_t why_len)
{
    struct holmes_link *l;
    int rc;

    *out = NULL;
    if (attr->nlinks == 0)
        return 0;
    l = calloc(1, sizeof *l);
    if (!l) {
        snprintf(why, why_len, "no memory");
        return -ENOMEM;
    }
    l->attr = *attr;
    l->nranks = nranks;
    l->why = why;
    l->why_len = why_len;
    l->before_fd = l->orders[0] = l->orders[1] = -1;
    for (int i = 0; i < ns_count(l); i++)
        l->ns_fds[i] = -1;
    rc = make_links(l);
    if (rc != 0) {
        holmes_link_destroy(l);
        return rc;
    }
    *out = l;
    return 0;
}

void holmes_link_destroy(struct holmes_link *l)
{
    if (!l)
        return;
    if (l->relay) {
        kill(l->relay, SIGKILL);
        while (waitpid(l->relay, NULL, 0) < 0 && errno == EINTR)
            ;
    }
    for (int i = 0; i < ns_count(l); i++)
        if (l->ns_fds[i] >= 0)
            close(l->ns_fds[i]);
    for (int i = 0; i < 2; i++)
        if (l->orders[i] >= 0)
            close(l->orders[i]);
    /* From a user namespace there is no way back, and nobody needs one. */
    if (l->before_fd >= 0) {
        (void)!setns(l->before_fd, CLONE_NEWNET);
        close(l->before_fd);
    }
    free(l);
}

/* --- a command of the user's in a rank's network --------------------------------------------- */

static void put_number(const char *name, uint64_t value)
{
    char text[24];

    snprintf(text, sizeof text, "%ju", (uintmax_t)value);
    setenv(name, text, 1);
}

static _Noreturn void hook_main(const struct holmes_link *l, const struct holmes_link_call *call)
{
    char why[160];

    prctl(PR_SET_PDEATHSIG, SIGKILL);
    setpgid(0, 0); /* what it starts can be ended with it */
    setenv("BENCH_SIDE", call->side, 1);
    put_number("BENCH_RANK", (uint64_t)call->rank);
    put_number("BENCH_PID", (uint64_t)call->pid);
    put_number("BENCH_SIZE", call->size_bytes);
    if (l->relay) {
        fcntl(l->orders[1], F_SETFD, 0);
        snprintf(why, sizeof why, "/proc/self/fd/%d", l->orders[1]);
        setenv("BENCH_RELAY", why, 1);
    }
    if (holmes_link_settle(l, call->rank, why, sizeof why) == 0 && dup2(2, 1) == 1)
        execl("/bin/sh", "sh", "-c", call->command, (char *)NULL);
    _exit(127);
}

int holmes_link_hook(const struct holmes_link *l, const struct holmes_link_call *call,
                     volatile sig_atomic_t *stop, char *why, size_t why_len)
{
    uint64_t deadline = holmes_deadline_ms((uint64_t)call->timeout_s * 1000);
    int status = 0, rc = 0;
    pid_t pid = fork();

    if (pid == 0)
        hook_main(l, call);
    if (pid > 0)
        setpgid(pid, pid); /* whoever comes first */
    while (pid > 0 && rc == 0 && waitpid(pid, &status, WNOHANG) == 0) {
        rc = *stop ? -EINTR : holmes_deadline_passed(deadline) ? -ETIMEDOUT : 0;
        poll(NULL, 0, 5);
    }
    if (rc != 0) {
        kill(-pid, SIGKILL);
        while (waitpid(pid, NULL, 0) < 0 && errno == EINTR)
            ;
    }
    if (rc == 0 && (pid < 0 || status != 0))
        rc = -EIO;
    if (rc != 0)
        snprintf(why, why_len, "%s: rank %d: --link-hook \"%s\" %s", call->side, call->rank,
                 call->command,
                 rc == -EINTR       ? "was interrupted"
                 : rc == -ETIMEDOUT ? "did not end within --timeout"
                 : pid < 0          ? "could not be started"
                                    : "failed");
    return rc;
}

/* --- what others ask -------------------------------------------------------------------------- */

const struct holmes_link_attr *holmes_link_attr(const struct holmes_link *l)
{
    return l ? &l->attr : NULL;
}

int holmes_link_count(const struct holmes_link *l)
{
    return l ? l->attr.nlinks : 1;
}

bool holmes_link_works(struct holmes_link *l)
{
    if (l && l->relay && waitpid(l->relay, NULL, WNOHANG) != 0) {
        l->relay = 0;
        l->relay_died = true;
    }
    return !l || !l->relay_died;
}

const char *holmes_link_delayed_by(const struct holmes_link *l)
{
    return l ? l->delayed_by : "";
}

struct in_addr holmes_link_address(const struct holmes_link *l, int link, int rank)
{
    uint32_t a = l ? (10u << 24) | (78u << 16) | ((uint32_t)link << 8) | ((uint32_t)rank + 1)
                   : INADDR_LOOPBACK;

    return (struct in_addr){htonl(a)};
}

/* The line of an interface in /proc/net/dev: eight numbers of what came in, then bytes sent. */
static uint64_t sent_from_here(const char *dev)
{
    FILE *f = fopen("/proc/thread-self/net/dev", "re");
    uintmax_t sent = 0, found = 0;
    char line[512];

    while (f && !found && fgets(line, sizeof line, f)) {
        const char *at = line + strspn(line, " ");
        size_t len = strlen(dev);

        if (strncmp(at, dev, len) == 0 && at[len] == ':' &&
            sscanf(at + len + 1, "%*u %*u %*u %*u %*u %*u %*u %*u %ju", &sent) == 1)
            found = sent;
    }
    if (f)
        fclose(f);
    return found;
}

uint64_t holmes_link_sent(const struct holmes_link *l, int link)
{
    uint64_t sum = 0;
    char dev[32];

    if (!l)
        return 0;
    snprintf(dev, sizeof dev, "link%d", link);
    for (int r = 0; r < l->nranks; r++)
        if (holmes_link_enter(l, r) == 0)
            sum += sent_from_here(dev);
    (void)!holmes_link_enter(l, HOLMES_LINK_OUTSIDE);
    return sum;
}
