#include <criterion/criterion.h>

#include <sys/mman.h>
#include <unistd.h>

#include "pages.h"
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

static size_t pages_in_memory(void *at, size_t n)
{
    unsigned char present[1024];
    size_t count = 0;

    cr_assert_leq(n, sizeof present);
    cr_assert_eq(mincore(at, n * (size_t)sysconf(_SC_PAGESIZE), present), 0);
    for (size_t i = 0; i < n; i++)
        count += present[i] & 1;
    return count;
}

Test(pages, cost_what_is_touched_and_are_zero)
{
    enum { PAGES = 1024 }; /* two huge ones, where the kernel gives such */
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    char *pages = holmes_pages_get(PAGES * page);

    cr_assert_not_null(pages);
    cr_assert_eq(pages_in_memory(pages, PAGES), 0);
    for (size_t i = 0; i < page; i++)
        cr_assert_eq(pages[(PAGES - 1) * page + i], 0);
    pages[(PAGES / 2) * page] = 1;
    cr_assert_leq(pages_in_memory(pages, PAGES), 2);
    holmes_pages_put(pages, PAGES * page);
    holmes_pages_put(NULL, 1);
}

Test(pool, objects_that_were_never_used_cost_no_memory)
{
    enum { COUNT = 256, SIZE = 4096 };
    struct holmes_pool pool;
    char *one;

    cr_assert_eq(holmes_pool_init(&pool, COUNT, SIZE), 0);
    for (int i = 0; i < 1000; i++) {
        one = holmes_pool_get(&pool);
        cr_assert_eq(one[0], i == 0 ? 0 : 1, "the same object comes back");
        one[0] = 1;
        holmes_pool_put(&pool, one);
    }
    cr_assert_leq(pages_in_memory(pool.objects, COUNT * SIZE / (size_t)sysconf(_SC_PAGESIZE)), 1);
    holmes_pool_fini(&pool);
}
