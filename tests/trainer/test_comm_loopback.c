#include <criterion/criterion.h>
#include <errno.h>

#include "comm.h"

Test(comm_loopback, a_group_of_one_copies)
{
    float in[3] = {1, 2, 3}, out[3] = {0};
    struct holmes_comm *c;
    struct holmes_op *op;
    bool done = false;

    cr_assert_eq(holmes_comm_loopback_create("dp", &c), 0);
    cr_assert_str_eq(c->kind, "dp");
    cr_assert_eq(c->ops->all_reduce(c, in, out, 3, HOLMES_FLOAT32, &op), 0);
    cr_assert_eq(c->ops->test(op, &done), 0);
    cr_assert(done);
    cr_assert_eq(c->ops->wait(op, -1), 0);
    cr_assert_eq(out[0] + out[1] + out[2], 6);
    cr_assert_eq(c->ops->reduce_scatter(c, in + 1, out, 2, HOLMES_FLOAT32, &op), 0);
    cr_assert_eq(c->ops->wait(op, 0), 0);
    cr_assert_eq(out[1], 3);
    cr_assert_eq(c->ops->all_gather(c, in, in, 3, HOLMES_FLOAT32, &op), 0);
    cr_assert_eq(c->ops->wait(op, 0), 0);
    cr_assert_eq(c->ops->send(c, in, 4, 0, &op), -EINVAL);
    cr_assert_eq(c->ops->broadcast(c, in, 3, HOLMES_FLOAT32, 1, &op), -EINVAL);
    c->ops->destroy(c);
}
