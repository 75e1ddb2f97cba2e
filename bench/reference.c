/* The reference: plain TCP streams that carry the bytes which a ring would. No sums, no messages,
 * no registration: what the host's TCP can do, as the limit to compare a plugin with. Here the
 * streams are connected and what came over them is verified; reference_block.c and reference_poll.c
 * move the bytes, the one with a blocking thread for each end of a stream, the other with few
 * threads that poll, as a plugin does.
 */
#include "reference.h"

#include <errno.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "check.h"
#include "clock.h"
#include "log.h"
#include "pattern.h"
#include "size.h"

#define STREAMS_MAX    HOLMES_BENCH_STREAMS_MAX
#define STEP_BYTES_MAX 32768 /* with default buffers, a send of it never waits for the reader */

struct hello {
    uint64_t token;
    uint32_t stream, rank;
};

static void reference_leave(struct holmes_runner *r)
{
    if (!r)
        return;
    for (int i = 0; i < STREAMS_MAX; i++) {
        if (r->out_fd[i] >= 0)
            close(r->out_fd[i]);
        if (r->in_fd[i] >= 0)
            close(r->in_fd[i]);
    }
    free(r);
}

int holmes_reference_send(int fd, const void *buf, size_t len)
{
    for (const char *p = buf; len > 0;) {
        ssize_t n = send(fd, p, len, MSG_NOSIGNAL);

        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return errno == EAGAIN ? -ETIMEDOUT : -errno;
        p += n;
        len -= (size_t)n;
    }
    return 0;
}

int holmes_reference_recv(int fd, void *buf, size_t len)
{
    for (char *p = buf; len > 0;) {
        ssize_t n = recv(fd, p, len, 0);

        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return n == 0 ? -ECONNRESET : errno == EAGAIN ? -ETIMEDOUT : -errno;
        p += n;
        len -= (size_t)n;
    }
    return 0;
}

static void socket_set_up(int fd, int timeout_s)
{
    struct timeval tv = {.tv_sec = timeout_s};
    int one = 1;

    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &tv, sizeof tv);
    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &tv, sizeof tv);
}

static int dial_stream(struct holmes_runner *r, uint32_t stream)
{
    struct hello hello = {r->attr->token, stream, (uint32_t)r->attr->rank};
    struct sockaddr_in next = r->attr->next;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    if (fd < 0)
        return -errno;
    r->out_fd[stream] = fd;
    socket_set_up(fd, r->attr->timeout_s);
    next.sin_addr = holmes_link_address(
        r->attr->link, (int)stream % holmes_link_count(r->attr->link), r->attr->next_rank);
    if (connect(fd, (const struct sockaddr *)&next, sizeof next) != 0)
        return -errno;
    return holmes_reference_send(fd, &hello, sizeof hello);
}

/* One connection taken from the listener; strangers are closed and do not count. */
static int accept_stream(struct holmes_runner *r, uint64_t deadline_ns)
{
    struct pollfd p = {.fd = r->attr->listen_fd, .events = POLLIN};
    struct hello hello;
    int fd;

    if (holmes_deadline_passed(deadline_ns))
        return -ETIMEDOUT;
    if (poll(&p, 1, 100) <= 0)
        return -EAGAIN;
    fd = accept4(r->attr->listen_fd, NULL, NULL, SOCK_CLOEXEC);
    if (fd < 0)
        return errno == EINTR || errno == ECONNABORTED || errno == EAGAIN ? -EAGAIN : -errno;
    socket_set_up(fd, 1); /* a silent stranger holds nobody up for long */
    if (holmes_reference_recv(fd, &hello, sizeof hello) != 0 || hello.token != r->attr->token ||
        hello.stream >= STREAMS_MAX || r->in_fd[hello.stream] >= 0) {
        close(fd);
        return -EAGAIN;
    }
    socket_set_up(fd, r->attr->timeout_s);
    r->in_fd[hello.stream] = fd;
    return 0;
}

static int reference_join(const struct holmes_rank_attr *a, const struct holmes_bench_command *cmd,
                          struct holmes_runner **out, char *about, size_t about_len)
{
    uint64_t deadline = holmes_deadline_ms((uint64_t)a->timeout_s * 1000);
    struct holmes_runner *r = calloc(1, sizeof *r);
    int rc = 0;

    (void)cmd;
    if (!r)
        return -ENOMEM;
    *out = r;
    r->attr = a;
    for (int i = 0; i < STREAMS_MAX; i++)
        r->out_fd[i] = r->in_fd[i] = -1;
    for (uint32_t i = 0; i < STREAMS_MAX && rc == 0; i++)
        rc = dial_stream(r, i);
    for (int taken = 0; taken < STREAMS_MAX && (rc == 0 || rc == -EAGAIN); taken += rc == 0)
        rc = accept_stream(r, deadline);
    if (rc != 0)
        snprintf(about, about_len, "cannot connect the streams: %s", holmes_strerror(rc));
    else if (a->link)
        snprintf(about, about_len, "TCP over the links%s",
                 holmes_link_count(a->link) > 1 ? " in turns, each with its link's share" : "");
    else
        snprintf(about, about_len, "TCP on 127.0.0.1");
    return rc;
}

int holmes_reference_meet(struct holmes_runner *r)
{
    int hops = r->attr->collective == HOLMES_SENDRECV ? 1 : r->attr->nranks - 1, rc = 0;
    char word = 0;

    for (int i = 0; i < hops && rc == 0; i++) {
        rc = holmes_reference_send(r->out_fd[0], &word, 1);
        if (rc == 0)
            rc = holmes_reference_recv(r->in_fd[0], &word, 1);
    }
    return rc;
}

size_t holmes_reference_share(const struct holmes_rank_work *w, size_t bytes, size_t blocks,
                              size_t step, size_t s, size_t n, size_t *len)
{
    size_t element = holmes_dtype_size(w->attr->type), elements = bytes / element;
    size_t block = step % blocks;
    size_t begin = elements * block / blocks * element;
    size_t end = elements * (block + 1) / blocks * element;
    double bytes_in = (double)(end - begin);
    const struct holmes_link_attr *links = holmes_link_attr(w->attr->link);
    size_t from = begin + (size_t)(bytes_in * holmes_link_part(links, s, n));

    *len = begin + (size_t)(bytes_in * holmes_link_part(links, s + 1, n)) - from;
    return from;
}

size_t holmes_reference_steps(const struct holmes_rank_attr *a)
{
    size_t n = (size_t)a->nranks - 1;

    return a->collective == HOLMES_ALL_REDUCE ? 2 * n : n;
}

bool holmes_reference_chained(const struct holmes_reference_run *run)
{
    const struct holmes_shape *s = &run->w->shape;

    return run->measure == HOLMES_BENCH_TIME && s->in_bytes / s->in_blocks <= STEP_BYTES_MAX;
}

static int run_timed(struct holmes_runner *r, const struct holmes_rank_work *w,
                     const struct holmes_bench_command *cmd, size_t iters, struct holmes_timing *t)
{
    struct holmes_reference_run run = {r, w, cmd->measure, cmd->streams, cmd->threads, iters};

    return run.threads ? holmes_reference_poll(&run, t) : holmes_reference_block(&run, t);
}

static int reference_fail(const struct holmes_runner *r, const struct holmes_rank_work *w, int rc,
                          char *why, size_t why_len)
{
    char size[32];

    if (rc == 0)
        return 0;
    holmes_size_format(w->shape.size_bytes, size, sizeof size);
    snprintf(why, why_len, "%s of %s: %s", holmes_collective_name(r->attr->collective), size,
             rc == -ETIMEDOUT ? "no byte within the timeout" : holmes_strerror(rc));
    return rc;
}

static int reference_run(struct holmes_runner *r, const struct holmes_rank_work *w,
                         const struct holmes_bench_command *cmd, struct holmes_timing *t, char *why,
                         size_t why_len)
{
    struct holmes_timing warmup = {0};
    int rc = 0;

    if (cmd->warmups)
        rc = run_timed(r, w, cmd, cmd->warmups, &warmup);
    if (rc == 0)
        rc = run_timed(r, w, cmd, cmd->iters, t);
    return reference_fail(r, w, rc, why, why_len);
}

/* What lies in block `to` of the output came in the last step that wrote there. */
static uint64_t check_blocks(const struct holmes_rank_work *w)
{
    const struct holmes_rank_attr *a = w->attr;
    const struct holmes_shape *s = &w->shape;
    size_t element = holmes_dtype_size(a->type), steps = holmes_reference_steps(a), in_at, out_at,
           len;
    int from = (a->rank + a->nranks - 1) % a->nranks;
    uint64_t wrong = 0;

    for (size_t step = steps > s->out_blocks ? steps - s->out_blocks : 0; step < steps; step++) {
        if (s->out_blocks == 1 && step + 1 < steps)
            continue;
        in_at = holmes_reference_share(w, s->in_bytes, s->in_blocks, step, 0, 1, &len);
        out_at = holmes_reference_share(w, s->out_bytes, s->out_blocks, step, 0, 1, &len);
        wrong += holmes_pattern_check((const char *)w->out + out_at, in_at / element, len / element,
                                      a->type, from, w->salt);
    }
    return wrong;
}

static int verify_run(struct holmes_runner *r, const struct holmes_rank_work *w,
                      const struct holmes_bench_command *cmd, enum holmes_bench_measure measure)
{
    struct holmes_bench_command run = *cmd;
    struct holmes_timing t = {0};

    run.measure = measure;
    return run_timed(r, w, &run, 1, &t);
}

static int reference_verify(struct holmes_runner *r, const struct holmes_rank_work *w,
                            const struct holmes_bench_command *cmd, uint64_t *wrong, char *why,
                            size_t why_len)
{
    const struct holmes_rank_attr *a = r->attr;
    int rc;

    if (a->collective != HOLMES_SENDRECV) {
        rc = verify_run(r, w, cmd, HOLMES_BENCH_TIME);
        *wrong = rc == 0 ? check_blocks(w) : 0;
        return reference_fail(r, w, rc, why, why_len);
    }
    rc = verify_run(r, w, cmd, HOLMES_BENCH_LATENCY);
    *wrong = holmes_check_messages(w, 1);
    holmes_pattern_poison(w->out, w->shape.out_bytes);
    if (rc == 0)
        rc = verify_run(r, w, cmd, HOLMES_BENCH_BANDWIDTH);
    if (rc == 0 && (a->both_ways || a->rank % 2 == 1))
        *wrong += holmes_check_messages(w, 1);
    return reference_fail(r, w, rc, why, why_len);
}

const struct holmes_runner_ops holmes_runner_reference = {
    .join = reference_join,
    .verify = reference_verify,
    .run = reference_run,
    .leave = reference_leave,
};
