/* Runs a script as both ranks of one or more communicators. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../support/spawn.h"
#include "nccl_side.h"

struct rank_thread {
    struct rank rank;
    rank_script *script;
    pthread_t thread;
    bool result;
};

static void *rank_thread_main(void *arg)
{
    struct rank_thread *t = arg;

    t->result = t->script(&t->rank);
    if (!t->result)
        shutdown(t->rank.boot, SHUT_RDWR); /* the other rank need not wait */
    return NULL;
}

void run_in_threads(const char *plugin, int version, int ncomms, rank_script *script, void *arg)
{
    struct rank_thread *threads = calloc((size_t)ncomms * 2, sizeof *threads);

    cr_assert_not_null(threads);
    for (int i = 0; i < ncomms; i++) {
        int pair[2];

        cr_assert_eq(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
        for (int k = 0; k < 2; k++) {
            rank_setup(&threads[2 * i + k].rank, plugin, version, k, pair[k], arg);
            threads[2 * i + k].rank.comm_id = 0x1000u + (unsigned)i;
            threads[2 * i + k].script = script;
        }
    }
    for (int i = 0; i < 2 * ncomms; i++)
        cr_assert_eq(pthread_create(&threads[i].thread, NULL, rank_thread_main, &threads[i]), 0);
    for (int i = 0; i < 2 * ncomms; i++)
        pthread_join(threads[i].thread, NULL);
    for (int i = 0; i < 2 * ncomms; i++) {
        rank_fini(&threads[i].rank);
        cr_expect(threads[i].result, "%s", threads[i].rank.failure);
    }
    free(threads);
}

struct process_order {
    intptr_t script;
    int version;
    size_t arg_len;
    char plugin[512];
    char arg[256];
};

static int process_entry(const void *order, const int *fds)
{
    static struct rank rank;
    struct process_order o;

    memcpy(&o, order, sizeof o);
    rank_setup(&rank, o.plugin, o.version, 1, fds[0], o.arg);
    rank.comm_id = 0x2000;
    if (((rank_script *)spawn_function(o.script))(&rank))
        return 0;
    fprintf(stderr, "%s\n", rank.failure);
    return 1;
}

void run_in_processes(const char *plugin, int version, rank_script *script, const void *arg,
                      size_t arg_len)
{
    struct process_order o = {.script = spawn_number((void (*)(void))script), .version = version};
    struct rank *r = calloc(1, sizeof *r);
    int pair[2], status;
    bool result;
    pid_t child;

    cr_assert_not_null(r);
    cr_assert_leq(arg_len, sizeof o.arg);
    snprintf(o.plugin, sizeof o.plugin, "%s", plugin);
    if (arg_len > 0)
        memcpy(o.arg, arg, arg_len);
    cr_assert_eq(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
    child = spawn(process_entry, &o, sizeof o, &pair[1], 1);
    cr_assert_gt(child, 0);
    close(pair[1]);
    rank_setup(r, plugin, version, 0, pair[0], o.arg);
    r->comm_id = 0x2000;
    result = script(r);
    rank_fini(r);
    cr_expect(result, "%s", r->failure);
    free(r);
    cr_assert_eq(waitpid(child, &status, 0), child);
    cr_expect_eq(status, 0, "rank 1 ended with status 0x%x", status);
}
