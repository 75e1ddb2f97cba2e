/* The sources of kernels/cuda for the emulated GPU: all but what talks to the CUDA runtime and to
 * cuBLAS, which cuda_emulation.cc has in its way. */
#include "attention_backward.cu"
#include "attention_forward.cu"
#include "elementwise.cu"
#include "embedding.cu"
#include "layernorm.cu"
#include "matmul.cu"
#include "reduce.cu"
#include "table.cu"
#include "xent.cu"
