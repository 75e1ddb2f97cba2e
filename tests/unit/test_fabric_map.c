/* HOLMES_FABRIC=@FILE: what a file says about a host, and what is refused. */
#include <errno.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "../support/test_folder.h"
#include "rdma_world.h"
#include "topology/fabric_ids.h"

static const char map_text[] = "# a job of three clusters\n"
                               "\n"
                               "a[0001-0512],a9  \t east   # all ports\r\n"
                               "b[01-16]  west\n"
                               "b[01-16]  mlx5_8:1  storage\n"
                               "b03       mlx5_9    lab.3#!\n"
                               "c-ib.lab.example c_1";

static int parse(const char *text, const char *host, struct fabric_ids *ids, bool *named, char *why)
{
    why[0] = '\0';
    return fabric_map_parse("f", text, strlen(text), host, ids, named, why, 512);
}

Test(fabric_map, each_host_has_its_own_ids)
{
    static const struct {
        const char *host;
        bool named;
        const char *mlx5_0, *mlx5_8_1, *mlx5_8_2, *mlx5_9;
    } cases[] = {
        {"a0001", true, "east", "east", "east", "east"},
        {"a9", true, "east", "east", "east", "east"},
        {"a0512.site.example", true, "east", "east", "east", "east"},
        {"b01", true, "west", "storage", "west", "west"},
        {"b03", true, "west", "storage", "west", "lab.3"},
        {"c-ib.lab.example", true, "c_1", "c_1", "c_1", "c_1"},
        {"c-ib", false, "", "", "", ""},
        {"a0513", false, "", "", "", ""},
        {"a001", false, "", "", "", ""},
        {"", false, "", "", "", ""},
    };
    struct fabric_ids ids;
    char why[512];
    bool named;

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        cr_assert_eq(parse(map_text, cases[i].host, &ids, &named, why), 0, "%s", why);
        cr_assert_eq(named, cases[i].named, "%s", cases[i].host);
        cr_assert_str_eq(fabric_ids_find(&ids, "mlx5_0", 1), cases[i].mlx5_0);
        cr_assert_str_eq(fabric_ids_find(&ids, "mlx5_8", 1), cases[i].mlx5_8_1);
        cr_assert_str_eq(fabric_ids_find(&ids, "mlx5_8", 2), cases[i].mlx5_8_2);
        cr_assert_str_eq(fabric_ids_find(&ids, "mlx5_9", 1), cases[i].mlx5_9);
    }
}

/* On host b03, and on one that no line names: what is malformed is refused everywhere, what
 * contradicts itself where it does. */
Test(fabric_map, what_is_wrong_is_refused_with_its_line)
{
    static const struct {
        const char *text;
        bool everywhere;
        const char *says[2];
    } bad[] = {
        {"\nb03\n", true, {"line 2: no id is given", "(b03)"}},
        {"b03 mlx5_0 x y\n", true, {"line 1: this is one word too many", "(y)"}},
        {"b03 mlx5_0 x y z\n", true, {"line 1: this is one word too many", "(y)"}},
        {"b03 e!\n", true, {"line 1: an id is 1 to 31", "(e!)"}},
        {"b03 a234567890123456789012345678901x\n", true, {"line 1: an id is", "901x)"}},
        {"b03 mlx5_0:0 e\n", true, {"line 1: a port is a number", "(mlx5_0:0)"}},
        {"b03 mlx5_0: e\n", true, {"line 1: a port is a number", "(mlx5_0:)"}},
        {"b03 mlx5_0:1:2 e\n", true, {"line 1: a port is a number", "(mlx5_0:1:2)"}},
        {"b03 :1 e\n", true, {"line 1: no device has such a name", "()"}},
        {"b03 mlx5=0 e\n", true, {"line 1: no device has such a name", "(mlx5=0)"}},
        {"x 1\nb[03 e\n", true, {"line 2", "(b[03)"}},
        {"b03,b03 e\n", true, {"line 1", "(b03,b03)"}},
        {"b03 e\nb[01-16] e\n", false, {"line 2: b03 has an id already, from line 1", ""}},
        {"b03 m:1 e\n\nb03 m:1 f\n",
         false,
         {"line 3: m of b03 has an id already, from line 1", ""}},
    };
    struct fabric_ids ids;
    char why[512];
    bool named;

    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        cr_assert_eq(parse(bad[i].text, "b03", &ids, &named, why), -EINVAL, "%s was taken",
                     bad[i].text);
        cr_assert(strstr(why, "HOLMES_FABRIC=\"@f\": line ") && strstr(why, bad[i].says[0]) &&
                      strstr(why, bad[i].says[1]),
                  "%s: %s", bad[i].text, why);
        cr_assert_eq(parse(bad[i].text, "z", &ids, &named, why), bad[i].everywhere ? -EINVAL : 0,
                     "%s: %s", bad[i].text, why);
    }
    cr_assert_eq(fabric_map_parse("f", "a b\0c", 5, "a", &ids, &named, why, sizeof why), -EINVAL);
    cr_assert(strstr(why, "no text"), "%s", why);
}

Test(fabric_map, a_host_has_at_most_as_many_entries_as_the_variable_takes)
{
    char text[4096], why[512];
    struct fabric_ids ids;
    size_t len = 0;
    bool named;

    for (int i = 0; i < FABRIC_IDS_MAX; i++)
        len += (size_t)snprintf(text + len, sizeof text - len, "h mlx5_%d e\n", i);
    cr_assert_eq(parse(text, "h", &ids, &named, why), 0, "%s", why);
    cr_assert_eq(ids.n, FABRIC_IDS_MAX);
    snprintf(text + len, sizeof text - len, "h mlx5_99 e\n");
    cr_assert_eq(parse(text, "h", &ids, &named, why), -EINVAL);
    cr_assert(strstr(why, "line 33: more than 32 entries"), "%s", why);
    cr_assert_eq(parse(text, "z", &ids, &named, why), 0, "%s", why);
}

static char path[] = "/tmp/fabric_map.XXXXXX";

static void write_map(const char *text)
{
    int fd = mkstemp(path);

    cr_assert_geq(fd, 0);
    cr_assert_eq(write(fd, text, strlen(text)), (ssize_t)strlen(text));
    close(fd);
}

/* What the plugin does with the variable. */
static struct rdma_answer *choose(const char *fabric, const char *host)
{
    static struct holmes_rdma_port_seen ports[2];
    static struct rdma_answer a;
    struct holmes_rdma_request req = rdma_nothing_asked;

    world_port(&ports[0], "mlx5_0", 1, HOLMES_LINK_INFINIBAND, "fe80::1");
    world_port(&ports[1], "mlx5_8", 1, HOLMES_LINK_INFINIBAND, "fe80::2");
    req.fabric = fabric;
    req.host = host;
    world_rdma(ports, 2, req, &a);
    return &a;
}

Test(fabric_map, ports_take_their_ids_from_the_file)
{
    struct rdma_answer *a;
    char variable[64], own[256];

    write_map("b01 west\nb01 mlx5_8 storage\nb02 mlx5_7 x\n");
    snprintf(variable, sizeof variable, "@%s", path);
    a = choose(variable, "b01");
    cr_assert_eq(a->rc, 0, "%s", a->why);
    cr_assert_str_eq(a->why, "");
    cr_assert_str_eq(a->nics[0].rdma.fabric, "west");
    cr_assert_str_eq(a->nics[1].rdma.fabric, "storage");
    a = choose(variable, "b02");
    cr_assert_eq(a->rc, -EINVAL);
    cr_assert(strstr(a->why, "names mlx5_7 in line 3; RDMA ports here: mlx5_0:1, mlx5_8:1"), "%s",
              a->why);
    a = choose(variable, "b03");
    cr_assert_eq(a->rc, 0, "%s", a->why);
    cr_assert(strstr(a->why, "has no line for this host, b03: its ports have no id"), "%s", a->why);
    cr_assert_str_eq(a->nics[0].rdma.fabric, "");
    cr_assert_eq(gethostname(own, sizeof own), 0);
    a = choose(variable, NULL);
    cr_assert_eq(a->rc, 0);
    cr_assert(strstr(a->why, own), "%s", a->why);
    unlink(path);
}

Test(fabric_map, a_file_that_is_not_there_is_refused)
{
    static const struct {
        const char *variable, *says;
    } cases[] = {{"@", "no file is named"},
                 {"@/no/such/file", "No such file"},
                 {"@/tmp", "Is a directory"},
                 {"@/dev/zero", "it is a device"}};

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct rdma_answer *a = choose(cases[i].variable, "b01");

        cr_assert_eq(a->rc, -EINVAL, "%s was taken", cases[i].variable);
        cr_assert(strstr(a->why, cases[i].says) && strstr(a->why, cases[i].variable), "%s", a->why);
    }
}

Test(fabric_map, a_pipe_that_nobody_writes_is_refused, .timeout = 60)
{
    char dir[TEST_FOLDER_MAX], fifo[TEST_FOLDER_MAX + 8], variable[TEST_FOLDER_MAX + 9];
    struct rdma_answer *a;

    test_folder_make(dir, "map");
    snprintf(fifo, sizeof fifo, "%s/f", dir);
    snprintf(variable, sizeof variable, "@%s", fifo);
    cr_assert_eq(mkfifo(fifo, 0600), 0);
    a = choose(variable, "b01");
    cr_expect_eq(a->rc, -EINVAL);
    cr_expect(strstr(a->why, "nobody writes"), "%s", a->why);
    test_folder_remove(dir);
}
