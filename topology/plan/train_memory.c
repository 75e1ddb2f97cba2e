/* Counted in values of four bytes for each token, then multiplied once. */
#include "plan/train_memory.h"

#include <math.h>

#define VALUE         4.0
#define RING_MESSAGES 2 /* of a neighbour, each of both directions in and out */

/* Of one block, its input left out: two norms with their statistics, the stream after attention;
 * qkv, attention, fc and gelu of this rank's heads and columns; a statistic of each head. */
static double block_values(const struct holmes_gpt *g, int tensor)
{
    double C = g->hidden, width = C / tensor;

    return 3 * C + 4 + 12 * width + (double)g->heads / tensor;
}

/* Kept between forward and backward of one microbatch. */
static double slot_values(const struct holmes_gpt *g, int layers, int tensor, bool first, bool last)
{
    double C = g->hidden, n = layers * (C + (g->recompute ? 0 : block_values(g, tensor)));

    if (first)
        n += 1;
    if (last)
        n += 2 * C + 4 + (double)g->vocabulary / tensor; /* ln_f, its input, logits, targets */
    return n;
}

/* Once for all microbatches. */
static double scratch_values(const struct holmes_gpt *g, int layers, int tensor, bool first,
                             bool last)
{
    double C = g->hidden, n = first ? C : 0;

    if (layers > 0)
        n += C + 4 * C / tensor;
    if (layers > 0 && g->recompute)
        n += block_values(g, tensor);
    if (layers > 0 || last)
        n += C;
    if (last)
        n += 3.0 * tensor;
    return n;
}

/* What sums of `bytes` need on their way in a ring of `size` ranks: of `messages` of each step, all
 * the same size, as many as there are at once. */
static double slots(double bytes, double messages, int size)
{
    return fmin(messages * (size - 1), 16) * 4096 * ceil(bytes / messages / 4096);
}

/* A block for each rank, in messages from 64 to 512 KiB, in groups of eight. */
static double sums(double bytes, int size)
{
    double block = bytes / size, messages = fmin(fmax(ceil(block / 65536), 1), 8);

    if (block > 8 * 524288.0)
        messages = 8 * ceil(ceil(block / 524288) / 8);
    return size > 1 ? slots(block, messages, size) : 0;
}

/* Buckets of gradients aim at a sixteenth of them, from 1 to 64 MiB, and are up to twice that. */
static double bucket(double bytes)
{
    return fmin(bytes, 2 * fmin(fmax(bytes / 16, 1048576), 67108864));
}

double holmes_train_memory(const struct holmes_cost_job *job, int stage, int layers)
{
    const struct holmes_gpt *g = job->model;
    const int t = job->tensor, p = job->pipeline;
    const bool first = stage == 0, last = stage == p - 1;
    const int slots = p - stage < job->microbatches ? p - stage : job->microbatches;
    const int neighbours = !first + !last;
    double tokens = (double)g->sequence * job->micro_batch, C = g->hidden;
    double parameters = holmes_gpt_stage_parameters(g, layers, first, last, t);
    double values = slots * slot_values(g, layers, t, first, last) +
                    scratch_values(g, layers, t, first, last) + neighbours * 2 * RING_MESSAGES * C +
                    2;
    double n = parameters * (2 + 2.0 / job->data) * VALUE + tokens * values * VALUE;

    n += sums(bucket(parameters * VALUE), job->data) + sums(tokens * C * VALUE, t);
    if (g->tied && first != last)
        n += sums(holmes_gpt_embedding_bytes(g, t), 2);
    return n;
}
