/* The log front: formats a line once and hands it to the current sink. The sink and its context
 * change together under a lock, because NCCL gives its logger while other threads may log. */
#include "log.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

static pthread_mutex_t sink_lock = PTHREAD_MUTEX_INITIALIZER;
static holmes_log_sink sink_fn;
static void *sink_ctx;
static atomic_int sink_level = HOLMES_LOG_WARN;
static atomic_int default_level = HOLMES_LOG_WARN;

static const char *const level_names[] = {"warn", "info", "trace"};

static void stderr_sink(enum holmes_log_level level, const char *file, int line, const char *msg)
{
    if (level == HOLMES_LOG_WARN)
        fprintf(stderr, "holmes %s: %s [%s:%d]\n", level_names[level], msg, file, line);
    else
        fprintf(stderr, "holmes %s: %s\n", level_names[level], msg);
}

void holmes_log_set_sink(holmes_log_sink sink, void *ctx, enum holmes_log_level max_level)
{
    pthread_mutex_lock(&sink_lock);
    sink_fn = sink;
    sink_ctx = ctx;
    atomic_store(&sink_level, sink ? (int)max_level : atomic_load(&default_level));
    pthread_mutex_unlock(&sink_lock);
}

void holmes_log_set_level(enum holmes_log_level level)
{
    pthread_mutex_lock(&sink_lock);
    atomic_store(&default_level, level);
    if (!sink_fn)
        atomic_store(&sink_level, level);
    pthread_mutex_unlock(&sink_lock);
}

enum holmes_log_level holmes_log_level(void)
{
    return (enum holmes_log_level)atomic_load_explicit(&sink_level, memory_order_relaxed);
}

int holmes_log_level_parse(const char *name, enum holmes_log_level *out)
{
    for (size_t i = 0; i < sizeof level_names / sizeof *level_names; i++) {
        if (strcmp(name, level_names[i]) == 0) {
            *out = (enum holmes_log_level)i;
            return 0;
        }
    }
    return -EINVAL;
}

void holmes_log_write(enum holmes_log_level level, enum holmes_log_subsys subsys, const char *file,
                      int line, const char *func, const char *fmt, ...)
{
    char msg[1024];
    const char *base = strrchr(file, '/');
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(msg, sizeof msg, fmt, ap);
    va_end(ap);
    base = base ? base + 1 : file;

    pthread_mutex_lock(&sink_lock);
    if (sink_fn)
        sink_fn(sink_ctx, level, subsys, base, line, func, msg);
    else
        stderr_sink(level, base, line, msg);
    pthread_mutex_unlock(&sink_lock);
}

const char *holmes_strerror(int negative_errno)
{
    static _Thread_local char buf[128];

    return strerror_r(-negative_errno, buf, sizeof buf);
}
