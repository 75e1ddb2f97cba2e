/* A logger that keeps its lines: "level file:line text". */
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "nccl_side.h"

static pthread_mutex_t log_lock = PTHREAD_MUTEX_INITIALIZER;
static char log_buf[1 << 18];
static size_t log_len;

void test_logger(ncclDebugLogLevel level, unsigned long flags, const char *file, int line,
                 const char *fmt, ...)
{
    va_list ap;

    (void)flags;
    pthread_mutex_lock(&log_lock);
    if (log_len < sizeof log_buf - 2048) {
        log_len += (size_t)snprintf(log_buf + log_len, 1024, "%d %s:%d ", (int)level, file, line);
        va_start(ap, fmt);
        log_len += (size_t)vsnprintf(log_buf + log_len, 1000, fmt, ap);
        va_end(ap);
        log_buf[log_len++] = '\n';
        log_buf[log_len] = '\0';
    }
    pthread_mutex_unlock(&log_lock);
    if (getenv("TEST_VERBOSE"))
        fprintf(stderr, "%s", log_buf);
}

static int count_lines(ncclDebugLogLevel level, const char *a, const char *b, bool *both)
{
    int n = 0;

    pthread_mutex_lock(&log_lock);
    for (char *line = log_buf; *line;) {
        char *end = strchr(line, '\n');
        bool wanted = level == NCCL_LOG_NONE || atoi(line) == (int)level;

        *end = '\0';
        if (wanted && strstr(line, a)) {
            n++;
            *both |= b && strstr(line, b);
        }
        *end = '\n';
        line = end + 1;
    }
    pthread_mutex_unlock(&log_lock);
    return n;
}

bool log_has(ncclDebugLogLevel level, const char *a, const char *b)
{
    bool both = false;

    count_lines(level, a, b, &both);
    return both;
}

int log_count(ncclDebugLogLevel level, const char *text)
{
    bool both = false;

    return count_lines(level, text, NULL, &both);
}

void log_clear(void)
{
    pthread_mutex_lock(&log_lock);
    log_len = 0;
    log_buf[0] = '\0';
    pthread_mutex_unlock(&log_lock);
}

const char *log_text(void)
{
    return log_buf;
}
