/* holmes-train. Its ranks keep the order of the cluster file, and --rank-order says which place of
 * the plan each takes, so that the same ranks can run any plan, and the naive order too. */
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

/* Place by place the rank that takes it: places are the plan's ranks. */
static void write_order(const struct holmes_plan *p, const struct placed *nodes, bool naive,
                        FILE *out, int64_t *first)
{
    int64_t place = 0;

    for (int i = 0; i < p->nnodes; i++)
        first[nodes[i].node] = nodes[i].first;
    fputs(" --rank-order ", out);
    for (int i = 0; i < p->nnodes; i++)
        for (int k = 0; k < p->nodes[i].gpus; k++, place++)
            fprintf(out, "%s%" PRId64, place ? "," : "", naive ? place : first[i] + k);
}

static void write_model(const struct holmes_plan_request *r, FILE *out)
{
    const struct holmes_gpt *m = &r->model;

    fprintf(out, " --layers %d --channels %d --heads %d --seq-len %d", m->layers, m->hidden,
            m->heads, m->sequence);
    if (m->vocabulary > 0)
        fprintf(out, " --vocab %d", m->vocabulary);
    fprintf(out, "%s%s%s\n", m->tied ? " --tied" : "", m->recompute ? " --recompute" : "",
            r->no_overlap ? " --overlap off" : "");
}

static int write_args(const struct holmes_plan_doc *doc, const struct holmes_emit_options *o,
                      FILE *out, char *why, size_t why_len)
{
    const struct holmes_plan *p = doc->plan;
    const struct holmes_gpt *m = &doc->request.model;
    struct placed *nodes = file_order(p);
    int64_t *first = calloc((size_t)p->nnodes, sizeof *first);
    int rc = 0;

    if (m->ffn > 0 && m->ffn != 4 * m->hidden) {
        snprintf(why, why_len,
                 "ffn %d: holmes-train's MLP is 4 x hidden = %d wide; plan without "
                 "--ffn",
                 m->ffn, 4 * m->hidden);
        rc = -EINVAL;
    } else if (nodes && first) {
        fprintf(out, "--pipeline %d --data-parallel %d", p->pipeline, p->data);
        if (p->tensor > 1)
            fprintf(out, " --tensor %d", p->tensor);
        write_order(p, nodes, o->naive, out, first);
        for (int i = 0; !o->naive && i < p->nstages; i++)
            fprintf(out, "%s%d", i ? "," : " --stage-layers ", p->stages[i].layers);
        fprintf(out, " --batch %" PRId64 " --microbatch %d", doc->request.global_batch,
                p->micro_batch);
        write_model(&doc->request, out);
    } else {
        rc = no_memory(why, why_len);
    }
    free(nodes);
    free(first);
    return rc;
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

const struct holmes_emit_form holmes_emit_holmes = {
    .name = "holmes",
    .summary = "holmes-train: its options, and which rank runs where",
    .parts =
        {
            {"args", "args", "options that all ranks share, on one line", write_args},
            {"ranks", "ranks", "rank, host, cluster, by tabs", write_ranks},
            {"labels", "labels", "--host-label and --cluster for --local", write_labels},
        },
};
