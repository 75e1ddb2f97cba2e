/* The recorder is a ring of fixed-size events under one lock: a training step makes hundreds of
 * them, not millions. What a rank packs is its ring, oldest first, behind a header with the names
 * of the tracks and the marks that align the clocks. */
#include "trace.h"

#include <errno.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "clock.h"

#define TRACKS_MAX  64
#define MARKS_MAX   9
#define DROPPED_MAX ((uint64_t)1 << 48) /* no job makes that many */
#define SAME_CLOCK  10000000 /* ns: farther apart, ranks of one machine have clocks of their own */

struct event {
    uint64_t begin, end, bytes;
    int32_t step;
    uint16_t track, spare;
    char name[HOLMES_TRACE_NAME];
};
_Static_assert(sizeof(struct event) == HOLMES_TRACE_EVENT_BYTES, "the header promises it");

struct header {
    char magic[8];
    uint64_t count, dropped;
    uint64_t marks[MARKS_MAX];
    uint32_t nmarks, ntracks;
    char machine[40]; /* one boot of one machine has one clock */
    char tracks[TRACKS_MAX][HOLMES_TRACE_NAME];
};
static const char magic[8] = "holmtrc1";

static struct {
    pthread_mutex_t lock;
    atomic_bool on;
    atomic_int step;
    struct event *events;
    size_t capacity;
    uint64_t recorded; /* since the start; the ring has the last `capacity` */
    struct header head;
} rec = {.lock = PTHREAD_MUTEX_INITIALIZER};

static _Thread_local char next_name[HOLMES_TRACE_NAME];

static void read_machine(char *out, size_t len)
{
    FILE *f = fopen("/proc/sys/kernel/random/boot_id", "re");

    if (!f)
        return;
    if (!fgets(out, (int)len, f))
        out[0] = '\0';
    out[strcspn(out, "\n")] = '\0';
    fclose(f);
}

/* Under the lock. When the table is full the last track takes the rest. */
static uint16_t track_index(const char *name)
{
    struct header *h = &rec.head;
    uint32_t i = 0;

    while (i < h->ntracks && strncmp(h->tracks[i], name, HOLMES_TRACE_NAME - 1) != 0)
        i++;
    if (i == TRACKS_MAX)
        return TRACKS_MAX - 1;
    if (i == h->ntracks)
        snprintf(h->tracks[h->ntracks++], HOLMES_TRACE_NAME, "%s", name);
    return (uint16_t)i;
}

int holmes_trace_start(size_t capacity)
{
    struct event *events = calloc(capacity, sizeof *events);

    if (!events)
        return -ENOMEM;
    holmes_trace_stop();
    pthread_mutex_lock(&rec.lock);
    rec.events = events;
    rec.capacity = capacity;
    memcpy(rec.head.magic, magic, sizeof magic);
    read_machine(rec.head.machine, sizeof rec.head.machine);
    track_index("step"); /* in this order above those of communicators */
    track_index("compute");
    track_index("waiting");
    atomic_store(&rec.on, true);
    pthread_mutex_unlock(&rec.lock);
    return 0;
}

void holmes_trace_stop(void)
{
    pthread_mutex_lock(&rec.lock);
    atomic_store(&rec.on, false);
    free(rec.events);
    rec.events = NULL;
    rec.recorded = 0;
    memset(&rec.head, 0, sizeof rec.head);
    pthread_mutex_unlock(&rec.lock);
}

bool holmes_trace_on(void)
{
    return atomic_load_explicit(&rec.on, memory_order_relaxed);
}

void holmes_trace_step(int step)
{
    atomic_store_explicit(&rec.step, step, memory_order_relaxed);
}

uint64_t holmes_trace_begin(void)
{
    return holmes_trace_on() ? holmes_now_ns() : 0;
}

void holmes_trace_mark(void)
{
    uint64_t now = holmes_now_ns();

    pthread_mutex_lock(&rec.lock);
    if (rec.events && rec.head.nmarks < MARKS_MAX)
        rec.head.marks[rec.head.nmarks++] = now;
    pthread_mutex_unlock(&rec.lock);
}

void holmes_trace_add(uint64_t begin, uint64_t end, size_t bytes, const char *track,
                      const char *name)
{
    struct event *e;

    if (begin == 0 || !holmes_trace_on())
        return;
    pthread_mutex_lock(&rec.lock);
    if (rec.events) {
        e = &rec.events[rec.recorded++ % rec.capacity];
        *e = (struct event){.begin = begin,
                            .end = end,
                            .bytes = bytes,
                            .step = atomic_load_explicit(&rec.step, memory_order_relaxed),
                            .track = track_index(track)};
        snprintf(e->name, sizeof e->name, "%s", name);
    }
    pthread_mutex_unlock(&rec.lock);
}

void holmes_trace_end(uint64_t begin, const char *track, const char *fmt, ...)
{
    char name[HOLMES_TRACE_NAME];
    va_list ap;

    if (begin == 0)
        return;
    va_start(ap, fmt);
    vsnprintf(name, sizeof name, fmt, ap);
    va_end(ap);
    holmes_trace_add(begin, holmes_now_ns(), 0, track, name);
}

void holmes_trace_name_next(const char *fmt, ...)
{
    va_list ap;

    if (!holmes_trace_on())
        return;
    va_start(ap, fmt);
    vsnprintf(next_name, sizeof next_name, fmt, ap);
    va_end(ap);
}

void holmes_trace_take_name(char *name, const char *otherwise)
{
    snprintf(name, HOLMES_TRACE_NAME, "%s", next_name[0] ? next_name : otherwise);
    next_name[0] = '\0';
}

int holmes_trace_pack(void **out, size_t *len)
{
    uint64_t first, count;
    char *data = NULL;
    int rc = 0;

    pthread_mutex_lock(&rec.lock);
    count = rec.recorded < rec.capacity ? rec.recorded : rec.capacity;
    first = rec.recorded - count;
    rec.head.count = count;
    rec.head.dropped = first;
    data = rec.events ? malloc(sizeof rec.head + count * sizeof(struct event)) : NULL;
    if (data) {
        struct event *to = (struct event *)(data + sizeof rec.head);

        memcpy(data, &rec.head, sizeof rec.head);
        for (uint64_t i = 0; i < count; i++)
            to[i] = rec.events[(first + i) % rec.capacity];
        *len = sizeof rec.head + count * sizeof *to;
        *out = data;
    } else {
        rc = rec.events ? -ENOMEM : -EINVAL;
    }
    pthread_mutex_unlock(&rec.lock);
    return rc;
}

/* ---- the file ---- */

struct part {
    struct header head;
    const char *events; /* unaligned */
    int64_t ahead;      /* its clock minus the first part's */
};

static int part_open(const struct holmes_trace_part *in, struct part *out)
{
    struct event e;

    if (in->len < sizeof out->head)
        return -EBADMSG;
    memcpy(&out->head, in->data, sizeof out->head);
    out->events = (const char *)in->data + sizeof out->head;
    if (memcmp(out->head.magic, magic, sizeof magic) != 0 || out->head.nmarks > MARKS_MAX ||
        out->head.ntracks > TRACKS_MAX ||
        out->head.count != (in->len - sizeof out->head) / sizeof(struct event) ||
        (in->len - sizeof out->head) % sizeof(struct event) != 0 || out->head.dropped > DROPPED_MAX)
        return -EBADMSG;
    out->head.machine[sizeof out->head.machine - 1] = '\0';
    for (uint32_t i = 0; i < out->head.ntracks; i++)
        out->head.tracks[i][HOLMES_TRACE_NAME - 1] = '\0';
    for (uint64_t i = 0; i < out->head.count; i++) {
        memcpy(&e, out->events + i * sizeof e, sizeof e);
        if (e.track >= out->head.ntracks || e.end < e.begin || e.end > INT64_MAX ||
            e.bytes > INT64_MAX)
            return -EBADMSG;
    }
    return 0;
}

static int by_value(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;

    return (x > y) - (x < y);
}

/* A barrier is left by one rank a little later than by another, sometimes much later: hence the
 * median of several. */
static int64_t clock_ahead(const struct header *h, const struct header *first)
{
    uint32_t n = h->nmarks < first->nmarks ? h->nmarks : first->nmarks;
    int64_t ahead[MARKS_MAX], median;

    if (n == 0)
        return 0;
    for (uint32_t i = 0; i < n; i++)
        ahead[i] = (int64_t)(h->marks[i] - first->marks[i]);
    qsort(ahead, n, sizeof *ahead, by_value);
    median = ahead[n / 2];
    if (h->machine[0] && strcmp(h->machine, first->machine) == 0 && median > -SAME_CLOCK &&
        median < SAME_CLOCK)
        return 0;
    return median;
}

/* Names are ours, but for the host's: what JSON or a terminal would stumble over becomes '?'. */
static void put_text(FILE *f, const char *text)
{
    for (const unsigned char *p = (const unsigned char *)text; *p; p++)
        putc(*p < ' ' || *p >= 0x7f || *p == '"' || *p == '\\' ? '?' : *p, f);
}

static void put_meta(FILE *f, const char *what, int rank, int tid, const char *name)
{
    fprintf(f, "{\"ph\":\"M\",\"name\":\"%s\",\"pid\":%d,", what, rank);
    if (tid > 0)
        fprintf(f, "\"tid\":%d,", tid);
    fprintf(f, "\"args\":{\"name\":\"");
    put_text(f, name);
    fprintf(f, "\"}},\n");
}

static void put_names(FILE *f, const struct holmes_trace_part *in, const struct part *p)
{
    put_meta(f, "process_name", in->rank, 0, in->process);
    fprintf(f,
            "{\"ph\":\"M\",\"name\":\"process_sort_index\",\"pid\":%d,"
            "\"args\":{\"sort_index\":%d}},\n",
            in->rank, in->rank);
    for (uint32_t i = 0; i < p->head.ntracks; i++)
        put_meta(f, "thread_name", in->rank, (int)i + 1, p->head.tracks[i]);
}

static void put_event(FILE *f, int rank, const struct part *p, uint64_t index, uint64_t zero)
{
    const char *track;
    struct event e;
    int64_t begin;

    memcpy(&e, p->events + index * sizeof e, sizeof e);
    e.name[HOLMES_TRACE_NAME - 1] = '\0';
    track = p->head.tracks[e.track];
    begin = (int64_t)(e.begin - (uint64_t)p->ahead - zero);
    fprintf(f, "{\"ph\":\"X\",\"name\":\"");
    put_text(f, e.name);
    fprintf(f, "\",\"cat\":\"");
    for (size_t i = 0; track[i] && track[i] != '.' && track[i] != ' '; i++)
        put_text(f, (const char[]){track[i], '\0'});
    fprintf(f, "\",\"pid\":%d,\"tid\":%d,\"ts\":%.3f,\"dur\":%.3f,\"args\":{", rank, e.track + 1,
            (double)begin / 1e3, (double)(e.end - e.begin) / 1e3);
    if (e.step > 0)
        fprintf(f, "\"step\":%d%s", e.step, e.bytes > 0 ? "," : "");
    if (e.bytes > 0)
        fprintf(f, "\"bytes\":%llu", (unsigned long long)e.bytes);
    fprintf(f, "}},\n");
}

static void put_all(FILE *f, const struct holmes_trace_part *in, const struct part *parts,
                    int nparts, uint64_t dropped)
{
    uint64_t zero = nparts > 0 && parts[0].head.nmarks > 0 ? parts[0].head.marks[0] : 0;

    fprintf(f,
            "{\"displayTimeUnit\":\"ms\",\"otherData\":{\"version\":1,\"dropped\":%llu},"
            "\"traceEvents\":[\n",
            (unsigned long long)dropped);
    for (int i = 0; i < nparts; i++) {
        put_names(f, &in[i], &parts[i]);
        for (uint64_t k = 0; k < parts[i].head.count; k++)
            put_event(f, in[i].rank, &parts[i], k, zero);
    }
    /* Every event ends in a comma; this one, which viewers skip, does not. */
    fprintf(f, "{\"ph\":\"M\",\"name\":\"trace_end\",\"pid\":0,\"args\":{}}\n]}\n");
}

int holmes_trace_write(FILE *f, const struct holmes_trace_part *parts, int nparts, uint64_t *events,
                       uint64_t *dropped)
{
    struct part *open = calloc((size_t)nparts + 1, sizeof *open);
    int rc = open ? 0 : -ENOMEM;

    *events = *dropped = 0;
    for (int i = 0; i < nparts && rc == 0; i++) {
        rc = part_open(&parts[i], &open[i]);
        open[i].ahead = rc == 0 ? clock_ahead(&open[i].head, &open[0].head) : 0;
        *events += open[i].head.count;
        *dropped += open[i].head.dropped;
    }
    if (rc == 0)
        put_all(f, parts, open, nparts, *dropped);
    if (rc == 0 && (fflush(f) != 0 || ferror(f)))
        rc = errno ? -errno : -EIO;
    free(open);
    return rc;
}
