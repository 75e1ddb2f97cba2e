/* A small ring of kept warnings behind the log's sink. */
#include "notes.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "log.h"

#define NOTES_MAX 16

static pthread_mutex_t notes_lock = PTHREAD_MUTEX_INITIALIZER;
static char notes[NOTES_MAX][1024];
static unsigned notes_count; /* ever kept since the last time they were shown */

static void notes_sink(void *ctx, enum holmes_log_level level, enum holmes_log_subsys subsys,
                       const char *file, int line, const char *func, const char *msg)
{
    (void)ctx, (void)subsys, (void)file, (void)line, (void)func;
    if (level != HOLMES_LOG_WARN) {
        fprintf(stderr, "holmes info: %s\n", msg);
        return;
    }
    pthread_mutex_lock(&notes_lock);
    snprintf(notes[notes_count++ % NOTES_MAX], sizeof notes[0], "%s", msg);
    pthread_mutex_unlock(&notes_lock);
}

void holmes_notes_start(void)
{
    holmes_log_set_sink(notes_sink, NULL, holmes_log_level());
}

void holmes_notes_stop(void)
{
    holmes_notes_show(NULL, NULL);
    holmes_log_set_sink(NULL, NULL, HOLMES_LOG_WARN);
}

void holmes_notes_show(void (*before)(void *ctx), void *ctx)
{
    unsigned first;

    pthread_mutex_lock(&notes_lock);
    first = notes_count > NOTES_MAX ? notes_count - NOTES_MAX : 0;
    if (notes_count > 0 && before)
        before(ctx);
    for (unsigned i = first; i < notes_count; i++)
        fprintf(stderr, "holmes warn: %s\n", notes[i % NOTES_MAX]);
    notes_count = 0;
    pthread_mutex_unlock(&notes_lock);
}

void holmes_notes_take_last(char *out, size_t out_len)
{
    pthread_mutex_lock(&notes_lock);
    snprintf(out, out_len, "%s", notes_count ? notes[(notes_count - 1) % NOTES_MAX] : "");
    notes_count = 0;
    pthread_mutex_unlock(&notes_lock);
}

void holmes_notes_drop(void)
{
    char last[2];

    holmes_notes_take_last(last, sizeof last);
}
