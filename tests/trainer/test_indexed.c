/* Megatron-LM's indexed dataset: what is read, what is refused and with which words, and the
 * samples that are cut from it. The bad-input table of docs/data.md is this file's. */
#include <criterion/criterion.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "../support/test_folder.h"
#include "dataloader.h"
#include "datanote.h"
#include "indexed.h"

static char dir[TEST_FOLDER_MAX], prefix[80];

static void set_up(void)
{
    test_folder_make(dir, "indexed");
    snprintf(prefix, sizeof prefix, "%s/d", dir);
}

static void tear_down(void)
{
    test_folder_remove(dir);
}

TestSuite(indexed, .init = set_up, .fini = tear_down);

/* --- making files ----------------------------------------------------------------------------- */

struct bytes {
    uint8_t at[4096];
    size_t size;
};

static void put(struct bytes *b, uint64_t v, int n)
{
    for (int i = 0; i < n; i++)
        b->at[b->size++] = (uint8_t)(v >> (8 * i));
}

static void set(struct bytes *b, size_t at, uint64_t v, int n)
{
    for (int i = 0; i < n; i++)
        b->at[at + (size_t)i] = (uint8_t)(v >> (8 * i));
}

/* `lengths` of `n` sequences of `item` bytes a token; `starts` has `documents` + 1 entries. */
static struct bytes index_of(int code, int item, const int *lengths, int n, const int *starts,
                             int documents, bool modes)
{
    struct bytes b = {.size = 9};
    uint64_t at = 0;

    memcpy(b.at, "MMIDIDX\0", 9);
    put(&b, 1, 8);
    put(&b, (uint64_t)code, 1);
    put(&b, (uint64_t)n, 8);
    put(&b, (uint64_t)documents + 1, 8);
    for (int i = 0; i < n; i++)
        put(&b, (uint64_t)lengths[i], 4);
    for (int i = 0; i < n; at += (uint64_t)(lengths[i++] * item))
        put(&b, at, 8);
    for (int i = 0; i <= documents; i++)
        put(&b, (uint64_t)starts[i], 8);
    for (int i = 0; modes && i < n; i++)
        put(&b, 0, 1);
    return b;
}

static void write_file(const char *end, const void *bytes, size_t size)
{
    char path[128];
    FILE *f;

    snprintf(path, sizeof path, "%s%s", prefix, end);
    f = fopen(path, "w");
    cr_assert_not_null(f);
    cr_assert_eq(fwrite(bytes, 1, size, f), size);
    cr_assert_eq(fclose(f), 0);
}

/* Three sequences in two documents: {5, 0} and {3} tokens of uint16. */
static struct bytes small_index(void)
{
    return index_of(8, 2, (int[]){5, 0, 3}, 3, (int[]){0, 2, 3}, 2, false);
}
#define SMALL_LENGTHS  HOLMES_INDEX_HEADER
#define SMALL_POINTERS (SMALL_LENGTHS + 3 * 4)
#define SMALL_STARTS   (SMALL_POINTERS + 3 * 8)

/* Documents of one sequence each; document d, token t is 100 d + t. */
static void write_documents(const int *lengths, int n)
{
    struct bytes bin = {0}, idx;
    int starts[256];

    for (int d = 0; d < n; d++) {
        starts[d] = d;
        for (int t = 0; t < lengths[d]; t++)
            put(&bin, (uint64_t)(100 * d + t), 2);
    }
    starts[n] = n;
    idx = index_of(8, 2, lengths, n, starts, n, false);
    write_file(".idx", idx.at, idx.size);
    write_file(".bin", bin.at, bin.size);
}

/* --- reading ---------------------------------------------------------------------------------- */

Test(indexed, every_token_type_is_read)
{
    static const struct {
        const char *name;
        int code, size;
        int64_t values[3];
    } types[] = {{"uint8", 1, 1, {0, 127, 255}},
                 {"int8", 2, 1, {0, 127, -1}},
                 {"int16", 3, 2, {1, 32767, -32768}},
                 {"int32", 4, 4, {2, 2147483647, -5}},
                 {"int64", 5, 8, {3, INT64_MAX, INT64_MIN}},
                 {"uint16", 8, 2, {4, 65535, 50256}}};

    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        struct bytes bin = {0}, idx = index_of(types[i].code, types[i].size, (int[]){2, 1}, 2,
                                               (int[]){0, 1, 2}, 2, i % 2);
        struct holmes_indexed x;
        char why[300] = "";

        for (int t = 0; t < 3; t++)
            put(&bin, (uint64_t)types[i].values[t], types[i].size);
        write_file(".idx", idx.at, idx.size);
        write_file(".bin", bin.at, bin.size);
        cr_assert_eq(holmes_indexed_open(prefix, &x, why, sizeof why), 0, "%s", why);
        cr_expect_str_eq(holmes_token_type_name(x.tokens.type), types[i].name);
        cr_expect_eq(x.tokens.count, 3);
        cr_expect_eq(x.documents, 2);
        cr_expect_eq(x.modes != NULL, i % 2);
        for (uint64_t t = 0; t < 3; t++)
            cr_expect_eq(holmes_tokens_at(&x.tokens, t), types[i].values[t], "%s, token %d",
                         types[i].name, (int)t);
        holmes_indexed_close(&x);
    }
}

Test(indexed, documents_may_be_empty_and_have_many_sequences)
{
    /* documents: nothing, {2, 3}, nothing, {4}, nothing */
    const struct bytes idx =
        index_of(4, 4, (int[]){2, 3, 4}, 3, (int[]){0, 0, 2, 2, 3, 3}, 5, false);
    static const uint64_t starts[] = {0, 0, 5, 5, 9, 9};
    static const uint64_t of[] = {1, 1, 1, 1, 1, 3, 3, 3, 3};
    struct holmes_indexed x;
    char why[300] = "";

    cr_assert_eq(holmes_indexed_parse("x.idx", idx.at, idx.size, 36, &x, why, sizeof why), 0, "%s",
                 why);
    for (uint64_t d = 0; d <= 5; d++)
        cr_expect_eq(holmes_indexed_start(&x, d), starts[d]);
    for (uint64_t t = 0; t < 9; t++)
        cr_expect_eq(holmes_indexed_document(&x, t), of[t]);
}

Test(indexed, reading_stops_at_what_is_out_of_the_vocabulary)
{
    static const uint8_t bytes[] = {1, 0, 2, 0, 9, 0, 3, 0};
    const struct holmes_tokens t = {bytes, 4, HOLMES_TOKEN_UINT16};
    int32_t out[4] = {-7, -7, -7, -7};
    uint64_t bad = 77;

    cr_expect_eq(holmes_tokens_read(&t, 0, 4, 10, out, &bad), 0);
    cr_expect_eq(out[3], 3);
    cr_expect_eq(holmes_tokens_read(&t, 1, 3, 9, out, &bad), -ERANGE);
    cr_expect_eq(bad, 2);
    cr_expect_eq(holmes_tokens_read(&t, 2, 3, 10, out, &bad), -EINVAL);
    cr_expect_eq(holmes_tokens_read(&t, UINT64_MAX, 2, 10, out, &bad), -EINVAL);
}

/* --- what is refused -------------------------------------------------------------------------- */

static void expect_refused(const struct bytes *b, uint64_t bin_size, const char *says)
{
    struct holmes_indexed x = {.documents = 77};
    char why[300] = "";
    uint8_t *exact = malloc(b->size ? b->size : 1); /* so that a sanitizer sees the end */

    memcpy(exact, b->at, b->size);
    cr_expect_eq(holmes_indexed_parse("x.idx", exact, b->size, bin_size, &x, why, sizeof why),
                 -EINVAL, "accepted what should give \"%s\"", says);
    cr_expect_str_eq(why, says);
    cr_expect_eq(x.documents, 77, "written although it failed");
    free(exact);
}

Test(indexed, wrong_index_files_are_refused_with_file_field_value_and_what_is_right)
{
    static const struct {
        size_t at;
        uint64_t value;
        int size;
        const char *says;
    } cases[] = {
        {0, 'X', 1, "x.idx is no index: it does not begin with MMIDIDX"},
        {9, 2, 8, "x.idx: version is 2; 1 is right"},
        {17, 0, 1, "x.idx: code of the token type is 0; 1 to 5 or 8 is right"},
        {17, 9, 1, "x.idx: code of the token type is 9; 1 to 5 or 8 is right"},
        {17, 6, 1,
         "x.idx: code of the token type is 6, float64, which is no type of tokens; uint8, int8, "
         "int16, int32, int64 or uint16 is right"},
        {17, 7, 1,
         "x.idx: code of the token type is 7, float32, which is no type of tokens; uint8, int8, "
         "int16, int32, int64 or uint16 is right"},
        {18, 0, 8, "x.idx: number of sequences is 0; 1 at least is right"},
        {18, UINT64_MAX, 8,
         "x.idx: number of sequences is 18446744073709551615, but 94 bytes have place for 5 at "
         "most"},
        {18, 2, 8,
         "x.idx has 94 bytes; with 2 sequences and 3 entries of the document index 82 are right, "
         "or 84 with modes"},
        {26, 1, 8, "x.idx: entries of the document index are 1; 2 at least are right"},
        {26, UINT64_C(1) << 63, 8,
         "x.idx: entries of the document index are 9223372036854775808, but 94 bytes have place "
         "for 7 at most"},
        {SMALL_LENGTHS, (uint64_t)-5, 4, "x.idx: length of sequence 0 is -5; 0 or more is right"},
        {SMALL_LENGTHS, 6, 4,
         "x.idx: pointer of sequence 1 is 10; 12, the end of the one before it, is right"},
        {SMALL_POINTERS + 8, (uint64_t)-2, 8,
         "x.idx: pointer of sequence 1 is -2; 10, the end of the one before it, is right"},
        {SMALL_LENGTHS + 8, INT32_MAX, 4,
         "x.idx lists 2147483652 tokens of type uint16, 4294967304 bytes, but its .bin has 16: "
         "they are not of one make"},
        {SMALL_STARTS, 1, 8, "x.idx: document 0 begins with sequence 1; 0 is right"},
        {SMALL_STARTS + 8, 4, 8, "x.idx: entry 1 of the document index is 4; 0 to 3 is right"},
        {SMALL_STARTS + 8, UINT64_MAX, 8,
         "x.idx: entry 1 of the document index is -1; 0 to 3 is right"},
        {SMALL_STARTS + 16, 1, 8, "x.idx: entry 2 of the document index is 1; 2 to 3 is right"},
        {SMALL_STARTS + 16, 2, 8,
         "x.idx: the document index ends with 2; 3, the number of sequences, is right"},
    };

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct bytes b = small_index();

        set(&b, cases[i].at, cases[i].value, cases[i].size);
        expect_refused(&b, 16, cases[i].says);
    }
}

Test(indexed, cut_and_grown_files_are_refused)
{
    struct holmes_indexed x;
    struct bytes b = small_index();
    char why[300], want[200];
    const size_t size = b.size;

    cr_assert_eq(size, 94);
    cr_expect_eq(holmes_indexed_parse("x.idx", b.at, size, 16, &x, why, sizeof why), 0);
    for (b.size = 0; b.size < size; b.size++) {
        why[0] = '\0';
        cr_expect_eq(holmes_indexed_parse("x.idx", b.at, b.size, 16, &x, why, sizeof why), -EINVAL);
        cr_expect_neq(why[0], '\0');
    }
    b.size = 33;
    expect_refused(&b, 16, "x.idx has 33 bytes; an index has 34 at least");
    b.size = size + 1;
    snprintf(want, sizeof want,
             "x.idx has 95 bytes; with 3 sequences and 3 entries of the document index 94 are "
             "right, or 97 with modes");
    expect_refused(&b, 16, want);
    b.size = size;
    expect_refused(&b, 15,
                   "x.idx lists 8 tokens of type uint16, 16 bytes, but its .bin has 15: "
                   "they are not of one make");
}

/* --- samples ---------------------------------------------------------------------------------- */

static struct holmes_data_attr attr_of(int seq_len, double held_out)
{
    return (struct holmes_data_attr){.path = prefix,
                                     .seq_len = seq_len,
                                     .batch = 4,
                                     .vocab = 30000,
                                     .split = {1 - held_out, held_out, 0},
                                     .seed = 3};
}

static struct holmes_dataloader *loader(const struct holmes_data_attr *attr)
{
    struct holmes_dataloader *d = NULL;
    char why[300] = "";

    cr_assert_eq(holmes_dataloader_open(attr, &d, why, sizeof why), 0, "%s", why);
    return d;
}

/* Sample `all`, counted over epochs, as a run of 4 sequences a step comes by it. */
static void sample(struct holmes_dataloader *d, int all, int32_t *tokens, int32_t *targets)
{
    cr_assert_eq(holmes_dataloader_train(d, (uint64_t)(all / 4 + 1), all % 4, 1, tokens, targets),
                 0);
}

/* So many documents that the places of most are not kept but counted from the 64th before. */
Test(indexed, an_epoch_has_all_documents_whole_once_in_another_order)
{
    enum { T = 5, DOCUMENTS = 180, EPOCHS = 3 };
    int lengths[DOCUMENTS], total = 0;
    int32_t stream[EPOCHS][DOCUMENTS * 9], tokens[T], targets[T];

    for (int d = 0; d < DOCUMENTS; d++)
        total += lengths[d] = d % 9;
    write_documents(lengths, DOCUMENTS);
    const struct holmes_data_attr attr = attr_of(T, 0);
    struct holmes_dataloader *d = loader(&attr);
    const int samples = (total - 1) / T;

    cr_assert_eq(holmes_dataloader_epoch(d), (uint64_t)samples);
    cr_assert_eq(holmes_dataloader_documents(d), DOCUMENTS);
    for (int e = 0; e < EPOCHS; e++) {
        int seen[DOCUMENTS][9] = {{0}}, missing = 0;

        for (int i = 0; i < samples; i++) {
            sample(d, e * samples + i, tokens, targets);
            for (int t = 0; t < T; t++) {
                const int document = tokens[t] / 100, at = tokens[t] % 100;

                seen[document][at]++;
                /* inside a document its next token follows, else another document's first */
                if (at + 1 < lengths[document])
                    cr_expect_eq(targets[t], tokens[t] + 1);
                else
                    cr_expect_eq(targets[t] % 100, 0);
            }
            memcpy(stream[e] + i * T, tokens, sizeof tokens);
        }
        for (int k = 0; k < DOCUMENTS; k++)
            for (int t = 0; t < lengths[k]; t++) {
                cr_expect_leq(seen[k][t], 1);
                missing += seen[k][t] == 0;
            }
        cr_expect_eq(missing, total - samples * T, "only the rest of an epoch is left out");
    }
    cr_expect_arr_neq(stream[0], stream[1], sizeof stream[0]);
    cr_expect_arr_neq(stream[1], stream[2], sizeof stream[0]);
    holmes_dataloader_close(d);
}

Test(indexed, any_sample_can_be_had_first)
{
    enum { T = 3, DOCUMENTS = 180 };
    int lengths[DOCUMENTS];
    int32_t tokens[T], targets[T], others[T];

    for (int d = 0; d < DOCUMENTS; d++)
        lengths[d] = 1 + d % 4;
    write_documents(lengths, DOCUMENTS);
    const struct holmes_data_attr attr = attr_of(T, 0);
    struct holmes_dataloader *all = loader(&attr);

    for (int i = 440; i >= 0; i -= 7) {
        struct holmes_dataloader *one = loader(&attr);

        sample(all, i, tokens, targets);
        sample(one, i, others, targets);
        cr_expect_arr_eq(tokens, others, sizeof tokens);
        holmes_dataloader_close(one);
    }
    holmes_dataloader_close(all);
}

Test(indexed, documents_are_held_out_whole_and_counted_as_megatron_does)
{
    enum { T = 4 };
    int32_t tokens[T], targets[T];
    struct holmes_data_attr attr = attr_of(T, 0);

    write_documents((int[]){10, 10, 10, 10, 10, 10, 10, 10, 10, 10}, 10);
    attr.split[0] = 70; /* documents [0, 7), [7, 9) and [9, 10) */
    attr.split[1] = 20;
    attr.split[2] = 10;
    struct holmes_dataloader *d = loader(&attr);

    cr_assert_eq(holmes_dataloader_epoch(d), 69 / T);
    for (int i = 0; i < 5 * 17; i++) {
        sample(d, i, tokens, targets);
        for (int t = 0; t < T; t++)
            cr_expect_lt(targets[t], 700);
    }
    cr_assert_eq(holmes_dataloader_heldout_count(d), 19 / T);
    for (int i = 0; i < 19 / T; i++) {
        cr_assert_eq(holmes_dataloader_heldout(d, i, 1, tokens, targets), 0);
        for (int t = 0; t < T; t++) {
            cr_expect_eq(tokens[t], 700 + (i * T + t) / 10 * 100 + (i * T + t) % 10);
            cr_expect_lt(targets[t], 900);
        }
    }
    holmes_dataloader_close(d);
}

Test(indexed, a_token_out_of_the_vocabulary_is_named_when_it_is_read)
{
    int32_t tokens[4], targets[4];
    struct holmes_data_attr attr = attr_of(4, 0);
    int failed = 0;
    char want[200];
    double nats;

    write_documents((int[]){10, 10, 10}, 3);
    attr.vocab = 206;
    struct holmes_dataloader *d = loader(&attr);

    for (int i = 0; i < 7; i++)
        failed += holmes_dataloader_train(d, 1, i, 1, tokens, targets) == -ERANGE;
    cr_expect_geq(failed, 1);
    snprintf(want, sizeof want,
             "%s.bin: token 6 of document 2 is 206; with --vocab 206 0 to 205 are right", prefix);
    cr_expect(strstr(holmes_dataloader_error(d), "of document 2 is 20"), "%s",
              holmes_dataloader_error(d));
    holmes_dataloader_close(d);

    attr.split[0] = attr.split[1] = 1; /* documents [0, 2) and [2, 3) */
    d = loader(&attr);
    cr_expect_eq(holmes_dataloader_unigram_nats(d, &nats), -ERANGE);
    cr_expect_str_eq(holmes_dataloader_error(d), want);
    holmes_dataloader_close(d);
}

/* --- names and notes -------------------------------------------------------------------------- */

static void expect_unopened(const char *path, const char *says)
{
    struct holmes_data_attr attr = attr_of(4, 0);
    struct holmes_dataloader *d = NULL;
    char why[500] = "", want[500];

    attr.path = path;
    snprintf(want, sizeof want, says, prefix, prefix, prefix);
    cr_expect_lt(holmes_dataloader_open(&attr, &d, why, sizeof why), 0);
    cr_expect_null(d);
    cr_expect_str_eq(why, want);
}

Test(indexed, prefix_and_either_file_name_the_data_and_what_is_missing_is_said)
{
    char path[128];
    int vocab = 0;
    char why[300] = "";
    struct holmes_data_attr attr = attr_of(4, 0);
    static const char *const ends[] = {"", ".idx", ".bin"};
    struct bytes idx = small_index();

    expect_unopened(prefix, "no such file, and no %s.bin with %s.idx either");
    write_file(".idx", idx.at, idx.size);
    expect_unopened(prefix, "there is %s.idx, but no %s.bin");
    write_file(".bin", "", 0);
    expect_unopened(prefix, "%s.bin is empty");
    write_documents((int[]){10, 10}, 2);
    for (int i = 0; i < 3; i++) {
        snprintf(path, sizeof path, "%s%s", prefix, ends[i]);
        attr.path = path;
        struct holmes_dataloader *d = loader(&attr);
        cr_expect_eq(holmes_dataloader_tokens(d), 20);
        cr_expect_str_eq(holmes_dataloader_unit(d), "token");
        holmes_dataloader_close(d);
    }
    cr_expect_eq(holmes_data_vocab(prefix, &vocab, why, sizeof why), -ENOENT);
    cr_expect(strstr(why, ".json"), "%s", why);
    write_file("", "a text", 6); /* of the prefix's name: it is the file that was named */
    cr_expect_eq(holmes_data_vocab(prefix, &vocab, why, sizeof why), 0);
    cr_expect_eq(vocab, 256);
    unlink(prefix);
    attr = attr_of(4, 0);
    attr.split[0] = 1;
    attr.split[1] = 0.001;
    struct holmes_dataloader *d = NULL;
    cr_expect_eq(holmes_dataloader_open(&attr, &d, why, sizeof why), -EINVAL);
    cr_expect(strstr(why, "0 of them held out in 0 of 2 documents; a sequence of 4 needs 5"), "%s",
              why);
}

Test(indexed, the_note_brings_the_vocabulary_and_must_fit)
{
    static const struct {
        const char *note, *says;
    } bad[] = {
        {"{", "line 1"},
        {"[]", "an object of JSON is right"},
        {"{\"version\": 2}", "\"version\" is 2; 1 to 1 is right"},
        {"{\"version\": 1}", "\"vocab\" is missing; a whole number from 2 is right"},
        {"{\"version\": 1, \"vocab\": 1.5}", "\"vocab\" is something else"},
        {"{\"version\": 1, \"vocab\": 1}", "\"vocab\" is 1; 2 to 1048576 is right"},
        {"{\"version\": 1, \"vocab\": 300, \"eod\": 300}", "\"eod\" is 300; 0 to 299 is right"},
        {"{\"version\":1,\"vocab\":300,\"eod\":299,\"documents\":2,\"tokens\":20,\"text_bytes\":9}",
         "\"tokenizer\" is no name"},
        {"{\"version\":1,\"vocab\":300,\"eod\":null,\"documents\":2,\"tokens\":21,\"text_bytes\":9,"
         "\"tokenizer\":\"byte\"}",
         "is of 2 documents with 21 tokens, but"},
    };
    struct holmes_datanote n = {"gpt2", 300, 299, 2, 20, 99}, back;
    char *text = holmes_datanote_text(&n);
    char why[500] = "";
    int vocab = 0;
    const struct holmes_data_attr attr = attr_of(4, 0);

    write_documents((int[]){10, 10}, 2);
    write_file(".json", text, strlen(text));
    cr_expect_eq(holmes_datanote_parse("n", text, strlen(text), &back, why, sizeof why), 0, "%s",
                 why);
    cr_expect_str_eq(back.tokenizer, n.tokenizer);
    cr_expect(back.vocab == n.vocab && back.eod == n.eod && back.documents == n.documents &&
              back.tokens == n.tokens && back.text_bytes == n.text_bytes);
    cr_expect_eq(holmes_data_vocab(prefix, &vocab, why, sizeof why), 0, "%s", why);
    cr_expect_eq(vocab, 300);
    holmes_dataloader_close(loader(&attr));
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct holmes_dataloader *d = NULL;

        write_file(".json", bad[i].note, strlen(bad[i].note));
        cr_expect_eq(holmes_dataloader_open(&attr, &d, why, sizeof why), -EINVAL);
        cr_expect(strstr(why, bad[i].says), "\"%s\" lacks \"%s\"", why, bad[i].says);
    }
    free(text);
}
