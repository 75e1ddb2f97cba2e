/* Starting and ending one process. The child tells of a failed exec through a pipe that a
 * successful one closes. */
#include "tool/child.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

void holmes_child_close(int *fd)
{
    if (*fd >= 0)
        close(*fd);
    *fd = -1;
}

/* Both ends above the standard three, which the child overwrites. */
static int pipe_above(int ends[2])
{
    if (pipe2(ends, O_CLOEXEC) != 0) {
        ends[0] = ends[1] = -1;
        return -errno;
    }
    for (int i = 0; i < 2; i++) {
        int fd;

        if (ends[i] > STDERR_FILENO)
            continue;
        fd = fcntl(ends[i], F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
        if (fd < 0)
            return -errno;
        close(ends[i]);
        ends[i] = fd;
    }
    return 0;
}

static void child_run(char *const *argv, const int std[3], int tell, pid_t parent,
                      const sigset_t *mask)
{
    int err;

    setpgid(0, 0);
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (getppid() != parent)
        _exit(127);
    for (int fd = 0; fd < 3; fd++)
        if (dup2(std[fd], fd) < 0)
            goto fail;
    sigprocmask(SIG_SETMASK, mask, NULL);
    execvp(argv[0], argv);
fail:
    err = errno;
    if (write(tell, &err, sizeof err) < 0)
        _exit(126);
    _exit(127);
}

int holmes_child_spawn(char *const *argv, bool talks, const sigset_t *mask,
                       struct holmes_child *out)
{
    int in[2] = {-1, -1}, o[2] = {-1, -1}, e[2] = {-1, -1}, tell[2] = {-1, -1}, err = 0, rc;
    pid_t parent = getpid(), pid;
    ssize_t n;

    if (talks) {
        rc = pipe_above(in);
    } else {
        in[0] = open("/dev/null", O_RDONLY | O_CLOEXEC);
        rc = in[0] < 0 ? -errno : 0;
    }
    if (rc == 0)
        rc = pipe_above(o);
    if (rc == 0)
        rc = pipe_above(e);
    if (rc == 0)
        rc = pipe_above(tell);
    if (rc != 0)
        goto out;
    pid = fork();
    if (pid < 0) {
        rc = -errno;
        goto out;
    }
    if (pid == 0)
        child_run(argv, (const int[3]){in[0], o[1], e[1]}, tell[1], parent, mask);
    holmes_child_close(&tell[1]);
    do
        n = read(tell[0], &err, sizeof err);
    while (n < 0 && errno == EINTR);
    if (n != 0) {
        while (waitpid(pid, NULL, 0) < 0 && errno == EINTR)
            ;
        rc = n == sizeof err ? -err : -EIO;
        goto out;
    }
    for (int i = 0; i < 3; i++)
        if ((const int[3]){in[1], o[0], e[0]}[i] >= 0)
            fcntl((const int[3]){in[1], o[0], e[0]}[i], F_SETFL, O_NONBLOCK);
    *out = (struct holmes_child){.pid = pid, .in = in[1], .out = o[0], .err = e[0]};
    in[1] = o[0] = e[0] = -1;
out:
    for (int i = 0; i < 2; i++) {
        holmes_child_close(&in[i]);
        holmes_child_close(&o[i]);
        holmes_child_close(&e[i]);
        holmes_child_close(&tell[i]);
    }
    return rc;
}

void holmes_child_signal(const struct holmes_child *c, int sig)
{
    if (c->pid > 0)
        kill(-c->pid, sig);
}

bool holmes_child_ended(const struct holmes_child *c)
{
    siginfo_t info = {.si_pid = 0};

    /* Not reaped yet: the number of its group cannot be another's. */
    if (waitid(P_PID, (id_t)c->pid, &info, WEXITED | WNOHANG | WNOWAIT) != 0 || info.si_pid == 0)
        return false;
    kill(-c->pid, SIGKILL);
    return true;
}

int holmes_child_reap(struct holmes_child *c)
{
    int status = 0;

    while (waitpid(c->pid, &status, 0) < 0 && errno == EINTR)
        ;
    c->pid = 0;
    return status;
}
