/* Point to point over the plugin of this build: sizes, order, and that nothing waits for anything
 * that it need not wait for. */
#include <criterion/criterion.h>
#include <errno.h>

#include "comm_check.h"

static void run(int size, void (*body)(struct rank *r))
{
    struct ranks ranks = {.size = size, .plugin = holmes_test_plugin(), .body = body};

    cr_assert(holmes_test_ranks_run(&ranks, 120));
}

static const size_t sizes[] = {0, 1, 3, 1000, 32768, 32769, 1048576, 1048577, 3000017};
enum { NSIZES = sizeof sizes / sizeof *sizes };

static char byte_of(int from, int to, size_t message, size_t i)
{
    return (char)(i * 31 + message * 17 + (size_t)from * 5 + (size_t)to);
}

static char *message(int from, int to, size_t n, size_t len)
{
    char *m = check_buffer(len);

    for (size_t i = 0; i < len; i++)
        m[i] = byte_of(from, to, n, i);
    return m;
}

static void check_message(const char *m, int from, int to, size_t n, size_t len)
{
    for (size_t i = 0; i < len; i++)
        EXPECT(m[i] == byte_of(from, to, n, i), "message %zu from %d to %d: byte %zu of %zu", n,
               from, to, i, len);
    EXPECT(m[len] == 0x5a, "message %zu from %d to %d: written past its end", n, from, to);
}

struct exchange {
    char *out[NSIZES], *in[NSIZES];
    struct holmes_op *sends[NSIZES], *recvs[NSIZES];
};

/* Everything to everybody at once, sends started before receives. */
static void everybody_body(struct rank *r)
{
    struct holmes_comm *c = r->all;
    struct exchange x[8] = {0};

    for (int peer = 0; peer < c->size; peer++) {
        for (size_t n = 0; n < NSIZES && peer != c->rank; n++) {
            x[peer].out[n] = message(c->rank, peer, n, sizes[n]);
            x[peer].in[n] = check_buffer(sizes[n]);
            EXPECT(c->ops->send(c, x[peer].out[n], sizes[n], peer, &x[peer].sends[n]) == 0);
        }
    }
    for (int peer = c->size - 1; peer >= 0; peer--) {
        for (size_t n = 0; n < NSIZES && peer != c->rank; n++)
            EXPECT(c->ops->recv(c, x[peer].in[n], sizes[n], peer, &x[peer].recvs[n]) == 0);
    }
    for (int peer = 0; peer < c->size; peer++) {
        for (size_t n = 0; n < NSIZES && peer != c->rank; n++) {
            holmes_test_wait(c, x[peer].sends[n], 0);
            holmes_test_wait(c, x[peer].recvs[n], 0);
            check_message(x[peer].in[n], peer, c->rank, n, sizes[n]);
            free(x[peer].in[n]);
            free(x[peer].out[n]);
        }
    }
}

Test(comm_peer, everybody_sends_to_everybody_at_once)
{
    run(4, everybody_body);
}

/* Receives that are posted long before their sends must not keep others from completing. */
static void independent_body(struct rank *r)
{
    struct holmes_comm *c = r->all;
    struct holmes_op *late, *op;
    char *in = check_buffer(100000), *out = message(c->rank, 1 - c->rank, 0, 100000);
    char *second = check_buffer(100000);
    bool done;

    EXPECT(c->ops->recv(c, in, 100000, 1 - c->rank, &late) == 0);
    EXPECT(c->ops->barrier(c, &op) == 0); /* passes the receive */
    holmes_test_wait(c, op, 0);
    EXPECT(c->ops->test(late, &done) == 0 && !done);
    EXPECT(c->ops->wait(late, 20) == -ETIMEDOUT);
    EXPECT(c->ops->send(c, out, 100000, 1 - c->rank, &op) == 0);
    holmes_test_wait(c, op, 0);
    holmes_test_wait(c, late, 0);
    check_message(in, 1 - c->rank, c->rank, 0, 100000);
    free(second);
    free(out);
    free(in);
}

Test(comm_peer, a_receive_that_waits_holds_up_nothing_else)
{
    run(2, independent_body);
}

/* A pipeline's traffic: activations down, gradients up, several microbatches under way. */
static void pipeline_body(struct rank *r)
{
    enum { MICROBATCHES = 12, BYTES = 200000 };
    struct holmes_comm *c = r->all;
    struct holmes_op *sends[MICROBATCHES][2], *op;
    char *acts[MICROBATCHES], *in = check_buffer(BYTES);
    int next = c->rank + 1 < c->size ? c->rank + 1 : -1, prev = c->rank - 1;

    for (size_t m = 0; m < MICROBATCHES; m++) {
        acts[m] = message(c->rank, next, m, BYTES);
        if (prev >= 0) {
            EXPECT(c->ops->recv(c, in, BYTES, prev, &op) == 0);
            holmes_test_wait(c, op, 0);
            check_message(in, prev, c->rank, m, BYTES);
        }
        if (next >= 0)
            EXPECT(c->ops->send(c, acts[m], BYTES, next, &sends[m][0]) == 0);
    }
    for (size_t m = 0; m < MICROBATCHES; m++) {
        if (next >= 0) {
            holmes_test_wait(c, sends[m][0], 0);
            EXPECT(c->ops->recv(c, in, BYTES, next, &op) == 0);
            holmes_test_wait(c, op, 0);
            check_message(in, next, c->rank, m, BYTES);
        }
        free(acts[m]);
        acts[m] = message(c->rank, prev, m, BYTES);
        if (prev >= 0)
            EXPECT(c->ops->send(c, acts[m], BYTES, prev, &sends[m][1]) == 0);
    }
    for (size_t m = 0; m < MICROBATCHES; m++) {
        if (prev >= 0)
            holmes_test_wait(c, sends[m][1], 0);
        free(acts[m]);
    }
    free(in);
}

Test(comm_peer, stages_of_a_pipeline_pass_microbatches_both_ways)
{
    run(4, pipeline_body);
}

static void no_such_peer_body(struct rank *r)
{
    struct holmes_op *op;
    char byte = 0;

    EXPECT(r->all->ops->send(r->all, &byte, 1, r->rank, &op) == -EINVAL);
    EXPECT(r->all->ops->recv(r->all, &byte, 1, r->size, &op) == -EINVAL);
    EXPECT(r->all->ops->send(r->all, &byte, 1, -1, &op) == -EINVAL);
}

Test(comm_peer, refuses_itself_and_ranks_that_are_none)
{
    run(2, no_such_peer_body);
}

static void counted_body(struct rank *r)
{
    struct holmes_comm_traffic t;
    char *buf = check_buffer(5000);
    struct holmes_op *op;

    for (int n = 0; n < 3; n++) {
        if (r->rank == 0)
            EXPECT(r->all->ops->send(r->all, buf, 5000, 1, &op) == 0);
        else
            EXPECT(r->all->ops->recv(r->all, buf, 5000, 0, &op) == 0);
        holmes_test_wait(r->all, op, 0);
    }
    r->all->ops->traffic(r->all, 1 - r->rank, &t);
    EXPECT(t.bytes_sent == (r->rank == 0 ? 15000u : 0) && t.messages_sent == (r->rank ? 0u : 3u));
    EXPECT(t.bytes_received == (r->rank ? 15000u : 0) && t.messages_received == (r->rank ? 3u : 0));
    free(buf);
}

Test(comm_peer, traffic_is_counted_per_peer)
{
    run(2, counted_body);
}
