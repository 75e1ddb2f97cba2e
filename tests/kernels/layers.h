/* Every layer of kernels.h behind one shape of call, so that one loop checks all of them. */
#ifndef HOLMES_TESTS_LAYERS_H
#define HOLMES_TESTS_LAYERS_H

#include "kernels.h"

#include <stdbool.h>
#include <stddef.h>

#define LAYER_INPUTS 3
#define LAYER_SAVED  2

struct shape {
    int B, T, C, H, V, OC;
};

struct layer_buffers {
    float *in[LAYER_INPUTS], *grad[LAYER_INPUTS]; /* NULL where n_in is 0 */
    float *out, *dout;
    float *saved[LAYER_SAVED]; /* what forward keeps for backward */
    int32_t *tokens;           /* (B, T) in [0, V) */
    size_t n_in[LAYER_INPUTS], n_out, n_saved[LAYER_SAVED];
};

struct layer {
    const char *name;
    bool adds[LAYER_INPUTS]; /* backward adds to this gradient instead of writing it */
    void (*sizes)(const struct shape *s, struct layer_buffers *b);
    /* Returns a loss, 0 for layers with an output. */
    double (*forward)(const struct holmes_kernels *k, const struct shape *s,
                      struct layer_buffers *b);
    void (*backward)(const struct holmes_kernels *k, const struct shape *s,
                     struct layer_buffers *b);
};

extern const struct layer layers[];
extern const size_t nlayers;

/* The same numbers for the same layer and shape. Gradients start as noise: backward must overwrite
 * it or add to it. */
void layer_buffers_init(const struct layer *l, const struct shape *s, struct layer_buffers *b);
void layer_buffers_fini(struct layer_buffers *b);

#endif
