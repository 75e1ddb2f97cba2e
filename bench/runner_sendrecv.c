/* A plugin's sendrecv: the plugin's own calls made as NCCL's proxy thread makes them, by the one
 * thread of the rank, which posts, tests, and yields the processor when nothing moved. What is
 * timed holds no hand-over between threads and no copy that the plugin does not make itself.
 *
 *     even rank  --tx--> odd rank     both connections are always there;
 *     even rank <--rx--  odd rank     a measure uses one, or both at once
 */
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"
#include "clock.h"
#include "comm_net.h"
#include "flow.h"
#include "log.h"
#include "pattern.h"
#include "rank.h"
#include "rendezvous.h"

enum { LOOK_EVERY = 1024 }; /* idle turns between two looks at clock and peers: tens of us */

struct holmes_runner {
    const struct holmes_rank_attr *attr;
    struct holmes_rdv *rdv;
    struct holmes_plugin *plugin;
    bool initialised;
    void *ctx;
    int dev;
    struct holmes_plugin_device device;
    struct holmes_conn *tx, *rx;
    struct holmes_region *in, *out; /* the buffers of the present size, of in_bytes and out_bytes */
    size_t in_bytes, out_bytes;
    uint64_t words[2]; /* sent and received to meet and to confirm */
    struct holmes_region *word_in, *word_out;
    unsigned meetings;
};

/* One measurement's worth of messages. */
struct traffic {
    struct holmes_flow tx, rx;
    bool pingpong;    /* each message waits for the one before it from the other side */
    float *us;        /* pingpong: where half of each round trip goes; may be NULL */
    uint64_t last_ns; /* when the last one ended */
};

static bool serves(const struct holmes_runner *r)
{
    return r->attr->rank % 2 == 0;
}

/* --- connections ------------------------------------------------------------------------------ */

static void buffers_forget(struct holmes_runner *r)
{
    if (r->in)
        holmes_conn_forget(r->tx, r->in);
    if (r->out)
        holmes_conn_forget(r->rx, r->out);
    r->in = r->out = NULL;
}

static void sendrecv_leave(struct holmes_runner *r)
{
    if (!r)
        return;
    holmes_conn_destroy(r->tx);
    holmes_conn_destroy(r->rx);
    if (r->initialised)
        holmes_plugin_fini(r->plugin, r->ctx);
    holmes_plugin_close(r->plugin);
    holmes_rdv_leave(r->rdv);
    free(r);
}

static int plugin_start(struct holmes_runner *r, char *about, size_t about_len)
{
    int ndev, rc = holmes_plugin_open(r->attr->plugin, &r->plugin, about, about_len);

    if (rc != 0)
        return rc;
    rc = holmes_plugin_init(r->plugin, holmes_comm_net_id("bench"), &r->ctx);
    if (rc != 0) {
        snprintf(about, about_len, "%s: init answered %s", holmes_plugin_path(r->plugin),
                 holmes_plugin_result_name(rc));
        return rc;
    }
    r->initialised = true;
    return holmes_plugin_find_device(r->plugin, r->attr->device, &r->dev, &r->device, &ndev, about,
                                     about_len);
}

static int conn_open(struct holmes_runner *r, bool sends, struct holmes_conn **out)
{
    int rank = r->attr->rank, partner = holmes_rank_partner(rank);
    struct holmes_conn_attr attr = {
        .plugin = r->plugin,
        .ctx = r->ctx,
        .dev = r->dev,
        .rdv = r->rdv,
        .sends = sends,
        .peer = partner,
        .what = "bench",
        .from = sends ? rank : partner,
        .to = sends ? partner : rank,
        .timeout_ms = r->attr->timeout_s * 1000,
    };

    return holmes_conn_create(&attr, out);
}

static bool conn_ready(const struct holmes_conn *c)
{
    return atomic_load(&c->state) == HOLMES_CONN_READY;
}

/* Both at once: neither side may wait for the other's second before it serves the first. */
static int pair_connect(struct holmes_runner *r)
{
    int rc = conn_open(r, true, &r->tx);

    if (rc == 0)
        rc = conn_open(r, false, &r->rx);
    while (rc == 0 && !(conn_ready(r->tx) && conn_ready(r->rx))) {
        int out = conn_ready(r->tx) ? -EAGAIN : holmes_conn_step(r->tx);
        int in = conn_ready(r->rx) ? -EAGAIN : holmes_conn_step(r->rx);

        if (out == -EAGAIN && in == -EAGAIN)
            poll(NULL, 0, 1);
        rc = out != 0 && out != -EAGAIN ? out : in != 0 && in != -EAGAIN ? in : 0;
    }
    if (rc == 0)
        rc = holmes_conn_register(r->tx, &r->words[0], sizeof r->words[0], &r->word_in);
    if (rc == 0)
        rc = holmes_conn_register(r->rx, &r->words[1], sizeof r->words[1], &r->word_out);
    return rc;
}

static int sendrecv_join(const struct holmes_rank_attr *a, const struct holmes_bench_command *cmd,
                         struct holmes_runner **out, char *about, size_t about_len)
{
    struct holmes_runner *r = calloc(1, sizeof *r);
    int rc;

    if (!r)
        return -ENOMEM;
    *out = r; /* leave takes it in any state */
    r->attr = a;
    rc = plugin_start(r, about, about_len);
    if (rc != 0)
        return rc;
    rc = holmes_rank_meet(a, cmd, &r->rdv);
    if (rc == 0)
        rc = pair_connect(r);
    if (rc != 0) {
        snprintf(about, about_len, "cannot connect the ranks: %s",
                 rc == -ECONNABORTED ? holmes_rdv_reason(r->rdv) : holmes_strerror(rc));
        return rc;
    }
    snprintf(about, about_len, "%s, net \"%s\" (ABI v%d), device %s, %d Mbit/s",
             holmes_plugin_path(r->plugin), holmes_plugin_name(r->plugin),
             holmes_plugin_abi(r->plugin), r->device.name, r->device.speed_mbps);
    return 0;
}

/* --- moving messages -------------------------------------------------------------------------- */

/* A turn in which nothing moved. */
static int idle_turn(struct holmes_runner *r, uint64_t *turns, uint64_t *deadline)
{
    int rc = 0;

    holmes_rank_idle(r->attr);
    if ((*turns)++ == 0) {
        *deadline = holmes_deadline_ms((uint64_t)r->attr->timeout_s * 1000);
    } else if (*turns % LOOK_EVERY == 0) {
        rc = holmes_rdv_poll(r->rdv);
        if (rc == 0 && holmes_deadline_passed(*deadline))
            rc = -ETIMEDOUT;
    }
    return rc;
}

static void message_note(struct traffic *t, uint64_t which)
{
    uint64_t now = holmes_now_ns();

    t->us[which] = (float)((double)(now - t->last_ns) / 2e3);
    t->last_ns = now;
}

static int traffic_step(const struct holmes_runner *r, struct traffic *t, bool *moved)
{
    uint64_t before = t->rx.done;
    int rc = holmes_flow_step(&t->rx, moved);

    if (t->pingpong) {
        t->tx.allowed = t->rx.done + serves(r);
        if (t->us && t->rx.done > before)
            message_note(t, before);
    }
    return rc != 0 ? rc : holmes_flow_step(&t->tx, moved);
}

static int traffic_run(struct holmes_runner *r, struct traffic *t)
{
    uint64_t idle = 0, deadline = 0;
    int rc = 0;

    while (rc == 0 && !(holmes_flow_finished(&t->tx) && holmes_flow_finished(&t->rx))) {
        bool moved = false;

        rc = traffic_step(r, t, &moved);
        if (rc != 0)
            break;
        if (moved) {
            atomic_fetch_add_explicit(r->attr->beat, 1, memory_order_relaxed);
            idle = 0;
        } else {
            rc = idle_turn(r, &idle, &deadline);
        }
    }
    return rc;
}

/* A word out, a word in, or both. */
static int words_exchange(struct holmes_runner *r, bool out, bool in)
{
    struct traffic t = {
        .tx = {.conn = r->tx, .region = r->word_in, .base = (char *)&r->words[0], .total = out},
        .rx = {.conn = r->rx, .region = r->word_out, .base = (char *)&r->words[1], .total = in},
    };

    t.tx.bytes = t.rx.bytes = sizeof r->words[0];
    t.tx.window = t.rx.window = 1;
    t.tx.allowed = t.rx.allowed = 1;
    return traffic_run(r, &t);
}

/* `n` messages of the present size in the measure's pattern; with a word back where a side only
 * sent, since a send may be done before its bytes have come. */
static int move(struct holmes_runner *r, const struct holmes_rank_work *w,
                enum holmes_bench_measure measure, uint64_t n, float *us)
{
    bool back_and_forth = measure == HOLMES_BENCH_LATENCY;
    bool both = back_and_forth || r->attr->both_ways;
    bool sends = both || serves(r), receives = both || !serves(r);
    struct traffic t = {
        .tx = {.conn = r->tx, .region = r->in, .base = w->in, .total = sends ? n : 0},
        .rx = {.conn = r->rx, .region = r->out, .base = w->out, .total = receives ? n : 0},
        .pingpong = back_and_forth,
        .us = us,
        .last_ns = holmes_now_ns(),
    };
    int rc;

    if (n == 0)
        return 0;
    t.tx.bytes = t.rx.bytes = t.rx.stride = w->shape.size_bytes;
    t.tx.window = t.rx.window = w->window;
    t.tx.allowed = back_and_forth ? 0 : n;
    t.rx.allowed = n;
    rc = traffic_run(r, &t);
    if (rc == 0 && !back_and_forth)
        rc = words_exchange(r, receives, sends);
    return rc;
}

/* All ranks are here, and the pair looks at its connections. */
static int meet(struct holmes_runner *r)
{
    char name[32];
    int rc = 0;

    snprintf(name, sizeof name, "run/%u", r->meetings++);
    if (r->attr->nranks > 2)
        rc = holmes_rdv_barrier(r->rdv, name, r->attr->timeout_s * 1000);
    return rc != 0 ? rc : words_exchange(r, true, true);
}

/* Registers the buffers of the present size, once. */
static int buffers_register(struct holmes_runner *r, const struct holmes_rank_work *w, char *why,
                            size_t why_len)
{
    size_t in_bytes = w->shape.in_bytes, out_bytes = w->shape.out_bytes * w->window;
    int rc;

    if (r->in && r->in_bytes == in_bytes && r->out_bytes == out_bytes)
        return 0;
    buffers_forget(r);
    if (w->shape.size_bytes > r->device.max_message) {
        snprintf(why, why_len, "device %s takes messages of %zu bytes at most: lower --max",
                 r->device.name, r->device.max_message);
        return -EMSGSIZE;
    }
    r->in_bytes = in_bytes;
    r->out_bytes = out_bytes;
    rc = holmes_conn_register(r->tx, w->in, in_bytes, &r->in);
    if (rc == 0)
        rc = holmes_conn_register(r->rx, w->out, out_bytes, &r->out);
    if (rc != 0)
        snprintf(why, why_len, "cannot register %zu bytes: %s", in_bytes + out_bytes,
                 holmes_strerror(rc));
    return rc;
}

static int sendrecv_run(struct holmes_runner *r, const struct holmes_rank_work *w,
                        const struct holmes_bench_command *cmd, struct holmes_timing *timing,
                        char *why, size_t why_len)
{
    int rc = buffers_register(r, w, why, why_len);

    if (rc != 0)
        return rc;
    rc = move(r, w, cmd->measure, cmd->warmups, NULL);
    if (rc == 0)
        rc = meet(r);
    holmes_timing_start(timing);
    if (rc == 0)
        rc = move(r, w, cmd->measure, cmd->iters, timing->message_us);
    holmes_timing_stop(timing);
    if (rc != 0)
        holmes_rank_explain(w, rc, why, why_len);
    return rc;
}

/* Back and forth, then a full window, which odd ranks receive, or all. */
static int sendrecv_verify(struct holmes_runner *r, const struct holmes_rank_work *w,
                           const struct holmes_bench_command *cmd, uint64_t *wrong, char *why,
                           size_t why_len)
{
    int rc = buffers_register(r, w, why, why_len);

    (void)cmd;
    if (rc != 0)
        return rc;
    rc = move(r, w, HOLMES_BENCH_LATENCY, 1, NULL);
    if (rc == 0) {
        *wrong = holmes_check_messages(w, 1);
        holmes_pattern_poison(w->out, w->shape.out_bytes * w->window);
        rc = move(r, w, HOLMES_BENCH_BANDWIDTH, w->window, NULL);
    }
    if (rc == 0 && (r->attr->both_ways || !serves(r)))
        *wrong += holmes_check_messages(w, w->window);
    if (rc != 0)
        holmes_rank_explain(w, rc, why, why_len);
    return rc;
}

const struct holmes_runner_ops holmes_runner_sendrecv = {
    .join = sendrecv_join,
    .verify = sendrecv_verify,
    .run = sendrecv_run,
    .leave = sendrecv_leave,
};
