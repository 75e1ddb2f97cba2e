/* The fault driver does what its plan says, and nothing else: otherwise the tests of the protocol
 * that lean on it would prove nothing. */
#include <criterion/criterion.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "fault_driver.h"
#include "wire_pair.h"

static void short_timers(void)
{
    setenv("NCCL_IB_TIMEOUT", "14", 1); /* a lane without a peer is known in half a second */
}

TestSuite(fault, .init = short_timers);

static const struct wire_write imm_write = {.imm = 9, .flags = WIRE_WITH_IMM};

Test(fault, load_nic_and_memory_are_refused_on_cue)
{
    struct fault_plan plan = {.load_error = -ELIBACC};
    const struct wire_ops *wire = fault_driver(test_nics()->ops, &plan);
    struct wire_nic *wn;
    struct wire_end e;
    struct wire_cq *cq;
    struct wire_mr mr;
    char why[512] = "", byte;

    cr_assert_eq(wire->load(why, sizeof why), -ELIBACC);
    cr_assert(strlen(why) > 0);
    plan.load_error = 0;
    end_open(&e, wire, &test_nics()->from);
    plan.nic_open_error = -EMFILE;
    cr_assert_eq(wire->nic_open(&test_nics()->from, 0, 0, &wn), -EMFILE);
    plan.mr_reg_error = -ENOMEM;
    cr_assert_eq(wire->mr_reg(e.wn, &byte, 1, &mr), -ENOMEM);
    plan.mr_reg_error = 0;
    cr_assert_eq(wire->mr_reg(e.wn, &byte, 1, &mr), 0);
    wire->mr_dereg(e.wn, &mr);
    plan.cq_open_error = -EMFILE;
    cr_assert_eq(wire->cq_open(e.wn, &cq), -EMFILE);
    end_close(&e);
}

Test(fault, nth_post_fails_and_the_lane_goes_on)
{
    struct fault_plan plan = {.eagain_posts = 2, .fail_post = 2, .fail_post_error = -EIO};
    struct wire_pair p;
    struct wire_event e;

    pair_open(&p, fault_driver(test_nics()->ops, &plan), 1);
    cr_assert_eq(p.from.ops->lane_post(p.from.lanes[0], &imm_write), -EAGAIN);
    cr_assert_eq(p.from.ops->lane_post(p.from.lanes[0], &imm_write), -EAGAIN);
    cr_assert_eq(p.from.ops->lane_post(p.from.lanes[0], &imm_write), 0);
    cr_assert_eq(p.from.ops->lane_post(p.from.lanes[0], &imm_write), -EIO);
    cr_assert_eq(p.from.ops->lane_post(p.from.lanes[0], &imm_write), 0);
    for (int i = 0; i < 2; i++) {
        cr_assert(end_wait_event(&p.to, &p.from, &e));
        cr_assert(e.type == WIRE_IMM && e.imm == 9);
    }
    end_drive(&p.to);
    cr_assert_eq(p.to.count, 0u, "a refused write arrived");
    cr_assert_eq(plan.posts, 2);
    pair_close(&p);
}

Test(fault, events_are_withheld_for_as_many_polls)
{
    struct fault_plan plan = {0};
    struct wire_pair p;
    struct wire_event e;
    int waited;

    pair_open(&p, fault_driver(test_nics()->ops, &plan), 1);
    plan.delay_polls = 500;
    cr_assert_eq(p.from.ops->lane_post(p.from.lanes[0], &imm_write), 0);
    waited = plan.polls;
    /* Both ends count: a wire may need the peer's word for it. */
    cr_assert(end_wait_event(&p.from, &p.to, &e));
    waited = plan.polls - waited;
    cr_assert_geq(waited, 500);
    cr_assert_eq(e.type, WIRE_WRITE_DONE);
    pair_close(&p);
}

Test(fault, dropped_lane_answers_for_its_writes_and_the_peer_sees_it)
{
    struct fault_plan plan = {.delay_polls = 100000};
    struct wire_pair p;
    struct wire_event e;
    int contexts[3];
    struct wire_write w = imm_write;

    pair_open(&p, fault_driver(test_nics()->ops, &plan), 2);
    plan.drop_lane_post = 3;
    for (int i = 0; i < 3; i++) {
        w.context = &contexts[i];
        cr_assert_eq(p.from.ops->lane_post(p.from.lanes[1], &w), 0);
    }
    cr_assert_eq(plan.dropped_lanes, 1);
    cr_assert_eq(p.from.ops->lane_poll(p.from.lanes[1]), -ECONNRESET);
    cr_assert_eq(p.from.ops->lane_post(p.from.lanes[1], &w), -ECONNRESET);
    cr_assert_eq(p.from.ops->lane_poll(p.from.lanes[0]), 0);
    for (int i = 0; i < 3; i++) {
        cr_assert(end_wait_event(&p.from, NULL, &e), "write %d vanished", i);
        cr_assert(e.type == WIRE_ERROR && e.error == -ECONNRESET);
        cr_assert_eq(e.context, &contexts[i]);
    }
    if (!test_nics()->notices_close) /* then its first write tells */
        cr_assert_eq(p.to.ops->lane_post(p.to.lanes[1], &imm_write), 0);
    cr_assert_eq(lane_wait_end(&p.to, &p.from, p.to.lanes[1], PAIR_TIMEOUT_MS), -ECONNRESET);
    pair_close(&p);
}
