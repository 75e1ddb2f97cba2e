#include <criterion/criterion.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "svg.h"
#include "tests/support/xml_check.h"

struct page {
    char *text;
    size_t len;
    FILE *f;
};

static void page_open(struct page *p, const char *title)
{
    p->f = open_memstream(&p->text, &p->len);
    holmes_svg_begin(p->f, 800, 400, title);
}

static void page_close(struct page *p)
{
    const char *bad;

    cr_assert_eq(holmes_svg_end(p->f), 0);
    fclose(p->f);
    bad = xml_check(p->text);
    cr_assert_null(bad, "not well-formed from: %.80s", bad);
    cr_assert_null(strstr(p->text, "nan"));
    cr_assert_null(strstr(p->text, "inf"));
}

static int count(const char *text, const char *what)
{
    int n = 0;

    for (; (text = strstr(text, what)) != NULL; text++)
        n++;
    return n;
}

Test(svg, the_checker_tells_broken_xml)
{
    static const char *const bad[] = {
        "",         "<a>",         "<a></b>",  "<a b=c/>",          "<a>&</a>", "<a b=\"<\"/>",
        "<a/><a/>", "<a>\x01</a>", "<a></a>x", "<a b=\"\" b=\"\"/>"};

    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        cr_assert_not_null(xml_check(bad[i]), "took %s", bad[i]);
    cr_assert_null(xml_check("<?xml version=\"1.0\"?>\n<a b=\"&lt;\"><c/>x &amp; y</a>\n"));
}

Test(svg, any_text_stays_well_formed)
{
    static const double x[] = {1, 2}, y[] = {1, 2};
    struct holmes_svg_series s = {"a<b>&\"'\x01\xff\xc3(", x, y, 2};
    struct holmes_svg_chart c = {.title = "</svg>",
                                 .subtitle = "日本 & µ",
                                 .x = {"<x>"},
                                 .y = {"\033[2J"},
                                 .series = &s,
                                 .nseries = 1};
    struct page p;

    page_open(&p, "<&>");
    holmes_svg_lines(p.f, 0, 0, 800, 400, &c);
    page_close(&p);
    cr_assert(strstr(p.text, "a&lt;b&gt;&amp;&quot;&#39;&#xFFFD;&#xFFFD;&#xFFFD;("));
    cr_assert(strstr(p.text, "日本 &amp; µ"));
    free(p.text);
}

Test(svg, log_axes_mark_decades_and_byte_sizes)
{
    static const double x[] = {8, 1024, 268435456}, y[] = {0.01, 1, 10};
    struct holmes_svg_series s = {"plugin", x, y, 3};
    struct holmes_svg_chart c = {.title = "t",
                                 .x = {"size", HOLMES_SVG_LOG2},
                                 .y = {"GB/s", HOLMES_SVG_LOG10},
                                 .series = &s,
                                 .nseries = 1};
    struct page p;

    page_open(&p, "t");
    holmes_svg_lines(p.f, 0, 0, 800, 400, &c);
    page_close(&p);
    cr_assert(strstr(p.text, ">8</text>"));
    cr_assert(strstr(p.text, "K</text>"));
    cr_assert(strstr(p.text, ">0.01</text>"));
    cr_assert(strstr(p.text, ">10</text>"));
    cr_assert_eq(count(p.text, "<circle"), 4, "three points and the legend");
    free(p.text);
}

Test(svg, values_a_scale_cannot_show_make_a_gap)
{
    const double x[] = {1, 2, 3, 4, 5}, y[] = {1, NAN, 0, 10, INFINITY};
    struct holmes_svg_series s = {"s", x, y, 5};
    struct holmes_svg_chart c = {
        .title = "t", .x = {"x"}, .y = {"y", HOLMES_SVG_LOG10}, .series = &s, .nseries = 1};
    struct page p;
    const char *path;

    page_open(&p, "t");
    holmes_svg_lines(p.f, 0, 0, 800, 400, &c);
    page_close(&p);
    path = strstr(p.text, "<path class=\"s0\" d=\"");
    cr_assert_not_null(path);
    cr_assert_null(memchr(path, 'L', strcspn(path, "\n")), "the gap was drawn over");
    cr_assert_eq(count(p.text, "<circle"), 3);
    free(p.text);
}

Test(svg, a_band_lies_behind_its_line_and_breaks_where_it_has_no_edge)
{
    const double x[] = {1, 2, 3, 4, 5}, y[] = {2, 2, 2, 2, 2};
    const double low[] = {1, 1, NAN, 1, 1}, high[] = {3, 40, 3, 3, 3};
    struct holmes_svg_series s = {.name = "s", .x = x, .y = y, .n = 5, .low = low, .high = high};
    struct holmes_svg_chart c = {.title = "t", .x = {"x"}, .y = {"y"}, .series = &s, .nseries = 1};
    struct page p;

    page_open(&p, "t");
    holmes_svg_lines(p.f, 0, 0, 800, 400, &c);
    page_close(&p);
    cr_assert_eq(count(p.text, "fill-opacity=\"0.15\""), 2, "two pieces of a band");
    cr_assert(strstr(p.text, ">40</text>"), "the axis does not reach the band's edge");
    cr_assert_lt(strstr(p.text, "fill-opacity"), strstr(p.text, "class=\"s0\""));
    free(p.text);
}

Test(svg, empty_and_constant_data_still_make_a_chart)
{
    static const double x[] = {5}, y[] = {0};
    struct holmes_svg_series s[] = {{"none", x, y, 0}, {"point", x, y, 1}};
    struct holmes_svg_chart c = {.title = "t", .x = {"x"}, .y = {"y"}, .series = s};
    struct holmes_svg_bars b = {.title = "b", .value_label = "v"};
    struct page p;

    page_open(&p, "t");
    for (c.nseries = 0; c.nseries <= 2; c.nseries++)
        holmes_svg_lines(p.f, 0, 0, 400, 200, &c);
    c.nseries = 2;
    c.x.scale = c.y.scale = HOLMES_SVG_LOG2;
    holmes_svg_lines(p.f, 0, 0, 400, 200, &c);
    holmes_svg_bars(p.f, 400, 0, 400, 200, &b);
    page_close(&p);
    free(p.text);
}

Test(svg, bars_stand_on_zero_and_carry_their_value)
{
    static const char *const groups[] = {"naive", "planned"}, *const names[] = {"pp", "dp"};
    const double values[] = {1, 120, 3.5, NAN};
    struct holmes_svg_bars b = {.title = "bytes",
                                .value_label = "MB",
                                .groups = groups,
                                .ngroups = 2,
                                .names = names,
                                .nnames = 2,
                                .values = values};
    struct page p;

    page_open(&p, "t");
    holmes_svg_bars(p.f, 0, 0, 800, 400, &b);
    page_close(&p);
    cr_assert(strstr(p.text, ">120</text>"));
    cr_assert(strstr(p.text, ">3.5</text>"));
    cr_assert(strstr(p.text, ">planned</text>"));
    cr_assert_eq(count(p.text, "fill=\""
                               "#0072b2"
                               "\"/>"),
                 3, "two bars and the legend");
    free(p.text);
}

Test(svg, a_series_and_a_bar_may_wear_the_colour_of_another)
{
    static const double x[] = {1, 2}, y[] = {1, 2};
    const struct holmes_svg_series s[] = {
        {"a", x, y, 2}, {"b", x, y, 2}, {"of b", x, y, 2, .colour = 2, .dashed = true}};
    struct holmes_svg_chart c = {.title = "t", .x = {"x"}, .y = {"y"}, .series = s, .nseries = 3};
    static const char *const groups[] = {"g"}, *const names[] = {"n"};
    static const size_t colours[] = {7};
    static const double values[] = {1};
    struct holmes_svg_bars b = {.title = "b",
                                .value_label = "v",
                                .groups = groups,
                                .ngroups = 1,
                                .names = names,
                                .nnames = 1,
                                .values = values,
                                .colours = colours};
    struct page p;

    page_open(&p, "t");
    holmes_svg_lines(p.f, 0, 0, 400, 200, &c);
    holmes_svg_bars(p.f, 400, 0, 400, 200, &b);
    page_close(&p);
    cr_expect_eq(count(p.text, "<path class=\"s1\""), 3, "b's line, the dashed one, its legend");
    cr_expect_eq(count(p.text, "stroke-dasharray"), 2);
    cr_expect_null(strstr(p.text, "\"s2\""));
    cr_expect_eq(count(p.text, "class=\"f7\""), 2, "the bar and its legend");
    free(p.text);
}

Test(svg, an_inline_picture_has_no_declaration_and_no_background)
{
    struct page p;

    p.f = open_memstream(&p.text, &p.len);
    holmes_svg_begin_inline(p.f, 300, 200, "a & b");
    holmes_svg_text(p.f, 10, 20, 12, "start", "x < y");
    page_close(&p);
    cr_expect_eq(strncmp(p.text, "<svg viewBox=\"0 0 300 200\"", 26), 0);
    cr_expect_null(strstr(p.text, "#ffffff"));
    cr_expect_not_null(strstr(p.text, ">x &lt; y</text>"));
    free(p.text);
}

Test(svg, end_tells_a_full_device)
{
    FILE *full = fopen("/dev/full", "w");

    cr_assert_not_null(full);
    holmes_svg_begin(full, 10, 10, "t");
    cr_assert_eq(holmes_svg_end(full), -EIO);
    fclose(full);
}
