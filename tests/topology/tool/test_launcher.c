#include <criterion/criterion.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "topology/tool/launcher.h"

static const struct {
    const char *template, *host;
    const char *argv[4], *want[10];
} cases[] = {
    {"ssh -oBatchMode=yes {host}",
     "n1",
     {"holmes-topo", "discover", "--json"},
     {"ssh", "-oBatchMode=yes", "n1", "holmes-topo discover --json"}},
    {"/usr/bin/ssh -l me {host}",
     "n1",
     {"sh", "-c", "echo it's $HOME"},
     {"/usr/bin/ssh", "-l", "me", "n1", "sh -c 'echo it'\\''s $HOME'"}},
    {"ssh {host}", "n1", {"a", ""}, {"ssh", "n1", "a ''"}},
    {"srun -N1 -n1 -w {host}",
     "n1",
     {"sh", "-c", "a  b"},
     {"srun", "-N1", "-n1", "-w", "n1", "sh", "-c", "a  b"}},
    {"ip netns exec {host}", "a0", {"true"}, {"ip", "netns", "exec", "a0", "true"}},
    {"  kubectl\texec {host}-0 --  ", "p", {"x"}, {"kubectl", "exec", "p-0", "--", "x"}},
    {"ssh gate ssh root@{host} '{command}'",
     "n1",
     {"a", "b c"},
     {"ssh", "gate", "ssh", "root@n1", "a 'b c'"}},
    {"'my ssh' \"a \\\" b\" c\\ d {host}", "n1", {"x"}, {"my ssh", "a \" b", "c d", "n1", "x"}},
    {"env A='' '' {host}{host}", "n", {"x"}, {"env", "A=", "", "nn", "x"}},
};

Test(launcher, makes_the_words_of_each_form)
{
    char why[256];

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct holmes_launcher l;
        char **argv;
        int n;

        cr_assert_eq(holmes_launcher_parse(cases[i].template, &l, why, sizeof why), 0, "%s", why);
        argv = holmes_launcher_argv(&l, cases[i].host, (char *const *)cases[i].argv);
        for (n = 0; argv[n] && cases[i].want[n]; n++)
            cr_assert_str_eq(argv[n], cases[i].want[n], "\"%s\" word %d is \"%s\", not \"%s\"",
                             cases[i].template, n, argv[n], cases[i].want[n]);
        cr_assert(!argv[n] && !cases[i].want[n], "\"%s\" has not %d words", cases[i].template, n);
        free(argv);
        holmes_launcher_fini(&l);
    }
}

Test(launcher, refuses_what_cannot_be_meant_and_says_what_would_be)
{
    static const struct {
        const char *template, *says;
    } bad[] = {
        {"", "it is empty"},
        {"   ", "it is empty"},
        {"ssh host", "it has no {host}"},
        {"ssh '{host}", "a quotation mark is not closed"},
        {"ssh {host}\\", "a backslash is its last character"},
        {"a a a a a a a a a a a a a a a a a a a a a a a a a a a a a a a a a a a a a a a a a a a a "
         "a a "
         "a a a a a a a a a a a a a a a a a a {host}",
         "more than 64 words"},
    };
    char why[512];

    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        struct holmes_launcher l;

        why[0] = '\0';
        cr_assert_eq(holmes_launcher_parse(bad[i].template, &l, why, sizeof why), -EINVAL);
        cr_assert(strstr(why, bad[i].says), "\"%s\": %s", bad[i].template, why);
        cr_assert(strstr(why, bad[i].template) && strstr(why, "ssh -o"), "%s", why);
    }
}

Test(launcher, takes_no_host_name_that_is_an_option_or_more_than_a_word)
{
    static const char *const good[] = {"a", "a0001-ib.lab.example", "me@10.0.0.1", "fe80::1", "_x"};
    static const char *const bad[] = {"",      "-oProxyCommand=x", "a b", "a;b", "$(x)", "a\nb",
                                      "{host}"};
    char why[256];

    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++)
        cr_assert_eq(holmes_launcher_check_host(good[i], why, sizeof why), 0, "%s", why);
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        cr_assert_eq(holmes_launcher_check_host(bad[i], why, sizeof why), -EINVAL,
                     "\"%s\" is taken", bad[i]);
        cr_assert(strstr(why, bad[i]), "%s", why);
    }
}
