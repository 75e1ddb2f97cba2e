/* Products by cuBLAS: cublasLt for the forward ones, where it adds the bias and applies GELU while
 * the numbers are still in registers, and cublasGemmEx for the rest and for what cublasLt has no
 * kernel for (rows of odd lengths). float32 stays float32: TF32 is not used.
 *
 * cuBLAS thinks in columns: a row-major (n, c) is its column-major (c, n). */
#include "gemm.h"

#include <cublas_v2.h>
#include <cublasLt.h>
#include <stdio.h>
#include <string.h>

#include "runtime.h"

#define WORKSPACE_BYTES ((size_t)32 << 20)
#define PLANS           64

/* What cublasLt chose for a product; asking costs more than a small product. */
struct plan {
    int N, C, OC, epilogue; /* N 0: empty */
    enum holmes_dtype type;
    unsigned align;
    bool usable;
    cublasLtMatmulAlgo_t algo;
};

static struct {
    cublasHandle_t blas;
    cublasLtHandle_t lt;
    cudaStream_t stream;
    void *workspace;
    struct plan plans[PLANS];
    unsigned next_plan;
} gemm;

static void check(const char *what, cublasStatus_t rc)
{
    if (rc != CUBLAS_STATUS_SUCCESS)
        holmes_cuda_fail(what, cublasGetStatusString(rc));
}

int holmes_cuda_gemm_open(void *stream, char *why, size_t size)
{
    cublasStatus_t rc = cublasCreate(&gemm.blas);

    gemm.stream = stream;
    if (rc == CUBLAS_STATUS_SUCCESS)
        rc = cublasLtCreate(&gemm.lt);
    if (rc == CUBLAS_STATUS_SUCCESS && cudaMalloc(&gemm.workspace, WORKSPACE_BYTES) != cudaSuccess)
        rc = CUBLAS_STATUS_ALLOC_FAILED;
    if (rc == CUBLAS_STATUS_SUCCESS)
        rc = cublasSetStream(gemm.blas, gemm.stream);
    /* After the stream, which resets it. Its own workspace keeps results equal from call to call.
     */
    if (rc == CUBLAS_STATUS_SUCCESS)
        rc = cublasSetWorkspace(gemm.blas, gemm.workspace, WORKSPACE_BYTES);
    if (rc == CUBLAS_STATUS_SUCCESS)
        return 0;
    snprintf(why, size, "cannot open cuBLAS: %s", cublasGetStatusString(rc));
    return -1;
}

static cudaDataType_t cuda_type(enum holmes_dtype t)
{
    return t == HOLMES_FLOAT32 ? CUDA_R_32F : CUDA_R_16BF;
}

/* Column-major c (m, n) = op(a) op(b) + beta c. */
static void product(const char *what, cublasOperation_t op_a, cublasOperation_t op_b, int m, int n,
                    int k, const void *a, int lda, const void *b, int ldb, float beta, void *c,
                    enum holmes_dtype type, cudaDataType_t out_type)
{
    const float one = 1;

    if (!holmes_cuda_may_queue())
        return;
    check(what, cublasGemmEx(gemm.blas, op_a, op_b, m, n, k, &one, a, cuda_type(type), lda, b,
                             cuda_type(type), ldb, &beta, c, out_type, m, CUBLAS_COMPUTE_32F,
                             CUBLAS_GEMM_DEFAULT));
}

/* ---- cublasLt ---- */

struct description {
    cublasLtMatmulDesc_t product;
    cublasLtMatrixLayout_t weight, in, out;
};

static void description_fini(struct description *d)
{
    if (d->out)
        cublasLtMatrixLayoutDestroy(d->out);
    if (d->in)
        cublasLtMatrixLayoutDestroy(d->in);
    if (d->weight)
        cublasLtMatrixLayoutDestroy(d->weight);
    if (d->product)
        cublasLtMatmulDescDestroy(d->product);
}

static cublasStatus_t set(cublasLtMatmulDesc_t d, cublasLtMatmulDescAttributes_t what,
                          const void *value, size_t size)
{
    return cublasLtMatmulDescSetAttribute(d, what, value, size);
}

static cublasStatus_t description_init(struct description *d, const struct plan *p,
                                       const void *bias, void *pre)
{
    const cublasOperation_t transposed = CUBLAS_OP_T;
    const cublasLtEpilogue_t epilogue = (cublasLtEpilogue_t)p->epilogue;
    const cudaDataType_t type = cuda_type(p->type);
    const int64_t pre_stride = p->OC;
    cublasStatus_t rc = cublasLtMatmulDescCreate(&d->product, CUBLAS_COMPUTE_32F, CUDA_R_32F);

    if (rc == CUBLAS_STATUS_SUCCESS)
        rc = set(d->product, CUBLASLT_MATMUL_DESC_TRANSA, &transposed, sizeof transposed);
    if (rc == CUBLAS_STATUS_SUCCESS)
        rc = set(d->product, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue, sizeof epilogue);
    if (rc == CUBLAS_STATUS_SUCCESS)
        rc = set(d->product, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &bias, sizeof bias);
    if (rc == CUBLAS_STATUS_SUCCESS && pre)
        rc = set(d->product, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, &pre, sizeof pre);
    if (rc == CUBLAS_STATUS_SUCCESS && pre)
        rc = set(d->product, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, &pre_stride, sizeof pre_stride);
    if (rc == CUBLAS_STATUS_SUCCESS)
        rc = cublasLtMatrixLayoutCreate(&d->weight, type, (uint64_t)p->C, (uint64_t)p->OC, p->C);
    if (rc == CUBLAS_STATUS_SUCCESS)
        rc = cublasLtMatrixLayoutCreate(&d->in, type, (uint64_t)p->C, (uint64_t)p->N, p->C);
    if (rc == CUBLAS_STATUS_SUCCESS)
        rc = cublasLtMatrixLayoutCreate(&d->out, type, (uint64_t)p->OC, (uint64_t)p->N, p->OC);
    return rc;
}

static bool choose(struct plan *p, const struct description *d)
{
    static const cublasLtMatmulPreferenceAttributes_t alignments[] = {
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES};
    const size_t workspace = WORKSPACE_BYTES;
    const uint32_t align = p->align;
    cublasLtMatmulPreference_t want;
    cublasLtMatmulHeuristicResult_t found;
    cublasStatus_t rc = cublasLtMatmulPreferenceCreate(&want);
    int count = 0;

    if (rc != CUBLAS_STATUS_SUCCESS)
        return false;
    rc = cublasLtMatmulPreferenceSetAttribute(want, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                              &workspace, sizeof workspace);
    for (int i = 0; i < 4 && rc == CUBLAS_STATUS_SUCCESS; i++)
        rc = cublasLtMatmulPreferenceSetAttribute(want, alignments[i], &align, sizeof align);
    if (rc == CUBLAS_STATUS_SUCCESS)
        rc = cublasLtMatmulAlgoGetHeuristic(gemm.lt, d->product, d->weight, d->in, d->out, d->out,
                                            want, 1, &found, &count);
    cublasLtMatmulPreferenceDestroy(want);
    if (rc != CUBLAS_STATUS_SUCCESS || count == 0 || found.state != CUBLAS_STATUS_SUCCESS)
        return false;
    p->algo = found.algo;
    return true;
}

/* Bytes, up to 256, of which every one of these is a multiple. */
static unsigned alignment(const void *a, const void *b, const void *c, const void *d)
{
    const uintptr_t all = (uintptr_t)a | (uintptr_t)b | (uintptr_t)c | (uintptr_t)d | 256;

    return (unsigned)(all & -all);
}

static struct plan *plan_for(const struct plan *wanted, const struct description *d)
{
    struct plan *p;

    for (int i = 0; i < PLANS; i++) {
        p = &gemm.plans[i];
        if (p->N == wanted->N && p->C == wanted->C && p->OC == wanted->OC &&
            p->epilogue == wanted->epilogue && p->type == wanted->type && p->align == wanted->align)
            return p;
    }
    p = &gemm.plans[gemm.next_plan++ % PLANS];
    *p = *wanted;
    p->usable = choose(p, d);
    return p;
}

/* out = in weight' + bias, and with `pre` the GELU of that. False: not with these. */
static bool fused(const struct plan *wanted, void *out, void *pre, const void *in,
                  const void *weight, const void *bias)
{
    const float one = 1, zero = 0;
    struct description d = {0};
    const struct plan *p;
    cublasStatus_t rc = description_init(&d, wanted, bias, pre);
    bool done = false;

    if (rc == CUBLAS_STATUS_SUCCESS) {
        p = plan_for(wanted, &d);
        if (p->usable && holmes_cuda_may_queue())
            rc = cublasLtMatmul(gemm.lt, d.product, &one, weight, d.weight, in, d.in, &zero, out,
                                d.out, out, d.out, &p->algo, gemm.workspace, WORKSPACE_BYTES,
                                gemm.stream);
        done = p->usable && rc == CUBLAS_STATUS_SUCCESS;
    }
    description_fini(&d);
    return done;
}

/* ---- gemm.h ---- */

enum holmes_gemm_fused holmes_cuda_gemm_forward(void *out, void *pre, const void *in,
                                                const void *weight, const void *bias, int N, int C,
                                                int OC, enum holmes_dtype type)
{
    void *to = pre ? pre : out;
    struct plan p = {.N = N, .C = C, .OC = OC, .type = type};

    p.align = alignment(out, to, in, weight);
    /* Its GELU is the tanh form, and made for 16-bit types; the row of `pre` must be whole 16
     * bytes. */
    if (pre && bias && type == HOLMES_BFLOAT16 && OC % 8 == 0 && p.align >= 16) {
        p.epilogue = CUBLASLT_EPILOGUE_GELU_AUX_BIAS;
        if (fused(&p, out, pre, in, weight, bias))
            return HOLMES_GEMM_GELU;
    }
    if (bias) {
        p.epilogue = CUBLASLT_EPILOGUE_BIAS;
        if (fused(&p, to, NULL, in, weight, bias))
            return HOLMES_GEMM_BIAS;
    }
    product("matmul", CUBLAS_OP_T, CUBLAS_OP_N, OC, N, C, weight, C, in, C, 0, to, type,
            cuda_type(type));
    return HOLMES_GEMM_PLAIN;
}

void holmes_cuda_gemm_backward_input(void *din, const void *dout, const void *weight, int N, int C,
                                     int OC, enum holmes_dtype type)
{
    product("matmul_backward", CUBLAS_OP_N, CUBLAS_OP_N, C, N, OC, weight, C, dout, OC, 0, din,
            type, cuda_type(type));
}

void holmes_cuda_gemm_backward_weight(float *dweight, const void *dout, const void *in, int N,
                                      int C, int OC, enum holmes_dtype type)
{
    product("matmul_backward", CUBLAS_OP_N, CUBLAS_OP_T, C, OC, N, in, C, dout, OC, 1, dweight,
            type, CUDA_R_32F);
}
