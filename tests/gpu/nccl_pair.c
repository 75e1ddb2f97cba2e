/* nccl_pair RANK FILE: one of two processes that NCCL takes for two nodes. All-reduce and send with
 * receive over whatever network the environment names, of sizes around what NCCL's protocols and
 * the plugin's slices change at; every element is checked. Rank 0 leaves the unique id in FILE.
 * Uses NCCL's public API and the CUDA runtime's. The last line is a rate. */
#include <cuda_runtime_api.h>
#include <nccl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define FLOATS_MAX ((size_t)16 << 20)
#define ROUNDS     10
#define WAIT_S     30

static int rank;

static void die(const char *what, const char *why)
{
    fprintf(stderr, "rank %d: %s: %s\n", rank, what, why);
    _exit(1);
}

static void cuda(const char *what, cudaError_t rc)
{
    if (rc != cudaSuccess)
        die(what, cudaGetErrorString(rc));
}

static void nccl(const char *what, ncclResult_t rc)
{
    if (rc != ncclSuccess)
        die(what, ncclGetErrorString(rc));
}

static double now_s(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* The id appears under its name complete. */
static void meet(const char *path, ncclUniqueId *id)
{
    const double start = now_s();
    char part[4096];
    FILE *f;

    snprintf(part, sizeof part, "%s.part", path);
    if (rank == 0) {
        nccl("ncclGetUniqueId", ncclGetUniqueId(id));
        f = fopen(part, "wb");
        if (!f || fwrite(id, sizeof *id, 1, f) != 1 || fclose(f) != 0 || rename(part, path) != 0)
            die(path, "cannot be written");
        return;
    }
    while (!(f = fopen(path, "rb"))) {
        struct timespec pause = {.tv_nsec = 10000000};

        if (now_s() - start > WAIT_S)
            die(path, "rank 0 wrote no id");
        nanosleep(&pause, NULL);
    }
    if (fread(id, sizeof *id, 1, f) != 1)
        die(path, "is no id");
    fclose(f);
}

static float value(int of, size_t i)
{
    return (float)((i * 7 + (size_t)of * 13) % 1001);
}

static void fill(float *host, float *gpu, size_t n)
{
    for (size_t i = 0; i < n; i++)
        host[i] = value(rank, i);
    cuda("copy to the GPU", cudaMemcpy(gpu, host, n * sizeof *host, cudaMemcpyHostToDevice));
}

static void expect(const char *what, float *host, const float *gpu, size_t n, bool sum)
{
    cuda("copy from the GPU", cudaMemcpy(host, gpu, n * sizeof *host, cudaMemcpyDeviceToHost));
    for (size_t i = 0; i < n; i++) {
        const float want = sum ? value(0, i) + value(1, i) : value(1 - rank, i);
        char why[120];

        if (host[i] == want)
            continue;
        snprintf(why, sizeof why, "element %zu of %zu is %g, not %g", i, n, host[i], want);
        die(what, why);
    }
}

static void exchange(ncclComm_t comm, cudaStream_t stream, float *in, float *out, size_t n)
{
    nccl("ncclGroupStart", ncclGroupStart());
    nccl("ncclSend", ncclSend(in, n, ncclFloat, 1 - rank, comm, stream));
    nccl("ncclRecv", ncclRecv(out, n, ncclFloat, 1 - rank, comm, stream));
    nccl("ncclGroupEnd", ncclGroupEnd());
    cuda("the stream", cudaStreamSynchronize(stream));
}

int main(int argc, char **argv)
{
    static const size_t sizes[] = {1, 1000, 4096, 100003, 1 << 20, FLOATS_MAX};
    float *host = malloc(FLOATS_MAX * sizeof *host), *in, *out;
    ncclUniqueId id;
    ncclComm_t comm;
    cudaStream_t stream;
    double start;

    if (argc != 3 || !host || (strcmp(argv[1], "0") != 0 && strcmp(argv[1], "1") != 0)) {
        fprintf(stderr, "usage: nccl_pair 0|1 FILE\n");
        return 2;
    }
    rank = argv[1][0] - '0';
    cuda("the GPU", cudaSetDevice(0));
    cuda("a stream", cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    cuda("memory", cudaMalloc((void **)&in, FLOATS_MAX * sizeof *in));
    cuda("memory", cudaMalloc((void **)&out, FLOATS_MAX * sizeof *out));
    meet(argv[2], &id);
    nccl("ncclCommInitRank", ncclCommInitRank(&comm, 2, id, rank));
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        fill(host, in, sizes[i]);
        exchange(comm, stream, in, out, sizes[i]);
        expect("send and receive", host, out, sizes[i], false);
        nccl("ncclAllReduce", ncclAllReduce(in, out, sizes[i], ncclFloat, ncclSum, comm, stream));
        cuda("the stream", cudaStreamSynchronize(stream));
        expect("all-reduce", host, out, sizes[i], true);
    }
    start = now_s();
    for (int i = 0; i < ROUNDS; i++)
        nccl("ncclAllReduce", ncclAllReduce(in, out, FLOATS_MAX, ncclFloat, ncclSum, comm, stream));
    cuda("the stream", cudaStreamSynchronize(stream));
    printf("MB/s %.0f all-reduce of %zu MiB\n",
           ROUNDS * FLOATS_MAX * sizeof(float) / (now_s() - start) / 1e6,
           FLOATS_MAX * sizeof(float) >> 20);
    nccl("ncclCommDestroy", ncclCommDestroy(comm));
    free(host);
    return 0;
}
