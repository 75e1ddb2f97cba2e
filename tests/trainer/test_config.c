/* Arithmetic of the configuration; what the command line refuses is in test_launch. */
#include <criterion/criterion.h>
#include <errno.h>
#include <string.h>

#include "config.h"

static struct holmes_config parse(int argc, const char *const *argv)
{
    struct holmes_config c;
    char *args[16];

    for (int i = 0; i < argc; i++)
        args[i] = (char *)argv[i];
    args[argc] = NULL;
    holmes_config_parse(argc, args, &c);
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
}

Test(config, later_options_win)
{
    struct holmes_config c =
        PARSE("--rank-order", "1,0", "--placement", "planned", "--steps", "5", "--steps", "7");

    cr_expect_eq(c.placement, HOLMES_PLACEMENT_PLANNED);
    cr_expect_eq(c.steps, 7);
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
