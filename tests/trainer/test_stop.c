/* Signals to jobs of the built program: the ranks agree on a last step, save it and end with a
 * status of its own; what goes on from it is what was never stopped, bit for bit. */
#include <criterion/criterion.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../support/free_port.h"
#include "../support/patience.h"
#include "../support/test_folder.h"
#include "ckpt_folder.h"
#include "ckpt_job.h"
#include "clock.h"
#include "launch.h"
#include "process.h"

#define SMALL                                                                                      \
    "--layers 2 --channels 16 --heads 2 --seq-len 16 --batch 8 --microbatch 1 --threads 1 "        \
    "--lr-decay constant --eval-sequences 0 --quiet "

static char dir[TEST_FOLDER_MAX], text[128], log_path[128];

static void set_up(void)
{
    test_folder_make(dir, "stop");
    snprintf(text, sizeof text, "%s/text", dir);
    snprintf(log_path, sizeof log_path, "%s/log", dir);
    ckpt_job_text(text);
    signal(SIGINT, SIG_DFL); /* shells start what is in the background with SIGINT ignored */
}

static void tear_down(void)
{
    test_folder_remove(dir);
}

TestSuite(stop, .init = set_up, .fini = tear_down, .timeout = 900);

#define LIMIT_MS 20000 /* for what must come */

/* A job that would run for ever, in its first steps. */
static void start(struct process *p, const char *split, const char *more)
{
    process_start(p, NULL, "--data %s " SMALL "%s --plugin %s --steps 1000000 --log %s %s", text,
                  split, getenv("TEST_NET_PLUGIN"), log_path, more);
    cr_assert(process_file_has(log_path, "\"step\",", 2, patience_ms(LIMIT_MS)),
              "the job does not train");
}

static void expect_end(struct process *p, int status, const char *says)
{
    cr_expect(process_wait(p, patience_ms(LIMIT_MS)), "still running");
    cr_expect_eq(p->status, status, "status %d, %d expected; it says: %s%s", p->status, status,
                 p->err, p->out);
    cr_expect(strstr(p->err, says) || strstr(p->out, says), "\"%s\" expected, it says: %s%s", says,
              p->err, p->out);
    cr_expect(!process_left(p, patience_ms(LIMIT_MS)), "ranks are left");
    process_kill_group(p);
}

static int newest(const char *save, char *path, size_t len)
{
    char why[600] = "";

    cr_assert_eq(holmes_ckpt_locate("latest", save, path, len, why, sizeof why), 0, "%s", why);
    return path[0] ? atoi(strstr(path, "step-") + 5) : 0;
}

/* As many steps more, and as many at one go. */
static void expect_same(const char *split, int stopped_at)
{
    char path[2][1200], save[2][128];

    for (int i = 0; i < 2; i++) {
        struct process p;

        snprintf(save[i], sizeof save[i], "%s/%s", dir, i ? "whole" : "save");
        process_start(&p, NULL,
                      "--data %s " SMALL "%s --plugin %s --steps %d --save %s --resume latest",
                      text, split, getenv("TEST_NET_PLUGIN"), stopped_at + 4, save[i]);
        expect_end(&p, 0, "trained");
        cr_expect_eq(newest(save[i], path[i], sizeof path[i]), stopped_at + 4);
    }
    ckpt_job_same_state(path[0], path[1]);
}

static void stop_and_go_on(const char *split, bool everyone, int sig)
{
    char more[160], save[128], path[1200];
    struct process p;
    int step;

    snprintf(save, sizeof save, "%s/save", dir);
    snprintf(more, sizeof more, "--save %s", save);
    start(&p, split, more);
    cr_assert_eq(kill(everyone ? -p.pid : p.pid, sig), 0);
    expect_end(&p, HOLMES_EXIT_STOPPED, "stopped by a signal after step");
    step = newest(save, path, sizeof path);
    cr_expect_geq(step, 2, "saved: %d", step);
    cr_expect(process_file_has(log_path, "\"checkpoint\"", 1, 0));
    cr_expect(process_file_has(log_path, "\"end\"", 1, 0));
    expect_same(split, step);
}

Test(stop, a_launcher_passes_sigterm_on)
{
    stop_and_go_on("--local 4 --pipeline 2 --data-parallel 2", false, SIGTERM);
}

/* A terminal sends it to everyone, and the launcher sends its own. */
Test(stop, an_interrupt_reaches_all_at_once)
{
    stop_and_go_on("--local 2 --data-parallel 2", true, SIGINT);
}

Test(stop, one_process_without_ranks)
{
    stop_and_go_on("", false, SIGUSR1);
}

/* What srun and mpirun do to one rank, all ranks agree on. */
Test(stop, one_rank_of_those_started_by_hand)
{
    const uint16_t port = free_port();
    char path[1200], save[128];
    struct process p[2];

    snprintf(save, sizeof save, "%s/save", dir);
    for (int r = 0; r < 2; r++)
        process_start(&p[r], "HOLMES_JOB_SECRET=221b",
                      "--data %s " SMALL "--pipeline 2 --rank %d --world 2 --plugin %s --save %s "
                      "--rendezvous 127.0.0.1:%u --host-label h%d --steps 1000000 %s %s",
                      text, r, getenv("TEST_NET_PLUGIN"), save, port, r,
                      r == 0 ? "--serve --log" : "", r == 0 ? log_path : "");
    cr_assert(process_file_has(log_path, "\"step\",", 2, patience_ms(LIMIT_MS)),
              "the job does not train");
    cr_assert_eq(kill(p[1].pid, SIGUSR1), 0);
    expect_end(&p[1], HOLMES_EXIT_STOPPED, "rank 1 on h1: SIGUSR1: all ranks finish this step");
    expect_end(&p[0], HOLMES_EXIT_STOPPED, "stopped by a signal after step");
    cr_expect_geq(newest(save, path, sizeof path), 2);
}

/* Of these the other hears the cause. */
static void end_one_without_save(int ended)
{
    const uint16_t port = free_port();
    struct process p[2];
    char says[100];

    for (int r = 0; r < 2; r++)
        process_start(&p[r], "HOLMES_JOB_SECRET=221b",
                      "--data %s " SMALL "--pipeline 2 --rank %d --world 2 --plugin %s "
                      "--rendezvous 127.0.0.1:%u --host-label h%d --steps 1000000 %s %s",
                      text, r, getenv("TEST_NET_PLUGIN"), port, r, r == 0 ? "--serve --log" : "",
                      r == 0 ? log_path : "");
    cr_assert(process_file_has(log_path, "\"step\",", 2, patience_ms(LIMIT_MS)),
              "the job does not train");
    cr_assert_eq(kill(p[ended].pid, SIGTERM), 0);
    snprintf(says, sizeof says, "rank %d on h%d: SIGTERM: ended at once, nothing is saved", ended,
             ended);
    expect_end(&p[ended], 128 + SIGTERM, says);
    expect_end(&p[1 - ended], HOLMES_EXIT_PEER,
               "SIGTERM: ended at once, nothing is saved without --save");
}

Test(stop, without_save_a_rank_ends_at_once_and_says_so)
{
    end_one_without_save(1);
}

/* It waits for the others to hear, and meanwhile its own step fails: now and then it would end
 * with the status of that. */
Test(stop, without_save_the_rank_that_serves_ends_with_the_signals_status)
{
    for (int i = 0; i < 6; i++) {
        end_one_without_save(0);
        unlink(log_path);
    }
}

/* libinfinipath would have it. */
Test(stop, a_signal_while_the_plugin_opens_its_libraries_is_heard)
{
    char env[700];
    struct process p;

    if (!*getenv("TEST_RUDE_FABRIC"))
        cr_skip_test("this build has no libfabric");
    setenv("HOLMES_TCP", "libfabric", 1);
    snprintf(env, sizeof env, "HOLMES_LIBFABRIC=%s", getenv("TEST_RUDE_FABRIC"));
    process_start(&p, env, "--data %s " SMALL "--local 2 --pipeline 2 --plugin %s", text,
                  getenv("TEST_NET_PLUGIN"));
    expect_end(&p, 128 + SIGTERM, "SIGTERM: ended at once, nothing is saved without --save");
}

Test(stop, before_the_first_step_a_launcher_says_that_nothing_is_saved)
{
    struct process p;

    /* Measures for ever, before it trains. */
    process_start(&p, NULL,
                  "--data %s " SMALL "--local 2 --data-parallel 2 --plugin %s --save %s/save "
                  "--measure-overlap 1000 --steps 1000000 --log %s",
                  text, getenv("TEST_NET_PLUGIN"), dir, log_path);
    cr_assert(process_file_has(log_path, "\"config\"", 1, patience_ms(LIMIT_MS)));
    cr_assert_eq(kill(p.pid, SIGTERM), 0);
    expect_end(&p, 128 + SIGTERM, "all ranks ended: rank");
    cr_expect(strstr(p.err, "SIGTERM: ended before the first step"), "it says: %s", p.err);
}

/* The step cannot end while one of its ranks stands still. */
static void start_stuck(struct process *p, const char *more)
{
    char options[200];
    pid_t ranks[2];

    snprintf(options, sizeof options, "--save %s/save %s", dir, more);
    start(p, "--local 2 --data-parallel 2", options);
    cr_assert_eq(process_children(p->pid, ranks, 2), 2);
    cr_assert_eq(kill(ranks[1], SIGSTOP), 0);
}

Test(stop, a_second_signal_ends_at_once)
{
    const uint64_t deadline = holmes_deadline_ms((uint64_t)patience_ms(LIMIT_MS));
    struct process p;
    siginfo_t info = {0};

    start_stuck(&p, "--op-timeout 10000 --stop-timeout 10000");
    while (info.si_pid == 0 && !holmes_deadline_passed(deadline)) {
        kill(p.pid, SIGTERM); /* those of the first second are one */
        cr_assert_eq(waitid(P_PID, (id_t)p.pid, &info, WEXITED | WNOHANG | WNOWAIT), 0);
    }
    expect_end(&p, 128 + SIGTERM, "all ranks ended");
}

Test(stop, the_end_is_bounded)
{
    struct process p;

    start_stuck(&p, "--op-timeout 10000 --stop-timeout 1");
    cr_assert_eq(kill(p.pid, SIGTERM), 0);
    expect_end(&p, 128 + SIGTERM, "took longer than --stop-timeout 1 s");
}

/* As that of a script that runs it in the background, for whose terminal's ^C it is not meant. */
Test(stop, what_a_launchers_parent_ignores_it_ignores)
{
    char more[160];
    struct process p;

    signal(SIGINT, SIG_IGN);
    snprintf(more, sizeof more, "--save %s/save", dir);
    start(&p, "--local 2 --data-parallel 2", more);
    cr_assert_eq(kill(-p.pid, SIGINT), 0);
    cr_assert_eq(kill(p.pid, SIGTERM), 0);
    expect_end(&p, HOLMES_EXIT_STOPPED, "holmes-train: SIGTERM: the ranks finish their step");
}

/* The job has not ended as the signal asked. */
Test(stop, a_checkpoint_that_cannot_be_written_is_said)
{
    char more[160], save[80], aside[80];
    struct process p;

    snprintf(save, sizeof save, "%s/save", dir);
    snprintf(aside, sizeof aside, "%s/aside", dir);
    snprintf(more, sizeof more, "--save %s", save);
    start(&p, "--local 2 --data-parallel 2", more);
    cr_assert_eq(rename(save, aside), 0);
    cr_assert_eq(symlink(text, save), 0); /* no folder */
    cr_assert_eq(kill(p.pid, SIGTERM), 0);
    expect_end(&p, HOLMES_EXIT_FAILED, "Not a directory");
}
