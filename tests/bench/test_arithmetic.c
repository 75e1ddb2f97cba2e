#include <criterion/criterion.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "collective.h"
#include "pattern.h"
#include "size.h"
#include "stats.h"

Test(size, takes_bytes_and_powers_of_1024)
{
    static const struct {
        const char *text;
        uint64_t bytes;
    } good[] = {{"8", 8},        {"0", 0},        {"4K", 4096},          {"4k", 4096},
                {"1M", 1 << 20}, {"1G", 1 << 30}, {"1024G", 1ull << 40}, {"007", 7}};
    uint64_t bytes;

    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
        cr_assert_eq(holmes_size_parse(good[i].text, &bytes), 0, "%s was refused", good[i].text);
        cr_assert_eq(bytes, good[i].bytes, "%s gave %ju", good[i].text, (uintmax_t)bytes);
    }
}

Test(size, refuses_everything_else)
{
    static const char *const bad[] = {"",    "8x",   "-1",   "+1",  " 8", "8 ",   "K",
                                      "1KB", "1.5M", "0x10", "8MM", "1T", "eight"};
    static const char *const big[] = {"1025G", "99999999999999999999999", "1099511627777"};
    uint64_t bytes = 77;

    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        cr_assert_eq(holmes_size_parse(bad[i], &bytes), -EINVAL, "took \"%s\"", bad[i]);
    for (size_t i = 0; i < sizeof big / sizeof big[0]; i++)
        cr_assert_eq(holmes_size_parse(big[i], &bytes), -ERANGE, "took \"%s\"", big[i]);
    cr_assert_eq(bytes, 77, "written on failure");
}

Test(size, reads_as_people_say_it)
{
    static const struct {
        uint64_t bytes;
        const char *text;
    } cases[] = {{8, "8 B"}, {1024, "1 KiB"}, {1536, "1.5 KiB"}, {256 << 20, "256 MiB"}};
    char buf[32];

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        holmes_size_format(cases[i].bytes, buf, sizeof buf);
        cr_assert_str_eq(buf, cases[i].text);
    }
}

Test(number, is_whole_and_within_its_bounds)
{
    static const char *const bad[] = {"", "1", "65", "2x", "-2", " 2", "99999999999999999999"};
    long n;

    cr_assert_eq(holmes_number_parse("64", 2, 64, &n), 0);
    cr_assert_eq(n, 64);
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        cr_assert_eq(holmes_number_parse(bad[i], 2, 64, &n), -EINVAL, "took \"%s\"", bad[i]);
}

Test(stats, median_is_the_middle_in_any_order)
{
    const double odd[] = {9, 1, 5}, even[] = {4, 1, 3, 2}, one[] = {7};
    struct holmes_stats s = holmes_stats_of(odd, 3);

    cr_assert_eq(s.median, 5);
    cr_assert_eq(s.min, 1);
    cr_assert_eq(s.max, 9);
    cr_assert_eq(holmes_stats_of(even, 4).median, 2.5);
    cr_assert_eq(holmes_stats_of(even, 4).q1, 1.75);
    cr_assert_eq(holmes_stats_of(even, 4).q3, 3.25);
    cr_assert(s.q1 == 3 && s.q3 == 7);
    cr_assert_eq(holmes_stats_of(one, 1).q3, 7);
    cr_assert_eq(holmes_stats_of(one, 1).median, 7);
    cr_assert(isnan(holmes_stats_of(NULL, 0).median));
}

Test(stats, percentiles_are_values_that_occurred)
{
    float hundred[100], one[] = {7}, two[] = {9, 3};
    struct holmes_percentiles p;

    for (int i = 0; i < 100; i++)
        hundred[i] = (float)(100 - i);
    p = holmes_percentiles_of(hundred, 100);
    cr_assert(p.p50 == 50 && p.p99 == 99 && p.max == 100, "%g %g %g", p.p50, p.p99, p.max);
    p = holmes_percentiles_of(one, 1);
    cr_assert(p.p50 == 7 && p.p99 == 7 && p.max == 7);
    p = holmes_percentiles_of(two, 2);
    cr_assert(p.p50 == 3 && p.p99 == 9 && p.max == 9);
    cr_assert(isnan(holmes_percentiles_of(NULL, 0).p99));
}

Test(stats, speedup_pairs_the_rounds_so_that_drift_cancels)
{
    /* The machine slows down threefold; in every round ours takes half the time. */
    const double base[] = {10, 20, 30}, ours[] = {5, 10, 15};
    /* Medians of the two (20 and 10) would say 2, the rounds say 4. */
    const double base2[] = {40, 20, 4}, ours2[] = {10, 5, 100};

    cr_assert_eq(holmes_stats_speedup(ours, base, 3), 2);
    cr_assert_eq(holmes_stats_speedup(ours2, base2, 3), 4);
    cr_assert(isnan(holmes_stats_speedup(ours, base, 0)));
}

Test(collective, bus_factors_are_those_of_nccl_tests)
{
    static const struct {
        enum holmes_collective c;
        int n;
        double factor;
    } cases[] = {
        {HOLMES_ALL_REDUCE, 2, 1.0},      {HOLMES_ALL_REDUCE, 4, 1.5},
        {HOLMES_ALL_REDUCE, 64, 1.96875}, {HOLMES_ALL_GATHER, 2, 0.5},
        {HOLMES_ALL_GATHER, 8, 0.875},    {HOLMES_REDUCE_SCATTER, 4, 0.75},
        {HOLMES_SENDRECV, 2, 1.0},        {HOLMES_SENDRECV, 8, 1.0},
    };

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        cr_assert_float_eq(holmes_collective_factor(cases[i].c, cases[i].n), cases[i].factor, 1e-12,
                           "case %zu", i);
}

Test(collective, names_are_read_back)
{
    enum holmes_collective c;

    for (int i = 0; i < HOLMES_COLLECTIVE_COUNT; i++) {
        cr_assert_eq(holmes_collective_parse(holmes_collective_name(i), &c), 0);
        cr_assert_eq((int)c, i);
    }
    cr_assert_eq(holmes_collective_parse("allreduce", &c), -EINVAL);
    cr_assert_eq(holmes_collective_parse("", &c), -EINVAL);
}

Test(collective, sizes_are_cut_to_whole_elements_and_blocks)
{
    struct holmes_shape s;

    cr_assert(holmes_shape_of(HOLMES_ALL_REDUCE, 1003, 3, HOLMES_FLOAT32, &s));
    cr_assert(s.size_bytes == 1000 && s.count == 250 && s.in_bytes == 1000 && s.out_bytes == 1000);
    cr_assert(holmes_shape_of(HOLMES_ALL_GATHER, 1003, 4, HOLMES_FLOAT32, &s));
    cr_assert(s.size_bytes == 992 && s.count == 62 && s.in_bytes == 248 && s.out_bytes == 992);
    cr_assert(holmes_shape_of(HOLMES_REDUCE_SCATTER, 1003, 4, HOLMES_BFLOAT16, &s));
    cr_assert(s.size_bytes == 1000 && s.count == 125 && s.in_bytes == 1000 && s.out_bytes == 250);
    cr_assert_not(holmes_shape_of(HOLMES_ALL_GATHER, 8, 4, HOLMES_FLOAT32, &s));
    cr_assert_not(holmes_shape_of(HOLMES_SENDRECV, 3, 2, HOLMES_FLOAT32, &s));
}

Test(collective, window_bounds_the_receive_buffers)
{
    cr_assert_eq(holmes_window_of(8, 8), 8);
    cr_assert_eq(holmes_window_of(8 << 20, 8), 8);
    cr_assert_eq(holmes_window_of(16 << 20, 8), 4);
    cr_assert_eq(holmes_window_of(256 << 20, 8), 2);
    cr_assert_eq(holmes_window_of(256 << 20, 1), 1);
}

Test(collective, buffers_of_a_window_hold_every_smaller_size_too)
{
    static const size_t windows[] = {1, 2, 3, 8, 32};
    static const uint64_t most[] = {8, 4096, 3 << 20, 16 << 20, 100 << 20};

    for (size_t w = 0; w < sizeof windows / sizeof windows[0]; w++)
        for (size_t m = 0; m < sizeof most / sizeof most[0]; m++)
            for (uint64_t size = 1; size <= most[m]; size += size / 7 + 1)
                cr_assert_leq(size * holmes_window_of(size, windows[w]),
                              holmes_window_bytes_max(most[m], windows[w]), "%zu messages of %ju",
                              windows[w], (uintmax_t)size);
    cr_assert_eq(holmes_window_bytes_max(4096, 8), 8 * 4096);
}

/* --- contents of the buffers ------------------------------------------------------------------ */

static const enum holmes_dtype types[] = {HOLMES_FLOAT32, HOLMES_BFLOAT16};

static float value_of(const void *buf, size_t i, enum holmes_dtype t)
{
    uint32_t bits;
    float f;

    if (t == HOLMES_FLOAT32)
        return ((const float *)buf)[i];
    bits = (uint32_t)((const uint16_t *)buf)[i] << 16;
    memcpy(&f, &bits, sizeof f);
    return f;
}

static void value_set(void *buf, size_t i, enum holmes_dtype t, float f)
{
    uint32_t bits;

    memcpy(&bits, &f, sizeof bits);
    if (t == HOLMES_FLOAT32)
        ((float *)buf)[i] = f;
    else
        ((uint16_t *)buf)[i] = (uint16_t)(bits >> 16);
}

Test(pattern, what_was_filled_is_right_and_each_changed_element_counts)
{
    enum { N = 1000 };
    float buf[N];

    for (int t = 0; t < 2; t++) {
        holmes_pattern_fill(buf, 0, N, types[t], 3, 9);
        cr_assert_eq(holmes_pattern_check(buf, 0, N, types[t], 3, 9), 0);
        value_set(buf, 0, types[t], value_of(buf, 0, types[t]) + 1);
        value_set(buf, N - 1, types[t], -1);
        cr_assert_eq(holmes_pattern_check(buf, 0, N, types[t], 3, 9), 2);
        holmes_pattern_poison(buf, sizeof buf);
        cr_assert_eq(holmes_pattern_check(buf, 0, N, types[t], 3, 9), N, "poison passes as data");
    }
}

Test(pattern, another_rank_place_or_salt_is_seen)
{
    enum { N = 4096 };
    static float buf[N];

    for (int t = 0; t < 2; t++) {
        /* bfloat16 has four values: a quarter matches by chance. */
        uint64_t most = t == 0 ? N * 9 / 10 : N / 2;

        holmes_pattern_fill(buf, 0, N, types[t], 3, 9);
        cr_assert_gt(holmes_pattern_check(buf, 0, N, types[t], 2, 9), most, "rank");
        cr_assert_gt(holmes_pattern_check(buf, 0, N, types[t], 3, 8), most, "salt");
        cr_assert_gt(holmes_pattern_check(buf, 1, N, types[t], 3, 9), most, "place");
        cr_assert_gt(holmes_pattern_check(buf, 4, N, types[t], 3, 9), most, "place");
    }
}

Test(pattern, sums_are_exact_for_64_ranks_and_miss_no_addend)
{
    enum { N = 512, FIRST = 100 };
    float in[N], sum[N] = {0}, out[N];

    for (int t = 0; t < 2; t++) {
        memset(sum, 0, sizeof sum);
        for (int rank = 0; rank < 64; rank++) {
            holmes_pattern_fill(in, FIRST, N, types[t], rank, 5);
            for (size_t i = 0; i < N; i++)
                sum[i] += value_of(in, i, types[t]);
        }
        for (size_t i = 0; i < N; i++) {
            value_set(out, i, types[t], sum[i]);
            cr_assert_eq(value_of(out, i, types[t]), sum[i], "the sum %g is not exact", sum[i]);
        }
        cr_assert_eq(holmes_pattern_check_sum(out, FIRST, N, types[t], 64, 5), 0);
        cr_assert_gt(holmes_pattern_check_sum(out, FIRST, N, types[t], 63, 5), N / 2);
        cr_assert_gt(holmes_pattern_check_sum(out, 0, N, types[t], 64, 5), N / 2);
    }
}
