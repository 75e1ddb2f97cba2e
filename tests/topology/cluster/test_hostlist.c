#include <criterion/criterion.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "hostlist.h"

/* All names, with blanks between them. */
static char *names_of(const struct holmes_hostlist *l)
{
    char *text = NULL, name[HOLMES_HOST_NAME_MAX];
    size_t len;
    FILE *f = open_memstream(&text, &len);

    for (int i = 0; i < l->nhosts; i++)
        fprintf(f, "%s%s", i > 0 ? " " : "", holmes_hostlist_name(l, i, name, sizeof name));
    fclose(f);
    return text;
}

static void expect(const char *text, const char *names, const char *again)
{
    struct holmes_hostlist l;
    char why[256] = "";

    cr_assert_eq(holmes_hostlist_parse(text, &l, why, sizeof why), 0, "%s: %s", text, why);

    char *got = names_of(&l), *printed = holmes_hostlist_text(&l);

    cr_expect_str_eq(got, names, "%s: names %s, want %s", text, got, names);
    cr_expect_str_eq(printed, again, "%s: prints %s, want %s", text, printed, again);
    free(got);
    free(printed);
    holmes_hostlist_fini(&l);
}

Test(hostlist, text_becomes_names_and_the_shortest_text)
{
    static const struct {
        const char *text, *names, *again;
    } rows[] = {
        {"a", "a", "a"},
        {"a1", "a1", "a1"},
        {"a1,a2,a3", "a1 a2 a3", "a[1-3]"},
        {"a[1-3]", "a1 a2 a3", "a[1-3]"},
        {"a[0001-0003,7]-ib,b1", "a0001-ib a0002-ib a0003-ib a7-ib b1", "a[0001-0003,7]-ib,b1"},
        {"a[8-11]", "a8 a9 a10 a11", "a[8-11]"},
        {"a[08-11]", "a08 a09 a10 a11", "a[08-11]"},
        {"a08,a09,a10,a11", "a08 a09 a10 a11", "a[08-11]"},
        {"a[98-101]", "a98 a99 a100 a101", "a[98-101]"},
        {"a[098-101]", "a098 a099 a100 a101", "a[098-101]"},
        {"a[1],a[3]", "a1 a3", "a[1,3]"},
        {"a[3,1,2]", "a3 a1 a2", "a[3,1-2]"},
        {"a1,a01", "a1 a01", "a[1,01]"},
        {"a1[0-2]", "a10 a11 a12", "a1[0-2]"},
        {"r1-ib0,r2-ib0,r3-ib0", "r1-ib0 r2-ib0 r3-ib0", "r[1-3]-ib0"},
        {"n1.example.org,n2.example.org", "n1.example.org n2.example.org", "n[1-2].example.org"},
        {"10.0.0.9,10.0.0.10", "10.0.0.9 10.0.0.10", "10.0.0.[9-10]"},
        {"r[1-2]n[1-2]", "r1n1 r1n2 r2n1 r2n2", "r1n[1-2],r2n[1-2]"},
        {"[1-3]", "1 2 3", "[1-3]"},
        {"a_b, c ,d\n", "a_b c d", "a_b,c,d"},
        {"switch.2.[1-2]", "switch.2.1 switch.2.2", "switch.2.[1-2]"},
        {"a123456789012345678901", "a123456789012345678901", "a123456789012345678901"},
    };

    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        expect(rows[i].text, rows[i].names, rows[i].again);
}

Test(hostlist, refuses_what_is_no_list_and_names_the_part_at_fault)
{
    static const struct {
        const char *text, *says;
    } rows[] = {
        {"", "no host name"},
        {"  ", "no host name"},
        {"a,,b", "comma"},
        {"a,", "comma"},
        {"a b", "' ' in \"a b\""},
        {"a[1-3", "']'"},
        {"a1-3]", "']' in"},
        {"a[[1]]", "'['"},
        {"a[]", "\"\" in brackets"},
        {"a[1-]", "\"1-\""},
        {"a[-1]", "\"-1\""},
        {"a[x]", "\"x\""},
        {"a[1,]", "\"\" in brackets"},
        {"a[5-3]", "\"5-3\" runs backwards"},
        {"a[1-2-3]", "\"1-2-3\""},
        {"a[1-9999999999999999999]", "at most 18 digits"},
        {"a[1-250001]", "more than 250000 hosts"},
        {"a[1-2000][1-2000]", "more than 250000 hosts"},
        {"a[1-3],a2", "host a2 comes twice"},
        {"a1[0-2],a[9-10]", "host a10 comes twice"},
        {"a1b[2-3],a[1-2]b2", "host a1b2 comes twice"},
        {"-a", "begins with '-'"},
        {"a:8", "':'"},
        {"a;rm", "';'"},
    };

    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct holmes_hostlist l = {.nhosts = -7};
        char why[256] = "";

        cr_expect_eq(holmes_hostlist_parse(rows[i].text, &l, why, sizeof why), -EINVAL, "%s",
                     rows[i].text);
        cr_expect(strstr(why, rows[i].says), "%s: says \"%s\", want \"%s\"", rows[i].text, why,
                  rows[i].says);
        cr_expect_eq(l.nhosts, -7, "%s: touched the list", rows[i].text);
    }
}

Test(hostlist, refuses_names_that_are_too_long)
{
    char text[600], why[256];
    struct holmes_hostlist l;

    memset(text, 'a', sizeof text);
    text[256] = '\0';
    cr_expect_eq(holmes_hostlist_parse(text, &l, why, sizeof why), -EINVAL);
    cr_expect(strstr(why, "longer than 255"), "%s", why);
    text[255] = '\0';
    cr_assert_eq(holmes_hostlist_parse(text, &l, why, sizeof why), 0, "%s", why);
    holmes_hostlist_fini(&l);
    strcpy(text + 253, "[9-10]b");
    cr_expect_eq(holmes_hostlist_parse(text, &l, why, sizeof why), -EINVAL);
    strcpy(text + 252, "[1][9-10]b");
    cr_expect_eq(holmes_hostlist_parse(text, &l, why, sizeof why), -EINVAL);
}

Test(hostlist, every_name_is_found_at_its_place)
{
    static const char *const texts[] = {"a[0001-0010],b,c[5-12]-ib", "x1,x01,x001", "a1[0-2],a1"};

    for (size_t k = 0; k < sizeof texts / sizeof texts[0]; k++) {
        struct holmes_hostlist l;
        char why[256], name[HOLMES_HOST_NAME_MAX];

        cr_assert_eq(holmes_hostlist_parse(texts[k], &l, why, sizeof why), 0, "%s", why);
        for (int i = 0; i < l.nhosts; i++)
            cr_expect_eq(holmes_hostlist_find(&l, holmes_hostlist_name(&l, i, name, sizeof name)),
                         i, "%s", name);
        static const char *const none[] = {"a0011",  "a001", "a00001", "b1",    "c05-ib",
                                           "c13-ib", "c5",   "",       "x0001", "a13"};

        for (size_t i = 0; i < sizeof none / sizeof none[0]; i++)
            cr_expect_eq(holmes_hostlist_find(&l, none[i]), -1, "%s", none[i]);
        holmes_hostlist_fini(&l);
    }
}

Test(hostlist, slices_have_the_hosts_asked_for)
{
    struct holmes_hostlist l, s;
    char why[256], want[HOLMES_HOST_NAME_MAX], got[HOLMES_HOST_NAME_MAX];

    cr_assert_eq(holmes_hostlist_parse("a[08-12],b,c[1-2]", &l, why, sizeof why), 0);
    for (int first = 0; first <= l.nhosts; first++)
        for (int n = 0; first + n <= l.nhosts; n++) {
            cr_assert_eq(holmes_hostlist_slice(&l, first, n, &s), 0);
            cr_assert_eq(s.nhosts, n);
            for (int i = 0; i < n; i++)
                cr_expect_str_eq(holmes_hostlist_name(&s, i, got, sizeof got),
                                 holmes_hostlist_name(&l, first + i, want, sizeof want));
            holmes_hostlist_fini(&s);
        }
    holmes_hostlist_fini(&l);
}

Test(hostlist, ten_thousand_names_in_order_are_one_range)
{
    struct holmes_hostlist l = {0};
    char name[HOLMES_HOST_NAME_MAX];

    for (int i = 1; i <= 10000; i++) {
        snprintf(name, sizeof name, "a%04d", i);
        cr_assert_eq(holmes_hostlist_append(&l, name), 0);
    }
    cr_expect_eq(l.nranges, 1);

    char *text = holmes_hostlist_text(&l);

    cr_expect_str_eq(text, "a[0001-10000]");
    free(text);
    holmes_hostlist_fini(&l);
    cr_expect_eq(holmes_hostlist_append(&l, "a b"), -EINVAL);
    cr_expect_eq(holmes_hostlist_append(&l, ""), -EINVAL);
}

Test(hostindex, finds_names_of_many_lists_and_the_one_that_comes_twice)
{
    struct holmes_hostlist lists[3];
    static const char *const texts[3] = {"a[1-1000]", "b[1-3],c", "d,a[1000-1001]"};
    struct holmes_hostindex *x;
    char why[256];
    int twice = -1, tag, host;

    cr_assert_eq(holmes_hostindex_create(&x), 0);
    cr_expect_eq(holmes_hostindex_find(x, "a1", &tag, &host), -ENOENT);
    for (int i = 0; i < 3; i++)
        cr_assert_eq(holmes_hostlist_parse(texts[i], &lists[i], why, sizeof why), 0);
    cr_expect_eq(holmes_hostindex_add(x, &lists[0], 10, &twice), 0);
    cr_expect_eq(holmes_hostindex_add(x, &lists[1], 11, &twice), 0);
    cr_expect_eq(holmes_hostindex_add(x, &lists[2], 12, &twice), -EEXIST);
    cr_expect_eq(twice, 1);
    cr_assert_eq(holmes_hostindex_find(x, "a777", &tag, &host), 0);
    cr_expect(tag == 10 && host == 776, "%d %d", tag, host);
    cr_assert_eq(holmes_hostindex_find(x, "c", &tag, &host), 0);
    cr_expect(tag == 11 && host == 3, "%d %d", tag, host);
    cr_expect_eq(holmes_hostindex_find(x, "c1", &tag, &host), -ENOENT);
    holmes_hostindex_destroy(x);
    for (int i = 0; i < 3; i++)
        holmes_hostlist_fini(&lists[i]);
}
