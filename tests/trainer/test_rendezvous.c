/* The rendezvous between threads of one process, between processes, and against strangers. */
#include <arpa/inet.h>
#include <criterion/criterion.h>
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "../support/patience.h"
#include "clock.h"
#include "ranks.h"
#include "rdv_wire.h"
#include "self.h"

#define SECRET "correct horse"

static struct holmes_rdv_server *serve(int nranks)
{
    struct holmes_rdv_server *s;

    cr_assert_eq(holmes_rdv_serve("127.0.0.1", 0, SECRET, nranks, &s), 0);
    cr_assert_neq(holmes_rdv_port(s), 0);
    return s;
}

static struct holmes_rdv *join(struct holmes_rdv_server *s, int rank, int nranks)
{
    struct holmes_rdv *r;
    int rc = holmes_rdv_connect("127.0.0.1", holmes_rdv_port(s), SECRET, rank, nranks, 5000, &r);

    cr_assert_eq(rc, 0, "%s", holmes_rdv_reason(NULL));
    return r;
}

/* ---- keys ---- */

Test(rendezvous, a_value_reaches_another_rank_and_is_set_once)
{
    struct holmes_rdv_server *s = serve(2);
    struct holmes_rdv *a = join(s, 0, 2), *b = join(s, 1, 2);
    char got[16];
    size_t len = 0;

    cr_assert_eq(holmes_rdv_put(a, "key", "value", 5), 0);
    cr_assert_eq(holmes_rdv_get(b, "key", got, sizeof got, &len, 1000), 0);
    cr_assert_eq(len, 5);
    cr_assert_arr_eq(got, "value", 5);
    cr_assert_eq(holmes_rdv_put(b, "key", "other", 5), -EEXIST);
    cr_assert_eq(holmes_rdv_put(b, "empty", NULL, 0), 0);
    cr_assert_eq(holmes_rdv_get(a, "empty", got, sizeof got, &len, 0), 0);
    cr_assert_eq(len, 0);
    holmes_rdv_leave(a);
    holmes_rdv_leave(b);
    holmes_rdv_stop(s);
}

Test(rendezvous, sizes_are_bounded_and_said)
{
    struct holmes_rdv_server *s = serve(1);
    struct holmes_rdv *r = join(s, 0, 1);
    char *big = calloc(1, HOLMES_RDV_VALUE_MAX + 1), *got = malloc(HOLMES_RDV_VALUE_MAX);
    char long_key[HOLMES_RDV_KEY_MAX + 2];
    size_t len;

    memset(long_key, 'k', sizeof long_key - 1);
    long_key[sizeof long_key - 1] = '\0';
    big[HOLMES_RDV_VALUE_MAX - 1] = 'z';
    cr_assert_eq(holmes_rdv_put(r, "big", big, HOLMES_RDV_VALUE_MAX), 0);
    cr_assert_eq(holmes_rdv_get(r, "big", got, HOLMES_RDV_VALUE_MAX, &len, 0), 0);
    cr_assert_eq(len, HOLMES_RDV_VALUE_MAX);
    cr_assert_eq(memcmp(big, got, len), 0);
    cr_assert_eq(holmes_rdv_get(r, "big", got, 100, &len, 0), -EMSGSIZE);
    cr_assert(strstr(holmes_rdv_reason(r), "65536"), "%s", holmes_rdv_reason(r));
    cr_assert_eq(holmes_rdv_put(r, "bigger", big, HOLMES_RDV_VALUE_MAX + 1), -EMSGSIZE);
    cr_assert_eq(holmes_rdv_put(r, long_key, "", 0), -EINVAL);
    cr_assert_eq(holmes_rdv_put(r, long_key + 1, "", 0), 0);
    cr_assert_eq(holmes_rdv_put(r, "", "", 0), -EINVAL);
    free(got);
    free(big);
    holmes_rdv_leave(r);
    holmes_rdv_stop(s);
}

static void *put_later(void *arg)
{
    struct holmes_rdv *r = arg;
    char byte;
    size_t len;

    holmes_rdv_get(r, "nothing", &byte, 1, &len, 100);
    cr_assert_eq(holmes_rdv_put(r, "later", "x", 1), 0);
    return NULL;
}

Test(rendezvous, get_waits_for_the_key)
{
    struct holmes_rdv_server *s = serve(2);
    struct holmes_rdv *a = join(s, 0, 2), *b = join(s, 1, 2);
    pthread_t thread;
    char byte = 0;
    size_t len;

    pthread_create(&thread, NULL, put_later, b);
    cr_assert_eq(holmes_rdv_get(a, "later", &byte, 1, &len, 5000), 0);
    cr_assert_eq(byte, 'x');
    pthread_join(thread, NULL);
    holmes_rdv_leave(a);
    holmes_rdv_leave(b);
    holmes_rdv_stop(s);
}

/* Several threads of one client; answers must reach the call they belong to. */
static void *own_keys(void *arg)
{
    struct holmes_rdv *r = arg;
    char key[32], value[48], got[48];
    size_t len;

    for (int i = 0; i < 200; i++) {
        snprintf(key, sizeof key, "%lx/%d", (unsigned long)pthread_self(), i);
        snprintf(value, sizeof value, "value %s", key);
        cr_assert_eq(holmes_rdv_put(r, key, value, sizeof value), 0);
        cr_assert_eq(holmes_rdv_get(r, key, got, sizeof got, &len, 1000), 0);
        cr_assert_str_eq(got, value);
    }
    return NULL;
}

Test(rendezvous, threads_share_a_client)
{
    struct holmes_rdv_server *s = serve(1);
    struct holmes_rdv *r = join(s, 0, 1);
    pthread_t threads[4];

    for (int i = 0; i < 4; i++)
        pthread_create(&threads[i], NULL, own_keys, r);
    for (int i = 0; i < 4; i++)
        pthread_join(threads[i], NULL);
    holmes_rdv_leave(r);
    holmes_rdv_stop(s);
}

/* ---- who is missing ---- */

Test(rendezvous, a_timeout_names_the_missing)
{
    struct holmes_rdv_server *s = serve(4);
    struct holmes_rdv *a = join(s, 0, 4), *b = join(s, 2, 4);
    char byte;
    size_t len;

    cr_assert_eq(holmes_rdv_barrier(a, "start", 150), -ETIMEDOUT);
    cr_assert(strstr(holmes_rdv_reason(a), "barrier 'start'"), "%s", holmes_rdv_reason(a));
    cr_assert(strstr(holmes_rdv_reason(a), "rank 1 (never connected), rank 2 (on "), "%s",
              holmes_rdv_reason(a));
    cr_assert(strstr(holmes_rdv_reason(a), "rank 3 (never connected)"), "%s", holmes_rdv_reason(a));
    cr_assert_eq(holmes_rdv_get(b, "handle", &byte, 1, &len, 50), -ETIMEDOUT);
    cr_assert(strstr(holmes_rdv_reason(b), "key 'handle'"), "%s", holmes_rdv_reason(b));
    holmes_rdv_leave(a);
    holmes_rdv_leave(b);
    holmes_rdv_stop(s);
}

Test(rendezvous, a_barrier_that_timed_out_can_be_tried_again)
{
    struct holmes_rdv_server *s = serve(1);
    struct holmes_rdv *r = join(s, 0, 1);

    for (int i = 0; i < 3; i++)
        cr_assert_eq(holmes_rdv_barrier(r, "b", 1000), 0);
    holmes_rdv_leave(r);
    cr_assert_eq(holmes_rdv_server_wait(s, 5000), 0);
    holmes_rdv_stop(s);
}

static void barrier_body(struct rank *r)
{
    for (int i = 0; i < 20; i++)
        EXPECT(holmes_rdv_barrier(r->rdv, "again", 20000) == 0, "%s", holmes_rdv_reason(r->rdv));
}

Test(rendezvous, eight_ranks_meet_again_and_again)
{
    struct ranks ranks = {.size = 8, .body = barrier_body};

    cr_assert(holmes_test_ranks_run(&ranks, 60));
}

/* ---- the job's end ---- */

Test(rendezvous, an_abort_reaches_everybody_with_its_reason)
{
    struct holmes_rdv_server *s = serve(3);
    struct holmes_rdv *a = join(s, 0, 3), *b = join(s, 1, 3), *late;
    uint64_t deadline = holmes_deadline_ms(5000);
    char byte;
    size_t len;

    cr_assert_eq(holmes_rdv_poll(b), 0);
    holmes_rdv_abort(a, "loss is not a number");
    cr_assert_eq(holmes_rdv_poll(a), -ECONNABORTED);
    cr_assert_eq(holmes_rdv_get(b, "never", &byte, 1, &len, 10000), -ECONNABORTED);
    cr_assert(!holmes_deadline_passed(deadline));
    cr_assert_eq(holmes_rdv_poll(b), -ECONNABORTED);
    cr_assert(strstr(holmes_rdv_reason(b), "rank 0 on "), "%s", holmes_rdv_reason(b));
    cr_assert(strstr(holmes_rdv_reason(b), "loss is not a number"), "%s", holmes_rdv_reason(b));
    cr_assert_eq(holmes_rdv_put(b, "k", "", 0), -ECONNABORTED);
    late = join(s, 2, 3);
    while (holmes_rdv_poll(late) == 0 && !holmes_deadline_passed(deadline))
        poll(NULL, 0, 1);
    cr_assert(strstr(holmes_rdv_reason(late), "loss is not a number"));
    holmes_rdv_leave(a);
    holmes_rdv_leave(b);
    holmes_rdv_leave(late);
    cr_assert_eq(holmes_rdv_server_wait(s, 5000), -ECONNABORTED);
    holmes_rdv_stop(s);
}

static void dies_body(struct rank *r)
{
    EXPECT(holmes_rdv_barrier(r->rdv, "start", 20000) == 0);
    if (r->rank == 2)
        kill(getpid(), SIGKILL);
    EXPECT(holmes_rdv_barrier(r->rdv, "end", 20000) == -ECONNABORTED);
    EXPECT(strstr(holmes_rdv_reason(r->rdv), "rank 2 on "), "%s", holmes_rdv_reason(r->rdv));
}

Test(rendezvous, a_death_reaches_everybody)
{
    struct ranks ranks = {.size = 4, .body = dies_body, .dies = {[2] = true}};

    cr_assert(holmes_test_ranks_run(&ranks, 60));
}

Test(rendezvous, an_orderly_end_aborts_nobody)
{
    struct holmes_rdv_server *s = serve(2);
    struct holmes_rdv *a = join(s, 0, 2), *b = join(s, 1, 2);
    char byte;
    size_t len;

    holmes_rdv_leave(a);
    cr_assert_eq(holmes_rdv_get(b, "k", &byte, 1, &len, 100), -ETIMEDOUT);
    cr_assert_eq(holmes_rdv_poll(b), 0);
    cr_assert_eq(holmes_rdv_server_wait(s, 10), -ETIMEDOUT);
    holmes_rdv_leave(b);
    cr_assert_eq(holmes_rdv_server_wait(s, 5000), 0);
    holmes_rdv_stop(s);
}

Test(rendezvous, clients_hear_that_the_server_is_gone)
{
    struct holmes_rdv_server *s = serve(2);
    struct holmes_rdv *a = join(s, 0, 2);
    char byte;
    size_t len;

    holmes_rdv_stop(s);
    cr_assert_eq(holmes_rdv_get(a, "k", &byte, 1, &len, 20000), -ECONNABORTED);
    cr_assert(strstr(holmes_rdv_reason(a), "is gone (its process ended"), "%s",
              holmes_rdv_reason(a));
    holmes_rdv_leave(a);
}

/* ---- who may come in ---- */

static int join_fails(uint16_t port, const char *secret, int rank, int nranks)
{
    struct holmes_rdv *r = NULL;
    int rc = holmes_rdv_connect("127.0.0.1", port, secret, rank, nranks, 2000, &r);

    cr_assert_neq(rc, 0);
    cr_assert_null(r);
    return rc;
}

Test(rendezvous, refuses_with_the_reason)
{
    struct holmes_rdv_server *s = serve(2);
    uint16_t port = holmes_rdv_port(s);
    struct holmes_rdv *a = join(s, 0, 2);

    cr_assert_eq(join_fails(port, "wrong", 1, 2), -EACCES);
    cr_assert(strstr(holmes_rdv_reason(NULL), "secret"), "%s", holmes_rdv_reason(NULL));
    cr_assert_eq(join_fails(port, SECRET, 1, 3), -EINVAL);
    cr_assert(strstr(holmes_rdv_reason(NULL), "this job has 2 ranks"), "%s",
              holmes_rdv_reason(NULL));
    cr_assert_eq(join_fails(port, SECRET, 2, 2), -EINVAL);
    cr_assert_eq(join_fails(port, SECRET, 0, 2), -EEXIST);
    cr_assert(strstr(holmes_rdv_reason(NULL), "rank 0 is taken"), "%s", holmes_rdv_reason(NULL));
    holmes_rdv_leave(a);
    holmes_rdv_stop(s);
}

Test(rendezvous, a_server_without_the_secret_is_not_believed)
{
    struct holmes_rdv_server *s;

    cr_assert_eq(holmes_rdv_serve("127.0.0.1", 0, "another", 2, &s), 0);
    cr_assert_eq(join_fails(holmes_rdv_port(s), SECRET, 0, 2), -EACCES);
    holmes_rdv_stop(s);
}

Test(rendezvous, nobody_answering_is_said_in_time)
{
    struct holmes_rdv_server *s = serve(1);
    uint16_t port = holmes_rdv_port(s);
    struct holmes_rdv *r;
    uint64_t start = holmes_now_ns();

    holmes_rdv_stop(s);
    cr_assert_neq(holmes_rdv_connect("127.0.0.1", port, SECRET, 0, 1, 300, &r), 0);
    cr_assert_lt(holmes_now_ns() - start, patience_ns(3000));
    cr_assert(strstr(holmes_rdv_reason(NULL), "nothing answers"), "%s", holmes_rdv_reason(NULL));
}

static void *serve_later(void *arg)
{
    struct holmes_rdv_server *s = NULL;
    uint16_t port = *(uint16_t *)arg;
    uint64_t deadline = holmes_deadline_ms(5000);

    poll(NULL, 0, 150);
    while (holmes_rdv_serve("127.0.0.1", port, SECRET, 1, &s) && !holmes_deadline_passed(deadline))
        poll(NULL, 0, 1);
    return s;
}

Test(rendezvous, a_client_waits_for_the_server_to_come_up)
{
    struct holmes_rdv_server *s = serve(1);
    uint16_t port = holmes_rdv_port(s);
    struct holmes_rdv *r = NULL;
    pthread_t thread;
    void *later;

    holmes_rdv_stop(s);
    pthread_create(&thread, NULL, serve_later, &port);
    cr_assert_eq(holmes_rdv_connect("127.0.0.1", port, SECRET, 0, 1, 10000, &r), 0, "%s",
                 holmes_rdv_reason(NULL));
    pthread_join(thread, &later);
    holmes_rdv_leave(r);
    holmes_rdv_stop(later);
}

Test(rendezvous, a_taken_port_is_an_error)
{
    struct holmes_rdv_server *s = serve(1), *second = NULL;

    cr_assert_eq(holmes_rdv_serve("127.0.0.1", holmes_rdv_port(s), SECRET, 1, &second),
                 -EADDRINUSE);
    cr_assert_null(second);
    holmes_rdv_stop(s);
}

/* ---- strangers ---- */

static int dial(struct holmes_rdv_server *s)
{
    struct sockaddr_in sa = {.sin_family = AF_INET,
                             .sin_port = htons(holmes_rdv_port(s)),
                             .sin_addr = {htonl(INADDR_LOOPBACK)}};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    cr_assert_eq(connect(fd, (struct sockaddr *)&sa, sizeof sa), 0);
    return fd;
}

static void say(int fd, const void *data, size_t len)
{
    if (len)
        cr_assert_eq(send(fd, data, len, MSG_NOSIGNAL), (ssize_t)len);
}

/* The server ends the connection within the time; what it says before is counted. */
static ssize_t until_closed(int fd, int timeout_ms)
{
    struct pollfd p = {fd, POLLIN, 0};
    char buf[256];
    ssize_t n, total = 0;

    while (poll(&p, 1, timeout_ms) == 1) {
        n = recv(fd, buf, sizeof buf, 0);
        if (n <= 0) {
            close(fd);
            return total;
        }
        total += n;
    }
    cr_assert_fail("the stranger was kept");
    return -1;
}

static size_t hello(uint8_t out[64])
{
    struct holmes_rdv_header h = {24, HOLMES_RDV_HELLO, 0};

    holmes_rdv_header_write(out, &h);
    memcpy(out + HOLMES_RDV_HEADER, HOLMES_RDV_MAGIC, 8);
    memset(out + HOLMES_RDV_HEADER + 8, 7, 16);
    return HOLMES_RDV_HEADER + 24;
}

Test(rendezvous, garbage_is_dropped_and_the_job_goes_on)
{
    struct holmes_rdv_server *s = serve(1);
    struct holmes_rdv_header huge = {0xffffffff, HOLMES_RDV_HELLO, 0};
    struct holmes_rdv_header early = {5, HOLMES_RDV_PUT, 1};
    struct holmes_rdv_header nothing = {0, HOLMES_RDV_PROVE, 0};
    int before = holmes_self_fds(), fd;
    struct holmes_rdv *r;
    uint8_t frame[64];
    size_t len;

    close(dial(s));
    fd = dial(s);
    say(fd, "abc", 3);
    close(fd);
    fd = dial(s);
    say(fd, "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n", 34);
    cr_assert_eq(until_closed(fd, 2000), 0);
    fd = dial(s);
    holmes_rdv_header_write(frame, &huge);
    say(fd, frame, HOLMES_RDV_HEADER);
    cr_assert_eq(until_closed(fd, 2000), 0);
    fd = dial(s); /* a request without proof */
    holmes_rdv_header_write(frame, &early);
    memcpy(frame + HOLMES_RDV_HEADER, "\1kxyz", 5);
    say(fd, frame, HOLMES_RDV_HEADER + 5);
    cr_assert_eq(until_closed(fd, 2000), 0);
    fd = dial(s); /* a proof without a hello, empty */
    holmes_rdv_header_write(frame, &nothing);
    say(fd, frame, HOLMES_RDV_HEADER);
    cr_assert_eq(until_closed(fd, 2000), 0);
    fd = dial(s); /* a wrong proof: the challenge and the refusal */
    len = hello(frame);
    say(fd, frame, len);
    holmes_rdv_header_write(
        frame, &(struct holmes_rdv_header){HOLMES_RDV_PROVE_BYTES, HOLMES_RDV_PROVE, 0});
    say(fd, frame, HOLMES_RDV_HEADER);
    memset(frame, 0, sizeof frame);
    say(fd, frame, 64);
    say(fd, frame, HOLMES_RDV_PROVE_BYTES - 64);
    cr_assert_gt(until_closed(fd, 2000), 0);

    r = join(s, 0, 1);
    cr_assert_eq(holmes_rdv_barrier(r, "well", 5000), 0);
    holmes_rdv_leave(r);
    while (holmes_self_fds() > before)
        poll(NULL, 0, 1); /* Criterion's time limit bounds it */
    holmes_rdv_stop(s);
}

/* Silence holds a place for a while; many of them push out the oldest. */
Test(rendezvous, silent_strangers_are_few_and_keep_nobody_out)
{
    struct holmes_rdv_server *s = serve(1);
    int fds[100], before = holmes_self_fds();
    struct holmes_rdv *r;

    for (int i = 0; i < 100; i++)
        fds[i] = dial(s);
    r = join(s, 0, 1);
    cr_assert_eq(holmes_rdv_barrier(r, "well", 5000), 0);
    /* 100 ends here, 32 at the server, two of the true client. */
    cr_assert_leq(holmes_self_fds() - before, 100 + 32 + 2);
    cr_assert_eq(until_closed(fds[0], 2000), 0);
    cr_assert_eq(until_closed(fds[99], 10000), 0);
    for (int i = 1; i < 99; i++)
        close(fds[i]);
    holmes_rdv_leave(r);
    holmes_rdv_stop(s);
}

Test(rendezvous, one_byte_at_a_time_is_a_true_client_too)
{
    struct holmes_rdv_server *s = serve(1);
    uint8_t frame[64], answer[HOLMES_RDV_HEADER + HOLMES_RDV_NONCE];
    size_t len = hello(frame);
    int fd = dial(s), one = 1;

    setsockopt(fd, IPPROTO_TCP, 1 /* TCP_NODELAY */, &one, sizeof one);
    for (size_t i = 0; i < len; i++)
        say(fd, frame + i, 1);
    cr_assert_eq(recv(fd, answer, sizeof answer, MSG_WAITALL), (ssize_t)sizeof answer);
    cr_assert_eq(holmes_rdv_header_read(answer).type, HOLMES_RDV_CHALLENGE);
    close(fd);
    holmes_rdv_stop(s);
}
