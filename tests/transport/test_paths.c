/* Two hosts with two NICs each, as network namespaces of this test: which wire the bytes really
 * take, by the interfaces' own counters. */
#include <arpa/inet.h>
#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <linux/if_link.h>
#include <linux/if_packet.h>
#include <net/if.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../support/spawn.h"
#include "clock.h"
#include "link.h"
#include "transport/route.h"

#define PAYLOAD (1u << 20)

static void need_root(void)
{
    if (geteuid() != 0)
        cr_skip_test("needs root for network namespaces");
}

static void sh(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
static void sh(const char *fmt, ...)
{
    char command[512];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(command, sizeof command, fmt, ap);
    va_end(ap);
    cr_assert_eq(system(command), 0, "%s", command);
}

static struct holmes_addr addr(const char *ip, uint8_t prefix_len)
{
    struct holmes_addr a = {.in = {.sin_family = AF_INET}, .prefix_len = prefix_len};

    cr_assert_eq(inet_pton(AF_INET, ip, &a.in.sin_addr), 1);
    return a;
}

static struct holmes_nic nic(const char *ifname, const char *ip)
{
    struct holmes_nic n = {.speed_mbps = 10000, .numa_node = -1, .naddrs = 1};

    snprintf(n.name, sizeof n.name, "%s", ifname);
    snprintf(n.ifname, sizeof n.ifname, "%s", ifname);
    n.addrs[0] = addr(ip, 24);
    return n;
}

static uint64_t bytes_sent(const char *ifname)
{
    struct ifaddrs *list;
    uint64_t sent = 0;

    cr_assert_eq(getifaddrs(&list), 0);
    for (struct ifaddrs *i = list; i; i = i->ifa_next) {
        if (i->ifa_addr && i->ifa_addr->sa_family == AF_PACKET && strcmp(i->ifa_name, ifname) == 0)
            sent = ((struct rtnl_link_stats *)i->ifa_data)->tx_bytes;
    }
    freeifaddrs(list);
    return sent;
}

/* A second host as a process in a namespace of its own, joined to ours by x0-y0 and x1-y1. */
struct two_hosts {
    pid_t pid;
    int to_child, from_child;
};

/* For each byte it reads it listens on the NIC of that number, hands out the handle, accepts,
 * receives one payload, checks it, answers with a byte. */
static void serve(int in, int out, const char *ip0, const char *ip1)
{
    struct holmes_nic nics[2] = {nic("y0", ip0), nic("y1", ip1)};
    struct holmes_transport *t;
    struct link l = {0};
    uint8_t handle[HOLMES_HANDLE_SIZE], *buf = malloc(PAYLOAD);
    char which;
    int rc;

    cr_assert_eq(holmes_transport_create(nics, 2, &t), 0);
    while (read(in, &which, 1) == 1 && which != 'q') {
        struct holmes_mr *mr;
        struct holmes_request *r;

        cr_assert_eq(holmes_listen(t, NULL, which - '0', handle, &l.listen), 0);
        cr_assert_eq(write(out, handle, sizeof handle), (ssize_t)sizeof handle);
        while ((rc = holmes_accept(l.listen, &l.recv)) == -EAGAIN)
            ;
        cr_assert_eq(rc, 0);
        holmes_listen_close(l.listen);
        cr_assert_eq(holmes_mr_reg(l.recv, buf, PAYLOAD, &mr), 0);
        r = link_irecv(l.recv, buf, PAYLOAD, 1, mr);
        cr_assert_eq(link_wait(r), PAYLOAD);
        cr_assert(link_check(buf, PAYLOAD, (unsigned)which));
        cr_assert_eq(write(out, "k", 1), 1);
        holmes_mr_dereg(l.recv, mr);
        holmes_conn_close(l.recv);
    }
    holmes_transport_destroy(t);
    free(buf);
}

struct host_addrs {
    char of_y0[32], of_y1[32];
};

static int host_main(const void *arg, const int *fds)
{
    const struct host_addrs *ip = arg;
    const int in = fds[0], out = fds[1];
    char byte;

    cr_assert_eq(unshare(CLONE_NEWNET), 0);
    cr_assert_eq(write(out, "u", 1), 1);
    cr_assert_eq(read(in, &byte, 1), 1); /* the interfaces are here now */
    sh("ip link set lo up && ip addr add %s/24 dev y0 && ip link set y0 up && "
       "ip addr add %s/24 dev y1 && ip link set y1 up",
       ip->of_y0, ip->of_y1);
    cr_assert_eq(write(out, "u", 1), 1);
    serve(in, out, ip->of_y0, ip->of_y1);
    return 0;
}

static void hosts_open(struct two_hosts *h, const char *subnet0, const char *subnet1)
{
    struct host_addrs ip;
    int down[2], up[2];
    char byte;

    cr_assert_eq(unshare(CLONE_NEWNET), 0, "%s", strerror(errno));
    cr_assert(pipe2(down, O_CLOEXEC) == 0 && pipe2(up, O_CLOEXEC) == 0);
    snprintf(ip.of_y0, sizeof ip.of_y0, "%s.20", subnet0);
    snprintf(ip.of_y1, sizeof ip.of_y1, "%s.21", subnet1);
    h->pid = spawn(host_main, &ip, sizeof ip, (const int[]){down[0], up[1]}, 2);
    cr_assert_gt(h->pid, 0);
    close(down[0]);
    close(up[1]);
    h->to_child = down[1];
    h->from_child = up[0];
    cr_assert_eq(read(h->from_child, &byte, 1), 1);
    sh("ip link set lo up");
    for (int i = 0; i < 2; i++) {
        sh("ip link add x%d type veth peer name y%d netns %d", i, i, (int)h->pid);
        sh("ip addr add %s.1%d/24 dev x%d && ip link set x%d up", i ? subnet1 : subnet0, i, i, i);
    }
    cr_assert_eq(write(h->to_child, "u", 1), 1);
    cr_assert_eq(read(h->from_child, &byte, 1), 1);
}

static void hosts_close(struct two_hosts *h)
{
    int status;

    cr_assert_eq(write(h->to_child, "q", 1), 1);
    cr_assert_eq(waitpid(h->pid, &status, 0), h->pid);
    cr_assert(WIFEXITED(status) && WEXITSTATUS(status) == 0, "the other host failed: %x", status);
}

/* One payload over our NIC `which` to the peer's of the same number. */
static void transfer(struct two_hosts *h, struct holmes_transport *t, int which,
                     struct holmes_conn_stats *stats)
{
    uint8_t handle[HOLMES_HANDLE_SIZE], *buf = malloc(PAYLOAD);
    struct holmes_conn *c;
    struct holmes_mr *mr;
    char byte = (char)('0' + which);
    int rc;

    link_fill(buf, PAYLOAD, (unsigned)byte);
    cr_assert_eq(write(h->to_child, &byte, 1), 1);
    cr_assert_eq(read(h->from_child, handle, sizeof handle), (ssize_t)sizeof handle);
    while ((rc = holmes_connect(t, NULL, which, handle, &c)) == -EAGAIN)
        ;
    cr_assert_eq(rc, 0, "connect: %s", strerror(-rc));
    cr_assert_eq(holmes_mr_reg(c, buf, PAYLOAD, &mr), 0);
    link_wait(link_isend(c, buf, PAYLOAD, 1, mr));
    cr_assert_eq(read(h->from_child, &byte, 1), 1);
    holmes_conn_get_stats(c, stats);
    holmes_mr_dereg(c, mr);
    holmes_conn_close(c);
    free(buf);
}

Test(paths, two_subnets_are_two_paths_by_the_interfaces_counters)
{
    struct holmes_nic nics[2];
    struct holmes_transport *t;
    struct holmes_conn_stats stats;
    struct two_hosts h;

    need_root();
    hosts_open(&h, "10.1.0", "10.2.0");
    nics[0] = nic("x0", "10.1.0.10");
    nics[1] = nic("x1", "10.2.0.11");
    link_capture_log();
    cr_assert_eq(holmes_transport_create(nics, 2, &t), 0);
    for (int i = 0; i < 2; i++) {
        uint64_t before[2] = {bytes_sent("x0"), bytes_sent("x1")};

        transfer(&h, t, i, &stats);
        cr_assert_geq(bytes_sent(i ? "x1" : "x0") - before[i], PAYLOAD, "over x%d", i);
        cr_assert_lt(bytes_sent(i ? "x0" : "x1") - before[!i], PAYLOAD / 4, "not over x%d", !i);
        cr_assert(strstr(stats.local, i ? "10.2.0.11" : "10.1.0.10"), "%s", stats.local);
        cr_assert(strstr(stats.peer, i ? "10.2.0.21" : "10.1.0.20"), "%s", stats.peer);
    }
    cr_assert_eq(link_log_count("is no path of its own"), 0);
    holmes_transport_destroy(t);
    hosts_close(&h);
}

Test(paths, two_nics_in_one_subnet_are_said_to_be_one_path_until_a_rule_makes_two)
{
    struct holmes_nic nics[2];
    struct holmes_transport *t;
    struct holmes_conn_stats stats;
    struct two_hosts h;
    uint64_t before;

    need_root();
    hosts_open(&h, "10.3.0", "10.3.0");
    nics[0] = nic("x0", "10.3.0.10");
    nics[1] = nic("x1", "10.3.0.11");
    link_capture_log();
    cr_assert_eq(holmes_transport_create(nics, 2, &t), 0);
    before = bytes_sent("x1");
    transfer(&h, t, 1, &stats);
    cr_assert_lt(bytes_sent("x1") - before, PAYLOAD / 4, "x1 carried it without a rule?");
    cr_assert_eq(link_log_count("nic x1 is no path of its own"), 1);
    cr_assert_eq(link_log_count("the kernel leaves by x0. To use it: ip rule add from 10.3.0.11"),
                 1);
    transfer(&h, t, 1, &stats);
    cr_assert_eq(link_log_count("nic x1 is no path of its own"), 1, "said once per NIC");
    holmes_transport_destroy(t);

    /* What the line says, done (and loose ARP, as two NICs on one wire want). */
    sh("ip rule add from 10.3.0.11 table 111 && ip route add 10.3.0.0/24 dev x1 table 111");
    link_capture_log();
    cr_assert_eq(holmes_transport_create(nics, 2, &t), 0);
    before = bytes_sent("x1");
    transfer(&h, t, 1, &stats);
    cr_assert_geq(bytes_sent("x1") - before, PAYLOAD);
    cr_assert_eq(link_log_count("is no path of its own"), 0);
    holmes_transport_destroy(t);
    hosts_close(&h);
}

/* Case C6: A has 10.1/24 and 10.9/24, B only 10.9/24. */
Test(paths, common_subnet_is_found_whatever_nic_was_asked_for)
{
    struct holmes_nic nics[2];
    struct holmes_transport *t;
    struct holmes_conn_stats stats;
    struct two_hosts h;

    need_root();
    hosts_open(&h, "10.8.0", "10.9.0");
    nics[0] = nic("x0", "10.1.0.5"); /* an address of a network that B does not know */
    nics[1] = nic("x1", "10.9.0.11");
    sh("ip addr flush dev x0 && ip addr add 10.1.0.5/24 dev x0");
    cr_assert_eq(holmes_transport_create(nics, 2, &t), 0);
    transfer(&h, t, 0, &stats);
    cr_assert(strstr(stats.local, "10.9.0.11"), "%s", stats.local);
    cr_assert(strstr(stats.peer, "10.9.0.21"), "%s", stats.peer);
    holmes_transport_destroy(t);
    hosts_close(&h);
}
