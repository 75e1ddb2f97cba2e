/* Where the parts of the picture are. Boxes go from left to right in the order of the pipeline,
 * DRAW_ROW to a row; bands of a box from top to bottom. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "draw.h"
#include "utf8.h"

double holmes_draw_text_width(const char *text, int size, bool bold)
{
    double width = 0;
    size_t n;

    for (; *text; text += n) {
        uint32_t c = holmes_utf8_decode(text, &n);

        if (c >= 0x80)
            width += 0.9 * holmes_utf8_columns(c);
        else if (strchr(" !'(),-./:;I[]fijlrt|", (int)c))
            width += 0.4;
        else
            width += strchr("%@MWmw", (int)c) ? 0.98 : 0.64;
    }
    return width * size * (bold ? 1.1 : 1);
}

static int nodes_of(const struct holmes_plan *p, const struct draw_band *b)
{
    return p->stages[b->last].last_node - p->stages[b->first].first_node + 1;
}

static double band_height(const struct holmes_plan *p, const struct draw_band *b)
{
    int nodes = nodes_of(p, b);
    int rows = nodes <= 1 ? 1 : 2; /* chips in twos, or names and their number */

    if (nodes <= 2 && b->first == b->last)
        rows = 1;
    return 34 + rows * (DRAW_CHIP_H + 6) + 26;
}

/* Stages first to last as bands: all of them, or those at the ends with one for the middle. */
static void box_bands(const struct holmes_plan *p, struct draw_box *box, int first, int last)
{
    int n = last - first + 1;
    double y = DRAW_HEAD + DRAW_PAD;

    if (n <= DRAW_BANDS) {
        for (int i = 0; i < n; i++)
            box->bands[box->nbands++] = (struct draw_band){.first = first + i, .last = first + i};
    } else {
        const struct draw_band bands[] = {{.first = first, .last = first},
                                          {.first = first + 1, .last = first + 1},
                                          {.first = first + 2, .last = last - 1},
                                          {.first = last, .last = last}};

        for (size_t i = 0; i < sizeof bands / sizeof *bands; i++)
            box->bands[box->nbands++] = bands[i];
    }
    for (int i = 0; i < box->nbands; i++) {
        box->bands[i].y = y;
        box->bands[i].h = band_height(p, &box->bands[i]);
        y += box->bands[i].h + (i + 1 < box->nbands ? DRAW_GAP : 0);
    }
    box->h = y + DRAW_PAD;
}

static int idle_of(const struct holmes_plan_doc *doc, int fabric)
{
    int n = 0;

    for (int i = 0; i < doc->plan->nidle; i++)
        n += doc->fabrics->group_fabric[doc->plan->idle[i].group] == fabric;
    return n;
}

static bool has_box(const struct draw_page *page, int fabric)
{
    for (int i = 0; i < page->nboxes; i++)
        if (page->boxes[i].fabric == fabric)
            return true;
    return false;
}

static void add_idle(const struct holmes_plan_doc *doc, struct draw_box *box)
{
    int lines;

    box->nidle = idle_of(doc, box->fabric);
    lines = box->nidle > DRAW_IDLE ? DRAW_IDLE + 1 : box->nidle;
    if (box->nbands == 0)
        box->h = DRAW_HEAD + DRAW_PAD;
    if (lines > 0) {
        box->idle_y = box->h + 6;
        box->h += lines * DRAW_IDLE_H + 8;
    }
}

/* A box for each run of stages in one fabric; then one for each fabric that only idles. */
static void find_boxes(const struct holmes_plan_doc *doc, struct draw_page *page)
{
    const struct holmes_plan *p = doc->plan;

    for (int i = 0, last; i < p->nstages; i = last + 1) {
        struct draw_box *box = &page->boxes[page->nboxes];
        bool again = has_box(page, p->stages[i].fabric);

        for (last = i; last + 1 < p->nstages && p->stages[last + 1].fabric == p->stages[i].fabric;)
            last++;
        box->fabric = p->stages[i].fabric;
        box_bands(p, box, i, last);
        if (!again)
            add_idle(doc, box);
        page->nboxes++;
    }
    for (int f = -1; f < doc->fabrics->n; f++) {
        if (has_box(page, f) || idle_of(doc, f) == 0)
            continue;
        page->boxes[page->nboxes].fabric = f;
        add_idle(doc, &page->boxes[page->nboxes++]);
    }
}

static void place_boxes(struct draw_page *page)
{
    double y = DRAW_TOP;
    int tint = 0;

    for (int row = 0; row < page->nboxes; row += DRAW_ROW) {
        double tallest = 0;

        if (row > 0)
            y += DRAW_ROW_GAP;
        for (int i = row; i < page->nboxes && i < row + DRAW_ROW; i++) {
            struct draw_box *box = &page->boxes[i];

            box->x = DRAW_MARGIN + (i - row) * (DRAW_BOX_W + DRAW_GUTTER);
            box->y = y;
            for (int k = 0; k < box->nbands; k++) {
                box->bands[k].y += y;
                box->bands[k].tint = tint++;
            }
            box->idle_y += y;
            tallest = box->h > tallest ? box->h : tallest;
            if (box->x + DRAW_BOX_W + DRAW_MARGIN > page->width)
                page->width = box->x + DRAW_BOX_W + DRAW_MARGIN;
        }
        y += tallest;
    }
    page->bottom = y;
}

int holmes_draw_layout(const struct holmes_plan_doc *doc, struct draw_page *out)
{
    struct draw_page page = {.width = 800};

    page.boxes =
        calloc((size_t)doc->plan->nstages + (size_t)doc->fabrics->n + 1, sizeof *page.boxes);
    if (!page.boxes)
        return -ENOMEM;
    for (int i = 0; i < doc->plan->nedges; i++)
        page.back |= doc->plan->edges[i].to_stage < doc->plan->edges[i].from_stage;
    find_boxes(doc, &page);
    place_boxes(&page);
    page.height = page.bottom + (page.back ? DRAW_BACK : 0) + DRAW_LEGEND + DRAW_MARGIN;
    *out = page;
    return 0;
}

void holmes_draw_layout_fini(struct draw_page *p)
{
    free(p->boxes);
}
