#ifndef HOLMES_GPU_SPEC_H
#define HOLMES_GPU_SPEC_H

/* Dense bf16 peak (fp16 where a GPU has no bf16) in TFLOPS by the maker's data sheet, for a model
 * as the driver names it; 0: not known. */
double holmes_gpu_spec_tflops(const char *model);

#endif
