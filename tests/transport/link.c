#include "link.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "clock.h"
#include "log.h"
#include "test_nics.h"

int link_nics(enum link_end end, struct holmes_nic nics[2])
{
    const struct test_nics *t = test_nics();

    nics[0] = end == LINK_FROM ? t->from : t->to;
    if (!t->ops->rdma)
        return 1;
    /* A connection that fell back to tcp would pass the tests and prove nothing. */
    setenv("HOLMES_WIRE", "verbs", 0);
    nics[1] = nics[0];
    memcpy(nics[1].name, nics[1].ifname, sizeof nics[1].ifname);
    memset(&nics[1].rdma, 0, sizeof nics[1].rdma);
    return 2;
}

struct holmes_transport *link_transport(enum link_end end)
{
    struct holmes_nic nics[2];
    struct holmes_transport *t;
    int n = link_nics(end, nics);

    cr_assert_eq(holmes_transport_create(nics, n, &t), 0);
    return t;
}

int link_try_connect(struct link *l, void *handle)
{
    uint64_t deadline = holmes_deadline_ms(LINK_TIMEOUT_MS);
    int sent = -EAGAIN, got = -EAGAIN;

    while (sent == -EAGAIN || got == -EAGAIN) {
        cr_assert(!holmes_deadline_passed(deadline), "connect %d accept %d after %d ms", sent, got,
                  LINK_TIMEOUT_MS);
        if (sent == -EAGAIN)
            sent = holmes_connect(l->a, l, 0, handle, &l->send);
        if (got == -EAGAIN)
            got = holmes_accept(l->listen, &l->recv);
        if (sent != 0 && sent != -EAGAIN)
            return sent;
        if (got != 0 && got != -EAGAIN)
            return got;
    }
    return 0;
}

void link_connect(struct link *l)
{
    uint8_t handle[HOLMES_HANDLE_SIZE];
    int rc;

    rc = holmes_listen(l->b, l, 0, handle, &l->listen);
    cr_assert_eq(rc, 0, "listen: %s", strerror(-rc));
    rc = link_try_connect(l, handle);
    cr_assert_eq(rc, 0, "connect: %s", strerror(-rc));
    holmes_listen_close(l->listen);
    l->listen = NULL;
}

void link_open(struct link *l)
{
    memset(l, 0, sizeof *l);
    l->a = link_transport(LINK_FROM);
    l->b = link_transport(LINK_TO);
    link_connect(l);
}

void link_close(struct link *l)
{
    holmes_conn_close(l->send);
    holmes_conn_close(l->recv);
    holmes_listen_close(l->listen);
    holmes_transport_destroy(l->a);
    holmes_transport_destroy(l->b);
}

struct holmes_request *link_isend(struct holmes_conn *c, const void *buf, size_t len, int tag,
                                  struct holmes_mr *mr)
{
    uint64_t deadline = holmes_deadline_ms(LINK_TIMEOUT_MS);
    struct holmes_request *r;
    int rc;

    while ((rc = holmes_isend(c, buf, len, tag, mr, &r)) == -EAGAIN)
        cr_assert(!holmes_deadline_passed(deadline), "a send of %zu bytes was never taken", len);
    cr_assert_eq(rc, 0, "isend: %s", strerror(-rc));
    return r;
}

struct holmes_request *link_irecv(struct holmes_conn *c, void *buf, size_t len, int tag,
                                  struct holmes_mr *mr)
{
    uint64_t deadline = holmes_deadline_ms(LINK_TIMEOUT_MS);
    struct holmes_request *r;
    int rc;

    while ((rc = holmes_irecv(c, 1, &buf, &len, &tag, &mr, &r)) == -EAGAIN)
        cr_assert(!holmes_deadline_passed(deadline), "a receive was never taken");
    cr_assert_eq(rc, 0, "irecv: %s", strerror(-rc));
    return r;
}

size_t link_wait(struct holmes_request *r)
{
    uint64_t deadline = holmes_deadline_ms(LINK_TIMEOUT_MS);
    size_t len[HOLMES_MAX_GROUP] = {0};
    bool done = false;

    while (!done) {
        int rc = holmes_test(r, &done, len);

        cr_assert_eq(rc, 0, "test: %s", strerror(-rc));
        cr_assert(!holmes_deadline_passed(deadline), "a request never completed");
    }
    return len[0];
}

size_t link_wait_both(struct holmes_request *send, struct holmes_request *recv)
{
    uint64_t deadline = holmes_deadline_ms(LINK_TIMEOUT_MS);
    bool sent = false, got = false;
    size_t len = 0;

    while (!sent || !got) {
        int rc = 0;

        if (!sent)
            rc = holmes_test(send, &sent, NULL);
        if (rc == 0 && !got)
            rc = holmes_test(recv, &got, &len);
        cr_assert_eq(rc, 0, "test: %s", strerror(-rc));
        cr_assert(!holmes_deadline_passed(deadline), "send %s, receive %s",
                  sent ? "done" : "pending", got ? "done" : "pending");
    }
    return len;
}

int link_wait_error(struct holmes_request *r)
{
    uint64_t deadline = holmes_deadline_ms(LINK_TIMEOUT_MS);
    bool done = false;
    int rc = 0;

    while (rc == 0) {
        rc = holmes_test(r, &done, NULL);
        cr_assert(!done, "completed although it must fail");
        cr_assert(!holmes_deadline_passed(deadline), "neither completed nor failed");
    }
    return rc;
}

static uint8_t pattern(size_t i, unsigned seed)
{
    return (uint8_t)((i * 131 + (i >> 8) * 17 + seed * 59) >> 1);
}

void link_fill(void *buf, size_t len, unsigned seed)
{
    for (size_t i = 0; i < len; i++)
        ((uint8_t *)buf)[i] = pattern(i, seed);
}

bool link_check(const void *buf, size_t len, unsigned seed)
{
    for (size_t i = 0; i < len; i++) {
        if (((const uint8_t *)buf)[i] != pattern(i, seed))
            return false;
    }
    return true;
}

/* ---- log ---- */

static pthread_mutex_t captured_lock =
    PTHREAD_MUTEX_INITIALIZER; /* threads of the transport's log */
static char captured[65536];
static size_t captured_len;

static void capture(void *ctx, enum holmes_log_level level, enum holmes_log_subsys subsys,
                    const char *file, int line, const char *func, const char *msg)
{
    size_t left;
    int n;

    (void)ctx, (void)subsys, (void)file, (void)line, (void)func;
    pthread_mutex_lock(&captured_lock);
    left = sizeof captured - captured_len;
    n = snprintf(captured + captured_len, left, "%s%s\n", level == HOLMES_LOG_WARN ? "WARN " : "",
                 msg);
    if (n > 0 && (size_t)n < left)
        captured_len += (size_t)n;
    pthread_mutex_unlock(&captured_lock);
}

void link_capture_log(void)
{
    pthread_mutex_lock(&captured_lock);
    captured_len = 0;
    captured[0] = '\0';
    pthread_mutex_unlock(&captured_lock);
    holmes_log_set_sink(capture, NULL, HOLMES_LOG_INFO);
}

int link_log_count(const char *needle)
{
    int n = 0;

    pthread_mutex_lock(&captured_lock);
    for (const char *p = captured; (p = strstr(p, needle)); p += strlen(needle))
        n++;
    pthread_mutex_unlock(&captured_lock);
    return n;
}
