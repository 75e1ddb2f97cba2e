/* Both ends of a connection on one thread: every wait drives both. */
#include "pair.h"

#include <dirent.h>
#include <errno.h>
#include <net/if.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "clock.h"

#define WAIT_MS 10000

void pair_init(struct pair *p, int version)
{
    const char *error = net_open(HOLMES_PLUGIN, version, &p->api);

    p->send = p->recv = NULL;
    cr_assert_null(error, "%s", error);
    cr_assert_eq(net_init(&p->api, &p->ctx, 7, test_logger), ncclSuccess, "%s", log_text());
}

void pair_connect_dev(struct pair *p, int from, int to)
{
    uint64_t deadline = holmes_deadline_ms(WAIT_MS);
    char handle[NCCL_NET_HANDLE_MAXSIZE] = {0};
    void *listen = NULL;

    p->send = p->recv = NULL;
    cr_assert_eq(net_listen(&p->api, p->ctx, to, handle, &listen), ncclSuccess, "%s", log_text());
    cr_assert_not_null(listen);
    while (!p->send || !p->recv) {
        cr_assert(!holmes_deadline_passed(deadline), "not connected:\n%s", log_text());
        if (!p->send)
            cr_assert_eq(net_connect(&p->api, p->ctx, from, handle, &p->send), ncclSuccess, "%s",
                         log_text());
        if (!p->recv)
            cr_assert_eq(net_accept(&p->api, listen, &p->recv), ncclSuccess, "%s", log_text());
    }
    cr_assert_eq(net_close_listen(&p->api, listen), ncclSuccess);
}

void pair_connect(struct pair *p)
{
    pair_connect_dev(p, 0, 0);
}

void *pair_isend(struct pair *p, void *buf, size_t len, void *mr)
{
    uint64_t deadline = holmes_deadline_ms(WAIT_MS);
    void *request = NULL;

    while (!request) {
        cr_assert(!holmes_deadline_passed(deadline), "isend takes nothing:\n%s", log_text());
        cr_assert_eq(net_isend(&p->api, p->send, buf, len, 0, mr, &request), ncclSuccess, "%s",
                     log_text());
    }
    return request;
}

void *pair_irecv(struct pair *p, void *buf, size_t len, void *mr)
{
    uint64_t deadline = holmes_deadline_ms(WAIT_MS);
    void *request = NULL;

    while (!request) {
        cr_assert(!holmes_deadline_passed(deadline), "irecv takes nothing:\n%s", log_text());
        cr_assert_eq(net_irecv(&p->api, p->recv, buf, len, 0, mr, &request), ncclSuccess, "%s",
                     log_text());
    }
    return request;
}

ncclResult_t pair_wait(struct pair *p, void **requests, int n, int ms, int *failed)
{
    uint64_t deadline = holmes_deadline_ms((uint64_t)ms);
    int left = 0;

    *failed = -1;
    for (int i = 0; i < n; i++)
        left += requests[i] != NULL;
    while (left > 0) {
        cr_assert(!holmes_deadline_passed(deadline), "%d requests undone after %d ms:\n%s", left,
                  ms, log_text());
        for (int i = 0; i < n; i++) {
            int done = 0, size;
            ncclResult_t rc;

            if (!requests[i])
                continue;
            rc = net_test(&p->api, requests[i], &done, &size);
            if (rc != ncclSuccess) {
                *failed = i;
                requests[i] = NULL;
                return rc;
            }
            if (done) {
                requests[i] = NULL;
                left--;
            }
        }
    }
    return ncclSuccess;
}

void pair_move(struct pair *p, size_t len, size_t max)
{
    uint8_t *out = malloc(len + 1), *in = calloc(1, max + 1);
    void *out_mr, *in_mr, *requests[2];
    int failed;

    cr_assert(out && in);
    for (size_t i = 0; i < len; i++)
        out[i] = (uint8_t)(i * 31 + len);
    cr_assert_eq(net_reg(&p->api, p->send, out, len + 1, &out_mr), ncclSuccess, "%s", log_text());
    cr_assert_eq(net_reg(&p->api, p->recv, in, max + 1, &in_mr), ncclSuccess, "%s", log_text());
    requests[0] = pair_irecv(p, in, max, in_mr);
    requests[1] = pair_isend(p, out, len, out_mr);
    cr_assert_eq(pair_wait(p, requests, 2, WAIT_MS, &failed), ncclSuccess, "%s", log_text());
    cr_assert_eq(memcmp(in, out, len), 0, "%zu bytes arrived wrong", len);
    cr_assert_eq(net_dereg(&p->api, p->send, out_mr), ncclSuccess);
    cr_assert_eq(net_dereg(&p->api, p->recv, in_mr), ncclSuccess);
    free(out);
    free(in);
}

void pair_close(struct pair *p)
{
    cr_assert_eq(net_close_send(&p->api, p->send), ncclSuccess);
    cr_assert_eq(net_close_recv(&p->api, p->recv), ncclSuccess);
    p->send = p->recv = NULL;
}

void pair_fini(struct pair *p)
{
    pair_close(p);
    cr_assert_eq(net_finalize(&p->api, p->ctx), ncclSuccess);
    net_close(&p->api);
}

static bool owns_socket(unsigned long inode)
{
    DIR *dir = opendir("/proc/self/fd");
    char want[64], path[300], link[64];
    struct dirent *e;
    bool found = false;

    cr_assert_not_null(dir);
    snprintf(want, sizeof want, "socket:[%lu]", inode);
    while (!found && (e = readdir(dir))) {
        ssize_t n;

        snprintf(path, sizeof path, "/proc/self/fd/%s", e->d_name);
        n = readlink(path, link, sizeof link - 1);
        if (n > 0) {
            link[n] = '\0';
            found = strcmp(link, want) == 0;
        }
    }
    closedir(dir);
    return found;
}

int listening_ports(int *ports, int max)
{
    static const char *const files[] = {"/proc/self/net/tcp", "/proc/self/net/tcp6"};
    int n = 0;

    for (int i = 0; i < 2; i++) {
        FILE *f = fopen(files[i], "r");
        char line[512];

        while (f && n < max && fgets(line, sizeof line, f)) {
            unsigned port, state;
            unsigned long inode;

            if (sscanf(line, "%*d: %*[0-9A-Fa-f]:%x %*s %x %*s %*s %*s %*d %*d %lu", &port, &state,
                       &inode) == 3 &&
                state == 10 /* TCP_LISTEN */ && owns_socket(inode))
                ports[n++] = (int)port;
        }
        if (f)
            fclose(f);
    }
    return n;
}

bool over_rdma(void)
{
    return getenv("HOLMES_TEST_VERBS") != NULL;
}

const char *over_tcp(void)
{
    const char *tcp = getenv("HOLMES_TCP");

    return tcp && strcmp(tcp, "libfabric") == 0 ? " tcp-libfabric over " : " tcp over ";
}

void private_loopback(void)
{
    struct ifreq req = {.ifr_name = "lo", .ifr_flags = IFF_UP};
    int fd;

    setenv("NCCL_IB_DISABLE", "1", 1);
    if (geteuid() != 0)
        return;
    cr_assert_eq(unshare(CLONE_NEWNET), 0);
    fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    cr_assert_geq(fd, 0);
    cr_assert_eq(ioctl(fd, SIOCSIFFLAGS, &req), 0);
    close(fd);
}
