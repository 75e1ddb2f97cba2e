/* The recorder and its file: what comes out is JSON that viewers take, with the newest events where
 * there is not room for all, and one time for ranks whose clocks differ. */
#include <criterion/criterion.h>
#include <errno.h>
#include <jansson.h>
#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "trace.h"

static void tear_down(void)
{
    holmes_trace_stop();
}

TestSuite(trace, .fini = tear_down);

/* What was recorded as a document, rank 3 of one; it is the caller's. */
static json_t *written(const struct holmes_trace_part *parts, int nparts, uint64_t *events,
                       uint64_t *dropped)
{
    char *text = NULL;
    size_t len = 0;
    FILE *f = open_memstream(&text, &len);
    json_error_t error;
    json_t *doc;

    cr_assert_eq(holmes_trace_write(f, parts, nparts, events, dropped), 0);
    fclose(f);
    doc = json_loads(text, 0, &error);
    cr_assert_not_null(doc, "line %d: %s", error.line, error.text);
    free(text);
    return doc;
}

static json_t *pack_and_write(uint64_t *events, uint64_t *dropped)
{
    struct holmes_trace_part part = {.rank = 3, .process = "rank 3 on \"b0\"\n"};
    void *data = NULL;
    json_t *doc;

    cr_assert_eq(holmes_trace_pack(&data, &part.len), 0);
    part.data = data;
    doc = written(&part, 1, events, dropped);
    free(data);
    return doc;
}

static const char *text_of(const json_t *event, const char *key)
{
    const char *s = json_string_value(json_object_get(event, key));

    return s ? s : "";
}

/* The first complete event of that name, or NULL. */
static json_t *find(json_t *doc, const char *name)
{
    json_t *event;
    size_t i;

    json_array_foreach(json_object_get(doc, "traceEvents"), i, event)
    {
        if (strcmp(text_of(event, "ph"), "X") == 0 && strcmp(text_of(event, "name"), name) == 0)
            return event;
    }
    return NULL;
}

static json_int_t number(const json_t *object, const char *key)
{
    return json_integer_value(json_object_get(object, key));
}

Test(trace, costs_and_records_nothing_while_it_is_off)
{
    void *data;
    size_t len;

    cr_expect_eq(holmes_trace_begin(), 0);
    holmes_trace_end(0, "compute", "forward %d", 1);
    holmes_trace_add(1, 2, 3, "dp.0", "reduce-scatter 0");
    cr_expect_eq(holmes_trace_pack(&data, &len), -EINVAL);
}

Test(trace, writes_processes_tracks_and_events)
{
    uint64_t events, dropped, begin;
    json_t *doc, *e;
    char name[HOLMES_TRACE_NAME];

    cr_assert_eq(holmes_trace_start(16), 0);
    begin = holmes_trace_begin();
    cr_assert_gt(begin, 0);
    holmes_trace_step(7);
    holmes_trace_end(begin, "compute", "forward %d", 4);
    holmes_trace_step(0);
    holmes_trace_add(begin, begin + 2500, 4096, "dp.0", "reduce-scatter 2");
    holmes_trace_name_next("all-gather %d", 5);
    holmes_trace_take_name(name, "other");
    cr_expect_str_eq(name, "all-gather 5");
    holmes_trace_take_name(name, "other");
    cr_expect_str_eq(name, "other", "a name is taken once");

    doc = pack_and_write(&events, &dropped);
    cr_expect_eq(events, 2);
    cr_expect_eq(dropped, 0);
    e = find(doc, "forward 4");
    cr_assert_not_null(e);
    cr_expect_str_eq(text_of(e, "cat"), "compute");
    cr_expect_eq(number(e, "pid"), 3);
    cr_expect_eq(number(json_object_get(e, "args"), "step"), 7);
    e = find(doc, "reduce-scatter 2");
    cr_assert_not_null(e);
    cr_expect_str_eq(text_of(e, "cat"), "dp");
    cr_expect_eq(number(json_object_get(e, "args"), "bytes"), 4096);
    cr_expect_null(json_object_get(json_object_get(e, "args"), "step"));
    cr_expect_float_eq(json_real_value(json_object_get(e, "dur")), 2.5, 1e-9);
    json_decref(doc);
}

Test(trace, keeps_the_newest_events_and_says_how_many_it_lost)
{
    uint64_t events, dropped;
    char name[HOLMES_TRACE_NAME];
    json_t *doc;

    cr_assert_eq(holmes_trace_start(8), 0);
    for (int i = 0; i < 20; i++) {
        snprintf(name, sizeof name, "event %d", i);
        holmes_trace_add(1000 + (uint64_t)i, 1001 + (uint64_t)i, 0, "compute", name);
    }
    doc = pack_and_write(&events, &dropped);
    cr_expect_eq(events, 8);
    cr_expect_eq(dropped, 12);
    cr_expect_eq(number(json_object_get(doc, "otherData"), "dropped"), 12);
    cr_expect_null(find(doc, "event 11"));
    cr_expect_not_null(find(doc, "event 12"));
    cr_expect_not_null(find(doc, "event 19"));
    json_decref(doc);
}

static void *record_many(void *arg)
{
    for (int i = 0; i < 2000; i++)
        holmes_trace_add(1, 2, 0, arg, "x");
    return NULL;
}

Test(trace, takes_events_of_several_threads)
{
    uint64_t events, dropped;
    pthread_t a, b;

    cr_assert_eq(holmes_trace_start(8192), 0);
    cr_assert_eq(pthread_create(&a, NULL, record_many, (void *)"dp.0"), 0);
    cr_assert_eq(pthread_create(&b, NULL, record_many, (void *)"pp.0.1 send"), 0);
    pthread_join(a, NULL);
    pthread_join(b, NULL);
    json_decref(pack_and_write(&events, &dropped));
    cr_expect_eq(events, 4000);
}

/* --- ranks -------------------------------------------------------------------------------------
 */

/* The packed header as trace.c lays it out: tests build those of other machines. */
struct head {
    char magic[8];
    uint64_t count, dropped, marks[9];
    uint32_t nmarks, ntracks;
    char machine[40];
};

static void *pack_one(uint64_t at, size_t *len)
{
    void *data = NULL;

    cr_assert_eq(holmes_trace_start(4), 0);
    for (int i = 0; i < 9; i++)
        holmes_trace_mark();
    holmes_trace_add(at, at + 1000, 0, "compute", "forward 0");
    cr_assert_eq(holmes_trace_pack(&data, len), 0);
    return data;
}

/* The clock of rank 1 is `ahead` of rank 0's; marks are up to 3 us late, but for one by 5 ms. */
static double shown_difference(int64_t ahead, const char *machine)
{
    struct holmes_trace_part parts[2] = {{.rank = 0, .process = "rank 0"},
                                         {.rank = 1, .process = "rank 1"}};
    uint64_t events, dropped, at = 1000000000000;
    void *data[2];
    struct head *h[2];
    json_t *doc, *event;
    double ts[2] = {NAN, NAN};
    size_t i;

    for (int r = 0; r < 2; r++) {
        data[r] = pack_one(at + (r ? (uint64_t)ahead : 0), &parts[r].len);
        parts[r].data = data[r];
        h[r] = data[r];
        for (uint64_t m = 0; m < 9; m++)
            h[r]->marks[m] = at - 1000000 + m * 50000 +
                             (r ? (uint64_t)ahead + m % 4 * 1000 + (m == 2 ? 5000000 : 0) : 0);
    }
    snprintf(h[1]->machine, sizeof h[1]->machine, "%s", machine);
    snprintf(h[0]->machine, sizeof h[0]->machine, "one");
    doc = written(parts, 2, &events, &dropped);
    json_array_foreach(json_object_get(doc, "traceEvents"), i, event)
    {
        if (strcmp(text_of(event, "name"), "forward 0") == 0)
            ts[number(event, "pid")] = json_number_value(json_object_get(event, "ts"));
    }
    json_decref(doc);
    free(data[0]);
    free(data[1]);
    cr_expect_float_eq(ts[0], 1000, 1e-6, "ts counts from the first mark");
    return ts[1] - ts[0];
}

Test(trace, aligns_the_clocks_of_other_machines)
{
    /* Both events happened at the same time. */
    cr_expect_float_eq(shown_difference(123456789012, "two"), 0, 4);
    cr_expect_float_eq(shown_difference(-123456789, "two"), 0, 4);
}

Test(trace, takes_the_ranks_of_one_machine_to_have_one_clock)
{
    cr_expect_float_eq(shown_difference(0, "one"), 0, 1e-6);
    /* Unless it cannot be: containers may have clocks of their own. */
    cr_expect_float_eq(shown_difference(5000000000, "one"), 0, 4);
}

Test(trace, refuses_parts_that_were_damaged)
{
    struct holmes_trace_part part = {.rank = 0, .process = "rank 0"};
    uint64_t events, dropped;
    size_t len;
    char *good = pack_one(5000, &len), *bad = malloc(len);
    FILE *f = fopen("/dev/null", "w");

    part.data = bad;
    for (size_t cut = 0; cut < len; cut += 13) {
        memcpy(bad, good, len);
        part.len = cut;
        cr_expect_eq(holmes_trace_write(f, &part, 1, &events, &dropped), -EBADMSG, "cut to %zu",
                     cut);
    }
    part.len = len;
    memset(bad + offsetof(struct head, ntracks), 0xff, 4);
    cr_expect_eq(holmes_trace_write(f, &part, 1, &events, &dropped), -EBADMSG);
    memcpy(bad, good, len);
    memset(bad + offsetof(struct head, nmarks), 0xff, 4);
    cr_expect_eq(holmes_trace_write(f, &part, 1, &events, &dropped), -EBADMSG);
    memcpy(bad, good, len);
    memset(bad + len - HOLMES_TRACE_EVENT_BYTES, 0xff, 8); /* begins after its end */
    cr_expect_eq(holmes_trace_write(f, &part, 1, &events, &dropped), -EBADMSG);
    fclose(f);
    free(good);
    free(bad);
}
