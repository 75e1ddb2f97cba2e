/* Adds up what stage, optimizer, pipeline and communicators take; reads what the kernel counts. */
#include "memory.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "comm_net.h"
#include "dp.h"
#include "file.h"
#include "pipeline.h"
#include "stage.h"
#include "table.h"
#include "train.h"

size_t holmes_memory_total(const struct holmes_memory *m)
{
    return m->parameters + m->gradients + m->optimizer + m->activations + m->pipeline +
           m->communication;
}

/* Two moments of each parameter that a replica owns, and of those that do not divide; and its
 * master where that is not the weight itself. */
static size_t optimizer_bytes(size_t nparams, int replicas, enum holmes_dtype t)
{
    size_t d = (size_t)replicas;

    return (nparams / d + nparams % d) * (t == HOLMES_FLOAT32 ? 2 : 3) * sizeof(float);
}

/* A bucket is at most twice what it aims at. */
static size_t bucket_elements(const struct holmes_config *c, size_t nparams)
{
    size_t bytes = holmes_dp_bucket_bytes(nparams, (size_t)(c->bucket_mb * 1048576));
    size_t most = 2 * bytes / sizeof(float);

    return most < nparams ? most : nparams;
}

/* What the communicators of a rank have for sums on their way: gradients, a tied embedding's,
 * partial sums of layers, loss and norm. `bucket`: elements of the largest. */
static size_t communication_bytes(const struct holmes_config *c, struct holmes_place place,
                                  size_t bucket, enum holmes_dtype t)
{
    const struct holmes_model *m = &c->model;
    size_t embedding = (size_t)m->vocab * (size_t)m->channels / (size_t)c->tensors;
    size_t stream = (size_t)c->microbatch * (size_t)m->seq_len * (size_t)m->channels;
    const int world = c->stages * c->replicas * c->tensors;
    size_t sum = holmes_comm_net_bytes(c->replicas, bucket, HOLMES_FLOAT32, true) +
                 holmes_comm_net_bytes(c->tensors, stream, t, false) +
                 holmes_comm_net_bytes(world, HOLMES_TRAINER_SUMS, HOLMES_FLOAT32, false);

    if (m->tied && c->stages > 1 && (place.stage == 0 || place.stage == c->stages - 1))
        sum += holmes_comm_net_bytes(2, embedding, HOLMES_FLOAT32, false);
    return sum;
}

/* Adds what one chunk of the model takes. */
static int add_chunk(const struct holmes_config *c, const struct holmes_group *g,
                     struct holmes_place place, int chunk, const struct holmes_kernels *k,
                     struct holmes_memory *out, size_t *bucket)
{
    struct holmes_stage_group tensors = {.rank = place.tensor, .size = c->tensors};
    struct holmes_stage_attr attr = holmes_trainer_stage_attr(c, g, place.stage, chunk, k);
    struct holmes_stage_memory stage;
    size_t nparams;
    int rc;

    attr.group = c->tensors > 1 ? &tensors : NULL;
    rc = holmes_stage_measure(&attr, &stage, &nparams);
    if (rc != 0)
        return rc;
    out->parameters += stage.parameters;
    out->gradients += stage.gradients;
    out->activations += stage.activations;
    out->optimizer += optimizer_bytes(nparams, c->replicas, k->dtype);
    if (bucket_elements(c, nparams) > *bucket)
        *bucket = bucket_elements(c, nparams);
    return 0;
}

int holmes_memory_predict(const struct holmes_config *c, const struct holmes_group *g,
                          struct holmes_place place, const struct holmes_kernels *k,
                          struct holmes_memory *out)
{
    struct holmes_schedule_attr plan = holmes_trainer_plan(c, g, place.stage);
    struct holmes_memory m = {0};
    size_t bucket = 0;
    int rc = holmes_pipeline_measure(&c->model, c->microbatch, &plan, k->dtype, &m.pipeline);

    for (int chunk = 0; chunk < plan.chunks && rc == 0; chunk++)
        rc = add_chunk(c, g, place, chunk, k, &m, &bucket);
    if (rc != 0)
        return rc;
    m.communication = communication_bytes(c, place, bucket, k->dtype);
    *out = m;
    return 0;
}

/* --- as a table ----------------------------------------------------------------------------------
 */

static struct holmes_table *table(void)
{
    static const char *const headings[] = {"stage",
                                           "tensor\nrank",
                                           "layers",
                                           "parameters\nMB",
                                           "gradients\nMB",
                                           "optimizer\nMB",
                                           "activations\nMB",
                                           "pipeline\nMB",
                                           "communication\nMB",
                                           "together\nMB",
                                           NULL};

    return holmes_table_of(headings, "rrrrrrrrrr");
}

static void megabytes(struct holmes_table *t, size_t bytes)
{
    holmes_table_cell(t, "%.1f", (double)bytes / 1e6);
}

static int layers_of(const struct holmes_group *g, int stage)
{
    int layers = 0;

    for (int part = stage; part < g->stages * g->chunks; part += g->stages)
        layers += g->first_layer[part + 1] - g->first_layer[part];
    return layers;
}

static void table_row(struct holmes_table *t, const struct holmes_group *g,
                      struct holmes_place place, const struct holmes_memory *m)
{
    holmes_table_cell(t, "%d", place.stage);
    holmes_table_cell(t, "%d", place.tensor);
    holmes_table_cell(t, "%d", layers_of(g, place.stage));
    megabytes(t, m->parameters);
    megabytes(t, m->gradients);
    megabytes(t, m->optimizer);
    megabytes(t, m->activations);
    megabytes(t, m->pipeline);
    megabytes(t, m->communication);
    megabytes(t, holmes_memory_total(m));
}

static int print_group(const struct holmes_config *c, const struct holmes_group *g, FILE *out)
{
    const struct holmes_kernels *k = holmes_kernels_sizes(c->kernels);
    struct holmes_table *t = table();
    int rc = t ? 0 : -ENOMEM;

    fprintf(out, "%.2f million parameters over tensor %d x pipeline %d x data %d = %d rank%s\n",
            (double)holmes_model_params(&c->model) / 1e6, c->tensors, c->stages, c->replicas,
            g->world, g->world == 1 ? "" : "s");
    fprintf(out, "%d microbatch%s of %d sequence%s of %d tokens in a step of each replica%s\n\n",
            holmes_config_microbatches(c), holmes_config_microbatches(c) == 1 ? "" : "es",
            c->microbatch, c->microbatch == 1 ? "" : "s", c->model.seq_len,
            c->recompute ? "; activations are recomputed" : "");
    for (int p = 0; p < c->stages && rc == 0; p++) {
        for (int j = 0; j < c->tensors && rc == 0; j++) {
            struct holmes_place place = {.stage = p, .tensor = j};
            struct holmes_memory m;

            rc = holmes_memory_predict(c, g, place, k, &m);
            if (rc == 0)
                table_row(t, g, place, &m);
        }
    }
    if (rc == 0)
        rc = holmes_table_print(t, out);
    holmes_table_destroy(t);
    return rc;
}

/* Ranks in the order of places: of memory it says all. */
static int make_group(const struct holmes_config *c, struct holmes_group **out, char *why,
                      size_t why_len)
{
    int parts = c->stages * c->virtual_stages, rc = 0;
    int *layers = c->stage_layers ? calloc((size_t)parts, sizeof *layers) : NULL;

    if (c->stage_layers)
        rc = layers ? holmes_list_parse(c->stage_layers, "--stage-layers", parts, 0,
                                        c->model.layers, layers, why, why_len)
                    : -ENOMEM;
    if (rc == 0)
        rc = holmes_group_create(c->stages, c->replicas, c->tensors, NULL, c->model.layers,
                                 parts == c->stages ? layers : NULL, out, why, why_len);
    if (rc == 0 && parts != c->stages)
        rc =
            holmes_group_set_chunks(*out, c->virtual_stages, c->model.layers, layers, why, why_len);
    free(layers);
    return rc;
}

int holmes_memory_print(const struct holmes_config *c, FILE *out, char *why, size_t why_len)
{
    struct holmes_group *g = NULL;
    int rc;

    snprintf(why, why_len, "out of memory");
    rc = make_group(c, &g, why, why_len);
    if (rc == 0) {
        rc = print_group(c, g, out);
        if (rc == -ENOMEM)
            snprintf(why, why_len, "a rank of this split needs more memory than can be addressed");
    }
    holmes_group_destroy(g);
    return rc;
}

/* --- as the kernel counts ------------------------------------------------------------------------
 */

/* "VmRSS:\t  123 kB" */
static int status_field(const char *text, const char *name, size_t *bytes)
{
    const char *at = strstr(text, name);
    unsigned long long kb;

    if (!at || sscanf(at + strlen(name), " %llu kB", &kb) != 1)
        return -ENODATA;
    *bytes = (size_t)kb * 1024;
    return 0;
}

void holmes_memory_forget_peak(void)
{
    FILE *f = fopen("/proc/self/clear_refs", "we");

    if (!f)
        return;
    fputs("5", f); /* proc(5): reset the peak resident set size */
    fclose(f);
}

/* The kernel keeps the peak of everything; pages of files, which only grow, are taken off as they
 * are now. */
int holmes_memory_resident(size_t *now, size_t *peak)
{
    char *text;
    size_t len, all, files, shared;
    int rc = holmes_file_read("/proc/self/status", 65536, &text, &len);

    if (rc != 0)
        return rc;
    rc = status_field(text, "RssAnon:", now);
    if (rc == 0)
        rc = status_field(text, "VmHWM:", &all);
    if (rc == 0)
        rc = status_field(text, "RssFile:", &files);
    if (rc == 0)
        rc = status_field(text, "RssShmem:", &shared);
    free(text);
    if (rc == 0)
        *peak = all > files + shared ? all - files - shared : 0;
    return rc;
}
