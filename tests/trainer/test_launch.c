/* The built holmes-train, run as users run it: what bad input, dying ranks and signals lead to, and
 * that ranks as processes over the plugin train as one process does. */
#include <criterion/criterion.h>
#include <jansson.h>
#include <math.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "../support/free_port.h"
#include "../support/test_folder.h"
#include "clock.h"
#include "jsonlog.h"
#include "process.h"

#define PATIENCE_MS                                                                                \
    60000 /* for what must come; the machine may be busy, or slowed by a sanitizer */
#define SMALL "--layers 2 --channels 16 --heads 2 --seq-len 16 --batch 8 --microbatch 1 --threads 1"

static char dir[TEST_FOLDER_MAX]; /* of this test */
static char text[128];            /* to train on */

static void set_up(void)
{
    test_folder_make(dir, "launch");
    snprintf(text, sizeof text, "%s/text", dir);
    test_folder_text(text, "the hound of the baskervilles ", "it was the footprint\n");
}

static void tear_down(void)
{
    test_folder_remove(dir);
}

TestSuite(launch, .init = set_up, .fini = tear_down, .timeout = 600);

static const char *plugin(void)
{
    const char *path = getenv("TEST_NET_PLUGIN");

    cr_assert_not_null(path, "TEST_NET_PLUGIN is not set");
    return path;
}

/* --- bad input -------------------------------------------------------------------------------- */

struct refusal {
    const char *arguments; /* %T the text, %P the plugin, %D the folder */
    int status;
    const char *says;
    const char *env;
};

/* Replaces the marks of struct refusal. */
static void expand(const char *from, char *out, size_t size)
{
    size_t n = 0;

    for (; *from && n + 1 < size; from++) {
        const char *value = NULL;

        if (from[0] == '%' && from[1] == 'T')
            value = text;
        else if (from[0] == '%' && from[1] == 'P')
            value = plugin();
        else if (from[0] == '%' && from[1] == 'D')
            value = dir;
        if (value) {
            n += (size_t)snprintf(out + n, size - n, "%s", value);
            from++;
        } else {
            out[n++] = *from;
        }
    }
    out[n < size ? n : size - 1] = '\0';
}

static void check_refusal(const struct refusal *c)
{
    char arguments[1024];
    struct process p;
    int hints;

    expand(c->arguments, arguments, sizeof arguments);
    process_start(&p, c->env, "%s", arguments);
    cr_expect(process_wait(&p, PATIENCE_MS), "%s: still running", arguments);
    cr_expect_eq(p.status, c->status, "%s: status %d, %d expected; it says: %s", arguments,
                 p.status, c->status, p.err);
    cr_expect_not_null(strstr(p.err, c->says), "%s: \"%s\" expected, it says: %s", arguments,
                       c->says, p.err);
    hints = strstr(p.err, "Try `") != NULL;
    cr_expect_eq(process_lines(p.err) - hints, 1, "%s: one sentence expected, it says: %s",
                 arguments, p.err);
    cr_expect(!process_left(&p, PATIENCE_MS), "%s: processes are left", arguments);
    process_kill_group(&p);
}

static void check_refusals(const struct refusal *cases, size_t count)
{
    for (size_t i = 0; i < count; i++)
        check_refusal(&cases[i]);
}
#define CHECK(cases) check_refusals(cases, sizeof(cases) / sizeof *(cases))

Test(launch, refuses_values_that_are_none)
{
    static const struct refusal cases[] = {
        {"--bogus", 2, "'--bogus'"},
        {"--data %T 7", 2, "\"7\""},
        {"--data %T --layers", 2, "--layers"},
        {"--data %T --layers 0", 2, "from 1 to 1000"},
        {"--data %T --layers 2x", 2, "\"2x\""},
        {"--data %T --layers 1.5", 2, "\"1.5\""},
        {"--data %T --layers 99999999999999999999", 2, "from 1 to 1000"},
        {"--data %T --lr nan", 2, "\"nan\""},
        {"--data %T --lr 0", 2, "--lr"},
        {"--data %T --seed -1", 2, "\"-1\""},
        {"--data %T --placement best", 2, "planned or naive"},
        {"--data %T --comm rdma", 2, "net, loopback or nccl"},
        {"--data %T --kernels fast", 2, "\"fast\""},
        {"--data %T --launched x", 2, "launcher"},
    };

    CHECK(cases);
}

Test(launch, refuses_values_that_do_not_go_together)
{
    static const struct refusal cases[] = {
        {"", 2, "--data FILE is missing"},
        {"--data %D/none", 2, "no such file"},
        {"--data %D", 2, "regular file"},
        {"--data %T --split 9,-1", 2, "\"9,-1\""},
        {"--data %T --split 1,2,3,4", 2, "969,30,1"},
        {"--data %T --split 0,1", 2, "first above 0"},
        {"--data %T --split 9,1 --held-out 0.1", 2, "leave out one"},
        {"--data %T --heads 5", 2, "heads"},
        {"--data %T --batch 7 --microbatch 2", 2, "multiple of 2"},
        {"--data %T --local 2 --data-parallel 2 --batch 6 --microbatch 2", 2, "multiple of 4"},
        {"--data %T --rank 0 --world 65536 --rendezvous h:1 --data-parallel 65536 "
         "--microbatch 65536",
         2, "multiple of 4294967296"},
        {"--data %T --local 3 --pipeline 3 --layers 2", 2, "--pipeline 3"},
        {"--data %T --local 3 --pipeline 2", 2, "must agree"},
        {"--data %T --local 2 --tensor 4", 2, "--tensor 4 are 4 ranks, but there are 2"},
        {"--data %T --local 3 --tensor 3 --heads 4", 2, "--tensor 3 does not divide"},
        {"--data %T --local 512 --tensor 512 --heads 512 --channels 512", 2, "vocabulary of 256"},
        {"--data %T --local 3 --pipeline 3 --stage-layers 2,0,2", 2, "stage 1 of 3 has no layers"},
        {"--data %T --pipeline 2", 2, "must agree"},
        {"--data %T --local 2 --pipeline 2 --comm loopback", 2, "loopback"},
        {"--data %T --local 2 --pipeline 2 --rank-order 0,0", 2, "rank 0 twice"},
        {"--data %T --local 2 --pipeline 2 --rank-order 0", 2, "2 numbers"},
        {"--data %T --local 2 --pipeline 2 --stage-layers 1,1", 2, "2 layers in all"},
        {"--data %T --local 2 --pipeline 2 --cluster A,B,C", 2, "--cluster"},
        {"--data %T --host-label a\xff", 2, "byte 0xff is no part of a name"},
        {"--data %T --cluster a\x01", 2, "byte 0x01 is no part of a name"},
        {"--data %T --host-label "
         "abcdefghijklmnopqrstuvwxyzabcdefghijklmnopqrstuvwxyzabcdefghijkl",
         2, "63 bytes are the most"},
        {"--data %T --local 2 --pipeline 2 --rank 0", 2, "--local"},
        {"--data %T --rank 0 --pipeline 2", 2, "--world"},
        {"--data %T --rank 2 --world 2 --pipeline 2 --rendezvous 127.0.0.1:1", 2, "0 to 1"},
        {"--data %T --rank 0 --world 2 --pipeline 2", 2, "--rendezvous"},
        {"--data %T --rank 0 --world 2 --pipeline 2 --rendezvous here", 2, "HOST:PORT"},
        {"--data %T --rank 0 --world 2 --pipeline 2 --rendezvous 127.0.0.1:70000", 2, "HOST:PORT"},
        {"--data %T --rank 0 --world 2 --pipeline 2 --serve --rendezvous 127.0.0.1:0", 2, "port"},
        {"--data %T --rank 0 --world 2 --pipeline 2 --rendezvous 127.0.0.1:9", 2,
         "HOLMES_JOB_SECRET is not set"},
        {"--serve --world 2 --rendezvous 127.0.0.1:9", 2, "HOLMES_JOB_SECRET is not set"},
        {"--data %T", 2, "HOLMES_LANE", "HOLMES_LANE=2"},
        {"--data %T", 2, "HOLMES_LANES=\"x\"", "HOLMES_LANES=x"},
    };

    CHECK(cases);
}

Test(launch, refuses_what_only_running_finds_out)
{
    static const struct refusal cases[] = {
        {"--data %T --seq-len 60000 --channels 16 --heads 2", 2, "--data"},
        {"--data %T " SMALL " --steps 1 --log %D/none/log", 2, "%D/none/log"},
        {"--data %T " SMALL " --local 2 --pipeline 2 --plugin %P --log %D/none/log", 2, "none/log"},
        {"--data %T " SMALL " --local 4 --tensor 2 --pipeline 2 --plugin %P --placement naive "
         "--host-label a,b,a,b",
         2, "rank 0 is on host \"a\", rank 1 on \"b\""},
        {"--data %T " SMALL " --local 2 --pipeline 2 --plugin %D/none.so", 1, "none.so"},
        {"--data %T " SMALL " --local 2 --pipeline 2 --plugin libm.so.6", 1, "ncclNetPlugin"},
        {"--data %T " SMALL " --local 2 --pipeline 2 --plugin %P --net-device eth99", 1, "eth99"},
    };

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct refusal c = cases[i];
        char says[128];

        expand(c.says, says, sizeof says);
        c.says = says;
        check_refusal(&c);
    }
}

Test(launch, refuses_checkpoints_that_are_none)
{
    static const struct refusal cases[] = {
        {"--data %T " SMALL " --save-every 5", 2, "--save-every 5 needs --save"},
        {"--data %T " SMALL " --keep 5", 2, "--keep 5 needs --save"},
        {"--data %T " SMALL " --resume latest", 2, "--save DIR, which is missing"},
        {"--data %T " SMALL " --resume %D/none", 2, "none: No such file"},
        {"--data %T " SMALL " --resume %D", 2, "there is no checkpoint"},
        {"--data %T " SMALL " --resume %T", 2, "a folder is right"},
        {"--data %T " SMALL " --local 2 --pipeline 2 --plugin %P --resume %D", 2,
         "there is no checkpoint"},
        {"--data %T " SMALL " --local 2 --pipeline 2 --plugin %P --save %D/a/b", 2,
         "cannot make this folder"},
        {"--data %T " SMALL " --init %T", 2, "--init"},
        {"--data %T " SMALL " --init %D", 2, "model.safetensors: No such file"},
        {"export %D -o %D/model", 2, "there is no checkpoint"},
    };

    CHECK(cases);
}

/* Three ranks go on from what two have saved; one of them finds the damage and speaks for all. */
Test(launch, a_damaged_checkpoint_ends_the_job_with_one_sentence)
{
    struct refusal c = {"--data %T " SMALL " --batch 12 --local 3 --data-parallel 3 --plugin %P "
                        "--resume %D/c --steps 2 --quiet",
                        2, "checksum of its second moments"};
    char shard[160];
    struct process p;
    FILE *f;
    int last;

    process_start(&p, NULL,
                  "--data %s " SMALL
                  " --batch 12 --local 2 --tensor 2 --plugin %s --steps 1 --save "
                  "%s/c --quiet",
                  text, plugin(), dir);
    cr_assert(process_wait(&p, PATIENCE_MS));
    cr_assert_eq(p.status, 0, "%s", p.err);
    snprintf(shard, sizeof shard, "%s/c/step-00000001/shard-00000-of-00002.safetensors", dir);
    f = fopen(shard, "r+e");
    cr_assert_not_null(f);
    cr_assert_eq(fseek(f, -1, SEEK_END), 0);
    last = fgetc(f);
    cr_assert_eq(fseek(f, -1, SEEK_END), 0);
    fputc(last ^ 1, f);
    cr_assert_eq(fclose(f), 0);
    check_refusal(&c);
}

Test(launch, refuses_a_port_that_is_taken)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof a;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    char arguments[400], port[16];
    struct refusal c = {arguments, 1, port, "HOLMES_JOB_SECRET=x"};

    cr_assert_eq(bind(fd, (struct sockaddr *)&a, sizeof a), 0);
    cr_assert_eq(listen(fd, 1), 0);
    cr_assert_eq(getsockname(fd, (struct sockaddr *)&a, &len), 0);
    snprintf(port, sizeof port, "%u", ntohs(a.sin_port));
    snprintf(arguments, sizeof arguments,
             "--data %%T " SMALL " --local 2 --pipeline 2 --rendezvous 127.0.0.1:%s", port);
    check_refusal(&c);
    snprintf(arguments, sizeof arguments,
             "--data %%T " SMALL
             " --rank 0 --world 2 --pipeline 2 --serve --rendezvous 127.0.0.1:%s",
             port);
    check_refusal(&c);
    close(fd);
}

Test(launch, names_the_rank_that_never_comes)
{
    char arguments[400];
    struct refusal c = {arguments, 1, "rank 1", "HOLMES_JOB_SECRET=x"};

    snprintf(arguments, sizeof arguments,
             "--data %%T " SMALL " --rank 0 --world 2 --pipeline 2 --serve --join-timeout 1 "
             "--rendezvous 127.0.0.1:%u",
             free_port());
    check_refusal(&c);
}

/* Where a file is read whole, what has no end is none. */
Test(launch, devices_are_no_logs)
{
    static const struct refusal cases[] = {
        {"report /dev/zero", 2, "/dev/zero: it is a device: a file or a pipe is right"},
        {"compare /dev/zero /dev/zero", 2, "/dev/zero: it is a device"},
        {"report %D", 2, "Is a directory"},
    };

    CHECK(cases);
}

Test(launch, gives_up_when_nobody_serves)
{
    char arguments[400];
    struct refusal c = {arguments, 1, "cannot join the job", "HOLMES_JOB_SECRET=x"};

    snprintf(arguments, sizeof arguments,
             "--data %%T " SMALL " --rank 1 --world 2 --pipeline 2 --join-timeout 1 "
             "--rendezvous 127.0.0.1:%u",
             free_port());
    check_refusal(&c);
}

/* --- ends that were not planned --------------------------------------------------------------- */

/* A 2x2 job that would run for ever, in its first steps. */
static void start_job(struct process *p, pid_t ranks[4], const char *more)
{
    char log[128];

    snprintf(log, sizeof log, "%s/log", dir);
    unlink(log);
    process_start(p, NULL,
                  "--data %s " SMALL " --local 4 --pipeline 2 --data-parallel 2 --plugin %s "
                  "--steps 1000000 --quiet --log %s %s",
                  text, plugin(), log, more);
    cr_assert(process_file_has(log, "\"step\",", 2, PATIENCE_MS), "the job does not train");
    cr_assert_eq(process_children(p->pid, ranks, 4), 4);
}

static void expect_end(struct process *p, int status, const char *says)
{
    cr_expect(process_wait(p, PATIENCE_MS), "still running");
    cr_expect_eq(p->status, status, "status %d, %d expected; it says: %s", p->status, status,
                 p->err);
    cr_expect_not_null(strstr(p->err, says), "\"%s\" expected, it says: %s", says, p->err);
    cr_expect_eq(process_lines(p->err), 1, "one sentence expected, it says: %s", p->err);
    cr_expect(!process_left(p, PATIENCE_MS), "ranks are left");
    process_kill_group(p);
}

Test(launch, a_killed_rank_ends_the_job_and_is_named)
{
    struct process p;
    pid_t ranks[4];

    start_job(&p, ranks, "");
    cr_assert_eq(kill(ranks[2], SIGKILL), 0);
    expect_end(&p, 1, "was ended by signal 9");
    cr_expect_not_null(strstr(p.err, "holmes-train: rank "), "%s", p.err);
}

Test(launch, a_rank_that_stands_still_ends_the_job)
{
    struct process p;
    pid_t ranks[4];

    start_job(&p, ranks, "--op-timeout 1");
    cr_assert_eq(kill(ranks[1], SIGSTOP), 0);
    expect_end(&p, 1, "among ranks");
}

Test(launch, signals_end_all_ranks)
{
    struct process p;
    pid_t ranks[4];

    signal(SIGINT, SIG_DFL); /* shells start what is in the background with SIGINT ignored */
    start_job(&p, ranks, "");
    cr_assert_eq(kill(p.pid, SIGTERM), 0);
    expect_end(&p, 128 + SIGTERM, "all ranks ended");
    start_job(&p, ranks, "");
    cr_assert_eq(kill(-p.pid, SIGINT), 0); /* a terminal sends it to everyone */
    expect_end(&p, 128 + SIGINT, "all ranks ended");
}

Test(launch, ranks_die_with_a_killed_launcher)
{
    struct process p;
    pid_t ranks[4];

    start_job(&p, ranks, "");
    cr_assert_eq(kill(p.pid, SIGKILL), 0);
    process_wait(&p, PATIENCE_MS);
    cr_expect(!process_left(&p, PATIENCE_MS), "ranks are left");
    process_kill_group(&p);
}

static void start_by_hand(struct process *p, int rank, uint16_t port, const char *more)
{
    process_start(p, "HOLMES_JOB_SECRET=221b",
                  "--data %s " SMALL " --rank %d --world 2 --pipeline 2 --plugin %s --quiet "
                  "--rendezvous 127.0.0.1:%u --host-label h%d %s",
                  text, rank, plugin(), port, rank, more);
}

Test(launch, ranks_started_by_hand_train_together)
{
    uint16_t port = free_port();
    struct process serve, p[2];

    process_start(&serve, "HOLMES_JOB_SECRET=221b", "--serve --world 2 --rendezvous 127.0.0.1:%u",
                  port);
    for (int r = 0; r < 2; r++)
        start_by_hand(&p[r], r, port, "--steps 3");
    for (int r = 0; r < 2; r++) {
        cr_expect(process_wait(&p[r], PATIENCE_MS), "rank %d is still running", r);
        cr_expect_eq(p[r].status, 0, "rank %d: status %d: %s", r, p[r].status, p[r].err);
    }
    cr_expect_not_null(strstr(p[0].out, "trained 3 steps"), "%s", p[0].out);
    cr_expect_str_eq(p[1].out, "");
    cr_expect(process_wait(&serve, PATIENCE_MS), "the service outlives its job");
    cr_expect_eq(serve.status, 0, "status %d: %s", serve.status, serve.err);
}

/* Their losses would be wrong, and nothing would show it. */
Test(launch, ranks_that_were_told_otherwise_end_the_job)
{
    static const struct {
        const char *first, *second, *says;
    } rows[] = {
        {"--steps 3", "--steps 2", "--steps: 2 here, 3 for rank 0"},
        {"--steps 3", "--steps 3 --lr 0.5", "--lr: 0.5 here, 0.001 for rank 0"},
        {"--steps 3 --resume latest --save ", "--steps 3",
         "--save: default here, given for rank 0"},
        {"--steps 3", "--steps 3 --vocab 256 --final-lr 0.0001 --threads 2", NULL},
    };
    char folder[96];

    snprintf(folder, sizeof folder, "%s/checkpoints", dir);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        uint16_t port = free_port();
        struct process p[2];
        char more[256];

        snprintf(more, sizeof more, "--serve %s%s", rows[i].first,
                 strstr(rows[i].first, "--save") ? folder : "");
        start_by_hand(&p[0], 0, port, more);
        start_by_hand(&p[1], 1, port, rows[i].second);
        for (int r = 0; r < 2; r++) {
            cr_expect(process_wait(&p[r], PATIENCE_MS), "rank %d is still running", r);
            cr_expect_eq(p[r].status, rows[i].says ? (r == 1 ? 2 : 3) : 0, "rank %d: %d: %s", r,
                         p[r].status, p[r].err);
            if (rows[i].says)
                cr_expect_not_null(strstr(p[r].err, rows[i].says), "%s", p[r].err);
        }
    }
}

/* What one rank alone has wrong, the others hear, whoever serves. */
Test(launch, options_that_are_wrong_on_one_rank_are_told_to_all)
{
    static const struct {
        int rank;
        const char *more, *says;
    } rows[] = {
        {1, "--data /nowhere", "--data /nowhere: no such file"},
        {0, "--data /nowhere", "--data /nowhere: no such file"},
        {1, "--config /nowhere.yaml", "--config /nowhere.yaml: No such file"},
        {0, "--config /nowhere.yaml", "--config /nowhere.yaml: No such file"},
        {1, "--data-parallel 2", "--pipeline 2 times --data-parallel 2"},
    };

    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const int wrong = rows[i].rank, well = 1 - wrong;
        uint16_t port = free_port();
        struct process p[2];
        char more[200], host[32];

        for (int r = 0; r < 2; r++) {
            snprintf(more, sizeof more, "--steps 3 %s %s", r == 0 ? "--serve" : "",
                     r == wrong ? rows[i].more : "");
            start_by_hand(&p[r], r, port, more);
        }
        for (int r = 0; r < 2; r++)
            cr_expect(process_wait(&p[r], PATIENCE_MS), "rank %d is still running", r);
        snprintf(host, sizeof host, "rank %d on h%d", wrong, wrong);
        cr_expect_eq(p[wrong].status, 2, "%d: %s", p[wrong].status, p[wrong].err);
        cr_expect_not_null(strstr(p[wrong].err, rows[i].says), "%s", p[wrong].err);
        cr_expect_eq(process_lines(p[wrong].err), 1, "%s", p[wrong].err);
        cr_expect_eq(p[well].status, 3, "%d: %s", p[well].status, p[well].err);
        cr_expect_not_null(strstr(p[well].err, rows[i].says), "%s", p[well].err);
        cr_expect_not_null(strstr(p[well].err, host), "%s", p[well].err);
    }
}

/* Hosts by label: h0 and h1 in the order of the ranks. */
Test(launch, ranks_that_run_where_they_were_not_planned)
{
    static const struct {
        const char *planned, *clusters;
        int status[2];
        const char *says[2]; /* "": nothing */
    } rows[] = {
        {"h0,h1.site.org", "A,B", {0, 0}, {"", ""}},
        {"h1,h0", "A,A", {0, 0}, {"rank 0, planned for h1, runs on h0", ""}},
        {"x0,x1", "A,B", {0, 0}, {"a name that the plan does not have (and so for 1 more", ""}},
        {"h0,h0", "A,A", {0, 0}, {"rank 1, planned for h0, runs on h1", ""}},
    };

    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        uint16_t port = free_port();
        struct process p[2];
        char more[200];

        for (int r = 0; r < 2; r++) {
            snprintf(more, sizeof more, "--steps 3 %s --planned-hosts %s --cluster %s",
                     r == 0 ? "--serve" : "", rows[i].planned, rows[i].clusters);
            start_by_hand(&p[r], r, port, more);
        }
        for (int r = 0; r < 2; r++) {
            cr_expect(process_wait(&p[r], PATIENCE_MS), "rank %d is still running", r);
            cr_expect_eq(p[r].status, rows[i].status[r], "row %zu: %d: %s", i, p[r].status,
                         p[r].err);
            if (rows[i].says[r][0])
                cr_expect_not_null(strstr(p[r].err, rows[i].says[r]), "row %zu: %s", i, p[r].err);
            else
                cr_expect_null(strstr(p[r].err, "planned"), "row %zu: %s", i, p[r].err);
        }
    }
}

/* The last warning before a failure is told as its cause, and this is none. */
Test(launch, a_host_that_was_not_planned_is_no_cause)
{
    uint16_t port = free_port();
    struct process p[2];

    start_by_hand(&p[0], 0, port,
                  "--steps 3 --serve --planned-hosts h1,h0 --cluster A,A --plugin nosuch");
    start_by_hand(&p[1], 1, port, "--steps 3 --planned-hosts h1,h0 --cluster A,A");
    for (int r = 0; r < 2; r++)
        cr_expect(process_wait(&p[r], PATIENCE_MS), "rank %d is still running", r);
    cr_expect_eq(p[0].status, 1, "%d: %s", p[0].status, p[0].err);
    cr_expect_not_null(strstr(p[0].err, "rank 0, planned for h1, runs on h0"), "%s", p[0].err);
    cr_expect_not_null(strstr(p[0].err, "cannot use --plugin nosuch"), "%s", p[0].err);
    cr_expect_null(strstr(p[0].err, "(rank 0, planned"), "%s", p[0].err);
}

/* Pipelines would cross clusters in other places than planned. */
Test(launch, a_rank_in_another_cluster_than_planned_ends_the_job)
{
    uint16_t port = free_port();
    struct process p[2];

    start_by_hand(&p[0], 0, port, "--steps 3 --serve --planned-hosts h1,h0 --cluster A,B");
    start_by_hand(&p[1], 1, port, "--steps 3 --planned-hosts h1,h0 --cluster A,B");
    for (int r = 0; r < 2; r++) {
        cr_expect(process_wait(&p[r], PATIENCE_MS), "rank %d is still running", r);
        cr_expect(p[r].status == 2 || p[r].status == 3, "%d: %s", p[r].status, p[r].err);
        cr_expect_not_null(strstr(p[r].err, "which the plan has in cluster "), "%s", p[r].err);
    }
    cr_expect(p[0].status == 2 || p[1].status == 2);
}

Test(launch, ranks_that_read_other_data_end_the_job)
{
    uint16_t port = free_port();
    struct process p[2];

    start_by_hand(&p[0], 0, port, "--steps 3 --serve");
    snprintf(text, sizeof text, "%s/other", dir);
    {
        FILE *f = fopen(text, "we");

        cr_assert_not_null(f);
        for (int i = 0; i < 3000; i++)
            fprintf(f, "another text than that of the first ");
        cr_assert_eq(fclose(f), 0);
    }
    start_by_hand(&p[1], 1, port, "--steps 3");
    for (int r = 0; r < 2; r++) {
        cr_expect(process_wait(&p[r], PATIENCE_MS), "rank %d is still running", r);
        cr_expect_eq(p[r].status, r == 1 ? 2 : 3, "rank %d: %d: %s", r, p[r].status, p[r].err);
        cr_expect_not_null(strstr(p[r].err, "--data: 108000 bytes"), "%s", p[r].err);
    }
}

Test(launch, the_survivor_of_a_job_by_hand_says_who_died)
{
    uint16_t port = free_port();
    struct process p[2];
    char log[128], more[256];

    snprintf(log, sizeof log, "%s/log", dir);
    snprintf(more, sizeof more, "--steps 1000000 --serve --log %s", log);
    start_by_hand(&p[0], 0, port, more);
    start_by_hand(&p[1], 1, port, "--steps 1000000");
    cr_assert(process_file_has(log, "\"step\",", 2, PATIENCE_MS), "the job does not train");
    cr_assert_eq(kill(p[1].pid, SIGKILL), 0);
    process_wait(&p[1], PATIENCE_MS);
    expect_end(&p[0], 3, "rank 1");
}

/* Not after --join-timeout: rank 0, which serves, fails before anybody is met. */
Test(launch, a_rank_that_cannot_begin_is_told_to_those_that_wait)
{
    uint16_t port = free_port();
    struct process p[2];

    start_by_hand(&p[1], 1, port, "--steps 1 --join-timeout 3600");
    start_by_hand(&p[0], 0, port, "--steps 1 --serve --resume /nowhere --join-timeout 3600");
    expect_end(&p[0], 2, "/nowhere");
    expect_end(&p[1], 3, "/nowhere");
}

Test(launch, a_rank_with_another_secret_is_kept_out)
{
    uint16_t port = free_port();
    struct process p[2];

    start_by_hand(&p[0], 0, port, "--steps 1 --serve --join-timeout 3");
    process_start(&p[1], "HOLMES_JOB_SECRET=other",
                  "--data %s " SMALL " --rank 1 --world 2 --pipeline 2 --plugin %s --quiet "
                  "--rendezvous 127.0.0.1:%u --join-timeout 2",
                  text, plugin(), port);
    expect_end(&p[1], 1, "cannot join the job");
    cr_expect(process_wait(&p[0], PATIENCE_MS), "still running");
    cr_expect_eq(p[0].status, 1, "status %d: %s", p[0].status, p[0].err);
}

/* --- runs that go well ------------------------------------------------------------------------ */

#define STEPS 50

struct curve {
    double loss[STEPS], norm[STEPS];
    int steps;
};

static json_t *run(const char *name, const char *env, const char *more)
{
    char log[128], why[300] = "";
    struct process p;
    json_t *records = NULL;
    bool cut;

    snprintf(log, sizeof log, "%s/%s", dir, name);
    process_start(&p, env, "--data %s " SMALL " --quiet --log %s %s %s %s", text, log,
                  strstr(more, "--local") ? "--plugin" : "",
                  strstr(more, "--local") ? plugin() : "", more);
    cr_assert(process_wait(&p, 4 * PATIENCE_MS), "%s: still running", more);
    cr_assert_eq(p.status, 0, "%s: status %d: %s", more, p.status, p.err);
    cr_expect_str_eq(p.err, "");
    cr_expect(!process_left(&p, PATIENCE_MS), "%s: processes are left", more);
    cr_assert_eq(holmes_jsonlog_read(log, &records, &cut, why, sizeof why), 0, "%s", why);
    return records;
}

static void read_curve(const json_t *records, struct curve *c)
{
    const json_t *r;
    size_t i;

    c->steps = 0;
    json_array_foreach(records, i, r)
    {
        if (strcmp(json_string_value(json_object_get(r, "record")), "step") != 0)
            continue;
        cr_assert_lt(c->steps, STEPS);
        c->loss[c->steps] = json_number_value(json_object_get(r, "loss"));
        c->norm[c->steps++] = json_number_value(json_object_get(r, "grad_norm"));
    }
    cr_assert_eq(c->steps, STEPS);
}

Test(launch, ranks_over_the_plugin_train_as_one_process_does)
{
    static const char *const splits[] = {
        "--local 2 --pipeline 2",
        "--local 2 --data-parallel 2",
        "--local 4 --pipeline 2 --data-parallel 2",
        "--local 4 --pipeline 2 --data-parallel 2 --placement naive --tied",
        "--local 8 --tensor 2 --pipeline 2 --data-parallel 2",
        "--local 4 --tensor 2 --pipeline 2 --tied --recompute --placement naive",
        "--local 3 --pipeline 3 --stage-layers 0,2,0 --tied"};
    struct curve one[2];

    for (int tied = 0; tied < 2; tied++) {
        json_t *records = run("one", NULL,
                              tied ? "--steps 50 --lr 3e-3 --final-lr 3e-3 --tied"
                                   : "--steps 50 --lr 3e-3 --final-lr 3e-3");

        read_curve(records, &one[tied]);
        json_decref(records);
        cr_assert_geq(one[tied].loss[0] - one[tied].loss[STEPS - 1], 0.5);
    }
    for (size_t i = 0; i < sizeof splits / sizeof *splits; i++) {
        const struct curve *expect = &one[strstr(splits[i], "tied") != NULL];
        char more[256];
        struct curve c;
        json_t *records;

        snprintf(more, sizeof more, "--steps 50 --lr 3e-3 --final-lr 3e-3 %s", splits[i]);
        records = run("split", NULL, more);
        read_curve(records, &c);
        json_decref(records);
        for (int s = 0; s < STEPS; s++) {
            cr_expect_lt(fabs(c.loss[s] / expect->loss[s] - 1), 1e-5, "%s: step %d: %.8g, %.8g",
                         splits[i], s + 1, c.loss[s], expect->loss[s]);
            cr_expect_lt(fabs(c.norm[s] / expect->norm[s] - 1), 1e-4, "%s: step %d: %.8g, %.8g",
                         splits[i], s + 1, c.norm[s], expect->norm[s]);
        }
    }
}

/* Bytes of all ranks by the log, sent and received. */
static void count_log(const json_t *records, double bytes[2])
{
    static const char *const keys[2] = {"bytes_sent", "bytes_received"};
    const json_t *r, *link, *peer;
    size_t i, j, k;

    json_array_foreach(records, i, r)
        json_array_foreach(json_object_get(r, "communicators"), j, link)
            json_array_foreach(json_object_get(link, "peers"), k, peer) for (int d = 0; d < 2; d++)
                bytes[d] += json_number_value(json_object_get(peer, keys[d]));
}

/* The same by what the records say of the wires. */
static void count_wires(const json_t *records, double bytes[2])
{
    static const char *const keys[2] = {"bytes_sent", "bytes_received"};
    const json_t *r, *link, *wire;
    size_t i, j, k;

    json_array_foreach(records, i, r)
        json_array_foreach(json_object_get(r, "communicators"), j, link)
            json_array_foreach(json_object_get(link, "wires"), k, wire)
    {
        cr_expect_str_eq(json_string_value(json_object_get(wire, "wire")), "tcp");
        cr_expect_gt(json_integer_value(json_object_get(wire, "connections")), 0);
        for (int d = 0; d < 2; d++)
            bytes[d] += json_number_value(json_object_get(wire, keys[d]));
    }
}

/* And by the plugin's own counters. */
static int count_stats(double bytes[2])
{
    char command[160], path[256];
    FILE *list;
    int files = 0;

    snprintf(command, sizeof command, "ls %s/stats.*", dir);
    list = popen(command, "r");
    cr_assert_not_null(list);
    while (fgets(path, sizeof path, list)) {
        json_t *stats;
        const json_t *c;
        size_t i;

        path[strcspn(path, "\n")] = '\0';
        stats = json_load_file(path, 0, NULL);
        cr_assert_not_null(stats, "%s", path);
        files++;
        json_array_foreach(json_object_get(stats, "connections"), i, c)
        {
            const char *direction = json_string_value(json_object_get(c, "direction"));

            bytes[strcmp(direction, "recv") == 0] += json_number_value(json_object_get(c, "bytes"));
        }
        json_decref(stats);
    }
    pclose(list);
    return files;
}

Test(launch, trainer_and_plugin_count_the_same_bytes)
{
    double by_log[2] = {0}, by_wire[2] = {0}, by_plugin[2] = {0};
    char env[128];
    json_t *records;

    snprintf(env, sizeof env, "HOLMES_STATS=%s/stats.%%p", dir);
    records =
        run("log", env, "--local 8 --tensor 2 --pipeline 2 --data-parallel 2 --tied --steps 3");
    count_log(records, by_log);
    count_wires(records, by_wire);
    json_decref(records);
    cr_expect_eq(by_log[0], by_wire[0], "sent: %.0f, of known wire %.0f", by_log[0], by_wire[0]);
    cr_expect_eq(by_log[1], by_wire[1], "received: %.0f, of known wire %.0f", by_log[1],
                 by_wire[1]);
    cr_expect_eq(count_stats(by_plugin), 8, "every rank writes its counters");
    cr_expect_gt(by_log[0], 0);
    cr_expect_eq(by_log[0], by_log[1], "%.0f bytes sent, %.0f received", by_log[0], by_log[1]);
    cr_expect_eq(by_log[0], by_plugin[0], "sent: %.0f by the trainer, %.0f by the plugin",
                 by_log[0], by_plugin[0]);
    cr_expect_eq(by_log[1], by_plugin[1], "received: %.0f by the trainer, %.0f by the plugin",
                 by_log[1], by_plugin[1]);
}

/* What training sent between stages, all ranks together. */
static double pipeline_bytes(const json_t *records)
{
    const json_t *r, *link, *peer;
    double bytes = 0;
    size_t i, j, k;

    json_array_foreach(records, i, r)
    {
        json_array_foreach(json_object_get(r, "communicators"), j, link)
        {
            if (strcmp(json_string_value(json_object_get(link, "kind")), "pp") != 0)
                continue;
            json_array_foreach(json_object_get(link, "peers"), k, peer) bytes +=
                json_number_value(json_object_get(peer, "bytes_sent")) -
                json_number_value(json_object_get(peer, "eval_bytes_sent"));
        }
    }
    return bytes;
}

/* The ranks of a tensor group send a slice each: a sequence's activations and their gradients cross
 * between stages once, however many ranks share them. */
Test(launch, tensor_groups_send_between_stages_what_one_rank_would)
{
    static const char *const splits[] = {"--local 2 --pipeline 2",
                                         "--local 4 --pipeline 2 --tensor 2",
                                         "--local 8 --pipeline 2 --tensor 2 --data-parallel 2"};
    const double sequence = 16 * 16 * 4, steps = 3;

    for (size_t i = 0; i < sizeof splits / sizeof *splits; i++) {
        char more[128];
        json_t *records;

        snprintf(more, sizeof more, "%s --steps 3", splits[i]);
        records = run("log", NULL, more);
        cr_expect_eq(pipeline_bytes(records), 2 * 8 * sequence * steps, "%s: %.0f bytes", splits[i],
                     pipeline_bytes(records));
        json_decref(records);
    }
}

/* Ranks are handed out over two hosts in each of two clusters in turn. */
Test(launch, planned_placement_keeps_gradients_inside_clusters_and_tensor_groups_inside_hosts)
{
    json_t *records = run("log", NULL,
                          "--local 8 --tensor 2 --pipeline 2 --data-parallel 2 --steps 2 "
                          "--host-label a0,b0,a1,b1,a0,b0,a1,b1 --cluster A,B,A,B,A,B,A,B");
    const json_t *r, *link, *peer;
    int dp = 0, pp = 0, tp = 0;
    size_t i, j, k;

    json_array_foreach(records, i, r)
    {
        int rank = (int)json_integer_value(json_object_get(r, "rank"));

        json_array_foreach(json_object_get(r, "communicators"), j, link)
        {
            const char *kind = json_string_value(json_object_get(link, "kind"));

            json_array_foreach(json_object_get(link, "peers"), k, peer)
            {
                int other = (int)json_integer_value(json_object_get(peer, "rank"));

                cr_assert(other >= 0 && other < 8 && rank >= 0 && rank < 8);
                if (strcmp(kind, "dp") == 0 && ++dp)
                    cr_expect_eq(rank % 2, other % 2, "ranks %d and %d", rank, other);
                if (strcmp(kind, "pp") == 0 && ++pp)
                    cr_expect_neq(rank % 2, other % 2, "ranks %d and %d", rank, other);
                if (strcmp(kind, "tp") == 0 && ++tp)
                    cr_expect_eq(rank % 4, other % 4, "ranks %d and %d", rank, other);
            }
        }
    }
    json_decref(records);
    cr_expect_eq(dp, 8);
    cr_expect_eq(pp, 8);
    cr_expect_eq(tp, 8);
}

Test(launch, help_teaches)
{
    struct process p;

    process_start(&p, NULL, "--help");
    cr_expect(process_wait(&p, PATIENCE_MS));
    cr_expect_eq(p.status, 0);
    cr_expect_not_null(strstr(p.out, "Examples:"));
    cr_expect_not_null(strstr(p.out, "--local 4 --pipeline 2 --data-parallel 2"));
    cr_expect_not_null(strstr(p.out, "Exit status:"));
    cr_expect_null(strstr(p.out, "--launched"), "what is for the launcher alone is shown");
}
