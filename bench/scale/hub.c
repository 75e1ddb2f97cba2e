/* `holmes-bench connections`: this process holds one end of every connection, peer processes hold
 * the others. Each turn makes its connections, measures what they cost at rest and when polled,
 * sends a message over each, closes them, and looks whether everything is as it was. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "clock.h"
#include "peer.h"
#include "scale.h"
#include "set.h"

#define SPARE_FDS 64 /* that streams need for a moment while they are raised */

struct hub {
    const struct holmes_scale_options *o;
    struct holmes_plugin *plugin;
    void *ctx;
    struct holmes_scale_set set;
    struct holmes_scale_peer peers[HOLMES_SCALE_PEERS_MAX];
    int npeers;
    char *why;
    size_t why_len;
};

/* ---- words with the peers ---- */

static int lost_peer(struct hub *h, int i)
{
    snprintf(h->why, h->why_len, "peer process %d died", (int)h->peers[i].pid);
    return -EPIPE;
}

static int tell_all(struct hub *h, enum holmes_scale_order what)
{
    for (int i = 0; i < h->npeers; i++) {
        if (holmes_scale_peer_tell(&h->peers[i], what, 0) != 0)
            return lost_peer(h, i);
    }
    return 0;
}

/* The first failure; all are waited for. *sum: what they hold together; NULL is fine. */
static int hear_all(struct hub *h, struct holmes_scale_usage *sum)
{
    int first = 0;

    if (sum)
        memset(sum, 0, sizeof *sum);
    for (int i = 0; i < h->npeers; i++) {
        struct holmes_scale_usage one = {0};
        char why[512];
        int rc = holmes_scale_peer_answer(&h->peers[i], &one, why, sizeof why);

        if (rc != 0 && first == 0) {
            first = rc;
            snprintf(h->why, h->why_len, "%s", why);
        }
        if (!sum)
            continue;
        sum->fds += one.fds;
        sum->threads += one.threads;
        sum->rss += one.rss;
        sum->pss += one.pss;
        sum->cpu_ns += one.cpu_ns;
        sum->switches += one.switches;
    }
    return first;
}

static int order_all(struct hub *h, enum holmes_scale_order what, struct holmes_scale_usage *sum)
{
    int rc = tell_all(h, what);

    return rc != 0 ? rc : hear_all(h, sum);
}

static int own(struct hub *h, int rc)
{
    if (rc != 0)
        snprintf(h->why, h->why_len, "%s", h->set.why);
    return rc;
}

/* ---- a turn ---- */

/* Connection `i` goes to peer i % npeers; of each peer's every other one comes from there. */
static bool hub_sends(const struct hub *h, int i)
{
    return i / h->npeers % 2 == 0;
}

static int make(struct hub *h, int n)
{
    int rc;

    holmes_scale_set_destroy(&h->set);
    rc = holmes_scale_set_create(h->plugin, h->ctx, n, &h->set);
    if (rc != 0) {
        snprintf(h->why, h->why_len, "no memory for %d connections", n);
        return rc;
    }
    h->set.timeout_ns = h->o->timeout_s * 1000000000ll;
    for (int i = 0; i < n; i++) {
        h->set.ends[i].number = (uint32_t)i;
        h->set.ends[i].sends = hub_sends(h, i);
    }
    for (int p = 0; p < h->npeers; p++) {
        struct holmes_scale_peer *peer = &h->peers[p];
        uint32_t share = (uint32_t)((n - p + h->npeers - 1) / h->npeers);

        rc = holmes_scale_peer_tell(peer, HOLMES_SCALE_MAKE, share);
        for (int i = p; rc == 0 && i < n; i += h->npeers) {
            struct holmes_scale_role role = {(uint32_t)i, !hub_sends(h, i)};

            rc = holmes_scale_write(peer->fd, &role, sizeof role);
        }
        if (rc != 0)
            return lost_peer(h, p);
    }
    return hear_all(h, NULL);
}

static int swap_handles(struct hub *h)
{
    int rc = own(h, holmes_scale_set_listen(&h->set));

    if (rc == 0)
        rc = tell_all(h, HOLMES_SCALE_HANDLES);
    for (int p = 0; rc == 0 && p < h->npeers; p++) {
        int fd = h->peers[p].fd, sent = 0;

        for (int i = p; sent == 0 && i < h->set.n; i += h->npeers) {
            struct holmes_scale_end *e = &h->set.ends[i];

            sent = e->sends ? 0 : holmes_scale_write(fd, e->handle, sizeof e->handle);
        }
        for (int i = p; sent == 0 && i < h->set.n; i += h->npeers) {
            struct holmes_scale_end *e = &h->set.ends[i];

            sent = e->sends ? holmes_scale_read(fd, e->handle, sizeof e->handle) : 0;
        }
        if (sent != 0)
            rc = lost_peer(h, p);
    }
    return rc != 0 ? rc : hear_all(h, NULL);
}

static int raise_all(struct hub *h, struct holmes_scale_turn *t)
{
    int64_t start = (int64_t)holmes_now_ns(), *took;
    int rc = tell_all(h, HOLMES_SCALE_RAISE), far;

    if (rc != 0)
        return rc;
    rc = own(h, holmes_scale_set_raise(&h->set));
    t->raise.total_ns = (int64_t)holmes_now_ns() - start;
    holmes_scale_usage_now(&t->near_up);
    if (rc != 0)
        return rc;
    far = hear_all(h, &t->far_up);
    took = malloc((size_t)h->set.n * sizeof *took);
    if (!took)
        return -ENOMEM;
    for (int i = 0; i < h->set.n; i++)
        took[i] = h->set.ends[i].took_ns;
    t->raise = holmes_scale_times_of(took, h->set.n, t->raise.total_ns);
    free(took);
    return far;
}

static int rest_and_poll(struct hub *h, struct holmes_scale_turn *t)
{
    struct timespec pause = {.tv_sec = h->o->idle_s};
    double seconds = h->o->idle_s;
    struct holmes_scale_usage before, after;
    int rc;

    if (h->o->idle_s == 0)
        return 0;
    holmes_scale_usage_now(&before);
    before.cpu_ns = holmes_scale_cpu_ns(); /* without what the look itself took */
    nanosleep(&pause, NULL);
    after.cpu_ns = holmes_scale_cpu_ns();
    t->idle_cpu = (double)(after.cpu_ns - before.cpu_ns) * 1e-9 / seconds;
    holmes_scale_usage_now(&after);
    t->idle_switches = after.switches - before.switches;

    before.cpu_ns = holmes_scale_cpu_ns();
    rc = own(h, holmes_scale_set_poll(&h->set, h->o->idle_s * 1000000000ll, &t->looks));
    t->looks_cpu_ns = holmes_scale_cpu_ns() - before.cpu_ns;
    t->poll_cpu = (double)t->looks_cpu_ns * 1e-9 / seconds;
    return rc;
}

static int exchange(struct hub *h, struct holmes_scale_turn *t)
{
    int64_t start = (int64_t)holmes_now_ns();
    int rc = tell_all(h, HOLMES_SCALE_EXCHANGE);

    if (rc == 0)
        rc = own(h, holmes_scale_set_exchange(&h->set));
    t->exchange_ns = (int64_t)holmes_now_ns() - start;
    holmes_scale_usage_now(&t->near_used);
    return rc != 0 ? rc : hear_all(h, &t->far_used);
}

static int close_all(struct hub *h, struct holmes_scale_turn *t)
{
    int64_t start = (int64_t)holmes_now_ns();

    holmes_scale_set_close(&h->set);
    t->close_ns = (int64_t)holmes_now_ns() - start;
    return order_all(h, HOLMES_SCALE_CLOSE, &t->far_after);
}

static int turn(struct hub *h, int n, struct holmes_scale_turn *t)
{
    int rc = make(h, n);

    t->connections = n;
    if (rc == 0)
        rc = order_all(h, HOLMES_SCALE_LOOK, &t->far_before);
    holmes_scale_usage_now(&t->near_before);
    if (rc == 0)
        rc = swap_handles(h);
    if (rc == 0)
        rc = raise_all(h, t);
    if (rc == 0)
        rc = own(h, holmes_scale_set_post(&h->set));
    if (rc == 0)
        rc = rest_and_poll(h, t);
    if (rc == 0)
        rc = exchange(h, t);
    if (rc == 0)
        rc = close_all(h, t);
    holmes_scale_usage_now(&t->near_after);
    return rc;
}

/* ---- all turns ---- */

/* What a connection takes is known from the first few. */
static int enough_fds(struct hub *h, const struct holmes_scale_turn *few, int n, int64_t allowed)
{
    int64_t each =
        (few->near_up.fds - few->near_before.fds + few->connections - 1) / few->connections;
    int64_t need = few->near_before.fds + each * n + SPARE_FDS;

    if (need <= allowed)
        return 0;
    snprintf(h->why, h->why_len,
             "%d connections need about %lld descriptors (%lld each), and this process may have "
             "%lld: raise the hard limit (ulimit -Hn), or measure fewer connections",
             n, (long long)need, (long long)each, (long long)allowed);
    return -EMFILE;
}

static int load(struct hub *h, struct holmes_scale_results *out)
{
    char why[256] = "";
    int rc = order_all(h, HOLMES_SCALE_LOAD, NULL);

    if (rc == 0) {
        rc = holmes_plugin_open(h->o->plugin, &h->plugin, why, sizeof why);
        if (rc == 0)
            rc = holmes_plugin_init(h->plugin, 1, &h->ctx);
        if (rc != 0)
            snprintf(h->why, h->why_len, "cannot load plugin %s: %s", h->o->plugin, why);
    }
    if (rc == 0)
        snprintf(out->about, sizeof out->about, "%.180s, net \"%.40s\" (ABI v%d)",
                 holmes_plugin_path(h->plugin), holmes_plugin_name(h->plugin),
                 holmes_plugin_abi(h->plugin));
    return rc;
}

static int all_turns(struct hub *h, struct holmes_scale_results *out)
{
    struct holmes_scale_turn few = {0};
    struct holmes_scale_options quick = *h->o;
    const struct holmes_scale_options *o = h->o;
    int rc = load(h, out);

    /* What is made for the first connection and stays is not theirs. */
    quick.idle_s = 0;
    h->o = &quick;
    if (rc == 0)
        rc = turn(h, 2 * h->npeers, &few);
    h->o = o;
    out->at_home = few.near_after;
    for (int i = 0; rc == 0 && i < o->ncounts; i++) {
        rc = enough_fds(h, &few, o->counts[i], out->nofile);
        if (rc == 0)
            rc = turn(h, o->counts[i], &out->turns[i]);
        out->nturns += rc == 0;
    }
    return rc;
}

int holmes_scale_hub_run(const struct holmes_scale_options *o, struct holmes_scale_results *out,
                         char *why, size_t why_len)
{
    struct hub *h = calloc(1, sizeof *h);
    int rc = 0;

    if (!h)
        return -ENOMEM;
    h->o = o;
    h->why = why;
    h->why_len = why_len;
    out->nofile = holmes_scale_nofile_raise();
    while (rc == 0 && h->npeers < o->npeers) {
        rc = holmes_scale_peer_start(o, &h->peers[h->npeers]);
        if (rc == 0)
            h->npeers++;
        else
            snprintf(why, why_len, "cannot start a peer process: %s", strerror(-rc));
    }
    holmes_scale_usage_now(&out->alone);
    if (rc == 0)
        rc = all_turns(h, out);
    holmes_scale_set_destroy(&h->set);
    if (h->plugin) {
        if (h->ctx)
            holmes_plugin_fini(h->plugin, h->ctx);
        holmes_plugin_close(h->plugin);
    }
    for (int i = 0; i < h->npeers; i++)
        holmes_scale_peer_stop(&h->peers[i]);
    free(h);
    return rc;
}
