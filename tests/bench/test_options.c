#include <criterion/criterion.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "options.h"

#define ARGS_MAX 16

/* Splits `line` at blanks; "''" is an empty argument. */
static int parse(const char *line, struct holmes_bench_options *o, char *why, size_t why_len)
{
    static char text[512];
    char *argv[ARGS_MAX + 2] = {(char *)"holmes-bench"};
    int argc = 1;

    snprintf(text, sizeof text, "%s", line);
    for (char *arg = strtok(text, " "); arg && argc <= ARGS_MAX; arg = strtok(NULL, " "))
        argv[argc++] = strcmp(arg, "''") == 0 ? (char *)"" : arg;
    return holmes_bench_options_parse(argc, argv, o, why, why_len);
}

static struct holmes_bench_options parsed(const char *line)
{
    struct holmes_bench_options o;
    char why[512] = "";

    cr_assert_eq(parse(line, &o, why, sizeof why), 0, "%s: %s", line, why);
    return o;
}

Test(options, defaults_are_those_of_the_help)
{
    struct holmes_bench_options o = parsed("all_reduce");

    cr_assert(o.collective == HOLMES_ALL_REDUCE && o.type == HOLMES_FLOAT32);
    cr_assert(o.nranks == 2 && o.min_bytes == 8 && o.max_bytes == 256 << 20 && o.factor == 2);
    cr_assert(o.iters == 0 && o.rounds == 5 && o.window == 8 && o.timeout_s == 60);
    cr_assert(o.reference && o.check && o.nplugins == 0);
    cr_assert(o.nstreams == 4 && o.streams[0] == 1 && o.streams[2] == 4 && o.streams[3] == 8);
    cr_assert(o.nthreads == 2 && o.threads[0] == 0 && o.threads[1] == 1);
    cr_assert_null(o.csv);
}

Test(options, the_place_of_the_collective_does_not_matter)
{
    struct holmes_bench_options o = parsed("-n 4 -b 1K sendrecv -e 1M --no-check --type bfloat16");

    cr_assert(o.collective == HOLMES_SENDRECV && o.nranks == 4 && o.min_bytes == 1024);
    cr_assert(o.max_bytes == 1 << 20 && !o.check && o.type == HOLMES_BFLOAT16);
}

Test(options, one_measure_of_sendrecv_alone)
{
    struct holmes_bench_options o = parsed("sendrecv --measure bandwidth");

    cr_assert(o.no_latency && !o.no_bandwidth);
    o = parsed("sendrecv --measure latency");
    cr_assert(o.no_bandwidth && !o.no_latency);
    o = parsed("sendrecv --measure latency --measure both");
    cr_assert(!o.no_latency && !o.no_bandwidth);
}

Test(options, plugins_are_labelled_by_name_and_apart)
{
    struct holmes_bench_options o =
        parsed("all_reduce -p a/libnccl-net-holmes.so -p b/libnccl-net-holmes.so -p holmes "
               "-p old=/opt/x=y.so -p ./dir=1/libfoo.so.1");

    cr_assert_eq(o.nplugins, 5);
    cr_assert_str_eq(o.plugins[0].label, "holmes");
    cr_assert_str_eq(o.plugins[1].label, "holmes#2");
    cr_assert_str_eq(o.plugins[2].label, "holmes#3");
    cr_assert_str_eq(o.plugins[3].label, "old");
    cr_assert_str_eq(o.plugins[3].path, "/opt/x=y.so");
    cr_assert_str_eq(o.plugins[4].label, "libfoo");
    cr_assert_str_eq(o.plugins[4].path, "./dir=1/libfoo.so.1");
}

Test(options, a_side_carries_settings_of_its_own)
{
    struct holmes_bench_options o =
        parsed("sendrecv --both-ways -p a=x,y.so,HOLMES_LANES=4,NCCL_IB_HCA==mlx5_0:1,mlx5_1=,_X= "
               "-p ./libnccl-net-b.so,HOLMES_FABRIC=d0=1,d1:1=2");

    cr_assert(o.both_ways && !o.through_nccl);
    cr_assert_str_eq(o.plugins[0].label, "a");
    cr_assert_str_eq(o.plugins[0].path, "x,y.so");
    cr_assert_eq(o.plugins[0].nsettings, 3);
    cr_assert_str_eq(o.plugins[0].settings[0], "HOLMES_LANES=4");
    cr_assert_str_eq(o.plugins[0].settings[1], "NCCL_IB_HCA==mlx5_0:1,mlx5_1=");
    cr_assert_str_eq(o.plugins[0].settings[2], "_X=");
    cr_assert_str_eq(o.plugins[1].label, "b");
    cr_assert_str_eq(o.plugins[1].path, "./libnccl-net-b.so");
    cr_assert_str_eq(o.plugins[1].settings[0], "HOLMES_FABRIC=d0=1,d1:1=2");
    o = parsed("sendrecv");
    cr_assert(!o.both_ways && o.idle_us == 0);
    cr_assert_eq(parsed("sendrecv --idle-us 20").idle_us, 20);
    cr_assert(parsed("all_reduce --backend nccl -p none").through_nccl);
}

Test(options, stream_lists_are_numbers_and_ranges)
{
    static const char *const bad[] = {"",   "0",    "9", "1-9", "4-2", "1,",
                                      ",1", "1--3", "x", "1 2", "12",  "1-"};
    int streams[HOLMES_BENCH_STREAMS_MAX];

    cr_assert_eq(holmes_streams_parse("1-8", streams), 8);
    cr_assert_eq(streams[7], 8);
    cr_assert_eq(holmes_streams_parse("4,1-2,2", streams), 3);
    cr_assert(streams[0] == 1 && streams[1] == 2 && streams[2] == 4);
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        cr_assert_eq(holmes_streams_parse(bad[i], streams), -EINVAL, "took \"%s\"", bad[i]);
}

Test(options, thread_lists_are_numbers_and_the_word_streams)
{
    static const char *const bad[] = {"", "0", "9", "1-2", "stream", "streamss", "1,", ",1", "12"};
    int threads[HOLMES_BENCH_THREADS_MAX];

    cr_assert_eq(holmes_threads_parse("4,streams,2,4", threads), 3);
    cr_assert(threads[0] == 0 && threads[1] == 2 && threads[2] == 4);
    cr_assert_eq(holmes_threads_parse("1,2,3,4,5,6,7,8,streams", threads),
                 HOLMES_BENCH_THREADS_MAX);
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        cr_assert_eq(holmes_threads_parse(bad[i], threads), -EINVAL, "took \"%s\"", bad[i]);
}

Test(options, refuses_naming_value_and_remedy)
{
    static const struct {
        const char *line, *value, *remedy;
    } cases[] = {
        {"", "collective", "all_reduce, all_gather"},
        {"allreduce", "\"allreduce\"", "all_reduce, all_gather"},
        {"all_reduce all_gather", "\"all_gather\"", "one collective"},
        {"all_reduce -b 8x", "\"8x\"", "K, M or G"},
        {"all_reduce -b 0", "\"0\"", "K, M or G"},
        {"all_reduce --max=-4", "\"-4\"", "K, M or G"},
        {"all_reduce -e 2000G", "\"2000G\"", "1024G"},
        {"all_reduce -b 2M -e 1M", "2097152", "1048576"},
        {"all_reduce -e 3 -b 1", "3", "one element"},
        {"all_gather -n 8 -b 8 -e 16", "16", "for each rank"},
        {"all_reduce -n 1", "\"1\"", "2 to 64"},
        {"all_reduce -n 65", "\"65\"", "2 to 64"},
        {"all_reduce -n two", "\"two\"", "2 to 64"},
        {"sendrecv -n 3", "3", "even"},
        {"all_reduce -f 1", "\"1\"", "from 2"},
        {"all_reduce --rounds 0", "\"0\"", "1 to 1000"},
        {"all_reduce --iters 0", "\"0\"", "from 1"},
        {"all_reduce --window 33", "\"33\"", "1 to 32"},
        {"sendrecv --idle-us 1001", "\"1001\"", "0 to 1000"},
        {"all_reduce --timeout 0", "\"0\"", "from 1"},
        {"all_reduce --type int8", "\"int8\"", "float or bfloat16"},
        {"all_reduce --reference-streams 9", "\"9\"", "1 to 8"},
        {"all_reduce --reference-threads all", "\"all\"", "1,streams"},
        {"all_reduce --reference-threads 4 --reference-streams 1,2", "4", "2 at most"},
        {"all_reduce --no-reference", "--plugin", "nothing"},
        {"all_reduce -p =x.so", "\"=x.so\"", "label"},
        {"all_reduce -p a=", "\"a=\"", "no plugin"},
        {"all_reduce -p a=,X=1", "\"a=\"", "no plugin"},
        {"all_reduce -p a=x.so,A=,B=,C=,D=,E=,F=,G=,H=,I=,J=,K=,L=,M=,N=,O=,P=,Q=", "Q=",
         "more than 16 settings"},
        {"all_reduce --both-ways", "--both-ways", "sendrecv"},
        {"all_reduce --backend gpu", "\"gpu\"", "net or nccl"},
        {"all_reduce --backend nccl", "--backend nccl", "none for NCCL's own"},
        {"all_reduce --backend nccl -p none --device eth0", "eth0", "NCCL_SOCKET_IFNAME"},
        {"all_reduce --backend nccl -p none --rtt 20ms", "--rtt", "--backend net"},
        {"sendrecv --measure speed", "\"speed\"", "latency, bandwidth or both"},
        {"all_reduce --measure latency", "--measure", "sendrecv"},
        {"all_reduce -p ''", "\"\"", "no plugin"},
        {"all_reduce -p a=x.so -p a=y.so", "\"a=y.so\"", "taken"},
        {"all_reduce --csv=", "--csv", "name a file"},
    };
    struct holmes_bench_options o;

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char why[512] = "";

        cr_assert_eq(parse(cases[i].line, &o, why, sizeof why), -EINVAL, "took \"%s\"",
                     cases[i].line);
        cr_assert(strstr(why, cases[i].value), "\"%s\": \"%s\" lacks %s", cases[i].line, why,
                  cases[i].value);
        cr_assert(strstr(why, cases[i].remedy), "\"%s\": \"%s\" lacks %s", cases[i].line, why,
                  cases[i].remedy);
        cr_assert_null(strchr(why, '\n'));
    }
}

Test(options, one_value_holds_for_all_links)
{
    struct holmes_bench_options o = parsed("sendrecv --rate 1G,3G --rtt 20ms --loss 0%,1%");

    cr_assert_eq(o.link.nlinks, 2);
    cr_assert_eq(o.link.shapes[0].bits_per_s, 1000000000);
    cr_assert_eq(o.link.shapes[1].bits_per_s, 3000000000);
    for (int k = 0; k < 2; k++)
        cr_assert_eq(o.link.shapes[k].rtt_us, 20000);
    cr_assert_eq(o.link.shapes[0].loss_ppm, 0);
    cr_assert_eq(o.link.shapes[1].loss_ppm, 10000);
    o = parsed("sendrecv --rtt 1ms");
    cr_assert(o.link.nlinks == 1 && o.link.shapes[0].bits_per_s == 0);
    cr_assert_eq(parsed("sendrecv").link.nlinks, 0);
}

Test(options, links_that_do_not_fit_are_named)
{
    static const char *const bad[][2] = {{"sendrecv --rate 1G,2G --rtt 1ms,2ms,3ms", "2, 3 and 0"},
                                         {"sendrecv --rate fast", "\"fast\""},
                                         {"sendrecv --rtt 5", "20ms"},
                                         {"sendrecv --loss 1", "1%"},
                                         {"sendrecv --relay", "no links"}};
    struct holmes_bench_options o;
    char why[512];

    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        cr_assert_eq(parse(bad[i][0], &o, why, sizeof why), -EINVAL, "took %s", bad[i][0]);
        cr_assert(strstr(why, bad[i][1]), "%s: %s", bad[i][0], why);
    }
}
