/* holmes-data as a user runs it: text to tokens and back, what it refuses, what it leaves behind,
 * and holmes-train on what it wrote. */
#include <criterion/criterion.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../support/test_folder.h"
#include "clock.h"

static char dir[TEST_FOLDER_MAX], said[16384];

static void set_up(void)
{
    test_folder_make(dir, "data");
    cr_assert_eq(chdir(dir), 0);
}

static void tear_down(void)
{
    cr_assert_eq(chdir("/"), 0);
    test_folder_remove(dir);
}

TestSuite(data_tool, .init = set_up, .fini = tear_down, .timeout = 120);

/* Runs a line of shell in the test's folder, $TEST_DATA and $TEST_TRAIN being the programs and $B
 * the tokenizer's files; what it says on either stream is in `said`. Returns the exit status. */
static int sh(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
static int sh(const char *fmt, ...)
{
    char line[2048];
    size_t n, len = 0;
    va_list ap;
    FILE *p;
    int status;

    n = (size_t)snprintf(line, sizeof line,
                         "exec 2>&1; B=\"--vocab-file $TEST_BPE/vocab.json --merge-file "
                         "$TEST_BPE/merges.txt\"; ");
    va_start(ap, fmt);
    vsnprintf(line + n, sizeof line - n, fmt, ap);
    va_end(ap);
    p = popen(line, "r");
    cr_assert_not_null(p);
    while ((n = fread(said + len, 1, sizeof said - 1 - len, p)) > 0)
        len += n;
    said[len] = '\0';
    status = pclose(p);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static void write_file(const char *name, const void *bytes, size_t len)
{
    FILE *f = fopen(name, "w");

    cr_assert_not_null(f);
    cr_assert_eq(fwrite(bytes, 1, len, f), len);
    cr_assert_eq(fclose(f), 0);
}

static void write_text(const char *name, const char *text)
{
    write_file(name, text, strlen(text));
}

#define EXPECT(status, ...)                                                                        \
    do {                                                                                           \
        const int got = sh(__VA_ARGS__);                                                           \
        cr_expect_eq(got, status, "exit status %d: %s", got, said);                                \
    } while (0)
#define EXPECT_SAID(text) cr_expect(strstr(said, text), "\"%s\" lacks \"%s\"", said, text)

Test(data_tool, text_comes_back_as_it_was)
{
    static const char bytes[] = "caf\xc3\xa9 \xff\xfe\x80 the end\r\n\n\n  \xe2\x82";

    write_file("t", bytes, sizeof bytes); /* and a zero */
    EXPECT(0, "$TEST_DATA encode -o byte t && $TEST_DATA decode byte | cmp - t");
    EXPECT(0, "$TEST_DATA encode -o eod --append-eod t && $TEST_DATA decode eod | cmp - t");
    EXPECT(0, "$TEST_DATA encode -o bpe $B --invalid-utf8 keep --append-eod t && "
              "$TEST_DATA decode bpe --vocab-file $TEST_BPE/vocab.json | cmp - t");
    EXPECT(0, "$TEST_DATA encode -o pipe - <t && cmp pipe.bin byte.bin && cmp pipe.idx byte.idx");
}

/* Longer than a part of the text that is encoded at once. */
Test(data_tool, long_documents_are_encoded_as_short_ones)
{
    EXPECT(0, "for i in $(seq 40000); do echo \"the line  of number $i isn't   here; x=$i\"; done "
              ">t; test $(stat -c %%s t) -gt 1500000");
    EXPECT(0,
           "$TEST_DATA encode -o whole $B t && $TEST_DATA encode -o lines $B --documents line t");
    /* lines have no ends: each is a newline, and at most what that was joined with, shorter */
    EXPECT(0, "$TEST_DATA decode whole --vocab-file $TEST_BPE/vocab.json | cmp - t");
    EXPECT(
        0,
        "$TEST_DATA decode lines --vocab-file $TEST_BPE/vocab.json >l; tr -d '\\n' <t | cmp - l");
    EXPECT(0, "$TEST_DATA info --json lines");
    EXPECT_SAID("\"documents\": 40000");
}

Test(data_tool, documents_are_cut_as_asked)
{
    write_text("t", "one\ntwo\n\n\r\n\nthree\n\n");
    write_text("t.jsonl",
               "{\"text\": \"one\\u0000\", \"n\": 1}\n\n{\"text\": \"\", \"body\": \"x\"}\n"
               "{\"text\": \"two\"}");
    EXPECT(0, "$TEST_DATA encode -o a t && $TEST_DATA encode -o b --documents blank t && "
              "$TEST_DATA encode -o c --documents line t && "
              "$TEST_DATA encode --append-eod -o d t.jsonl");
    EXPECT(0, "$TEST_DATA info --json --top 0 a");
    EXPECT_SAID("\"documents\": 1,");
    EXPECT(0, "$TEST_DATA decode --document 0 b");
    cr_expect_str_eq(said, "one\ntwo\n");
    EXPECT(0, "$TEST_DATA decode --document 1 b");
    cr_expect_str_eq(said, "three\n");
    EXPECT(0, "$TEST_DATA decode --json c");
    cr_expect_str_eq(said, "{\"text\":\"one\"}\n{\"text\":\"two\"}\n{\"text\":\"three\"}\n");
    EXPECT(0, "$TEST_DATA decode --json d");
    cr_expect_str_eq(said, "{\"text\":\"one\\u0000\"}\n{\"text\":\"\"}\n{\"text\":\"two\"}\n");
    EXPECT(0, "$TEST_DATA info d");
    EXPECT_SAID("9, 18 bytes"); /* an empty document has no end token */
    EXPECT_SAID("2 of 2 end with token 256, as noted");
    EXPECT_SAID("3 in 3 sequences, 1 empty");
}

Test(data_tool, types_are_megatrons_choice_unless_told)
{
    write_text("t", "some text");
    EXPECT(0, "$TEST_DATA encode -o a t --json");
    EXPECT_SAID("\"dtype\": \"uint16\"");
    EXPECT_SAID("\"eod\": null");
    for (int i = 0; i < 5; i++) {
        static const char *const types[] = {"uint8", "int16", "int32", "int64", "uint16"};

        EXPECT(0, "$TEST_DATA encode -o %s --dtype %s t && $TEST_DATA decode %s", types[i],
               types[i], types[i]);
        EXPECT_SAID("some text");
    }
}

Test(data_tool, bad_usage_and_input_is_refused_with_a_reason)
{
    static const struct {
        int status;
        const char *arguments, *says;
    } cases[] = {
        {2, "", "Usage"},
        {2, "enc", "no verb \"enc\""},
        {2, "encode t", "--output-prefix PREFIX is missing"},
        {2, "encode -o p", "name the text files"},
        {2, "encode -o p none", "none: No such file"},
        {2, "encode -o p .", ".: Is a directory"},
        {2, "encode -o none/p t", "none/p.bin: No such file"},
        {2, "encode -o p empty", "there is no text in empty"},
        {2, "encode -o p --tokenizer word t", "\"word\": byte or gpt2 is right"},
        {2, "encode -o p --tokenizer gpt2 t", "needs --vocab-file"},
        {2, "encode -o p --vocab-file none --merge-file none t", "cannot open none"},
        {2, "encode -o p --tokenizer byte $B t", "byte has no files"},
        {2, "encode -o p $B --append-eod --eod-token END t", "has no token \"END\""},
        {2, "encode -o p $B bad", "bad: byte 3 (0xff) of the document is no UTF-8"},
        {2, "encode -o p $B --documents line bad2", "the document that ends at line 2 is no UTF-8"},
        {2, "encode -o p --documents book t", "\"book\": file, blank, line or json is right"},
        {2, "encode -o p --dtype float32 t", "\"float32\": auto, uint8"},
        {2, "encode -o p --dtype int8 t", "int8 holds tokens to 127; this vocabulary has 256"},
        {2, "encode -o p --dtype uint8 --append-eod t", "this vocabulary has 257"},
        {2, "encode -o p --documents json t", "t: line 1, column"},
        {2, "encode -o p two.jsonl", "line 2: the key \"text\" is missing"},
        {2, "encode -o p --json-key n two.jsonl", "line 1: what is under \"n\" is no text"},
        {2, "encode -o there t", "there.idx is there already: --force replaces it"},
        {2, "decode", "PREFIX is missing"},
        {2, "decode none", "cannot open none.bin"},
        {2, "decode there --document 1", "\"1\": 0 to 0 is right"},
        {2, "decode there --tokenizer gpt2", "needs --vocab-file"},
        {2, "decode high", "high.bin: token 1 of document 0 is 256, which the tokenizer byte"},
        {2, "decode raw --json", "document 0 is no UTF-8"},
        {2, "info none", "cannot open none.bin"},
        {2, "info cut", "cut.idx has 50 bytes; with 1 sequences"},
        {2, "info there --top -1", "\"-1\""},
        {1, "info there >/dev/full", "No space left"},
    };

    write_text("t", "t\n");
    write_text("empty", "");
    write_text("bad", "abc\xff");
    write_text("bad2", "good\nb\xff\n");
    write_text("two.jsonl", "{\"text\":\"a\",\"n\":1}\n{\"n\":1}\n");
    EXPECT(0, "$TEST_DATA encode -o there t && $TEST_DATA encode -o raw bad");
    EXPECT(0, "for e in bin idx; do cp there.$e cut.$e; cp there.$e high.$e; done; "
              "truncate -s 50 cut.idx; cp there.json high.json; "
              "printf '\\0\\1' | dd of=high.bin bs=1 seek=2 conv=notrunc status=none");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        EXPECT(cases[i].status, "$TEST_DATA %s", cases[i].arguments);
        EXPECT_SAID(cases[i].says);
    }
    EXPECT(0, "ls p* 2>/dev/null | grep -c . | grep -x 0"); /* nothing is left of any of them */
}

Test(data_tool, other_files_are_replaced_when_asked_and_else_left)
{
    write_text("t", "first");
    write_text("u", "the second");
    EXPECT(0, "$TEST_DATA encode -o p t");
    EXPECT(2, "$TEST_DATA encode -o p u");
    EXPECT(0, "$TEST_DATA decode p");
    cr_expect_str_eq(said, "first");
    EXPECT(0, "umask 027; $TEST_DATA encode --force -o p u");
    EXPECT(0, "$TEST_DATA decode p");
    cr_expect_str_eq(said, "the second");
    EXPECT(0, "stat -c %%a p.bin p.idx p.json | sort -u | grep -x 640");
    EXPECT(1, "(ulimit -f 1; trap '' XFSZ; head -c 100000 /dev/zero >z; "
              "head -c 100000 /dev/zero | $TEST_DATA encode --force -o p -)");
    EXPECT_SAID("p.bin: File too large");
    EXPECT(0, "$TEST_DATA decode p");
    cr_expect_str_eq(said, "the second");
    EXPECT(0, "ls p* | wc -l | grep -x 3");
}

/* What has no end, and what nobody writes. */
Test(data_tool, devices_and_pipes_without_a_writer_are_refused)
{
    EXPECT(2, "$TEST_DATA encode -o p /dev/zero");
    EXPECT_SAID("/dev/zero: it is a device: a file or a pipe is right");
    EXPECT(2, "$TEST_DATA encode -o p - </dev/zero");
    EXPECT_SAID("stdin: it is a device");
    EXPECT(2, "mkfifo f; $TEST_DATA encode -o p f");
    EXPECT_SAID("f: it is a pipe that nobody writes to");
    EXPECT(2, "mkfifo v; $TEST_DATA encode -o p --vocab-file v --merge-file v t");
    EXPECT_SAID("v is no regular file");
    EXPECT(0, "echo first | $TEST_DATA encode -o p /dev/stdin");
    EXPECT(0, "$TEST_DATA decode p");
    cr_expect_str_eq(said, "first\n");
    EXPECT(0, "(echo second >f) & $TEST_DATA encode --force -o p f; wait");
    EXPECT(0, "$TEST_DATA decode p");
    cr_expect_str_eq(said, "second\n");
}

/* Interrupted while it waits for more of a pipe. */
Test(data_tool, a_signal_ends_it_and_leaves_nothing)
{
    EXPECT(
        0,
        "mkfifo f; exec 3<>f; echo text >&3; $TEST_DATA encode -o p --documents line f & pid=$!; "
        "until ls p.bin.* >/dev/null 2>&1; do :; done; kill -TERM $pid; wait $pid; "
        "test $? = 143 && ls p* 2>/dev/null | wc -l | grep -x 0");
}

/* --- holmes-train ----------------------------------------------------------------------------- */

#define SMALL "--layers 2 --channels 16 --heads 2 --seq-len 16 --batch 4 --steps 3 --quiet "

static void make_corpus(void)
{
    EXPECT(0, "for i in $(seq 400); do echo \"the rank $i of the world is here\"; echo; done >t");
    EXPECT(0, "$TEST_DATA encode -o d $B --documents blank --append-eod t");
}

/* The losses of the steps, as text. */
static void losses(const char *options, char out[512])
{
    EXPECT(0, "$TEST_TRAIN --data d " SMALL "%s --log l.jsonl", options);
    EXPECT_SAID("nats per token; single tokens alone");
    EXPECT(0, "sed -n 's/.*\"step\": *\\([0-9]*\\), *\"loss\": *\\([0-9.]\\{6\\}\\).*/\\1 \\2/p' "
              "l.jsonl");
    snprintf(out, 512, "%.511s", said);
}

Test(data_tool, holmes_train_learns_from_its_tokens_however_ranks_are_split)
{
    char one[512], two[512];

    make_corpus();
    losses("--split 9,1", one);
    cr_expect(strncmp(one, "1 6.4", 5) == 0 || strncmp(one, "1 6.5", 5) == 0, "ln 657 is 6.49: %s",
              one);
    EXPECT(0, "grep -q '\"unit\": *\"token\"' l.jsonl && grep -q '\"documents\": *400' l.jsonl && "
              "grep -q '\"vocab\": *657' l.jsonl");
    losses("--split 9,1 --local 2 --data-parallel 2 --plugin $TEST_NET_PLUGIN", two);
    cr_expect_str_eq(one, two);
    losses("--split 9,1 --local 2 --pipeline 2 --plugin $TEST_NET_PLUGIN", two);
    cr_expect_str_eq(one, two);
}

Test(data_tool, holmes_train_says_what_is_wrong_with_data)
{
    static const struct {
        const char *options, *says;
    } cases[] = {
        {"--data none", "no such file, and no none.bin with none.idx either"},
        {"--data half", "there is half.idx, but no half.bin"},
        {"--data bare", "--vocab is missing, and cannot open bare.json"},
        {"--data bare --vocab 300", "; with --vocab 300 0 to 299 are right"},
        {"--data swapped", "swapped.json is of 400 documents"},
        {"--data cut --vocab 657", "cut.idx lists"},
        {"--data d --seq-len 60000", "a sequence of 60000 needs 60001"},
        {"--data d --split 9999,1", "0 of them held out in 0 of 400 documents"},
        {"--data t --vocab 32", "; with --vocab 32 0 to 31 are right"},
    };

    make_corpus();
    EXPECT(0, "cp d.idx half.idx; cp d.idx bare.idx; cp d.bin bare.bin; cp d.idx cut.idx; "
              "head -c 100 d.bin >cut.bin; $TEST_DATA encode -o swapped t; cp d.json swapped.json");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        EXPECT(2, "$TEST_TRAIN " SMALL "%s", cases[i].options);
        EXPECT_SAID(cases[i].says);
        cr_expect_eq(strchr(said, '\n'), said + strlen(said) - 1, "one line: %s", said);
    }
}
