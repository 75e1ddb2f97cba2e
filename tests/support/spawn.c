/* The new process executes the same file. A constructor finds what to do in an inherited
 * descriptor, does it and exits, before Criterion's main. */
#include "spawn.h"

#include <criterion/criterion.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define VARIABLE "SPAWN_ORDER"

struct order {
    intptr_t entry;
    size_t len;
    int nfds, fds[SPAWN_FDS_MAX];
};

static bool spawned;

/* Criterion's assertions report here what fails (linked with --wrap). */
void __real_criterion_send_assert(struct criterion_assert_stats *stats);
void __wrap_criterion_send_assert(struct criterion_assert_stats *stats);

void __wrap_criterion_send_assert(struct criterion_assert_stats *stats)
{
    if (!spawned) {
        __real_criterion_send_assert(stats);
        return;
    }
    fprintf(stderr, "in a spawned process: %s:%u: %s\n", stats->file, stats->line, stats->message);
    _exit(SPAWN_ASSERTION_FAILED);
}

static void anchor(void)
{
}

intptr_t spawn_number(void (*fn)(void))
{
    return (intptr_t)fn - (intptr_t)anchor;
}

void (*spawn_function(intptr_t number))(void)
{
    return (void (*)(void))((intptr_t)anchor + number);
}

__attribute__((constructor)) static void obey(void)
{
    const char *variable = getenv(VARIABLE);
    struct order order;
    void *arg;
    int fd;

    if (!variable)
        return;
    spawned = true;
    fd = atoi(variable);
    unsetenv(VARIABLE);
    if (pread(fd, &order, sizeof order, 0) != (ssize_t)sizeof order)
        _exit(100);
    arg = malloc(order.len + 1);
    if (!arg || pread(fd, arg, order.len, sizeof order) != (ssize_t)order.len)
        _exit(101);
    close(fd);
    for (int i = 0; i < order.nfds; i++)
        fcntl(order.fds[i], F_SETFD, FD_CLOEXEC);
    _exit(((spawn_entry *)spawn_function(order.entry))(arg, order.fds));
}

static void become(int order_fd, const struct order *order)
{
    char text[16];

    snprintf(text, sizeof text, "%d", order_fd);
    setenv(VARIABLE, text, 1);
    unsetenv("BXFI_MAP"); /* else it would take itself for a process of Criterion's */
    for (int i = 0; i < order->nfds; i++)
        fcntl(order->fds[i], F_SETFD, 0);
    execl("/proc/self/exe", "spawned", (char *)NULL);
    _exit(102);
}

pid_t spawn(spawn_entry *entry, const void *arg, size_t len, const int *fds, int nfds)
{
    struct order order = {.entry = spawn_number((void (*)(void))entry), .len = len, .nfds = nfds};
    int fd = memfd_create("order", 0);
    pid_t pid = -1;

    for (int i = 0; i < nfds; i++)
        order.fds[i] = fds[i];
    if (fd >= 0 && write(fd, &order, sizeof order) == (ssize_t)sizeof order &&
        (len == 0 || write(fd, arg, len) == (ssize_t)len)) {
        pid = fork();
        if (pid == 0)
            become(fd, &order);
    }
    if (fd >= 0)
        close(fd);
    return pid;
}
