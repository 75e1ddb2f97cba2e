/* The configuration from wherever it comes, and its arithmetic; what the command line refuses is in
 * test_bad_input. */
#include <criterion/criterion.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "config_spec.h"

static struct holmes_config parse(int argc, const char *const *argv)
{
    struct holmes_config c;
    char *args[32], why[400] = "";

    for (int i = 0; i < argc; i++)
        args[i] = (char *)argv[i];
    args[argc] = NULL;
    cr_assert_eq(holmes_config_parse(argc, args, &c, why, sizeof why), 0, "%s", why);
    return c;
}
#define PARSE(...)                                                                                 \
    parse((int)(sizeof(const char *[]){"holmes-train", __VA_ARGS__} / sizeof(char *)),             \
          (const char *[]){"holmes-train", __VA_ARGS__})

Test(config, fills_every_type_of_option)
{
    struct holmes_config c = PARSE("--layers=6", "--lr", "2.5e-4", "--seed", "18446744073709551615",
                                   "--tied", "--data=x", "--placement", "naive");

    cr_expect_eq(c.model.layers, 6);
    cr_expect_eq(c.lr, 2.5e-4);
    cr_expect_eq(c.seed, UINT64_MAX);
    cr_expect(c.model.tied);
    cr_expect_str_eq(c.data, "x");
    cr_expect_eq(c.placement, HOLMES_PLACEMENT_NAIVE);
    cr_expect_float_eq(c.final_lr, 2.5e-5, 1e-12, "a tenth of --lr unless given");
    holmes_config_fini(&c);
}

Test(config, later_options_win)
{
    struct holmes_config c =
        PARSE("--rank-order", "1,0", "--placement", "planned", "--steps", "5", "--steps", "7");

    cr_expect_eq(c.placement, HOLMES_PLACEMENT_PLANNED);
    cr_expect_eq(c.steps, 7);
    holmes_config_fini(&c);
}

/* A file of --config with this text. */
static const char *file_of(const char *text)
{
    static char path[64];
    FILE *f;

    snprintf(path, sizeof path, "/tmp/holmes-config-%d", (int)getpid());
    f = fopen(path, "we");
    cr_assert_not_null(f);
    fputs(text, f);
    cr_assert_eq(fclose(f), 0);
    return path;
}

Test(config, flags_win_over_the_file_and_the_file_over_the_preset)
{
    const char *path = file_of("heads: 16\nlr: 0.5\ntied: yes\nstage-layers: [5, 7]\n"
                               "rank-order: 1,0\n");
    struct holmes_config c =
        PARSE("--lr", "0.25", "--config", path, "--tied=no", "--preset", "gpt2-124m");

    unlink(path);
    cr_expect_eq(c.model.layers, 12, "of the preset");
    cr_expect_eq(c.model.channels, 768);
    cr_expect_eq(c.model.heads, 16, "of the file");
    cr_expect_str_eq(c.stage_layers, "5,7");
    cr_expect_eq(c.placement, HOLMES_PLACEMENT_ORDER);
    cr_expect_eq(c.lr, 0.25, "of the command line");
    cr_expect_not(c.model.tied);
    cr_expect(holmes_config_given(&c, "lr"));
    cr_expect_not(holmes_config_given(&c, "steps"));
    holmes_config_fini(&c);
}

Test(config, a_preset_on_the_command_line_takes_the_place_of_the_files)
{
    const char *path = file_of("layers: 3\npreset: gpt2-124m\n");
    struct holmes_config c = PARSE("--config", path);

    cr_expect_eq(c.model.layers, 3, "wherever in the file the preset stands");
    cr_expect_eq(c.model.channels, 768);
    holmes_config_fini(&c);
    c = PARSE("--config", path, "--preset", "gpt2-355m");
    unlink(path);
    cr_expect_eq(c.model.layers, 3);
    cr_expect_eq(c.model.channels, 1024);
    holmes_config_fini(&c);
}

Test(config, a_placement_named_later_takes_the_place_of_an_order)
{
    const char *path = file_of("rank-order: [1, 0]\n");
    struct holmes_config c = PARSE("--config", path, "--placement", "naive");

    unlink(path);
    cr_expect_eq(c.placement, HOLMES_PLACEMENT_NAIVE);
    holmes_config_fini(&c);
}

Test(config, files_are_refused_with_line_and_what_was_meant)
{
    static const struct {
        const char *text, *says;
    } rows[] = {
        {"", "f: the file is empty"},
        {"lr: 1\nlayer: 3\n", "f:2: there is no option \"layer\"; did you mean \"layers\"?"},
        {"--layers: 3\n", "f:1: there is no option \"--layers\"; did you mean \"layers\"?"},
        {"seq_len: 3\n", "did you mean \"seq-len\"?"},
        {"colour: red\n", "f:1: there is no option \"colour\"; holmes-train --help lists them"},
        {"lr: 1\n\nlr: 2\n", "f:3: \"lr\" comes twice, first in line 1"},
        {"lr: fast\n", "f:1: lr \"fast\": a number from 1e-12 to 10 is right"},
        {"lr: [1, 2]\n", "f:1: lr: one word or number is right, not a list"},
        {"lr: {a: 1}\n", "f:1: lr: one word or number is right, not a group of keys"},
        {"cluster: {a: 1}\n", "or a list, not a group of keys"},
        {"cluster:\n- a\n- b,c\n", "f:3: cluster: words or numbers without commas"},
        {"cluster: []\n", "f:1: cluster: nothing is given"},
        {"tied: maybe\n", "f:1: tied \"maybe\": yes or no is right"},
        {"placement: best\n", "f:1: placement \"best\": planned or naive is right"},
        {"data: \n", "f:1: data: nothing is given"},
        {"data: \"a\\0b\"\n", "f:1: data: the text has a zero byte in it"},
        {"rank: 1\n", "f:1: \"rank\" is for the command line"},
        {"config: g\n", "f:1: \"config\" is for the command line"},
        {"preset: gpt2-125m\n", "f:1: preset \"gpt2-125m\": no model of that name; did you mean "
                                "\"gpt2-124m\"?"},
        {"- a\n", "f:1: lines of \"option: value\" are right"},
        {"[a]: b\n", "f:1: a key is the name of an option"},
        {"a: b: c\n", "f:1: not readable as YAML"},
        {"lr: 1\n---\nlr: 2\n", "f:3: a second document"},
    };

    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct holmes_config c;
        char why[400] = "";

        holmes_config_init(&c);
        cr_expect_eq(holmes_config_file_apply("f", rows[i].text, strlen(rows[i].text), false, &c,
                                              why, sizeof why),
                     -EINVAL, "%s", rows[i].text);
        cr_expect_not_null(strstr(why, rows[i].says), "\"%s\" expected, it says: %s", rows[i].says,
                           why);
        holmes_config_fini(&c);
    }
}

Test(config, what_is_printed_is_read_as_the_same)
{
    struct holmes_config c = PARSE("--preset", "gpt-39.1b", "--seed", "18446744073709551615",
                                   "--lr", "0.1", "--final-lr", "0.30000000000000004",
                                   "--rank-order", "1,0", "--data", "a \"b\" \\ \xe2\x98\xba\n#",
                                   "--tied=off", "--host-label", "x,y z", "--comm", "loopback"),
                         again;
    char *text[2] = {NULL, NULL}, why[300] = "";
    size_t len[2];

    for (int i = 0; i < 2; i++) {
        FILE *out = open_memstream(&text[i], &len[i]);

        if (i == 1) {
            holmes_config_init(&again);
            cr_assert_eq(
                holmes_config_file_apply("f", text[0], len[0], false, &again, why, sizeof why), 0,
                "%s", why);
        }
        cr_expect_eq(holmes_config_print(i == 0 ? &c : &again, out, why, sizeof why), 0, "%s", why);
        cr_assert_eq(fclose(out), 0);
    }
    cr_expect_str_eq(text[0], text[1]);
    cr_expect_eq(again.seed, UINT64_MAX);
    cr_expect_eq(again.final_lr, 0.30000000000000004);
    cr_expect_str_eq(again.data, c.data);
    cr_expect_str_eq(again.host_labels, "x,y z");
    cr_expect_eq(again.placement, HOLMES_PLACEMENT_ORDER);
    free(text[0]);
    free(text[1]);
    holmes_config_fini(&c);
    holmes_config_fini(&again);
}

/* All defaults are in it, and none of them is taken for something that was asked for. */
Test(config, what_is_printed_can_be_run)
{
    static const char *const splits[] = {NULL, "9,1"};

    for (int i = 0; i < 2; i++) {
        struct holmes_config c = PARSE("--data", "/proc/self/exe", "--lr-decay", "constant"), again;
        char *text = NULL, why[400] = "";
        size_t len;
        FILE *out = open_memstream(&text, &len);

        if (splits[i])
            cr_assert_eq(holmes_config_set(&c, "split", splits[i], why, sizeof why), 0);
        cr_expect_eq(holmes_config_print(&c, out, why, sizeof why), 0, "%s", why);
        cr_assert_eq(fclose(out), 0);
        holmes_config_init(&again);
        cr_assert_eq(holmes_config_file_apply("f", text, len, false, &again, why, sizeof why), 0,
                     "%s", why);
        holmes_config_derive(&again);
        cr_expect_eq(holmes_config_check(&again, why, sizeof why), 0, "%s", why);
        free(text);
        holmes_config_fini(&c);
        holmes_config_fini(&again);
    }
}

Test(config, text_that_is_no_utf8_is_not_printed)
{
    struct holmes_config c = PARSE("--data", "a\xff");
    char why[300] = "", sink[4096];
    FILE *out = fmemopen(sink, sizeof sink, "w");

    cr_expect_eq(holmes_config_print(&c, out, why, sizeof why), -EINVAL);
    cr_expect_not_null(strstr(why, "--data: the text is not UTF-8"), "%s", why);
    fclose(out);
    holmes_config_fini(&c);
}

/* Each is a number or word that the option itself takes. */
Test(config, defaults_are_values_of_their_options)
{
    for (int i = 0; i < holmes_nspecs; i++) {
        const struct holmes_spec *s = &holmes_specs[i];
        struct holmes_config c;
        char why[300] = "", buf[64];

        if (!s->def)
            continue;
        holmes_config_init(&c);
        cr_expect_eq(holmes_spec_set(s, s->def, &c, why, sizeof why), 0, "%s", why);
        cr_expect_str_eq(holmes_spec_get(s, &c, buf, sizeof buf), s->def, "--%s", s->name);
        holmes_config_fini(&c);
    }
}

Test(config, learning_rate_warms_up_and_falls_to_its_last_value)
{
    struct holmes_config c = {.lr = 1e-3, .final_lr = 1e-4, .warmup = 10, .steps = 100};

    cr_expect_float_eq(holmes_config_lr(&c, 1), 1e-4, 1e-12);
    cr_expect_float_eq(holmes_config_lr(&c, 10), 1e-3, 1e-12);
    cr_expect_float_eq(holmes_config_lr(&c, 11), 1e-3, 1e-12);
    cr_expect_float_eq(holmes_config_lr(&c, 100), 1e-4, 1e-12);
    for (int t = 12; t <= 100; t++)
        cr_expect_lt(holmes_config_lr(&c, t), holmes_config_lr(&c, t - 1));
    c.final_lr = c.lr;
    c.warmup = 0;
    for (int t = 1; t <= 100; t++)
        cr_expect_float_eq(holmes_config_lr(&c, t), 1e-3, 1e-15, "step %d", t);
    c.steps = 1;
    cr_expect_float_eq(holmes_config_lr(&c, 1), 1e-3, 1e-15);
}

Test(config, learning_rate_may_fall_on_a_line_or_stay)
{
    struct holmes_config c = {
        .lr = 1e-3, .final_lr = 1e-4, .warmup = 10, .steps = 110, .lr_decay = HOLMES_DECAY_LINEAR};

    cr_expect_float_eq(holmes_config_lr(&c, 5), 5e-4, 1e-12);
    cr_expect_float_eq(holmes_config_lr(&c, 11), 1e-3, 1e-12);
    cr_expect_float_eq(holmes_config_lr(&c, 110), 1e-4, 1e-12);
    for (int t = 12; t <= 110; t++)
        cr_expect_float_eq(holmes_config_lr(&c, t - 1) - holmes_config_lr(&c, t), 9e-4 / 99, 1e-12);
    c.lr_decay = HOLMES_DECAY_CONSTANT;
    cr_expect_float_eq(holmes_config_lr(&c, 5), 5e-4, 1e-12, "the warm-up is the same");
    for (int t = 10; t <= 110; t++)
        cr_expect_eq(holmes_config_lr(&c, t), 1e-3);
}

Test(config, endpoints_are_split_at_the_last_colon)
{
    static const struct {
        const char *text, *host;
        int port;
    } good[] = {{"10.0.0.1:29500", "10.0.0.1", 29500},
                {"node-7:1", "node-7", 1},
                {"[fd00::1]:65535", "fd00::1", 65535},
                {"localhost:0", "localhost", 0}};
    static const char *const bad[] = {
        "",        ":",       "host",    "host:",      ":80",  "host:65536",
        "host:-1", "host:8x", "host: 8", "fd00::1:80", "[]:80"};
    char host[64];
    uint16_t port;

    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        cr_expect_eq(holmes_config_endpoint(good[i].text, host, sizeof host, &port), 0, "%s",
                     good[i].text);
        cr_expect_str_eq(host, good[i].host);
        cr_expect_eq(port, good[i].port);
    }
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        cr_expect_eq(holmes_config_endpoint(bad[i], host, sizeof host, &port), -EINVAL, "\"%s\"",
                     bad[i]);
    cr_expect_eq(holmes_config_endpoint("0123456789:80", host, 10, &port), -EINVAL,
                 "a host that does not fit");
}

Test(config, labels_are_one_for_all_or_one_each)
{
    char out[8];

    holmes_config_label("a0,a1,b0", 1, out, sizeof out);
    cr_expect_str_eq(out, "a1");
    holmes_config_label("a0,a1,b0", 2, out, sizeof out);
    cr_expect_str_eq(out, "b0");
    holmes_config_label("A", 3, out, sizeof out);
    cr_expect_str_eq(out, "A");
    holmes_config_label(NULL, 3, out, sizeof out);
    cr_expect_str_eq(out, "");
    holmes_config_label("a-name-that-is-long", 0, out, sizeof out);
    cr_expect_str_eq(out, "a-name-");
}

/* --- options beside others ---------------------------------------------------------------------
 */

/* Whatever is added to the table of options has to be thought of here or in config_pairs.c. */
Test(config, every_option_has_a_rule_or_always_an_effect)
{
    static const char *const always[] = {
        "layers",       "channels",     "heads",    "seq-len",         "vocab",    "tied",
        "data",         "split",        "batch",    "microbatch",      "steps",    "lr",
        "clip",         "weight-decay", "beta1",    "beta2",           "adam-eps", "on-nan",
        "seed",         "kernels",      "pipeline", "data-parallel",   "tensor",   "recompute",
        "stage-layers", "local",        "world",    "host-label",      "cluster",  "planned-hosts",
        "save",         "log",          "trace",    "measure-overlap", "quiet",    NULL};

    for (int i = 0; i < holmes_nspecs; i++) {
        const struct holmes_spec *s = &holmes_specs[i];
        bool listed = false;

        if (!s->name || s->type == SPEC_START)
            continue;
        for (int k = 0; always[k]; k++)
            listed |= strcmp(always[k], s->name) == 0;
        cr_expect_neq(listed, holmes_config_has_rule(s->name), "--%s", s->name);
    }
}

static void expect_warnings(struct holmes_config c, const char *expected)
{
    char *text = NULL;
    size_t len;
    FILE *f = open_memstream(&text, &len);

    holmes_config_warn_pairs(&c, f);
    fclose(f);
    cr_expect_str_eq(text, expected);
    free(text);
    holmes_config_fini(&c);
}

Test(config, options_without_effect_are_warned_of_by_reason)
{
    expect_warnings(PARSE("--local", "4", "--data-parallel", "2", "--plugin", "x", "--bucket-mb",
                          "2", "--warmup", "10", "--steps", "100"),
                    "");
    expect_warnings(
        PARSE("--warmup", "200", "--steps", "100", "--final-lr", "0"),
        "holmes-train: without effect: --warmup: it is longer than --steps, --lr is never "
        "reached\nholmes-train: without effect: --final-lr: all --steps are --warmup\n");
    expect_warnings(
        PARSE("--plugin", "x", "--op-timeout", "7", "--net-device", "y"),
        "holmes-train: without effect: --op-timeout, --plugin, --net-device: there is one "
        "rank\n");
    expect_warnings(PARSE("--overlap", "off", "--local", "2", "--pipeline", "2"),
                    "holmes-train: without effect: --overlap: --data-parallel is 1\n");
    expect_warnings(PARSE("--overlap", "on", "--op-timeout", "120", "--threads", "0"), "");
    expect_warnings(PARSE("--stop-timeout", "7"),
                    "holmes-train: without effect: --stop-timeout: without --save a signal ends at "
                    "once\n");
    expect_warnings(
        PARSE("--quiet", "--progress-every", "1", "--peak-tflops", "2"),
        "holmes-train: without effect: --progress-every, --peak-tflops: --quiet shows no "
        "progress\n");
    expect_warnings(PARSE("--kernels", "ref", "--threads", "2"),
                    "holmes-train: without effect: --threads: only --kernels cpu have threads\n");
    expect_warnings(PARSE("--save", "x", "--save-every", "200"),
                    "holmes-train: without effect: --save-every: there are fewer --steps\n");
}

Test(config, what_cannot_be_had_beside_others_is_refused)
{
    static const struct {
        const char *args[5], *says;
    } rows[] = {
        {{"--max-skipped", "5"}, "--max-skipped 5 needs --on-nan skip"},
        {{"--keep", "5"}, "--keep 5 needs --save DIR"},
        {{"--held-out", "0.1", "--split", "9,1"}, "--held-out 0.1 beside --split: both say"},
        {{"--virtual-stages", "2"}, "--virtual-stages 2 needs a pipeline"},
        {{"--resume", "latest"}, "--resume latest is the newest checkpoint in --save DIR"},
        {{"--resume", "x", "--init", "y"}, "--init y beside --resume: the weights come from"},
    };

    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const char *argv[6] = {"holmes-train"};
        struct holmes_config c;
        char why[300] = "";
        int n = 1;

        for (int k = 0; k < 5 && rows[i].args[k]; k++)
            argv[n++] = rows[i].args[k];
        c = parse(n, argv);
        cr_expect_eq(holmes_config_check_pairs(&c, why, sizeof why), -EINVAL);
        cr_expect_eq(strncmp(why, rows[i].says, strlen(rows[i].says)), 0, "%s", why);
        holmes_config_fini(&c);
    }
}
