/* See gpt.h; each function is one formula of the papers named there. */
#include "gpt.h"

#include <errno.h>

#define GPT_SIZE_MAX (1 << 26) /* of any size: products stay exact enough in a double */

static double ffn(const struct holmes_gpt *g)
{
    return g->ffn > 0 ? g->ffn : 4.0 * g->hidden;
}

int holmes_gpt_check(const struct holmes_gpt *g, char *why, size_t why_len)
{
    const struct {
        const char *name;
        int value, min;
    } sizes[] = {
        {"layers", g->layers, 1},     {"hidden", g->hidden, 1},         {"heads", g->heads, 1},
        {"sequence", g->sequence, 1}, {"vocabulary", g->vocabulary, 0}, {"ffn", g->ffn, 0},
    };

    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++)
        if (sizes[i].value < sizes[i].min || sizes[i].value > GPT_SIZE_MAX) {
            snprintf(why, why_len, "model: %s is %d; it must be from %d to %d", sizes[i].name,
                     sizes[i].value, sizes[i].min, GPT_SIZE_MAX);
            return -EINVAL;
        }
    if (g->hidden % g->heads != 0) {
        snprintf(why, why_len, "model: hidden %d is not a multiple of heads %d", g->hidden,
                 g->heads);
        return -EINVAL;
    }
    if (g->half_gradients && g->bytes_per_weight != 2) {
        snprintf(why, why_len, "model: half_gradients with %d bytes per weight; they go with 2",
                 g->bytes_per_weight);
        return -EINVAL;
    }
    if (g->holmes_train && (g->bytes_per_weight != 4 || g->scores_stored || g->sequence_parallel ||
                            !g->distributed_optimizer || (g->ffn > 0 && g->ffn != 4 * g->hidden))) {
        snprintf(why, why_len,
                 "model: holmes-train has fp32 weights on CPUs, an MLP of 4 x hidden, the "
                 "distributed optimizer, and neither sequence parallelism nor stored scores");
        return -EINVAL;
    }
    if (g->bytes_per_weight != 2 && g->bytes_per_weight != 4) {
        snprintf(why, why_len, "model: %d bytes per weight; it must be 2 (bf16) or 4 (fp32)",
                 g->bytes_per_weight);
        return -EINVAL;
    }
    return 0;
}

double holmes_gpt_layer_flops(const struct holmes_gpt *g)
{
    double s = g->sequence, h = g->hidden;

    /* QKV and projection, scores and their product with the values, the two products of the MLP. */
    return 8 * s * h * h + 4 * s * s * h + 4 * s * h * ffn(g);
}

double holmes_gpt_head_flops(const struct holmes_gpt *g)
{
    return 2.0 * g->sequence * g->hidden * g->vocabulary;
}

int holmes_gpt_layer_passes(const struct holmes_gpt *g)
{
    return g->recompute ? 4 : 3;
}

double holmes_gpt_sequence_flops(const struct holmes_gpt *g)
{
    return holmes_gpt_layer_passes(g) * g->layers * holmes_gpt_layer_flops(g) +
           3 * holmes_gpt_head_flops(g);
}

double holmes_gpt_parameters(const struct holmes_gpt *g)
{
    return holmes_gpt_stage_parameters(g, g->layers, true, true, 1);
}

double holmes_gpt_stage_parameters(const struct holmes_gpt *g, int layers, bool first, bool last,
                                   int tensor)
{
    double h = g->hidden, f = ffn(g), table = (double)g->vocabulary * h / tensor;
    /* Products and the biases of their columns are divided; what follows a sum is on every rank. */
    double layer = (4 * h * h + 2 * h * f + 3 * h + f) / tensor + 2 * h + 4 * h;
    double n = layers * layer;

    if (first && g->vocabulary > 0)
        n += table + (double)g->sequence * h;
    if (last)
        n += 2 * h + (first && g->tied ? 0 : table);
    return n;
}

static int gradient_bytes(const struct holmes_gpt *g)
{
    return g->half_gradients ? 2 : 4;
}

double holmes_gpt_parameter_bytes(const struct holmes_gpt *g, int data)
{
    double shards = g->distributed_optimizer ? data : 1;

    /* Two moments of fp32; the fp32 master of 2-byte weights; the fp32 copy of 2-byte gradients. */
    double state = 8 + (g->bytes_per_weight == 2 ? 4 : 0) + (g->half_gradients ? 4 : 0);

    return g->bytes_per_weight + gradient_bytes(g) + state / shards;
}

/* Over how many GPUs of a tensor group that is divided which the group's products do not divide. */
static int along_sequence(const struct holmes_gpt *g, int tensor)
{
    return g->sequence_parallel ? tensor : 1;
}

double holmes_gpt_layer_activation(const struct holmes_gpt *g, int micro_batch, int tensor)
{
    double sbh = (double)g->sequence * micro_batch * g->hidden;
    double wide = g->bytes_per_weight == 4 ? 2 : 1; /* the papers' bytes are of 2-byte values */
    double mlp = 4 * ffn(g) / g->hidden;            /* input and output of GELU: 16 of the 24 */
    double scores =
        g->scores_stored ? 5.0 * g->heads * g->sequence / ((double)g->hidden * tensor) : 0;

    if (g->recompute)
        return 2 * sbh * wide / along_sequence(g, tensor);
    return sbh * (10.0 / along_sequence(g, tensor) + (8 + mlp) / tensor + scores) * wide;
}

double holmes_gpt_working_set(const struct holmes_gpt *g, int micro_batch, int tensor, bool last)
{
    double tokens = (double)g->sequence * micro_batch, n = 0;

    if (g->recompute) {
        struct holmes_gpt full = *g;

        full.recompute = false;
        n += holmes_gpt_layer_activation(&full, micro_batch, tensor);
    }
    if (last && g->vocabulary > 0)
        n += 4 * tokens * (g->hidden + (double)g->vocabulary / tensor);
    return n;
}

double holmes_gpt_embedding_activation(const struct holmes_gpt *g, int micro_batch)
{
    return g->vocabulary > 0 ? (double)g->sequence * micro_batch * g->hidden : 0;
}

double holmes_gpt_message_bytes(const struct holmes_gpt *g, int micro_batch, int tensor)
{
    /* holmes-train's groups send a slice each too, and gather them behind it. */
    return (double)g->sequence * micro_batch * g->hidden * g->bytes_per_weight /
           (g->holmes_train ? tensor : along_sequence(g, tensor));
}

double holmes_gpt_scatter_bytes(const struct holmes_gpt *g, double parameters, int data)
{
    return gradient_bytes(g) * parameters * (data - 1) / data;
}

double holmes_gpt_gather_bytes(const struct holmes_gpt *g, double parameters, int data)
{
    int bytes = g->distributed_optimizer ? g->bytes_per_weight : gradient_bytes(g);

    return bytes * parameters * (data - 1) / data;
}

double holmes_gpt_embedding_bytes(const struct holmes_gpt *g, int tensor)
{
    return (double)gradient_bytes(g) * g->vocabulary * g->hidden / tensor;
}

double holmes_gpt_tensor_bytes(const struct holmes_gpt *g, int micro_batch, int tensor)
{
    /* Two all-reduces per pass; the backward's two passes need them once. */
    int all_reduces = 2 * (holmes_gpt_layer_passes(g) - 1);

    return all_reduces * 2.0 * (tensor - 1) / tensor * g->sequence * micro_batch * g->hidden *
           g->bytes_per_weight;
}
