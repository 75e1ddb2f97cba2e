/* fork and exec with pipes, bounded by poll. */
#include "process.h"

#include <criterion/criterion.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "clock.h"

static void pause_briefly(void)
{
    poll(NULL, 0, 5);
}

void process_start(struct process *p, const char *env, const char *arguments, ...)
{
    static char text[4096];
    char *args[PROCESS_ARGS_MAX + 2] = {getenv("TEST_TRAIN")};
    int out[2], err[2], n = 1;
    va_list ap;

    va_start(ap, arguments);
    vsnprintf(text, sizeof text, arguments, ap);
    va_end(ap);
    cr_assert_not_null(args[0], "TEST_TRAIN is not set");
    for (char *save, *a = strtok_r(text, " ", &save); a && n < PROCESS_ARGS_MAX;
         a = strtok_r(NULL, " ", &save))
        args[n++] = a;
    memset(p, 0, sizeof *p);
    cr_assert_eq(pipe2(out, O_CLOEXEC), 0);
    cr_assert_eq(pipe2(err, O_CLOEXEC), 0);
    p->pid = fork();
    cr_assert_geq(p->pid, 0);
    if (p->pid == 0) {
        setpgid(0, 0);
        unsetenv("HOLMES_JOB_SECRET");
        if (env)
            putenv(strdup(env));
        dup2(out[1], STDOUT_FILENO);
        dup2(err[1], STDERR_FILENO);
        execv(args[0], args);
        _exit(127);
    }
    setpgid(p->pid, p->pid); /* whoever comes first */
    close(out[1]);
    close(err[1]);
    p->out_fd = out[0];
    p->err_fd = err[0];
}

/* Appends what is there; false at the end of the file. */
static bool drain(int fd, char *buf, size_t size)
{
    size_t len = strlen(buf);
    char rest[1024];
    ssize_t n = read(fd, rest, sizeof rest);

    if (n <= 0)
        return n < 0 && errno == EINTR;
    if ((size_t)n > size - 1 - len)
        n = (ssize_t)(size - 1 - len);
    memcpy(buf + len, rest, (size_t)n);
    buf[len + (size_t)n] = '\0';
    return true;
}

bool process_wait(struct process *p, int timeout_ms)
{
    uint64_t deadline = holmes_deadline_ms((uint64_t)timeout_ms);
    bool in_time = true;
    int status;

    for (bool ended = false;; pause_briefly()) {
        struct pollfd fds[2] = {{p->out_fd, POLLIN, 0}, {p->err_fd, POLLIN, 0}};

        while (poll(fds, 2, 0) > 0) {
            bool more = (fds[0].revents && drain(p->out_fd, p->out, sizeof p->out)) ||
                        (fds[1].revents && drain(p->err_fd, p->err, sizeof p->err));

            if (!more)
                break;
        }
        if (ended)
            break;
        if (in_time && holmes_deadline_passed(deadline)) {
            in_time = false;
            process_kill_group(p);
        }
        if (waitpid(p->pid, &status, WNOHANG) == p->pid) {
            p->status = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
            ended = true;
        }
    }
    close(p->out_fd);
    close(p->err_fd);
    return in_time;
}

bool process_left(struct process *p, int timeout_ms)
{
    uint64_t deadline = holmes_deadline_ms((uint64_t)timeout_ms);

    while (kill(-p->pid, 0) == 0) {
        if (holmes_deadline_passed(deadline))
            return true;
        pause_briefly();
    }
    return false;
}

void process_kill_group(struct process *p)
{
    kill(-p->pid, SIGKILL);
}

static pid_t parent_of(const char *pid)
{
    char path[64], text[512], *end;
    FILE *f;
    int parent = 0;

    snprintf(path, sizeof path, "/proc/%.20s/stat", pid);
    f = fopen(path, "re");
    if (!f)
        return 0;
    if (fgets(text, sizeof text, f)) {
        end = strrchr(text, ')');
        if (!end || sscanf(end + 1, " %*c %d", &parent) != 1)
            parent = 0;
    }
    fclose(f);
    return parent;
}

int process_children(pid_t pid, pid_t *out, int max)
{
    DIR *proc = opendir("/proc");
    struct dirent *e;
    int n = 0;

    cr_assert_not_null(proc);
    while (n < max && (e = readdir(proc)))
        if (e->d_name[0] >= '1' && e->d_name[0] <= '9' && parent_of(e->d_name) == pid)
            out[n++] = atoi(e->d_name);
    closedir(proc);
    return n;
}

static int count_in_file(const char *path, const char *text)
{
    char line[65536];
    int n = 0;
    FILE *f = fopen(path, "re");

    if (!f)
        return 0;
    while (fgets(line, sizeof line, f))
        n += strstr(line, text) != NULL;
    fclose(f);
    return n;
}

bool process_file_has(const char *path, const char *text, int count, int timeout_ms)
{
    uint64_t deadline = holmes_deadline_ms((uint64_t)timeout_ms);

    while (count_in_file(path, text) < count) {
        if (holmes_deadline_passed(deadline))
            return false;
        pause_briefly();
    }
    return true;
}

int process_lines(const char *text)
{
    int n = 0;

    for (; *text; text++)
        n += *text == '\n';
    return n;
}
