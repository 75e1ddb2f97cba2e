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

static void write_window(const struct holmes_plan_doc *doc, FILE *out)
{
    const double mib = 1 << 20;
    int64_t link = doc->plan->window_bytes, asked = doc->request.window_bytes,
            want = asked > 0 ? asked : link;
    struct holmes_nccl_window w;

    if (link <= 0)
        return;
    holmes_nccl_window_choose(want, &w);
    fprintf(out,
            "\n# The slowest link between clusters holds %.1f MiB per peer (bandwidth x round "
            "trip).\n",
            (double)link / mib);
    if (asked > 0)
        fprintf(out, "# The plan was made for a window of %.1f MiB (--window).\n",
                (double)asked / mib);
    if (w.chunk == 0) {
        fputs(asked > 0 ? "# That is NCCL's own.\n" : "# NCCL's own window of 2 MiB is enough.\n",
              out);
        return;
    }
    fprintf(out,
            "# NCCL's own window is 2 MiB; these make it %.0f MiB, up to %.0f MiB on each of its "
            "connections:\n# net.ipv4.tcp_rmem and tcp_wmem must allow that.\n",
            (double)w.bytes / mib, (double)w.bytes / w.channels / mib);
    if (w.bytes < want)
        fputs("# That is as far as NCCL goes.\n", out);
    fprintf(out, "export NCCL_P2P_NET_CHUNKSIZE=%" PRId64 "\n", w.chunk);
    if (w.buffer > 0)
        fprintf(out, "export NCCL_BUFFSIZE=%" PRId64 "\n", w.buffer);
    if (w.channels > CHANNELS)
        fprintf(out, "export NCCL_NCHANNELS_PER_NET_PEER=%d\nexport NCCL_MIN_P2P_NCHANNELS=%d\n",
                w.channels, w.channels);
}

int holmes_emit_env(const struct holmes_plan_doc *doc, const struct holmes_emit_options *o,
                    FILE *out, char *why, size_t why_len)
{
    (void)why, (void)why_len;
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
    fputs("# NCCL before 2.30.3 forgets a plugin's name with its last communicator; this keeps it "
          "loaded.\nexport NCCL_NET_PLUGIN_REF_COUNT=1\n",
          out);
    if (doc->plan->tensor > 1)
        fputs("# Megatron-LM insists on it for tensor parallelism on GPUs before Blackwell.\n"
              "export CUDA_DEVICE_MAX_CONNECTIONS=1\n",
              out);
    write_window(doc, out);
    if (holmes_emit_has_fabrics(doc))
        fputs(
            "\n# The ids of RDMA fabrics that the cluster file gives, in the folder where this is "
            "sourced.\nexport HOLMES_FABRIC=\"@$PWD/fabrics\"\n",
            out);
    return 0;
}
