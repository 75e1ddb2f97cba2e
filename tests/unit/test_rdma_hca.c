/* NCCL_IB_HCA and HOLMES_FABRIC: what each form selects, and what is refused. */
#include <errno.h>

#include "rdma_world.h"

#define COUNT(a) ((int)(sizeof(a) / sizeof *(a)))

/* The host of the public reports. */
static const struct {
    const char *device;
    int port;
} host[] = {
    {"mlx5_0", 1},  {"mlx5_1", 1},  {"mlx5_8", 1}, {"mlx5_10", 1},
    {"mlx5_11", 1}, {"mlx5_14", 1}, {"mlx4_0", 1}, {"mlx4_0", 2},
};
#define PORTS_HERE                                                                                 \
    "RDMA ports here: mlx5_0:1, mlx5_1:1, mlx5_8:1, mlx5_10:1, mlx5_11:1, mlx5_14:1, mlx4_0:1, "   \
    "mlx4_0:2"

static struct rdma_answer *ask(const char *hca, const char *fabric)
{
    static struct holmes_rdma_port_seen ports[COUNT(host)];
    static struct rdma_answer a;
    struct holmes_rdma_request req = rdma_nothing_asked;

    for (int i = 0; i < COUNT(host); i++)
        world_port(&ports[i], host[i].device, host[i].port, HOLMES_LINK_INFINIBAND, "fe80::1");
    req.hca = hca;
    req.fabric = fabric;
    world_rdma(ports, COUNT(host), req, &a);
    return &a;
}

static void expect(const char *hca, const char *names)
{
    struct rdma_answer *a = ask(hca, NULL);

    cr_assert_eq(a->rc, 0, "%s: %s", hca, a->why);
    cr_expect_str_eq(a->names, names, "%s gave \"%s\"", hca, a->names);
}

static void expect_refused(const char *hca, const char *fabric, const char *needle)
{
    struct rdma_answer *a = ask(hca, fabric);
    char quoted[128];

    snprintf(quoted, sizeof quoted, "%s=\"%s\"", hca ? "NCCL_IB_HCA" : "HOLMES_FABRIC",
             hca ? hca : fabric);
    cr_expect_eq(a->rc, -EINVAL, "%s was taken: %s", quoted, a->names);
    cr_expect(strstr(a->why, quoted), "\"%s\" does not name the value %s", a->why, quoted);
    cr_expect(strstr(a->why, needle), "\"%s\" lacks \"%s\"", a->why, needle);
    if (hca)
        cr_expect(strstr(a->why, PORTS_HERE), "\"%s\" does not say what exists", a->why);
}

#define ALL "mlx5_0 mlx5_1 mlx5_8 mlx5_10 mlx5_11 mlx5_14 mlx4_0:1 mlx4_0:2"

Test(rdma_hca, a_name_is_a_prefix_and_a_port_is_exact)
{
    expect("mlx5_1:1", "mlx5_1 mlx5_10 mlx5_11 mlx5_14");
    expect("mlx5_1", "mlx5_1 mlx5_10 mlx5_11 mlx5_14");
    expect("mlx4_0:2", "mlx4_0");
    expect("mlx4:1,mlx5_8", "mlx5_8 mlx4_0");
    expect("mlx", ALL);
}

Test(rdma_hca, equals_sign_asks_for_the_exact_name)
{
    expect("=mlx5_1:1", "mlx5_1");
    expect("=mlx5_1,mlx4_0", "mlx5_1 mlx4_0:1 mlx4_0:2");
    expect("=mlx4_0:2,mlx4_0:1", "mlx4_0:1 mlx4_0:2");
}

Test(rdma_hca, caret_excludes)
{
    expect("^mlx5_1", "mlx5_0 mlx5_8 mlx4_0:1 mlx4_0:2");
    expect("^=mlx5_8,mlx5_14", "mlx5_0 mlx5_1 mlx5_10 mlx5_11 mlx4_0:1 mlx4_0:2");
    expect("^mlx4_0:1", "mlx5_0 mlx5_1 mlx5_8 mlx5_10 mlx5_11 mlx5_14 mlx4_0");
    expect("^mlx5_9", ALL);
    expect("^mlx", "");
}

Test(rdma_hca, empty_entries_mean_nothing)
{
    expect(",,mlx5_0,", "mlx5_0");
    expect("", ALL);
    expect(NULL, ALL);
}

Test(rdma_hca, newer_fields_are_read)
{
    expect("=mlx5_0::3:1,mlx5_1:1:2,mlx4_0::", "mlx5_0 mlx5_1 mlx4_0:1 mlx4_0:2");
    cr_expect(strstr(ask("mlx5_0:1:3", NULL)->why, "rails and planes have no effect"));
    cr_expect_str_eq(ask("mlx5_0:1::", NULL)->why, "");
    expect_refused("mlx5_0:1:x", NULL, "numbers");
    expect_refused("mlx5_0:1:2:-3", NULL, "numbers");
    expect_refused("mlx5_0:1:2:3:4", NULL, "all there can be");
}

Test(rdma_hca, a_name_that_fits_nothing_is_refused_unless_another_fits)
{
    expect_refused("mlx5_9", NULL, "fits no RDMA port");
    expect_refused("=mlx5", NULL, "fits no RDMA port");
    expect_refused("mlx5_0:2", NULL, "fits no RDMA port");
    expect("mlx5_9,mlx5_0", "mlx5_0");
}

Test(rdma_hca, a_modifier_stands_once_in_front)
{
    expect_refused("^=mlx5_8,^=mlx5_14", NULL, "^=mlx5_14");
    expect_refused("=^mlx5_8", NULL, "in front");
    expect_refused("mlx5_0,=mlx5_1", NULL, "=mlx5_1");
    expect_refused("^", NULL, "names no device");
    expect_refused("=", NULL, "names no device");
    expect_refused("^=,", NULL, "names no device");
    expect_refused(",", NULL, "names no device");
}

Test(rdma_hca, a_port_is_a_number_from_one)
{
    static const char *const lists[] = {"mlx5_0:8abc", "mlx5_0:-1",         "mlx5_0:0",
                                        "mlx5_0:+1",   "mlx5_1,mlx5_0: 1",  "mlx5_0:256",
                                        "mlx5_0:0x1",  "mlx5_0:99999999999"};

    for (int i = 0; i < COUNT(lists); i++)
        expect_refused(lists[i], NULL, "a port is a number from 1 to 255");
    expect_refused(":1", NULL, "a device stands in front");
}

Test(rdma_hca, what_can_be_no_name_is_refused)
{
    char list[512], name[100];
    size_t len = 0;

    expect_refused("mlx5_0, mlx5_1", NULL, "no device has such a character");
    for (int i = 0; i < 33; i++)
        len += (size_t)snprintf(list + len, sizeof list - len, "mlx5_0,");
    cr_expect_eq(ask(list, NULL)->rc, -EINVAL, "33 entries");
    cr_expect(strstr(ask(list, NULL)->why, "more than 32 entries"));
    memset(name, 'm', sizeof name);
    name[80] = '\0';
    expect_refused(name, NULL, "such a long name");
}

/* The same settings go to all hosts of a job, and some have no RDMA. */
Test(rdma_hca, a_host_without_rdma_has_nothing_to_name)
{
    struct holmes_rdma_request req = rdma_nothing_asked;
    static struct rdma_answer a;

    req.hca = "mlx5_9";
    req.fabric = "mlx5_9=blue";
    req.gid_index = 3;
    world_rdma(NULL, 0, req, &a);
    cr_expect_eq(a.rc, 0, "%s", a.why);
    cr_expect_eq(a.nnics, 0);
    req.hca = "mlx5_0:0";
    world_rdma(NULL, 0, req, &a);
    cr_expect_eq(a.rc, -EINVAL, "what is wrong is wrong everywhere");
    cr_expect(strstr(a.why, "RDMA ports here: none"), "%s", a.why);
}

Test(rdma_hca, a_named_port_that_is_down_is_no_mistake)
{
    struct holmes_rdma_request req = rdma_nothing_asked;
    static struct holmes_rdma_port_seen port;
    static struct rdma_answer a;

    world_port(&port, "mlx5_0", 1, HOLMES_LINK_INFINIBAND, "fe80::1");
    port.state = 1;
    snprintf(port.state_text, sizeof port.state_text, "DOWN, Polling");
    req.hca = "mlx5_0";
    world_rdma(&port, 1, req, &a);
    cr_expect_eq(a.rc, 0);
    cr_expect_eq(a.nnics, 0);
    rdma_expect_reason(&a, 0, "port is not active (DOWN, Polling)");
}

/* The fabrics of the host's ports in order, "-" for none. */
static void expect_fabrics(const char *fabric, const char *want)
{
    struct rdma_answer *a = ask(NULL, fabric);
    char text[512] = "";

    cr_assert_eq(a->rc, 0, "%s: %s", fabric, a->why);
    for (int i = 0; i < a->nnics; i++) {
        const char *id = a->nics[i].rdma.fabric;

        snprintf(text + strlen(text), sizeof text - strlen(text), "%s%s", i > 0 ? " " : "",
                 *id ? id : "-");
    }
    cr_expect_str_eq(text, want, "%s gave \"%s\"", fabric, text);
}

Test(rdma_fabric, one_id_is_for_all_ports)
{
    expect_fabrics("blue", "blue blue blue blue blue blue blue blue");
    expect_fabrics("rack-1.a_b",
                   "rack-1.a_b rack-1.a_b rack-1.a_b rack-1.a_b rack-1.a_b rack-1.a_b "
                   "rack-1.a_b rack-1.a_b");
    expect_fabrics(NULL, "- - - - - - - -");
    expect_fabrics("", "- - - - - - - -");
}

Test(rdma_fabric, ports_can_have_ids_of_their_own)
{
    expect_fabrics("mlx5_1=blue,mlx4_0=red", "- blue - - - - red red");
    expect_fabrics("mlx4_0:2=blue,mlx4_0=red", "- - - - - - red blue");
    expect_fabrics("mlx4_0=red,mlx4_0:2=blue", "- - - - - - red blue");
    expect_fabrics("mlx4_0:1=red", "- - - - - - red -");
}

Test(rdma_fabric, refuses_what_is_not_there)
{
    expect_refused(NULL, "mlx5_9=blue", "names mlx5_9; " PORTS_HERE);
    expect_refused(NULL, "mlx5=blue", "names mlx5; ");
    expect_refused(NULL, "mlx5_0=blue,mlx5_1:2=blue", "names mlx5_1:2; ");
}

Test(rdma_fabric, refuses_bad_syntax)
{
    static const struct {
        const char *fabric, *needle;
    } rows[] = {
        {"mlx5_0=", "an id is 1 to 31"},
        {"=blue", "no device has such a name"},
        {"mlx5_0", NULL}, /* an id that looks like a device */
        {"mlx5_0=blue,", "behind the last comma"},
        {",mlx5_0=blue", "no id is given"},
        {"blue,red", "no id is given"},
        {"mlx5_0=blue=red", "an id is 1 to 31"},
        {"mlx5_0:0=blue", "a port is a number"},
        {"mlx5_0:-1=blue", "a port is a number"},
        {"mlx5_0:1x=blue", "a port is a number"},
        {"mlx5_0:=blue", "a port is a number"},
        {"mlx5_0=blue,mlx5_0=red", "has an id already"},
        {"mlx4_0:1=blue,mlx4_0:1=blue", "has an id already"},
        {"blue green", "letters"},
        {"0123456789012345678901234567890123", "1 to 31"},
    };

    for (int i = 0; i < COUNT(rows); i++) {
        if (rows[i].needle)
            expect_refused(NULL, rows[i].fabric, rows[i].needle);
        else
            cr_expect_eq(ask(NULL, rows[i].fabric)->rc, 0);
    }
}
