#include <criterion/criterion.h>
#include <string.h>

#include "sysfs_tree.h"
#include "transport/port_counters.h"

static uint64_t value(const struct port_counters *c, const char *name)
{
    for (int i = 0; i < c->n; i++) {
        if (strcmp(c->counters[i].name, name) == 0)
            return c->counters[i].value;
    }
    return UINT64_MAX;
}

Test(port_counters, what_was_counted_since_the_port_was_opened)
{
    static const char at[] = "class/infiniband/rxe0/ports/1/hw_counters";
    struct port_counters before, now;
    struct sysfs_tree t;

    tree_init(&t);
    tree_write(&t, "7", "%s/rcvd_seq_err", at);
    tree_write(&t, "100", "%s/sent_pkts", at);
    tree_write(&t, "10", "%s/lifespan", at);
    tree_write(&t, "n/a", "%s/odd", at);
    port_counters_read(t.root, "rxe0", 1, &before);
    cr_assert_eq(before.n, 2);
    cr_assert_eq(value(&before, "rcvd_seq_err"), 7);
    tree_write(&t, "9", "%s/rcvd_seq_err", at);
    tree_write(&t, "5", "%s/new_one", at);
    port_counters_read(t.root, "rxe0", 1, &now);
    port_counters_since(&now, &before);
    cr_assert_eq(value(&now, "rcvd_seq_err"), 2);
    cr_assert_eq(value(&now, "sent_pkts"), 0);
    cr_assert_eq(value(&now, "new_one"), 5);
    tree_fini(&t);
}

Test(port_counters, driver_that_counts_nothing_has_none)
{
    struct port_counters c;
    struct sysfs_tree t;

    tree_init(&t);
    port_counters_read(t.root, "rxe0", 1, &c);
    cr_assert_eq(c.n, 0);
    for (int i = 0; i < PORT_COUNTERS_MAX + 9; i++)
        tree_write(&t, "1", "class/infiniband/rxe0/ports/2/hw_counters/c%d", i);
    port_counters_read(t.root, "rxe0", 2, &c);
    cr_assert_eq(c.n, PORT_COUNTERS_MAX);
    tree_fini(&t);
}
