#include <criterion/criterion.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "hostfile.h"

/* "w1:8 w2:2 w3", without a number where none is told. */
static char *text_of(const struct holmes_hostfile *h)
{
    char *text = NULL, name[HOLMES_HOST_NAME_MAX];
    size_t len;
    FILE *f = open_memstream(&text, &len);

    for (int i = 0; i < h->hosts.nhosts; i++) {
        fprintf(f, "%s%s", i > 0 ? " " : "", holmes_hostlist_name(&h->hosts, i, name, sizeof name));
        if (h->slots[i] > 0)
            fprintf(f, ":%d", h->slots[i]);
    }
    fclose(f);
    return text;
}

static void expect(const char *what, const struct holmes_hostfile *h, const char *want)
{
    char *got = text_of(h);

    cr_expect_str_eq(got, want, "%s: %s, want %s", what, got, want);
    free(got);
}

Test(hostfile, forms_that_people_use)
{
    static const struct {
        const char *text, *want;
    } rows[] = {
        {"a\n", "a"},
        {"a", "a"},
        {"a\nb\n", "a b"},
        {"a slots=8\nb slots=2", "a:8 b:2"},
        {"a slots=8 max-slots=16\n", "a:8"},
        {"a max_slots=16 slots=8\n", "a:8"},
        {"a\tslots=8\r\nb slots=8\r\n", "a:8 b:8"},
        {"a:8\nb:4\n", "a:8 b:4"},
        {"a:8,b:8", "a:8 b:8"},
        {"a:8, b:4 ,c\n", "a:8 b:4 c"},
        {"a,b,c slots=2\n", "a:2 b:2 c:2"},
        {"a[1-3] slots=2\nb\n", "a1:2 a2:2 a3:2 b"},
        {"a[1-2,4]:8,b", "a1:8 a2:8 a4:8 b"},
        {"# four\n\n  a # one\n\t\nb #\n#\n", "a b"},
        {"10.0.0.1 slots=8\nn1.example.org\n", "10.0.0.1:8 n1.example.org"},
        {"b\na\n", "b a"},
    };

    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct holmes_hostfile h;
        char why[300] = "";

        cr_assert_eq(
            holmes_hostfile_parse("h", rows[i].text, strlen(rows[i].text), &h, why, sizeof why), 0,
            "%s: %s", rows[i].text, why);
        expect(rows[i].text, &h, rows[i].want);
        holmes_hostfile_fini(&h);
    }
}

Test(hostfile, files_that_people_have)
{
    static const struct {
        const char *file, *want;
    } rows[] = {
        {"deepspeed-slots.txt", "w1:8 w2:2 w3:4 w4:1"},
        {"host-list.txt", "node1:8 node2:8"},
        {"mpi-no-slots.txt", "node1 node2 node4"},
        {"no-final-newline.txt", "n1.example.org:4 n2.example.org:4"},
    };

    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        char path[512], why[300] = "";
        struct holmes_hostfile h;

        snprintf(path, sizeof path, "%s/hostfiles/%s", TEST_DATA, rows[i].file);
        cr_assert_eq(holmes_hostfile_read(path, &h, why, sizeof why), 0, "%s", why);
        expect(rows[i].file, &h, rows[i].want);
        holmes_hostfile_fini(&h);
    }
}

Test(hostfile, refuses_what_is_none_with_line_and_field)
{
    static const struct {
        const char *text, *says;
    } rows[] = {
        {"a\nb\na\n", "h:3: host a comes twice, first in line 1"},
        {"a slots=2\na slots=2\n", "h:2: host a comes twice, first in line 1"},
        {"a,b,a", "h:1: host a comes twice, first in line 1"},
        {"a[1-3]\n\na2:4", "h:3: host a2 comes twice, first in line 1"},
        {"a slots=0\n", "h:1: slots: \"0\" is no whole number from 1 to 1024"},
        {"a\nb slots=-1\n", "h:2: slots: \"-1\" is no whole number from 1 to 1024"},
        {"a slots=8x\n", "h:1: slots: \"8x\" is no whole number from 1 to 1024"},
        {"a slots=\n", "h:1: slots: \"\" is no whole number"},
        {"a slots=1025\n", "h:1: slots: \"1025\" is no whole number"},
        {"a slots= 8\n", "h:1: slots: \"\" is no whole number"},
        {"a:0\n", "h:1: slots: \"0\" is no whole number"},
        {"a:8x\n", "h:1: slots: \"8x\" is no whole number"},
        {"a:\n", "h:1: slots: \"\" is no whole number"},
        {"a:8:8\n", "h:1: slots: \"8:8\" is no whole number"},
        {"fe80::1\n", "h:1: slots: \":1\" is no whole number"},
        {"a:8 slots=8\n", "h:1: a: slots are told twice"},
        {"a slots=8 slots=8\n", "h:1: slots: told twice"},
        {"a slots=8 max-slots=4\n", "h:1: max-slots: 4 is less than slots=8"},
        {"a max-slots=x\n", "h:1: max-slots: \"x\" is no whole number"},
        {"", "h: no host in the file"},
        {"# nobody\n\n", "h: no host in the file"},
        {"a slot=8\n", "h:1: there is no \"slot\" here; did you mean \"slots=\"?"},
        {"a user=me\n", "h:1: there is no \"user\" here; a line is a host and \"slots=\""},
        {"a 8\n", "h:1: \"8\" is not understood: a host, then slots=NUMBER"},
        {"a b\n", "h:1: \"b\" is not understood"},
        {"a,,b\n", "h:1: host: a comma without a host"},
        {"a[1-\n", "h:1: host: \"a[1-\" lacks its ']'"},
        {"a\nb;c\n", "h:2: host: ';' in \"b;c\""},
        {"-oProxyCommand=x\n", "h:1: host: host name \"-oProxyCommand=x\" begins with '-'"},
        {"-x\n", "h:1: host: host name \"-x\" begins with '-'"},
    };

    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct holmes_hostfile h;
        char why[300] = "";

        cr_expect_eq(
            holmes_hostfile_parse("h", rows[i].text, strlen(rows[i].text), &h, why, sizeof why),
            -EINVAL, "passed: %s", rows[i].text);
        cr_expect_eq(strncmp(why, rows[i].says, strlen(rows[i].says)), 0,
                     "%s: says \"%s\", want \"%s\"", rows[i].text, why, rows[i].says);
    }

    struct holmes_hostfile h;
    char why[300] = "";

    cr_expect_eq(holmes_hostfile_parse("h", "a\0b", 3, &h, why, sizeof why), -EINVAL);
    cr_expect_str_eq(why, "h:1: a zero byte; this is no text file");
    cr_expect_eq(holmes_hostfile_read("/no/such/file", &h, why, sizeof why), -ENOENT);
    cr_expect_str_eq(why, "/no/such/file: No such file or directory");
}

Test(hostfile, ten_thousand_lines_are_one_range)
{
    char *text = NULL, why[300];
    size_t len;
    FILE *f = open_memstream(&text, &len);
    struct holmes_hostfile h;

    for (int i = 0; i < 10000; i++)
        fprintf(f, "node%05d slots=8\n", i);
    fclose(f);
    cr_assert_eq(holmes_hostfile_parse("h", text, len, &h, why, sizeof why), 0, "%s", why);
    cr_expect_eq(h.hosts.nhosts, 10000);
    cr_expect_eq(h.hosts.nranges, 1);
    cr_expect_eq(h.slots[9999], 8);
    holmes_hostfile_fini(&h);
    free(text);
}
