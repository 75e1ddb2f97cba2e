/* Message semantics over the real wire. */
#include <criterion/criterion.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "link.h"
#include "test_nics.h"

/* One message of `len` into a receive of `room`. */
static void one_message(struct link *l, size_t len, size_t room)
{
    uint8_t *from = malloc(len + 1), *to = malloc(room + 1);
    struct holmes_mr *from_mr = NULL, *to_mr = NULL;
    struct holmes_request *s, *r;

    link_fill(from, len, (unsigned)len);
    memset(to, 0xee, room + 1);
    cr_assert_eq(holmes_mr_reg(l->send, from, len + 1, &from_mr), 0);
    cr_assert_eq(holmes_mr_reg(l->recv, to, room + 1, &to_mr), 0);
    r = link_irecv(l->recv, to, room, 7, to_mr);
    s = link_isend(l->send, from, len, 7, from_mr);
    cr_assert_eq(link_wait_both(s, r), len, "size of a %zu-byte message", len);
    cr_assert(link_check(to, len, (unsigned)len), "%zu bytes arrived changed", len);
    for (size_t i = len; i < room + 1; i++)
        cr_assert_eq(to[i], 0xee, "byte %zu behind a %zu-byte message was written", i, len);
    holmes_mr_dereg(l->send, from_mr);
    holmes_mr_dereg(l->recv, to_mr);
    free(from);
    free(to);
}

static void all_sizes(const char *lanes)
{
    static const size_t sizes[] = {0,      1,      7,       8,       127,     128,
                                   129,    4096,   65535,   65536,   131071,  262145,
                                   524287, 524288, 1048576, 1048577, 4915200, (16 << 20) + 3};
    struct link l;

    setenv("HOLMES_LANES", lanes, 1);
    link_open(&l);
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        one_message(&l, sizes[i], sizes[i]);
        one_message(&l, sizes[i], sizes[i] + 1000);
    }
    link_close(&l);
}

Test(request, moves_every_size_over_one_lane)
{
    all_sizes("1");
}

Test(request, moves_every_size_over_three_lanes)
{
    all_sizes("3");
}

Test(request, moves_every_size_over_eight_lanes)
{
    all_sizes("8");
}

/* Over libfabric a local completion says nothing, and of several streams the bytes may have to be
 * sent again: so a send stays open until the receiver has the message. Over RDMA a completion says
 * that the bytes lie in the receiver's memory. */
Test(request, send_waits_for_a_receive_and_is_not_done_before_its_bytes_are_there)
{
    struct link l;
    char from[64] = "x", to[64] = "";
    struct holmes_mr *fm, *tm;
    struct holmes_request *s, *r;
    bool done = false;

    setenv("HOLMES_EAGER", "0", 1);
    setenv("HOLMES_LANES", "2", 1);
    setenv("HOLMES_HOLD_US", "0", 1); /* no thread drives the receiver either */
    link_open(&l);
    cr_assert_eq(holmes_mr_reg(l.send, from, sizeof from, &fm), 0);
    cr_assert_eq(holmes_mr_reg(l.recv, to, sizeof to, &tm), 0);
    for (int i = 0; i < 1000; i++)
        cr_assert_eq(holmes_isend(l.send, from, 64, 1, fm, &s), -EAGAIN);
    r = link_irecv(l.recv, to, 64, 1, tm);
    s = link_isend(l.send, from, 64, 1, fm);
    for (int i = 0; i < 10000 && !done; i++) /* the receiver is not driven */
        cr_assert_eq(holmes_test(s, &done, NULL), 0);
    if (!test_nics()->ops->rdma)
        cr_assert(!done, "the send completed before the receiver knew of it");
    cr_assert(!done || memcmp(from, to, sizeof from) == 0, "done, and the bytes are not there");
    if (done)
        cr_assert_eq(link_wait(r), 64);
    else
        cr_assert_eq(link_wait_both(s, r), 64);
    holmes_mr_dereg(l.send, fm);
    holmes_mr_dereg(l.recv, tm);
    link_close(&l);
}

Test(request, thirty_two_receives_are_out_at_once_and_complete_in_order)
{
    enum { N = HOLMES_MAX_REQUESTS, ROUNDS = 40, SIZE = 70000 };
    struct link l;
    uint8_t *from = malloc(N * SIZE), *to = malloc(N * SIZE);
    struct holmes_mr *fm, *tm;
    struct holmes_request *s[N], *r[N], *more;

    setenv("HOLMES_LANES", "2", 1);
    link_open(&l);
    cr_assert_eq(holmes_mr_reg(l.send, from, N * SIZE, &fm), 0);
    cr_assert_eq(holmes_mr_reg(l.recv, to, N * SIZE, &tm), 0);
    for (int round = 0; round < ROUNDS; round++) {
        void *buf = to;
        size_t len = 1;
        int tag = 0;

        for (int i = 0; i < N; i++)
            r[i] = link_irecv(l.recv, to + i * SIZE, SIZE, 3, tm);
        cr_assert_eq(holmes_irecv(l.recv, 1, &buf, &len, &tag, &tm, &more), -EAGAIN,
                     "a 33rd receive was taken");
        for (int i = 0; i < N; i++) {
            size_t size = (size_t)((i * 7919 + round * 104729) % SIZE);

            link_fill(from + i * SIZE, size, (unsigned)(round * N + i));
            s[i] = link_isend(l.send, from + i * SIZE, size, 3, fm);
        }
        for (int i = 0; i < N; i++) {
            size_t size = (size_t)((i * 7919 + round * 104729) % SIZE);

            cr_assert_eq(link_wait_both(s[i], r[i]), size);
            cr_assert(link_check(to + i * SIZE, size, (unsigned)(round * N + i)),
                      "message %d of round %d", i, round);
        }
    }
    holmes_mr_dereg(l.send, fm);
    holmes_mr_dereg(l.recv, tm);
    link_close(&l);
    free(from);
    free(to);
}

Test(request, group_is_filled_by_tag_and_equal_tags_in_order)
{
    struct link l;
    char from[8][16], to[8][16] = {{0}};
    void *bufs[8];
    size_t lens[8], got[8];
    int tags[8] = {5, 6, 5, 7, 8, 5, 9, 10};
    static const int order[8] = {9, 5, 10, 7, 5, 8, 6, 5};
    struct holmes_mr *fm, *tm, *tms[8];
    struct holmes_request *s[8], *r;
    bool done = false;

    link_open(&l);
    cr_assert_eq(holmes_mr_reg(l.send, from, sizeof from, &fm), 0);
    cr_assert_eq(holmes_mr_reg(l.recv, to, sizeof to, &tm), 0);
    for (int i = 0; i < 8; i++) {
        bufs[i] = to[i];
        lens[i] = 16;
        tms[i] = tm;
    }
    cr_assert_eq(holmes_irecv(l.recv, 8, bufs, lens, tags, tms, &r), 0);
    for (int i = 0; i < 8; i++) {
        snprintf(from[i], 16, "tag %d no %d", order[i], i);
        s[i] = link_isend(l.send, from[i], 1 + (size_t)i, order[i], fm);
    }
    while (!done)
        cr_assert_eq(holmes_test(r, &done, got), 0);
    for (int i = 0; i < 8; i++)
        link_wait(s[i]);
    /* Sends of tag 5 were numbers 1, 4 and 7: buffers 0, 2 and 5 in this order. */
    cr_assert(got[0] == 2 && got[2] == 5 && got[5] == 8);
    cr_assert(got[1] == 7 && got[3] == 4 && got[4] == 6 && got[6] == 1 && got[7] == 3);
    cr_assert(memcmp(to[2], "tag 5", 5) == 0 && memcmp(to[5], "tag 5 no", 8) == 0);
    holmes_mr_dereg(l.send, fm);
    holmes_mr_dereg(l.recv, tm);
    link_close(&l);
}

Test(request, send_with_another_tag_does_not_overtake_the_posted_group)
{
    struct link l;
    char from[4] = "abc", to[2][4];
    struct holmes_mr *fm, *tm;
    struct holmes_request *s[2], *r[2];

    setenv("HOLMES_EAGER", "0", 1);
    link_open(&l);
    cr_assert_eq(holmes_mr_reg(l.send, from, sizeof from, &fm), 0);
    cr_assert_eq(holmes_mr_reg(l.recv, to, sizeof to, &tm), 0);
    r[0] = link_irecv(l.recv, to[0], 4, 1, tm);
    r[1] = link_irecv(l.recv, to[1], 4, 2, tm);
    for (int i = 0; i < 2000; i++)
        cr_assert_eq(holmes_isend(l.send, from, 4, 2, fm, &s[1]), -EAGAIN);
    s[0] = link_isend(l.send, from, 3, 1, fm);
    s[1] = link_isend(l.send, from, 2, 2, fm);
    cr_assert_eq(link_wait_both(s[0], r[0]), 3);
    cr_assert_eq(link_wait_both(s[1], r[1]), 2);
    holmes_mr_dereg(l.send, fm);
    holmes_mr_dereg(l.recv, tm);
    link_close(&l);
}

Test(request, send_larger_than_its_receive_fails_both_ends)
{
    struct link l;
    char from[64], to[64];
    struct holmes_mr *fm, *tm;
    struct holmes_request *s, *r;
    int rc;

    link_capture_log();
    setenv("HOLMES_EAGER", "0", 1);
    link_open(&l);
    cr_assert_eq(holmes_mr_reg(l.send, from, 64, &fm), 0);
    cr_assert_eq(holmes_mr_reg(l.recv, to, 64, &tm), 0);
    r = link_irecv(l.recv, to, 32, 1, tm);
    while ((rc = holmes_isend(l.send, from, 33, 1, fm, &s)) == -EAGAIN)
        ;
    cr_assert_eq(rc, -EMSGSIZE);
    cr_assert_eq(link_wait_error(r), -EMSGSIZE, "the receiver must learn why");
    cr_assert_eq(link_log_count("send of 33 bytes (tag 1) meets a receive of 32 bytes"), 1);
    cr_assert_eq(holmes_isend(l.send, from, 1, 1, fm, &s), -EMSGSIZE, "the first error stays");
    holmes_mr_dereg(l.send, fm);
    holmes_mr_dereg(l.recv, tm);
    link_close(&l);
}

Test(request, zero_bytes_need_no_registration)
{
    struct link l;
    struct holmes_request *s, *r;

    link_open(&l);
    for (int i = 0; i < 600; i++) { /* around all slots and generations */
        r = link_irecv(l.recv, NULL, 0, 1, NULL);
        s = link_isend(l.send, NULL, 0, 1, NULL);
        cr_assert_eq(link_wait_both(s, r), 0);
    }
    link_close(&l);
}

Test(request, slots_and_generations_wrap_many_times)
{
    struct link l;
    uint64_t from, to;
    struct holmes_mr *fm, *tm;

    link_open(&l);
    cr_assert_eq(holmes_mr_reg(l.send, &from, sizeof from, &fm), 0);
    cr_assert_eq(holmes_mr_reg(l.recv, &to, sizeof to, &tm), 0);
    for (from = 1; from < 256 * 8 * 3; from++) {
        struct holmes_request *r = link_irecv(l.recv, &to, 8, 1, tm);
        struct holmes_request *s = link_isend(l.send, &from, 8, 1, fm);

        cr_assert_eq(link_wait_both(s, r), 8);
        cr_assert_eq(to, from);
    }
    holmes_mr_dereg(l.send, fm);
    holmes_mr_dereg(l.recv, tm);
    link_close(&l);
}

Test(request, buffer_outside_its_registration_is_refused)
{
    struct link l;
    char buf[64];
    void *p = buf + 1;
    size_t len = 64;
    int tag = 1;
    struct holmes_mr *fm, *tm;
    struct holmes_request *r;

    link_open(&l);
    cr_assert_eq(holmes_mr_reg(l.send, buf, 64, &fm), 0);
    cr_assert_eq(holmes_mr_reg(l.recv, buf, 64, &tm), 0);
    cr_assert_eq(holmes_isend(l.send, buf + 1, 64, 1, fm, &r), -EINVAL);
    cr_assert_eq(holmes_isend(l.send, buf, SIZE_MAX, 1, fm, &r), -EINVAL);
    cr_assert_eq(holmes_isend(l.send, buf, 1, 1, NULL, &r), -EINVAL);
    cr_assert_eq(holmes_isend(l.recv, buf, 1, 1, tm, &r), -EINVAL);
    cr_assert_eq(holmes_irecv(l.recv, 1, &p, &len, &tag, &tm, &r), -EINVAL);
    cr_assert_eq(holmes_irecv(l.recv, 0, &p, &len, &tag, &tm, &r), -EINVAL);
    cr_assert_eq(holmes_irecv(l.recv, 9, &p, &len, &tag, &tm, &r), -EINVAL);
    cr_assert_eq(holmes_irecv(l.send, 1, &p, &len, &tag, &fm, &r), -EINVAL);
    holmes_mr_dereg(l.send, fm);
    holmes_mr_dereg(l.recv, tm);
    link_close(&l);
}
