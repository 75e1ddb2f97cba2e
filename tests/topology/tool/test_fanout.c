/* Real children: shells that stand for hosts. HOST is the name of each. */
#include <criterion/criterion.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "clock.h"
#include "self.h"
#include "topology/tool/fanout.h"

#define LAUNCHER "env HOST={host}"

static char *argv[] = {"sh", "-c", NULL, NULL};

static struct holmes_fanout *fan(struct holmes_fanout_options o, const char *script,
                                 const char *const *hosts, int n)
{
    struct holmes_fanout *f;
    char why[256];

    argv[2] = (char *)script;
    o.argv = argv;
    o.launcher = o.launcher ? o.launcher : LAUNCHER;
    cr_assert_eq(holmes_fanout_create(&o, hosts, n, &f, why, sizeof why), 0, "%s", why);
    return f;
}

static void no_child_is_left(void)
{
    cr_assert(waitpid(-1, NULL, WNOHANG) == -1 && errno == ECHILD, "a child is left");
}

/* Gone, or a corpse that its new parent has not buried yet. */
static void process_ends(pid_t pid)
{
    uint64_t deadline = holmes_deadline_ms(10000);
    char path[64], stat[256];

    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    for (;;) {
        FILE *in = fopen(path, "re");
        bool alive = in && fgets(stat, sizeof stat, in) && !strstr(stat, ") Z");

        if (in)
            fclose(in);
        if (!alive)
            return;
        cr_assert(!holmes_deadline_passed(deadline), "process %d lives on", (int)pid);
    }
}

static void host_names(char names[][16], const char **hosts, int n)
{
    for (int i = 0; i < n; i++) {
        snprintf(names[i], 16, "n%d", i);
        hosts[i] = names[i];
    }
}

Test(fanout, gathers_what_every_host_says_in_order)
{
    char names[200][16], want[32];
    const char *hosts[200];
    int fds = holmes_self_fds();
    struct holmes_fanout *f;

    host_names(names, hosts, 200);
    f = fan((struct holmes_fanout_options){.deadline_ms = 60000},
            "echo \"$HOST out\"; echo err >&2", hosts, 200);
    cr_assert_eq(holmes_fanout_run(f), 0);
    for (int i = 0; i < 200; i++) {
        const struct holmes_fanout_result *r = holmes_fanout_result(f, i);

        snprintf(want, sizeof want, "n%d out\n", i);
        cr_assert_eq(r->state, HOLMES_FANOUT_DONE);
        cr_assert_str_eq(r->host, hosts[i]);
        cr_assert_str_eq(r->out, want);
        cr_assert_eq(r->out_len, strlen(want));
        cr_assert_str_eq(r->err, "err\n");
    }
    holmes_fanout_destroy(f);
    no_child_is_left();
    cr_assert_eq(holmes_self_fds(), fds, "descriptors are left");
}

/* Each host waits until as many are there as may run at once, and none sees more. */
Test(fanout, runs_no_more_than_its_number_at_once, .timeout = 60)
{
    char dir[] = "/tmp/fanout.XXXXXX", script[512], names[12][16], command[64];
    const char *hosts[12];
    struct holmes_fanout *f;

    cr_assert_not_null(mkdtemp(dir));
    snprintf(script, sizeof script,
             "cd %s; mkdir $HOST; n=$(ls -d n* | wc -l); test -e full || test $n -lt 3 || >full; "
             "until test -e full; do n=$(ls -d n* | wc -l); done; echo $n; rmdir $HOST",
             dir);
    host_names(names, hosts, 12);
    f = fan((struct holmes_fanout_options){.at_once = 3, .deadline_ms = 50000}, script, hosts, 12);
    cr_assert_eq(holmes_fanout_run(f), 0);
    for (int i = 0; i < 12; i++) {
        const struct holmes_fanout_result *r = holmes_fanout_result(f, i);

        cr_assert_eq(r->state, HOLMES_FANOUT_DONE, "%s: %s", r->host, r->err);
        cr_assert(atoi(r->out) >= 1 && atoi(r->out) <= 3, "%s saw %s", r->host, r->out);
    }
    holmes_fanout_destroy(f);
    snprintf(command, sizeof command, "rm -r %s", dir);
    cr_assert_eq(system(command), 0);
}

Test(fanout, says_how_each_host_failed)
{
    static const char *const hosts[] = {"ok", "fails", "dies", "quiet"};
    static const struct {
        enum holmes_fanout_state state;
        int code;
        const char *says;
    } want[] = {
        {HOLMES_FANOUT_DONE, 0, "done"},
        {HOLMES_FANOUT_EXITED, 127, "exit status 127: holmes-topo: not\?found"},
        {HOLMES_FANOUT_SIGNALLED, SIGKILL, "ended by signal 9"},
        {HOLMES_FANOUT_EXITED, 3, "exit status 3"},
    };
    char text[256];
    struct holmes_fanout *f =
        fan((struct holmes_fanout_options){.deadline_ms = 60000},
            "case $HOST in fails) echo banner >&2; printf 'holmes-topo: not\\033found\\n\\n' >&2; "
            "exit 127;; dies) kill -9 $$;; quiet) exit 3;; esac",
            hosts, 4);

    cr_assert_eq(holmes_fanout_run(f), 0);
    for (int i = 0; i < 4; i++) {
        const struct holmes_fanout_result *r = holmes_fanout_result(f, i);

        cr_assert(r->state == want[i].state && r->code == want[i].code, "%s: state %d code %d",
                  hosts[i], r->state, r->code);
        holmes_fanout_explain(f, i, text, sizeof text);
        cr_assert(strncmp(text, want[i].says, strlen(want[i].says)) == 0, "%s: %s", hosts[i], text);
    }
    holmes_fanout_destroy(f);
}

Test(fanout, names_a_launcher_that_is_not_there)
{
    static const char *const hosts[] = {"a", "b"};
    char text[256];
    int fds = holmes_self_fds();
    struct holmes_fanout *f = fan(
        (struct holmes_fanout_options){.launcher = "no-such-launcher {host}"}, "true", hosts, 2);

    cr_assert_eq(holmes_fanout_run(f), 0);
    cr_assert_eq(holmes_fanout_result(f, 1)->state, HOLMES_FANOUT_FAILED);
    cr_assert_eq(holmes_fanout_result(f, 1)->code, -ENOENT);
    holmes_fanout_explain(f, 1, text, sizeof text);
    cr_assert_str_eq(text, "cannot start no-such-launcher: No such file or directory");
    holmes_fanout_destroy(f);
    no_child_is_left();
    cr_assert_eq(holmes_self_fds(), fds);
}

/* One hangs and ignores SIGTERM, with a child of its own that does the same. */
Test(fanout, ends_a_host_that_hangs_and_all_it_started, .timeout = 60)
{
    static const char *const hosts[] = {"hangs", "ok"};
    char text[256];
    pid_t child;
    struct holmes_fanout *f =
        fan((struct holmes_fanout_options){.deadline_ms = 300},
            "[ $HOST = ok ] && exit; trap '' TERM; sleep 1000 & echo $!; echo busy >&2; wait; wait",
            hosts, 2);

    cr_assert_eq(holmes_fanout_run(f), 0);
    cr_assert_eq(holmes_fanout_result(f, 0)->state, HOLMES_FANOUT_LATE);
    cr_assert_eq(holmes_fanout_result(f, 1)->state, HOLMES_FANOUT_DONE);
    holmes_fanout_explain(f, 0, text, sizeof text);
    cr_assert_str_eq(text, "not done after 0.3 s: busy");
    child = atoi(holmes_fanout_result(f, 0)->out);
    cr_assert_gt(child, 1);
    process_ends(child);
    holmes_fanout_destroy(f);
    no_child_is_left();
}

Test(fanout, does_not_wait_for_what_a_host_left_behind, .timeout = 60)
{
    static const char *const hosts[] = {"a"};
    struct holmes_fanout *f =
        fan((struct holmes_fanout_options){.deadline_ms = 0}, "sleep 1000 & echo $!", hosts, 1);

    cr_assert_eq(holmes_fanout_run(f), 0);
    cr_assert_eq(holmes_fanout_result(f, 0)->state, HOLMES_FANOUT_DONE);
    process_ends(atoi(holmes_fanout_result(f, 0)->out));
    holmes_fanout_destroy(f);
}

Test(fanout, stops_a_flood_and_keeps_the_last_of_the_errors, .timeout = 60)
{
    static const char *const hosts[] = {"flood", "errors"};
    struct holmes_fanout *f =
        fan((struct holmes_fanout_options){.deadline_ms = 50000, .out_cap = 100000},
            "if [ $HOST = flood ]; then yes; else yes | head -c 100000 >&2; echo last >&2; fi",
            hosts, 2);

    cr_assert_eq(holmes_fanout_run(f), 0);
    cr_assert_eq(holmes_fanout_result(f, 0)->state, HOLMES_FANOUT_FLOODED);
    cr_assert_eq(holmes_fanout_result(f, 0)->out_len, 100000);
    cr_assert_eq(holmes_fanout_result(f, 1)->state, HOLMES_FANOUT_DONE);
    cr_assert_eq(holmes_fanout_result(f, 1)->err_len, HOLMES_FANOUT_ERR_CAP);
    cr_assert_str_eq(holmes_fanout_result(f, 1)->err + HOLMES_FANOUT_ERR_CAP - 5, "last\n");
    holmes_fanout_destroy(f);
    no_child_is_left();
}

struct talk {
    int lines, ended, longest;
    char last[64];
};

static void on_line(void *ctx, struct holmes_fanout *f, int host, const char *line, size_t len)
{
    struct talk *t = ctx;
    char answer[64];

    t->lines++;
    t->longest = (int)len > t->longest ? (int)len : t->longest;
    snprintf(t->last, sizeof t->last, "%s", line);
    if (strncmp(line, "add ", 4) == 0) {
        snprintf(answer, sizeof answer, "%d", atoi(line + 4) + 1);
        cr_assert_eq(holmes_fanout_send(f, host, answer), 0);
    } else if (strcmp(line, "bye") == 0) {
        holmes_fanout_hang_up(f, host);
    } else if (strcmp(line, "stop me") == 0) {
        holmes_fanout_stop(f, host);
    }
}

static void on_end(void *ctx, struct holmes_fanout *f, int host)
{
    struct talk *t = ctx;

    cr_assert_gt(holmes_fanout_result(f, host)->state, HOLMES_FANOUT_RUNNING);
    t->ended++;
}

static struct holmes_fanout *talk_fan(struct talk *t, const char *script, int n)
{
    static const char *const hosts[] = {"a", "b", "c"};

    return fan(
        (struct holmes_fanout_options){
            .deadline_ms = 50000, .out_cap = 4096, .on_line = on_line, .on_end = on_end, .ctx = t},
        script, hosts, n);
}

Test(fanout, talks_with_each_host_until_it_hangs_up, .timeout = 60)
{
    struct talk t = {0};
    struct holmes_fanout *f =
        talk_fan(&t,
                 "n=0; while [ $n -lt 100 ]; do echo add $n; read -r n; done; "
                 "echo bye; read -r n && exit 1; printf 'no newline'",
                 3);

    cr_assert_eq(holmes_fanout_run(f), 0);
    for (int i = 0; i < 3; i++)
        cr_assert_eq(holmes_fanout_result(f, i)->state, HOLMES_FANOUT_DONE);
    cr_assert_eq(t.lines, 3 * 102);
    cr_assert_str_eq(t.last, "no newline");
    cr_assert_eq(t.ended, 3);
    holmes_fanout_destroy(f);
    cr_assert_eq(t.ended, 3);
}

Test(fanout, bounds_a_line_but_not_the_lines, .timeout = 60)
{
    struct talk t = {0};
    struct holmes_fanout *f = talk_fan(&t, "yes | head -n 100000; tr '\\0' x </dev/zero", 1);

    cr_assert_eq(holmes_fanout_run(f), 0);
    cr_assert_eq(holmes_fanout_result(f, 0)->state, HOLMES_FANOUT_FLOODED);
    cr_assert_eq(t.lines, 100000);
    cr_assert_eq(t.longest, 1);
    holmes_fanout_destroy(f);
}

Test(fanout, no_line_comes_after_a_host_was_stopped, .timeout = 60)
{
    struct talk t = {0};
    struct holmes_fanout *f = talk_fan(&t, "echo stop me; yes", 3);

    cr_assert_eq(holmes_fanout_run(f), 0);
    cr_assert_eq(holmes_fanout_result(f, 2)->state, HOLMES_FANOUT_STOPPED);
    cr_assert_eq(t.lines, 3);
    holmes_fanout_destroy(f);
}

Test(fanout, a_host_that_does_not_listen_is_an_error_not_a_signal, .timeout = 60)
{
    static const char *const hosts[] = {"a"};
    struct talk t = {0};
    struct holmes_fanout *f =
        fan((struct holmes_fanout_options){.on_line = on_line, .ctx = &t, .deadline_ms = 50000},
            "exec <&-; echo deaf; exec sleep 1000", hosts, 1);
    int rc;

    while (t.lines == 0)
        cr_assert_eq(holmes_fanout_step(f, 1000), -EAGAIN);
    rc = holmes_fanout_send(f, 0, "hello");
    cr_assert_eq(rc, -EPIPE, "%d", rc);
    holmes_fanout_destroy(f);
    no_child_is_left();
    cr_assert_eq(signal(SIGPIPE, SIG_DFL), SIG_DFL);
}

static void ends_on(int sig)
{
    struct talk t = {0};
    struct holmes_fanout *f = talk_fan(&t, "echo up; exec sleep 1000", 3);
    int fds;

    while (t.lines < 3)
        cr_assert_eq(holmes_fanout_step(f, 1000), -EAGAIN);
    kill(getpid(), sig);
    cr_assert_eq(holmes_fanout_run(f), -EINTR);
    cr_assert_eq(holmes_fanout_signal(f), sig);
    cr_assert_eq(holmes_fanout_result(f, 0)->state, HOLMES_FANOUT_STOPPED);
    cr_assert_eq(t.ended, 3);
    no_child_is_left();
    fds = holmes_self_fds();
    holmes_fanout_destroy(f);
    cr_assert_eq(holmes_self_fds(), fds - 1, "more than the signalfd was left until then");
}

Test(fanout, a_signal_ends_all_children, .timeout = 60)
{
    ends_on(SIGINT);
    ends_on(SIGTERM);
    ends_on(SIGHUP);
}

Test(fanout, destroy_ends_what_still_runs, .timeout = 60)
{
    struct talk t = {0};
    int fds = holmes_self_fds();
    struct holmes_fanout *f = talk_fan(&t, "echo $$; exec sleep 1000", 3);

    while (t.lines < 3)
        cr_assert_eq(holmes_fanout_step(f, 1000), -EAGAIN);
    holmes_fanout_destroy(f);
    no_child_is_left();
    process_ends(atoi(t.last));
    cr_assert_eq(holmes_self_fds(), fds);
}

Test(fanout, bad_hosts_and_launchers_are_refused_before_anything_starts)
{
    static const char *const hosts[] = {"good", "-oProxyCommand=sh"};
    struct holmes_fanout_options o = {.argv = argv, .launcher = "ssh"};
    struct holmes_fanout *f = NULL;
    char why[256];
    int fds = holmes_self_fds();

    cr_assert_eq(holmes_fanout_create(&o, hosts, 1, &f, why, sizeof why), -EINVAL);
    cr_assert(strstr(why, "no {host}"), "%s", why);
    o.launcher = NULL;
    cr_assert_eq(holmes_fanout_create(&o, hosts, 2, &f, why, sizeof why), -EINVAL);
    cr_assert(strstr(why, "\"-oProxyCommand=sh\""), "%s", why);
    cr_assert_null(f);
    cr_assert_eq(holmes_self_fds(), fds);
}

Test(fanout, no_hosts_are_done_at_once)
{
    struct holmes_fanout *f = fan((struct holmes_fanout_options){.label = "none"}, "true", NULL, 0);

    cr_assert_eq(holmes_fanout_run(f), 0);
    cr_assert_eq(holmes_fanout_run(f), 0);
    holmes_fanout_destroy(f);
}
