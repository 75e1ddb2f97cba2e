/* What came out, for people and for programs. */
#include "tool/check.h"

#include <errno.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "table.h"

#define MATRIX_MAX  16 /* nodes that fit beside each other on a screen */
#define REASONS_MAX 12
#define LIKE_MAX    4 /* findings of one cause that are shown */

/* --- for people ------------------------------------------------------------------------------- */

static const struct holmes_check_result **by_nodes(const struct holmes_check_run *run)
{
    const struct holmes_check_result **at =
        calloc((size_t)run->nnodes * (size_t)run->nnodes + 1, sizeof(void *));

    for (int i = 0; at && i < run->npairs; i++) {
        const struct holmes_check_result *p = &run->pairs[i];

        at[p->a * run->nnodes + p->b] = at[p->b * run->nnodes + p->a] = p;
    }
    return at;
}

static struct holmes_table *matrix_table(const struct holmes_check_run *run, const char *corner)
{
    struct holmes_table *t;

    if (holmes_table_create(run->nnodes + 1, &t) != 0)
        return NULL;
    holmes_table_column(t, corner, HOLMES_TABLE_LEFT);
    for (int i = 0; i < run->nnodes; i++)
        holmes_table_column(t, run->nodes[i].host, HOLMES_TABLE_RIGHT);
    return t;
}

static void matrix_cell(struct holmes_table *t, const struct holmes_check_result *p, bool rates,
                        bool back)
{
    if (!p)
        holmes_table_cell(t, "-");
    else if (p->state == HOLMES_CHECK_BROKEN)
        holmes_table_cell(t, "broken");
    else if (p->state != HOLMES_CHECK_MEASURED)
        holmes_table_cell(t, "?");
    else if (rates)
        holmes_table_cell(t, "%s %.*f", p->wire, p->gbps[back] < 10 ? 2 : 0, p->gbps[back]);
    else
        holmes_table_cell(t, "%.0f", p->rtt_us);
}

static void print_matrix(const struct holmes_check_run *run, bool rates, FILE *out)
{
    const struct holmes_check_result **at = by_nodes(run);
    struct holmes_table *t = matrix_table(run, rates ? "Gb/s from" : "round trip, us");

    for (int row = 0; at && t && row < run->nnodes; row++) {
        holmes_table_cell(t, "%s", run->nodes[row].host);
        for (int col = 0; col < run->nnodes; col++) {
            const struct holmes_check_result *p = at[row * run->nnodes + col];

            matrix_cell(t, p, rates, p && p->b == row);
        }
    }
    if (t)
        holmes_table_print(t, out);
    fputc('\n', out);
    holmes_table_destroy(t);
    free(at);
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return x < y ? -1 : x > y;
}

/* One wire in a line: what a matrix of 64 nodes comes down to. */
static void summary_row(const struct holmes_check_run *run, const char *wire, double *rates,
                        double *rtts, struct holmes_table *t)
{
    int n = 0;

    for (int i = 0; i < run->npairs; i++) {
        const struct holmes_check_result *p = &run->pairs[i];

        if (p->state != HOLMES_CHECK_MEASURED || strcmp(p->wire, wire) != 0)
            continue;
        rates[2 * n] = p->gbps[0];
        rates[2 * n + 1] = p->gbps[1];
        rtts[n++] = p->rtt_us;
    }
    qsort(rates, (size_t)2 * (size_t)n, sizeof *rates, by_value);
    qsort(rtts, (size_t)n, sizeof *rtts, by_value);
    holmes_table_cell(t, "%s", wire);
    holmes_table_cell(t, "%d", n);
    holmes_table_cell(t, "%.3g", rates[0]);
    holmes_table_cell(t, "%.3g", rates[n]);
    holmes_table_cell(t, "%.3g", rates[2 * n - 1]);
    holmes_table_cell(t, "%.0f", rtts[n / 2]);
    holmes_table_cell(t, "%.0f", rtts[n - 1]);
}

static bool wire_is_new(const struct holmes_check_run *run, int i)
{
    if (run->pairs[i].state != HOLMES_CHECK_MEASURED)
        return false;
    for (int k = 0; k < i; k++)
        if (run->pairs[k].state == HOLMES_CHECK_MEASURED &&
            strcmp(run->pairs[k].wire, run->pairs[i].wire) == 0)
            return false;
    return true;
}

static void print_summary(const struct holmes_check_run *run, FILE *out)
{
    static const char *const columns[] = {
        "wire", "pairs", "Gb/s\nleast", "\nmedian", "\nmost", "round trip, us\nmedian", "\nmost"};
    double *rates = calloc((size_t)2 * (size_t)run->npairs + 1, sizeof *rates);
    double *rtts = calloc((size_t)run->npairs + 1, sizeof *rtts);
    struct holmes_table *t = NULL;

    if (rates && rtts && holmes_table_create(7, &t) == 0) {
        for (int i = 0; i < 7; i++)
            holmes_table_column(t, columns[i], i == 0 ? HOLMES_TABLE_LEFT : HOLMES_TABLE_RIGHT);
        for (int i = 0, wires = 0; i < run->npairs && wires < 8; i++) {
            if (!wire_is_new(run, i))
                continue;
            summary_row(run, run->pairs[i].wire, rates, rtts, t);
            wires++;
        }
        holmes_table_print(t, out);
        fputc('\n', out);
    }
    holmes_table_destroy(t);
    free(rates);
    free(rtts);
}

/* Each reason once, with the first pair that has it. */
static void print_reasons(const struct holmes_check_run *run, FILE *out)
{
    struct holmes_table *t;
    const struct holmes_check_result *seen[REASONS_MAX];
    int counts[REASONS_MAX] = {0}, n = 0, more = 0;

    for (int i = 0; i < run->npairs; i++) {
        const struct holmes_check_result *p = &run->pairs[i];
        int k = 0;

        if (p->state != HOLMES_CHECK_MEASURED)
            continue;
        while (k < n &&
               (strcmp(seen[k]->reason, p->reason) != 0 || strcmp(seen[k]->wire, p->wire) != 0))
            k++;
        if (k == REASONS_MAX) {
            more++;
            continue;
        }
        if (k == n)
            seen[n++] = p;
        counts[k]++;
    }
    if (n == 0 || holmes_table_create(4, &t) != 0)
        return;
    holmes_table_column(t, "wire", HOLMES_TABLE_LEFT);
    holmes_table_column(t, "pairs", HOLMES_TABLE_RIGHT);
    holmes_table_column(t, "such as", HOLMES_TABLE_LEFT);
    holmes_table_column(t, "because", HOLMES_TABLE_LEFT);
    for (int k = 0; k < n; k++) {
        holmes_table_cell(t, "%s", seen[k]->wire);
        holmes_table_cell(t, "%d", counts[k]);
        holmes_table_cell(t, "%s - %s", run->nodes[seen[k]->a].host, run->nodes[seen[k]->b].host);
        holmes_table_cell(t, "%s", seen[k]->reason[0] ? seen[k]->reason : "-");
    }
    holmes_table_print(t, out);
    if (more > 0)
        fprintf(out, "and %d pairs for other reasons (--json has them all)\n", more);
    fputc('\n', out);
    holmes_table_destroy(t);
}

static void print_group(const struct holmes_check_run *run, const struct holmes_check_groups *g,
                        int group, FILE *out)
{
    int shown = 0, n = 0;

    fputc('{', out);
    for (int i = 0; i < run->nnodes; i++) {
        if (g->group[i] != group)
            continue;
        if (n++ >= 8)
            continue;
        fprintf(out, "%s%s", shown++ > 0 ? ", " : "", run->nodes[i].host);
    }
    if (n > shown)
        fprintf(out, ", and %d more", n - shown);
    fputc('}', out);
}

/* The slow link between two groups: the best pair that was measured across it, alone if one was. */
static void print_between(const struct holmes_check_run *run, const struct holmes_check_groups *g,
                          int x, int y, FILE *out)
{
    const struct holmes_check_result *best = NULL;

    for (int i = 0; i < run->npairs; i++) {
        const struct holmes_check_result *p = &run->pairs[i];
        int a = g->group[p->a], b = g->group[p->b];

        if (p->state != HOLMES_CHECK_MEASURED || !((a == x && b == y) || (a == y && b == x)))
            continue;
        if (!best || p->alone > best->alone ||
            (p->alone == best->alone && p->gbps[0] + p->gbps[1] > best->gbps[0] + best->gbps[1]))
            best = p;
    }
    if (!best)
        return;
    fputs("  between ", out);
    print_group(run, g, x, out);
    fputs(" and ", out);
    print_group(run, g, y, out);
    fprintf(out, ": %.3g Gb/s forth, %.3g back over %s (%s - %s%s), round trip %.0f us\n",
            best->gbps[0], best->gbps[1], best->wire, run->nodes[best->a].host,
            run->nodes[best->b].host, best->alone ? ", alone" : "", best->rtt_us);
}

static void print_groups(const struct holmes_check_run *run, const struct holmes_check_groups *g,
                         FILE *out)
{
    int shown = 0;

    if (g->n == 0)
        return;
    fprintf(out,
            "Slow links part the hosts into %d groups, inside which fast pairs have %.3g Gb/s or "
            "more:\n",
            g->n, g->within_gbps);
    for (int x = 0; x < g->n; x++)
        for (int y = x + 1; y < g->n && shown < 20; y++, shown++)
            print_between(run, g, x, y, out);
    fputc('\n', out);
}

/* The first few of those that have one cause, then how many there are more, then what to do. */
static void print_findings(const struct holmes_check_finding *f, int n, FILE *out)
{
    bool *told = calloc((size_t)n + 1, sizeof *told);

    for (int i = 0; told && i < n; i++) {
        int shown = 0, more = 0;

        if (told[i])
            continue;
        for (int k = i; k < n; k++) {
            if (k != i && (f[i].like == 0 || f[k].like != f[i].like))
                continue;
            told[k] = true;
            if (shown < LIKE_MAX) {
                shown++;
                fprintf(out, "* %s\n", f[k].what);
            } else {
                more++;
            }
        }
        if (more > 0)
            fprintf(out, "* and %d more like these (--json has them)\n", more);
        if (f[i].remedy[0])
            fprintf(out, "    %s\n", f[i].remedy);
    }
    free(told);
}

void holmes_check_print(const struct holmes_check_run *run,
                        const struct holmes_check_groups *groups,
                        const struct holmes_check_finding *findings, int n, FILE *out)
{
    int measured = 0;

    for (int i = 0; i < run->npairs; i++)
        measured += run->pairs[i].state == HOLMES_CHECK_MEASURED;
    if (run->nnodes <= MATRIX_MAX && measured > 0) {
        print_matrix(run, true, out);
        print_matrix(run, false, out);
    } else if (measured > 0) {
        print_summary(run, out);
    }
    print_reasons(run, out);
    print_groups(run, groups, out);
    print_findings(findings, n, out);
    fprintf(out, "%s%d of %d pairs of %d hosts measured in %.1f s: ", n > 0 ? "\n" : "", measured,
            run->npairs, run->nnodes, run->took_s);
    if (n == 0)
        fputs("nothing falls short\n", out);
    else
        fprintf(out, "%d %s not as %s should be\n", n, n == 1 ? "thing is" : "things are",
                n == 1 ? "it" : "they");
}

/* --- for programs ----------------------------------------------------------------------------- */

static json_t *node_json(const struct holmes_check_node *n)
{
    static const char *const states[] = {
        [HOLMES_CHECK_STARTING] = "silent",     [HOLMES_CHECK_THERE] = "ok",
        [HOLMES_CHECK_UNREACHED] = "unreached", [HOLMES_CHECK_NO_PROGRAM] = "no program",
        [HOLMES_CHECK_REFUSED] = "refused",     [HOLMES_CHECK_SILENT] = "silent",
        [HOLMES_CHECK_GARBLED] = "garbled",     [HOLMES_CHECK_OTHER] = "other version",
        [HOLMES_CHECK_LOST] = "lost",           [HOLMES_CHECK_CUT_OFF] = "cut off",
    };
    json_t *o = json_pack("{s:s, s:s, s:[]}", "host", n->host, "state", states[n->state], "nics");

    if (n->why[0])
        json_object_set_new(o, "why", json_string(n->why));
    for (int i = 0; i < n->nnics; i++)
        json_array_append_new(json_object_get(o, "nics"),
                              json_pack("{s:s, s:f, s:b}", "name", n->nics[i].name, "gbps",
                                        n->nics[i].gbps, "rdma", n->nics[i].rdma));
    return o;
}

static json_t *pair_json(const struct holmes_check_run *run, const struct holmes_check_result *p)
{
    static const char *const states[] = {[HOLMES_CHECK_WAITING] = "not measured",
                                         [HOLMES_CHECK_MEASURED] = "ok",
                                         [HOLMES_CHECK_BROKEN] = "broken",
                                         [HOLMES_CHECK_SKIPPED] = "skipped"};
    json_t *o = json_pack("{s:s, s:s, s:s, s:i}", "a", run->nodes[p->a].host, "b",
                          run->nodes[p->b].host, "state", states[p->state], "round", p->round);
    json_t *more = NULL;

    if (p->why[0])
        json_object_set_new(o, "why", json_string(p->why));
    if (p->state == HOLMES_CHECK_MEASURED)
        more = json_pack("{s:s, s:s, s:s, s:s, s:f, s:f, s:f, s:b}", "wire", p->wire, "reason",
                         p->reason, "local", p->local, "peer", p->peer, "round_trip_us", p->rtt_us,
                         "gbps_forth", p->gbps[0], "gbps_back", p->gbps[1], "alone", p->alone);
    if (more)
        json_object_update(o, more);
    json_decref(more);
    return o;
}

static json_t *groups_json(const struct holmes_check_run *run, const struct holmes_check_groups *g)
{
    json_t *all = json_array();

    for (int i = 0; i < g->n; i++)
        json_array_append_new(all, json_array());
    for (int i = 0; g->n > 0 && i < run->nnodes; i++)
        if (g->group[i] >= 0)
            json_array_append_new(json_array_get(all, (size_t)g->group[i]),
                                  json_string(run->nodes[i].host));
    return all;
}

int holmes_check_print_json(const struct holmes_check_run *run,
                            const struct holmes_check_groups *groups,
                            const struct holmes_check_finding *findings, int n, FILE *out)
{
    json_t *o =
        json_pack("{s:i, s:b, s:f, s:[], s:[], s:o, s:[]}", "version", 1, "ok", n == 0, "seconds",
                  run->took_s, "nodes", "pairs", "groups", groups_json(run, groups), "findings");
    int rc = -ENOMEM;

    if (!o)
        return rc;
    for (int i = 0; i < run->nnodes; i++)
        json_array_append_new(json_object_get(o, "nodes"), node_json(&run->nodes[i]));
    for (int i = 0; i < run->npairs; i++)
        json_array_append_new(json_object_get(o, "pairs"), pair_json(run, &run->pairs[i]));
    for (int i = 0; i < n; i++)
        json_array_append_new(
            json_object_get(o, "findings"),
            json_pack("{s:s, s:s}", "what", findings[i].what, "remedy", findings[i].remedy));
    if (json_array_size(json_object_get(o, "nodes")) == (size_t)run->nnodes &&
        json_array_size(json_object_get(o, "pairs")) == (size_t)run->npairs &&
        json_array_size(json_object_get(o, "findings")) == (size_t)n &&
        json_dumpf(o, out, JSON_INDENT(1)) == 0)
        rc = fputc('\n', out) == EOF || fflush(out) != 0 ? -EIO : 0;
    json_decref(o);
    return rc;
}
