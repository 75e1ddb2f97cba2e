/* holmes-verbs-bench: latency and bandwidth between two RDMA devices of this host, over bare queue
 * pairs or over a net plugin, by one and the same loop. bench/verbs.sh runs it in turns with
 * perftest's programs.
 *
 *     holmes-verbs-bench bare|plugin lat|bw DEVICE,DEVICE [SIZE [COUNT [GID-INDEX [PLUGIN]]]]
 *
 * Prints one number: the median of half a round trip in microseconds, or MiB per second.
 */
#include <errno.h>
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "clock.h"
#include "side.h"

#define TIMEOUT_S   120
#define WARM_UP     4 /* one in so many messages comes before the clock starts */
#define RECVS_AHEAD 8 /* as many as NCCL keeps out */

void side_die(const char *fmt, ...)
{
    char text[256];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    fprintf(stderr, "holmes-verbs-bench: %s\n", text);
    exit(1);
}

void side_swap(int socket, const void *mine, void *theirs, size_t len)
{
    if (send(socket, mine, len, MSG_NOSIGNAL) != (ssize_t)len ||
        recv(socket, theirs, len, MSG_WAITALL) != (ssize_t)len)
        side_die("the other process is gone");
}

static void meet(int socket)
{
    char mine = 'x', theirs;

    side_swap(socket, &mine, &theirs, 1);
}

/* ---- loops ---- */

struct run {
    const struct side_ops *ops;
    struct side *s;
    const struct side_config *config;
    unsigned count;
    bool first; /* this end begins */
};

static void recv_ahead(const struct run *r, unsigned i, unsigned total)
{
    if (i < total)
        r->ops->recv(r->s, i);
}

/* After a look in vain the processor is offered to others, as NCCL's proxy does: soft RoCE needs
 * it. */
static void idle(void)
{
    sched_yield();
}

static void send_and_wait(const struct run *r, unsigned i)
{
    while (!r->ops->send(r->s, i))
        idle();
}

/* The receive that is due next is posted while the answer is on its way. */
static void ping_pong(const struct run *r, unsigned i, unsigned total)
{
    if (r->first)
        send_and_wait(r, i);
    while (!r->ops->recv_done(r->s, i))
        idle();
    if (!r->first)
        send_and_wait(r, i);
    recv_ahead(r, i + RECVS_AHEAD, total);
    while (!r->ops->send_done(r->s, i))
        idle();
}

static int by_value(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

    return x < y ? -1 : x > y;
}

static double latency_us(const struct run *r)
{
    unsigned warm = r->count / WARM_UP, total = warm + r->count;
    uint64_t *samples = calloc(r->count, sizeof *samples);
    unsigned middle;
    double median;

    if (!samples)
        side_die("out of memory");
    for (unsigned i = 0; i < RECVS_AHEAD; i++)
        recv_ahead(r, i, total);
    meet(r->config->socket);
    for (unsigned i = 0; i < total; i++) {
        uint64_t start = holmes_now_ns();

        ping_pong(r, i, total);
        if (i >= warm)
            samples[i - warm] = holmes_now_ns() - start;
    }
    qsort(samples, r->count, sizeof *samples, by_value);
    middle = r->count / 2;
    median = (double)samples[middle] / 2e3;
    free(samples);
    return median;
}

static void stream_out(const struct run *r, unsigned from, unsigned to)
{
    unsigned sent = from, done = from;

    while (done < to) {
        unsigned before = sent + done;

        while (sent < to && sent < done + SIDE_WINDOW && r->ops->send(r->s, sent))
            sent++;
        while (done < sent && r->ops->send_done(r->s, done))
            done++;
        if (sent + done == before)
            idle();
    }
}

/* The receiver of a stream looks now and then: with soft RoCE the processor that it would look with
 * all the time is the one that carries the bytes, and perftest's receiver does not look at all. */
static void rest(void)
{
    struct timespec pause = {.tv_nsec = 200000};

    nanosleep(&pause, NULL);
}

/* Receives are posted up to `total`, so that the sender finds them when it goes on. */
static void stream_in(const struct run *r, unsigned *posted, unsigned from, unsigned to,
                      unsigned total)
{
    for (unsigned done = from; done < to;) {
        while (*posted < total && *posted < done + SIDE_WINDOW)
            r->ops->recv(r->s, (*posted)++);
        if (r->ops->recv_done(r->s, done))
            done++;
        else
            rest();
    }
}

static double bandwidth_mib(const struct run *r)
{
    unsigned warm = r->count / WARM_UP, total = warm + r->count, posted = 0;
    uint64_t start;
    double took;

    for (int phase = 0; phase < 2; phase++) {
        unsigned from = phase == 0 ? 0 : warm, to = phase == 0 ? warm : total;

        meet(r->config->socket);
        start = holmes_now_ns();
        if (r->first)
            stream_out(r, from, to);
        else
            stream_in(r, &posted, from, to, total);
    }
    took = (double)(holmes_now_ns() - start) * 1e-9;
    return (double)r->count * (double)r->config->size / (1 << 20) / took;
}

/* ---- the two processes ---- */

static double run_side(const struct side_ops *ops, const struct side_config *config, bool lat,
                       unsigned count, bool first)
{
    struct run r = {.ops = ops, .config = config, .count = count, .first = first};
    double result;

    alarm(TIMEOUT_S);
    r.s = ops->open(config);
    result = lat ? latency_us(&r) : bandwidth_mib(&r);
    meet(config->socket);
    ops->close(r.s);
    return result;
}

static unsigned long number(const char *text, unsigned long max)
{
    char *end;
    unsigned long n;

    errno = 0;
    n = strtoul(text, &end, 10);
    if (errno != 0 || end == text || *end != '\0' || n > max)
        side_die("\"%s\": a number of at most %lu is right", text, max);
    return n;
}

static void usage(void)
{
    side_die("usage: holmes-verbs-bench bare|plugin lat|bw DEVICE,DEVICE [SIZE [COUNT [GID-INDEX "
             "[PLUGIN]]]]");
}

int main(int argc, char **argv)
{
    struct side_config config = {.gid_index = 1, .plugin = "holmes"};
    const struct side_ops *ops;
    char devices[128], *comma;
    bool lat, first;
    unsigned count;
    int sockets[2], status = 0;
    double result;
    pid_t child;

    if (argc < 4 || argc > 8)
        usage();
    ops = strcmp(argv[1], "bare") == 0     ? &side_bare
          : strcmp(argv[1], "plugin") == 0 ? &side_plugin
                                           : NULL;
    lat = strcmp(argv[2], "lat") == 0;
    snprintf(devices, sizeof devices, "%s", argv[3]);
    comma = strchr(devices, ',');
    if (!ops || (!lat && strcmp(argv[2], "bw") != 0) || !comma)
        usage();
    *comma = '\0';
    config.size = argc > 4 ? number(argv[4], 1ul << 26) : lat ? 8 : 1ul << 20;
    count = (unsigned)(argc > 5 ? number(argv[5], 1000000) : lat ? 1000 : 200);
    config.gid_index = argc > 6 ? (int)number(argv[6], 255) : config.gid_index;
    config.plugin = argc > 7 ? argv[7] : config.plugin;
    if (config.size == 0 || count < WARM_UP)
        usage();

    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sockets) != 0 || (child = fork()) < 0)
        side_die("%s", strerror(errno));
    first = child != 0;
    config.socket = sockets[first];
    close(sockets[!first]);
    config.device = first ? devices : comma + 1;
    result = run_side(ops, &config, lat, count, first);
    if (!first)
        return 0;
    if (waitpid(child, &status, 0) != child || status != 0)
        side_die("the other process failed");
    printf("%.2f\n", result);
    return 0;
}
