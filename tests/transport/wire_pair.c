#include "wire_pair.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <net/if.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "clock.h"

void end_open(struct wire_end *e, const struct wire_ops *ops, const struct holmes_nic *nic)
{
    char why[512] = "";

    memset(e, 0, sizeof *e);
    e->ops = ops;
    e->gid_index = nic->rdma.ngids > 0 ? nic->rdma.gids[0].index : 0;
    cr_assert_eq(ops->load(why, sizeof why), 0, "%s", why);
    cr_assert_eq(ops->nic_open(nic, 0, 0, &e->wn), 0);
    cr_assert_eq(ops->cq_open(e->wn, &e->cq), 0);
}

int pair_streams(void)
{
    const char *n = getenv("TEST_STREAMS");

    return n ? atoi(n) : 1;
}

struct half half_make(struct wire_end *e, enum wire_role role)
{
    struct wire_lane_params params = {
        .gid_index = e->gid_index, .traffic_class = -1, .streams = pair_streams()};
    struct half h = {0};

    cr_assert_eq(e->ops->lane_create(e->wn, e->cq, role, &params, h.blob, &h.len, &h.lane), 0);
    return h;
}

void end_close(struct wire_end *e)
{
    for (int i = 0; i < e->nlanes; i++)
        e->ops->lane_close(e->lanes[i]);
    e->ops->cq_close(e->cq);
    e->ops->nic_close(e->wn);
    memset(e, 0, sizeof *e);
}

int lane_wait(struct wire_end *e, struct wire_end *other, struct wire_lane *lane, int timeout_ms)
{
    uint64_t deadline = holmes_deadline_ms((uint64_t)timeout_ms);
    int rc = -EAGAIN;

    while (rc == -EAGAIN && !holmes_deadline_passed(deadline)) {
        e->ops->nic_progress(e->wn);
        if (other)
            other->ops->nic_progress(other->wn);
        rc = e->ops->lane_poll(lane);
    }
    return rc == -EAGAIN ? -ETIMEDOUT : rc;
}

void pair_raise(struct wire_pair *p)
{
    struct half from = half_make(&p->from, WIRE_CONNECT), to = half_make(&p->to, WIRE_ACCEPT);
    int i = p->from.nlanes;

    cr_assert_lt(i, PAIR_LANES_MAX);
    p->from.lanes[i] = from.lane;
    p->to.lanes[i] = to.lane;
    p->from.nlanes = p->to.nlanes = i + 1;
    cr_assert_eq(p->from.ops->lane_connect(from.lane, to.blob, to.len), 0);
    cr_assert_eq(p->to.ops->lane_connect(to.lane, from.blob, from.len), 0);
    cr_assert_eq(lane_wait(&p->from, &p->to, from.lane, PAIR_TIMEOUT_MS), 0);
    cr_assert_eq(lane_wait(&p->to, &p->from, to.lane, PAIR_TIMEOUT_MS), 0);
}

void pair_open(struct wire_pair *p, const struct wire_ops *ops, int nlanes)
{
    end_open(&p->from, ops, &test_nics()->from);
    end_open(&p->to, ops, &test_nics()->to);
    for (int i = 0; i < nlanes; i++)
        pair_raise(p);
}

void pair_close(struct wire_pair *p)
{
    end_close(&p->from);
    end_close(&p->to);
}

void end_drive(struct wire_end *e)
{
    struct wire_event got[16];
    int n;

    if (!e)
        return;
    n = e->ops->cq_poll(e->cq, got, 16);
    cr_assert_geq(n, 0, "cq_poll: %s", strerror(-n));
    cr_assert_leq(e->count + (unsigned)n, PAIR_EVENTS_MAX, "the test lets events pile up");
    for (int i = 0; i < n; i++)
        e->events[(e->first + e->count++) % PAIR_EVENTS_MAX] = got[i];
    if (e->ops->cq_push)
        e->ops->cq_push(e->cq);
}

int lane_wait_end(struct wire_end *e, struct wire_end *other, struct wire_lane *lane,
                  int timeout_ms)
{
    uint64_t deadline = holmes_deadline_ms((uint64_t)timeout_ms);
    int rc = 0;

    while (rc == 0 && !holmes_deadline_passed(deadline)) {
        end_drive(e);
        end_drive(other);
        e->ops->nic_progress(e->wn);
        if (other)
            other->ops->nic_progress(other->wn);
        rc = e->ops->lane_poll(lane);
    }
    return rc;
}

bool end_wait_event(struct wire_end *e, struct wire_end *other, struct wire_event *out)
{
    uint64_t deadline = holmes_deadline_ms(PAIR_TIMEOUT_MS);

    while (e->count == 0 && !holmes_deadline_passed(deadline)) {
        end_drive(e);
        end_drive(other);
    }
    if (e->count == 0)
        return false;
    *out = e->events[e->first++ % PAIR_EVENTS_MAX];
    e->count--;
    return true;
}

void end_post(struct wire_end *e, struct wire_end *other, int lane, const struct wire_write *w)
{
    uint64_t deadline = holmes_deadline_ms(PAIR_TIMEOUT_MS);
    int rc;

    do {
        rc = e->ops->lane_post(e->lanes[lane], w);
        if (rc == -EAGAIN)
            end_drive(other);
    } while (rc == -EAGAIN && !holmes_deadline_passed(deadline));
    cr_assert_eq(rc, 0, "lane_post: %s", strerror(-rc));
}

void loopback_alone(void)
{
    struct ifreq up = {.ifr_name = "lo", .ifr_flags = IFF_UP};
    int fd;

    if (geteuid() != 0)
        return;
    cr_assert_eq(unshare(CLONE_NEWNET), 0, "%s", strerror(errno));
    fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    cr_assert_geq(fd, 0);
    cr_assert_eq(ioctl(fd, SIOCSIFFLAGS, &up), 0, "%s", strerror(errno));
    close(fd);
}
