/* Sends that are done before the receiver has them: small ones, which go ahead of their
 * clear-to-sends, and those over a single stream. Over a wire that has none of that the same
 * messages wait, and these claims do not apply: meson runs this over sockets only. */
#include <criterion/criterion.h>
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "clock.h"
#include "link.h"
#include "transport/conn.h"

#define SIZE   (64u << 10)
#define RECVS  8
#define CREDIT ((int)PROTO_EAGERS)

struct ends {
    struct link l;
    uint8_t from[SIZE], to[RECVS][SIZE];
    struct holmes_mr *fm, *tm;
};

static struct ends *open_ends(void)
{
    struct ends *e = calloc(1, sizeof *e);

    cr_assert(e);
    link_open(&e->l);
    cr_assert_eq(holmes_mr_reg(e->l.send, e->from, sizeof e->from, &e->fm), 0);
    cr_assert_eq(holmes_mr_reg(e->l.recv, e->to, sizeof e->to, &e->tm), 0);
    return e;
}

static void close_ends(struct ends *e)
{
    if (e->l.send)
        holmes_mr_dereg(e->l.send, e->fm);
    if (e->l.recv)
        holmes_mr_dereg(e->l.recv, e->tm);
    link_close(&e->l);
    free(e);
}

/* A send that is taken at once and done at its first test, with no receive anywhere. */
static void send_ahead(struct ends *e, size_t len, int tag, unsigned seed)
{
    struct holmes_request *s;
    bool done = false;

    link_fill(e->from, len, seed);
    cr_assert_eq(holmes_isend(e->l.send, e->from, len, tag, e->fm, &s), 0);
    cr_assert_eq(holmes_test(s, &done, NULL), 0);
    cr_assert(done);
    memset(e->from, 0xa5, len); /* the caller's again */
}

static struct holmes_request *post(struct ends *e, int i, size_t room, int tag)
{
    memset(e->to[i], 0xee, SIZE);
    return link_irecv(e->l.recv, e->to[i], room, tag, e->tm);
}

static void expect(struct ends *e, struct holmes_request *r, int i, size_t len, unsigned seed)
{
    cr_assert_eq(link_wait(r), len);
    cr_assert(link_check(e->to[i], len, seed), "message of %zu bytes changed", len);
    cr_assert_eq(e->to[i][len], 0xee, "a byte behind it was written");
}

/* Drives the sender, as its caller would who waits for room. */
static struct holmes_request *send_when_taken(struct ends *e, size_t len, int tag, unsigned seed)
{
    link_fill(e->from, len, seed);
    return link_isend(e->l.send, e->from, len, tag, e->fm);
}

Test(eager, goes_ahead_of_its_receive_and_is_done_at_once)
{
    static const size_t sizes[] = {0, 1, 8, 2047, 2048};
    struct ends *e = open_ends();

    for (unsigned i = 0; i < 5; i++) {
        send_ahead(e, sizes[i], 3, i);
        expect(e, post(e, 0, sizes[i] + i % 2 * 100, 3), 0, sizes[i], i);
    }
    close_ends(e);
}

Test(eager, one_byte_more_waits)
{
    struct ends *e = open_ends();
    struct holmes_request *s, *r;

    for (int i = 0; i < 1000; i++)
        cr_assert_eq(holmes_isend(e->l.send, e->from, 2049, 1, e->fm, &s), -EAGAIN);
    r = post(e, 0, 2049, 1);
    s = send_when_taken(e, 2049, 1, 9);
    cr_assert_eq(link_wait_both(s, r), 2049);
    close_ends(e);
}

Test(eager, as_many_as_there_are_places_then_the_rest_waits)
{
    struct ends *e = open_ends();
    struct holmes_request *s, *r;

    for (int round = 0; round < 5; round++) {
        for (int i = 0; i < CREDIT; i++)
            send_ahead(e, 100, 1, (unsigned)(round * CREDIT + i));
        for (int i = 0; i < 1000; i++)
            cr_assert_eq(holmes_isend(e->l.send, e->from, 100, 1, e->fm, &s), -EAGAIN);
        for (int i = 0; i < CREDIT; i++)
            expect(e, post(e, 0, 100, 1), 0, 100, (unsigned)(round * CREDIT + i));
        /* The places are free once the sender hears that their messages are counted. */
        s = send_when_taken(e, 100, 1, 77);
        expect(e, post(e, 1, 100, 1), 1, 100, 77);
        link_wait(s);
        r = post(e, 1, 4000, 1);
        s = send_when_taken(e, 4000, 1, 78);
        cr_assert_eq(link_wait_both(s, r), 4000);
    }
    close_ends(e);
}

Test(eager, fills_a_group_by_tag_and_equal_tags_in_order)
{
    struct ends *e = open_ends();
    void *bufs[3] = {e->to[0], e->to[1], e->to[2]};
    size_t lens[3] = {64, 64, 64}, got[3];
    int tags[3] = {5, 6, 5};
    struct holmes_mr *mrs[3] = {e->tm, e->tm, e->tm};
    struct holmes_request *r;
    bool done = false;
    uint64_t deadline = holmes_deadline_ms(LINK_TIMEOUT_MS);

    send_ahead(e, 10, 5, 1);
    send_ahead(e, 11, 5, 2);
    send_ahead(e, 12, 6, 3);
    cr_assert_eq(holmes_irecv(e->l.recv, 3, bufs, lens, tags, mrs, &r), 0);
    while (!done) {
        cr_assert_eq(holmes_test(r, &done, got), 0);
        cr_assert(!holmes_deadline_passed(deadline));
    }
    cr_assert(got[0] == 10 && got[1] == 12 && got[2] == 11);
    cr_assert(link_check(e->to[0], 10, 1) && link_check(e->to[1], 12, 3) &&
              link_check(e->to[2], 11, 2));
    close_ends(e);
}

/* A tag that nobody has asked for yet holds up no other. */
Test(eager, waits_for_its_tag_without_holding_up_others)
{
    struct ends *e = open_ends();
    struct holmes_request *s, *r;

    send_ahead(e, 10, 2, 1);
    r = post(e, 0, SIZE, 1);
    s = send_when_taken(e, 50000, 1, 2); /* a large one of the tag that was asked for */
    cr_assert_eq(link_wait_both(s, r), 50000);
    cr_assert(link_check(e->to[0], 50000, 2));
    r = post(e, 1, 20, 1);
    s = send_when_taken(e, 20, 1, 3); /* and a small one */
    cr_assert_eq(link_wait_both(s, r), 20);
    expect(e, post(e, 2, 10, 2), 2, 10, 1);
    close_ends(e);
}

Test(eager, large_sends_of_a_tag_keep_their_place_behind_it)
{
    struct ends *e = open_ends();
    struct holmes_request *s, *r[2];

    for (unsigned i = 0; i < 50; i++) {
        send_ahead(e, 8, 1, i);
        r[0] = post(e, 0, SIZE - 1, 1);
        r[1] = post(e, 1, SIZE - 1, 1);
        s = send_when_taken(e, 30000, 1, 1000 + i);
        cr_assert_eq(link_wait_both(s, r[1]), 30000);
        cr_assert(link_check(e->to[1], 30000, 1000 + i));
        expect(e, r[0], 0, 8, i);
    }
    close_ends(e);
}

Test(eager, larger_than_its_receive_fails_both_ends)
{
    struct ends *e = open_ends();
    struct holmes_request *s, *r;
    uint64_t deadline = holmes_deadline_ms(LINK_TIMEOUT_MS);
    int rc;

    link_capture_log();
    send_ahead(e, 33, 1, 1);
    rc = holmes_irecv(e->l.recv, 1, (void *[]){e->to[0]}, (size_t[]){32}, (int[]){1},
                      (struct holmes_mr *[]){e->tm}, &r);
    cr_assert_eq(rc == 0 ? link_wait_error(r) : rc, -EMSGSIZE);
    while ((rc = holmes_isend(e->l.send, e->from, SIZE, 1, e->fm, &s)) == -EAGAIN)
        cr_assert(!holmes_deadline_passed(deadline));
    cr_assert_eq(rc, -EMSGSIZE, "the sender learns why: %s", strerror(-rc));
    cr_assert_geq(link_log_count("send of 33 bytes (tag 1) meets a receive of 32 bytes"), 1);
    close_ends(e);
}

/* Done is done: a sender that closes takes nothing back. */
Test(eager, arrives_although_its_sender_closes_at_once)
{
    for (unsigned i = 0; i < 20; i++) {
        struct ends *e = open_ends();
        struct holmes_request *r;

        /* A clear-to-send that the sender never reads is what makes closing a reset. */
        r = post(e, 0, 2048, 1);
        for (int n = 0; n < 8; n++)
            send_ahead(e, 2048, 1, i + (unsigned)n);
        holmes_mr_dereg(e->l.send, e->fm);
        holmes_conn_close(e->l.send);
        e->l.send = NULL;
        expect(e, r, 0, 2048, i);
        for (int n = 1; n < 8; n++)
            expect(e, post(e, n % RECVS, 2048, 1), n % RECVS, 2048, i + (unsigned)n);
        close_ends(e);
    }
}

/* ---- any size over a single stream ---- */

Test(eager, send_over_one_stream_is_done_while_its_receiver_sleeps)
{
    struct ends *e = open_ends();
    struct holmes_request *r = post(e, 0, SIZE, 1), *s = send_when_taken(e, SIZE - 1, 1, 7);

    link_wait(s);
    memset(e->from, 0xa5, SIZE); /* the caller's again */
    expect(e, r, 0, SIZE - 1, 7);
    close_ends(e);
}

#define LARGE ((size_t)16 << 20) /* no socket buffer takes so much */
#define TOLD  8                  /* clear-to-sends that leave at once */

/* Clear-to-sends that the sender never reads are what makes closing a reset. */
static void post_unread(struct ends *e)
{
    for (int i = 0; i < TOLD; i++)
        post(e, i % RECVS, SIZE, 2);
}

static void *closer_main(void *conn)
{
    holmes_conn_close(conn);
    return NULL;
}

/* Done, and closed, while the receiver is still at it. */
static void send_and_leave(struct ends *e, uint8_t *from, uint8_t *to, unsigned seed)
{
    struct holmes_request *r, *s;
    struct holmes_mr *fm, *tm;
    bool sent = false, got = false;
    pthread_t closer;
    size_t len = 0;

    link_fill(from, LARGE, seed);
    memset(to, 0, LARGE);
    cr_assert_eq(holmes_mr_reg(e->l.send, from, LARGE, &fm), 0);
    cr_assert_eq(holmes_mr_reg(e->l.recv, to, LARGE, &tm), 0);
    r = link_irecv(e->l.recv, to, LARGE, 1, tm);
    s = link_isend(e->l.send, from, LARGE, 1, fm);
    while (!sent) {
        cr_assert_eq(holmes_test(s, &sent, NULL), 0);
        if (!sent && !got)
            cr_assert_eq(holmes_test(r, &got, &len), 0);
    }
    memset(from, 0xa5, LARGE);
    post_unread(e);
    holmes_mr_dereg(e->l.send, fm);
    cr_assert_eq(pthread_create(&closer, NULL, closer_main, e->l.send), 0);
    e->l.send = NULL;
    if (!got)
        len = link_wait(r);
    cr_assert_eq(len, LARGE);
    cr_assert(link_check(to, LARGE, seed));
    pthread_join(closer, NULL);
    holmes_mr_dereg(e->l.recv, tm);
}

Test(eager, large_message_over_one_stream_arrives_although_its_sender_closes)
{
    uint8_t *from = malloc(LARGE), *to = malloc(LARGE);

    cr_assert(from && to);
    for (unsigned i = 0; i < 8; i++) {
        struct ends *e = open_ends();

        send_and_leave(e, from, to, i);
        close_ends(e);
    }
    free(from);
    free(to);
}

#define MANY (HOLMES_MAX_REQUESTS - TOLD)

/* As many as the kernels take; their receiver looks after the sender is gone. */
Test(eager, what_was_done_arrives_at_a_receiver_that_slept)
{
    struct ends *e = open_ends();
    struct holmes_request *r[MANY], *s;
    uint8_t *to = malloc(MANY * (size_t)SIZE);
    struct holmes_mr *mr;
    bool done = true;
    int sent = 0;

    cr_assert(to);
    cr_assert_eq(holmes_mr_reg(e->l.recv, to, MANY * (size_t)SIZE, &mr), 0);
    for (int i = 0; i < MANY; i++)
        r[i] = link_irecv(e->l.recv, to + i * (size_t)SIZE, SIZE, 1, mr);
    while (done && sent < MANY) {
        s = send_when_taken(e, SIZE, 1, (unsigned)sent);
        done = false;
        for (int i = 0; i < 10000 && !done; i++)
            cr_assert_eq(holmes_test(s, &done, NULL), 0);
        sent += done;
    }
    cr_assert(sent > 0);
    post_unread(e);
    holmes_conn_close(e->l.send);
    e->l.send = NULL;
    for (int i = 0; i < sent; i++) {
        cr_assert_eq(link_wait(r[i]), SIZE);
        cr_assert(link_check(to + i * (size_t)SIZE, SIZE, (unsigned)i), "message %d", i);
    }
    holmes_mr_dereg(e->l.recv, mr);
    close_ends(e);
    free(to);
}

Test(eager, closing_waits_for_a_receiver_that_takes_nothing_but_a_moment)
{
    struct ends *e = open_ends();
    uint8_t *large = calloc(1, LARGE);
    struct holmes_mr *from, *to;
    uint64_t start;

    cr_assert(large);
    cr_assert_eq(holmes_mr_reg(e->l.send, large, LARGE, &from), 0);
    cr_assert_eq(holmes_mr_reg(e->l.recv, large, LARGE, &to), 0);
    link_irecv(e->l.recv, large, LARGE, 1, to);
    link_isend(e->l.send, large, LARGE, 1, from);
    start = holmes_now_ns();
    holmes_conn_close(e->l.send);
    e->l.send = NULL;
    cr_assert_lt(holmes_now_ns() - start, patience_ns(2000));
    holmes_mr_dereg(e->l.recv, to);
    close_ends(e);
    free(large);
}

Test(eager, memory_of_a_receive_that_was_filled_early_may_go)
{
    struct ends *e = open_ends();
    struct holmes_request *s, *r;

    for (unsigned i = 0; i < 200; i++) {
        uint8_t *mine = malloc(64);
        struct holmes_mr *mr;

        send_ahead(e, 64, 1, i);
        cr_assert_eq(holmes_mr_reg(e->l.recv, mine, 64, &mr), 0);
        r = link_irecv(e->l.recv, mine, 64, 1, mr);
        cr_assert_eq(link_wait(r), 64);
        cr_assert(link_check(mine, 64, i));
        cr_assert_eq(holmes_mr_dereg(e->l.recv, mr), 0);
        free(mine);
    }
    r = post(e, 0, SIZE - 1, 1);
    s = send_when_taken(e, 5000, 1, 1);
    cr_assert_eq(link_wait_both(s, r), 5000);
    close_ends(e);
}

/* ---- anything goes, against a model of what each receive must get ---- */

#define SOAK  4000
#define AHEAD 24

struct soak {
    struct ends *e;
    uint32_t random;
    size_t len[SOAK];
    struct holmes_request *s[SOAK], *r[SOAK];
    uint8_t *from, *to;
    struct holmes_mr *fm, *tm;
    int sent, sent_done, posted, received;
};

static uint32_t draw(struct soak *k, uint32_t below)
{
    k->random = k->random * 1664525u + 1013904223u;
    return (k->random >> 8) % below;
}

static void soak_send(struct soak *k)
{
    int i = k->sent;
    uint8_t *buf = k->from + (size_t)(i % AHEAD) * 8192;

    if (i == SOAK || i - k->sent_done >= AHEAD)
        return;
    link_fill(buf, k->len[i], (unsigned)i);
    if (holmes_isend(k->e->l.send, buf, k->len[i], 1, k->fm, &k->s[i]) == 0)
        k->sent++;
}

static void soak_receive(struct soak *k)
{
    int i = k->posted;

    if (i == SOAK || i - k->received >= AHEAD)
        return;
    k->r[i] = link_irecv(k->e->l.recv, k->to + (size_t)(i % AHEAD) * 8192, 8192, 1, k->tm);
    k->posted++;
}

static void soak_test(struct soak *k)
{
    bool done = false;
    size_t len;

    if (k->sent_done < k->sent) {
        cr_assert_eq(holmes_test(k->s[k->sent_done], &done, NULL), 0);
        k->sent_done += done;
    }
    done = false;
    if (k->received < k->posted) {
        cr_assert_eq(holmes_test(k->r[k->received], &done, &len), 0);
        if (done) {
            cr_assert_eq(len, k->len[k->received], "message %d", k->received);
            cr_assert(link_check(k->to + (size_t)(k->received % AHEAD) * 8192, len,
                                 (unsigned)k->received),
                      "message %d changed", k->received);
            k->received++;
        }
    }
}

static void soak(unsigned seed, const char *hold_us)
{
    struct soak *k = calloc(1, sizeof *k);
    uint64_t deadline = holmes_deadline_ms(3 * LINK_TIMEOUT_MS);

    cr_assert(k);
    setenv("HOLMES_HOLD_US", hold_us, 1);
    k->random = seed;
    k->from = calloc(AHEAD, 8192);
    k->to = calloc(AHEAD, 8192);
    k->e = open_ends();
    cr_assert_eq(holmes_mr_reg(k->e->l.send, k->from, AHEAD * 8192, &k->fm), 0);
    cr_assert_eq(holmes_mr_reg(k->e->l.recv, k->to, AHEAD * 8192, &k->tm), 0);
    for (int i = 0; i < SOAK; i++)
        k->len[i] = draw(k, 3) ? draw(k, 100) : draw(k, 8192);
    while (k->received < SOAK || k->sent_done < SOAK) {
        for (uint32_t n = draw(k, 6); n > 0; n--)
            soak_send(k);
        for (uint32_t n = draw(k, 6); n > 0; n--)
            soak_receive(k);
        for (uint32_t n = draw(k, 6); n > 0; n--)
            soak_test(k);
        cr_assert(!holmes_deadline_passed(deadline), "%d of %d", k->received, SOAK);
    }
    holmes_mr_dereg(k->e->l.send, k->fm);
    holmes_mr_dereg(k->e->l.recv, k->tm);
    close_ends(k->e);
    free(k->from);
    free(k->to);
    free(k);
}

Test(eager, mixed_with_large_messages_keeps_order_and_bytes)
{
    soak(1, "500");
    soak(2, "0");
}
