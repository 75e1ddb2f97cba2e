#include <criterion/criterion.h>

#include "transport/probe_cache.h"

#define PATIENCE 1000

static struct probe_cache cache = {.patience_ns = PATIENCE};
static int me, other;

Test(probe_cache, first_asks_and_others_wait_until_it_tells)
{
    struct probe_key key = {.own_lid = 1};
    uint16_t mtu = 0;

    cr_assert_eq(probe_cache_look(&cache, &key, &me, 0, &mtu), PROBE_ASK);
    cr_assert_eq(probe_cache_look(&cache, &key, &other, 0, &mtu), PROBE_WAIT);
    cr_assert_eq(probe_cache_look(&cache, &key, &me, 0, &mtu), PROBE_ASK);
    probe_cache_tell(&cache, &key, true, 1024, 5);
    cr_assert_eq(probe_cache_look(&cache, &key, &other, UINT64_MAX, &mtu), PROBE_YES);
    cr_assert_eq(mtu, 1024);
}

Test(probe_cache, no_is_asked_again_after_a_minute)
{
    struct probe_key key = {.own_lid = 2};
    uint16_t mtu;

    probe_cache_tell(&cache, &key, false, 0, 1000);
    cr_assert_eq(probe_cache_look(&cache, &key, &me, 1000 + PROBE_NO_NS - 1, &mtu), PROBE_NO);
    cr_assert_eq(probe_cache_look(&cache, &key, &me, 1000 + PROBE_NO_NS, &mtu), PROBE_ASK);
    cr_assert_eq(probe_cache_look(&cache, &key, &other, 1000 + PROBE_NO_NS, &mtu), PROBE_WAIT);
}

Test(probe_cache, who_leaves_without_telling_is_succeeded)
{
    struct probe_key key = {.own_lid = 3};
    uint16_t mtu;

    cr_assert_eq(probe_cache_look(&cache, &key, &me, 0, &mtu), PROBE_ASK);
    cr_assert_eq(probe_cache_look(&cache, &key, &other, 0, &mtu), PROBE_WAIT);
    probe_cache_leave(&cache, &me);
    cr_assert_eq(probe_cache_look(&cache, &key, &other, 0, &mtu), PROBE_ASK);
}

Test(probe_cache, who_never_comes_back_is_succeeded_and_may_still_tell)
{
    struct probe_key key = {.own_lid = 6};
    uint16_t mtu;

    cr_assert_eq(probe_cache_look(&cache, &key, &me, 0, &mtu), PROBE_ASK);
    cr_assert_eq(probe_cache_look(&cache, &key, &other, PATIENCE - 1, &mtu), PROBE_WAIT);
    cr_assert_eq(probe_cache_look(&cache, &key, &other, PATIENCE, &mtu), PROBE_ASK);
    cr_assert_eq(probe_cache_look(&cache, &key, &me, PATIENCE, &mtu), PROBE_WAIT);
    probe_cache_leave(&cache, &me); /* the other one's by now */
    cr_assert_eq(probe_cache_look(&cache, &key, &me, PATIENCE, &mtu), PROBE_WAIT);
    probe_cache_tell(&cache, &key, true, 512, PATIENCE);
    cr_assert_eq(probe_cache_look(&cache, &key, &other, PATIENCE, &mtu), PROBE_YES);
    cr_assert_eq(mtu, 512);
}

Test(probe_cache, what_a_failed_port_had_found_is_asked_again)
{
    struct probe_key key = {.own_guid = 7, .own_port = 1},
                     other_port = {.own_guid = 7, .own_port = 2};
    uint16_t mtu;

    probe_cache_tell(&cache, &key, true, 4096, 0);
    probe_cache_tell(&cache, &other_port, true, 4096, 0);
    probe_cache_forget(&cache, 7, 1);
    cr_assert_eq(probe_cache_look(&cache, &key, &me, 0, &mtu), PROBE_ASK);
    cr_assert_eq(probe_cache_look(&cache, &other_port, &me, 0, &mtu), PROBE_YES);
}

Test(probe_cache, every_field_of_the_key_counts)
{
    struct probe_key key = {.own_gid = {1}}, changed;
    uint16_t mtu;

    probe_cache_tell(&cache, &key, true, 4096, 0);
    for (size_t i = 0; i < offsetof(struct probe_key, pad); i++) {
        changed = key;
        ((uint8_t *)&changed)[i] ^= 0x40;
        cr_assert_eq(probe_cache_look(&cache, &changed, &me, 0, &mtu), PROBE_ASK, "byte %zu", i);
    }
}

Test(probe_cache, a_full_table_forgets_an_old_answer_and_nobody_who_waits)
{
    struct probe_key key = {.own_lid = 4}, waiting = {.own_lid = 5};
    uint16_t mtu;

    cr_assert_eq(probe_cache_look(&cache, &waiting, &me, 0, &mtu), PROBE_ASK);
    for (int i = 0; i < 3 * PROBE_CACHE_MAX; i++) {
        key.own_guid = (uint64_t)i + 1;
        probe_cache_tell(&cache, &key, true, 4096, 0);
    }
    cr_assert_eq(probe_cache_look(&cache, &key, &other, 0, &mtu), PROBE_YES);
    cr_assert_eq(probe_cache_look(&cache, &waiting, &other, 0, &mtu), PROBE_WAIT);
}
