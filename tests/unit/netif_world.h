/* Interface lists for the tests of their choice. */
#ifndef NETIF_WORLD_H
#define NETIF_WORLD_H

#include <arpa/inet.h>
#include <criterion/criterion.h>
#include <net/if.h>
#include <stdio.h>
#include <string.h>

#include "topology.h"

/* "10.1.0.5/24" or "fd00::5/64" */
static inline void world_addr(struct holmes_addr *out, const char *text)
{
    char host[64];
    unsigned bits;

    cr_assert_eq(sscanf(text, "%63[^/]/%u", host, &bits), 2, "%s", text);
    memset(out, 0, sizeof *out);
    out->prefix_len = (uint8_t)bits;
    if (inet_pton(AF_INET, host, &out->in.sin_addr) == 1)
        out->sa.sa_family = AF_INET;
    else if (inet_pton(AF_INET6, host, &out->in6.sin6_addr) == 1)
        out->sa.sa_family = AF_INET6;
    else
        cr_assert_fail("%s is no address", text);
}

/* An interface that is up, with addresses separated by spaces. */
static inline struct holmes_netif world_netif(const char *name, enum holmes_netif_kind kind,
                                              const char *addrs)
{
    struct holmes_netif nif = {.flags = IFF_UP | IFF_RUNNING, .kind = kind, .numa_node = -1};
    char copy[256], *save = NULL;

    snprintf(nif.name, sizeof nif.name, "%s", name);
    snprintf(copy, sizeof copy, "%s", addrs);
    if (kind == HOLMES_NETIF_LOOPBACK)
        nif.flags |= IFF_LOOPBACK;
    for (char *a = strtok_r(copy, " ", &save); a; a = strtok_r(NULL, " ", &save))
        world_addr(&nif.addrs[nif.naddrs++], a);
    return nif;
}

struct world_answer {
    int rc;
    int nnics;
    struct holmes_nic nics[HOLMES_NETIFS_MAX];
    struct holmes_netif_verdict verdicts[32];
    char why[768];
    char names[256]; /* of the NICs in order, separated by spaces */
};

static inline struct world_answer world_choose(const struct holmes_netif *ifs, int n,
                                               struct holmes_netif_request req)
{
    struct world_answer a = {0};

    a.rc = holmes_netif_choose(ifs, n, &req, a.verdicts, a.nics, &a.nnics, a.why, sizeof a.why);
    for (int i = 0; a.rc == 0 && i < a.nnics; i++) {
        size_t len = strlen(a.names);

        snprintf(a.names + len, sizeof a.names - len, "%s%s", i > 0 ? " " : "", a.nics[i].name);
    }
    return a;
}

#endif
