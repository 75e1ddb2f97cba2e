/* Fresh processes of the running test program, for what lives elsewhere. A plain fork will not do
 * where the child starts threads, and transport and plugin do: Criterion's test process has a
 * thread of its own, and threads after such a fork are beyond the thread sanitizer. */
#ifndef SPAWN_H
#define SPAWN_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#define SPAWN_FDS_MAX          4
#define SPAWN_ASSERTION_FAILED 103 /* exit status; which one is on stderr */

/* Runs in the new process; `fds` are those given to spawn, `arg` a copy. Its result is the exit
 * status. No test is running there: suites' `.init` has not been called, and assertions, cr_expect
 * too, end the process when they fail. */
typedef int spawn_entry(const void *arg, const int *fds);

/* Descriptors without close-on-exec are inherited too. Returns the process id or -1. */
pid_t spawn(spawn_entry *entry, const void *arg, size_t len, const int *fds, int nfds);

/* A function of this program as a number that means the same in a spawned process. */
intptr_t spawn_number(void (*fn)(void));
void (*spawn_function(intptr_t number))(void);

#endif
