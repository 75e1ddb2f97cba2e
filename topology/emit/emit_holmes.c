/* holmes-train. The ranks of `args` keep the order of the cluster file, and --rank-order says which
 * place of the plan each takes, so that the same ranks can run any plan, and the naive order too.
 * Those of `config` are the plan's own, as launchers start them from a hostfile. */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "emit.h"

/* A plan node, sorted by its place in the file. */
struct placed {
    int group, host, node;
    int64_t first; /* rank, counted in the order of the file */
};

static int by_file(const void *a, const void *b)
{
    const struct placed *x = a, *y = b;

    if (x->group != y->group)
        return x->group < y->group ? -1 : 1;
    return x->host < y->host ? -1 : x->host > y->host;
}

/* All plan nodes in the order of the file, malloc()ed. */
static struct placed *file_order(const struct holmes_plan *p)
{
    struct placed *nodes = calloc((size_t)p->nnodes, sizeof *nodes);
    int64_t rank = 0;

    for (int i = 0; nodes && i < p->nnodes; i++)
        nodes[i] = (struct placed){p->nodes[i].group, p->nodes[i].host, i, 0};
    if (nodes)
        qsort(nodes, (size_t)p->nnodes, sizeof *nodes, by_file);
    for (int i = 0; nodes && i < p->nnodes; i++) {
        nodes[i].first = rank;
        rank += p->nodes[nodes[i].node].gpus;
    }
    return nodes;
}

static int no_memory(char *why, size_t why_len)
{
    snprintf(why, why_len, "out of memory");
    return -ENOMEM;
}

/* Options of holmes-train: on one line for a shell, or a line each for its --config. */
struct settings {
    FILE *out;
    bool yaml, any;
};

static void begin(struct settings *s, const char *name)
{
    if (s->any)
        fputc(s->yaml ? '\n' : ' ', s->out);
    fprintf(s->out, "%s%s%s", s->yaml ? "" : "--", name, s->yaml ? ": " : " ");
    s->any = true;
}

static void number(struct settings *s, const char *name, int64_t value)
{
    begin(s, name);
    fprintf(s->out, "%" PRId64, value);
}

static void flag(struct settings *s, const char *name)
{
    if (s->yaml)
        fprintf(s->out, "\n%s: yes", name);
    else
        fprintf(s->out, " --%s", name);
}

/* Place by place the rank that takes it. The plan's places are the plan's ranks, node by node; the
 * naive ones follow the file. Ranks are numbered in the order of the file, or by the plan as
 * launchers number them: that is yaml's, whose ranks a hostfile in the plan's order starts. */
static void write_order(const struct holmes_plan *p, const struct placed *nodes, bool naive,
                        struct settings *s, int64_t *first)
{
    int64_t place = 0;

    for (int i = 0; i < p->nnodes; i++)
        first[nodes[i].node] = s->yaml ? p->nodes[nodes[i].node].first_rank : nodes[i].first;
    begin(s, "rank-order");
    for (int i = 0; i < p->nnodes; i++) {
        int node = naive ? nodes[i].node : i;

        for (int k = 0; k < p->nodes[node].gpus; k++, place++)
            fprintf(s->out, "%s%" PRId64, place ? "," : "", first[node] + k);
    }
}

static void write_model(const struct holmes_plan_request *r, struct settings *s)
{
    const struct holmes_gpt *m = &r->model;

    number(s, "layers", m->layers);
    number(s, "channels", m->hidden);
    number(s, "heads", m->heads);
    number(s, "seq-len", m->sequence);
    if (m->vocabulary > 0)
        number(s, "vocab", m->vocabulary);
    if (m->tied)
        flag(s, "tied");
    if (m->recompute)
        flag(s, "recompute");
    if (r->no_overlap) {
        begin(s, "overlap");
        fputs("off", s->out);
    }
}

static void write_split(const struct holmes_plan_doc *doc, const struct placed *nodes, bool naive,
                        struct settings *s, int64_t *first)
{
    const struct holmes_plan *p = doc->plan;

    number(s, "pipeline", p->pipeline);
    number(s, "data-parallel", p->data);
    if (p->tensor > 1)
        number(s, "tensor", p->tensor);
    write_order(p, nodes, naive, s, first);
    if (!naive) {
        begin(s, "stage-layers");
        for (int i = 0; i < p->nstages; i++)
            fprintf(s->out, "%s%d", i ? "," : "", p->stages[i].layers);
    }
    number(s, "batch", doc->request.global_batch);
    number(s, "microbatch", p->micro_batch);
}

/* Whether holmes-train has such a model. */
static int check_model(const struct holmes_gpt *m, char *why, size_t why_len)
{
    if (m->ffn <= 0 || m->ffn == 4 * m->hidden)
        return 0;
    snprintf(why, why_len,
             "ffn %d: holmes-train's MLP is 4 x hidden = %d wide; plan without "
             "--ffn",
             m->ffn, 4 * m->hidden);
    return -EINVAL;
}

static int write_settings(const struct holmes_plan_doc *doc, bool naive, struct settings *s,
                          char *why, size_t why_len)
{
    struct placed *nodes = file_order(doc->plan);
    int64_t *first = calloc((size_t)doc->plan->nnodes, sizeof *first);
    int rc = 0;

    if (nodes && first) {
        write_split(doc, nodes, naive, s, first);
        write_model(&doc->request, s);
        fputc('\n', s->out);
    } else {
        rc = no_memory(why, why_len);
    }
    free(nodes);
    free(first);
    return rc;
}

static int write_args(const struct holmes_plan_doc *doc, const struct holmes_emit_options *o,
                      FILE *out, char *why, size_t why_len)
{
    int rc = check_model(&doc->request.model, why, why_len);

    return rc != 0 ? rc
                   : write_settings(doc, o->naive, &(struct settings){.out = out}, why, why_len);
}

static const char *fabric_of(const struct holmes_plan_doc *doc, int node)
{
    return doc->fabrics->fabrics[doc->fabrics->group_fabric[doc->plan->nodes[node].group]].name;
}

static int write_ranks(const struct holmes_plan_doc *doc, const struct holmes_emit_options *o,
                       FILE *out, char *why, size_t why_len)
{
    struct placed *nodes;
    char host[HOLMES_HOST_NAME_MAX];

    (void)o;
    nodes = file_order(doc->plan);
    if (!nodes)
        return no_memory(why, why_len);
    for (int i = 0; i < doc->plan->nnodes; i++) {
        holmes_emit_host(doc, nodes[i].node, host);
        for (int k = 0; k < doc->plan->nodes[nodes[i].node].gpus; k++) {
            fprintf(out, "%" PRId64 "\t%s\t", nodes[i].first + k, host);
            holmes_emit_plain(fabric_of(doc, nodes[i].node), out);
            fputc('\n', out);
        }
    }
    free(nodes);
    return 0;
}

/* One list of names, an entry for each rank. */
static void write_labels_of(const struct holmes_plan_doc *doc, const struct placed *nodes,
                            bool fabrics, FILE *out)
{
    char host[HOLMES_HOST_NAME_MAX];

    for (int i = 0; i < doc->plan->nnodes; i++) {
        const char *label =
            fabrics ? fabric_of(doc, nodes[i].node) : holmes_emit_host(doc, nodes[i].node, host);

        for (int k = 0; k < doc->plan->nodes[nodes[i].node].gpus; k++)
            fprintf(out, "%s%s", i + k ? "," : "", label);
    }
}

static int write_labels(const struct holmes_plan_doc *doc, const struct holmes_emit_options *o,
                        FILE *out, char *why, size_t why_len)
{
    struct placed *nodes;
    int rc = 0;

    (void)o;
    for (int i = 0; rc == 0 && i < doc->fabrics->n; i++) {
        const char *name = doc->fabrics->fabrics[i].name;

        if (name[strcspn(name, ", \t'\"\\$`*?[")]) {
            snprintf(why, why_len,
                     "fabric \"%.60s\": holmes-train takes lists of names, which "
                     "have no blanks, commas or signs of the shell",
                     name);
            rc = -EINVAL;
        }
    }
    if (rc != 0)
        return rc;
    nodes = file_order(doc->plan);
    if (!nodes)
        return no_memory(why, why_len);
    fputs("--host-label ", out);
    write_labels_of(doc, nodes, false, out);
    fputs(" --cluster ", out);
    write_labels_of(doc, nodes, true, out);
    fputc('\n', out);
    free(nodes);
    return 0;
}

/* A list in YAML, an entry for each rank. */
static void write_list(const struct holmes_plan_doc *doc, const char *option, bool fabrics,
                       FILE *out)
{
    char host[HOLMES_HOST_NAME_MAX];

    fprintf(out, "%s: [", option);
    for (int i = 0; i < doc->plan->nnodes; i++) {
        const char *name = fabrics ? fabric_of(doc, i) : holmes_emit_host(doc, i, host);

        for (int k = 0; k < doc->plan->nodes[i].gpus; k++)
            fprintf(out, "%s\"%s\"", i + k ? ", " : "", name);
    }
    fputs("]\n", out);
}

/* holmes-train's --config. With the hosts that the plan means, each rank sees whether it runs where
 * it was planned. */
static int write_config(const struct holmes_plan_doc *doc, const struct holmes_emit_options *o,
                        FILE *out, char *why, size_t why_len)
{
    int rc = check_model(&doc->request.model, why, why_len);

    for (int i = 0; rc == 0 && i < doc->fabrics->n; i++) {
        const char *name = doc->fabrics->fabrics[i].name;

        if (name[strcspn(name, ",\"\\")]) {
            snprintf(why, why_len,
                     "fabric \"%.60s\": holmes-train takes lists of names, which "
                     "have no commas, quotes or backslashes",
                     name);
            rc = -EINVAL;
        }
    }
    if (rc != 0)
        return rc;
    holmes_emit_title(doc, "Options of holmes-train --config", out);
    fputs("# Ranks are the plan's, host by host as in hostfile; --data is yours to add\n", out);
    rc = write_settings(doc, o->naive, &(struct settings){.out = out, .yaml = true}, why, why_len);
    write_list(doc, "cluster", true, out);
    write_list(doc, "planned-hosts", false, out);
    return rc;
}

const struct holmes_emit_form holmes_emit_holmes = {
    .name = "holmes",
    .summary = "holmes-train: its options, and which rank runs where",
    .parts =
        {
            {"config", "config.yaml", "for --config; ranks as in hostfile", write_config},
            {"hostfile", "hostfile", "hosts in rank order, for mpirun", holmes_emit_hostfile},
            {"rankfile", "rankfile", "a host and cores for each rank", holmes_emit_rankfile},
            {"args", "args", "options that all ranks share, on one line", write_args},
            {"ranks", "ranks", "rank, host, cluster of args, by tabs", write_ranks},
            {"labels", "labels", "--host-label and --cluster of args, for --local", write_labels},
        },
};
