/* Sequences out of a text file: which bytes they come from, and what happens with bad files. */
#include "dataloader.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "self.h"

#define T 8

static char path[] = "/tmp/holmes-dataloader-XXXXXX";

/* A file whose bytes at multiples of 3 lie below 100 and tell, with the next one, their place. */
static void file_create(size_t size)
{
    const int fd = mkstemp(path);

    cr_assert_geq(fd, 0);
    for (size_t i = 0; i < size; i++) {
        const size_t parts[] = {i / 3 / 100, 100 + i / 3 % 100, 200 + i % 50};
        const uint8_t b = (uint8_t)parts[i % 3];

        cr_assert_eq(write(fd, &b, 1), 1);
    }
    close(fd);
}

static void file_remove(void)
{
    unlink(path);
}

/* Place of a sequence that starts at a multiple of 3, else -1. */
static long place_of(const int32_t *tokens)
{
    return tokens[0] < 100 ? 3 * (tokens[0] * 100L + tokens[1] - 100) : -1;
}

static struct holmes_data_attr attr_of(const char *file, int seq_len, double heldout)
{
    return (struct holmes_data_attr){.path = file,
                                     .seq_len = seq_len,
                                     .batch = 12,
                                     .vocab = HOLMES_BYTE_VOCAB,
                                     .split = {1 - heldout, heldout, 0}};
}

static struct holmes_dataloader *loader(double heldout, uint64_t seed)
{
    struct holmes_data_attr attr = attr_of(path, T, heldout);
    struct holmes_dataloader *d = NULL;
    char why[256] = "";

    attr.seed = seed;
    cr_assert_eq(holmes_dataloader_open(&attr, &d, why, sizeof why), 0, "%s", why);
    return d;
}

Test(dataloader, targets_are_the_next_bytes, .fini = file_remove)
{
    int32_t tokens[20 * T], targets[20 * T];

    file_create(3000);
    struct holmes_dataloader *d = loader(0.1, 5);
    cr_expect_eq(holmes_dataloader_tokens(d), 3000);
    holmes_dataloader_train(d, 1, 0, 20, tokens, targets);
    for (int i = 0; i < 20; i++)
        for (int t = 0; t + 1 < T; t++)
            cr_expect_eq(targets[i * T + t], tokens[i * T + t + 1]);
    holmes_dataloader_heldout(d, 0, 2, tokens, targets);
    cr_expect_eq(targets[T - 1], tokens[T]); /* held-out sequences follow each other */
    holmes_dataloader_close(d);
}

Test(dataloader, sequence_does_not_depend_on_how_the_batch_is_cut, .fini = file_remove)
{
    int32_t whole[12 * T], whole_targets[12 * T], part[12 * T], part_targets[12 * T];
    static const int cuts[][4] = {{0, 6, 12, 12}, {0, 4, 8, 12}, {0, 1, 2, 12}};

    file_create(3000);
    struct holmes_dataloader *d = loader(0.1, 5), *other = loader(0.1, 5);
    for (uint64_t step = 1; step < 60; step++) { /* two epochs */
        holmes_dataloader_train(d, step, 0, 12, whole, whole_targets);
        for (int c = 0; c < 3; c++) {
            for (int i = 2; i >= 0; i--) /* in another order, too */
                holmes_dataloader_train(other, step, cuts[c][i], cuts[c][i + 1] - cuts[c][i],
                                        part + cuts[c][i] * T, part_targets + cuts[c][i] * T);
            cr_expect_arr_eq(part, whole, sizeof whole);
            cr_expect_arr_eq(part_targets, whole_targets, sizeof whole_targets);
        }
    }
    holmes_dataloader_close(d);
    holmes_dataloader_close(other);
}

Test(dataloader, steps_sequences_and_seeds_differ, .fini = file_remove)
{
    int32_t a[2 * T], b[2 * T], targets[2 * T];

    file_create(20000);
    struct holmes_dataloader *d = loader(0.1, 5), *other = loader(0.1, 6);
    holmes_dataloader_train(d, 1, 0, 2, a, targets);
    cr_expect_arr_neq(a, a + T, T * sizeof *a);
    holmes_dataloader_train(d, 2, 0, 2, b, targets);
    cr_expect_arr_neq(a, b, sizeof a);
    holmes_dataloader_train(other, 1, 0, 2, b, targets);
    cr_expect_arr_neq(a, b, sizeof a);
    holmes_dataloader_close(d);
    holmes_dataloader_close(other);
}

/* Bytes of a file whose values tell their place. */
static void places_create(int size)
{
    const int fd = mkstemp(path);

    for (int i = 0; i < size; i++) {
        const uint8_t b = (uint8_t)i;

        cr_assert_eq(write(fd, &b, 1), 1);
    }
    close(fd);
}

/* 250 bytes, 40 held out: 26 samples from the train part's 210, of which an epoch leaves out the
 * last one or two. */
Test(dataloader, each_epoch_of_a_text_has_every_place_once_and_no_held_out_byte,
     .fini = file_remove)
{
    int32_t tokens[T], targets[T], starts[40];

    places_create(250);
    struct holmes_dataloader *d = loader(0.16, 1);
    cr_assert_eq(holmes_dataloader_epoch(d), 26);
    for (int epoch = 0; epoch < 40; epoch++) {
        int seen[210] = {0}, left_out = 0;

        for (int i = 0; i < 26; i++) {
            const int all = epoch * 26 + i;

            cr_assert_eq(
                holmes_dataloader_train(d, (uint64_t)(all / 12 + 1), all % 12, 1, tokens, targets),
                0);
            for (int t = 0; t < T; t++) {
                cr_assert_lt(tokens[t], 210);
                seen[tokens[t]]++;
                cr_expect_eq(targets[t], (tokens[t] + 1) % 210);
            }
        }
        for (int at = 0; at < 210; at++) {
            cr_expect_leq(seen[at], 1, "epoch %d has byte %d twice", epoch, at);
            left_out += seen[at] == 0;
            if (seen[at] == 0)
                starts[epoch] = at;
        }
        cr_expect_eq(left_out, 210 - 26 * T);
    }
    for (int epoch = 1, same = 0; epoch < 40; epoch++) {
        same += starts[epoch] == starts[0];
        cr_expect_lt(same, 4, "epochs begin at one place");
    }
    holmes_dataloader_close(d);
}

Test(dataloader, held_out_sequences_are_disjoint_and_in_the_tail, .fini = file_remove)
{
    int32_t tokens[11 * T], targets[11 * T];
    double nats;

    file_create(300);
    struct holmes_dataloader *d = loader(0.3, 1);
    cr_assert_eq(holmes_dataloader_heldout_count(d), 11); /* of the 90 bytes the last is a target */
    holmes_dataloader_heldout(d, 0, 11, tokens, targets);
    cr_expect_eq(place_of(tokens), 210);
    cr_expect_eq(place_of(tokens + 3 * T), 210 + 3 * T);
    for (int i = 0; i + 1 < 11 * T; i++)
        cr_expect_eq(tokens[i + 1], targets[i]);
    holmes_dataloader_close(d);

    d = loader(0, 1);
    cr_expect_eq(holmes_dataloader_heldout_count(d), 0);
    cr_expect_eq(holmes_dataloader_unigram_nats(d, &nats), 0);
    cr_expect(isnan(nats));
    holmes_dataloader_close(d);
}

Test(dataloader, unigram_entropy_is_that_of_the_tail_under_the_rest, .fini = file_remove)
{
    char text[200];
    double nats;
    struct holmes_dataloader *d;
    FILE *f;

    /* train: 60 a, 40 b; held out: 50 a, 25 b, 25 c */
    memset(text, 'a', 60);
    memset(text + 60, 'b', 40);
    memset(text + 100, 'a', 50);
    memset(text + 150, 'b', 25);
    memset(text + 175, 'c', 25);
    close(mkstemp(path));
    f = fopen(path, "w");
    cr_assert_eq(fwrite(text, 1, sizeof text, f), sizeof text);
    fclose(f);
    d = loader(0.5, 1);
    const double want = -(0.5 * log(61.0 / 356) + 0.25 * log(41.0 / 356) + 0.25 * log(1.0 / 356));
    cr_expect_eq(holmes_dataloader_unigram_nats(d, &nats), 0);
    cr_expect_float_eq(nats, want, 1e-12);
    holmes_dataloader_close(d);
}

static void expect_refused(const char *file, int seq_len, double heldout, int rc, const char *says)
{
    const struct holmes_data_attr attr = attr_of(file, seq_len, heldout);
    struct holmes_dataloader *d = NULL;
    char why[256] = "";

    cr_expect_eq(holmes_dataloader_open(&attr, &d, why, sizeof why), rc);
    cr_expect_null(d);
    cr_expect_not_null(strstr(why, says), "\"%s\" lacks \"%s\"", why, says);
}

Test(dataloader, bad_files_are_refused_with_a_reason, .fini = file_remove)
{
    char fifo[sizeof path + 8];

    file_create(100);
    expect_refused("/nonexistent/text", T, 0.1, -ENOENT, "/nonexistent/text");
    expect_refused("/tmp", T, 0.1, -EINVAL, "no regular file");
    expect_refused("/dev/zero", T, 0.1, -EINVAL, "no regular file");
    expect_refused(path, 100, 0, -EINVAL, "needs 101");
    expect_refused(path, T, 0.05, -EINVAL, "5 of them held out");
    expect_refused(path, T, 0.001, -EINVAL, "0 of them held out");
    expect_refused(path, T, 0.95, -EINVAL, "to train on");
    expect_refused(path, 0, 0.1, -EINVAL, "sequence length is 0");
    expect_refused(path, T, 1, -EINVAL, "share to train on is 0");
    expect_refused(path, T, 1.5, -EINVAL, "share 0 of the split is -0.5");
    expect_refused(path, T, NAN, -EINVAL, "share 0 of the split is");
    cr_assert_eq(truncate(path, 0), 0);
    expect_refused(path, T, 0.1, -EINVAL, "empty");
    snprintf(fifo, sizeof fifo, "%s.fifo", path);
    cr_assert_eq(mkfifo(fifo, 0600), 0);
    expect_refused(fifo, T, 0.1, -EINVAL, "no regular file"); /* and does not wait for a writer */
    unlink(fifo);
}

Test(dataloader, leaves_no_descriptor_open, .fini = file_remove)
{
    file_create(300);
    const int before = holmes_self_fds();
    struct holmes_dataloader *d = loader(0.3, 1);

    expect_refused(path, 1000, 0.3, -EINVAL, "needs 1001");
    expect_refused("/tmp", T, 0.1, -EINVAL, "no regular file");
    cr_expect_eq(holmes_self_fds(), before);
    holmes_dataloader_close(d);
    cr_expect_eq(holmes_self_fds(), before);
}

Test(dataloader, shortest_file_has_one_place)
{
    int32_t tokens[T], targets[T];

    file_create(2 * (T + 1));
    struct holmes_dataloader *d = loader(0.5, 1);
    cr_expect_eq(holmes_dataloader_epoch(d), 1);
    holmes_dataloader_train(d, 1, 0, 1, tokens, targets);
    cr_expect_eq(holmes_dataloader_heldout_count(d), 1);
    holmes_dataloader_heldout(d, 0, 1, tokens, targets);
    cr_expect_eq(place_of(tokens), T + 1);
    holmes_dataloader_close(d);
    file_remove();
}
