/* The conversation with the agents. Everybody of a round does the same step at the same time, so
 * that what is measured at once is known:
 *
 *     check                          both nodes of every pair of the round
 *     listen            ->           handle
 *     connect (handle)  ->           up: wire and reason
 *     ping | pong       ->           round trip | done
 *     send | recv       ->           rate | done
 *     recv | send       ->           done | rate
 *
 * An agent answers every command within the command's limit. One that does not is not waited for a
 * second time. */
#include "tool/check.h"

#include <errno.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "clock.h"
#include "progress.h"
#include "tool/fanout.h"

#define HELLO_MS    20000 /* at most a third of the time limit */
#define LISTEN_MS   2000
#define CONNECT_MS  3000 /* an RDMA probe may take one second, and is tried twice */
#define PING_MS     800
#define GRACE_MS    2000 /* for an answer beyond the command's limit */
#define RUN_MS_MIN  40
#define RUN_MS_MAX  250
#define DRAIN_MS    1500
#define BESIDES_MS  250 /* of a round: what is assumed of the first */
#define CHATTER_MAX 200 /* lines of a login shell before the agent's first */

struct peer {
    bool waiting;
    enum holmes_check_kind expected;
    int ticket; /* of the pair that it works on */
    bool failed;
    struct holmes_check_msg answer;
    int chatter;
    char first_line[160];
    char last_failure[300]; /* of a pair */
};

/* A pair that is being measured. */
struct active {
    struct holmes_check_result *result;
    struct holmes_check_result now; /* becomes the result */
    int ticket;
    bool broken;
};

struct holmes_check_session {
    struct holmes_check_run *run;
    struct holmes_fanout *fanout;
    struct peer *peers;
    struct active *active;
    int nactive, nwaiting, ticket, run_ms;
    int64_t besides_ms; /* that a round takes beside its two runs, as seen lately */
    uint64_t started_ns, end_ns;
    bool hello, closing; /* phases */
    bool interrupted;
    struct holmes_progress progress;
    bool shows_progress;
};

int holmes_check_run_create(const char *const *hosts, int n, const struct holmes_schedule *s,
                            struct holmes_check_run **out)
{
    struct holmes_check_run *run = calloc(1, sizeof *run);

    if (!run)
        return -ENOMEM;
    run->nodes = calloc((size_t)n + 1, sizeof *run->nodes);
    run->pairs = calloc((size_t)s->npairs + 1, sizeof *run->pairs);
    if (!run->nodes || !run->pairs) {
        holmes_check_run_destroy(run);
        return -ENOMEM;
    }
    run->nnodes = n;
    run->npairs = s->npairs;
    run->nrounds = s->nrounds;
    for (int i = 0; i < n; i++)
        run->nodes[i].host = hosts[i];
    for (int r = 0; r < s->nrounds; r++) {
        for (int i = s->first[r]; i < s->first[r + 1]; i++) {
            int a = s->pairs[i].a, b = s->pairs[i].b;

            run->pairs[i] =
                (struct holmes_check_result){.a = a < b ? a : b, .b = a < b ? b : a, .round = r};
        }
    }
    *out = run;
    return 0;
}

void holmes_check_run_destroy(struct holmes_check_run *run)
{
    if (!run)
        return;
    for (int i = 0; run->nodes && i < run->nnodes; i++)
        free(run->nodes[i].nics);
    free(run->nodes);
    free(run->pairs);
    free(run);
}

/* --- what agents say -------------------------------------------------------------------------- */

static void stop_waiting(struct holmes_check_session *s, int node, bool failed)
{
    struct peer *p = &s->peers[node];

    if (!p->waiting)
        return;
    p->waiting = false;
    p->failed = failed;
    s->nwaiting--;
}

static void node_fail(struct holmes_check_session *s, int node, enum holmes_check_node_state state,
                      const char *fmt, ...) __attribute__((format(printf, 4, 5)));
static void node_fail(struct holmes_check_session *s, int node, enum holmes_check_node_state state,
                      const char *fmt, ...)
{
    struct holmes_check_node *n = &s->run->nodes[node];
    va_list ap;

    if (n->state > HOLMES_CHECK_THERE)
        return;
    n->state = state;
    va_start(ap, fmt);
    vsnprintf(n->why, sizeof n->why, fmt, ap);
    va_end(ap);
    holmes_check_clean(n->why);
    stop_waiting(s, node, true);
    snprintf(s->peers[node].answer.reason, sizeof s->peers[node].answer.reason, "%.200s", n->why);
    holmes_fanout_stop(s->fanout, node);
}

static void take_hello(struct holmes_check_session *s, int node, const struct holmes_check_msg *m)
{
    struct holmes_check_node *n = &s->run->nodes[node];

    if (m->kind == HOLMES_CHECK_FAILED) {
        node_fail(s, node, HOLMES_CHECK_REFUSED, "%s", m->reason);
    } else if (m->kind != HOLMES_CHECK_HELLO) {
        node_fail(s, node, HOLMES_CHECK_GARBLED, "its agent did not begin with hello");
    } else if (strcmp(m->version, HOLMES_VERSION) != 0) {
        node_fail(s, node, HOLMES_CHECK_OTHER, "it has holmes-topo %s, and this is %s", m->version,
                  HOLMES_VERSION);
    } else {
        n->nics = calloc((size_t)m->nnics + 1, sizeof *n->nics);
        if (!n->nics) {
            node_fail(s, node, HOLMES_CHECK_REFUSED, "out of memory here");
            return;
        }
        memcpy(n->nics, m->nics, (size_t)m->nnics * sizeof *n->nics);
        n->nnics = m->nnics;
        n->state = HOLMES_CHECK_THERE;
        stop_waiting(s, node, false);
    }
}

/* What a login shell says before the agent does is no concern of ours, within reason. */
static void take_chatter(struct holmes_check_session *s, int node, const char *line)
{
    struct peer *p = &s->peers[node];

    if (p->chatter == 0)
        snprintf(p->first_line, sizeof p->first_line, "%s", line);
    holmes_check_clean(p->first_line);
    if (++p->chatter > CHATTER_MAX)
        node_fail(s, node, HOLMES_CHECK_GARBLED, "it talks without an agent's hello; first: %s",
                  p->first_line);
}

static void on_line(void *ctx, struct holmes_fanout *f, int node, const char *line, size_t len)
{
    struct holmes_check_session *s = ctx;
    struct peer *p = &s->peers[node];
    struct holmes_check_msg m;
    char why[256];

    (void)f;
    if (s->closing)
        return;
    if (holmes_check_msg_parse(line, len, &m, why, sizeof why) != 0) {
        if (s->run->nodes[node].state == HOLMES_CHECK_STARTING)
            take_chatter(s, node, line);
        else
            node_fail(s, node, HOLMES_CHECK_GARBLED, "its agent answered nonsense: %s", why);
        return;
    }
    if (s->run->nodes[node].state == HOLMES_CHECK_STARTING) {
        take_hello(s, node, &m);
        return;
    }
    if (!p->waiting || m.pair != p->ticket ||
        (m.kind != p->expected && m.kind != HOLMES_CHECK_FAILED)) {
        node_fail(s, node, HOLMES_CHECK_GARBLED, "its agent answered what it was not asked");
        return;
    }
    p->answer = m;
    stop_waiting(s, node, m.kind == HOLMES_CHECK_FAILED);
}

static void on_end(void *ctx, struct holmes_fanout *f, int node)
{
    struct holmes_check_session *s = ctx;
    const struct holmes_fanout_result *r = holmes_fanout_result(f, node);
    enum holmes_check_node_state state = HOLMES_CHECK_LOST;
    char how[480];

    if (s->closing || r->state == HOLMES_FANOUT_STOPPED)
        return;
    holmes_fanout_explain(f, node, how, sizeof how);
    if (s->run->nodes[node].state == HOLMES_CHECK_STARTING)
        state = r->state == HOLMES_FANOUT_EXITED && (r->code == 127 || r->code == 126)
                    ? HOLMES_CHECK_NO_PROGRAM
                : r->state == HOLMES_FANOUT_FLOODED ? HOLMES_CHECK_GARBLED
                                                    : HOLMES_CHECK_UNREACHED;
    node_fail(s, node, state, "%s", how);
}

/* --- waiting ---------------------------------------------------------------------------------- */

static int wait_all(struct holmes_check_session *s, uint64_t limit_ms)
{
    uint64_t deadline = holmes_deadline_ms(limit_ms), started = holmes_now_ns();

    while (s->nwaiting > 0 && !holmes_deadline_passed(deadline)) {
        int there = s->run->nnodes - s->nwaiting;

        if (holmes_fanout_step(s->fanout, 100) == -EINTR) {
            s->interrupted = true;
            s->run->signal = holmes_fanout_signal(s->fanout);
            return -EINTR;
        }
        if (s->shows_progress && s->hello)
            holmes_progress_update(&s->progress, 0, "%d of %d agents are there", there,
                                   s->run->nnodes);
    }
    for (int i = 0; s->nwaiting > 0 && i < s->run->nnodes; i++)
        if (s->peers[i].waiting)
            node_fail(s, i, HOLMES_CHECK_SILENT, "no answer within %.1f s",
                      (double)(holmes_now_ns() - started) / 1e9);
    return 0;
}

static void ask(struct holmes_check_session *s, int node, const struct holmes_check_command *c,
                enum holmes_check_kind expected)
{
    struct peer *p = &s->peers[node];
    char line[512];
    int rc;

    p->waiting = true;
    p->failed = false;
    p->expected = expected;
    p->ticket = c->pair;
    p->answer.reason[0] = '\0';
    s->nwaiting++;
    if (s->run->nodes[node].state != HOLMES_CHECK_THERE) {
        stop_waiting(s, node, true);
        return;
    }
    holmes_check_command_write(c, line, sizeof line);
    rc = holmes_fanout_send(s->fanout, node, line);
    if (rc != 0)
        node_fail(s, node, HOLMES_CHECK_LOST, "its agent no longer listens: %s", strerror(-rc));
}

/* --- one round -------------------------------------------------------------------------------- */

static uint64_t left_ms(const struct holmes_check_session *s)
{
    uint64_t now = holmes_now_ns();

    return now < s->end_ns ? (s->end_ns - now) / 1000000 : 0;
}

/* The reason of a node that is gone says more than that of one which waited for it. */
static void pair_break(struct holmes_check_session *s, struct active *a)
{
    int node = a->now.a;

    if (!s->peers[node].failed || s->run->nodes[a->now.b].state != HOLMES_CHECK_THERE)
        node = a->now.b;
    snprintf(a->now.why, sizeof a->now.why, "%.60s: %s", s->run->nodes[node].host,
             s->peers[node].answer.reason);
    holmes_check_clean(a->now.why);
    a->broken = true;
    a->now.state = HOLMES_CHECK_BROKEN;
}

struct step {
    enum holmes_check_verb verbs[2];
    enum holmes_check_kind kinds[2];
    int limit_ms, run_ms;
};

/* One step of all pairs that are still whole; what came out is in the peers' answers. */
static int do_step(struct holmes_check_session *s, const struct step *step)
{
    int rc;

    for (int i = 0; i < s->nactive; i++) {
        struct active *a = &s->active[i];
        const int nodes[2] = {a->now.a, a->now.b};
        struct holmes_check_command c[2];

        if (a->broken)
            continue;
        for (int side = 0; side < 2; side++) {
            c[side] = (struct holmes_check_command){.verb = step->verbs[side],
                                                    .pair = a->ticket,
                                                    .nic = a->now.round,
                                                    .run_ms = step->run_ms,
                                                    .limit_ms = step->limit_ms};
            /* Before either is asked: an answer overwrites the handle. */
            memcpy(c[side].handle, s->peers[nodes[1 - side]].answer.handle, sizeof c[side].handle);
        }
        for (int side = 0; side < 2; side++)
            ask(s, nodes[side], &c[side], step->kinds[side]);
    }
    rc = wait_all(s, (uint64_t)step->limit_ms + GRACE_MS);
    for (int i = 0; rc == 0 && i < s->nactive; i++) {
        struct active *a = &s->active[i];

        if (!a->broken && (s->peers[a->now.a].failed || s->peers[a->now.b].failed))
            pair_break(s, a);
    }
    return rc;
}

static void keep_up(struct holmes_check_session *s)
{
    for (int i = 0; i < s->nactive; i++) {
        struct holmes_check_result *now = &s->active[i].now;
        const struct holmes_check_msg *m = &s->peers[now->a].answer;
        const struct holmes_check_msg *back = &s->peers[now->b].answer;

        if (s->active[i].broken)
            continue;
        if (strcmp(m->wire, "verbs") == 0 && strcmp(back->wire, "verbs") != 0)
            m = back; /* the lesser one counts */
        snprintf(now->wire, sizeof now->wire, "%s", m->wire);
        snprintf(now->reason, sizeof now->reason, "%s", m->reason);
        snprintf(now->local, sizeof now->local, "%s", m->local);
        snprintf(now->peer, sizeof now->peer, "%s", m->peer);
    }
}

/* Long round trips need longer runs: a stream starts slowly. */
static int keep_rtt(struct holmes_check_session *s)
{
    double longest = 0;

    for (int i = 0; i < s->nactive; i++) {
        struct holmes_check_result *now = &s->active[i].now;

        if (s->active[i].broken)
            continue;
        now->rtt_us = s->peers[now->a].answer.rtt_us;
        longest = now->rtt_us > longest ? now->rtt_us : longest;
    }
    longest = longest / 1e3 * 10;
    return longest <= s->run_ms ? s->run_ms : longest < 1000 ? (int)longest : 1000;
}

static void keep_rate(struct holmes_check_session *s, int direction)
{
    for (int i = 0; i < s->nactive; i++) {
        struct holmes_check_result *now = &s->active[i].now;

        if (!s->active[i].broken)
            now->gbps[direction] = s->peers[direction == 0 ? now->a : now->b].answer.gbps;
    }
}

static int measure_active(struct holmes_check_session *s)
{
    struct step listen = {{HOLMES_CHECK_LISTEN, HOLMES_CHECK_LISTEN},
                          {HOLMES_CHECK_HANDLE_IS, HOLMES_CHECK_HANDLE_IS},
                          LISTEN_MS,
                          0};
    struct step connect = {{HOLMES_CHECK_CONNECT, HOLMES_CHECK_CONNECT},
                           {HOLMES_CHECK_UP, HOLMES_CHECK_UP},
                           CONNECT_MS,
                           0};
    struct step ping = {
        {HOLMES_CHECK_PING, HOLMES_CHECK_PONG}, {HOLMES_CHECK_RTT, HOLMES_CHECK_DONE}, PING_MS, 0};
    struct step forth = {
        {HOLMES_CHECK_SEND, HOLMES_CHECK_RECV}, {HOLMES_CHECK_RATE, HOLMES_CHECK_DONE}, 0, 0};
    struct step back = {
        {HOLMES_CHECK_RECV, HOLMES_CHECK_SEND}, {HOLMES_CHECK_DONE, HOLMES_CHECK_RATE}, 0, 0};
    int rc = do_step(s, &listen);

    if (rc == 0)
        rc = do_step(s, &connect);
    if (rc != 0)
        return rc;
    keep_up(s);
    rc = do_step(s, &ping);
    if (rc != 0)
        return rc;
    forth.run_ms = back.run_ms = keep_rtt(s);
    forth.limit_ms = back.limit_ms = forth.run_ms + DRAIN_MS;
    rc = do_step(s, &forth);
    if (rc != 0)
        return rc;
    keep_rate(s, 0);
    rc = do_step(s, &back);
    if (rc == 0)
        keep_rate(s, 1);
    return rc;
}

/* --- rounds ----------------------------------------------------------------------------------- */

static bool is_cut_off(const struct holmes_check_node *n)
{
    return n->successes == 0 && n->failures >= HOLMES_CHECK_TRIES;
}

/* Takes the pair into the round, unless it cannot be measured. */
static void pair_begin(struct holmes_check_session *s, struct holmes_check_result *r)
{
    const int nodes[2] = {r->a, r->b};
    struct active *a;

    for (int i = 0; i < 2; i++) {
        struct holmes_check_node *n = &s->run->nodes[nodes[i]];

        if (n->state == HOLMES_CHECK_THERE && is_cut_off(n))
            node_fail(s, nodes[i], HOLMES_CHECK_CUT_OFF,
                      "it and none of %d others reached each other; the last: %s", n->failures,
                      s->peers[nodes[i]].last_failure);
        if (n->state != HOLMES_CHECK_THERE) {
            r->state = HOLMES_CHECK_SKIPPED;
            snprintf(r->why, sizeof r->why, "%.60s is not there", n->host);
            return;
        }
    }
    a = &s->active[s->nactive++];
    *a = (struct active){.result = r, .now = *r, .ticket = s->ticket++};
}

static void pair_end(struct holmes_check_session *s, struct active *a)
{
    struct holmes_check_node *nodes = s->run->nodes;
    struct holmes_check_result *r = a->result;

    if (a->broken) {
        nodes[r->a].failures++;
        nodes[r->b].failures++;
        for (int i = 0; i < 2; i++) {
            struct peer *p = &s->peers[i == 0 ? r->a : r->b];

            snprintf(p->last_failure, sizeof p->last_failure, "%.299s", a->now.why);
        }
    } else {
        nodes[r->a].successes++;
        nodes[r->b].successes++;
        a->now.state = HOLMES_CHECK_MEASURED;
    }
    if (r->state == HOLMES_CHECK_WAITING) {
        *r = a->now;
        return;
    }
    /* A second measurement, alone: what went well goes before what did not, and the better figures
     * count. */
    if (a->broken) {
        r->alone = true;
        return;
    }
    if (r->state == HOLMES_CHECK_BROKEN) {
        *r = a->now;
        r->alone = true;
        r->why[0] = '\0';
        return;
    }
    a->now.alone = true;
    for (int i = 0; i < 2; i++)
        if (r->gbps[i] > a->now.gbps[i])
            a->now.gbps[i] = r->gbps[i];
    if (r->rtt_us < a->now.rtt_us)
        a->now.rtt_us = r->rtt_us;
    *r = a->now;
}

static int finish_round(struct holmes_check_session *s, int rc)
{
    for (int i = 0; rc == 0 && i < s->nactive; i++)
        pair_end(s, &s->active[i]);
    s->nactive = 0;
    s->run->took_s = (double)(holmes_now_ns() - s->started_ns) / 1e9;
    return rc;
}

/* So that all rounds fit into what is left: each takes two runs and what was needed besides. */
static int choose_run_ms(const struct holmes_check_session *s, int rounds)
{
    int64_t ms = ((int64_t)left_ms(s) / rounds - s->besides_ms) / 2;

    return ms > RUN_MS_MAX ? RUN_MS_MAX : ms < RUN_MS_MIN ? RUN_MS_MIN : (int)ms;
}

int holmes_check_session_measure(struct holmes_check_session *s)
{
    struct holmes_check_run *run = s->run;
    int at = 0, rc = 0;

    if (s->shows_progress)
        holmes_progress_update(&s->progress, 0, "round 1 of %d", run->nrounds);

    for (int round = 0; rc == 0 && round < run->nrounds; round++) {
        uint64_t before = left_ms(s);

        s->run_ms = choose_run_ms(s, run->nrounds - round);
        if ((int64_t)before < s->besides_ms + 2 * s->run_ms)
            break;
        for (; at < run->npairs && run->pairs[at].round == round; at++)
            pair_begin(s, &run->pairs[at]);
        rc = finish_round(s, s->nactive > 0 ? measure_active(s) : 0);
        s->besides_ms = (3 * s->besides_ms + (int64_t)(before - left_ms(s)) - 2 * s->run_ms) / 4;
        if (s->shows_progress)
            holmes_progress_update(&s->progress, (uint64_t)at, "round %d of %d", round + 1,
                                   run->nrounds);
    }
    return rc;
}

int holmes_check_session_again(struct holmes_check_session *s, const int *pairs, int n)
{
    int rc = 0;

    s->run_ms = RUN_MS_MAX;
    for (int i = 0; rc == 0 && i < n && left_ms(s) > 4 * RUN_MS_MAX; i++) {
        struct holmes_check_result *r = &s->run->pairs[pairs[i]];

        if (r->state != HOLMES_CHECK_MEASURED && r->state != HOLMES_CHECK_BROKEN)
            continue;
        if (is_cut_off(&s->run->nodes[r->a]) || is_cut_off(&s->run->nodes[r->b]))
            continue;
        if (s->run->nodes[r->a].state != HOLMES_CHECK_THERE ||
            s->run->nodes[r->b].state != HOLMES_CHECK_THERE)
            continue;
        if (s->shows_progress)
            holmes_progress_update(&s->progress, (uint64_t)s->run->npairs,
                                   "again, alone: %s and %s", s->run->nodes[r->a].host,
                                   s->run->nodes[r->b].host);
        pair_begin(s, r);
        rc = finish_round(s, measure_active(s));
    }
    return rc;
}

/* --- open and close --------------------------------------------------------------------------- */

int holmes_check_session_open(struct holmes_check_run *run, const struct holmes_check_options *o,
                              struct holmes_check_session **out, char *why, size_t why_len)
{
    struct holmes_check_session *s = calloc(1, sizeof *s);
    const char **hosts = calloc((size_t)run->nnodes + 1, sizeof *hosts);
    uint64_t limit_ms = (uint64_t)o->time_limit_s * 1000;
    struct holmes_fanout_options fan = {
        .launcher = o->launcher,
        .argv = o->argv,
        .at_once = run->nnodes,
        .deadline_ms = limit_ms + 30000,
        .out_cap = HOLMES_CHECK_LINE_MAX,
        .on_line = on_line,
        .on_end = on_end,
        .ctx = s,
    };
    int rc = -ENOMEM;

    if (s) {
        s->run = run;
        s->peers = calloc((size_t)run->nnodes + 1, sizeof *s->peers);
        s->active = calloc((size_t)run->nnodes / 2 + 1, sizeof *s->active);
    }
    if (!s || !hosts || !s->peers || !s->active) {
        snprintf(why, why_len, "out of memory");
        goto out;
    }
    for (int i = 0; i < run->nnodes; i++) {
        hosts[i] = run->nodes[i].host;
        s->peers[i].waiting = true;
    }
    s->nwaiting = run->nnodes;
    s->started_ns = holmes_now_ns();
    s->end_ns = holmes_deadline_ms(limit_ms);
    s->besides_ms = BESIDES_MS;
    rc = holmes_fanout_create(&fan, hosts, run->nnodes, &s->fanout, why, why_len);
    if (rc != 0)
        goto out;
    s->shows_progress = o->progress;
    holmes_progress_init(&s->progress, stderr, "check", (uint64_t)run->npairs, true);
    s->hello = true;
    rc = wait_all(s, limit_ms / 3 < HELLO_MS ? limit_ms / 3 : HELLO_MS);
    s->hello = false;
    if (rc != 0)
        snprintf(why, why_len, "interrupted");
out:
    free(hosts);
    if (rc != 0)
        holmes_check_session_close(s);
    else
        *out = s;
    return rc;
}

void holmes_check_session_close(struct holmes_check_session *s)
{
    if (!s)
        return;
    if (s->shows_progress)
        holmes_progress_finish(&s->progress);
    if (s->fanout && !s->interrupted) {
        uint64_t deadline = holmes_deadline_ms(1000);
        int rc = -EAGAIN;

        s->closing = true; /* what agents say from here on is no longer heard */
        for (int i = 0; i < s->run->nnodes; i++) {
            if (s->run->nodes[i].state == HOLMES_CHECK_THERE)
                holmes_fanout_hang_up(s->fanout, i);
            else
                holmes_fanout_stop(s->fanout, i);
        }
        while (rc == -EAGAIN && !holmes_deadline_passed(deadline))
            rc = holmes_fanout_step(s->fanout, 100);
    }
    holmes_fanout_destroy(s->fanout);
    free(s->peers);
    free(s->active);
    free(s);
}
