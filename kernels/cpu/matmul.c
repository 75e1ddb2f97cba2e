/* Linear layers by OpenBLAS. OpenBLAS itself runs on one thread: the product is cut into one block
 * of rows or columns per OpenMP thread, so that one pool of threads serves all layers and the cut,
 * hence every bit of the result, depends on the sizes and the number of threads alone. */
#include "cpu.h"

#include <cblas.h>
#include <stdbool.h>

/* c = a b + beta c, or + bias in every row. A trailing t: that operand is stored transposed. */
struct product {
    int m, n, k; /* c (m, n) */
    const float *a, *b, *bias;
    bool at, bt;
    float *c;
    float beta;
};

static void fill_bias(const struct product *p, struct cpu_range rows, struct cpu_range cols)
{
    for (size_t i = rows.first; i < rows.first + rows.count; i++)
        memcpy(p->c + i * p->n + cols.first, p->bias + cols.first, cols.count * sizeof(float));
}

static void multiply_block(const struct product *p, struct cpu_range rows, struct cpu_range cols)
{
    const int lda = p->at ? p->m : p->k, ldb = p->bt ? p->k : p->n;

    if (rows.count == 0 || cols.count == 0)
        return;
    if (p->bias)
        fill_bias(p, rows, cols);
    cblas_sgemm(CblasRowMajor, p->at ? CblasTrans : CblasNoTrans, p->bt ? CblasTrans : CblasNoTrans,
                (int)rows.count, (int)cols.count, p->k, 1,
                p->a + (p->at ? rows.first : rows.first * (size_t)lda), lda,
                p->b + (p->bt ? cols.first * (size_t)ldb : cols.first), ldb, p->bias ? 1 : p->beta,
                p->c + rows.first * (size_t)p->n + cols.first, p->n);
}

/* Multiply-adds, eight of which cost about as much as an element of other loops. */
static inline size_t product_work(const struct product *p)
{
    return (size_t)p->m * (size_t)p->n * (size_t)p->k / 8;
}

static void multiply(const struct product *p)
{
    const struct cpu_range rows = {0, (size_t)p->m}, cols = {0, (size_t)p->n};
    const size_t align = 16; /* whole tiles of the BLAS kernel */

#pragma omp parallel num_threads(holmes_cpu_threads_for(product_work(p)))
    {
        if (p->m > p->n)
            multiply_block(p, cpu_my_range(rows.count, align), cols);
        else
            multiply_block(p, rows, cpu_my_range(cols.count, align));
    }
}

void holmes_cpu_matmul_forward(void *out, const void *in, const void *weight, const void *bias,
                               int N, int C, int OC)
{
    multiply(&(struct product){
        .m = N, .n = OC, .k = C, .a = in, .b = weight, .bt = true, .bias = bias, .c = out});
}

void holmes_cpu_matmul_gelu_forward(void *out, void *pre, const void *in, const void *weight,
                                    const void *bias, int N, int C, int OC)
{
    holmes_cpu_matmul_forward(pre, in, weight, bias, N, C, OC);
    holmes_cpu_gelu_forward(out, pre, (size_t)N * (size_t)OC);
}

/* sums[j] += x[0,j] + x[1,j] + ... for x (rows, ld) */
CPU_CLONES
static void add_column_sums(float *restrict sums, const float *restrict x, size_t rows, size_t ld,
                            size_t n)
{
    for (size_t i = 0; i < rows; i++)
#pragma omp simd
        for (size_t j = 0; j < n; j++)
            sums[j] += x[i * ld + j];
}

void holmes_cpu_matmul_backward(void *din, float *dweight, float *dbias, const void *dout,
                                const void *in, const void *weight, int N, int C, int OC)
{
    multiply(&(struct product){.m = N, .n = C, .k = OC, .a = dout, .b = weight, .c = din});
    multiply(&(struct product){
        .m = OC, .n = C, .k = N, .a = dout, .at = true, .b = in, .beta = 1, .c = dweight});
    if (!dbias)
        return;
#pragma omp parallel num_threads(holmes_cpu_threads_for((size_t)N *(size_t)OC))
    {
        const struct cpu_range r = cpu_my_range((size_t)OC, 16);

        add_column_sums(dbias + r.first, (const float *)dout + r.first, (size_t)N, (size_t)OC,
                        r.count);
    }
}
