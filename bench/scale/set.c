/* Loops over all ends of a set, as NCCL's service and progress threads make them; see set.h. */
#include "set.h"

#include <errno.h>
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "clock.h"
#include "log.h"
#include "usage.h"

int holmes_scale_set_create(struct holmes_plugin *plugin, void *ctx, int n,
                            struct holmes_scale_set *out)
{
    size_t bytes = (size_t)n * HOLMES_SCALE_MESSAGE;

    *out = (struct holmes_scale_set){.plugin = plugin, .ctx = ctx, .n = n};
    out->ends = calloc((size_t)n, sizeof *out->ends);
    out->memory = aligned_alloc(HOLMES_SCALE_MESSAGE, bytes);
    if (!out->ends || !out->memory) {
        holmes_scale_set_destroy(out);
        return -ENOMEM;
    }
    memset(out->memory, 0xff, bytes);
    for (int i = 0; i < n; i++)
        out->ends[i].buf = out->memory + (size_t)i * HOLMES_SCALE_MESSAGE;
    return 0;
}

void holmes_scale_set_destroy(struct holmes_scale_set *s)
{
    holmes_scale_set_close(s);
    free(s->ends);
    free(s->memory);
    s->ends = NULL;
    s->memory = NULL;
    s->n = 0;
}

/* ---- waiting ---- */

static int fail(struct holmes_scale_set *s, int rc, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
static int fail(struct holmes_scale_set *s, int rc, const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(s->why, sizeof s->why, fmt, ap);
    va_end(ap);
    return rc;
}

static const char *word_of(int rc)
{
    const char *name = holmes_plugin_result_name(rc);

    return name ? name : holmes_strerror(rc);
}

static int call_failed(struct holmes_scale_set *s, int i, const char *call, int rc)
{
    int64_t short_of = holmes_scale_nofile_missing();

    if (short_of > 0)
        return fail(s, rc,
                    "%s of connection %u (%d of %d here): %s, for want of descriptors: all %lld "
                    "that the hard limit allows are taken (ulimit -Hn)",
                    call, s->ends[i].number, i + 1, s->n, word_of(rc), (long long)short_of);
    return fail(s, rc, "%s of connection %u (%d of %d here): %s", call, s->ends[i].number, i + 1,
                s->n, word_of(rc));
}

static void rest(const struct holmes_scale_set *s)
{
    struct timespec pause = {.tv_nsec = s->pause_ns};

    if (s->pause_ns > 0)
        nanosleep(&pause, NULL);
    else
        sched_yield();
}

/* `step` advances end `i`: 1 when it is where it must get, 0 when not yet, or a negative errno. */
static int all_ends(struct holmes_scale_set *s, const char *what,
                    int (*step)(struct holmes_scale_set *s, int i))
{
    uint64_t deadline = holmes_now_ns() + (uint64_t)s->timeout_ns;

    for (int before = s->n;;) {
        int left = 0;

        for (int i = 0; i < s->n; i++) {
            int rc = step(s, i);

            if (rc < 0)
                return rc;
            left += rc == 0;
        }
        if (left == 0)
            return 0;
        if (s->stop && atomic_load_explicit(s->stop, memory_order_relaxed))
            return fail(s, -ECANCELED, "%s: another rank failed", what);
        if (holmes_deadline_passed(deadline))
            return fail(s, -ETIMEDOUT, "%s: %d of %d connections not there after %lld s", what,
                        left, s->n, (long long)(s->timeout_ns / 1000000000));
        if (left == before)
            rest(s);
        before = left;
    }
}

/* ---- raising ---- */

int holmes_scale_set_listen(struct holmes_scale_set *s)
{
    for (int i = 0; i < s->n; i++) {
        struct holmes_scale_end *e = &s->ends[i];
        int rc = e->sends ? 0 : holmes_plugin_listen(s->plugin, s->ctx, 0, e->handle, &e->listen);

        if (rc != 0)
            return call_failed(s, i, "listen", rc);
    }
    return 0;
}

static int raise_one(struct holmes_scale_set *s, int i)
{
    struct holmes_scale_end *e = &s->ends[i];
    int rc;

    if (e->comm)
        return 1;
    rc = e->sends ? holmes_plugin_connect(s->plugin, s->ctx, 0, e->handle, &e->comm)
                  : holmes_plugin_accept(s->plugin, e->listen, &e->comm);
    if (rc == -EAGAIN)
        return 0;
    if (rc != 0)
        return call_failed(s, i, e->sends ? "connect" : "accept", rc);
    e->took_ns += (int64_t)holmes_now_ns();
    return 1;
}

int holmes_scale_set_raise(struct holmes_scale_set *s)
{
    int64_t start = (int64_t)holmes_now_ns();
    int rc;

    for (int i = 0; i < s->n; i++)
        s->ends[i].took_ns = -start;
    rc = all_ends(s, "connect and accept", raise_one);
    for (int i = 0; rc == 0 && i < s->n; i++) {
        struct holmes_scale_end *e = &s->ends[i];

        if (e->listen)
            holmes_plugin_close_listen(s->plugin, e->listen);
        e->listen = NULL;
        rc = holmes_plugin_reg(s->plugin, e->comm, e->buf, HOLMES_SCALE_MESSAGE, &e->mr);
        if (rc != 0)
            call_failed(s, i, "regMr", rc);
    }
    return rc;
}

/* ---- messages ---- */

static uint8_t byte_at(uint32_t number, size_t i)
{
    return (uint8_t)(number * 31 + i * 7 + (i >> 8));
}

/* With its message, or with what no message is. */
static void fill(struct holmes_scale_end *e)
{
    for (size_t i = 0; i < HOLMES_SCALE_MESSAGE; i++)
        e->buf[i] = e->sends ? byte_at(e->number, i) : (uint8_t)~byte_at(e->number, i);
    e->moved = false;
}

static int post_one(struct holmes_scale_set *s, int i)
{
    struct holmes_scale_end *e = &s->ends[i];
    int rc;

    if (e->sends || e->request)
        return 1;
    rc = holmes_plugin_irecv(s->plugin, e->comm, e->buf, HOLMES_SCALE_MESSAGE, 0, e->mr,
                             &e->request);
    return rc == -EAGAIN ? 0 : rc != 0 ? call_failed(s, i, "irecv", rc) : 1;
}

int holmes_scale_set_post(struct holmes_scale_set *s)
{
    for (int i = 0; i < s->n; i++)
        fill(&s->ends[i]);
    return all_ends(s, "irecv", post_one);
}

static int test_one(struct holmes_scale_set *s, int i, bool *done)
{
    struct holmes_scale_end *e = &s->ends[i];
    size_t len = 0;
    int rc = holmes_plugin_test(s->plugin, e->request, done, &len);

    if (rc != 0)
        return call_failed(s, i, "test", rc);
    if (*done)
        e->request = NULL;
    if (*done && len != HOLMES_SCALE_MESSAGE)
        return fail(s, -EBADMSG, "connection %u brought %zu bytes instead of %d", e->number, len,
                    HOLMES_SCALE_MESSAGE);
    return 0;
}

int holmes_scale_set_poll(struct holmes_scale_set *s, int64_t for_ns, uint64_t *looks)
{
    uint64_t end = holmes_now_ns() + (uint64_t)for_ns;

    for (*looks = 0; !holmes_deadline_passed(end); sched_yield()) {
        for (int i = 0; i < s->n; i++) {
            bool done = false;
            int rc;

            if (!s->ends[i].request)
                continue;
            rc = test_one(s, i, &done);
            if (rc != 0)
                return rc;
            if (done)
                return fail(s, -EBADMSG, "connection %u received what nobody sent",
                            s->ends[i].number);
            ++*looks;
        }
    }
    return 0;
}

static int check_message(struct holmes_scale_set *s, const struct holmes_scale_end *e)
{
    for (size_t i = 0; i < HOLMES_SCALE_MESSAGE; i++) {
        if (e->buf[i] != byte_at(e->number, i))
            return fail(s, -EBADMSG, "connection %u: byte %zu of its message is wrong", e->number,
                        i);
    }
    return 0;
}

static int send_one(struct holmes_scale_set *s, int i)
{
    struct holmes_scale_end *e = &s->ends[i];
    int rc = holmes_plugin_isend(s->plugin, e->comm, e->buf, HOLMES_SCALE_MESSAGE, 0, e->mr,
                                 &e->request);

    return rc == 0 || rc == -EAGAIN ? 0 : call_failed(s, i, "isend", rc);
}

static int exchange_one(struct holmes_scale_set *s, int i)
{
    struct holmes_scale_end *e = &s->ends[i];
    bool done = false;
    int rc = 0;

    if (e->moved)
        return 1;
    if (e->sends && !e->request)
        rc = send_one(s, i);
    if (rc == 0 && e->request)
        rc = test_one(s, i, &done);
    /* The peers of the other ends wait for their messages. */
    if (rc == 0 && done && !e->sends && s->bad == 0)
        s->bad = check_message(s, e);
    e->moved = rc == 0 && done;
    return rc != 0 ? rc : e->moved;
}

int holmes_scale_set_exchange(struct holmes_scale_set *s)
{
    int rc;

    s->bad = 0;
    rc = all_ends(s, "a message over each connection", exchange_one);
    return rc != 0 ? rc : s->bad;
}

/* ---- closing ---- */

void holmes_scale_set_close(struct holmes_scale_set *s)
{
    for (int i = 0; s->ends && i < s->n; i++) {
        struct holmes_scale_end *e = &s->ends[i];

        if (e->mr)
            holmes_plugin_dereg(s->plugin, e->comm, e->mr);
        if (e->comm && e->sends)
            holmes_plugin_close_send(s->plugin, e->comm);
        else if (e->comm)
            holmes_plugin_close_recv(s->plugin, e->comm);
        if (e->listen)
            holmes_plugin_close_listen(s->plugin, e->listen);
        e->mr = e->comm = e->listen = e->request = NULL;
    }
}
