/* The environment of the ranks: which plugin, how wide NCCL's window over the slow link must be,
 * and the fabric ids that the user gave. One file for all nodes, for any POSIX shell. */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "emit.h"

/* NCCL keeps 8 chunks under way on each channel to a peer (NCCL_STEPS), and 16 on each channel in
 * all its peers' shared buffers, whose size it counts in an int: with 64 channels, its most, a
 * chunk of 1 MiB is the largest power of two that leaves room. A chunk must be an eighth of
 * NCCL_BUFFSIZE at most, else NCCL cuts it down in silence. */
#define NCCL_STEPS   8
#define CHUNK        (INT64_C(128) << 10) /* defaults */
#define CHANNELS     2
#define BUFFER       (INT64_C(4) << 20)
#define CHUNK_MAX    (INT64_C(1) << 20)
#define CHANNELS_MAX 32

void holmes_nccl_window_choose(int64_t bytes, struct holmes_nccl_window *out)
{
    struct holmes_nccl_window w = {.chunk = CHUNK, .channels = CHANNELS};

    /* In the order of what they cost: larger chunks within the buffers there are, some channels
     * more, larger buffers, many channels. */
    while (NCCL_STEPS * w.chunk * w.channels < bytes) {
        if (NCCL_STEPS * w.chunk < BUFFER || (w.channels >= 8 && w.chunk < CHUNK_MAX))
            w.chunk *= 2;
        else if (w.channels < CHANNELS_MAX)
            w.channels *= 2;
        else
            break;
    }
    w.bytes = NCCL_STEPS * w.chunk * w.channels;
    w.buffer = NCCL_STEPS * w.chunk > BUFFER ? NCCL_STEPS * w.chunk : 0;
    if (w.chunk == CHUNK && w.channels == CHANNELS)
        w.chunk = 0;
    *out = w;
}

int holmes_emit_fabric(const struct holmes_plan_doc *doc, int group, char **out)
{
    const struct holmes_node_group *g = &doc->cluster->groups[group];
    const struct holmes_node_type *type = &doc->cluster->types[g->type];
    char *text = NULL;
    size_t len;
    FILE *list;

    *out = NULL;
    if (g->fabric)
        return (*out = strdup(g->fabric)) ? 0 : -ENOMEM;
    if (!(list = open_memstream(&text, &len)))
        return -ENOMEM;
    for (int i = 0, n = 0; i < type->nnics; i++)
        if (type->nics[i].fabric && type->nics[i].rdma)
            fprintf(list, "%s%s=%s", n++ > 0 ? "," : "", type->nics[i].name, type->nics[i].fabric);
    if (fclose(list) != 0)
        return free(text), -ENOMEM;
    if (*text)
        *out = text;
    else
        free(text);
    return 0;
}

static void write_window(const struct holmes_plan_doc *doc, FILE *out)
{
    struct holmes_nccl_window w;

    if (doc->plan->window_bytes <= 0)
        return;
    holmes_nccl_window_choose(doc->plan->window_bytes, &w);
    fprintf(out,
            "\n# The slowest link between clusters holds %.1f MiB per peer (bandwidth x round "
            "trip).\n",
            (double)doc->plan->window_bytes / 1048576);
    if (w.chunk == 0) {
        fprintf(out, "# NCCL's own window of 2 MiB is enough.\n");
        return;
    }
    fprintf(out,
            "# NCCL's own window is 2 MiB; these make it %.0f MiB. Each of a connection's TCP "
            "streams may then\n# hold %.1f MiB: net.ipv4.tcp_rmem and tcp_wmem must allow "
            "that.\n",
            (double)w.bytes / 1048576, (double)w.bytes / w.channels / 1048576);
    if (w.bytes < doc->plan->window_bytes)
        fprintf(out, "# That is as far as NCCL goes: it fills %.0f %% of the link.\n",
                100.0 * (double)w.bytes / (double)doc->plan->window_bytes);
    fprintf(out, "export NCCL_P2P_NET_CHUNKSIZE=%" PRId64 "\n", w.chunk);
    if (w.buffer > 0)
        fprintf(out, "export NCCL_BUFFSIZE=%" PRId64 "\n", w.buffer);
    if (w.channels > CHANNELS)
        fprintf(out, "export NCCL_NCHANNELS_PER_NET_PEER=%d\nexport NCCL_MIN_P2P_NCHANNELS=%d\n",
                w.channels, w.channels);
}

static bool same(const char *a, const char *b)
{
    return a && b ? strcmp(a, b) == 0 : a == b;
}

static void write_range(const char *fabric, int64_t end, FILE *out)
{
    fprintf(out, "elif [ \"$RANK\" -lt %" PRId64 " ]; then ", end);
    if (fabric) {
        fputs("export HOLMES_FABRIC=", out);
        holmes_emit_quote(fabric, out);
    } else {
        fputc(':', out);
    }
    fputc('\n', out);
}

/* Runs of nodes with equal ids are ranges of ranks. */
static int write_fabrics(const struct holmes_plan_doc *doc, FILE *out)
{
    const struct holmes_plan *p = doc->plan;
    char *now = NULL, *next = NULL;
    bool any = false;
    int rc = 0;

    for (int i = 0; rc == 0 && !any && i < doc->cluster->ngroups; i++) {
        rc = holmes_emit_fabric(doc, i, &now);
        any = now != NULL;
        free(now);
    }
    if (rc != 0 || !any)
        return rc;
    fputs(
        "\n# The ids of RDMA fabrics that the cluster file gives. RANK is known in each rank; what "
        "starts\n# several, as torchrun does, sets HOLMES_FABRIC itself.\n"
        "if [ -z \"${RANK-}\" ]; then :\n",
        out);
    rc = holmes_emit_fabric(doc, p->nodes[0].group, &now);
    for (int i = 1; rc == 0 && i < p->nnodes; i++) {
        if (p->nodes[i].group == p->nodes[i - 1].group)
            continue;
        rc = holmes_emit_fabric(doc, p->nodes[i].group, &next);
        if (rc == 0 && !same(now, next))
            write_range(now, p->nodes[i].first_rank, out);
        free(now);
        now = next;
        next = NULL;
    }
    if (rc == 0 && now)
        write_range(now, p->world, out);
    free(now);
    fputs("fi\n", out);
    return rc;
}

int holmes_emit_env(const struct holmes_plan_doc *doc, const struct holmes_emit_options *o,
                    FILE *out, char *why, size_t why_len)
{
    int rc;

    holmes_emit_title(doc, "Environment of every rank, to be sourced", out);
    if (o->plugin) {
        fputs("export NCCL_NET_PLUGIN=", out);
        holmes_emit_quote(o->plugin, out);
        fputc('\n', out);
    } else {
        fputs("# Found through the loader's path, LD_LIBRARY_PATH among it (--plugin PATH names a "
              "file).\nexport NCCL_NET_PLUGIN=holmes\n",
              out);
    }
    fputs(
        "# NCCL 2.28 and older forget a plugin's name with their last communicator; this keeps it "
        "loaded.\nexport NCCL_NET_PLUGIN_REF_COUNT=1\n",
        out);
    if (doc->plan->tensor > 1)
        fputs("# Megatron-LM insists on it for tensor parallelism on GPUs before Blackwell.\n"
              "export CUDA_DEVICE_MAX_CONNECTIONS=1\n",
              out);
    write_window(doc, out);
    rc = write_fabrics(doc, out);
    if (rc != 0)
        snprintf(why, why_len, "out of memory");
    return rc;
}
