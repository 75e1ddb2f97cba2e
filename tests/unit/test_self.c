/* What is counted of this process, against what it made. */
#include <criterion/criterion.h>
#include <pthread.h>
#include <sched.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../support/patience.h"
#include "../support/spawn.h"
#include "clock.h"
#include "self.h"

static pthread_barrier_t met;

Test(self, each_descriptor_is_counted_once)
{
    const int before = holmes_self_fds();
    int ends[2];

    cr_assert_gt(before, 0);
    cr_assert_eq(pipe(ends), 0);
    cr_expect_eq(holmes_self_fds(), before + 2);
    close(ends[0]);
    close(ends[1]);
    cr_expect_eq(holmes_self_fds(), before);
}

static void *wait_at(void *barrier)
{
    pthread_barrier_wait(barrier);
    return NULL;
}

Test(self, each_thread_is_counted_once)
{
    enum { THREADS = 8 };
    const int before = holmes_self_threads();
    pthread_t threads[THREADS];
    pthread_barrier_t leave;

    cr_assert_gt(before, 0);
    pthread_barrier_init(&leave, NULL, THREADS + 1);
    for (int i = 0; i < THREADS; i++)
        cr_assert_eq(pthread_create(&threads[i], NULL, wait_at, &leave), 0);
    cr_expect_eq(holmes_self_threads(), before + THREADS);
    pthread_barrier_wait(&leave);
    for (int i = 0; i < THREADS; i++)
        cr_assert_eq(pthread_join(threads[i], NULL), 0);
    cr_expect_eq(holmes_self_threads(), before);
    pthread_barrier_destroy(&leave);
}

static void *outlive(void *deadline)
{
    const int both = holmes_self_threads();

    pthread_barrier_wait(&met);
    while (holmes_self_threads() != both - 1) {
        if (holmes_deadline_passed(*(uint64_t *)deadline))
            _exit(1);
        sched_yield();
    }
    _exit(0);
}

static int end_first(const void *arg, const int *fds)
{
    static uint64_t deadline;
    pthread_t thread;

    (void)arg, (void)fds;
    deadline = holmes_deadline_ms((uint64_t)patience_ms(5000));
    pthread_barrier_init(&met, NULL, 2);
    if (pthread_create(&thread, NULL, outlive, &deadline) != 0)
        return 2;
    pthread_barrier_wait(&met);
    syscall(SYS_exit, 0); /* of this thread alone; there is no main to leave by pthread_exit yet */
    return 3;
}

/* The first thread of a process stays listed as long as another runs. */
Test(self, a_thread_that_ended_is_not_counted_although_it_is_listed)
{
    pid_t pid = spawn(end_first, NULL, 0, NULL, 0);
    int status;

    cr_assert_gt(pid, 0);
    cr_assert_eq(waitpid(pid, &status, 0), pid);
    cr_expect_eq(status, 0, "status %x", status);
}
