/* Whether a rank is where the plan has it, by the names that hosts have. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "planned.h"

Test(planned, names_of_one_host)
{
    static const struct {
        const char *a, *b;
        bool same;
    } rows[] = {
        {"a0", "a0", true},          {"a0", "A0.Site.org", true},
        {"a0.site.org", "a0", true}, {"a0.site.org", "a0.other.org", false},
        {"a0", "a01", false},        {"a0", "b0", false},
        {"", "a0", false},           {"10.0.0.1", "10.0.0.1", true},
        {"10.0", "10.0.0.1", false}, {"10.0.0.1", "10.0.0.11", false},
    };

    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        cr_expect_eq(holmes_planned_same(rows[i].a, rows[i].b), rows[i].same, "%s %s", rows[i].a,
                     rows[i].b);
        cr_expect_eq(holmes_planned_same(rows[i].b, rows[i].a), rows[i].same, "%s %s", rows[i].b,
                     rows[i].a);
    }
}

Test(planned, each_rank_judges_for_itself)
{
    static const struct {
        const char *planned, *host;
        int rank;
        enum holmes_planned verdict;
        int owner;
    } rows[] = {
        {"a0,a0,b0,b0", "b0", 2, HOLMES_PLANNED_HERE, 2},
        {"a0,a0,b0,b0", "b0.site.org", 3, HOLMES_PLANNED_HERE, 3},
        {"a0,a0,b0,b0", "b0", 1, HOLMES_PLANNED_ELSEWHERE, 2},
        {"a0,a0,b0,b0", "a0", 3, HOLMES_PLANNED_ELSEWHERE, 0},
        {"a0,a0,b0,b0", "3f2a9c", 0, HOLMES_PLANNED_UNKNOWN, -1},
        {"a0", "a0", 3, HOLMES_PLANNED_HERE, 3},
        {"a0", "b0", 3, HOLMES_PLANNED_UNKNOWN, -1},
        {"localhost", "3f2a9c", 1, HOLMES_PLANNED_HERE, 1},
        {"127.0.0.1,192.0.2.1", "3f2a9c", 0, HOLMES_PLANNED_HERE, 0},
        {"127.0.0.1,192.0.2.1", "3f2a9c", 1, HOLMES_PLANNED_ELSEWHERE, 0},
    };

    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct holmes_planned_names names = {.n = 1};
        int owner = -2;

        snprintf(names.name[0], sizeof names.name[0], "%s", rows[i].host);
        cr_expect_eq(holmes_planned_judge(rows[i].planned, rows[i].rank, 4, &names, &owner),
                     rows[i].verdict, "row %zu", i);
        cr_expect_eq(owner, rows[i].owner, "row %zu: %d", i, owner);
    }
}

Test(planned, a_host_has_its_own_name_that_of_slurm_and_its_label)
{
    struct holmes_planned_names names;
    char own[256];

    gethostname(own, sizeof own);
    unsetenv("SLURMD_NODENAME");
    holmes_planned_names(NULL, &names);
    cr_expect_eq(names.n, 1);
    cr_expect_str_eq(names.name[0], own);
    setenv("SLURMD_NODENAME", "n17", 1);
    holmes_planned_names("a0", &names);
    cr_expect_eq(names.n, 3);
    cr_expect_str_eq(names.name[1], "n17");
    cr_expect_str_eq(names.name[2], "a0");
}
