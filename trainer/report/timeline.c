/* Reads a trace. Threads are named by metadata events that may come anywhere, so lanes are found
 * first and sorted when all are known. */
#include "timeline.h"

#include <errno.h>
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "file.h"

#define TIMELINE_FILE_MAX ((size_t)1 << 30)
#define TIMELINE_SANE_US  1e15 /* thirty years */

struct reader {
    struct holmes_timeline *t;
    const char *name;
    size_t event;           /* index of the one being read, for sentences */
    size_t lanes_cap, last; /* lane of the event before: the next is often of the same */
    char *why;
    size_t why_len;
};

static int refuse(struct reader *r, const char *what)
{
    snprintf(r->why, r->why_len, "%s: event %zu: %s", r->name, r->event, what);
    return -EINVAL;
}

/* The lane of (rank, track), made if need be; -1 with a sentence when there are too many. */
static int lane_of(struct reader *r, int64_t rank, int64_t track)
{
    struct holmes_timeline *t = r->t;

    if (r->last < t->nlanes && t->lanes[r->last].rank == rank && t->lanes[r->last].track == track)
        return (int)r->last;
    for (r->last = 0; r->last < t->nlanes; r->last++)
        if (t->lanes[r->last].rank == rank && t->lanes[r->last].track == track)
            return (int)r->last;
    if (t->nlanes == HOLMES_TIMELINE_LANES)
        return refuse(r, "more than 4096 threads are in this trace");
    if (t->nlanes == r->lanes_cap) {
        size_t cap = r->lanes_cap > 0 ? r->lanes_cap * 2 : 16;
        struct holmes_timeline_lane *more = realloc(t->lanes, cap * sizeof *more);

        if (!more)
            return -ENOMEM;
        t->lanes = more;
        r->lanes_cap = cap;
    }
    t->lanes[t->nlanes] = (struct holmes_timeline_lane){.rank = rank, .track = track};
    snprintf(t->lanes[t->nlanes].name, sizeof t->lanes[0].name, "track %jd", (intmax_t)track);
    return (int)t->nlanes++;
}

static int event_lane(struct reader *r, const json_t *event)
{
    const json_t *pid = json_object_get(event, "pid"), *tid = json_object_get(event, "tid");

    if (!json_is_integer(pid) || !json_is_integer(tid))
        return refuse(r, "\"pid\" and \"tid\" must be whole numbers");
    return lane_of(r, json_integer_value(pid), json_integer_value(tid));
}

static int read_thread_name(struct reader *r, const json_t *event)
{
    const char *name = json_string_value(json_object_get(json_object_get(event, "args"), "name"));
    int lane;

    if (!name)
        return refuse(r, "a thread_name without args.name");
    lane = event_lane(r, event);
    if (lane < 0)
        return lane;
    snprintf(r->t->lanes[lane].name, sizeof r->t->lanes[lane].name, "%s", name);
    return 0;
}

static int read_span(struct reader *r, const json_t *event)
{
    const json_t *ts = json_object_get(event, "ts"), *dur = json_object_get(event, "dur");
    const char *name = json_string_value(json_object_get(event, "name"));
    double start = json_number_value(ts), length = json_number_value(dur);
    struct holmes_timeline_span *s = &r->t->spans[r->t->nspans];
    int lane;

    if (!json_is_number(ts) || !json_is_number(dur) || !name)
        return refuse(r, "a span needs \"name\", \"ts\" and \"dur\"");
    if (!(fabs(start) <= TIMELINE_SANE_US) || !(length >= 0 && length <= TIMELINE_SANE_US))
        return refuse(r, "\"ts\" or \"dur\" is no time in microseconds");
    lane = event_lane(r, event);
    if (lane < 0)
        return lane;
    *s = (struct holmes_timeline_span){
        .lane = lane, .start = start / 1e3, .end = (start + length) / 1e3};
    snprintf(s->name, sizeof s->name, "%s", name);
    r->t->nspans++;
    return 0;
}

static int read_event(struct reader *r, const json_t *event)
{
    const char *phase = json_string_value(json_object_get(event, "ph"));
    const char *name = json_string_value(json_object_get(event, "name"));

    if (!phase)
        return refuse(r, "no object with a \"ph\": not a trace in Chrome's format");
    if (strcmp(phase, "X") == 0)
        return read_span(r, event);
    if (strcmp(phase, "M") == 0 && name && strcmp(name, "thread_name") == 0)
        return read_thread_name(r, event);
    return 0;
}

/* --- order ---------------------------------------------------------------------------------------
 */

static int by_lane(const void *a, const void *b)
{
    const struct holmes_timeline_lane *x = a, *y = b;

    if (x->rank != y->rank)
        return x->rank < y->rank ? -1 : 1;
    return x->track < y->track ? -1 : x->track > y->track;
}

/* Of two that start together the longer comes first: what it contains is drawn over it. */
static int by_start(const void *a, const void *b)
{
    const struct holmes_timeline_span *x = a, *y = b;

    if (x->lane != y->lane)
        return x->lane < y->lane ? -1 : 1;
    if (x->start != y->start)
        return x->start < y->start ? -1 : 1;
    return x->end > y->end ? -1 : x->end < y->end;
}

/* Orders the spans and finds those that lie within another of their lane, steps not counted. */
static void nest(struct holmes_timeline *t)
{
    double outer = -INFINITY; /* end of the outermost span under way */
    int lane = -1;

    if (t->nspans > 0)
        qsort(t->spans, t->nspans, sizeof *t->spans, by_start);
    for (size_t i = 0; i < t->nspans; i++) {
        struct holmes_timeline_span *s = &t->spans[i];

        if (s->lane != lane)
            outer = -INFINITY;
        lane = s->lane;
        if (holmes_timeline_step_number(s) > 0)
            continue;
        t->lanes[lane].shown = true;
        s->nested = s->end <= outer;
        outer = fmax(outer, s->end);
    }
}

static int sort(struct holmes_timeline *t)
{
    struct holmes_timeline_lane *old = calloc(t->nlanes + 1, sizeof *old);
    int *place = calloc(t->nlanes + 1, sizeof *place);
    double first = INFINITY;
    int rc = old && place ? 0 : -ENOMEM;

    if (rc == 0 && t->nlanes > 0) {
        memcpy(old, t->lanes, t->nlanes * sizeof *old);
        qsort(t->lanes, t->nlanes, sizeof *t->lanes, by_lane);
        for (size_t i = 0; i < t->nlanes; i++) {
            const struct holmes_timeline_lane *now =
                bsearch(&old[i], t->lanes, t->nlanes, sizeof *t->lanes, by_lane);

            place[i] = (int)(now - t->lanes);
        }
    }
    for (size_t i = 0; rc == 0 && i < t->nspans; i++) {
        t->spans[i].lane = place[t->spans[i].lane];
        first = fmin(first, t->spans[i].start);
    }
    for (size_t i = 0; rc == 0 && i < t->nspans; i++) {
        t->spans[i].start -= first;
        t->spans[i].end -= first;
        t->end = fmax(t->end, t->spans[i].end);
    }
    if (rc == 0)
        nest(t);
    free(old);
    free(place);
    return rc;
}

/* --- the file ------------------------------------------------------------------------------------
 */

static int read_events(struct reader *r, const json_t *doc)
{
    const json_t *events = json_is_array(doc) ? doc : json_object_get(doc, "traceEvents"), *event;
    size_t i;
    int rc = 0;

    if (!json_is_array(events)) {
        snprintf(r->why, r->why_len,
                 "%s: no list of \"traceEvents\": not a trace in Chrome's "
                 "format",
                 r->name);
        return -EINVAL;
    }
    r->t->spans = calloc(json_array_size(events) + 1, sizeof *r->t->spans);
    if (!r->t->spans)
        return -ENOMEM;
    json_array_foreach(events, i, event)
    {
        r->event = i;
        rc = read_event(r, event);
        if (rc != 0)
            return rc;
    }
    if (r->t->nspans == 0) {
        snprintf(r->why, r->why_len, "%s: a trace without a single span", r->name);
        return -EINVAL;
    }
    return sort(r->t);
}

int holmes_timeline_parse(const char *name, const void *data, size_t len,
                          struct holmes_timeline *out, char *why, size_t why_len)
{
    struct holmes_timeline t = {0};
    struct reader r = {.t = &t, .name = name, .why = why, .why_len = why_len};
    json_error_t error;
    json_t *doc = json_loadb(data, len, 0, &error);
    int rc;

    snprintf(why, why_len, "%s: out of memory", name);
    if (!doc) {
        snprintf(why, why_len, "%s: line %d: %s: no JSON", name, error.line, error.text);
        return -EINVAL;
    }
    rc = read_events(&r, doc);
    json_decref(doc);
    if (rc != 0)
        holmes_timeline_fini(&t);
    else
        *out = t;
    return rc;
}

int holmes_timeline_read(const char *path, struct holmes_timeline *out, char *why, size_t why_len)
{
    char *data = NULL;
    size_t len = 0;
    int rc = holmes_file_read(path, TIMELINE_FILE_MAX, &data, &len);

    if (rc != 0) {
        snprintf(why, why_len, "%s: %s", path, holmes_file_strerror(rc));
        return rc;
    }
    rc = holmes_timeline_parse(path, data, len, out, why, why_len);
    free(data);
    return rc;
}

void holmes_timeline_fini(struct holmes_timeline *t)
{
    free(t->lanes);
    free(t->spans);
    *t = (struct holmes_timeline){0};
}

/* --- a step -------------------------------------------------------------------------------------
 */

int holmes_timeline_step_number(const struct holmes_timeline_span *s)
{
    int n;
    char rest;

    return sscanf(s->name, "step %d%c", &n, &rest) == 1 && n > 0 ? n : 0;
}

/* The middle one by time: the first steps are the slow ones. */
static int middle_step(const struct holmes_timeline *t)
{
    double nearest = INFINITY;
    int step = 0;

    for (size_t i = 0; i < t->nspans; i++) {
        const struct holmes_timeline_span *s = &t->spans[i];
        double distance = fabs((s->start + s->end) / 2 - t->end / 2);

        if (holmes_timeline_step_number(s) > 0 && distance < nearest) {
            nearest = distance;
            step = holmes_timeline_step_number(s);
        }
    }
    return step;
}

int holmes_timeline_step(const struct holmes_timeline *t, int *step, double *from, double *to)
{
    double low = INFINITY, high = -INFINITY;

    if (*step == 0)
        *step = middle_step(t);
    for (size_t i = 0; *step > 0 && i < t->nspans; i++) {
        if (holmes_timeline_step_number(&t->spans[i]) != *step)
            continue;
        low = fmin(low, t->spans[i].start);
        high = fmax(high, t->spans[i].end);
    }
    *from = low < high ? low : 0;
    *to = low < high ? high : t->end;
    return low < high ? 0 : -ENOENT;
}
