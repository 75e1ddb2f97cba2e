/* The picture of a plan: well-formed whatever the names, complete, and no text over another. */
#include <errno.h>
#include <stdio.h>

#include "emit/draw.h"
#include "plans.h"
#include "tests/support/xml_check.h"

static const int layers_7887[] = {7, 8, 8, 7}, layers_9357[] = {9, 3, 5, 7}, layers_1[] = {24};
static const int layers_16[] = {6, 6, 6, 6, 6, 6, 6, 6, 6, 6, 6, 6, 6, 6, 6, 6};
static const int layers_8[] = {3, 3, 3, 3, 3, 3, 3, 3};

static const struct plan_part two[] = {
    {"a[0-1]", 16, "ib", HOLMES_LINK_INFINIBAND, true},
    {"b[0-1]", 16, "B", HOLMES_LINK_ETHERNET, false},
};
static const struct plan_part three[] = {
    {"big[1-2]", 4, "A", HOLMES_LINK_INFINIBAND, false},
    {"mid[01-02]", 2, "B", HOLMES_LINK_ETHERNET, false},
    {"small-1,small-2,other,late", 1, "C", HOLMES_LINK_UNKNOWN, false},
};
static const struct plan_part one[] = {{"solo", 8, "A", HOLMES_LINK_INFINIBAND, false}};
static const struct plan_part many[] = {
    {"a[00001-05000]", 8, "ib-east", HOLMES_LINK_INFINIBAND, true},
    {"rack[01-40]-node[01-75]", 8, "roce", HOLMES_LINK_ETHERNET, true},
    {"c[1-2000]", 8, "Ethernet", HOLMES_LINK_UNKNOWN, false},
};
static const struct plan_part eight[] = {
    {"n1", 1, "A", HOLMES_LINK_INFINIBAND, false}, {"n2", 1, "B", HOLMES_LINK_ETHERNET, false},
    {"n3", 1, "C", HOLMES_LINK_INFINIBAND, false}, {"n4", 1, "D", HOLMES_LINK_ETHERNET, false},
    {"n5", 1, "A", HOLMES_LINK_INFINIBAND, false}, {"n6", 1, "F", HOLMES_LINK_ETHERNET, false},
    {"n7", 1, "G", HOLMES_LINK_UNKNOWN, false},    {"n8", 1, "H", HOLMES_LINK_ETHERNET, false},
};

#define PARTS(p) p, sizeof(p) / sizeof *(p)
static const struct {
    const char *name;
    struct plan_shape shape;
    const struct plan_part *parts;
    int nparts, boxes;
} cases[] = {
    {"two clusters of two nodes",
     {.model = "gpt-3.6b",
      .layers = 30,
      .tensor = 2,
      .pipeline = 4,
      .data = 8,
      .stage_layers = layers_7887,
      .tied = true,
      .rtt_ms = 20,
      .gbps = 12.5},
     PARTS(two),
     2},
    {"three unequal clusters",
     {.model = "24 layers",
      .layers = 24,
      .tensor = 1,
      .pipeline = 4,
      .data = 4,
      .stage_layers = layers_9357,
      .tied = true,
      .rtt_ms = 0.1,
      .gbps = 25},
     PARTS(three),
     3},
    {"one node",
     {.model = "", .layers = 24, .tensor = 8, .pipeline = 1, .data = 1, .stage_layers = layers_1},
     PARTS(one),
     1},
    {"ten thousand nodes",
     {.model = "gpt-175b",
      .layers = 96,
      .tensor = 8,
      .pipeline = 16,
      .data = 625,
      .stage_layers = layers_16,
      .rtt_ms = 30,
      .gbps = 400},
     PARTS(many),
     3},
    {"eight clusters, one of them twice",
     {.model = "gpt",
      .layers = 24,
      .tensor = 1,
      .pipeline = 8,
      .data = 1,
      .stage_layers = layers_8,
      .tied = true,
      .rtt_ms = 1,
      .gbps = 10},
     PARTS(eight),
     8},
};
#define NCASES (sizeof cases / sizeof *cases)

static void add_idle(struct holmes_plan_doc *doc, int n, int group, const char *reason)
{
    struct holmes_plan *p = doc->plan;

    p->idle = realloc(p->idle, (size_t)(p->nidle + n) * sizeof *p->idle);
    for (int i = 0; i < n; i++)
        p->idle[p->nidle++] = (struct holmes_plan_idle){group, 0, 1, 8, strdup(reason)};
}

static char *drawn(const struct holmes_plan_doc *doc)
{
    char *text = NULL;
    size_t len;
    FILE *out = open_memstream(&text, &len);

    cr_assert(holmes_plan_draw(doc, out) == 0);
    fclose(out);
    return text;
}

static void well_formed(const char *svg)
{
    const char *bad = xml_check(svg);

    cr_expect(!bad, "not well-formed at: %.60s", bad ? bad : "");
}

/* --- texts and where they are ---------------------------------------------------------------- */

struct label {
    double left, right, top, bottom;
    char text[256];
};

/* What XML's five names stand for, so that widths are those of what is seen. */
static void unescape(char *s)
{
    static const char *const names[][2] = {
        {"&amp;", "&"}, {"&lt;", "<"}, {"&gt;", ">"}, {"&quot;", "\""}, {"&#39;", "'"}};

    for (char *at = s; *at; at++)
        for (size_t i = 0; i < sizeof names / sizeof *names; i++)
            if (strncmp(at, names[i][0], strlen(names[i][0])) == 0) {
                *at = *names[i][1];
                memmove(at + 1, at + strlen(names[i][0]), strlen(at + strlen(names[i][0])) + 1);
                break;
            }
}

static int find_labels(const char *svg, struct label *out, int max)
{
    int n = 0;

    for (const char *at = svg; (at = strstr(at, "<text ")); at++, n++) {
        struct label *l = &out[n];
        const char *from = strchr(at, '>') + 1, *end = strstr(from, "</text>");
        double x, y, width;
        char anchor[16];
        int size;
        bool bold = strstr(at, "font-weight") && strstr(at, "font-weight") < from;

        cr_assert(n < max);
        cr_assert(sscanf(at, "<text x=\"%lf\" y=\"%lf\" font-size=\"%d\"", &x, &y, &size) == 3);
        cr_assert(sscanf(strstr(at, "text-anchor"), "text-anchor=\"%15[a-z]", anchor) == 1);
        snprintf(l->text, sizeof l->text, "%.*s", (int)(end - from), from);
        unescape(l->text);
        width = holmes_draw_text_width(l->text, size, bold);
        l->left = strcmp(anchor, "start") == 0    ? x
                  : strcmp(anchor, "middle") == 0 ? x - width / 2
                                                  : x - width;
        l->right = l->left + width;
        l->top = y - 0.75 * size;
        l->bottom = y + 0.2 * size;
    }
    return n;
}

static void no_overlap(const char *name, const char *svg)
{
    static struct label labels[400];
    int n = find_labels(svg, labels, 400), width, height;

    cr_assert(n > 5);
    cr_assert(sscanf(strstr(svg, "<svg "), "<svg xmlns=\"%*[^\"]\" width=\"%d\" height=\"%d\"",
                     &width, &height) == 2);
    for (int i = 0; i < n; i++) {
        const struct label *a = &labels[i];

        cr_expect(a->left >= 0 && a->right <= width && a->top >= 0 && a->bottom <= height,
                  "%s: \"%s\" leaves the page", name, a->text);
        for (int k = i + 1; k < n; k++) {
            const struct label *b = &labels[k];

            cr_expect(a->right <= b->left || b->right <= a->left || a->bottom <= b->top ||
                          b->bottom <= a->top,
                      "%s: \"%s\" and \"%s\" overlap", name, a->text, b->text);
        }
    }
}

static bool has_label(const char *svg, const char *text)
{
    static struct label labels[400];
    int n = find_labels(svg, labels, 400);

    for (int i = 0; i < n; i++)
        if (strcmp(labels[i].text, text) == 0)
            return true;
    return false;
}

/* --- tests -------------------------------------------------------------------------------------
 */

Test(draw, is_well_formed_and_no_text_covers_another)
{
    for (size_t i = 0; i < NCASES; i++) {
        struct holmes_plan_doc doc = plan_make(&cases[i].shape, cases[i].parts, cases[i].nparts);
        char *svg;

        add_idle(&doc, 5, 0, "left over: 1 node makes no stage of its own");
        svg = drawn(&doc);
        well_formed(svg);
        no_overlap(cases[i].name, svg);
        cr_expect(strlen(svg) < 64 << 10, "%s: %zu bytes", cases[i].name, strlen(svg));
        free(svg);
        holmes_plan_doc_fini(&doc);
    }
}

Test(draw, says_what_a_reader_looks_for)
{
    static const char *const labels[] = {
        "gpt-3.6b on 64 GPUs: 8.25 s per step, 2.6 times as fast as in the naive order",
        "Between clusters 6.40 GB per step; in the naive order 93.0 GB",
        "ib",
        "B",
        "InfiniBand, 200 Gb/s per node",
        "RoCE, 200 Gb/s per node",
        "Stage 0",
        "Stage 3",
        "8 layers (15–22)",
        "a0",
        "b1",
        "gradients 2.52 GB per GPU",
        "3.20 GB",
        "12.5 Gb/s, 20 ms",
        "shared embedding 600 MB, 12.5 Gb/s",
        "InfiniBand",
        "RoCE",
        "Ethernet (TCP)",
        "idle: 8 GPUs of a0, spare",
    };
    struct holmes_plan_doc doc = plan_make(&cases[0].shape, two, 2);
    char *svg;

    add_idle(&doc, 1, 0, "spare");
    svg = drawn(&doc);
    for (size_t i = 0; i < sizeof labels / sizeof *labels; i++)
        cr_expect(has_label(svg, labels[i]), "no \"%s\"", labels[i]);
    free(svg);
    holmes_plan_doc_fini(&doc);
}

Test(draw, many_nodes_and_stages_become_ranges)
{
    struct holmes_plan_doc doc = plan_make(&cases[3].shape, many, 3);
    char *svg = drawn(&doc);

    cr_expect(has_label(svg, "Stages 2 to 6"));
    cr_expect(has_label(svg, "3,125 nodes, 25,000 GPUs"));
    cr_expect(has_label(svg, "a[00626-01250]"));
    cr_expect(has_label(svg, "rack01-node01 … rack09-node25"));
    cr_expect(has_label(svg, "gradients cross: 2.16 GB"), "stage 12 is in two fabrics");
    free(svg);
    holmes_plan_doc_fini(&doc);
}

Test(draw, a_fabric_gets_a_box_for_each_run_of_stages)
{
    for (size_t i = 0; i < NCASES; i++) {
        struct holmes_plan_doc doc = plan_make(&cases[i].shape, cases[i].parts, cases[i].nparts);
        struct draw_page page;
        int stages = 0;

        cr_assert(holmes_draw_layout(&doc, &page) == 0);
        cr_expect(page.nboxes == cases[i].boxes, "%s: %d boxes", cases[i].name, page.nboxes);
        for (int b = 0; b < page.nboxes; b++) {
            const struct draw_box *box = &page.boxes[b];

            for (int k = 0; k < box->nbands; k++) {
                cr_expect(box->bands[k].first == stages, "%s: a stage is left out", cases[i].name);
                stages = box->bands[k].last + 1;
                cr_expect(box->bands[k].y >= box->y + DRAW_HEAD &&
                              box->bands[k].y + box->bands[k].h <= box->y + box->h,
                          "%s: a band leaves its box", cases[i].name);
            }
            cr_expect(box->y + box->h <= page.bottom && box->x + DRAW_BOX_W <= page.width);
        }
        cr_expect(stages == doc.plan->nstages);
        holmes_draw_layout_fini(&page);
        holmes_plan_doc_fini(&doc);
    }
}

Test(draw, hostile_names_are_escaped_and_cut)
{
    static const char evil[] = "<script>alert(1)</script>&\"'\x01\xff]]>";
    struct holmes_plan_doc doc = plan_make(&cases[0].shape, two, 2);
    char *svg, wide[2000];

    memset(wide, 'W', sizeof wide - 1);
    wide[sizeof wide - 1] = '\0';
    free(doc.fabrics->fabrics[0].name);
    doc.fabrics->fabrics[0].name = strdup(evil);
    free(doc.fabrics->fabrics[1].name);
    doc.fabrics->fabrics[1].name = strdup(wide);
    snprintf(doc.request.model.name, sizeof doc.request.model.name, "</title><b a=\"%.40s", wide);
    add_idle(&doc, 1, 0, evil);
    add_idle(&doc, 1, 1, wide);
    svg = drawn(&doc);
    well_formed(svg);
    no_overlap("hostile names", svg);
    cr_expect(!strstr(svg, "<script"));
    free(svg);
    holmes_plan_doc_fini(&doc);
}

Test(draw, idle_nodes_of_no_fabric_have_a_box)
{
    struct holmes_plan_doc doc = plan_make(&cases[1].shape, three, 3);
    char *svg;

    doc.fabrics->group_fabric[2] = -1; /* as of nodes that nothing is known of */
    doc.plan->stages[3].fabric = 1;
    add_idle(&doc, 1, 2, "defective");
    svg = drawn(&doc);
    well_formed(svg);
    cr_expect(has_label(svg, "in no fabric") && has_label(svg, "idle: small-1, defective"));
    free(svg);
    holmes_plan_doc_fini(&doc);
}

Test(draw, tells_that_the_disk_is_full)
{
    struct holmes_plan_doc doc = plan_make(&cases[0].shape, two, 2);
    FILE *full = fopen("/dev/full", "w");

    cr_assert(full);
    cr_expect(holmes_plan_draw(&doc, full) == -EIO);
    fclose(full);
    holmes_plan_doc_fini(&doc);
}
