/* What ran when: the spans of a trace (holmes-train --trace; Chrome trace format), lane by lane,
 * and a drawing of a window of them. The file may be anybody's. */
#ifndef HOLMES_TIMELINE_H
#define HOLMES_TIMELINE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#define HOLMES_TIMELINE_LANES 4096

/* One track of one rank, in the order of ranks; `name` as the trace calls it ("compute"). */
struct holmes_timeline_lane {
    int64_t rank, track;
    char name[48];
    bool shown; /* it has spans besides those that only say where a step begins and ends */
};

struct holmes_timeline_span {
    int lane;
    double start, end; /* ms since the first span of the trace */
    bool nested;       /* lies within another of its lane */
    char name[40];
};

struct holmes_timeline {
    size_t nlanes, nspans;
    struct holmes_timeline_lane *lanes;
    struct holmes_timeline_span *spans; /* by lane, then by start */
    double end;                         /* of the last span */
};

/* -EINVAL with a sentence that says which event is wrong, -ENOMEM. Events of other phases than
 * complete spans ("X") and names of threads ("M") are passed over. */
int holmes_timeline_parse(const char *name, const void *data, size_t len,
                          struct holmes_timeline *out, char *why, size_t why_len);
int holmes_timeline_read(const char *path, struct holmes_timeline *out, char *why, size_t why_len);
void holmes_timeline_fini(struct holmes_timeline *t);

/* N for the span that is "step N", which contains all that the rank did in it; else 0. */
int holmes_timeline_step_number(const struct holmes_timeline_span *s);
/* From when to when step *step ran on all ranks; *step 0: the one in the middle of the trace, whose
 * number it becomes. -ENOENT when the trace has no such step; the window is then the whole trace.
 */
int holmes_timeline_step(const struct holmes_timeline *t, int *step, double *from, double *to);

/* How high a drawing of all lanes is. */
int holmes_timeline_height(const struct holmes_timeline *t);
/* The window [from, to] in a rectangle at the origin: a row for each lane, ranks apart, a colour
 * for each kind of span; each span says its name and length where the mouse rests on it. */
void holmes_timeline_draw(const struct holmes_timeline *t, double from, double to, double width,
                          const char *title, FILE *out);

#endif
