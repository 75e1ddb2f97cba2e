/* The cuda tables on the emulated GPU, for tests in C. */
#ifndef HOLMES_TESTS_CUDA_EMULATED_H
#define HOLMES_TESTS_CUDA_EMULATED_H

#include "kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

const struct holmes_kernels *emulated_table(const char *name);

/* In which threads of a block run, and blocks. */
enum { EMULATED_ORDER_FORWARD, EMULATED_ORDER_BACKWARD, EMULATED_ORDER_SHUFFLED };
void emulated_order(int order);

void emulated_forget_error(void);

#ifdef __cplusplus
}
#endif

#endif
