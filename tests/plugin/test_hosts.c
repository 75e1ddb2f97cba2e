/* The plugin between hosts: which addresses and interfaces it uses, and cables that are cut. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>

#include "../support/patience.h"
#include "clock.h"
#include "hosts.h"
#include "pair.h"
#include "trace.h"

TestSuite(hosts, .timeout = 240);

#define PEER_TIMEOUT_S 3

enum { MANY = 100000 };
static size_t many_sizes[MANY]; /* of 1 MiB each, filled by those who use them */

static struct op stream_op(struct rank *r, int channel, bool sending, int nmsgs)
{
    for (int i = 0; i < nmsgs; i++)
        many_sizes[i] = 1 << 20;
    return (struct op){
        .sending = sending,
        .ch = &r->channels[channel],
        .proto = SIMPLE,
        .sizes = many_sizes,
        .nmsgs = nmsgs,
        .recv_max = trace_recv_max(SIMPLE),
        .depth = trace_depth(SIMPLE),
        .stride = trace_stride(SIMPLE),
        .seed = (uint64_t)channel * 17 + (uint64_t)(sending ? r->rank : 1 - r->rank),
        .tag = sending ? r->rank : 1 - r->rank,
    };
}

static const struct hosts_spec one_cable = {
    .nics = {{{"10.1.0.5/24", 0}}, {{"10.1.0.6/24", 0}}},
    .unplugged_net = -1,
};

/* ---- the cut cable ---- */

static bool expect_remote_error(struct rank *r, struct op *ops, int n, uint64_t begin)
{
    for (int i = 0; i < n; i++) {
        uint64_t limit = (uint64_t)(PEER_TIMEOUT_S * 1000 + patience_ms(1000) + 1000);
        uint64_t spent = (holmes_now_ns() - begin) / 1000000;

        RANK_CHECK(spent < limit && rank_wait_ended(r, &ops[i], (int)(limit - spent)),
                   "operation %d was not ended %llu ms after the cut", i,
                   (unsigned long long)limit);
        RANK_CHECK(ops[i].result == ncclRemoteError, "operation %d ended with %d", i,
                   ops[i].result);
    }
    return true;
}

/* Receives are posted on both ends and nothing is on the way. */
static bool cut_idle_script(struct rank *r)
{
    struct op op;
    uint64_t begin;

    setenv("HOLMES_PEER_TIMEOUT", "3", 1);
    if (!rank_init(r) || !rank_connect(r, 1))
        return false;
    op = stream_op(r, 0, false, 8);
    rank_start(r, &op, 1);
    if (!rank_wait_posted(r, &op, 4) || !rank_barrier(r))
        return false;
    if (r->rank == 0 && !hosts_cut(r))
        return false;
    begin = holmes_now_ns();
    if (!expect_remote_error(r, &op, 1, begin))
        return false;
    begin = holmes_now_ns();
    RANK_CHECK(rank_destroy(r), "destroy");
    RANK_CHECK(holmes_now_ns() - begin < patience_ns(5000), "close waits for the dead");
    return true;
}

Test(hosts, a_cut_cable_fails_an_idle_connection_on_both_ends)
{
    run_on_hosts(&one_cable, 12, cut_idle_script, NULL, 0);
}

/* Bytes are on their way in both directions. */
static bool cut_busy_script(struct rank *r)
{
    struct op ops[2];
    uint64_t begin;

    setenv("HOLMES_PEER_TIMEOUT", "3", 1);
    if (!rank_init(r) || !rank_connect(r, 1))
        return false;
    ops[0] = stream_op(r, 0, true, MANY);
    ops[1] = stream_op(r, 0, false, MANY);
    rank_start(r, ops, 2);
    if (!rank_wait_posted(r, &ops[0], 20) || !rank_wait_posted(r, &ops[1], 20) || !rank_barrier(r))
        return false;
    if (r->rank == 0 && !hosts_cut(r))
        return false;
    begin = holmes_now_ns();
    return expect_remote_error(r, ops, 2, begin) && rank_destroy(r);
}

Test(hosts, a_cut_cable_fails_a_busy_connection_on_both_ends)
{
    run_on_hosts(&one_cable, 11, cut_busy_script, NULL, 0);
}

/* ---- addresses ---- */

struct address_arg {
    char used[32], unused[32]; /* parts of addresses in the line of each connection */
};

static bool address_script(struct rank *r)
{
    const struct address_arg *arg = r->script_arg;
    struct op ops[2];
    uint64_t begin;

    if (!rank_init(r) || !rank_barrier(r))
        return false;
    begin = holmes_now_ns();
    if (!rank_connect(r, 1))
        return false;
    RANK_CHECK(holmes_now_ns() - begin < patience_ns(2000), "connected after %llu ms",
               (unsigned long long)(holmes_now_ns() - begin) / 1000000);
    RANK_CHECK(log_has(NCCL_LOG_INFO, over_tcp(), arg->used), "not over %s", arg->used);
    RANK_CHECK(!log_has(NCCL_LOG_INFO, over_tcp(), arg->unused), "over %s", arg->unused);
    ops[0] = stream_op(r, 0, true, 8);
    ops[1] = stream_op(r, 0, false, 8);
    return rank_run(r, ops, 2) && rank_barrier(r) && rank_destroy(r);
}

Test(hosts, the_common_subnet_is_found)
{
    const struct hosts_spec spec = {
        .nics = {{{"10.1.0.5/24", 0}, {"10.9.0.5/24", 1}}, {{"10.9.0.6/24", 1}}},
        .unplugged_net = -1,
    };
    struct address_arg arg = {"10.9.0.", "10.1.0."};

    run_on_hosts(&spec, 12, address_script, &arg, sizeof arg);
}

Test(hosts, an_address_that_drops_packets_is_passed_over)
{
    const struct hosts_spec spec = {
        .nics = {{{"10.2.0.6/24", 0}, {"192.168.1.6/24", 1}},
                 {{"10.2.0.5/24", 0}, {"192.168.1.5/24", 1}}},
        .unplugged_net = 0,
    };
    struct address_arg arg = {"192.168.1.", "10.2.0."};

    run_on_hosts(&spec, 12, address_script, &arg, sizeof arg);
}

static bool ipv6_script(struct rank *r)
{
    setenv("NCCL_SOCKET_FAMILY", "AF_INET6", 1);
    return address_script(r);
}

Test(hosts, ipv6_is_used_when_asked_for)
{
    const struct hosts_spec spec = {
        .nics = {{{"10.1.0.5/24", 0}, {"fd77::5/64", 1}}, {{"10.1.0.6/24", 0}, {"fd77::6/64", 1}}},
        .unplugged_net = -1,
    };
    struct address_arg arg = {"fd77::", "10.1.0."};

    run_on_hosts(&spec, 12, ipv6_script, &arg, sizeof arg);
}

/* ---- interfaces ---- */

static long counter(const char *ifname, const char *name)
{
    char path[128];
    long value = -1;
    FILE *f;

    snprintf(path, sizeof path, "/sys/class/net/%s/statistics/%s", ifname, name);
    f = fopen(path, "r");
    if (!f)
        return -1;
    if (fscanf(f, "%ld", &value) != 1)
        value = -1;
    fclose(f);
    return value;
}

/* 16 MiB each way on device 0, then on device 1; returns what left by each interface. */
static bool move_by_device(struct rank *r, long sent[2][2])
{
    static const char *const ifs[2] = {"eth0", "eth1"};

    for (int dev = 0; dev < 2; dev++) {
        struct op ops[2] = {stream_op(r, dev, true, 16), stream_op(r, dev, false, 16)};

        for (int i = 0; i < 2; i++)
            sent[dev][i] = counter(ifs[i], "tx_bytes");
        if (!rank_run(r, ops, 2) || !rank_barrier(r))
            return false;
        for (int i = 0; i < 2; i++)
            sent[dev][i] = counter(ifs[i], "tx_bytes") - sent[dev][i];
    }
    return true;
}

static bool two_nics_script(struct rank *r)
{
    long sent[2][2];

    r->ndevices = 2;
    if (!rank_init(r) || !rank_connect(r, 2) || !move_by_device(r, sent))
        return false;
    for (int dev = 0; dev < 2; dev++) {
        RANK_CHECK(sent[dev][dev] > 16 << 20, "%ld bytes of device %d left by its interface",
                   sent[dev][dev], dev);
        RANK_CHECK(sent[dev][!dev] < 1 << 20, "%ld bytes of device %d left by the other interface",
                   sent[dev][!dev], dev);
    }
    RANK_CHECK(log_count(NCCL_LOG_WARN, "ip rule") == 0, "a false alarm");
    return rank_destroy(r);
}

Test(hosts, two_nics_in_two_subnets_are_both_used)
{
    const struct hosts_spec spec = {
        .nics = {{{"10.1.0.5/24", 0}, {"10.2.0.5/24", 1}},
                 {{"10.1.0.6/24", 0}, {"10.2.0.6/24", 1}}},
        .unplugged_net = -1,
    };

    run_on_hosts(&spec, 12, two_nics_script, NULL, 0);
}

/* A source address does not choose the interface. */
static bool one_subnet_script(struct rank *r)
{
    long sent[2][2];

    r->ndevices = 2;
    if (!rank_init(r) || !rank_connect(r, 2) || !move_by_device(r, sent))
        return false;
    RANK_CHECK(sent[1][1] < 1 << 20, "the world changed: %ld bytes left by eth1", sent[1][1]);
    RANK_CHECK(log_has(NCCL_LOG_WARN, "eth1", "ip rule add from 10.1.0."), "not said");
    return rank_destroy(r);
}

Test(hosts, two_nics_in_one_subnet_are_found_out)
{
    const struct hosts_spec spec = {
        .nics = {{{"10.1.0.5/24", 0}, {"10.1.0.7/24", 0}},
                 {{"10.1.0.6/24", 0}, {"10.1.0.8/24", 0}}},
        .unplugged_net = -1,
    };

    run_on_hosts(&spec, 12, one_subnet_script, NULL, 0);
}
