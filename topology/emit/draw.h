/* A plan as a picture: a box for each run of stages in one fabric, a band for each stage with its
 * nodes, and the wires between with what they carry per step.
 */
#ifndef HOLMES_DRAW_H
#define HOLMES_DRAW_H

#include <stdio.h>

#include "plan.h"

/* Writes one SVG document. 0, -ENOMEM, -EIO. */
int holmes_plan_draw(const struct holmes_plan_doc *doc, FILE *out);

/* --- where everything is: pure, for draw.c and the tests ---------------------------------------
 */

#define DRAW_MARGIN  28.0
#define DRAW_BOX_W   360.0
#define DRAW_GUTTER  176.0 /* between boxes of a row, where the crossing wires are */
#define DRAW_ROW_GAP 84.0
#define DRAW_ROW     4     /* boxes in a row at most */
#define DRAW_TOP     108.0 /* title and two lines below it */
#define DRAW_HEAD    44.0  /* of a box */
#define DRAW_PAD     12.0
#define DRAW_GAP     40.0 /* between bands, for the arrow */
#define DRAW_CHIP_H  24.0
#define DRAW_CHIPS   4 /* nodes of a band that are shown one by one */
#define DRAW_BANDS   6 /* bands in a box before those in the middle are drawn as one */
#define DRAW_IDLE    3 /* idle entries of a box that are told one by one */
#define DRAW_IDLE_H  18.0
#define DRAW_BACK    46.0 /* below the boxes, for the wire that goes back */
#define DRAW_LEGEND  40.0

struct draw_band {
    int first, last; /* stages; several: drawn as one */
    int tint;        /* counts the bands of the page */
    double y, h;
};

struct draw_box {
    int fabric; /* -1: idle nodes of no fabric */
    int nbands; /* 0: nothing of it is used */
    struct draw_band bands[DRAW_BANDS];
    double x, y, h;
    double idle_y; /* of the first line about idle nodes */
    int nidle;     /* entries, whether told or not */
};

struct draw_page {
    int nboxes;
    struct draw_box *boxes;
    double width, height, bottom; /* bottom: of the boxes */
    bool back;                    /* a wire goes from the last stage to the first */
};

int holmes_draw_layout(const struct holmes_plan_doc *doc, struct draw_page *out);
void holmes_draw_layout_fini(struct draw_page *p);

/* Width of a text in a font as wide as DejaVu Sans, which is wider than most. */
double holmes_draw_text_width(const char *text, int size, bool bold);

#endif
