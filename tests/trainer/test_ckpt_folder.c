/* The folder of checkpoints: what is taken for one, what is removed, what a run may save into; and
 * that a save which is cut short by anything leaves the last good one. */
#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../support/test_folder.h"
#include "ckpt_job.h"
#include "fail_write.h"

static char dir[TEST_FOLDER_MAX], text[128], folder[128];

static void set_up(void)
{
    test_folder_make(dir, "ckpt-folder");
    snprintf(text, sizeof text, "%s/text", dir);
    snprintf(folder, sizeof folder, "%s/checkpoints", dir);
    ckpt_job_text(text);
}

static void tear_down(void)
{
    test_folder_remove(dir);
}

TestSuite(ckpt_folder, .init = set_up, .fini = tear_down, .timeout = 300);

static const char *in(const char *name)
{
    static char paths[4][256];
    static int next;
    char *path = paths[next++ % 4];

    snprintf(path, sizeof paths[0], "%s/%s", folder, name);
    return path;
}

static bool exists(const char *name)
{
    return access(in(name), F_OK) == 0;
}

/* Trains `first` to `last` on two ranks, from `resume` (NULL: anew), and saves after `last`. */
static struct ckpt_job job_of(int first, int last, const char *resume)
{
    return (struct ckpt_job){.split = {.stages = 1, .replicas = 2, .tensors = 1, .chunks = 1},
                             .text = text,
                             .first = first,
                             .last = last,
                             .save = folder,
                             .save_at = last,
                             .resume = resume};
}

static void save_at(int step)
{
    struct ckpt_job job = job_of(1, 2, NULL);
    char from[32];

    if (step > 2) { /* the newest is two steps older */
        snprintf(from, sizeof from, "step-%08d", step - 2);
        job = job_of(step - 1, step, in(from));
    }
    ckpt_job_ok(&job);
}

static void check_refused(struct ckpt_job *job, int rank, const char *says)
{
    ckpt_job_run(job);
    cr_expect_neq(job->rc[rank], 0, "\"%s\" expected, it was well", says);
    cr_expect_not_null(strstr(job->why[rank], says), "\"%s\" expected, it says: %s", says,
                       job->why[rank]);
}

static void check_newest(const char *name)
{
    char found[1200], why[600];

    cr_assert_eq(holmes_ckpt_locate("latest", folder, found, sizeof found, why, sizeof why), 0);
    cr_expect_str_eq(found, name ? in(name) : "");
}

Test(ckpt_folder, the_newest_that_is_whole_is_found_and_the_oldest_go)
{
    char found[1200], why[600];

    check_newest(NULL);
    save_at(2);
    save_at(4);
    save_at(6);
    cr_expect(!exists("step-00000002"));
    cr_expect(exists("step-00000004"));
    check_newest("step-00000006");
    cr_assert_eq(holmes_ckpt_locate(folder, NULL, found, sizeof found, why, sizeof why), 0);
    cr_expect_str_eq(found, in("step-00000006"));
    cr_assert_eq(
        holmes_ckpt_locate(in("step-00000004"), NULL, found, sizeof found, why, sizeof why), 0);
    cr_expect_str_eq(found, in("step-00000004"));
}

Test(ckpt_folder, what_is_no_checkpoint_is_refused_by_name)
{
    static const struct {
        const char *which, *says;
        int rc;
    } cases[] = {
        {"nothing", "nothing: No such file", -ENOENT},
        {"file", "file: a folder is right", -ENOTDIR},
        {"empty", "empty: there is no checkpoint", -ENOENT},
        {"step-00000009.partial", "never completed", -EINVAL},
    };
    char found[1200], why[600];

    cr_assert_eq(mkdir(folder, 0777), 0);
    cr_assert_eq(mkdir(in("empty"), 0777), 0);
    cr_assert_eq(mkdir(in("empty/step-00000001"), 0777), 0); /* without a manifest */
    cr_assert_eq(mkdir(in("step-00000009.partial"), 0777), 0);
    close(open(in("file"), O_CREAT | O_WRONLY, 0666));
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        cr_expect_eq(
            holmes_ckpt_locate(in(cases[i].which), NULL, found, sizeof found, why, sizeof why),
            cases[i].rc);
        cr_expect_not_null(strstr(why, cases[i].says), "\"%s\" expected, it says: %s",
                           cases[i].says, why);
    }
}

Test(ckpt_folder, leftovers_of_dead_runs_are_removed_and_never_taken)
{
    save_at(2);
    cr_assert_eq(mkdir(in("step-00000004.partial"), 0777), 0);
    cr_assert_eq(link(in("step-00000002/manifest.json"), in("step-00000004.partial/manifest.json")),
                 0);
    cr_assert_eq(mkdir(in("step-00000001.deleted"), 0777), 0);
    cr_assert_eq(mkdir(in("notes.partial"), 0777), 0); /* none of ours */
    check_newest("step-00000002");
    save_at(4);
    check_newest("step-00000004");
    cr_expect(!exists("step-00000004.partial"));
    cr_expect(!exists("step-00000001.deleted"));
    cr_expect(exists("notes.partial"));
}

Test(ckpt_folder, a_run_saves_only_where_its_own_history_lies)
{
    struct ckpt_job fresh, earlier, elsewhere;
    char other[128], first[256];

    save_at(2);
    save_at(4);
    fresh = job_of(1, 2, NULL);
    check_refused(&fresh, 0, "has checkpoints already, step-00000004 the newest");
    snprintf(first, sizeof first, "%s", in("step-00000002"));
    earlier = job_of(3, 4, first);
    check_refused(&earlier, 0, "has step-00000004, which does not lead to");
    snprintf(other, sizeof other, "%s/other", dir);
    elsewhere = job_of(5, 6, in("step-00000004"));
    elsewhere.save = other;
    ckpt_job_ok(&elsewhere);
    check_newest("step-00000004");
}

Test(ckpt_folder, one_run_at_a_time_saves_there)
{
    char why[600];
    int first, second;
    pid_t pid;

    cr_assert_eq(holmes_ckpt_claim(folder, NULL, &first, why, sizeof why), 0, "%s", why);
    pid = fork();
    if (pid == 0) {
        close(first); /* the lock belongs to the open file, which both have */
        _exit(holmes_ckpt_claim(folder, NULL, &second, why, sizeof why) == -EBUSY &&
                      strstr(why, "another run")
                  ? 0
                  : 1);
    }
    {
        int status = -1;

        cr_assert_eq(waitpid(pid, &status, 0), pid);
        cr_expect_eq(status, 0);
    }
    close(first);
    cr_assert_eq(holmes_ckpt_claim(folder, NULL, &second, why, sizeof why), 0, "%s", why);
    close(second);
}

Test(ckpt_folder, the_folder_and_its_own_name_are_flushed)
{
    save_at(2);
    cr_expect(fail_write_synced(in("step-00000002/manifest.json")));
    cr_expect(fail_write_synced(in("step-00000002")));
    cr_expect(fail_write_synced(folder));
    cr_expect(fail_write_synced(dir));
}

/* Somebody reads it on a network file system, or has put something there. */
Test(ckpt_folder, what_cannot_be_removed_ends_no_run)
{
    save_at(2);
    cr_assert_eq(mkdir(in("step-00000002/notes"), 0777), 0);
    save_at(4);
    save_at(6);
    check_newest("step-00000006");
    cr_expect(exists("step-00000002.deleted/notes"));
    cr_expect(!exists("step-00000002"));
    save_at(8);
    check_newest("step-00000008");
}

/* --- saves that are cut short ------------------------------------------------------------------
 */

/* Whatever happened, the run of step 2 goes on, and its next save works. */
static void check_last_good(void)
{
    check_newest("step-00000002");
    save_at(4);
    check_newest("step-00000004");
    cr_expect(!exists("step-00000004.partial"));
}

Test(ckpt_folder, a_rank_that_dies_before_it_writes_leaves_the_last_good_one)
{
    struct ckpt_job job;

    save_at(2);
    job = job_of(3, 4, in("step-00000002"));
    job.fail_at = "begun";
    job.fail_rank = 1;
    check_refused(&job, 0, "");
    cr_expect(exists("step-00000004.partial"));
    check_last_good();
}

Test(ckpt_folder, death_between_the_shards_and_the_name_leaves_the_last_good_one)
{
    struct ckpt_job job;

    save_at(2);
    job = job_of(3, 4, in("step-00000002"));
    job.fail_at = "written";
    job.fail_rank = 0;
    check_refused(&job, 1, "");
    cr_expect(exists("step-00000004.partial/shard-00001-of-00002.safetensors"));
    check_last_good();
}

/* Fails the write after so many bytes: in the header, in a shard, in the manifest. */
Test(ckpt_folder, a_full_disk_is_told_and_leaves_the_last_good_one)
{
    static const struct {
        size_t after;
        const char *says;
    } cases[] = {{0, "shard-0000"}, {5000, "shard-0000"}, {300000, "shard-0000"}};

    save_at(2);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct ckpt_job job = job_of(3, 4, in("step-00000002"));
        const char *why;

        fail_write_after(cases[i].after, ENOSPC);
        ckpt_job_run(&job);
        fail_write_never();
        why = job.rc[0] == -ENOSPC ? job.why[0] : job.why[1];
        cr_expect(job.rc[0] == -ENOSPC || job.rc[1] == -ENOSPC, "%d and %d", job.rc[0], job.rc[1]);
        cr_expect_not_null(strstr(why, cases[i].says), "%s", why);
        cr_expect_not_null(strstr(why, "No space left on device; earlier checkpoints are"), "%s",
                           why);
        check_newest("step-00000002");
    }
    check_last_good();
}

Test(ckpt_folder, a_manifest_that_does_not_fit_is_told)
{
    struct ckpt_job job;

    save_at(2);
    job = job_of(3, 4, in("step-00000002"));
    fail_write_manifest(ENOSPC);
    ckpt_job_run(&job);
    fail_write_never();
    cr_expect_eq(job.rc[0], -ENOSPC);
    cr_expect_not_null(strstr(job.why[0], "manifest.json: No space left"), "%s", job.why[0]);
    check_last_good();
}

Test(ckpt_folder, folders_that_cannot_be_are_refused)
{
    static const struct {
        const char *save, *says;
    } cases[] = {
        {"/nonexistent/deep/folder", "cannot make this folder: No such file"},
        {"/proc/holmes", "cannot make this folder"},
        {"/proc", "cannot write there"},
    };

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct ckpt_job job = job_of(1, 1, NULL);

        job.save = cases[i].save;
        check_refused(&job, 0, cases[i].says);
        cr_expect_not_null(strstr(job.why[0], cases[i].save), "%s", job.why[0]);
    }
}

/* A host that has a folder of its own under this name. */
Test(ckpt_folder, ranks_that_do_not_share_the_folder_are_told)
{
    struct holmes_ckpt_data data = {.bytes = 1, .sum = "x"};
    struct ckpt_job job = job_of(1, 1, NULL);
    struct holmes_config c = ckpt_job_config(&job);
    struct holmes_saver *saver;
    struct holmes_saved saved;
    char why[600] = "";

    cr_assert_eq(mkdir(folder, 0777), 0);
    {
        struct holmes_ckpt_team other = {.rank = 1, .world = 2, .barrier = ckpt_job_no_barrier};

        cr_assert_eq(holmes_saver_open(&c, &data, &other, NULL, &saver, why, sizeof why), 0);
        cr_expect_eq(holmes_saver_save(saver, 1, NULL, 0, NULL, &saved, why, sizeof why), -ENOENT);
        cr_expect_not_null(strstr(why, "which rank 0 has made, is not there"), "%s", why);
        holmes_saver_close(saver);
    }
    {
        struct holmes_ckpt_team zero = {.rank = 0, .world = 2, .barrier = ckpt_job_no_barrier};

        cr_assert_eq(holmes_saver_open(&c, &data, &zero, NULL, &saver, why, sizeof why), 0);
        cr_expect_eq(holmes_saver_save(saver, 1, NULL, 0, NULL, &saved, why, sizeof why), -ENOENT);
        cr_expect_not_null(strstr(why, "rank 1 has written"), "%s", why);
        cr_expect_not_null(strstr(why, "all hosts share"), "%s", why);
        holmes_saver_close(saver);
    }
    holmes_config_fini(&c);
}
