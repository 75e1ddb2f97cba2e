/* The conversation with agents that are shell scripts: good ones, and every kind of bad one. (All
 * have one time-out: Criterion leaks where tests that run side by side have several.) */
#include <criterion/criterion.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "clock.h"
#include "topology/tool/check.h"

/* What HOST does otherwise stands in front. */
#define HELLO                                                                                      \
    "echo '{\"is\":\"hello\",\"protocol\":1,\"version\":\"" HOLMES_VERSION "\",\"nics\":[]}';"
#define AGENT                                                                                      \
    "say() { echo \"{\\\"pair\\\":$pair,\\\"is\\\":$1}\"; }; "                                     \
    "while read -r verb pair more; do case $verb in "                                              \
    "listen) say \"\\\"handle\\\",\\\"handle\\\":\\\"$(printf %0256d $pair)\\\"\";; "              \
    "connect) say "                                                                                \
    "'\"up\",\"wire\":\"tcp\",\"reason\":\"r\",\"local\":\"eth0\",\"peer\":\"eth0\"';; "           \
    "ping) say '\"round trip\",\"us\":40';; "                                                      \
    "send) say \"\\\"rate\\\",\\\"gbps\\\":${RATE:-10}\";; "                                       \
    "pong|recv) say '\"done\"';; esac; done"

struct world {
    struct holmes_check_run *run;
    struct holmes_check_session *session;
    struct holmes_schedule schedule;
};

static const char *const names[] = {"n0", "n1", "n2", "n3", "n4", "n5", "n6", "n7"};

static void open_world(struct world *w, const char *script, int n, int time_limit_s)
{
    char *argv[] = {"sh", "-c", (char *)script, NULL}, why[256];
    struct holmes_check_options o = {
        .launcher = "env HOST={host}", .argv = argv, .time_limit_s = time_limit_s};

    cr_assert_eq(holmes_schedule_all(n, &w->schedule), 0);
    cr_assert_eq(holmes_check_run_create(names, n, &w->schedule, &w->run), 0);
    cr_assert_eq(holmes_check_session_open(w->run, &o, &w->session, why, sizeof why), 0, "%s", why);
}

static void close_world(struct world *w)
{
    holmes_check_session_close(w->session);
    cr_assert(waitpid(-1, NULL, WNOHANG) == -1 && errno == ECHILD, "an agent is left");
    holmes_check_run_destroy(w->run);
    holmes_schedule_fini(&w->schedule);
}

static const struct holmes_check_result *pair(const struct world *w, int a, int b)
{
    for (int i = 0; i < w->run->npairs; i++)
        if (w->run->pairs[i].a == a && w->run->pairs[i].b == b)
            return &w->run->pairs[i];
    cr_assert_fail("no pair %d-%d", a, b);
    return NULL;
}

Test(check_session, every_pair_is_measured_both_ways, .timeout = 120)
{
    struct world w;

    open_world(&w, HELLO "RATE=${HOST#n}.5;" AGENT, 6, 50);
    cr_assert_eq(holmes_check_session_measure(w.session), 0);
    for (int a = 0; a < 6; a++) {
        cr_assert_eq(w.run->nodes[a].state, HOLMES_CHECK_THERE);
        for (int b = a + 1; b < 6; b++) {
            const struct holmes_check_result *p = pair(&w, a, b);

            cr_assert_eq(p->state, HOLMES_CHECK_MEASURED, "%d-%d: %s", a, b, p->why);
            cr_assert(p->gbps[0] == a + 0.5 && p->gbps[1] == b + 0.5, "%d-%d: %g, %g", a, b,
                      p->gbps[0], p->gbps[1]);
            cr_assert(p->rtt_us == 40 && strcmp(p->wire, "tcp") == 0 && !p->alone);
        }
    }
    close_world(&w);
}

/* Each kind of agent beside two good ones: it is named, with what it did, and the good ones are
 * measured all the same. */
Test(check_session, bad_agents_are_told_apart_and_hold_up_nobody, .timeout = 120)
{
    static const struct {
        const char *does;
        enum holmes_check_node_state state;
        const char *says;
    } cases[] = {
        {"echo no such host >&2; exit 255;", HOLMES_CHECK_UNREACHED, "status 255: no such host"},
        {"exec /no/such/holmes-topo;", HOLMES_CHECK_NO_PROGRAM, "exit status 127"},
        {"exec sleep 1000;", HOLMES_CHECK_SILENT, "no answer within"},
        {"echo '{\"is\":\"failed\",\"reason\":\"no usable NIC\"}'; exit 1;", HOLMES_CHECK_REFUSED,
         "no usable NIC"},
        {"echo '{\"is\":\"hello\",\"protocol\":1,\"version\":\"0.0.0\",\"nics\":[]}';" AGENT
         ";exit;",
         HOLMES_CHECK_OTHER, "0.0.0"},
        {"yes 'spam\033[2J';", HOLMES_CHECK_GARBLED, "spam?[2J"},
        {"tr '\\0' x </dev/zero;", HOLMES_CHECK_GARBLED, "one line"},
        {HELLO "read -r x; echo nonsense; exec sleep 1000;", HOLMES_CHECK_GARBLED, "nonsense"},
        {HELLO "read -r x; echo '{\"is\":\"done\",\"pair\":77}'; exec sleep 1000;",
         HOLMES_CHECK_GARBLED, "not asked"},
        {HELLO "read -r x; kill -9 $$;", HOLMES_CHECK_LOST, "signal 9"},
        {HELLO "read -r x; exec sleep 1000;", HOLMES_CHECK_SILENT, "no answer within 4"},
        {"exec <&-;" HELLO "exec sleep 1000;", HOLMES_CHECK_LOST, "no longer listens"},
    };

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char script[4096];
        struct world w;
        const struct holmes_check_node *bad;

        snprintf(script, sizeof script, "if [ $HOST = n1 ]; then %s fi; %s", cases[i].does,
                 HELLO AGENT);
        open_world(&w, script, 3, 15);
        cr_assert_eq(holmes_check_session_measure(w.session), 0);
        bad = &w.run->nodes[1];
        cr_assert_eq(bad->state, cases[i].state, "%s: state %d: %s", cases[i].does, bad->state,
                     bad->why);
        cr_assert(strstr(bad->why, cases[i].says), "%s: %s", cases[i].does, bad->why);
        cr_assert_eq(pair(&w, 0, 2)->state, HOLMES_CHECK_MEASURED, "%s", pair(&w, 0, 2)->why);
        cr_assert_gt(pair(&w, 0, 1)->state, HOLMES_CHECK_MEASURED);
        cr_assert_gt(pair(&w, 1, 2)->state, HOLMES_CHECK_MEASURED);
        close_world(&w);
    }
}

Test(check_session, a_login_shell_may_talk_first, .timeout = 120)
{
    struct world w;

    open_world(&w, "echo Welcome; echo; echo '{\"motd\": 1}';" HELLO AGENT, 2, 50);
    cr_assert_eq(holmes_check_session_measure(w.session), 0);
    cr_assert_eq(pair(&w, 0, 1)->state, HOLMES_CHECK_MEASURED);
    close_world(&w);
}

Test(check_session, a_pair_that_fails_says_whose_reason, .timeout = 120)
{
    struct world w;

    open_world(&w,
               HELLO
               "[ $HOST = n1 ] && while read -r verb pair more; do case $verb in listen) echo "
               "'{\"is\":\"handle\",\"pair\":'$pair',\"handle\":\"'$(printf %0256d 0)'\"}';; *) "
               "echo '{\"is\":\"failed\",\"pair\":'$pair',\"reason\":\"refused by a wall\"}';; "
               "esac; done; " AGENT,
               3, 50);
    cr_assert_eq(holmes_check_session_measure(w.session), 0);
    cr_assert_eq(pair(&w, 0, 1)->state, HOLMES_CHECK_BROKEN);
    cr_assert_str_eq(pair(&w, 0, 1)->why, "n1: refused by a wall");
    cr_assert_eq(pair(&w, 0, 2)->state, HOLMES_CHECK_MEASURED);
    close_world(&w);
}

/* One that fails with everybody costs three tries, not one for each. */
Test(check_session, a_node_that_reaches_nobody_is_given_up, .timeout = 120)
{
    struct world w;
    int broken = 0, skipped = 0;

    open_world(&w,
               HELLO "[ $HOST = n2 ] && while read -r verb pair more; do echo '{\"is\":\"failed\","
                     "\"pair\":'$pair',\"reason\":\"wall\"}'; done; " AGENT,
               8, 50);
    cr_assert_eq(holmes_check_session_measure(w.session), 0);
    for (int i = 0; i < w.run->npairs; i++) {
        const struct holmes_check_result *p = &w.run->pairs[i];

        if (p->a != 2 && p->b != 2)
            cr_assert_eq(p->state, HOLMES_CHECK_MEASURED);
        broken += p->state == HOLMES_CHECK_BROKEN;
        skipped += p->state == HOLMES_CHECK_SKIPPED;
    }
    cr_assert_eq(broken, HOLMES_CHECK_TRIES);
    cr_assert_eq(skipped, 7 - HOLMES_CHECK_TRIES);
    cr_assert_eq(w.run->nodes[2].state, HOLMES_CHECK_CUT_OFF);
    cr_assert(strstr(w.run->nodes[2].why, "wall"), "%s", w.run->nodes[2].why);
    close_world(&w);
}

Test(check_session, again_keeps_the_better_figure, .timeout = 120)
{
    struct world w;
    int first = 0;

    /* The rate of each send is one more than the last. */
    open_world(&w,
               HELLO
               "n=9; say() { echo \"{\\\"pair\\\":$pair,\\\"is\\\":$1}\"; }; while read -r verb "
               "pair more; do [ $verb = send ] && n=$((n + 1)) && say "
               "\"\\\"rate\\\",\\\"gbps\\\":$n\" && continue; case $verb in listen) say "
               "\"\\\"handle\\\",\\\"handle\\\":\\\"$(printf %0256d 0)\\\"\";; connect) say "
               "'\"up\",\"wire\":\"tcp\",\"reason\":\"r\",\"local\":\"e\",\"peer\":\"e\"';; ping) "
               "say \"\\\"round trip\\\",\\\"us\\\":$n\";; *) say '\"done\"';; esac; done",
               2, 50);
    cr_assert_eq(holmes_check_session_measure(w.session), 0);
    cr_assert_eq(w.run->pairs[0].gbps[0], 10);
    cr_assert_eq(holmes_check_session_again(w.session, &first, 1), 0);
    cr_assert_eq(w.run->pairs[0].gbps[0], 11);
    cr_assert_eq(w.run->pairs[0].gbps[1], 11);
    cr_assert_eq(w.run->pairs[0].rtt_us, 9, "the slower round trip was kept");
    cr_assert(w.run->pairs[0].alone);
    close_world(&w);
}

/* The first connection was lost behind the messages of other pairs, the next is not. */
Test(check_session, again_gives_a_broken_pair_its_second_chance, .timeout = 120)
{
    struct world w;
    int first = 0;

    open_world(&w,
               HELLO
               "t=0; say() { echo \"{\\\"pair\\\":$pair,\\\"is\\\":$1}\"; }; while read -r verb "
               "pair more; do [ $verb = connect ] && [ $((t = t + 1)) = 1 ] && say "
               "'\"failed\",\"reason\":\"timed out\"' && continue; case $verb in listen) say "
               "\"\\\"handle\\\",\\\"handle\\\":\\\"$(printf %0256d 0)\\\"\";; connect) say "
               "'\"up\",\"wire\":\"tcp\",\"reason\":\"r\",\"local\":\"e\",\"peer\":\"e\"';; ping) "
               "say '\"round trip\",\"us\":40';; send) say '\"rate\",\"gbps\":7';; *) say "
               "'\"done\"';; esac; done",
               2, 50);
    cr_assert_eq(holmes_check_session_measure(w.session), 0);
    cr_assert_eq(w.run->pairs[0].state, HOLMES_CHECK_BROKEN);
    for (int i = 0; i < 2 && w.run->pairs[0].state == HOLMES_CHECK_BROKEN; i++)
        cr_assert_eq(holmes_check_session_again(w.session, &first, 1), 0);
    cr_assert_eq(w.run->pairs[0].state, HOLMES_CHECK_MEASURED, "%s", w.run->pairs[0].why);
    cr_assert(w.run->pairs[0].alone && w.run->pairs[0].gbps[0] == 7 && !w.run->pairs[0].why[0]);
    close_world(&w);
}

/* Agents that take their time: what does not fit into the limit is left, and the limit holds. */
Test(check_session, time_limit_ends_it, .timeout = 120)
{
    struct world w;
    int waiting = 0, measured = 0;
    uint64_t started = holmes_now_ns();

    open_world(&w,
               HELLO
               "while read -r verb pair more; do sleep 0.3; "
               "case $verb in listen) echo '{\"is\":\"handle\",\"pair\":'$pair',\"handle\":\"'"
               "$(printf %0256d 0)'\"}';; connect) echo '{\"is\":\"up\",\"pair\":'$pair',"
               "\"wire\":\"tcp\",\"reason\":\"\",\"local\":\"\",\"peer\":\"\"}';; ping) echo "
               "'{\"is\":\"round trip\",\"pair\":'$pair',\"us\":4}';; send) echo "
               "'{\"is\":\"rate\",\"pair\":'$pair',\"gbps\":4}';; *) echo "
               "'{\"is\":\"done\",\"pair\":'$pair'}';; esac; done",
               8, 5);
    cr_assert_eq(holmes_check_session_measure(w.session), 0);
    for (int i = 0; i < w.run->npairs; i++) {
        waiting += w.run->pairs[i].state == HOLMES_CHECK_WAITING;
        measured += w.run->pairs[i].state == HOLMES_CHECK_MEASURED;
    }
    cr_assert_gt(waiting, 0);
    cr_assert_gt(measured, 0);
    cr_assert_eq(waiting + measured, w.run->npairs);
    cr_assert_lt(holmes_now_ns() - started, UINT64_C(20000000000));
    close_world(&w);
}

Test(check_session, a_signal_ends_it, .timeout = 120)
{
    struct world w;
    char boss[32];

    snprintf(boss, sizeof boss, "%d", (int)getpid());
    setenv("BOSS", boss, 1);
    open_world(&w,
               HELLO "[ $HOST = n0 ] && { read -r x; kill -INT $BOSS; exec sleep 1000; }; " AGENT,
               2, 50);
    cr_assert_eq(holmes_check_session_measure(w.session), -EINTR);
    cr_assert_eq(w.run->signal, SIGINT);
    close_world(&w);
}
