/* Logging with levels, subsystems and one replaceable sink.
 *
 * Lines are lower case and greppable ("nic eth0", "conn 12"), carry errno text where there is one,
 * and are written where an error is first known; callers pass it on silently. Thread safe.
 */
#ifndef HOLMES_LOG_H
#define HOLMES_LOG_H

#include <stdarg.h>
#include <stddef.h>

enum holmes_log_level {
    HOLMES_LOG_WARN,  /* something a user should act on */
    HOLMES_LOG_INFO,  /* once per device, connection or run */
    HOLMES_LOG_TRACE, /* anything per message */
};

enum holmes_log_subsys {
    HOLMES_SUBSYS_INIT, /* loading, configuration */
    HOLMES_SUBSYS_NET,  /* connections and data */
    HOLMES_SUBSYS_TOPO, /* devices and their choice */
    HOLMES_SUBSYS_TRAIN,
    HOLMES_SUBSYS_COUNT,
};

/* `msg` has no newline; `file` is the base name of the source file, `func` the function. Called
 * from any thread; must not call back into Holmes. */
typedef void (*holmes_log_sink)(void *ctx, enum holmes_log_level level,
                                enum holmes_log_subsys subsys, const char *file, int line,
                                const char *func, const char *msg);

/* Replaces the sink and returns nothing; NULL restores the default (stderr). `ctx` must outlive
 * its use. Lines above `max_level` are not formatted at all. */
void holmes_log_set_sink(holmes_log_sink sink, void *ctx, enum holmes_log_level max_level);

/* Level of the default sink: HOLMES_LOG_WARN until told otherwise. */
void holmes_log_set_level(enum holmes_log_level level);
enum holmes_log_level holmes_log_level(void);

/* Name of a level ("warn") or -EINVAL for a name that is none. */
int holmes_log_level_parse(const char *name, enum holmes_log_level *out);

void holmes_log_write(enum holmes_log_level level, enum holmes_log_subsys subsys, const char *file,
                      int line, const char *func, const char *fmt, ...)
    __attribute__((format(printf, 6, 7)));

#define HOLMES_LOG_AT(level, subsys, ...)                                                          \
    do {                                                                                           \
        if ((level) <= holmes_log_level())                                                         \
            holmes_log_write(level, HOLMES_SUBSYS_##subsys, __FILE__, __LINE__, __func__,          \
                             __VA_ARGS__);                                                         \
    } while (0)
#define holmes_warn(subsys, ...)  HOLMES_LOG_AT(HOLMES_LOG_WARN, subsys, __VA_ARGS__)
#define holmes_info(subsys, ...)  HOLMES_LOG_AT(HOLMES_LOG_INFO, subsys, __VA_ARGS__)
#define holmes_trace(subsys, ...) HOLMES_LOG_AT(HOLMES_LOG_TRACE, subsys, __VA_ARGS__)

/* errno text for a negative errno, as this project's functions return them. The string lives in a
 * thread-local buffer until the next call on the same thread. */
const char *holmes_strerror(int negative_errno);

#endif
