/* The life of a rank process: it takes a command, has its runner do it, and answers. Between
 * commands it sleeps in recv, so that only the side whose turn it is uses the machine. */
#include "rank.h"

#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "clock.h"
#include "log.h"
#include "pattern.h"
#include "rendezvous.h"
#include "size.h"

struct rank {
    const struct holmes_rank_attr *attr;
    const struct holmes_runner_ops *ops;
    struct holmes_runner *runner;
    struct holmes_rank_work work;
};

static void buffers_free(struct rank *r)
{
    if (r->work.in)
        munmap(r->work.in, r->work.in_room);
    if (r->work.out)
        munmap(r->work.out, r->work.out_room);
    r->work.in = r->work.out = NULL;
}

static void *buffer_map(size_t bytes)
{
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    return p == MAP_FAILED ? NULL : p;
}

/* Mapped once, for the largest size, and touched as far as the present one reaches. */
static int buffers_map(struct rank *r)
{
    const struct holmes_rank_attr *a = r->attr;
    struct holmes_shape largest = {0};

    if (r->work.in && r->work.out)
        return 0;
    holmes_shape_of(a->collective, a->max_bytes, a->nranks, a->type, &largest);
    r->work.in_room = largest.in_bytes;
    r->work.out_room = a->collective == HOLMES_SENDRECV
                           ? holmes_window_bytes_max(a->max_bytes, a->window)
                           : largest.out_bytes;
    r->work.in = buffer_map(r->work.in_room);
    r->work.out = buffer_map(r->work.out_room);
    return r->work.in && r->work.out ? 0 : -ENOMEM;
}

static int rank_prepare(struct rank *r, const struct holmes_bench_command *cmd,
                        struct holmes_bench_reply *reply)
{
    const struct holmes_rank_attr *a = r->attr;
    struct holmes_rank_work *w = &r->work;
    int rc = buffers_map(r);

    if (rc != 0) {
        snprintf(reply->text, sizeof reply->text, "no memory for buffers of %zu bytes",
                 r->work.in_room + r->work.out_room);
        return rc;
    }
    holmes_shape_of(a->collective, cmd->size_bytes, a->nranks, a->type, &w->shape);
    w->window =
        a->collective == HOLMES_SENDRECV ? holmes_window_of(w->shape.size_bytes, a->window) : 1;
    w->salt = cmd->salt;
    holmes_pattern_fill(w->in, 0, w->shape.in_bytes / holmes_dtype_size(a->type), a->type, a->rank,
                        w->salt);
    holmes_pattern_poison(w->out, w->shape.out_bytes * w->window);
    atomic_fetch_add(a->beat, 1);
    if (!cmd->check)
        return 0;
    return r->ops->verify(r->runner, w, cmd, &reply->wrong, reply->text, sizeof reply->text);
}

static uint64_t cpu_ns(void)
{
    struct timespec ts;

    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &ts);
    return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

void holmes_timing_start(struct holmes_timing *t)
{
    t->cpu_ns = cpu_ns();
    t->ns = holmes_now_ns();
}

void holmes_timing_stop(struct holmes_timing *t)
{
    t->ns = holmes_now_ns() - t->ns;
    t->cpu_ns = cpu_ns() - t->cpu_ns;
}

static int rank_run(struct rank *r, const struct holmes_bench_command *cmd,
                    struct holmes_bench_reply *reply)
{
    bool records = cmd->measure == HOLMES_BENCH_LATENCY && r->attr->rank % 2 == 0;
    struct holmes_timing t = {.message_us = records ? r->attr->message_us : NULL};
    int rc = r->ops->run(r->runner, &r->work, cmd, &t, reply->text, sizeof reply->text);

    reply->ns = t.ns;
    reply->cpu_ns = t.cpu_ns;
    return rc;
}

/* The rendezvous is on the parent's loopback, where no link leads to; a socket stays in the network
 * in which it was made. */
int holmes_rank_meet(const struct holmes_rank_attr *a, const struct holmes_bench_command *cmd,
                     struct holmes_rdv **out)
{
    int rc = holmes_link_enter(a->link, HOLMES_LINK_OUTSIDE), back;

    if (rc == 0)
        rc = holmes_rdv_connect("127.0.0.1", cmd->port, cmd->secret, a->rank, a->nranks,
                                a->timeout_s * 1000, out);
    back = holmes_link_enter(a->link, a->rank);
    return rc ? rc : back;
}

static int rank_obey(struct rank *r, const struct holmes_bench_command *cmd,
                     struct holmes_bench_reply *reply)
{
    int rc;

    switch (cmd->verb) {
    case HOLMES_BENCH_JOIN:
        rc = holmes_link_settle(r->attr->link, r->attr->rank, reply->text, sizeof reply->text);
        if (rc != 0)
            return rc;
        return r->ops->join(r->attr, cmd, &r->runner, reply->text, sizeof reply->text);
    case HOLMES_BENCH_PREPARE:
        return rank_prepare(r, cmd, reply);
    case HOLMES_BENCH_RUN:
        return rank_run(r, cmd, reply);
    default:
        return 0;
    }
}

/* By default as NCCL's proxy thread: others may run, then it looks again. */
void holmes_rank_idle(const struct holmes_rank_attr *a)
{
    struct timespec pause = {.tv_nsec = a->idle_us * 1000L};

    if (a->idle_us)
        nanosleep(&pause, NULL);
    else
        sched_yield();
}

void holmes_rank_explain(const struct holmes_rank_work *w, int rc, char *why, size_t why_len)
{
    char size[32];

    holmes_size_format(w->shape.size_bytes, size, sizeof size);
    snprintf(why, why_len, "%s of %s: %s", holmes_collective_name(w->attr->collective), size,
             rc == -ETIME || rc == -ETIMEDOUT ? "no end within the timeout (--timeout)"
                                              : holmes_strerror(rc));
}

static const struct holmes_runner_ops *runner_of(const struct holmes_rank_attr *a)
{
    if (!a->plugin)
        return &holmes_runner_reference;
    if (a->through_nccl)
        return &holmes_runner_nccl;
    return a->collective == HOLMES_SENDRECV ? &holmes_runner_sendrecv : &holmes_runner_plugin;
}

int holmes_rank_serve(const struct holmes_rank_attr *attr, int fd)
{
    struct rank r = {
        .attr = attr,
        .ops = runner_of(attr),
        .work.attr = attr,
    };
    struct holmes_bench_command cmd = {.verb = HOLMES_BENCH_JOIN};
    struct holmes_bench_reply reply = {.rc = 0};

    prctl(PR_SET_TIMERSLACK, 1000); /* ns: a pause is as long as it is said to be */
    while (reply.rc == 0 && cmd.verb != HOLMES_BENCH_LEAVE) {
        ssize_t n = recv(fd, &cmd, sizeof cmd, 0);

        if (n < 0 && errno == EINTR)
            continue;
        if (n != (ssize_t)sizeof cmd)
            break; /* the parent is gone */
        reply = (struct holmes_bench_reply){.rc = 0};
        if (cmd.verb == HOLMES_BENCH_LEAVE)
            break;
        reply.rc = rank_obey(&r, &cmd, &reply);
        if (reply.rc != 0 && !reply.text[0])
            snprintf(reply.text, sizeof reply.text, "%s", holmes_strerror(reply.rc));
        atomic_fetch_add(attr->beat, 1);
        if (send(fd, &reply, sizeof reply, MSG_NOSIGNAL) < 0)
            break;
    }
    r.ops->leave(r.runner);
    buffers_free(&r);
    if (cmd.verb == HOLMES_BENCH_LEAVE) {
        reply = (struct holmes_bench_reply){.rc = 0};
        send(fd, &reply, sizeof reply, MSG_NOSIGNAL);
    }
    close(fd);
    return reply.rc == 0 ? 0 : 1;
}
