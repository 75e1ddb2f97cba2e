/* Collectives over the plugin of this build, every element checked. */
#include <criterion/criterion.h>
#include <errno.h>
#include <stdatomic.h>
#include <sys/mman.h>

#include "comm_check.h"

/* Sizes around nothing, one element, small and large, chunk and group boundaries. */
static const size_t counts[] = {0,     1,      2,      3,      5,      63,     64,
                                65,    1000,   4096,   8191,   8193,   16384,  16385,
                                32768, 100003, 131072, 131073, 262147, 524288, 1000003};
enum { NCOUNTS = sizeof counts / sizeof *counts };

static void run(int size, void (*body)(struct rank *r))
{
    struct ranks ranks = {.size = size, .plugin = holmes_test_plugin(), .body = body};

    cr_assert(holmes_test_ranks_run(&ranks, 240));
}

static void expect(struct holmes_comm *c, enum holmes_dtype t, const void *buf, size_t i,
                   float want)
{
    float got = check_load(t, buf, i);

    EXPECT(got == want, "rank %d of %d: element %zu is %g, not %g", c->rank, c->size, i, got, want);
}

/* ---- all_reduce ---- */

static void check_all_reduce(struct holmes_comm *c, size_t count, enum holmes_dtype t,
                             bool in_place)
{
    void *in = check_values(c->rank, 0, count, t);
    void *out = in_place ? in : check_buffer(count * holmes_dtype_size(t));
    struct holmes_op *op;

    EXPECT(c->ops->all_reduce(c, in, out, count, t, &op) == 0);
    holmes_test_wait(c, op, 0);
    for (size_t i = 0; i < count; i++)
        expect(c, t, out, i, check_sum(c->size, i));
    for (size_t i = 0; i < count && !in_place; i++)
        expect(c, t, in, i, check_value(c->rank, i));
    if (!in_place)
        free(out);
    free(in);
}

static void all_reduce_body(struct rank *r)
{
    for (int n = 0; n < NCOUNTS; n++) {
        check_all_reduce(r->all, counts[n], HOLMES_FLOAT32, n % 2);
        check_all_reduce(r->all, counts[n], HOLMES_FLOAT32, !(n % 2));
        check_all_reduce(r->all, counts[n], HOLMES_BFLOAT16, n % 2);
    }
}

Test(comm_net, all_reduce_sums_every_element_on_2_ranks)
{
    run(2, all_reduce_body);
}

Test(comm_net, all_reduce_sums_every_element_on_3_ranks)
{
    run(3, all_reduce_body);
}

Test(comm_net, all_reduce_sums_every_element_on_4_ranks)
{
    run(4, all_reduce_body);
}

static void all_reduce_large_body(struct rank *r)
{
    check_all_reduce(r->all, 9 * 1000 * 1000 + 1, HOLMES_FLOAT32, true);
    check_all_reduce(r->all, 9 * 1000 * 1000 + 1, HOLMES_BFLOAT16, false);
}

Test(comm_net, all_reduce_of_many_groups_of_chunks)
{
    run(2, all_reduce_large_body);
}

/* Sums of values that are not exact depend on the order of summation: it must be the same. */
static void same_bits_body(struct rank *r)
{
    struct holmes_comm *c = r->all;
    const size_t count = 50000;

    for (int t = HOLMES_FLOAT32; t <= HOLMES_BFLOAT16; t++) {
        size_t bytes = count * holmes_dtype_size(t);
        void *buf = check_buffer(bytes), *all = check_buffer(bytes * (size_t)c->size);
        struct holmes_op *op;

        for (size_t i = 0; i < count; i++)
            check_store(t, buf, i, 1.0f / (float)(3 + i % 97 + (size_t)c->rank * 1013));
        EXPECT(c->ops->all_reduce(c, buf, buf, count, t, &op) == 0);
        holmes_test_wait(c, op, 0);
        EXPECT(c->ops->all_gather(c, buf, all, count, t, &op) == 0);
        holmes_test_wait(c, op, 0);
        for (int i = 0; i < c->size; i++)
            EXPECT(memcmp((char *)all + (size_t)i * bytes, buf, bytes) == 0, "rank %d has others",
                   i);
        free(all);
        free(buf);
    }
}

Test(comm_net, all_reduce_gives_all_ranks_the_same_bits)
{
    run(4, same_bits_body);
}

/* ---- reduce_scatter, all_gather ---- */

static void check_reduce_scatter(struct holmes_comm *c, size_t count, enum holmes_dtype t,
                                 bool in_place)
{
    size_t elem = holmes_dtype_size(t), first = (size_t)c->rank * count;
    char *in = check_values(c->rank, 0, (size_t)c->size * count, t);
    char *out = in_place ? in + first * elem : check_buffer(count * elem);
    struct holmes_op *op;

    EXPECT(c->ops->reduce_scatter(c, in, out, count, t, &op) == 0);
    holmes_test_wait(c, op, 0);
    for (size_t i = 0; i < count; i++)
        expect(c, t, out, i, check_sum(c->size, first + i));
    for (size_t i = 0; i < (size_t)c->size * count; i++) {
        if (!in_place || i < first || i >= first + count)
            expect(c, t, in, i, check_value(c->rank, i));
    }
    if (!in_place)
        free(out);
    free(in);
}

static void check_all_gather(struct holmes_comm *c, size_t count, enum holmes_dtype t,
                             bool in_place)
{
    size_t elem = holmes_dtype_size(t);
    char *out = check_buffer((size_t)c->size * count * elem);
    char *in = check_values(c->rank, 0, count, t), *own = out + (size_t)c->rank * count * elem;
    struct holmes_op *op;

    if (in_place && count)
        memcpy(own, in, count * elem);
    EXPECT(c->ops->all_gather(c, in_place ? own : in, out, count, t, &op) == 0);
    holmes_test_wait(c, op, 0);
    for (int r = 0; r < c->size; r++) {
        for (size_t i = 0; i < count; i++)
            expect(c, t, out + (size_t)r * count * elem, i, check_value(r, i));
    }
    free(in);
    free(out);
}

static void scatter_gather_body(struct rank *r)
{
    for (int n = 0; n < NCOUNTS && counts[n] <= 300000; n++) {
        check_reduce_scatter(r->all, counts[n], HOLMES_FLOAT32, n % 2);
        check_reduce_scatter(r->all, counts[n], HOLMES_BFLOAT16, !(n % 2));
        check_all_gather(r->all, counts[n], HOLMES_FLOAT32, n % 2);
        check_all_gather(r->all, counts[n], HOLMES_BFLOAT16, !(n % 2));
    }
}

Test(comm_net, reduce_scatter_and_all_gather_on_2_ranks)
{
    run(2, scatter_gather_body);
}

Test(comm_net, reduce_scatter_and_all_gather_on_4_ranks)
{
    run(4, scatter_gather_body);
}

/* ---- broadcast ---- */

static void broadcast_body(struct rank *r)
{
    struct holmes_comm *c = r->all;
    struct holmes_op *op;

    EXPECT(c->ops->broadcast(c, &op, 1, HOLMES_FLOAT32, c->size, &op) == -EINVAL);
    for (int root = 0; root < c->size; root++) {
        for (int n = 0; n < NCOUNTS; n++) {
            float *buf = c->rank == root ? check_values(root, 0, counts[n], HOLMES_FLOAT32)
                                         : check_buffer(counts[n] * sizeof *buf);

            EXPECT(c->ops->broadcast(c, buf, counts[n], HOLMES_FLOAT32, root, &op) == 0);
            holmes_test_wait(c, op, 0);
            for (size_t i = 0; i < counts[n]; i++)
                expect(c, HOLMES_FLOAT32, buf, i, check_value(root, i));
            free(buf);
        }
    }
}

Test(comm_net, broadcast_reaches_all_from_every_root)
{
    run(3, broadcast_body);
}

/* ---- every size of group ---- */

static void any_size_body(struct rank *r)
{
    static const size_t some[] = {1, 7, 1001, 70001};

    for (size_t n = 0; n < sizeof some / sizeof *some; n++) {
        check_all_reduce(r->all, some[n], HOLMES_FLOAT32, true);
        check_reduce_scatter(r->all, some[n], HOLMES_BFLOAT16, false);
        check_all_gather(r->all, some[n], HOLMES_FLOAT32, false);
    }
}

/* The arithmetic is the same over any plugin: the small one starts faster. */
Test(comm_net, groups_of_1_to_8_ranks)
{
    for (int size = 1; size <= 8; size++) {
        struct ranks ranks = {.size = size, .plugin = "mini12", .body = any_size_body};

        cr_assert(holmes_test_ranks_run(&ranks, 60));
    }
}

/* ---- barrier ---- */

/* A descriptor number that the ranks inherit. */
#define ARRIVED "TEST_ARRIVED_FD"

static atomic_int *arrived_map(int fd)
{
    void *p = mmap(NULL, sizeof(atomic_int), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);

    EXPECT(p != MAP_FAILED);
    return p;
}

static void barrier_body(struct rank *r)
{
    atomic_int *arrived = arrived_map(atoi(getenv(ARRIVED)));
    struct holmes_op *op;

    for (int round = 1; round <= 50; round++) {
        atomic_fetch_add(arrived, 1);
        EXPECT(r->all->ops->barrier(r->all, &op) == 0);
        holmes_test_wait(r->all, op, 0);
        EXPECT(atomic_load(arrived) >= round * r->size, "rank %d went on alone", r->rank);
    }
}

Test(comm_net, nobody_leaves_a_barrier_before_all_have_come)
{
    int fd = memfd_create("arrived", 0);
    char number[16];

    cr_assert_eq(ftruncate(fd, sizeof(atomic_int)), 0);
    snprintf(number, sizeof number, "%d", fd);
    setenv(ARRIVED, number, 1);
    run(4, barrier_body);
    cr_assert_eq(atomic_load(arrived_map(fd)), 200);
}

/* ---- accounting ---- */

static void traffic_body(struct rank *r)
{
    struct holmes_comm *c = r->all;
    const size_t count = 3 * 40000;
    float *buf = check_values(c->rank, 0, count, HOLMES_FLOAT32);
    struct holmes_comm_traffic to_next, from_prev;
    struct holmes_op *op;
    size_t bytes = 4 * count / 3 * sizeof *buf; /* 2 (n - 1) / n of the array */

    EXPECT(c->ops->all_reduce(c, buf, buf, count, HOLMES_FLOAT32, &op) == 0);
    holmes_test_wait(c, op, 0);
    c->ops->traffic(c, (c->rank + 1) % 3, &to_next);
    c->ops->traffic(c, (c->rank + 2) % 3, &from_prev);
    EXPECT(to_next.bytes_sent == bytes, "%llu", (unsigned long long)to_next.bytes_sent);
    EXPECT(from_prev.bytes_received == bytes);
    EXPECT(to_next.messages_sent >= 4 && from_prev.messages_received == to_next.messages_sent);
    EXPECT(to_next.bytes_received == 0 && from_prev.bytes_sent == 0);
    free(buf);
}

Test(comm_net, traffic_of_an_all_reduce_is_what_a_ring_needs)
{
    run(3, traffic_body);
}
