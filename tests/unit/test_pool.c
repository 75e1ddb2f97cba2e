#include <criterion/criterion.h>

#include "pool.h"

Test(pool, gives_each_object_once_and_takes_it_back)
{
    struct holmes_pool pool;
    void *seen[4];

    cr_assert_eq(holmes_pool_init(&pool, 4, 24), 0);
    for (int i = 0; i < 4; i++) {
        seen[i] = holmes_pool_get(&pool);
        cr_assert_not_null(seen[i]);
        for (int j = 0; j < i; j++)
            cr_assert_neq(seen[i], seen[j]);
    }
    cr_assert_null(holmes_pool_get(&pool));
    holmes_pool_put(&pool, seen[2]);
    cr_assert_eq(holmes_pool_get(&pool), seen[2]);
    holmes_pool_fini(&pool);
}
