/* Loading: the names NCCL would try, the versions it would take, and what is said about a library
 * that is no plugin. Each version of the interface moves bytes, through a plugin that checks how it
 * is called. */
#include <criterion/criterion.h>
#include <errno.h>

#include "comm_check.h"
#include "net_plugin.h"
#include "self.h"

static int open_fails(const char *plugin, const char *device, char *why, size_t why_len)
{
    struct holmes_net_attr attr = {plugin, device, 5, 5};
    struct holmes_net *net = NULL;
    int rc = holmes_net_open(&attr, &net, why, why_len);

    cr_assert_neq(rc, 0, "%s opened", plugin);
    cr_assert_null(net);
    return rc;
}

Test(net_plugin, says_which_names_were_tried)
{
    char why[512];

    cr_assert_eq(open_fails("nosuch", NULL, why, sizeof why), -ENOENT);
    cr_assert(strstr(why, "'nosuch'"), "%s", why);
    cr_assert(strstr(why, "libnccl-net-nosuch.so"), "%s", why);
}

Test(net_plugin, a_path_or_library_name_is_tried_verbatim_only)
{
    char why[512];

    cr_assert_eq(open_fails("/no/such.so", NULL, why, sizeof why), -ENOENT);
    cr_assert_null(strstr(why, "libnccl-net-"), "%s", why);
    cr_assert_eq(open_fails("libnosuch.so", NULL, why, sizeof why), -ENOENT);
    cr_assert_null(strstr(why, "libnccl-net-"), "%s", why);
}

Test(net_plugin, refuses_no_name_and_a_name_nccl_would_skip)
{
    char why[512], name[300];

    memset(name, 'x', sizeof name - 1);
    name[sizeof name - 1] = '\0';
    cr_assert_eq(open_fails("", NULL, why, sizeof why), -EINVAL);
    cr_assert_eq(open_fails(name, NULL, why, sizeof why), -EINVAL);
}

Test(net_plugin, a_library_without_the_symbols_is_no_plugin)
{
    char why[512];

    cr_assert_eq(open_fails("libm.so.6", NULL, why, sizeof why), -ENOSYS);
    cr_assert(strstr(why, "ncclNetPlugin_v12"), "%s", why);
}

Test(net_plugin, a_table_with_a_hole_is_refused)
{
    char why[512];

    cr_assert_eq(open_fails("hole", NULL, why, sizeof why), -EINVAL);
    cr_assert(strstr(why, "ncclNetPlugin_v8"), "%s", why);
}

Test(net_plugin, no_device_is_an_error)
{
    char why[512];

    setenv("MINI_DEVICES", "0", 1);
    cr_assert_eq(open_fails("mini9", NULL, why, sizeof why), -ENODEV);
    cr_assert(strstr(why, "no device"), "%s", why);
}

Test(net_plugin, an_unknown_device_is_answered_with_those_there_are)
{
    char why[512];

    cr_assert_eq(open_fails("mini9", "eth7", why, sizeof why), -ENODEV);
    cr_assert(strstr(why, "'eth7'") && strstr(why, "mini0"), "%s", why);
}

Test(net_plugin, a_failing_init_is_named)
{
    char why[512];

    setenv("MINI_FAIL", "init:1", 1);
    cr_assert_eq(open_fails("mini12", NULL, why, sizeof why), -EIO);
    cr_assert(strstr(why, "ncclSystemError"), "%s", why);
}

Test(net_plugin, the_newest_table_of_a_library_is_taken)
{
    struct holmes_net_attr attr = {holmes_test_plugin(), NULL, 5, 5};
    struct holmes_net_info info;
    struct holmes_net *net;
    char why[512];

    cr_assert_eq(holmes_net_open(&attr, &net, why, sizeof why), 0, "%s", why);
    holmes_net_info(net, &info);
    cr_assert_eq(info.abi, 12);
    cr_assert_str_eq(info.name, "Holmes");
    cr_assert(strstr(info.path, "/libnccl-net-holmes.so"), "%s", info.path);
    cr_assert_gt(info.ndev, 0);
    cr_assert_gt(strlen(info.device), 0);
    holmes_net_close(net);
}

Test(net_plugin, opening_and_closing_leaves_nothing)
{
    struct holmes_net_attr attr = {"mini12", "mini0", 5, 5};
    struct holmes_net *net;
    int before = holmes_self_fds();
    char why[512];

    for (int i = 0; i < 20; i++) {
        cr_assert_eq(holmes_net_open(&attr, &net, why, sizeof why), 0, "%s", why);
        holmes_net_close(net);
    }
    cr_assert_eq(holmes_self_fds(), before);
}

static void some_of_all_body(struct rank *r)
{
    struct holmes_comm *c = r->all;
    const size_t count = 300001;
    float *buf = check_values(c->rank, 0, count, HOLMES_FLOAT32);
    float *peer = check_buffer(count * sizeof *peer);
    struct holmes_op *op, *sent;

    EXPECT(c->ops->send(c, buf, count * sizeof *buf, (c->rank + 1) % c->size, &sent) == 0);
    EXPECT(c->ops->recv(c, peer, count * sizeof *buf, (c->rank + c->size - 1) % c->size, &op) == 0);
    holmes_test_wait(c, op, 0);
    holmes_test_wait(c, sent, 0);
    for (size_t i = 0; i < count; i++)
        EXPECT(peer[i] == check_value((c->rank + c->size - 1) % c->size, i));
    for (size_t some = count; some; some /= 50) {
        float *sum = check_buffer(some * sizeof *sum);

        EXPECT(c->ops->all_reduce(c, buf, sum, some, HOLMES_FLOAT32, &op) == 0);
        holmes_test_wait(c, op, 0);
        for (size_t i = 0; i < some; i++)
            EXPECT(sum[i] == check_sum(c->size, i), "element %zu of %zu", i, some);
        free(sum);
    }
    EXPECT(c->ops->barrier(c, &op) == 0);
    holmes_test_wait(c, op, 0);
    free(peer);
    free(buf);
}

static void run(const char *plugin)
{
    struct ranks ranks = {.size = 3, .plugin = plugin, .body = some_of_all_body};

    cr_assert(holmes_test_ranks_run(&ranks, 60), "%s", plugin);
}

Test(net_plugin, versions_8_to_12_move_bytes)
{
    char name[8];

    for (int abi = 8; abi <= 12; abi++) {
        snprintf(name, sizeof name, "mini%d", abi);
        run(name);
    }
}

Test(net_plugin, not_yet_is_asked_again)
{
    setenv("MINI_BUSY", "1", 1);
    run("mini8");
    run("mini11");
}

Test(net_plugin, results_have_errnos_and_names_of_their_own)
{
    cr_assert_str_eq(holmes_plugin_result_name(-ECONNRESET), "ncclRemoteError");
    cr_assert_str_eq(holmes_plugin_result_name(-EIO), "ncclSystemError");
    cr_assert_null(holmes_plugin_result_name(-ETIME));
}
