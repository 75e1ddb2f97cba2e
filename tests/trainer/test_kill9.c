/* A run that is ended by SIGKILL at random moments, again and again, and goes on each time from
 * what it has saved: every loss it logs is that of a run that nobody disturbed, in all digits, and
 * the state at the end is the same bit for bit.
 *
 * HOLMES_TEST_KILLS: how many (6); HOLMES_TEST_SEED: which moments. Both are printed. */
#include <criterion/criterion.h>
#include <glob.h>
#include <jansson.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "../support/test_folder.h"
#include "ckpt_folder.h"
#include "ckpt_job.h"
#include "clock.h"
#include "process.h"
#include "random.h"

#define PATIENCE_MS                                                                                \
    120000 /* for what must come; the machine may be busy, or slowed by a sanitizer */
#define STEPS_PER_KILL 30
#define MOMENT_MS      1500 /* a kill comes so long after the first step at most */
#define EARLY_MS       400  /* or, one in four, after the start */
#define SAVE_MS        12   /* and so long after the beginning of a save, every second time */

static char dir[TEST_FOLDER_MAX], text[128];

struct plan {
    int kills, steps;
    uint64_t seed, draws;
    const char *split;
};

struct loss {
    double loss, norm;
};

static void set_up(void)
{
    test_folder_make(dir, "kill9");
    snprintf(text, sizeof text, "%s/text", dir);
    ckpt_job_text(text);
}

static void tear_down(void)
{
    test_folder_remove(dir);
}

TestSuite(kill9, .init = set_up, .fini = tear_down, .timeout = 3000);

static uint64_t number_from(const char *name, uint64_t otherwise)
{
    const char *value = getenv(name);

    return value ? strtoull(value, NULL, 0) : otherwise;
}

static uint64_t draw(struct plan *p, uint64_t below)
{
    return holmes_random_below(holmes_random_key(p->seed, "kill9", 5), p->draws++, below);
}

static struct plan make_plan(void)
{
    static const char *const splits[] = {"--data-parallel 2", "--pipeline 2", "--tensor 2"};
    struct plan p = {.kills = (int)number_from("HOLMES_TEST_KILLS", 6),
                     .seed = number_from("HOLMES_TEST_SEED", (uint64_t)time(NULL))};

    p.steps = STEPS_PER_KILL * p.kills;
    p.split = splits[draw(&p, 3)];
    printf("HOLMES_TEST_KILLS=%d HOLMES_TEST_SEED=%llu: %d steps, %s\n", p.kills,
           (unsigned long long)p.seed, p.steps, p.split);
    fflush(stdout);
    return p;
}

static void start(struct process *run, const struct plan *p, const char *folder, const char *log)
{
    process_start(
        run, NULL,
        "--data %s --local 2 %s --layers 2 --channels 32 --heads 2 --seq-len 16 --batch 4 "
        "--microbatch 1 --threads 1 --quiet --eval-sequences 0 --lr 3e-3 --steps %d "
        "--plugin %s --save %s/%s --save-every 2 --resume latest --log %s",
        text, p->split, p->steps, getenv("TEST_NET_PLUGIN"), dir, folder, log);
}

/* --- logs --------------------------------------------------------------------------------------
 */

/* Calls `take` with every whole record; the last line may be cut. */
static void each_record(const char *log, void (*take)(const json_t *record, void *ctx), void *ctx)
{
    FILE *f = fopen(log, "re");
    char *line = NULL;
    size_t cap = 0;

    while (f && getline(&line, &cap, f) > 0) {
        json_t *record = strchr(line, '\n') ? json_loads(line, 0, NULL) : NULL;

        if (record)
            take(record, ctx);
        json_decref(record);
    }
    free(line);
    if (f)
        fclose(f);
}

struct comparison {
    const struct plan *plan;
    struct loss *expected; /* [steps + 1] */
    int first, last, saved, resumed;
    bool fill; /* take, rather than compare */
};

static bool is(const json_t *record, const char *kind)
{
    return strcmp(json_string_value(json_object_get(record, "record")), kind) == 0;
}

static void take_record(const json_t *record, void *ctx)
{
    struct comparison *c = ctx;
    const int step = (int)json_integer_value(json_object_get(record, "step"));
    const struct loss is_now = {json_number_value(json_object_get(record, "loss")),
                                json_number_value(json_object_get(record, "grad_norm"))};

    if (is(record, "checkpoint"))
        c->saved = step;
    if (is(record, "resume"))
        c->resumed = step;
    if (!is(record, "step"))
        return;
    cr_assert(step >= 1 && step <= c->plan->steps);
    if (c->fill)
        c->expected[step] = is_now;
    cr_expect(is_now.loss == c->expected[step].loss && is_now.norm == c->expected[step].norm,
              "step %d: loss %.17g, norm %.17g; %.17g and %.17g undisturbed", step, is_now.loss,
              is_now.norm, c->expected[step].loss, c->expected[step].norm);
    if (c->first == 0)
        c->first = step;
    c->last = step;
}

/* --- folders -----------------------------------------------------------------------------------
 */

static int newest(const char *folder, char *path, size_t len)
{
    char save[128], why[600] = "";

    snprintf(save, sizeof save, "%s/%s", dir, folder);
    cr_assert_eq(holmes_ckpt_locate("latest", save, path, len, why, sizeof why), 0, "%s", why);
    return path[0] ? atoi(strstr(path, "step-") + 5) : 0;
}

/* A save was under way. */
static bool in_a_save(void)
{
    char pattern[128];
    glob_t found;
    bool any;

    snprintf(pattern, sizeof pattern, "%s/killed/*.partial", dir);
    any = glob(pattern, 0, NULL, &found) == 0;
    globfree(&found);
    return any;
}

/* --- killing -----------------------------------------------------------------------------------
 */

/* Every second time, a save is waited for, and a moment more: else few would be hit. */
static void wait_for_save(struct plan *p)
{
    const bool wanted = draw(p, 2) == 0;
    const int more_ms = (int)draw(p, SAVE_MS);
    const uint64_t deadline = holmes_deadline_ms(EARLY_MS);

    while (wanted && !in_a_save() && !holmes_deadline_passed(deadline))
        nanosleep(&(struct timespec){.tv_nsec = 200000}, NULL);
    if (wanted)
        nanosleep(&(struct timespec){.tv_nsec = more_ms * 1000000L}, NULL);
}

static void kill_it(struct plan *p, struct process *run)
{
    pid_t ranks[8];
    const int n = process_children(run->pid, ranks, 8);
    const uint64_t who = draw(p, 4);

    if (who == 0 && n > 0)
        kill(ranks[draw(p, (uint64_t)n)], SIGKILL); /* one rank; the others end by themselves */
    else if (who == 1)
        kill(run->pid, SIGKILL); /* the launcher; the ranks follow it */
    else
        process_kill_group(run);
}

/* Waits for the moment, or for the end of the run. */
static bool wait_for_moment(struct plan *p, struct process *run, const char *log)
{
    const bool early = draw(p, 4) == 0;
    uint64_t moment = draw(p, early ? EARLY_MS : MOMENT_MS), deadline;

    if (!early)
        process_file_has(log, "\"record\":\"step\"", 1, PATIENCE_MS);
    deadline = holmes_deadline_ms(moment);
    while (!holmes_deadline_passed(deadline)) {
        siginfo_t info = {0};

        if (waitid(P_PID, (id_t)run->pid, &info, WEXITED | WNOHANG | WNOWAIT) == 0 &&
            info.si_pid == run->pid)
            return false;
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    }
    return true;
}

/* One run that is killed. Returns whether it was; else it has come to its end. */
static bool run_and_kill(struct plan *p, int number, struct loss *expected)
{
    char log[128], before[1200], after[1200];
    const int step_before = newest("killed", before, sizeof before);
    struct comparison c = {.plan = p, .expected = expected};
    struct process run;
    int step_after;
    bool killed;

    snprintf(log, sizeof log, "%s/killed-%d.jsonl", dir, number);
    start(&run, p, "killed", log);
    killed = wait_for_moment(p, &run, log);
    if (killed) {
        wait_for_save(p);
        kill_it(p, &run);
    }
    cr_assert(process_wait(&run, PATIENCE_MS));
    cr_expect(!process_left(&run, PATIENCE_MS));
    if (!killed)
        cr_expect_eq(run.status, 0, "%d: %s", run.status, run.err);
    each_record(log, take_record, &c);
    step_after = newest("killed", after, sizeof after);
    cr_expect_geq(step_after, c.saved, "a checkpoint that was told is gone");
    cr_expect_geq(step_after, step_before);
    if (c.last > 0) {
        cr_expect_eq(c.resumed, step_before);
        cr_expect_eq(c.first, step_before + 1);
    }
    if (step_after > 0)
        ckpt_job_same_state(after, after); /* all of it can be read */
    printf("run %d: from step %d, %s at step %d%s, saved %d\n", number, step_before,
           killed ? "killed" : "ended", c.last, in_a_save() ? " while it saved" : "", step_after);
    fflush(stdout);
    return killed;
}

static void run_to_end(const struct plan *p, const char *folder, struct comparison *c)
{
    struct process run;
    char log[128];

    snprintf(log, sizeof log, "%s/%s.jsonl", dir, folder);
    start(&run, p, folder, log);
    cr_assert(process_wait(&run, PATIENCE_MS), "still running");
    cr_assert_eq(run.status, 0, "%d: %s", run.status, run.err);
    each_record(log, take_record, c);
}

Test(kill9, at_any_moment_loses_nothing_that_was_saved)
{
    struct plan p = make_plan();
    struct loss *expected = calloc((size_t)p.steps + 1, sizeof *expected);
    struct comparison undisturbed = {.plan = &p, .expected = expected, .fill = true};
    struct comparison last = {.plan = &p, .expected = expected};
    char a[1200], b[1200], command[128];

    run_to_end(&p, "undisturbed", &undisturbed);
    cr_assert_eq(undisturbed.last, p.steps);
    for (int kills = 0, runs = 0; kills < p.kills; runs++) {
        if (run_and_kill(&p, runs, expected)) {
            kills++;
            continue;
        }
        snprintf(command, sizeof command, "rm -rf %s/killed", dir); /* it was faster: once more */
        cr_assert_eq(system(command), 0);
    }
    run_to_end(&p, "killed", &last);
    cr_expect_eq(newest("undisturbed", a, sizeof a), p.steps);
    cr_expect_eq(newest("killed", b, sizeof b), p.steps);
    ckpt_job_same_state(a, b);
    free(expected);
}
