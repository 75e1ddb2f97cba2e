/* The 1F1B order (Narayanan et al., "Efficient Large-Scale Language Model Training on GPU Clusters
 * Using Megatron-LM", 2021) as data: the program that one stage runs for one training step, its
 * communication and its buffers included. Pure; pipeline.c executes it and the tests execute it in
 * a simulator, so what is proven is what runs.
 *
 * Stage p of P keeps at most min(P-p, M) microbatches between their forward and their backward.
 * Buffers are rings: microbatch m lives in slot m % slots, in input buffer m % inputs, and in the
 * outgoing and gradient buffers m % HOLMES_SCHEDULE_RING.
 */
#ifndef HOLMES_SCHEDULE_H
#define HOLMES_SCHEDULE_H

#include <stdbool.h>

enum holmes_step_kind {
    HOLMES_STEP_POST_INPUT, /* start receiving activations of m from the previous stage */
    HOLMES_STEP_POST_GRAD,  /* start receiving gradients of m from the next stage */
    HOLMES_STEP_WAIT_INPUT, /* they are here */
    HOLMES_STEP_WAIT_GRAD,
    HOLMES_STEP_FORWARD, /* compute */
    HOLMES_STEP_BACKWARD,
    HOLMES_STEP_SEND_OUTPUT, /* start sending the activations of m to the next stage */
    HOLMES_STEP_SEND_DINPUT, /* start sending the gradients of m to the previous stage */
    HOLMES_STEP_FREE_OUTPUT, /* that send is over: its buffer may be used again */
    HOLMES_STEP_FREE_DINPUT,
};

struct holmes_step {
    enum holmes_step_kind kind;
    int microbatch;
};

#define HOLMES_SCHEDULE_RING 2

struct holmes_schedule {
    int slots;  /* microbatches between forward and backward at most */
    int inputs; /* input buffers: one more, so that the next one arrives meanwhile */
    int count;
    struct holmes_step *steps;
};

/* `forward_only`: no backward at all, for evaluation. 0 or -ENOMEM; the caller frees with fini. */
int holmes_schedule_init(struct holmes_schedule *s, int stages, int stage, int microbatches,
                         bool forward_only);
void holmes_schedule_fini(struct holmes_schedule *s);

/* Most microbatches that `stage` holds between forward and backward. */
int holmes_schedule_in_flight(int stages, int stage, int microbatches);

#endif
