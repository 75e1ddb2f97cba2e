/* What a report shows of one or more runs, picture by picture: each draws itself as SVG, be it into
 * a page or into a file of its own. */
#ifndef HOLMES_PICTURES_H
#define HOLMES_PICTURES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

#include "runlog.h"
#include "timeline.h"

#define HOLMES_REPORT_RUNS 8 /* as many as there are colours */

struct holmes_report {
    const struct holmes_runlog *runs;
    const char *const *names;            /* of the runs, no two alike */
    size_t nruns;                        /* 1 to HOLMES_REPORT_RUNS */
    const struct holmes_timeline *trace; /* NULL: none */
    double from, to;                     /* the window of the trace that is drawn, ms */
    int step;                            /* the step that window is; 0: the whole trace */
};

struct holmes_picture {
    const char *file; /* name without ending */
    bool wide;        /* takes a row of the page to itself */
    /* Whether there is anything to show. */
    bool (*has)(const struct holmes_report *r);
    /* NULL: HOLMES_PICTURE_HEIGHT. */
    int (*height)(const struct holmes_report *r);
    /* In the rectangle at the origin. -ENOMEM. */
    int (*draw)(const struct holmes_report *r, double width, double height, FILE *out);
};

#define HOLMES_PICTURE_WIDTH  640
#define HOLMES_PICTURE_WIDE   1296
#define HOLMES_PICTURE_HEIGHT 320

extern const struct holmes_picture holmes_pictures[]; /* ends with file NULL */

int holmes_picture_width(const struct holmes_picture *p);
int holmes_picture_height(const struct holmes_picture *p, const struct holmes_report *r);

#endif
