/* Byte-level BPE against what the package `tokenizers` makes of the same texts with the same files
 * (bpe/make_golden.py), and what wrong files are refused with. */
#include <criterion/criterion.h>
#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bpe.h"

static const char *in_folder(const char *name)
{
    static char path[2][512];
    static int which;

    which = !which;
    snprintf(path[which], sizeof path[which], "%s/%s", getenv("TEST_BPE"), name);
    return path[which];
}

static struct holmes_bpe *load(void)
{
    struct holmes_bpe *b = NULL;
    char why[400] = "";

    cr_assert_eq(
        holmes_bpe_load(in_folder("vocab.json"), in_folder("merges.txt"), &b, why, sizeof why), 0,
        "%s", why);
    return b;
}

/* The bytes of all tokens, one after another. */
static size_t decode(const struct holmes_bpe *b, const struct holmes_ids *ids, char *out)
{
    size_t len = 0, n;

    for (size_t i = 0; i < ids->count; i++) {
        const char *bytes = holmes_bpe_token(b, ids->at[i], &n);

        cr_assert_not_null(bytes);
        memcpy(out + len, bytes, n);
        len += n;
    }
    return len;
}

Test(bpe, tokens_are_those_of_another_implementation)
{
    struct holmes_bpe *b = load();
    json_error_t error;
    json_t *golden = json_load_file(in_folder("golden.json"), JSON_ALLOW_NUL, &error), *g;
    char back[4096];
    size_t i, bad = 0;

    cr_assert_not_null(golden, "%s", error.text);
    cr_assert_gt(json_array_size(golden), 200);
    /* again and again: soon words come from the cache */
    for (int round = 0; round < 4; round++) {
        json_array_foreach(golden, i, g)
        {
            const json_t *text = json_object_get(g, "text"), *want = json_object_get(g, "ids");
            struct holmes_ids ids = {0};

            cr_assert_eq(holmes_bpe_encode(b, json_string_value(text), json_string_length(text),
                                           false, &ids, &bad),
                         0);
            cr_expect_eq(ids.count, json_array_size(want), "text %zu: %zu tokens, not %zu", i,
                         ids.count, json_array_size(want));
            for (size_t k = 0; k < ids.count && k < json_array_size(want); k++)
                cr_expect_eq(ids.at[k], json_integer_value(json_array_get(want, k)),
                             "text %zu, token %zu", i, k);
            cr_expect_eq(decode(b, &ids, back), json_string_length(text));
            cr_expect_arr_eq(back, json_string_value(text), json_string_length(text));
            holmes_ids_fini(&ids);
        }
    }
    json_decref(golden);
    holmes_bpe_destroy(b);
}

Test(bpe, what_is_no_utf8_is_refused_with_its_place_or_kept)
{
    static const struct {
        const char *text;
        size_t len, bad;
    } cases[] = {{"ab\xff", 3, 2},
                 {"\x80", 1, 0},
                 {"the line \xc3(", 11, 9},
                 {"\xc0\xaf", 2, 0},                    /* overlong */
                 {"x\xed\xa0\x80y", 5, 1},              /* surrogate */
                 {"\xf4\x90\x80\x80", 4, 0},            /* above U+10FFFF */
                 {"12345678901234567\xe2\x82", 19, 17}, /* cut */
                 {"\xe0\x9f\xbf", 3, 0},
                 {"\xf0\x8f\xbf\xbf", 4, 0},
                 {"\xf8\x88\x80\x80\x80", 5, 0}};
    struct holmes_bpe *b = load();

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct holmes_ids ids = {0};
        char back[64], *exact = malloc(cases[i].len);
        size_t bad = 77;

        memcpy(exact, cases[i].text, cases[i].len); /* so that a sanitizer sees the end */
        cr_expect_eq(holmes_bpe_encode(b, exact, cases[i].len, false, &ids, &bad), -EILSEQ);
        cr_expect_eq(bad, cases[i].bad, "case %zu: byte %zu", i, bad);
        ids.count = 0;
        cr_assert_eq(holmes_bpe_encode(b, exact, cases[i].len, true, &ids, &bad), 0);
        cr_expect_eq(decode(b, &ids, back), cases[i].len);
        cr_expect_arr_eq(back, exact, cases[i].len);
        holmes_ids_fini(&ids);
        free(exact);
    }
    holmes_bpe_destroy(b);
}

/* Without a heap this takes minutes. */
Test(bpe, a_word_of_a_million_letters_is_encoded_in_no_time, .timeout = 30)
{
    enum { N = 1000000 };
    struct holmes_bpe *b = load();
    struct holmes_ids ids = {0};
    char *text = malloc(N), *back = malloc(N);
    size_t bad;

    for (int i = 0; i < N; i++)
        text[i] = "the lines of words"[i % 3]; /* "the" without blanks */
    cr_assert_eq(holmes_bpe_encode(b, text, N, false, &ids, &bad), 0);
    cr_expect_lt(ids.count, 3 * N / 4);
    cr_expect_eq(decode(b, &ids, back), N);
    cr_expect_arr_eq(text, back, N);
    holmes_ids_fini(&ids);
    holmes_bpe_destroy(b);
    free(text);
    free(back);
}

/* --- wrong files ------------------------------------------------------------------------------ */

/* vocab.json with all bytes and `more`, which begins with a comma. */
static char *vocab_with(const char *more)
{
    char *text = malloc(16384);
    int n = sprintf(text, "{"), next = 256;

    for (int byte = 0; byte < 256; byte++) {
        const int itself = (byte > 32 && byte < 127) || (byte > 160 && byte != 173);
        const int c = itself ? byte : next++;

        n += sprintf(text + n, "%s\"\\u%04x\": %d", byte ? "," : "", c, byte);
    }
    sprintf(text + n, "%s}", more);
    return text;
}

static void expect_refused(const char *vocab, const char *merges, const char *says)
{
    struct holmes_bpe *b = NULL;
    char why[400] = "";

    cr_expect_eq(holmes_bpe_parse("vocab.json", vocab, strlen(vocab), "merges.txt", merges,
                                  strlen(merges), &b, why, sizeof why),
                 -EINVAL);
    cr_expect_null(b);
    cr_expect_str_eq(why, says);
}

Test(bpe, wrong_vocabularies_are_refused)
{
    static const struct {
        const char *more, *says;
    } cases[] = {
        {", \"ab\": -1", "vocab.json: token \"ab\" has no number from 0 to 1048575"},
        {", \"ab\": 1.5", "vocab.json: token \"ab\" has no number from 0 to 1048575"},
        {", \"ab\": \"x\"", "vocab.json: token \"ab\" has no number from 0 to 1048575"},
        {", \"ab\": 1048576", "vocab.json: token \"ab\" has no number from 0 to 1048575"},
        {", \"ab\": 65", "vocab.json: token \"ab\" has the number 65 of another one"},
        {", \"ab\": 256, \"ab\": 257", "vocab.json: line 1: duplicate object key near '\"ab\"'"},
    };

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char *vocab = vocab_with(cases[i].more);

        expect_refused(vocab, "", cases[i].says);
        free(vocab);
    }
    expect_refused("{}", "", "vocab.json has no tokens");
    expect_refused("[1]", "", "vocab.json: an object of JSON, tokens and their numbers, is right");
    expect_refused("{\"a\": 0}", "",
                   "vocab.json: byte 0x00 is no token; a vocabulary of byte-level BPE has all 256");
}

Test(bpe, wrong_merges_are_refused_with_their_line)
{
    static const struct {
        const char *merges, *says;
    } cases[] = {
        {"ab", "merges.txt: line 1 is \"ab\"; two tokens with a blank between are right"},
        {"#version: 0.2\na b\na  b",
         "merges.txt: line 3 is \"a  b\"; two tokens with a blank between are right"},
        {"a b c", "merges.txt: line 1 is \"a b c\"; two tokens with a blank between are right"},
        {" b", "merges.txt: line 1 is \" b\"; two tokens with a blank between are right"},
        {"a b\nb c", "merges.txt: line 2: \"bc\", what it makes, is no token of the vocabulary"},
        {"a bb", "merges.txt: line 1: \"bb\" is no token of the vocabulary"},
        {"\xe2\x82\xac b", "merges.txt: line 1: \"\xe2\x82\xac\" is no token of the vocabulary"},
        {"a b\r\n\r\na b", "merges.txt: line 3 has the pair of merge 1 again"},
        {"<x> y", "merges.txt: line 1: \"<x>\" is no token of the vocabulary"},
    };
    char *vocab = vocab_with(", \"ab\": 256, \"<\xe2\x82\xac>\": 257");

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        expect_refused(vocab, cases[i].merges, cases[i].says);
    free(vocab);
}

Test(bpe, added_tokens_are_found_and_never_made)
{
    char *vocab = vocab_with(", \"ab\": 256, \"<\xe2\x82\xac>\": 300");
    struct holmes_bpe *b = NULL;
    struct holmes_ids ids = {0};
    char why[400];
    size_t len = 0, bad;

    cr_assert_eq(holmes_bpe_parse("v", vocab, strlen(vocab), "m", "a b\n", 4, &b, why, sizeof why),
                 0, "%s", why);
    cr_expect_eq(holmes_bpe_vocab(b), 301);
    cr_expect_eq(holmes_bpe_find(b, "<\xe2\x82\xac>"), 300);
    cr_expect_eq(holmes_bpe_find(b, "none"), -1);
    cr_expect_null(holmes_bpe_token(b, 299, &len));
    cr_expect_null(holmes_bpe_token(b, -1, &len));
    cr_expect_null(holmes_bpe_token(b, 301, &len));
    cr_assert_eq(holmes_bpe_encode(b, "<\xe2\x82\xac>abab", 9, false, &ids, &bad), 0);
    cr_assert_eq(ids.count, 7);
    cr_expect_eq(ids.at[5], 256);
    cr_expect_eq(ids.at[6], 256);
    holmes_ids_fini(&ids);
    holmes_bpe_destroy(b);
    free(vocab);
}
