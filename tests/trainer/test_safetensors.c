/* Reading and writing of safetensors files: what the format asks for, and what is refused. */
#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "../support/test_folder.h"
#include "safetensors.h"

static char dir[TEST_FOLDER_MAX];

static void set_up(void)
{
    test_folder_make(dir, "safetensors");
}

static void tear_down(void)
{
    test_folder_remove(dir);
}

TestSuite(safetensors, .init = set_up, .fini = tear_down);

static const char *in_dir(const char *name)
{
    static char path[128];

    snprintf(path, sizeof path, "%s/%s", dir, name);
    return path;
}

/* The length, the header, `data` zero bytes. */
static size_t file_of(const char *header, size_t data, uint8_t *out)
{
    const size_t n = strlen(header);

    for (int i = 0; i < 8; i++)
        out[i] = (uint8_t)((uint64_t)n >> (8 * i));
    memcpy(out + 8, header, n);
    memset(out + 8 + n, 0, data);
    return 8 + n + data;
}

static void check(const char *header, size_t data, const char *says)
{
    uint8_t bytes[4096];
    const size_t len = file_of(header, data, bytes);
    struct holmes_st *s = NULL;
    char why[512] = "";
    const int rc = holmes_st_parse("x.safetensors", bytes, len, len, &s, why, sizeof why);

    if (!says) {
        cr_expect_eq(rc, 0, "%s: refused: %s", header, why);
        holmes_st_close(s);
        return;
    }
    cr_expect_eq(rc, -EINVAL, "%s: %d", header, rc);
    cr_expect_not_null(strstr(why, says), "%s: \"%s\" expected, it says: %s", header, says, why);
    cr_expect_eq(strncmp(why, "x.safetensors: ", 15), 0, "%s: no file is named: %s", header, why);
}

#define F32(name, shape, a, b)                                                                     \
    "\"" name "\":{\"dtype\":\"F32\",\"shape\":" shape ",\"data_offsets\":[" #a "," #b "]}"

Test(safetensors, every_rule_of_the_header_is_checked)
{
    static const struct {
        const char *header;
        size_t data;
        const char *says;
    } cases[] = {
        {"{}", 0, NULL},
        {"{}      ", 0, NULL},
        {"{" F32("a", "[2,3]", 0, 24) "}", 24, NULL},
        {"{" F32("a", "[]", 0, 4) "," F32("b", "[0,9]", 4, 4) "}", 4, NULL},
        {"{" F32("b", "[1]", 4, 8) "," F32("a", "[1]", 0, 4) "}", 8, NULL},
        {"{\"__metadata__\":{\"format\":\"pt\"}}", 0, NULL},
        {"{}", 5, "last 5 bytes belong to no tensor"},
        {"[]", 0, "no JSON object"},
        {" {}", 0, "no JSON object"},
        {"{} x", 0, "header, byte"},
        {"{\"a\"", 0, "header, byte"},
        {"{" F32("a", "[1]", 0, 4) "," F32("a", "[1]", 0, 4) "}", 4, "duplicate"},
        {"{\"__metadata__\":{\"n\":1}}", 0, "\"n\" is no text"},
        {"{\"__metadata__\":[]}", 0, "__metadata__ is no object"},
        {"{\"a\":1}", 0, "tensor a is described by no object"},
        {"{\"a\":{\"shape\":[1],\"data_offsets\":[0,4]}}", 4, "tensor a has no \"dtype\""},
        {"{\"a\":{\"dtype\":\"F31\",\"shape\":[1],\"data_offsets\":[0,4]}}", 4, "\"F31\""},
        {"{\"a\":{\"dtype\":\"F32\",\"data_offsets\":[0,4]}}", 4, "no \"shape\""},
        {"{" F32("a", "[-1]", 0, 4) "}", 4, "dimension 0"},
        {"{" F32("a", "[1.5]", 0, 4) "}", 4, "dimension 0"},
        {"{" F32("a", "[1,1,1,1,1,1,1,1,1]", 0, 4) "}", 4, "9 dimensions, 8 are the most"},
        {"{" F32("a", "[4294967296,4294967296,2]", 0, 4) "}", 4, "more elements than"},
        {"{" F32("a", "[4611686018427387905]", 0, 4) "}", 4, "does not have the 4 bytes"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1]}}", 4, "no \"data_offsets\""},
        {"{" F32("a", "[1]", 4, 0) "}", 4, "no \"data_offsets\""},
        {"{" F32("a", "[1]", -4, 0) "}", 4, "no \"data_offsets\""},
        {"{" F32("a", "[2]", 0, 4) "}", 4, "F32 of shape [2] does not have the 4 bytes"},
        {"{" F32("a", "[2]", 0, 8) "}", 4, "ends at byte 8 of the data, of which there are 4"},
        {"{" F32("a", "[2]", 0, 8) "," F32("b", "[1]", 4, 8) "}", 8, "a and b overlap"},
        {"{" F32("a", "[1]", 0, 4) "," F32("b", "[1]", 8, 12) "}", 12,
         "4 bytes before tensor b belong to no tensor"},
    };

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        check(cases[i].header, cases[i].data, cases[i].says);
}

static void check_file(const void *bytes, size_t len, const char *says)
{
    FILE *f = fopen(in_dir("bad"), "we");
    struct holmes_st *s = NULL;
    char why[512] = "";

    cr_assert_not_null(f);
    cr_assert_eq(fwrite(bytes, 1, len, f), len);
    cr_assert_eq(fclose(f), 0);
    cr_expect_eq(holmes_st_open(in_dir("bad"), &s, why, sizeof why), -EINVAL);
    cr_expect_not_null(strstr(why, says), "\"%s\" expected, it says: %s", says, why);
}

Test(safetensors, lengths_that_cannot_be_are_refused)
{
    static const uint8_t huge[16] = {0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff};
    static const uint8_t large[16] = {0x01, 0xe1, 0xf5, 0x05}; /* 100 MB and one */
    static const uint8_t beyond[16] = {9};
    struct holmes_st *s = NULL;
    char why[512];

    check_file("", 0, "0 bytes are no safetensors file");
    check_file("1234567", 7, "7 bytes are no safetensors file");
    check_file(huge, sizeof huge, "18446744073709551615 bytes is told");
    check_file(large, sizeof large, "100000001 bytes is told");
    check_file(beyond, sizeof beyond, "needs 17 bytes, the file has 16: cut short");
    check_file((const uint8_t[8]){0}, 8, "0 bytes is no JSON object");
    cr_expect_eq(holmes_st_open(in_dir("nothing"), &s, why, sizeof why), -ENOENT);
    cr_expect_eq(holmes_st_open(dir, &s, why, sizeof why), -EINVAL);
    cr_expect_not_null(strstr(why, "no regular file"), "%s", why);
}

static const float numbers[6] = {1, 2, 3, 4, 5, 6};
static const struct holmes_st_tensor two[2] = {
    {.name = "a", .dtype = HOLMES_ST_F32, .ndim = 2, .shape = {2, 2}},
    {.name = "b", .dtype = HOLMES_ST_F32, .ndim = 1, .shape = {2}},
};

Test(safetensors, what_is_written_is_read_again)
{
    json_t *sums = json_pack("{s:s}", "sum", "00000000");
    struct holmes_st_writer *w;
    struct holmes_st *s = NULL;
    char why[512] = "";
    float got[4];

    cr_assert_eq(holmes_st_create(in_dir("good"), two, 2, sums, &w), 0);
    cr_assert_eq(holmes_st_put(w, numbers, 3 * sizeof(float)), 0);
    cr_assert_eq(holmes_st_put(w, numbers + 3, 3 * sizeof(float)), 0);
    cr_expect_eq(holmes_st_put(w, numbers, 1), -EINVAL, "more than the tensors have");
    json_object_set_new(sums, "sum", json_string("sixteen characters"));
    cr_expect_eq(holmes_st_set_metadata(w, sums), -EINVAL);
    json_object_set_new(sums, "sum", json_string("89abcdef"));
    cr_assert_eq(holmes_st_set_metadata(w, sums), 0);
    cr_assert_eq(holmes_st_finish(w), 0);
    json_decref(sums);

    cr_assert_eq(holmes_st_open(in_dir("good"), &s, why, sizeof why), 0, "%s", why);
    cr_expect_eq(holmes_st_count(s), 2);
    cr_expect_eq(holmes_st_header_bytes(s) % 8, 0);
    cr_expect_eq(holmes_st_file_bytes(s), holmes_st_header_bytes(s) + sizeof numbers);
    cr_expect_str_eq(json_string_value(json_object_get(holmes_st_metadata(s), "sum")), "89abcdef");
    cr_assert_eq(holmes_st_read(s, holmes_st_find(s, "b"), 4, got, 4), 0);
    cr_expect_eq(got[0], 6);
    cr_assert_eq(holmes_st_read(s, holmes_st_find(s, "a"), 0, got, 16), 0);
    cr_expect_eq(memcmp(got, numbers, 16), 0);
    cr_expect_eq(holmes_st_read(s, holmes_st_find(s, "b"), 4, got, 5), -EINVAL);
    cr_expect_null(holmes_st_find(s, "c"));
    cr_assert_eq(truncate(in_dir("good"), (off_t)holmes_st_file_bytes(s) - 4), 0);
    cr_expect_eq(holmes_st_read(s, holmes_st_find(s, "b"), 4, got, 4), -EIO);
    holmes_st_close(s);
}

Test(safetensors, a_file_that_cannot_be_completed_is_removed)
{
    const struct rlimit small = {4096, RLIM_INFINITY};
    struct holmes_st_tensor big = two[0];
    static const char page[8192];
    struct holmes_st_writer *w;

    cr_assert_eq(holmes_st_create(in_dir("short"), two, 2, NULL, &w), 0);
    cr_expect_eq(holmes_st_create(in_dir("short"), two, 2, NULL, &w), -EEXIST);
    cr_assert_eq(holmes_st_put(w, numbers, 4), 0);
    cr_expect_eq(holmes_st_finish(w), -EINVAL);
    cr_expect_neq(access(in_dir("short"), F_OK), 0);

    big.shape[0] = 4096;
    signal(SIGXFSZ, SIG_IGN);
    cr_assert_eq(setrlimit(RLIMIT_FSIZE, &small), 0);
    cr_assert_eq(holmes_st_create(in_dir("full"), &big, 1, NULL, &w), 0);
    cr_expect_eq(holmes_st_put(w, page, sizeof page), -EFBIG);
    holmes_st_abandon(w);
    cr_expect_neq(access(in_dir("full"), F_OK), 0);
}
