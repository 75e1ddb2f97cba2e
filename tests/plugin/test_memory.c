/* Memory registration: which handle comes out, and what must not land afterwards. */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "clock.h"
#include "pair.h"

TestSuite(memory, .timeout = 240);

/* A write that landed late would hit memory that is gone. */
Test(memory, nothing_lands_after_dereg)
{
    const size_t len = 1 << 20;

    for (int round = 0; round < 5; round++) {
        void *in = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        void *out = calloc(1, len), *in_mr, *out_mr, *request = NULL;
        uint64_t deadline;
        struct pair p;

        cr_assert(in != MAP_FAILED && out);
        pair_init(&p, 12);
        pair_connect(&p);
        cr_assert_eq(net_reg(&p.api, p.recv, in, len, &in_mr), ncclSuccess);
        cr_assert_eq(net_reg(&p.api, p.send, out, len, &out_mr), ncclSuccess);
        pair_irecv(&p, in, len, in_mr);
        request = pair_isend(&p, out, len, out_mr); /* bytes are on their way */
        cr_assert_eq(net_dereg(&p.api, p.recv, in_mr), ncclSuccess);
        munmap(in, len);
        deadline = holmes_deadline_ms(200);
        while (request && !holmes_deadline_passed(deadline)) {
            int done = 0, size;

            if (net_test(&p.api, request, &done, &size) != ncclSuccess || done)
                request = NULL;
        }
        cr_assert_eq(net_close_recv(&p.api, p.recv), ncclSuccess);
        p.recv = NULL;
        cr_assert_eq(net_dereg(&p.api, p.send, out_mr), ncclSuccess);
        pair_fini(&p);
        free(out);
    }
}

Test(memory, a_range_registered_again_gives_the_same_handle)
{
    static char buf[4][8192] __attribute__((aligned(4096)));
    void *mr[4], *again;
    struct pair p;

    pair_init(&p, 12);
    pair_connect(&p);
    for (int i = 0; i < 4; i++)
        cr_assert_eq(net_reg(&p.api, p.recv, buf[i], sizeof buf[i], &mr[i]), ncclSuccess);
    cr_assert_eq(net_dereg(&p.api, p.recv, mr[0]), ncclSuccess);
    cr_assert_eq(net_reg(&p.api, p.recv, buf[1], sizeof buf[1], &again), ncclSuccess);
    cr_expect_eq(again, mr[1]);
    cr_assert_eq(net_dereg(&p.api, p.recv, again), ncclSuccess);
    for (int i = 1; i < 4; i++)
        cr_assert_eq(net_dereg(&p.api, p.recv, mr[i]), ncclSuccess);
    pair_move(&p, 8192, 8192);
    pair_fini(&p);
}

Test(memory, two_buffers_in_one_page_are_two)
{
    static char out[200] __attribute__((aligned(4096))), in[200] __attribute__((aligned(4096)));
    void *out_mr[2], *in_mr[2], *requests[4];
    struct pair p;
    int failed;

    for (int i = 0; i < 200; i++)
        out[i] = (char)(i + 1);
    pair_init(&p, 12);
    pair_connect(&p);
    for (int i = 0; i < 2; i++) {
        cr_assert_eq(net_reg(&p.api, p.send, out + 100 * i, 100, &out_mr[i]), ncclSuccess);
        cr_assert_eq(net_reg(&p.api, p.recv, in + 100 * i, 100, &in_mr[i]), ncclSuccess);
    }
    cr_expect_neq(out_mr[0], out_mr[1]);
    cr_expect_neq(in_mr[0], in_mr[1]);
    for (int i = 0; i < 2; i++)
        requests[i] = pair_irecv(&p, in + 100 * i, 100, in_mr[i]);
    for (int i = 0; i < 2; i++)
        requests[2 + i] = pair_isend(&p, out + 100 * i, 100, out_mr[i]);
    cr_assert_eq(pair_wait(&p, requests, 4, 10000, &failed), ncclSuccess);
    cr_expect_eq(memcmp(in, out, 200), 0);
    for (int i = 0; i < 2; i++) {
        cr_assert_eq(net_dereg(&p.api, p.send, out_mr[i]), ncclSuccess);
        cr_assert_eq(net_dereg(&p.api, p.recv, in_mr[i]), ncclSuccess);
    }
    pair_fini(&p);
}
