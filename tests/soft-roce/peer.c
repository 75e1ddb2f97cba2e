/* One host of the four-guest tests: loads the built plugin as NCCL does and talks to its like on
 * other hosts. They find each other through files in a folder that all share.
 *
 *   peer PLUGIN FOLDER HOST matrix a0,a1,b0,b1     every ordered pair of hosts connects and moves
 *                                                  1 MiB and 64 MiB
 *   peer PLUGIN FOLDER HOST stream FROM TO         HOST, which is FROM or TO, sends or receives 1
 * MiB at a time until FOLDER/stop exists, or until it fails; FOLDER/moving.HOST exists once bytes
 * move peer PLUGIN FOLDER HOST cycles FROM TO N       N times connect, 4 KiB, close
 *
 * Prints one line for each thing done. Exit status 1 when a pair could not be served; how a stream
 * ended is in its line.
 */
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "clock.h"
#include "net_api.h"

#define VERSION      12
#define WAIT_MS      120000 /* for the other host to come to the same point */
#define SMALL        ((size_t)1 << 20)
#define LARGE        ((size_t)64 << 20)
#define STREAM_DEPTH 4

struct peer {
    struct net_api api;
    void *ctx;
    const char *folder, *host;
    uint8_t *buf;
    void *comm;
    bool sending;
};

/* ---- log: the line about the last connection that came up ---- */

static char up_line[1024];

static void logger(ncclDebugLogLevel level, unsigned long flags, const char *file, int line,
                   const char *fmt, ...)
{
    char text[1024];
    va_list ap;

    (void)flags, (void)file, (void)line;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    if (strstr(text, ": conn ") && strstr(text, " lane"))
        memcpy(up_line, text, sizeof text);
    fprintf(stderr, "%.3f %d %s\n", (double)holmes_now_ns() / 1e9, (int)level, text);
}

/* All hosts share one machine, so whoever waits leaves it to the others. */
static void nap(void)
{
    usleep(200);
}

/* ---- shared files ---- */

static void path_of(const struct peer *p, char path[512], const char *fmt, va_list ap)
{
    int n = snprintf(path, 512, "%s/", p->folder);

    vsnprintf(path + n, 512 - (size_t)n, fmt, ap);
}

static bool leave(const struct peer *p, const void *bytes, size_t len, const char *fmt, ...)
{
    char path[512], temp[520];
    va_list ap;
    bool ok;
    FILE *f;

    va_start(ap, fmt);
    path_of(p, path, fmt, ap);
    va_end(ap);
    snprintf(temp, sizeof temp, "%s.tmp", path);
    f = fopen(temp, "wb");
    if (!f)
        return false;
    ok = fwrite(bytes, 1, len, f) == len;
    return fclose(f) == 0 && ok && rename(temp, path) == 0;
}

static bool exists(const struct peer *p, const char *fmt, ...)
{
    char path[512];
    va_list ap;

    va_start(ap, fmt);
    path_of(p, path, fmt, ap);
    va_end(ap);
    return access(path, F_OK) == 0;
}

static bool take(const struct peer *p, void *bytes, size_t len, const char *fmt, ...)
{
    uint64_t deadline = holmes_deadline_ms(WAIT_MS);
    char path[512];
    va_list ap;
    bool ok;
    FILE *f;

    va_start(ap, fmt);
    path_of(p, path, fmt, ap);
    va_end(ap);
    while (!(f = fopen(path, "rb"))) {
        if (holmes_deadline_passed(deadline))
            return false;
        usleep(5000); /* the folder is slow */
    }
    ok = fread(bytes, 1, len, f) == len;
    fclose(f);
    return ok;
}

/* ---- connections ---- */

struct pair {
    const char *from, *to;
    char name[64]; /* of this meeting's files */
};

static int fail(const char *what, const struct pair *pair, ncclResult_t rc)
{
    printf("%s %s failed: %s, result %d\n", pair->from, pair->to, what, (int)rc);
    return 1;
}

static int dial(struct peer *p, const struct pair *pair)
{
    char handle[NCCL_NET_HANDLE_MAXSIZE];
    uint64_t start, deadline;
    ncclResult_t rc = ncclSuccess;

    if (!take(p, handle, sizeof handle, "handle.%s", pair->name))
        return fail("the listener never came", pair, ncclSuccess);
    up_line[0] = '\0';
    start = holmes_now_ns();
    deadline = holmes_deadline_ms(WAIT_MS);
    for (; rc == ncclSuccess && !p->comm && !holmes_deadline_passed(deadline); nap())
        rc = net_connect(&p->api, p->ctx, 0, handle, &p->comm);
    if (!p->comm)
        return fail("connect", pair, rc);
    p->sending = true;
    printf("%s %s send connected %.0f ms | %s\n", pair->from, pair->to,
           (double)(holmes_now_ns() - start) / 1e6, up_line);
    return 0;
}

static int answer(struct peer *p, const struct pair *pair)
{
    char handle[NCCL_NET_HANDLE_MAXSIZE];
    uint64_t deadline = holmes_deadline_ms(WAIT_MS);
    ncclResult_t rc;
    void *listen = NULL;

    rc = net_listen(&p->api, p->ctx, 0, handle, &listen);
    if (rc != ncclSuccess)
        return fail("listen", pair, rc);
    up_line[0] = '\0';
    if (!leave(p, handle, sizeof handle, "handle.%s", pair->name))
        return fail("the shared folder", pair, ncclSuccess);
    for (; rc == ncclSuccess && !p->comm && !holmes_deadline_passed(deadline); nap())
        rc = net_accept(&p->api, listen, &p->comm);
    net_close_listen(&p->api, listen);
    if (!p->comm)
        return fail("accept", pair, rc);
    p->sending = false;
    printf("%s %s recv connected | %s\n", pair->from, pair->to, up_line);
    return 0;
}

static int meet(struct peer *p, const struct pair *pair)
{
    return strcmp(p->host, pair->from) == 0 ? dial(p, pair) : answer(p, pair);
}

static void part(struct peer *p)
{
    if (p->comm)
        p->sending ? net_close_send(&p->api, p->comm) : net_close_recv(&p->api, p->comm);
    p->comm = NULL;
}

/* ---- messages ---- */

static uint64_t word(uint64_t i, uint64_t seed)
{
    return (i + seed) * 0x9e3779b97f4a7c15u ^ i >> 7;
}

static void fill(uint8_t *buf, size_t len, uint64_t seed)
{
    for (size_t i = 0; i < len / 8; i++) {
        uint64_t w = word(i, seed);

        memcpy(buf + 8 * i, &w, 8);
    }
}

static bool intact(const uint8_t *buf, size_t len, uint64_t seed)
{
    for (size_t i = 0; i < len / 8; i++) {
        uint64_t w = word(i, seed);

        if (memcmp(buf + 8 * i, &w, 8) != 0)
            return false;
    }
    return true;
}

static ncclResult_t post(struct peer *p, uint8_t *buf, size_t len, void *mr, void **request)
{
    uint64_t deadline = holmes_deadline_ms(WAIT_MS);
    ncclResult_t rc = ncclSuccess;

    *request = NULL;
    for (; rc == ncclSuccess && !*request; nap()) {
        rc = p->sending ? net_isend(&p->api, p->comm, buf, len, 0, mr, request)
                        : net_irecv(&p->api, p->comm, buf, len, 0, mr, request);
        if (holmes_deadline_passed(deadline))
            return ncclInternalError;
    }
    return rc;
}

static ncclResult_t finish(struct peer *p, void *request, int *size)
{
    uint64_t deadline = holmes_deadline_ms(WAIT_MS);
    ncclResult_t rc = ncclSuccess;
    int done = 0;

    for (; rc == ncclSuccess && !done; nap()) {
        rc = net_test(&p->api, request, &done, size);
        if (holmes_deadline_passed(deadline))
            return ncclInternalError;
    }
    return rc;
}

static int move(struct peer *p, const struct pair *pair, size_t len, uint64_t seed)
{
    void *mr = NULL, *request;
    ncclResult_t rc = net_reg(&p->api, p->comm, p->buf, len, &mr);
    int size = 0;
    bool good = true;

    if (rc != ncclSuccess)
        return fail("regMr", pair, rc);
    p->sending ? fill(p->buf, len, seed) : (void)memset(p->buf, 0xee, len);
    rc = post(p, p->buf, len, mr, &request);
    if (rc == ncclSuccess)
        rc = finish(p, request, &size);
    net_dereg(&p->api, p->comm, mr);
    if (rc != ncclSuccess)
        return fail("a message", pair, rc);
    if (!p->sending)
        good = (size_t)size == len && intact(p->buf, len, seed);
    printf("%s %s %s moved %zu bytes, %s\n", pair->from, pair->to, p->sending ? "send" : "recv",
           len, good ? "intact" : "NOT AS SENT");
    return good ? 0 : 1;
}

/* ---- what can be asked for ---- */

static int one_of_matrix(struct peer *p, const char *from, const char *to, uint64_t seed)
{
    struct pair pair = {.from = from, .to = to};
    int rc;

    snprintf(pair.name, sizeof pair.name, "%s.%s", from, to);
    rc = meet(p, &pair);
    if (rc == 0)
        rc = move(p, &pair, SMALL, seed);
    if (rc == 0)
        rc = move(p, &pair, LARGE, seed + 1);
    part(p);
    return rc;
}

static int matrix(struct peer *p, char *list)
{
    const char *hosts[8];
    int n = 0, rc = 0;

    for (char *h = strtok(list, ","); h && n < 8; h = strtok(NULL, ","))
        hosts[n++] = h;
    for (int i = 0; i < n; i++)
        for (int j = 0; j < n; j++)
            if (i != j && (strcmp(p->host, hosts[i]) == 0 || strcmp(p->host, hosts[j]) == 0))
                rc |= one_of_matrix(p, hosts[i], hosts[j], (uint64_t)(i * n + j) << 32);
    return rc;
}

static int cycles(struct peer *p, const char *from, const char *to, int n)
{
    struct pair pair = {.from = from, .to = to};
    int rc = 0;

    for (int i = 0; rc == 0 && i < n; i++) {
        snprintf(pair.name, sizeof pair.name, "%s.%s.%d", from, to, i);
        rc = meet(p, &pair);
        if (rc == 0)
            rc = move(p, &pair, 4096, (uint64_t)i);
        part(p);
    }
    return rc;
}

/* Messages under way, the oldest first. A message whose first byte is 1 is the last one. */
struct stream {
    void *requests[STREAM_DEPTH];
    unsigned posted, done;
    bool last_posted;
    uint64_t last_done_ns, longest_ns;
};

static ncclResult_t stream_post(struct peer *p, struct stream *s, void *mr)
{
    unsigned slot = s->posted % STREAM_DEPTH;
    uint8_t *buf = p->buf + slot * SMALL;
    ncclResult_t rc;

    if (s->last_posted || s->posted - s->done == STREAM_DEPTH)
        return ncclSuccess;
    if (p->sending)
        buf[0] = s->posted % 8 == 0 && exists(p, "stop");
    rc = p->sending ? net_isend(&p->api, p->comm, buf, SMALL, 0, mr, &s->requests[slot])
                    : net_irecv(&p->api, p->comm, buf, SMALL, 0, mr, &s->requests[slot]);
    if (rc == ncclSuccess && s->requests[slot]) {
        s->last_posted = p->sending && buf[0] == 1;
        s->posted++;
    }
    return rc;
}

static ncclResult_t stream_test(struct peer *p, struct stream *s, bool *ended)
{
    unsigned slot = s->done % STREAM_DEPTH;
    ncclResult_t rc;
    uint64_t now;
    int done = 0;

    if (s->done == s->posted)
        return ncclSuccess;
    rc = net_test(&p->api, s->requests[slot], &done, NULL);
    if (rc != ncclSuccess || !done)
        return rc;
    now = holmes_now_ns();
    if (s->done > 0 && now - s->last_done_ns > s->longest_ns)
        s->longest_ns = now - s->last_done_ns;
    s->last_done_ns = now;
    s->requests[slot] = NULL;
    if (++s->done == 8)
        leave(p, "", 0, "moving.%s", p->host);
    *ended = p->buf[slot * SMALL] == 1;
    return ncclSuccess;
}

static int stream(struct peer *p, const char *from, const char *to)
{
    struct pair pair = {.from = from, .to = to};
    struct stream s = {0};
    ncclResult_t rc;
    bool ended = false;
    void *mr = NULL;

    snprintf(pair.name, sizeof pair.name, "%s.%s.stream", from, to);
    if (meet(p, &pair) != 0)
        return 1;
    rc = net_reg(&p->api, p->comm, p->buf, STREAM_DEPTH * SMALL, &mr);
    if (rc != ncclSuccess)
        return fail("regMr", &pair, rc);
    while (rc == ncclSuccess && !ended) {
        rc = stream_post(p, &s, mr);
        if (rc == ncclSuccess)
            rc = stream_test(p, &s, &ended);
        nap();
    }
    printf("%s %s %s ended: result %d after %u messages, %.0f ms after the last one, longest wait "
           "%.0f ms\n",
           from, to, p->sending ? "send" : "recv", (int)rc, s.done,
           (double)(holmes_now_ns() - s.last_done_ns) / 1e6, (double)s.longest_ns / 1e6);
    net_dereg(&p->api, p->comm, mr);
    part(p);
    return 0;
}

static int run(struct peer *p, int argc, char **argv)
{
    const char *what = argv[0];

    if (strcmp(what, "matrix") == 0 && argc == 2)
        return matrix(p, argv[1]);
    if (strcmp(what, "stream") == 0 && argc == 3)
        return stream(p, argv[1], argv[2]);
    if (strcmp(what, "cycles") == 0 && argc == 4)
        return cycles(p, argv[1], argv[2], atoi(argv[3]));
    fprintf(stderr, "peer: no such thing to do: %s\n", what);
    return 2;
}

int main(int argc, char **argv)
{
    struct peer p = {0};
    const char *why;
    int rc = 1;

    if (argc < 5) {
        fprintf(stderr, "usage: peer PLUGIN FOLDER HOST matrix|stream|cycles ...\n");
        return 2;
    }
    setvbuf(stdout, NULL, _IOLBF, 0);
    p.folder = argv[2];
    p.host = argv[3];
    p.buf = aligned_alloc(4096, LARGE);
    why = net_open(argv[1], VERSION, &p.api);
    if (!why && p.buf && net_init(&p.api, &p.ctx, 1, logger) == ncclSuccess) {
        int n = 0;

        net_devices(&p.api, &n);
        rc = n > 0 ? run(&p, argc - 4, argv + 4) : 1;
        net_finalize(&p.api, p.ctx);
    } else {
        fprintf(stderr, "peer: %s\n", why ? why : "the plugin does not start");
    }
    free(p.buf);
    return rc;
}
