/* Registrations of the sockets wire against threads that poll. */
#include <criterion/criterion.h>
#include <errno.h>
#include <pthread.h>
#include <sched.h>

#include "../support/patience.h"
#include "clock.h"
#include "test_nics.h"
#include "transport/sock/sock_ops.h"

static void *reg_main(void *arg)
{
    static char memory[64];
    struct wire_nic *wn = arg;
    struct wire_mr mr;

    cr_assert_eq(holmes_sock_mr_reg(wn, memory, sizeof memory, &mr), 0);
    holmes_sock_mr_dereg(wn, &mr);
    return NULL;
}

/* Two of them always overlap: one holds the table whenever the other lets go. Whoever wants to
 * register must come between. */
Test(sock_mr, registering_waits_for_no_later_reader)
{
    struct holmes_nic nic = test_loopback_nic("127.0.0.1");
    uint64_t deadline = holmes_now_ns() + patience_ns(5000);
    struct wire_nic *wn;
    pthread_t thread;
    int rc;

    cr_assert_eq(holmes_wire_sock.nic_open(&nic, 0, 0, &wn), 0);
    cr_assert_eq(pthread_rwlock_rdlock(&wn->mrs_lock), 0);
    cr_assert_eq(pthread_create(&thread, NULL, reg_main, wn), 0);
    while ((rc = pthread_rwlock_tryrdlock(&wn->mrs_lock)) == 0 && holmes_now_ns() < deadline) {
        pthread_rwlock_unlock(&wn->mrs_lock);
        sched_yield();
    }
    cr_assert_eq(rc, EBUSY, "a reader that comes later goes first");
    pthread_rwlock_unlock(&wn->mrs_lock);
    pthread_join(thread, NULL);
    holmes_wire_sock.nic_close(wn);
}
