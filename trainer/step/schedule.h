/* The order of one training step on one rank as data: the program that it runs, its communication
 * and its buffers included. Pure; pipeline.c executes it and the tests execute it in a simulator,
 * so what is proven is what runs.
 *
 * Both orders are those of Narayanan et al., "Efficient Large-Scale Language Model Training on GPU
 * Clusters Using Megatron-LM" (2021). With one chunk per rank it is 1F1B: stage p of P keeps at
 * most min(P-p, M) microbatches between their forward and their backward. With V chunks (virtual
 * stages) the model is cut into V*P parts, part c lies on rank c mod P as its chunk c / P, and a
 * rank takes P microbatches through one chunk before it turns to the next: the bubble is V times
 * smaller, V times as much is sent.
 *
 * Microbatch m of a chunk lives in the chunk's slot m % slots[chunk]. What is sent and received is
 * numbered over all chunks in the order in which both ends of a link come to it, and message n lies
 * in buffer n % HOLMES_SCHEDULE_RING of its kind.
 */
#ifndef HOLMES_SCHEDULE_H
#define HOLMES_SCHEDULE_H

#include <stdbool.h>

/* "next" is the rank of the next stage, after the last one the first; only with several chunks is
 * there anything to send from the last to the first. */
enum holmes_step_kind {
    HOLMES_STEP_POST_INPUT, /* start receiving activations from the previous rank */
    HOLMES_STEP_POST_GRAD,  /* start receiving gradients from the next rank */
    HOLMES_STEP_WAIT_INPUT, /* they are here */
    HOLMES_STEP_WAIT_GRAD,
    HOLMES_STEP_FORWARD, /* compute: reads message `in`, whose buffer is free then, writes `out` */
    HOLMES_STEP_BACKWARD,
    HOLMES_STEP_SEND_OUTPUT, /* start sending the activations to the next rank */
    HOLMES_STEP_SEND_DINPUT, /* start sending the gradients to the previous rank */
    HOLMES_STEP_FREE_OUTPUT, /* that send is over: its buffer may be used again */
    HOLMES_STEP_FREE_DINPUT,
};

struct holmes_step {
    enum holmes_step_kind kind;
    int chunk, microbatch; /* what is computed, received for or sent from */
    int in, out;           /* messages; -1: none. Of communication: its own, as both */
};

#define HOLMES_SCHEDULE_RING       2
#define HOLMES_SCHEDULE_CHUNKS_MAX 16

struct holmes_schedule_attr {
    int stages, stage; /* P, p: ranks of the pipeline */
    int microbatches;  /* M; with several chunks a multiple of P */
    int chunks;        /* V */
    bool forward_only; /* no backward at all, for evaluation: any M */
};

struct holmes_schedule {
    int slots[HOLMES_SCHEDULE_CHUNKS_MAX]; /* microbatches between forward and backward at most */
    int count;
    struct holmes_step *steps;
};

/* 0, -EINVAL for what attr says it cannot be, or -ENOMEM; the caller frees with fini. */
int holmes_schedule_init(struct holmes_schedule *s, const struct holmes_schedule_attr *attr);
void holmes_schedule_fini(struct holmes_schedule *s);

/* Most microbatches of `chunk` that its rank holds between forward and backward. */
int holmes_schedule_in_flight(const struct holmes_schedule_attr *attr, int chunk);

#endif
