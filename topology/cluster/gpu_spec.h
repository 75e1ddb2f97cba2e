#ifndef HOLMES_GPU_SPEC_H
#define HOLMES_GPU_SPEC_H

/* Dense bf16 peak (fp16 where a GPU has no bf16) in TFLOPS by the maker's data sheet, for a model
 * as the driver names it; 0: not known. */
double holmes_gpu_spec_tflops(const char *model);

/* Gb/s of one GPU to the others of its node, each way, over the NVLink that boards of this module
 * have; 0: none, or not known. */
double holmes_gpu_spec_nvlink_gbps(const char *model);

#endif
