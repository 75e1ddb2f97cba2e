/* A host's JSON: all of a host survives it. */
#include "recorded.h"

static void expect_equal_ports(const struct holmes_host *a, const struct holmes_host *b)
{
    cr_assert_eq(a->nports, b->nports);
    for (int i = 0; i < a->nports; i++) {
        const struct holmes_host_port *p = &a->ports[i], *q = &b->ports[i];

        cr_expect_str_eq(p->seen.device, q->seen.device);
        cr_expect_eq(p->seen.state, q->seen.state);
        cr_expect_eq(p->seen.link_layer, q->seen.link_layer);
        cr_expect_eq(p->seen.guid, q->seen.guid);
        cr_expect_eq(p->seen.lid, q->seen.lid);
        cr_expect_eq(p->seen.numa_node, q->seen.numa_node);
        cr_expect_eq(p->seen.ngids, q->seen.ngids);
        cr_expect_eq(memcmp(p->seen.gids, q->seen.gids, sizeof p->seen.gids), 0, "GIDs of %s",
                     p->seen.device);
        cr_expect_eq(p->verdict.used, q->verdict.used);
        cr_expect_str_eq(p->verdict.reason, q->verdict.reason);
        cr_expect_str_eq(p->netdev, q->netdev);
        cr_expect_eq(p->nic, q->nic);
        cr_expect_eq(p->told, q->told);
    }
}

static void expect_equal_rest(const struct holmes_host *a, const struct holmes_host *b)
{
    cr_assert_eq(a->nnetifs, b->nnetifs);
    for (int i = 0; i < a->nnetifs; i++) {
        cr_expect_str_eq(a->netifs[i].seen.name, b->netifs[i].seen.name);
        cr_expect_eq(a->netifs[i].seen.flags, b->netifs[i].seen.flags);
        cr_expect_eq(a->netifs[i].seen.kind, b->netifs[i].seen.kind);
        cr_expect_eq(a->netifs[i].nic, b->netifs[i].nic);
        cr_expect_eq(a->netifs[i].addrs_told, b->netifs[i].addrs_told);
        cr_expect_eq(memcmp(a->netifs[i].seen.addrs, b->netifs[i].seen.addrs,
                            sizeof a->netifs[i].seen.addrs),
                     0, "addresses of %s", a->netifs[i].seen.name);
    }
    cr_assert_eq(a->ngpus, b->ngpus);
    cr_expect_eq(memcmp(a->gpus, b->gpus, (size_t)a->ngpus * sizeof *a->gpus), 0, "GPUs");
    cr_assert_eq(a->npcis, b->npcis);
    cr_expect_eq(memcmp(a->pcis, b->pcis, (size_t)a->npcis * sizeof *a->pcis), 0, "PCI functions");
    cr_assert_eq(a->nnics, b->nnics);
    cr_expect_eq(memcmp(a->nics, b->nics, (size_t)a->nnics * sizeof *a->nics), 0, "NICs");
    cr_expect_eq(
        memcmp(a->distance, b->distance, (size_t)a->ngpus * (size_t)a->nnics * sizeof *a->distance),
        0, "distances");
    cr_expect_eq(a->chosen.n, b->chosen.n);
    cr_expect_eq(a->chosen.nshown, b->chosen.nshown);
    cr_expect_eq(memcmp(&a->chosen.nics, &b->chosen.nics, sizeof a->chosen.nics), 0, "chosen NICs");
    cr_expect_eq(a->nskipped, b->nskipped);
    cr_expect_eq(a->nnotes, b->nnotes);
    cr_expect_str_eq(a->hostname, b->hostname);
    cr_expect_eq(a->source, b->source);
}

Test(host_json, keeps_all_of_a_machine)
{
    static const char *const tables[] = {"ib-h100", "roce-h100"};

    for (int i = 0; i < 2; i++) {
        struct recorded r = recorded_build(tables[i], 4);
        struct holmes_host *h = discover_ok(r.root), *back;
        char *json = written(holmes_host_json, h);

        back = parse_ok("h.json", json);
        expect_equal_ports(h, back);
        expect_equal_rest(h, back);
        holmes_host_destroy(back);
        holmes_host_destroy(h);
        free(json);
        recorded_remove(&r);
    }
}

Test(host_json, is_valid_whatever_the_names_hold)
{
    struct holmes_host *h = parse_ok("h.json", "{\"holmes-host\": 1, \"hostname\": \"a\", "
                                               "\"rdma_ports\": [], \"interfaces\": [], "
                                               "\"gpus\": [{\"name\": \"x\"}]}"),
                       *back;
    char *json;

    strcpy(h->hostname, "h\xff\"\n\\");
    strcpy(h->gpus[0].name, "\xc3\xa9 \xed\xa0\x80 \x01");
    json = written(holmes_host_json, h);
    back = parse_ok("h.json", json);
    cr_expect_str_eq(back->hostname, "h?\"\n\\");
    cr_expect_str_eq(back->gpus[0].name, "\xc3\xa9 ??? \x01");
    holmes_host_destroy(back);
    holmes_host_destroy(h);
    free(json);
}

Test(host_json, may_lack_all_but_the_three_lists)
{
    struct holmes_host *h = parse_ok(
        "h.json", " {\"holmes-host\": 1, \"rdma_ports\": [{\"device\": \"mlx5_0\", \"port\": 1}], "
                  "\"interfaces\": [{\"name\": \"eth0\"}], \"gpus\": [], \"later\": {}}");

    cr_expect_eq(h->ports[0].nic, -1);
    cr_expect_eq(h->ports[0].seen.numa_node, -1);
    cr_expect_not(h->netifs[0].addrs_told);
    cr_expect_not(h->ports[0].verdict.used);
    holmes_host_destroy(h);
}
