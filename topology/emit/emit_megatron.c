/* Megatron-LM's options. Its rules for uneven layers, which the tests hold this to: with the number
 * of the first or last stage given, the others share what is left in equal parts; a layout names
 * the layers of every stage, with one embedding (E) at its begin and one loss (L) at its end, and
 * goes with neither of those numbers; with nothing given, the stages divide the layers. */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>

#include "emit.h"

static bool middle_even(const int *layers, int first, int last)
{
    for (int i = first; i < last; i++)
        if (layers[i] != layers[first])
            return false;
    return true;
}

/* "Et*7|t*8|t*7L" */
static int find_layout(const int *layers, int stages, struct holmes_megatron_layers *out, char *why,
                       size_t why_len)
{
    size_t n = 0;

    for (int i = 0; i < stages; i++) {
        char count[16] = "";

        if (layers[i] > 1)
            snprintf(count, sizeof count, "*%d", layers[i]);
        n += (size_t)snprintf(out->layout + n, sizeof out->layout - n, "%s%st%s%s", i ? "|" : "",
                              i ? "" : "E", count, i + 1 == stages ? "L" : "");
        if (n >= sizeof out->layout) {
            snprintf(why, why_len, "%d stages: their layout is longer than %d characters", stages,
                     HOLMES_MEGATRON_LAYOUT_MAX - 1);
            return -EINVAL;
        }
    }
    return 0;
}

int holmes_megatron_layers_find(const int *layers, int stages, struct holmes_megatron_layers *out,
                                char *why, size_t why_len)
{
    struct holmes_megatron_layers found = {0};
    int rc = 0;

    for (int i = 0; i < stages; i++) {
        if (layers[i] < 1) {
            snprintf(why, why_len, "stage %d of %d has %d layers: Megatron-LM wants one or more", i,
                     stages, layers[i]);
            return -EINVAL;
        }
    }
    if (middle_even(layers, 0, stages)) {
        *out = found;
        return 0;
    }
    if (stages == 2) {
        found.first = layers[0];
    } else if (middle_even(layers, 1, stages - 1)) {
        found.first = layers[0];
        found.last = layers[stages - 1];
    } else {
        rc = find_layout(layers, stages, &found, why, why_len);
    }
    if (rc == 0)
        *out = found;
    return rc;
}

static int write_layers(const struct holmes_plan *p, FILE *out, char *why, size_t why_len)
{
    struct holmes_megatron_layers found;
    int *layers = calloc((size_t)p->nstages, sizeof *layers), rc;

    if (!layers) {
        snprintf(why, why_len, "out of memory");
        return -ENOMEM;
    }
    for (int i = 0; i < p->nstages; i++)
        layers[i] = p->stages[i].layers;
    rc = holmes_megatron_layers_find(layers, p->nstages, &found, why, why_len);
    free(layers);
    if (rc != 0)
        return rc;
    if (found.first > 0)
        fprintf(out, "    --decoder-first-pipeline-num-layers %d\n", found.first);
    if (found.last > 0)
        fprintf(out, "    --decoder-last-pipeline-num-layers %d\n", found.last);
    if (found.layout[0])
        fprintf(out, "    --pipeline-model-parallel-layout '%s'\n", found.layout);
    return 0;
}

static int check(const struct holmes_plan_doc *doc, char *why, size_t why_len)
{
    const struct holmes_gpt *m = &doc->request.model;
    int tensor = doc->plan->tensor;

    if (m->heads % tensor != 0)
        snprintf(why, why_len, "%d heads over tensor %d: Megatron-LM wants them to divide evenly",
                 m->heads, tensor);
    else if (m->hidden % m->heads != 0)
        snprintf(why, why_len, "hidden %d over %d heads: they do not divide evenly", m->hidden,
                 m->heads);
    else if (m->ffn % tensor != 0)
        snprintf(why, why_len, "ffn %d over tensor %d: Megatron-LM wants it to divide evenly",
                 m->ffn, tensor);
    else
        return 0;
    return -EINVAL;
}

int holmes_emit_args(const struct holmes_plan_doc *doc, const struct holmes_emit_options *o,
                     FILE *out, char *why, size_t why_len)
{
    const struct holmes_gpt *m = &doc->request.model;
    const struct holmes_plan *p = doc->plan;
    int rc = check(doc, why, why_len);

    (void)o;
    if (rc != 0)
        return rc;
    holmes_emit_title(doc, "Arguments of Megatron-LM, to be sourced by bash", out);
    fputs("# Data, tokenizer (which gives the vocabulary), learning rate and checkpoints are "
          "yours to add.\n"
          "MEGATRON_ARGS=(\n",
          out);
    fprintf(out, "    --tensor-model-parallel-size %d\n    --pipeline-model-parallel-size %d\n",
            p->tensor, p->pipeline);
    rc = write_layers(p, out, why, why_len);
    fprintf(out, "    --micro-batch-size %d\n    --global-batch-size %" PRId64 "\n", p->micro_batch,
            doc->request.global_batch);
    fprintf(out, "    --num-layers %d\n    --hidden-size %d\n    --num-attention-heads %d\n",
            m->layers, m->hidden, m->heads);
    if (m->ffn > 0)
        fprintf(out, "    --ffn-hidden-size %d\n", m->ffn);
    fprintf(out, "    --seq-length %d\n    --max-position-embeddings %d\n", m->sequence,
            m->sequence);
    if (!m->tied)
        fputs("    --untie-embeddings-and-output-weights\n", out);
    if (m->sequence_parallel && p->tensor > 1)
        fputs("    --sequence-parallel\n", out);
    if (m->bytes_per_weight == 2)
        fputs(m->half_gradients ? "    --fp16\n" : "    --bf16\n", out);
    if (m->recompute)
        fputs("    --recompute-granularity full --recompute-method uniform "
              "--recompute-num-layers 1\n",
              out);
    if (m->distributed_optimizer)
        fputs("    --use-distributed-optimizer\n", out);
    if (!doc->request.no_overlap)
        fprintf(out, "    --overlap-grad-reduce%s\n",
                m->distributed_optimizer ? " --overlap-param-gather" : "");
    fputs(")\n", out);
    return rc;
}

const struct holmes_emit_form holmes_emit_megatron = {
    .name = "megatron",
    .summary = "Megatron-LM: arguments, environment and rank order, for any launcher",
    .parts =
        {
            {"args", "args.sh", "MEGATRON_ARGS, to be sourced by bash", holmes_emit_args},
            {"env", "env.sh", "environment, to be sourced", holmes_emit_env},
            {"fabrics", "fabrics", "fabric ids, where the user gave some", holmes_emit_fabric_map,
             .wanted = holmes_emit_has_fabrics},
            {"hostfile", "hostfile", "hosts in rank order", holmes_emit_hostfile},
            {"rankfile", "rankfile", "a host for each rank", holmes_emit_rankfile},
        },
};
