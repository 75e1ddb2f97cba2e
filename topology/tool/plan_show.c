/* See plan_show.h. */
#include "plan_show.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "table.h"

#define HOSTS_SHOWN 44 /* characters */

static int show(const char *title, struct holmes_table *t, FILE *out)
{
    int rc = t ? 0 : -ENOMEM;

    if (rc == 0) {
        fprintf(out, "\n%s\n", title);
        rc = holmes_table_print(t, out);
    }
    holmes_table_destroy(t);
    return rc;
}

/* Hosts [first, first + n) of a group; cut where they are many separate names. NULL: no memory. */
static char *hosts_text(const struct holmes_cluster *c, int group, int first, int n)
{
    struct holmes_hostlist part = {0};
    char *text = NULL;

    if (holmes_hostlist_slice(&c->groups[group].hosts, first, n, &part) == 0) {
        text = holmes_hostlist_text(&part);
        holmes_hostlist_fini(&part);
    }
    return text;
}

static void shorten(char *text)
{
    size_t len = strlen(text);

    if (len > HOSTS_SHOWN)
        memcpy(text + HOSTS_SHOWN - 3, "...", 4);
}

/* The hosts of plan nodes [first, last]. */
static char *nodes_text(const struct holmes_plan_doc *doc, int first, int last)
{
    const struct holmes_plan_node *nodes = doc->plan->nodes;
    char *all = NULL;
    size_t len = 0;

    for (int from = first, to; from <= last && len <= HOSTS_SHOWN; from = to) {
        char *part, *joined = NULL;

        for (to = from + 1; to <= last && nodes[to].group == nodes[from].group &&
                            nodes[to].host == nodes[to - 1].host + 1;
             to++)
            ;
        part = hosts_text(doc->cluster, nodes[from].group, nodes[from].host, to - from);
        if (!part || asprintf(&joined, "%s%s%s", all ? all : "", all ? "," : "", part) < 0) {
            free(part);
            free(all);
            return NULL;
        }
        free(part);
        free(all);
        all = joined;
        len = strlen(all);
    }
    if (all)
        shorten(all);
    return all;
}

static void cell_s(struct holmes_table *t, double seconds)
{
    holmes_table_cell(t, seconds > 0 ? "%.2f" : "-", seconds * 1e3);
}

/* Two figures at least, however small the model. */
static void cell_amount(struct holmes_table *t, double amount, int decimals)
{
    if (amount == 0)
        holmes_table_cell(t, "0");
    else if (amount < 0.1)
        holmes_table_cell(t, "%.2g", amount);
    else
        holmes_table_cell(t, "%.*f", amount < 1 ? 2 : decimals, amount);
}

static void head(const struct holmes_plan_doc *doc, FILE *out)
{
    const struct holmes_plan *p = doc->plan;
    const struct holmes_gpt *g = &doc->request.model;
    int64_t gpus = 0;

    for (int i = 0; i < doc->cluster->ngroups; i++)
        gpus += (int64_t)doc->cluster->types[doc->cluster->groups[i].type].gpus *
                doc->cluster->groups[i].hosts.nhosts;
    fprintf(out, "%s: %d layers, hidden %d, %d heads, sequence %d, vocabulary %d, batch %lld\n",
            g->name[0] ? g->name : "model", g->layers, g->hidden, g->heads, g->sequence,
            g->vocabulary, (long long)doc->request.global_batch);
    fprintf(out, "tensor %d x pipeline %d x data %d = %lld of %lld GPUs on %d node%s\n", p->tensor,
            p->pipeline, p->data, (long long)p->world, (long long)gpus, p->nnodes,
            p->nnodes == 1 ? "" : "s");
    fprintf(out, "%d microbatch%s of %d for each of %d replica%s\n", p->microbatches,
            p->microbatches == 1 ? "" : "es", p->micro_batch, p->data, p->data == 1 ? "" : "s");
}

static int show_stages(const struct holmes_plan_doc *doc, FILE *out)
{
    static const char *const columns[] = {
        "stage",           "fabric",      "nodes",   "ranks",       "layers",
        "TFLOPS\nper GPU", "memory\nGiB", "of\nGiB", "compute\nms", "data group\nGB/step",
        "of it shown\nms"};
    const struct holmes_plan *p = doc->plan;
    int64_t each = (int64_t)p->tensor * p->data;
    struct holmes_table *t = holmes_table_of(columns, "rlllrrrrrrr");

    for (int i = 0; t && i < p->nstages; i++) {
        const struct holmes_plan_stage *s = &p->stages[i];
        char *nodes = nodes_text(doc, s->first_node, s->last_node);

        if (!nodes) {
            holmes_table_destroy(t);
            return -ENOMEM;
        }
        holmes_table_cell(t, "%d", i);
        holmes_table_cell(t, "%s%s", doc->fabrics->fabrics[s->fabric].name,
                          s->crosses ? " and more" : "");
        holmes_table_cell(t, "%s", nodes);
        holmes_table_cell(t, "%lld-%lld", (long long)(i * each), (long long)((i + 1) * each - 1));
        holmes_table_cell(t, "%d", s->layers);
        cell_amount(t, s->tflops, 0);
        cell_amount(t, s->memory_gib, 1);
        holmes_table_cell(t, s->memory_limit_gib > 0 ? "%.0f" : "?", s->memory_limit_gib);
        cell_s(t, s->compute_s);
        if (s->data_bytes > 0)
            cell_amount(t, s->data_bytes / 1e9, 2);
        else
            holmes_table_cell(t, "-");
        cell_s(t, s->data_s);
        free(nodes);
    }
    return show(
        "Stages (compute: forward and backward of one microbatch; data group: sent per GPU, "
        "shown: not hidden behind compute)",
        t, out);
}

static bool one_node(const struct holmes_plan_stage *a, const struct holmes_plan_stage *b)
{
    return a->first_node == a->last_node && b->first_node == a->first_node &&
           b->last_node == a->first_node;
}

static int show_edges(const struct holmes_plan_doc *doc, FILE *out)
{
    static const char *const columns[] = {
        "between",        "carries",    "over", "GB/step\neach way", "Gb/s\nall together",
        "round trip\nms", "message\nms"};
    const struct holmes_plan *p = doc->plan;
    struct holmes_table *t;

    if (p->nedges == 0)
        return 0;
    t = holmes_table_of(columns, "lllrrrr");
    for (int i = 0; t && i < p->nedges; i++) {
        const struct holmes_plan_edge *e = &p->edges[i];
        const struct holmes_fabric *a = &doc->fabrics->fabrics[p->stages[e->from_stage].fabric];
        const struct holmes_fabric *b = &doc->fabrics->fabrics[p->stages[e->to_stage].fabric];

        holmes_table_cell(t, "%d - %d", e->from_stage, e->to_stage);
        holmes_table_cell(t, e->to_stage == e->from_stage + 1 && i < p->pipeline - 1
                                 ? "activations"
                                 : "tied embedding");
        if (e->crosses)
            holmes_table_cell(t, "TCP, %s to %s", a->name, b->name);
        else if (one_node(&p->stages[e->from_stage], &p->stages[e->to_stage]))
            holmes_table_cell(t, "inside the node");
        else
            holmes_table_cell(t, "%s, inside %s", a->rdma ? "RDMA" : "TCP", a->name);
        cell_amount(t, e->bytes / 1e9, 2);
        holmes_table_cell(t, e->gbps > 0 ? "%.1f" : "-", e->gbps);
        holmes_table_cell(t, e->rtt_ms > 0 ? "%g" : "-", e->rtt_ms);
        cell_s(t, e->message_s);
    }
    return show("Between stages", t, out);
}

static int show_cost(const struct holmes_plan *p, FILE *out)
{
    static const char *const columns[] = {"one step", "planned\nms", "file order\nms"};
    const struct {
        const char *name;
        double planned, naive;
    } rows[] = {
        {"compute of the slowest stage", p->cost.compute_s, p->naive.compute_s},
        {"pipeline fill and drain", p->cost.bubble_s, p->naive.bubble_s},
        {"messages between stages", p->cost.pipeline_comm_s, p->naive.pipeline_comm_s},
        {"data groups, not hidden", p->cost.data_comm_s, p->naive.data_comm_s},
        {"tied embedding", p->cost.embedding_s, p->naive.embedding_s},
    };
    bool naive = p->naive.step_s > 0;
    struct holmes_table *t = holmes_table_of(columns, naive ? "lrr" : "lr");
    int rc;

    for (size_t i = 0; t && i < sizeof(rows) / sizeof(rows[0]); i++) {
        holmes_table_cell(t, "%s", rows[i].name);
        cell_s(t, rows[i].planned);
        if (naive)
            cell_s(t, rows[i].naive);
    }
    if (t) {
        holmes_table_rule(t);
        holmes_table_cell(t, "expected step");
        cell_s(t, p->cost.step_s);
        if (naive)
            cell_s(t, p->naive.step_s);
        holmes_table_cell(t, "TFLOPS per GPU");
        cell_amount(t, p->cost.tflops_per_gpu, 1);
        if (naive)
            cell_amount(t, p->naive.tflops_per_gpu, 1);
        holmes_table_cell(t, "GB between fabrics");
        cell_amount(t, p->cost.cross_bytes / 1e9, 2);
        if (naive)
            cell_amount(t, p->naive.cross_bytes / 1e9, 2);
    }
    rc = show("Cost (the model's: docs/cost-model.md)", t, out);
    if (rc == 0 && naive && p->naive.step_s > p->cost.step_s * 1.001)
        fprintf(out,
                "\nThe same sizes with nodes in the file's order and even layers: %.2f times the "
                "step time.\n",
                p->naive.step_s / p->cost.step_s);
    else if (rc == 0 && naive && p->naive.step_s < p->cost.step_s * 0.995)
        fprintf(
            out,
            "\nThe file's order with even layers would take %.2f times the step time of the plan: "
            "with this batch\nthe messages between stages cost more than data groups across "
            "fabrics would.\n",
            p->naive.step_s / p->cost.step_s);
    else if (rc == 0 && naive)
        fputs("\nThe file's order with even layers is as good.\n", out);
    return rc;
}

static int show_idle(const struct holmes_plan_doc *doc, FILE *out)
{
    static const char *const columns[] = {"idle nodes", "number", "GPUs each", "why"};
    const struct holmes_plan *p = doc->plan;
    struct holmes_table *t;

    if (p->nidle == 0)
        return 0;
    t = holmes_table_of(columns, "lrrl");
    for (int i = 0; t && i < p->nidle; i++) {
        const struct holmes_plan_idle *d = &p->idle[i];
        char *hosts = hosts_text(doc->cluster, d->group, d->first_host, d->nhosts);

        if (!hosts) {
            holmes_table_destroy(t);
            return -ENOMEM;
        }
        shorten(hosts);
        holmes_table_cell(t, "%s", hosts);
        holmes_table_cell(t, "%d", d->nhosts);
        holmes_table_cell(t, "%d", d->gpus);
        holmes_table_cell(t, "%s", d->reason);
        free(hosts);
    }
    return show("Idle", t, out);
}

int topo_plan_show(const struct holmes_plan_doc *doc, bool explain, FILE *out)
{
    const struct holmes_plan *p = doc->plan;
    int rc, shown = 0;

    head(doc, out);
    rc = show_stages(doc, out);
    if (rc == 0)
        rc = show_edges(doc, out);
    if (rc == 0)
        rc = show_cost(p, out);
    if (rc == 0)
        rc = show_idle(doc, out);
    if (rc != 0)
        return rc;
    fputc('\n', out);
    for (int i = 0; explain && i < doc->fabrics->n; i++)
        fprintf(out, "fabric %s: %s\n", doc->fabrics->fabrics[i].name,
                doc->fabrics->fabrics[i].reason ? doc->fabrics->fabrics[i].reason : "as told");
    for (int i = 0; explain && i < doc->fabrics->nnotes; i++)
        fprintf(out, "note: %s\n", doc->fabrics->notes[i]);
    for (int i = 0; i < p->nnotes; i++) {
        bool warning = strncmp(p->notes[i], "warning:", 8) == 0;

        if (explain || warning)
            fprintf(out, "%s%s\n", warning ? "" : "note: ", p->notes[i]);
        shown += explain || warning;
    }
    if (shown < p->nnotes)
        fprintf(out, "%d note%s: --explain\n", p->nnotes - shown,
                p->nnotes - shown == 1 ? "" : "s");
    return ferror(out) ? -EIO : 0;
}
