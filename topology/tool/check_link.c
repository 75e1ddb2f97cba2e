/* Measures over two connections. Receives of the full size are always out, WINDOW of them, and are
 * taken in order; an empty message ends a series, and answers one of it. */
#include "tool/check_link.h"

#include <errno.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>

#include "clock.h"

#define WINDOW       8
#define MESSAGE_MAX  (4u << 20)
#define MESSAGE_MIN  (64u << 10)
#define MESSAGE_NS   20e6 /* that a message should take; WINDOW times that fills any round trip */
#define PINGS_MAX    200
#define PING_MESSAGE 8 /* bytes */

struct holmes_check_link {
    struct holmes_transport *t;
    int nic;
    struct holmes_listen *listen;
    struct holmes_conn *send, *recv;
    struct holmes_mr *send_mr, *recv_mr;
    uint8_t *out, *in; /* MESSAGE_MAX each; all receives land in `in` */
    struct holmes_request *posted[WINDOW];
    unsigned next; /* the receive that is due is posted[next % WINDOW] */
};

int holmes_check_link_create(struct holmes_transport *t, int nic, void *handle,
                             struct holmes_check_link **out)
{
    struct holmes_check_link *l = calloc(1, sizeof *l);
    int rc = -ENOMEM;

    if (!l)
        return rc;
    l->t = t;
    l->nic = nic;
    l->out = calloc(1, MESSAGE_MAX);
    l->in = calloc(1, MESSAGE_MAX);
    if (l->out && l->in)
        rc = holmes_listen(t, l, nic, handle, &l->listen);
    if (rc != 0) {
        holmes_check_link_destroy(l);
        return rc;
    }
    *out = l;
    return 0;
}

void holmes_check_link_destroy(struct holmes_check_link *l)
{
    if (!l)
        return;
    if (l->send)
        holmes_mr_dereg(l->send, l->send_mr);
    if (l->recv)
        holmes_mr_dereg(l->recv, l->recv_mr);
    holmes_conn_close(l->send);
    holmes_conn_close(l->recv);
    holmes_listen_close(l->listen);
    holmes_transport_reap(l->t, l);
    free(l->out);
    free(l->in);
    free(l);
}

/* Nothing to do: others may have the processor. */
static int idle(uint64_t deadline_ns)
{
    if (holmes_deadline_passed(deadline_ns))
        return -ETIMEDOUT;
    sched_yield();
    return -EAGAIN;
}

static int post(struct holmes_check_link *l, unsigned i, uint64_t deadline_ns)
{
    void *buf = l->in;
    size_t len = MESSAGE_MAX;
    int tag = 0, rc;

    do
        rc = holmes_irecv(l->recv, 1, &buf, &len, &tag, &l->recv_mr, &l->posted[i % WINDOW]);
    while (rc == -EAGAIN && (rc = idle(deadline_ns)) == -EAGAIN);
    return rc;
}

int holmes_check_link_connect(struct holmes_check_link *l, const void *handle, uint64_t deadline_ns)
{
    uint8_t state[HOLMES_HANDLE_SIZE];
    int rc = 0;

    memcpy(state, handle, sizeof state);
    while (rc == 0 && (!l->send || !l->recv)) {
        int sent = l->send ? 0 : holmes_connect(l->t, l, l->nic, state, &l->send);
        int got = l->recv ? 0 : holmes_accept(l->listen, &l->recv);

        if (sent != 0 && sent != -EAGAIN)
            rc = sent;
        else if (got != 0 && got != -EAGAIN)
            rc = got;
        else if (sent != 0 || got != 0)
            rc = idle(deadline_ns) == -ETIMEDOUT ? -ETIMEDOUT : 0;
    }
    if (rc == 0)
        rc = holmes_mr_reg(l->send, l->out, MESSAGE_MAX, &l->send_mr);
    if (rc == 0)
        rc = holmes_mr_reg(l->recv, l->in, MESSAGE_MAX, &l->recv_mr);
    for (unsigned i = 0; rc == 0 && i < WINDOW; i++)
        rc = post(l, i, deadline_ns);
    return rc;
}

void holmes_check_link_stats(const struct holmes_check_link *l, struct holmes_conn_stats *out)
{
    holmes_conn_get_stats(l->send, out);
}

/* --- single messages -------------------------------------------------------------------------- */

static int start_send(struct holmes_check_link *l, size_t len, uint64_t deadline_ns,
                      struct holmes_request **out)
{
    int rc;

    do
        rc = holmes_isend(l->send, l->out, len, 0, l->send_mr, out);
    while (rc == -EAGAIN && (rc = idle(deadline_ns)) == -EAGAIN);
    return rc;
}

static int wait_for(struct holmes_request *r, uint64_t deadline_ns, size_t *len)
{
    bool done = false;
    int rc;

    do
        rc = holmes_test(r, &done, len);
    while (rc == 0 && !done && (rc = idle(deadline_ns)) == -EAGAIN);
    return rc;
}

/* The message that is due, and a new receive in its place. */
static int take(struct holmes_check_link *l, uint64_t deadline_ns, size_t *len)
{
    int rc = wait_for(l->posted[l->next % WINDOW], deadline_ns, len);

    return rc == 0 ? post(l, l->next++, deadline_ns) : rc;
}

static int say_end(struct holmes_check_link *l, uint64_t deadline_ns)
{
    struct holmes_request *r;
    int rc = start_send(l, 0, deadline_ns, &r);

    return rc == 0 ? wait_for(r, deadline_ns, NULL) : rc;
}

/* --- round trip ------------------------------------------------------------------------------- */

static int by_value(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

    return x < y ? -1 : x > y;
}

/* The answer is waited for before the end of the send: on tcp that comes later. */
static int ping_once(struct holmes_check_link *l, uint64_t number, uint64_t deadline_ns,
                     uint64_t *took_ns)
{
    uint64_t started = holmes_now_ns();
    struct holmes_request *r;
    size_t len = 0;
    int rc;

    memcpy(l->out, &number, PING_MESSAGE);
    rc = start_send(l, PING_MESSAGE, deadline_ns, &r);
    if (rc == 0)
        rc = take(l, deadline_ns, &len);
    *took_ns = holmes_now_ns() - started;
    if (rc == 0 && (len != PING_MESSAGE || memcmp(l->in, &number, PING_MESSAGE) != 0))
        rc = -EBADMSG;
    return rc == 0 ? wait_for(r, deadline_ns, NULL) : rc;
}

int holmes_check_link_ping(struct holmes_check_link *l, uint64_t until_ns, uint64_t deadline_ns,
                           uint64_t *rtt_ns)
{
    uint64_t took[PINGS_MAX];
    unsigned n = 0;
    int rc;

    do
        rc = ping_once(l, UINT64_C(0x686f6c6d65730000) + n, deadline_ns, &took[n]);
    while (rc == 0 && ++n < PINGS_MAX && !holmes_deadline_passed(until_ns));
    if (rc == 0)
        rc = say_end(l, deadline_ns);
    if (rc != 0)
        return rc;
    qsort(took, n, sizeof took[0], by_value);
    *rtt_ns = took[n / 2];
    return 0;
}

int holmes_check_link_pong(struct holmes_check_link *l, uint64_t deadline_ns)
{
    for (;;) {
        struct holmes_request *r;
        size_t len = 0;
        int rc = take(l, deadline_ns, &len);

        if (rc != 0 || len == 0)
            return rc;
        if (len != PING_MESSAGE)
            return -EBADMSG;
        memcpy(l->out, l->in, PING_MESSAGE);
        rc = start_send(l, len, deadline_ns, &r);
        if (rc == 0)
            rc = wait_for(r, deadline_ns, NULL);
        if (rc != 0)
            return rc;
    }
}

/* --- bandwidth -------------------------------------------------------------------------------- */

/* The peer answers each message with an empty one: that a send is done says that its buffer is
 * free, while megabytes may still wait in kernels. */
struct stream {
    struct holmes_request *requests[WINDOW];
    size_t sizes[WINDOW];
    unsigned sent, gone, done;           /* by us, from our hands, and answered */
    uint64_t bytes, started_ns, last_ns; /* received by the peer, and when the last was */
    uint64_t warm_bytes, warm_ns;        /* the same after the first quarter; 0: not yet */
};

static size_t message_size(const struct stream *s)
{
    double took = (double)(s->last_ns - s->started_ns);
    size_t fits = s->done > 0 ? (size_t)((double)s->bytes / took * MESSAGE_NS) : 0;

    if (fits > MESSAGE_MAX)
        return MESSAGE_MAX;
    return fits < MESSAGE_MIN ? MESSAGE_MIN : fits / MESSAGE_MIN * MESSAGE_MIN;
}

/* Starts sends while there is room and time; *moved tells of one. */
static int stream_start(struct holmes_check_link *l, struct stream *s, uint64_t until_ns,
                        bool *moved)
{
    while (s->sent < s->done + WINDOW && !holmes_deadline_passed(until_ns)) {
        size_t size = message_size(s);
        int rc = holmes_isend(l->send, l->out, size, 0, l->send_mr, &s->requests[s->sent % WINDOW]);

        if (rc != 0)
            return rc == -EAGAIN ? 0 : rc;
        s->sizes[s->sent++ % WINDOW] = size;
        *moved = true;
    }
    return 0;
}

/* Answers that are here, of messages that have left our hands. */
static int stream_answer(struct holmes_check_link *l, struct stream *s, uint64_t deadline_ns,
                         bool *answered)
{
    struct holmes_request *r = l->posted[l->next % WINDOW];
    size_t len = 0;
    int rc = s->done < s->gone ? holmes_test(r, answered, &len) : 0;

    if (rc != 0 || !*answered)
        return rc;
    return len == 0 ? post(l, l->next++, deadline_ns) : -EBADMSG;
}

static int stream_finish(struct holmes_check_link *l, struct stream *s, uint64_t warm_ns,
                         uint64_t deadline_ns, bool *moved)
{
    bool gone = s->gone < s->sent, answered = false;
    int rc = 0;

    while (rc == 0 && gone) {
        rc = holmes_test(s->requests[s->gone % WINDOW], &gone, NULL);
        s->gone += rc == 0 && gone;
        gone = gone && s->gone < s->sent;
    }
    if (rc == 0)
        rc = stream_answer(l, s, deadline_ns, &answered);
    if (rc != 0 || !answered)
        return rc;
    s->last_ns = holmes_now_ns();
    s->bytes += s->sizes[s->done++ % WINDOW];
    if (s->warm_ns == 0 && s->last_ns >= warm_ns) {
        s->warm_ns = s->last_ns;
        s->warm_bytes = s->bytes;
    }
    *moved = true;
    return 0;
}

static double stream_gbps(const struct stream *s)
{
    /* Completions that came in a bunch leave no time between the first quarter and the last. */
    bool warm = s->warm_ns && s->last_ns - s->warm_ns > (s->last_ns - s->started_ns) / 2;
    uint64_t bytes = warm ? s->bytes - s->warm_bytes : s->bytes;
    uint64_t took = s->last_ns - (warm ? s->warm_ns : s->started_ns);

    return took ? (double)bytes * 8 / (double)took : 0;
}

int holmes_check_link_send(struct holmes_check_link *l, uint64_t run_ns, uint64_t deadline_ns,
                           double *gbps)
{
    struct stream s = {.started_ns = holmes_now_ns()};
    uint64_t until_ns = s.started_ns + run_ns;
    int rc = 0;

    while (rc == 0 && (s.done < s.sent || !holmes_deadline_passed(until_ns))) {
        bool moved = false;

        rc = stream_start(l, &s, until_ns, &moved);
        if (rc == 0)
            rc = stream_finish(l, &s, s.started_ns + run_ns / 4, deadline_ns, &moved);
        if (rc == 0 && !moved)
            rc = idle(deadline_ns) == -ETIMEDOUT ? -ETIMEDOUT : 0;
    }
    if (rc == 0)
        rc = say_end(l, deadline_ns);
    if (rc == 0)
        *gbps = stream_gbps(&s);
    return rc;
}

int holmes_check_link_recv(struct holmes_check_link *l, uint64_t deadline_ns)
{
    struct holmes_request *answers[WINDOW];
    unsigned sent = 0, done = 0;
    size_t len = 0;
    int rc = take(l, deadline_ns, &len);

    while (rc == 0 && len > 0) {
        if (sent - done == WINDOW)
            rc = wait_for(answers[done++ % WINDOW], deadline_ns, NULL);
        if (rc == 0)
            rc = start_send(l, 0, deadline_ns, &answers[sent % WINDOW]);
        if (rc == 0) {
            sent++;
            rc = take(l, deadline_ns, &len);
        }
    }
    while (rc == 0 && done < sent)
        rc = wait_for(answers[done++ % WINDOW], deadline_ns, NULL);
    return rc;
}
