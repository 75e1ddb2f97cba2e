/* Streams that die under a connection of several: what they carried comes by the others, once, and
 * whole. Both ends are in this process, so that a test can say when a stream is cut. */
#include <criterion/criterion.h>
#include <errno.h>
#include <linux/filter.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "clock.h"
#include "link.h"
#include "transport/conn.h"
#include "transport/sock/sock.h"

#define STREAMS 4
#define SIZE    ((size_t)1 << 20)
#define WINDOW  4
/* A stream is given up 3 s after its path dies. */
#define SILENT_MS (5000 + LINK_TIMEOUT_MS)

struct move {
    uint8_t *from, *to;
    struct holmes_mr *from_mr, *to_mr;
    struct holmes_request *send, *recv;
    size_t len;
    unsigned seed;
};

static struct link l;
static struct move moves[WINDOW];
static unsigned posted;

static struct wire_lane *lane_of(const struct holmes_conn *c)
{
    cr_assert_eq(c->nlanes, 1);
    return c->lanes[0];
}

/* A thread of the transport's may be at a connection whenever its lock is free. */
static unsigned lost_of(struct holmes_conn *c)
{
    unsigned lost;

    pthread_mutex_lock(&c->lock);
    lost = lane_of(c)->lost;
    pthread_mutex_unlock(&c->lock);
    return lost;
}

static void open_streams(void)
{
    setenv("HOLMES_LANES", "4", 1);
    link_open(&l);
    cr_assert_eq(lane_of(l.send)->nstreams, STREAMS);
    for (int i = 0; i < STREAMS; i++) /* so that a piece takes several looks */
        cr_assert_eq(setsockopt(lane_of(l.send)->streams[i].fd, SOL_SOCKET, SO_SNDBUF,
                                &(int){32 * 1024}, sizeof(int)),
                     0);
    for (int i = 0; i < WINDOW; i++) {
        struct move *m = &moves[i];

        m->from = malloc(SIZE);
        m->to = malloc(SIZE);
        cr_assert(m->from && m->to);
        cr_assert_eq(holmes_mr_reg(l.send, m->from, SIZE, &m->from_mr), 0);
        cr_assert_eq(holmes_mr_reg(l.recv, m->to, SIZE, &m->to_mr), 0);
    }
}

static void close_streams(void)
{
    for (int i = 0; i < WINDOW; i++) {
        holmes_mr_dereg(l.send, moves[i].from_mr);
        holmes_mr_dereg(l.recv, moves[i].to_mr);
        free(moves[i].from);
        free(moves[i].to);
    }
    link_close(&l);
}

static bool is_under_way(const struct move *m)
{
    return m->send || m->recv;
}

static void test_one(struct holmes_request **r, size_t len)
{
    size_t size = 0;
    bool done = false;
    int rc;

    if (!*r)
        return;
    rc = holmes_test(*r, &done, &size);
    cr_assert_eq(rc, 0, "%d", rc);
    if (done) {
        cr_assert_eq(size, len);
        *r = NULL;
    }
}

/* A look of both ends at what is under way. What arrived is checked as soon as the receiver is
 * told, and what was sent belongs to its user again as soon as the sender is. */
static void turn(void)
{
    for (int i = 0; i < WINDOW; i++) {
        struct move *m = &moves[i];
        bool sending = m->send, receiving = m->recv;

        test_one(&m->send, m->len);
        if (sending && !m->send)
            memset(m->from, 0xee, m->len);
        test_one(&m->recv, m->len);
        if (receiving && !m->recv)
            cr_assert(link_check(m->to, m->len, m->seed), "message %u", m->seed);
    }
}

/* The receiver looks too: a clear-to-send may be lost with its stream. */
static void post(struct move *m, size_t len)
{
    uint64_t deadline = holmes_deadline_ms(LINK_TIMEOUT_MS);
    int rc;

    m->len = len;
    m->seed = ++posted;
    link_fill(m->from, len, m->seed);
    memset(m->to, 0, len);
    m->recv = link_irecv(l.recv, m->to, len, 1, m->to_mr);
    while ((rc = holmes_isend(l.send, m->from, len, 1, m->from_mr, &m->send)) == -EAGAIN) {
        cr_assert(!holmes_deadline_passed(deadline), "a send of %zu bytes was never taken", len);
        turn();
    }
    cr_assert_eq(rc, 0, "isend: %s", strerror(-rc));
}

static bool all_done(void)
{
    for (int i = 0; i < WINDOW; i++)
        if (is_under_way(&moves[i]))
            return false;
    return true;
}

static void finish(void)
{
    uint64_t deadline = holmes_deadline_ms(SILENT_MS);

    while (!all_done()) {
        cr_assert(!holmes_deadline_passed(deadline));
        turn();
    }
}

/* The kernel ends the connection; the peer is told by a reset. */
static void cut(struct holmes_conn *c, int stream)
{
    struct sockaddr nobody = {.sa_family = AF_UNSPEC};

    pthread_mutex_lock(&c->lock);
    cr_assert_eq(connect(lane_of(c)->streams[stream].fd, &nobody, sizeof nobody), 0);
    pthread_mutex_unlock(&c->lock);
}

/* Nothing of what arrives reaches the socket. */
static void deafen_fd(int fd)
{
    struct sock_filter nothing = {.code = BPF_RET | BPF_K};
    struct sock_fprog program = {.len = 1, .filter = &nothing};

    cr_assert_eq(setsockopt(fd, SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof program), 0);
}

static void deafen(struct holmes_conn *c, int stream)
{
    pthread_mutex_lock(&c->lock);
    deafen_fd(lane_of(c)->streams[stream].fd);
    pthread_mutex_unlock(&c->lock);
}

static void deafen_handshake(struct holmes_conn *c)
{
    pthread_mutex_lock(&c->lock);
    deafen_fd(c->oob.fd);
    pthread_mutex_unlock(&c->lock);
}

static void expect_lost(unsigned mask)
{
    uint64_t deadline = holmes_deadline_ms(LINK_TIMEOUT_MS);

    while (lost_of(l.send) != mask || lost_of(l.recv) != mask) {
        cr_assert(!holmes_deadline_passed(deadline), "sender lost %x, receiver %x", lost_of(l.send),
                  lost_of(l.recv));
        post(&moves[0], 1000);
        finish();
    }
}

/* Of a piece of several. */
static bool is_halfway(int i)
{
    const struct sock_stream *s = &lane_of(l.recv)->streams[i];
    bool halfway;

    pthread_mutex_lock(&l.recv->lock);
    halfway = s->left != 0 && s->left != s->head.len && s->head.len != s->head.write_len;
    pthread_mutex_unlock(&l.recv->lock);
    return halfway;
}

/* Keeps messages moving until a piece of several is halfway through stream i. */
static void go_on_until_halfway(int i)
{
    uint64_t deadline = holmes_deadline_ms(LINK_TIMEOUT_MS);

    do {
        cr_assert(!holmes_deadline_passed(deadline));
        turn();
        for (int k = 0; k < WINDOW; k++)
            if (!is_under_way(&moves[k]))
                post(&moves[k], SIZE - (size_t)k * 1000);
    } while (!is_halfway(i));
}

TestSuite(lost, .init = open_streams, .fini = close_streams);

Test(lost, cut_by_the_sender_in_the_middle_of_a_piece)
{
    for (int i = 0; i < STREAMS - 1; i++) {
        go_on_until_halfway(i);
        cut(l.send, i);
        finish();
        expect_lost((2u << i) - 1);
    }
    go_on_until_halfway(STREAMS - 1);
    finish();
}

Test(lost, cut_by_the_receiver_in_the_middle_of_a_piece)
{
    for (int i = STREAMS - 1; i > 0; i--) {
        go_on_until_halfway(i);
        cut(l.recv, i);
        finish();
        expect_lost(0xf & ~((1u << i) - 1));
    }
    go_on_until_halfway(0);
    finish();
}

Test(lost, sizes_of_all_kinds_while_streams_die)
{
    static const size_t sizes[] = {0, 1, 64, 2048, 2049, 65536, 70000, 300000, 1 << 20, 1000001};
    unsigned seed = 1;

    for (int i = 0; i < 300; i++) {
        struct move *m = &moves[i % WINDOW];
        uint64_t deadline = holmes_deadline_ms(LINK_TIMEOUT_MS);

        while (is_under_way(m)) {
            cr_assert(!holmes_deadline_passed(deadline));
            turn();
        }
        seed = seed * 1103515245 + 12345;
        post(m, sizes[seed / 65536 % (sizeof sizes / sizeof *sizes)]);
        if (i % 100 == 50)
            cut(i % 200 == 50 ? l.send : l.recv, i / 100);
    }
    finish();
    expect_lost(7);
}

/* Only the sender's kernel finds out, and slowly: no acknowledgements. */
Test(lost, path_that_dies_in_silence)
{
    link_capture_log();
    go_on_until_halfway(2);
    deafen(l.send, 2);
    deafen(l.recv, 2);
    finish();
    for (uint64_t deadline = holmes_deadline_ms(SILENT_MS); lost_of(l.send) == 0;) {
        cr_assert(!holmes_deadline_passed(deadline));
        for (int k = 0; k < WINDOW; k++)
            post(&moves[k], SIZE);
        finish();
    }
    expect_lost(4);
    for (uint64_t deadline = holmes_deadline_ms(LINK_TIMEOUT_MS); link_log_count("WARN") < 2;) {
        cr_assert(!holmes_deadline_passed(deadline));
        post(&moves[0], 1000);
        finish();
    }
    cr_assert_eq(link_log_count("WARN"), 2, "one line at each end");
    cr_assert_eq(link_log_count("goes on with 3 of 4"), 2);
}

/* What a stopped peer does not take looks like a dead path, but for the window that it closes. */
Test(lost, peer_that_does_not_look_loses_no_stream)
{
    struct move *m = &moves[0];
    uint64_t deadline = holmes_deadline_ms(4000); /* the kernel has probed that window by then */

    post(m, SIZE);
    while (!holmes_deadline_passed(deadline))
        test_one(&m->send, m->len);
    cr_assert_eq(lost_of(l.send), 0);
    finish();
    cr_assert_eq(lost_of(l.recv), 0);
}

Test(lost, all_of_them_end_the_connection)
{
    struct move *m = &moves[0];

    post(m, SIZE);
    for (int i = 0; i < STREAMS; i++)
        cut(l.send, i);
    cr_assert_neq(link_wait_error(m->send), 0);
    cr_assert_neq(link_wait_error(m->recv), 0);
}

/* More than so many writes of the sender, and all of them. */
static bool has_left(uint32_t posted_before)
{
    const struct wire_lane *lane = lane_of(l.send);
    bool left;

    pthread_mutex_lock(&l.send->lock);
    left = lane->out.waiting == 0 && lane->out.posted != posted_before;
    for (int i = 0; i < STREAMS; i++)
        left = left && lane->streams[i].first == lane->streams[i].end;
    pthread_mutex_unlock(&l.send->lock);
    return left;
}

static uint32_t posted_of(struct holmes_conn *c)
{
    uint32_t n;

    pthread_mutex_lock(&c->lock);
    n = lane_of(c)->out.posted;
    pthread_mutex_unlock(&c->lock);
    return n;
}

/* A message goes until all of it has left the sender, who looks no more until the receiver has it.
 */
static void bring(struct move *m)
{
    uint64_t deadline = holmes_deadline_ms(LINK_TIMEOUT_MS);
    uint32_t before = posted_of(l.send);

    post(m, SIZE);
    while (!has_left(before)) {
        cr_assert(!holmes_deadline_passed(deadline));
        test_one(&m->recv, m->len);
        test_one(&m->send, m->len);
    }
}

static void wait_received(struct move *m)
{
    uint64_t deadline = holmes_deadline_ms(LINK_TIMEOUT_MS);

    while (m->recv) {
        cr_assert(!holmes_deadline_passed(deadline));
        test_one(&m->recv, m->len);
    }
    cr_assert(link_check(m->to, m->len, m->seed));
}

/* What had arrived, word of which was lost with its streams, is sent again, and dropped. */
Test(lost, message_that_is_complete_is_not_written_again)
{
    struct move *m = &moves[0];

    bring(m);
    wait_received(m);
    memset(m->to, 0x77, m->len);
    for (int i = 0; i < STREAMS - 1; i++) /* drops what its kernel has for us, too */
        cut(l.send, i);
    post(&moves[1], SIZE);
    finish();
    cr_assert(has_left(0));
    for (size_t i = 0; i < m->len; i++)
        cr_assert_eq(m->to[i], 0x77, "byte %zu", i);
    expect_lost(7);
}

/* The receiver has all that it asked for and looks no more. (It may have told before the streams
 * are deaf, as its connection is looked after without it: then this shows nothing, but most times.)
 */
Test(lost, word_that_does_not_get_through_is_told_again)
{
    struct move *m = &moves[0];
    uint64_t deadline = holmes_deadline_ms(SILENT_MS);

    bring(m);
    for (int i = 0; i < STREAMS - 1; i++)
        deafen(l.send, i);
    wait_received(m);
    while (m->send) {
        cr_assert(!holmes_deadline_passed(deadline));
        test_one(&m->send, m->len);
    }
}

static void open_impatient(void)
{
    char seconds[12];

    /* A loaded machine must not take a stream that nobody gets to read for a dead one. */
    snprintf(seconds, sizeof seconds, "%d", patience_ms(1));
    setenv("HOLMES_PEER_TIMEOUT", seconds, 1);
    open_streams();
}

TestSuite(impatient, .init = open_impatient, .fini = close_streams);

/* The handshake socket goes where the first NIC goes. */
Test(impatient, handshake_socket_that_dies_in_silence)
{
    uint64_t deadline = holmes_deadline_ms(SILENT_MS);

    link_capture_log();
    deafen_handshake(l.send);
    deafen_handshake(l.recv);
    while (link_log_count("its streams go on") < 2) {
        cr_assert(!holmes_deadline_passed(deadline));
        post(&moves[0], 1000);
        finish();
    }
    for (int k = 0; k < WINDOW; k++)
        post(&moves[k], SIZE);
    finish();
}
