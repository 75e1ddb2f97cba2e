#include <criterion/criterion.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "topology/tool/check_msg.h"

static void goes_through(const struct holmes_check_msg *m, struct holmes_check_msg *back)
{
    char *text, why[256];
    size_t len;
    FILE *out = open_memstream(&text, &len);

    cr_assert_eq(holmes_check_msg_write(m, out), 0);
    fclose(out);
    cr_assert_eq(strchr(text, '\n'), text + len - 1, "not one line: %s", text);
    cr_assert_eq(holmes_check_msg_parse(text, len - 1, back, why, sizeof why), 0, "%s: %s", text,
                 why);
    cr_assert_eq(back->kind, m->kind);
    cr_assert_eq(back->pair, m->pair);
    free(text);
}

Test(check_msg, every_kind_goes_through_unchanged)
{
    struct holmes_check_msg back;
    struct holmes_check_msg hello = {
        .kind = HOLMES_CHECK_HELLO,
        .pair = -1,
        .version = "0.1.0",
        .nnics = 2,
        .nics = {{"mlx5_0:2", 200, true}, {"eth0", 0, false}},
    };
    struct holmes_check_msg handle = {.kind = HOLMES_CHECK_HANDLE_IS, .pair = 7};
    struct holmes_check_msg up = {.kind = HOLMES_CHECK_UP,
                                  .pair = 0,
                                  .wire = "tcp",
                                  .reason = "link layers \"differ\" (µ)",
                                  .local = "eth0 10.0.0.1",
                                  .peer = "eth0 fd00::1"};
    struct holmes_check_msg rtt = {.kind = HOLMES_CHECK_RTT, .pair = 1, .rtt_us = 12.25};
    struct holmes_check_msg rate = {.kind = HOLMES_CHECK_RATE, .pair = 2, .gbps = 181.5};
    struct holmes_check_msg done = {.kind = HOLMES_CHECK_DONE, .pair = 3};
    struct holmes_check_msg failed = {
        .kind = HOLMES_CHECK_FAILED, .pair = -1, .reason = "no wire in this build"};

    goes_through(&hello, &back);
    cr_assert_str_eq(back.version, "0.1.0");
    cr_assert_eq(back.nnics, 2);
    cr_assert_str_eq(back.nics[0].name, "mlx5_0:2");
    cr_assert(back.nics[0].rdma && back.nics[0].gbps == 200 && !back.nics[1].rdma);
    for (int i = 0; i < HOLMES_CHECK_HANDLE; i++)
        handle.handle[i] = (uint8_t)(i * 37);
    goes_through(&handle, &back);
    cr_assert_arr_eq(back.handle, handle.handle, HOLMES_CHECK_HANDLE);
    goes_through(&up, &back);
    cr_assert_str_eq(back.wire, up.wire);
    cr_assert_str_eq(back.reason, up.reason);
    cr_assert_str_eq(back.local, up.local);
    cr_assert_str_eq(back.peer, up.peer);
    goes_through(&rtt, &back);
    cr_assert_eq(back.rtt_us, 12.25);
    goes_through(&rate, &back);
    cr_assert_eq(back.gbps, 181.5);
    goes_through(&done, &back);
    goes_through(&failed, &back);
    cr_assert_str_eq(back.reason, failed.reason);
}

Test(check_msg, what_is_no_message_is_refused_with_its_field)
{
    static const struct {
        const char *line, *says;
    } bad[] = {
        {"", "no JSON object"},
        {"bash: warning: no locale", "no JSON object"},
        {"[]", "no JSON object"},
        {"{}", "\"is\""},
        {"{\"is\":7}", "\"is\""},
        {"{\"is\":\"fine\"}", "\"is\""},
        {"{\"is\":\"done\"}", "\"pair\""},
        {"{\"is\":\"done\",\"pair\":-1}", "\"pair\""},
        {"{\"is\":\"done\",\"pair\":1.5}", "\"pair\""},
        {"{\"is\":\"done\",\"pair\":1e300}", "\"pair\""},
        {"{\"is\":\"done\",\"pair\":\"1\"}", "\"pair\""},
        {"{\"is\":\"done\",\"is\":\"up\",\"pair\":1}", "no JSON object"},
        {"{\"is\":\"hello\",\"protocol\":2,\"version\":\"1\",\"nics\":[]}", "\"protocol\""},
        {"{\"is\":\"hello\",\"protocol\":1,\"nics\":[]}", "\"version\""},
        {"{\"is\":\"hello\",\"protocol\":1,\"version\":\"1\",\"nics\":{}}", "\"nics\""},
        {"{\"is\":\"hello\",\"protocol\":1,\"version\":\"1\",\"nics\":[7]}", "name"},
        {"{\"is\":\"handle\",\"pair\":1,\"handle\":\"00\"}", "\"handle\""},
        {"{\"is\":\"up\",\"pair\":1,\"wire\":\"\",\"reason\":\"\",\"local\":\"\",\"peer\":\"\"}",
         "\"wire\""},
        {"{\"is\":\"round trip\",\"pair\":1,\"us\":-3}", "\"us\""},
        {"{\"is\":\"rate\",\"pair\":1,\"gbps\":null}", "\"gbps\""},
    };
    struct holmes_check_msg m;
    char why[256];

    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        cr_assert_eq(holmes_check_msg_parse(bad[i].line, strlen(bad[i].line), &m, why, sizeof why),
                     -EINVAL, "%s was taken", bad[i].line);
        cr_assert(strstr(why, bad[i].says), "%s: %s", bad[i].line, why);
    }
}

Test(check_msg, texts_are_cut_and_harmless)
{
    char line[1024], why[256], wire[300];
    struct holmes_check_msg m;

    memset(wire, 'w', sizeof wire);
    wire[sizeof wire - 1] = '\0';
    snprintf(line, sizeof line,
             "{\"is\":\"up\",\"pair\":1,\"wire\":\"%s\",\"reason\":\"a\\u001b[2Jb\\nc\","
             "\"local\":\"\",\"peer\":\"\"}",
             wire);
    cr_assert_eq(holmes_check_msg_parse(line, strlen(line), &m, why, sizeof why), 0, "%s", why);
    cr_assert_eq(strlen(m.wire), sizeof m.wire - 1);
    cr_assert_str_eq(m.reason, "a?[2Jb?c");
    strcpy(line,
           "{\"is\":\"up\",\"pair\":1,\"wire\":\"01234567890123µ\",\"reason\":\"\",\"local\":\"\","
           "\"peer\":\"\"}");
    cr_assert_eq(holmes_check_msg_parse(line, strlen(line), &m, why, sizeof why), 0, "%s", why);
    cr_assert_str_eq(m.wire, "01234567890123?", "half a character is left");
}

Test(check_msg, clean_leaves_good_text_and_no_bytes_that_harm)
{
    static const struct {
        const char *text, *want;
    } cases[] = {{"", ""},          {"plain µ 漢", "plain µ 漢"}, {"a\tb\033[0m", "a?b?[0m"},
                 {"\xc2\x85", "?"}, {"\xff\xfe", "??"},           {"cut \xe6\xbc", "cut ??"}};
    char text[64];

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        strcpy(text, cases[i].text);
        holmes_check_clean(text);
        cr_assert_str_eq(text, cases[i].want);
    }
}

Test(check_msg, commands_go_through_and_others_are_refused)
{
    static const char *const bad[] = {"",         "listen",        "listen 1", "listen 1 2 3",
                                      "fly 1 2",  "ping -1 5",     "ping 1 x", "send 1 2",
                                      "recv 1 2", "connect 1 5 0", "drop 1",   "ping 1 99999999999",
                                      " drop",    "ping  1 5"};
    struct holmes_check_command c = {.pair = 12, .nic = 3, .run_ms = 200, .limit_ms = 900}, back;
    char buf[512];

    for (int i = 0; i < HOLMES_CHECK_HANDLE; i++)
        c.handle[i] = (uint8_t)(255 - i);
    for (int verb = HOLMES_CHECK_LISTEN; verb <= HOLMES_CHECK_DROP; verb++) {
        c.verb = (enum holmes_check_verb)verb;
        holmes_check_command_write(&c, buf, sizeof buf);
        cr_assert_eq(holmes_check_command_parse(buf, &back), 0, "%s", buf);
        cr_assert_eq(back.verb, c.verb);
        if (verb == HOLMES_CHECK_LISTEN)
            cr_assert_eq(back.nic, 3);
        if (verb == HOLMES_CHECK_CONNECT)
            cr_assert_arr_eq(back.handle, c.handle, HOLMES_CHECK_HANDLE);
        if (verb == HOLMES_CHECK_SEND || verb == HOLMES_CHECK_RECV)
            cr_assert_eq(back.run_ms, 200);
        if (verb >= HOLMES_CHECK_CONNECT && verb <= HOLMES_CHECK_RECV)
            cr_assert(back.limit_ms == 900 && back.pair == 12);
    }
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        cr_assert_eq(holmes_check_command_parse(bad[i], &back), -EINVAL, "\"%s\" was taken",
                     bad[i]);
}
