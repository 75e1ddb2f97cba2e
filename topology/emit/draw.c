/* The picture of a plan, from its layout. Colours of wires say their kind, those of bands the
 * stage; every text is cut to its place. */
#include "draw.h"

#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "svg.h"
#include "utf8.h"

#define INK  "#1f2328"
#define GREY "#6a737d"
#define PALE "#f6f8fa"
#define EDGE "#c9d1d9"

enum wire { WIRE_INFINIBAND, WIRE_ROCE, WIRE_ETHERNET, WIRE_NODE, WIRES };

static const struct {
    const char *name, *colour;
} wires[WIRES] = {
    [WIRE_INFINIBAND] = {"InfiniBand", "#0072b2"},
    [WIRE_ROCE] = {"RoCE", "#009e73"},
    [WIRE_ETHERNET] = {"Ethernet (TCP)", "#d55e00"},
    [WIRE_NODE] = {"inside a node", "#848d97"},
};

/* Of stages: light enough to write on, none of a wire's colour. */
static const struct {
    const char *fill, *edge;
} tints[] = {
    {"#fff3c4", "#e0b000"}, {"#e8e0f7", "#8250df"}, {"#fde0ec", "#cf4f88"}, {"#e6e9ed", "#57606a"},
    {"#f3e3d3", "#9a6a3a"}, {"#e2f0c9", "#6f9a1f"}, {"#d8f1f0", "#2f8f8b"}, {"#f9dcd5", "#b85c4a"},
};
#define NTINTS (sizeof tints / sizeof *tints)

struct canvas {
    FILE *out;
    const struct holmes_plan_doc *doc;
    const struct draw_page *page;
    bool used[WIRES];
};

/* --- texts -------------------------------------------------------------------------------------
 */

struct style {
    int size;
    bool bold;
    const char *anchor, *colour;
};

/* At most `width` of it, the rest as "…". */
static void put_text(struct canvas *c, double x, double y, struct style s, double width,
                     const char *text)
{
    char cut[512];
    size_t n, at = 0, kept = 0;

    snprintf(cut, sizeof cut, "%s", text);
    if (strlen(text) >= sizeof cut || holmes_draw_text_width(text, s.size, s.bold) > width) {
        for (at = 0; cut[at]; at += n) {
            char after;

            holmes_utf8_decode(cut + at, &n);
            after = cut[at + n];
            cut[at + n] = '\0';
            if (holmes_draw_text_width(cut, s.size, s.bold) + s.size > width ||
                at + n > sizeof cut - 8)
                break;
            cut[at + n] = after;
            kept = at + n;
        }
        snprintf(cut + kept, sizeof cut - kept, "…");
    }
    fprintf(c->out,
            "<text x=\"%.1f\" y=\"%.1f\" font-size=\"%d\"%s text-anchor=\"%s\" fill=\"%s\">", x, y,
            s.size, s.bold ? " font-weight=\"bold\"" : "", s.anchor, s.colour);
    holmes_svg_escape(c->out, cut);
    fputs("</text>\n", c->out);
}

static void put_textf(struct canvas *c, double x, double y, struct style s, double width,
                      const char *fmt, ...) __attribute__((format(printf, 6, 7)));
static void put_textf(struct canvas *c, double x, double y, struct style s, double width,
                      const char *fmt, ...)
{
    char text[512];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    put_text(c, x, y, s, width, text);
}

/* "3.2 GB", "940 MB" */
static const char *bytes_text(double bytes, char buf[24])
{
    static const char *const units[] = {"B", "kB", "MB", "GB", "TB", "PB"};
    size_t u = 0;

    while (bytes >= 999.5 && u + 1 < sizeof units / sizeof *units) {
        bytes /= 1000;
        u++;
    }
    snprintf(buf, 24, "%.*f %s",
             u == 0 || bytes >= 99.95 ? 0
             : bytes >= 9.995         ? 1
                                      : 2,
             bytes, units[u]);
    return buf;
}

/* "25 Gb/s", "194 Mb/s" */
static const char *rate_text(double gbps, char buf[24])
{
    double unit = gbps >= 999.5 ? 1e-3 : gbps < 0.9995 ? 1e3 : 1;

    snprintf(buf, 24, "%.3g %s", gbps * unit, unit > 1 ? "Mb/s" : unit < 1 ? "Tb/s" : "Gb/s");
    return buf;
}

static const char *number_text(int64_t v, char buf[32])
{
    char plain[24];
    int n = snprintf(plain, sizeof plain, "%" PRId64, v), at = 0;

    for (int i = 0; i < n; i++) {
        if (i > 0 && (n - i) % 3 == 0)
            buf[at++] = ',';
        buf[at++] = plain[i];
    }
    buf[at] = '\0';
    return buf;
}

/* --- shapes ------------------------------------------------------------------------------------
 */

static void put_rect(struct canvas *c, double x, double y, double w, double h, const char *fill,
                     const char *edge, double radius)
{
    fprintf(c->out,
            "<rect x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\" rx=\"%.1f\" fill=\"%s\" "
            "stroke=\"%s\"/>\n",
            x, y, w, h, radius, fill, edge);
}

/* A line through n points, with an arrow at its end. */
static void put_wire(struct canvas *c, enum wire kind, double width, bool arrow, int n,
                     const double (*at)[2])
{
    c->used[kind] = true;
    fputs("<polyline points=\"", c->out);
    for (int i = 0; i < n; i++)
        fprintf(c->out, "%s%.1f,%.1f", i ? " " : "", at[i][0], at[i][1]);
    fprintf(c->out,
            "\" fill=\"none\" stroke=\"%s\" stroke-width=\"%.1f\" stroke-linejoin=\"round\"",
            wires[kind].colour, width);
    if (arrow)
        fprintf(c->out, " marker-end=\"url(#to%d)\"", (int)kind);
    fputs("/>\n", c->out);
}

static void put_markers(struct canvas *c)
{
    fputs("<defs>\n", c->out);
    for (int i = 0; i < WIRES; i++)
        fprintf(c->out,
                "<marker id=\"to%d\" viewBox=\"0 0 10 10\" refX=\"9\" refY=\"5\" "
                "markerWidth=\"14\" markerHeight=\"14\" markerUnits=\"userSpaceOnUse\" "
                "orient=\"auto\"><path d=\"M0,0 L10,5 L0,10 z\" fill=\"%s\"/></marker>\n",
                i, wires[i].colour);
    fputs("</defs>\n", c->out);
}

static enum wire fabric_wire(const struct canvas *c, int fabric)
{
    const struct holmes_fabric *f = fabric >= 0 ? &c->doc->fabrics->fabrics[fabric] : NULL;

    if (!f || !f->rdma)
        return WIRE_ETHERNET;
    return f->link == HOLMES_LINK_INFINIBAND ? WIRE_INFINIBAND : WIRE_ROCE;
}

/* --- boxes and bands ---------------------------------------------------------------------------
 */

static void put_box(struct canvas *c, const struct draw_box *box)
{
    const struct holmes_fabric *f =
        box->fabric >= 0 ? &c->doc->fabrics->fabrics[box->fabric] : NULL;
    const struct style right = {12, false, "end", "#ffffff"};
    const double x = box->x + DRAW_BOX_W - 14, y = box->y + 22;
    enum wire kind = fabric_wire(c, box->fabric);

    put_rect(c, box->x, box->y, DRAW_BOX_W, box->h, "#ffffff", EDGE, 8);
    fprintf(c->out,
            "<path d=\"M%.1f,%.1f v-26 a8,8 0 0 1 8,-8 h%.1f a8,8 0 0 1 8,8 v26 z\" "
            "fill=\"%s\"/>\n",
            box->x, box->y + 34, DRAW_BOX_W - 16, box->nbands > 0 ? wires[kind].colour : GREY);
    put_text(c, box->x + 14, y, (struct style){16, true, "start", "#ffffff"}, 130,
             f ? f->name : "in no fabric");
    if (box->nbands == 0)
        put_text(c, x, y, right, 180, "not used");
    else if (f && f->gbps > 0)
        put_textf(c, x, y, right, 210, "%s, %g Gb/s per node",
                  f->rdma ? wires[kind].name : "Ethernet", f->gbps);
    else
        put_text(c, x, y, right, 180, wires[kind].name);
    c->used[kind] |= box->nbands > 0;
}

static const char *node_name(const struct canvas *c, int node, char buf[HOLMES_HOST_NAME_MAX])
{
    const struct holmes_plan_node *n = &c->doc->plan->nodes[node];

    return holmes_hostlist_name(&c->doc->cluster->groups[n->group].hosts, n->host, buf,
                                HOLMES_HOST_NAME_MAX);
}

/* Plan nodes first to last as ranges, or, where that is too wide, the first and the last one. */
static int put_names(struct canvas *c, double x, double y, double width, int first, int last)
{
    const struct style style = {13, false, "start", INK};
    struct holmes_hostlist list = {0};
    char a[HOLMES_HOST_NAME_MAX], b[HOLMES_HOST_NAME_MAX], *text;
    int rc = 0;

    for (int i = first; rc == 0 && i <= last; i++)
        rc = holmes_hostlist_append(&list, node_name(c, i, a));
    text = rc == 0 ? holmes_hostlist_text(&list) : NULL;
    holmes_hostlist_fini(&list);
    if (!text)
        return -ENOMEM;
    if (holmes_draw_text_width(text, style.size, style.bold) <= width)
        put_text(c, x, y, style, width, text);
    else
        put_textf(c, x, y, style, width, "%.120s … %.120s", node_name(c, first, a),
                  node_name(c, last, b));
    free(text);
    return 0;
}

/* GPUs of a node that work for stages first to last. */
static int gpus_of(const struct holmes_plan *p, int node, int first, int last)
{
    int64_t per_stage = (int64_t)p->tensor * p->data, low = first * per_stage,
            high = (last + 1) * per_stage, from = p->nodes[node].first_rank,
            to = from + p->nodes[node].gpus;

    from = from > low ? from : low;
    to = to < high ? to : high;
    return to > from ? (int)(to - from) : 0;
}

static void put_chip(struct canvas *c, double x, double y, double w, const char *name, int gpus)
{
    put_rect(c, x, y, w, DRAW_CHIP_H, "#ffffff", EDGE, 4);
    put_text(c, x + 8, y + 16, (struct style){13, false, "start", INK}, w - 74, name);
    put_textf(c, x + w - 8, y + 16, (struct style){11, false, "end", GREY}, 58, "%d GPU%s", gpus,
              gpus == 1 ? "" : "s");
}

static int put_nodes(struct canvas *c, const struct draw_band *b, double x, double y, double w)
{
    const struct holmes_plan *p = c->doc->plan;
    int first = p->stages[b->first].first_node, last = p->stages[b->last].last_node;
    int n = last - first + 1;
    double half = n == 1 ? w : (w - 8) / 2;
    int64_t gpus = 0;
    char name[HOLMES_HOST_NAME_MAX], nodes[32], of[32];

    if (n <= DRAW_CHIPS && b->first == b->last) {
        for (int i = 0; i < n; i++)
            put_chip(c, x + (i % 2) * (half + 8), i < 2 ? y : y + DRAW_CHIP_H + 6, half,
                     node_name(c, first + i, name), gpus_of(p, first + i, b->first, b->last));
        return 0;
    }
    for (int i = first; i <= last; i++)
        gpus += gpus_of(p, i, b->first, b->last);
    put_rect(c, x + 4, y + 4, w - 4, 2 * DRAW_CHIP_H + 2, "#ffffff", EDGE, 4); /* a pile */
    put_rect(c, x, y, w - 4, 2 * DRAW_CHIP_H + 2, "#ffffff", EDGE, 4);
    put_textf(c, x + 8, y + 39, (struct style){12, false, "start", GREY}, w - 20,
              "%s node%s, %s GPUs", number_text(n, nodes), n == 1 ? "" : "s",
              number_text(gpus, of));
    return put_names(c, x + 8, y + 18, w - 20, first, last);
}

/* Layers and, in GiB, memory of stages that are drawn as one. */
struct range {
    int layers_low, layers_high;
    double memory, limit, bytes;
    bool crosses, inside; /* of a data group: several fabrics; one node */
};

static struct range range_of(const struct holmes_plan *p, const struct draw_band *b)
{
    struct range r = {.layers_low = p->stages[b->first].layers, .inside = true};

    for (int i = b->first; i <= b->last; i++) {
        const struct holmes_plan_stage *s = &p->stages[i];

        r.layers_low = s->layers < r.layers_low ? s->layers : r.layers_low;
        r.layers_high = s->layers > r.layers_high ? s->layers : r.layers_high;
        if (s->memory_gib >= r.memory) {
            r.memory = s->memory_gib;
            r.limit = s->memory_limit_gib;
        }
        r.bytes = s->data_bytes > r.bytes ? s->data_bytes : r.bytes;
        r.crosses |= s->crosses;
        r.inside &= s->first_node == s->last_node;
    }
    return r;
}

static void layers_text(const struct holmes_plan *p, const struct draw_band *b, char *buf,
                        size_t len)
{
    struct range r = range_of(p, b);
    int first = p->stages[b->first].first_layer,
        last = p->stages[b->last].first_layer + p->stages[b->last].layers - 1;

    if (r.layers_low != r.layers_high)
        snprintf(buf, len, "%d to %d layers each", r.layers_low, r.layers_high);
    else if (b->first != b->last)
        snprintf(buf, len, "%d layer%s each", r.layers_low, r.layers_low == 1 ? "" : "s");
    else if (first == last)
        snprintf(buf, len, "layer %d", first);
    else
        snprintf(buf, len, "%d layers (%d–%d)", r.layers_low, first, last);
}

static int put_band(struct canvas *c, const struct draw_box *box, const struct draw_band *b)
{
    const struct holmes_plan *p = c->doc->plan;
    const double x = box->x + DRAW_PAD, w = DRAW_BOX_W - 2 * DRAW_PAD;
    struct range r = range_of(p, b);
    enum wire kind = r.crosses ? WIRE_ETHERNET : r.inside ? WIRE_NODE : fabric_wire(c, box->fabric);
    const double line[][2] = {{x + 22, b->y + b->h - 14}, {x + 46, b->y + b->h - 14}};
    char text[64], bytes[24];
    int rc;

    put_rect(c, x, b->y, w, b->h, tints[(size_t)b->tint % NTINTS].fill,
             tints[(size_t)b->tint % NTINTS].edge, 5);
    put_rect(c, x, b->y, 8, b->h, tints[(size_t)b->tint % NTINTS].edge,
             tints[(size_t)b->tint % NTINTS].edge, 3);
    if (b->first == b->last)
        snprintf(text, sizeof text, "Stage %d", b->first);
    else
        snprintf(text, sizeof text, "Stages %d to %d", b->first, b->last);
    put_text(c, x + 20, b->y + 22, (struct style){14, true, "start", INK}, 150, text);
    layers_text(p, b, text, sizeof text);
    put_text(c, x + w - 10, b->y + 22, (struct style){13, false, "end", INK}, w - 190, text);
    rc = put_nodes(c, b, x + 20, b->y + 34, w - 30);
    if (p->data > 1) {
        put_wire(c, kind, 4, false, 2, line);
        put_textf(c, x + 54, b->y + b->h - 10,
                  (struct style){12, r.crosses, "start", r.crosses ? wires[kind].colour : INK}, 190,
                  r.crosses ? "gradients cross: %s" : "gradients %s per GPU",
                  bytes_text(r.bytes, bytes));
    }
    if (r.limit > 0)
        put_textf(c, x + w - 10, b->y + b->h - 10, (struct style){12, false, "end", GREY}, 88,
                  "%.0f of %.0f GiB", r.memory, r.limit);
    else if (r.memory >= 0.05)
        put_textf(c, x + w - 10, b->y + b->h - 10, (struct style){12, false, "end", GREY}, 88,
                  "%.1f GiB", r.memory);
    return rc;
}

static int gpus_in(const struct holmes_plan_doc *doc, int group)
{
    return doc->cluster->types[doc->cluster->groups[group].type].gpus;
}

static int put_idle(struct canvas *c, const struct draw_box *box)
{
    const struct holmes_plan_doc *doc = c->doc;
    double y = box->idle_y + 10;
    int told = 0, nodes = 0;

    for (int i = 0; i < doc->plan->nidle; i++) {
        const struct holmes_plan_idle *idle = &doc->plan->idle[i];
        struct holmes_hostlist part;
        char *names, text[400];
        int rc;

        if (doc->fabrics->group_fabric[idle->group] != box->fabric)
            continue;
        if (told == DRAW_IDLE) {
            nodes += idle->nhosts;
            continue;
        }
        rc = holmes_hostlist_slice(&doc->cluster->groups[idle->group].hosts, idle->first_host,
                                   idle->nhosts, &part);
        if (rc != 0)
            return rc;
        names = holmes_hostlist_text(&part);
        holmes_hostlist_fini(&part);
        if (!names)
            return -ENOMEM;
        snprintf(text, sizeof text, "idle: %.120s%s%.200s", names, idle->reason ? ", " : "",
                 idle->reason ? idle->reason : "");
        if (idle->gpus < gpus_in(doc, idle->group))
            snprintf(text, sizeof text, "idle: %d GPU%s of %.120s%s%.200s", idle->gpus,
                     idle->gpus == 1 ? "" : "s", names, idle->reason ? ", " : "",
                     idle->reason ? idle->reason : "");
        put_text(c, box->x + 14, y + told * DRAW_IDLE_H, (struct style){12, false, "start", GREY},
                 DRAW_BOX_W - 44, text);
        free(names);
        told++;
    }
    if (nodes > 0)
        put_textf(c, box->x + 14, y + told * DRAW_IDLE_H, (struct style){12, false, "start", GREY},
                  DRAW_BOX_W - 28, "and %d more idle node%s", nodes, nodes == 1 ? "" : "s");
    return 0;
}

/* --- wires between stages ----------------------------------------------------------------------
 */

static const struct holmes_plan_edge *edge_of(const struct holmes_plan *p, int from, int to)
{
    for (int i = 0; i < p->nedges; i++)
        if (p->edges[i].from_stage == from && p->edges[i].to_stage == to)
            return &p->edges[i];
    return NULL;
}

static enum wire edge_wire(const struct canvas *c, const struct holmes_plan_edge *e)
{
    const struct holmes_plan_stage *from = &c->doc->plan->stages[e->from_stage],
                                   *to = &c->doc->plan->stages[e->to_stage];

    if (e->crosses)
        return WIRE_ETHERNET;
    if (from->first_node == to->last_node && from->last_node == to->first_node)
        return WIRE_NODE;
    return fabric_wire(c, from->fabric);
}

static double edge_width(const struct holmes_plan_edge *e)
{
    return e->bytes < 1e8 ? 2.5 : e->bytes < 1e10 ? 4 : e->bytes < 1e12 ? 5.5 : 7;
}

/* From a band down to the next of its box. */
static void put_down(struct canvas *c, const struct draw_box *box, const struct draw_band *b)
{
    const struct holmes_plan_edge *e = edge_of(c->doc->plan, b->last, b->last + 1);
    const double x = box->x + DRAW_BOX_W / 2;
    const double line[][2] = {{x, b->y + b->h}, {x, b->y + b->h + DRAW_GAP - 1}};
    char bytes[24];

    if (!e)
        return;
    put_wire(c, edge_wire(c, e), edge_width(e), true, 2, line);
    put_textf(c, x + 14, b->y + b->h + 25, (struct style){13, true, "start", INK}, 130, "%s",
              bytes_text(e->bytes, bytes));
}

/* What a wire between boxes carries, on a card around (x, y). */
static void put_card(struct canvas *c, const struct holmes_plan_edge *e, double x, double y)
{
    char bytes[24], rate[24];

    put_rect(c, x - 70, y - 23, 140, 46, "#ffffff", wires[edge_wire(c, e)].colour, 6);
    put_textf(c, x, y - 3, (struct style){15, true, "middle", INK}, 132, "%s",
              bytes_text(e->bytes, bytes));
    put_textf(c, x, y + 14, (struct style){12, false, "middle", GREY}, 132,
              e->rtt_ms >= 10 ? "%s, %.0f ms" : "%s, %.2g ms", rate_text(e->gbps, rate), e->rtt_ms);
}

/* From the last band of a box to the first of the next one, in this row or below. */
static void put_across(struct canvas *c, const struct draw_box *a, const struct draw_box *b)
{
    const struct draw_band *from = &a->bands[a->nbands - 1], *to = &b->bands[0];
    const struct holmes_plan_edge *e = edge_of(c->doc->plan, from->last, to->first);
    const double y1 = from->y + from->h / 2, y2 = to->y + to->h / 2,
                 right = a->x + DRAW_BOX_W - DRAW_PAD, middle = a->x + DRAW_BOX_W + DRAW_GUTTER / 2;

    if (!e)
        return;
    if (b->y <= a->y) {
        const double line[][2] = {
            {right, y1}, {middle, y1}, {middle, y2}, {b->x + DRAW_PAD - 1, y2}};

        put_wire(c, edge_wire(c, e), edge_width(e), true, 4, line);
        put_card(c, e, middle, (y1 + y2) / 2);
    } else {
        const double x = a->x + DRAW_BOX_W / 2, gap = b->y - DRAW_ROW_GAP / 2,
                     into = b->x + DRAW_BOX_W / 2;
        const double line[][2] = {{x, from->y + from->h}, {x, gap}, {into, gap}, {into, b->y - 1}};

        put_wire(c, edge_wire(c, e), edge_width(e), true, 4, line);
        put_card(c, e, (x + into) / 2, gap);
    }
}

/* The shared embedding's gradients, from the last stage back to the first, below all. */
static void put_back(struct canvas *c, const struct draw_box *first, const struct draw_box *last)
{
    const struct holmes_plan_edge *e = edge_of(c->doc->plan, c->doc->plan->nstages - 1, 0);
    const struct draw_band *from = &last->bands[last->nbands - 1], *to = &first->bands[0];
    const double y = c->page->bottom + 22, x = last->x + DRAW_BOX_W - 22, left = DRAW_MARGIN - 14;
    const double line[][2] = {{x, from->y + from->h},
                              {x, y},
                              {left, y},
                              {left, to->y + to->h / 2},
                              {first->x + DRAW_PAD - 1, to->y + to->h / 2}};
    char bytes[24], rate[24];

    if (!e)
        return;
    put_wire(c, edge_wire(c, e), edge_width(e), true, 5, line);
    put_textf(c, DRAW_MARGIN + 8, y + 18, (struct style){12, false, "start", INK},
              c->page->width - 2 * DRAW_MARGIN, "shared embedding %s, %s",
              bytes_text(e->bytes, bytes), rate_text(e->gbps, rate));
}

static void put_wires(struct canvas *c)
{
    const struct draw_page *page = c->page;
    int last = 0;

    for (int i = 0; i < page->nboxes; i++) {
        const struct draw_box *box = &page->boxes[i];

        if (box->nbands == 0)
            continue;
        for (int k = 0; k + 1 < box->nbands; k++)
            put_down(c, box, &box->bands[k]);
        if (i + 1 < page->nboxes && page->boxes[i + 1].nbands > 0)
            put_across(c, box, &page->boxes[i + 1]);
        last = i;
    }
    if (page->back)
        put_back(c, &page->boxes[0], &page->boxes[last]);
}

/* --- the page ----------------------------------------------------------------------------------
 */

static void title_text(const struct holmes_plan_doc *doc, char *buf, size_t len)
{
    const struct holmes_plan *p = doc->plan;
    const char *name = doc->request.model.name;
    char gpus[32], gain[80] = "";

    if (p->naive.step_s > 0 && p->cost.step_s > 0) {
        double times = p->naive.step_s / p->cost.step_s;

        if (times >= 1.005)
            snprintf(gain, sizeof gain, ", %.*f times as fast as in the naive order",
                     times < 9.95 ? times < 1.95 ? 2 : 1 : 0, times);
        else if (times > 0.995)
            snprintf(gain, sizeof gain, ", as in the naive order");
        else
            snprintf(gain, sizeof gain, "; %.2f of the naive order's speed", times);
    }
    snprintf(buf, len, "%s on %s GPU%s: %.3g s per step%s", name[0] ? name : "GPT",
             number_text(p->world, gpus), p->world == 1 ? "" : "s", p->cost.step_s, gain);
}

static void put_title(struct canvas *c, const char *title)
{
    const struct holmes_plan *p = c->doc->plan;
    const double width = c->page->width - 2 * DRAW_MARGIN;
    char text[400], now[24], then[24];
    int n, size = 20;

    while (size > 14 && holmes_draw_text_width(title, size, true) > width)
        size--;
    put_text(c, DRAW_MARGIN, 38, (struct style){size, true, "start", INK}, width, title);
    n = snprintf(text, sizeof text, "tensor %d × data %d × pipeline %d, %d microbatches of %d",
                 p->tensor, p->data, p->pipeline, p->microbatches, p->micro_batch);
    if (p->cost.tflops_per_gpu > 0)
        snprintf(text + n, sizeof text - (size_t)n, "; %.3g TFLOPS per GPU",
                 p->cost.tflops_per_gpu);
    put_text(c, DRAW_MARGIN, 62, (struct style){14, false, "start", GREY}, width, text);
    n = snprintf(text, sizeof text, "Between clusters %s per step",
                 bytes_text(p->cost.cross_bytes, now));
    if (p->naive.step_s > 0)
        snprintf(text + n, sizeof text - (size_t)n, "; in the naive order %s",
                 bytes_text(p->naive.cross_bytes, then));
    put_text(c, DRAW_MARGIN, 84, (struct style){14, false, "start", GREY}, width, text);
}

static void put_legend(struct canvas *c)
{
    const double y = c->page->height - DRAW_MARGIN;
    double x = DRAW_MARGIN;

    for (int i = 0; i < WIRES; i++) {
        const double line[][2] = {{x, y - 4}, {x + 34, y - 4}};

        if (!c->used[i])
            continue;
        put_wire(c, (enum wire)i, 4, false, 2, line);
        put_text(c, x + 42, y, (struct style){13, false, "start", INK}, 140, wires[i].name);
        x += 60 + holmes_draw_text_width(wires[i].name, 13, false);
    }
    put_text(c, x + 4, y, (struct style){13, false, "start", GREY},
             c->page->width - x - DRAW_MARGIN, "on wires: sent per step, each way");
}

int holmes_plan_draw(const struct holmes_plan_doc *doc, FILE *out)
{
    struct draw_page page;
    struct canvas c = {.out = out, .doc = doc, .page = &page};
    char title[200];
    int rc = holmes_draw_layout(doc, &page), written;

    if (rc != 0)
        return rc;
    title_text(doc, title, sizeof title);
    holmes_svg_begin(out, (int)page.width, (int)page.height, title);
    put_markers(&c);
    put_title(&c, title);
    for (int i = 0; rc == 0 && i < page.nboxes; i++) {
        put_box(&c, &page.boxes[i]);
        for (int k = 0; rc == 0 && k < page.boxes[i].nbands; k++)
            rc = put_band(&c, &page.boxes[i], &page.boxes[i].bands[k]);
        if (rc == 0 && page.boxes[i].nidle > 0)
            rc = put_idle(&c, &page.boxes[i]);
    }
    put_wires(&c);
    put_legend(&c);
    written = holmes_svg_end(out);
    holmes_draw_layout_fini(&page);
    return rc ? rc : written;
}
