/* Runs the built holmes-train as a user does: arguments, exit status, what it says, how long it
 * takes, and whether anything of it is left. */
#ifndef HOLMES_TEST_PROCESS_H
#define HOLMES_TEST_PROCESS_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#define PROCESS_ARGS_MAX 64

struct process {
    pid_t pid; /* leader of a process group of its own */
    int out_fd, err_fd;
    char out[32768], err[8192];
    int status; /* exit status, or 128 + signal */
};

/* Splits `arguments` at blanks. `env` may be NULL or "NAME=value". Fails the test when it cannot.
 */
void process_start(struct process *p, const char *env, const char *arguments, ...)
    __attribute__((format(printf, 3, 4)));
/* Reads all output until the process ends. False after timeout_ms: it is then killed. */
bool process_wait(struct process *p, int timeout_ms);
/* Processes of its group that still run; waits up to timeout_ms for there to be none. */
bool process_left(struct process *p, int timeout_ms);
void process_kill_group(struct process *p);

/* Children of a process; returns how many. */
int process_children(pid_t pid, pid_t *out, int max);
/* Waits until the file holds `count` times `text`. */
bool process_file_has(const char *path, const char *text, int count, int timeout_ms);

int process_lines(const char *text);

#endif
