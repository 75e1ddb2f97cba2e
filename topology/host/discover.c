/* Looks at a machine, this one or a recorded one, and lets topology.h choose. */
#include <errno.h>
#include <net/if.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../sysfs.h"
#include "env.h"
#include "live.h"
#include "log.h"
#include "pci.h"
#include "tree.h"

struct holmes_host_request holmes_host_request_env(void)
{
    return (struct holmes_host_request){
        .netif = holmes_netif_request_env(),
        .rdma = holmes_rdma_request_env(),
        .rdma_off = holmes_env_int(HOLMES_ENV_NCCL_IB_DISABLE) != 0,
    };
}

/* The lists of the choosers, which stand side by side with the host's. */
struct work {
    const struct tree *t;
    struct holmes_host *h;
    struct holmes_netif *ifs;
    int nifs;
    struct holmes_rdma_port_seen *ports;
    int nports;
    struct holmes_nic ethernet[HOLMES_NETIFS_MAX];
    int nethernet;
    char *why;
    size_t why_len;
};

static int fail(const struct work *w, int rc, const char *what)
{
    snprintf(w->why, w->why_len, "%s: %s", what, holmes_strerror(rc));
    return rc;
}

/* Leaves what is part of the tree. */
static void keep_inside(struct work *w)
{
    int n = 0;

    for (int i = 0; i < w->nifs; i++)
        if (tree_has(w->t, "class/net", w->ifs[i].name))
            w->ifs[n++] = w->ifs[i];
    w->nifs = n;
    n = 0;
    for (int i = 0; i < w->nports; i++)
        if (w->t->class[0] || tree_has(w->t, "class/infiniband", w->ports[i].device))
            w->ports[n++] = w->ports[i];
    w->nports = n;
}

static int collect(struct work *w)
{
    const struct tree *t = w->t;
    int rc = 0;

    if (t->live)
        rc = holmes_netif_collect(t->sys, &w->ifs, &w->nifs);
    else if (t->sys[0])
        rc = holmes_netif_collect_recorded(t->sys, &w->ifs, &w->nifs);
    if (rc != 0)
        return fail(w, rc, "cannot list network interfaces");
    rc = t->class[0] ? holmes_rdma_collect_class(t->class, &w->ports, &w->nports)
                     : holmes_rdma_collect(t->sys, &w->ports, &w->nports);
    if (rc != 0)
        return fail(w, rc, "cannot list RDMA devices");
    keep_inside(w);
    return 0;
}

/* An interface that was recorded as a name only. */
static bool has_facts(const struct tree *t, const char *ifname)
{
    char path[PATH_MAX];

    snprintf(path, sizeof path, "class/net/%s/flags", ifname);
    return t->live || sysfs_exists(t->sys, path);
}

static int take_netifs(struct work *w)
{
    int rc = 0;

    for (int i = 0; rc == 0 && i < w->nifs; i++) {
        struct holmes_host_netif *n = host_add_netif(w->h);

        if (!n)
            return -ENOMEM;
        n->seen = w->ifs[i];
        n->addrs_told = w->t->live;
    }
    if (!w->t->live)
        rc = tree_read_addrs(w->t, w->h, w->why, w->why_len);
    for (int i = 0; i < w->nifs; i++)
        w->ifs[i] = w->h->netifs[i].seen; /* with the addresses */
    return rc;
}

static bool addrs_told(const struct work *w)
{
    for (int i = 0; i < w->nifs; i++)
        if (w->h->netifs[i].addrs_told)
            return true;
    return w->t->live;
}

static int choose_netifs(struct work *w, const struct holmes_netif_request *req)
{
    static const struct holmes_netif_request nothing_asked;
    struct holmes_netif_verdict *verdicts = calloc((size_t)w->nifs + 1, sizeof *verdicts);
    bool told = addrs_told(w);
    char why[1024] = "";
    int rc;

    if (!verdicts)
        return -ENOMEM;
    /* Without addresses no interface can be chosen, nor a name be missed. */
    rc = holmes_netif_choose(w->ifs, w->nifs, told ? req : &nothing_asked, verdicts, w->ethernet,
                             &w->nethernet, why, sizeof why);
    if (rc == -ENODEV) {
        w->nethernet = 0;
        rc = told && w->nifs > 0 ? host_note(w->h, "%s", why) : 0;
    }
    if (rc == -EINVAL)
        snprintf(w->why, w->why_len, "%s", why);
    for (int i = 0; rc == 0 && i < w->nifs; i++) {
        struct holmes_host_netif *n = &w->h->netifs[i];

        n->verdict = verdicts[i];
        if (!has_facts(w->t, n->seen.name))
            snprintf(n->verdict.reason, sizeof n->verdict.reason, "its state is not recorded");
        else if (!n->verdict.used && !n->addrs_told && n->seen.flags & IFF_RUNNING)
            snprintf(n->verdict.reason, sizeof n->verdict.reason, "its addresses are not recorded");
    }
    free(verdicts);
    return rc;
}

static const char *gid_ndev(const struct holmes_rdma_port_seen *p, int index)
{
    for (int i = 0; i < p->ngids; i++)
        if (p->gids[i].index == index)
            return p->gids[i].ndev;
    return "";
}

static bool has_gid_table(const struct tree *t, const struct holmes_rdma_port_seen *p)
{
    char path[PATH_MAX];

    snprintf(path, sizeof path, "%s%s/ports/%u/gids", t->class[0] ? "" : "class/infiniband/",
             p->device, p->port);
    return sysfs_exists(t->class[0] ? t->class : t->sys, path);
}

static int take_ports(struct work *w, const struct holmes_rdma_verdict *verdicts,
                      const struct holmes_nic *nics, int nnics)
{
    for (int i = 0; i < w->nports; i++) {
        struct holmes_host_port *p = host_add_port(w->h);

        if (!p)
            return -ENOMEM;
        p->seen = w->ports[i];
        p->verdict = verdicts[i];
        p->told = true;
        for (int k = 0; k < nnics && p->verdict.used; k++)
            if (strcmp(nics[k].rdma.device, p->seen.device) == 0 &&
                nics[k].rdma.port == p->seen.port)
                p->nic = k;
        if (p->nic >= 0)
            snprintf(p->netdev, sizeof p->netdev, "%s",
                     gid_ndev(&p->seen, nics[p->nic].rdma.gids[0].index));
        else if (p->seen.ngids > 0)
            snprintf(p->netdev, sizeof p->netdev, "%s", p->seen.gids[0].ndev);
        if (!p->verdict.used && p->seen.state == 4 && !has_gid_table(w->t, &p->seen) &&
            p->seen.link_layer != HOLMES_LINK_UNKNOWN && p->seen.node_type != 4)
            snprintf(p->verdict.reason, sizeof p->verdict.reason, "its GIDs are not recorded");
    }
    return 0;
}

static int choose_ports(struct work *w, const struct holmes_host_request *req)
{
    struct holmes_rdma_verdict *verdicts = calloc((size_t)w->nports + 1, sizeof *verdicts);
    struct holmes_nics *chosen = &w->h->chosen;
    struct holmes_rdma_request rdma = req->rdma;
    bool told = addrs_told(w);
    char why[1024] = "";
    int nnics = 0, rc = 0;

    if (!verdicts)
        return -ENOMEM;
    if (!w->t->live && !rdma.host)
        rdma.host = w->h->hostname; /* in a file of ids: not this machine's */
    if (req->rdma_off) {
        for (int i = 0; i < w->nports; i++)
            snprintf(verdicts[i].reason, sizeof verdicts[i].reason, "NCCL_IB_DISABLE is set");
    } else {
        rc = holmes_rdma_choose(w->ports, w->nports, &rdma, told ? w->ifs : NULL,
                                told ? w->nifs : 0, w->ethernet, w->nethernet, verdicts,
                                chosen->nics, &nnics, why, sizeof why);
        if (rc == -EINVAL)
            snprintf(w->why, w->why_len, "%s", why);
        else if (rc == 0 && why[0])
            rc = host_note(w->h, "%s", why);
    }
    if (rc == 0)
        rc = take_ports(w, verdicts, chosen->nics, nnics);
    free(verdicts);
    if (rc != 0)
        return rc;
    memcpy(&chosen->nics[nnics], w->ethernet, (size_t)w->nethernet * sizeof *w->ethernet);
    chosen->n = nnics + w->nethernet;
    chosen->nshown = nnics > 0 ? nnics : w->nethernet;
    for (int i = 0; i < w->h->nnetifs; i++)
        for (int k = nnics; k < chosen->n && w->h->netifs[i].verdict.used; k++)
            if (strcmp(chosen->nics[k].ifname, w->h->netifs[i].seen.name) == 0)
                w->h->netifs[i].nic = k;
    return 0;
}

/* From paths below the tree to those of the machine itself, and to addresses. */
static int settle_paths(struct work *w)
{
    struct holmes_host *h = w->h;
    int rc = 0;

    for (int i = 0; rc == 0 && i < h->nports; i++) {
        rc = tree_add_function(w->t, h, h->ports[i].seen.pci_path);
        tree_path_to_sys(w->t, h->ports[i].seen.pci_path, sizeof h->ports[i].seen.pci_path);
        pci_address_of_path(h->ports[i].seen.pci_path, h->ports[i].seen.pci_path);
    }
    for (int i = 0; rc == 0 && i < h->nnetifs; i++) {
        rc = tree_add_function(w->t, h, h->netifs[i].seen.pci_path);
        tree_path_to_sys(w->t, h->netifs[i].seen.pci_path, sizeof h->netifs[i].seen.pci_path);
        pci_address_of_path(h->netifs[i].seen.pci_path, h->netifs[i].seen.pci_path);
    }
    for (int i = 0; i < h->chosen.n; i++)
        tree_path_to_sys(w->t, h->chosen.nics[i].pci_path, sizeof h->chosen.nics[i].pci_path);
    return rc;
}

/* Names in the classes that have nothing behind them. */
static int skip_bare_names(struct work *w)
{
    int rc = tree_skip_unread(w->t, w->h, "class/net");

    return rc == 0 ? tree_skip_unread(w->t, w->h, "class/infiniband") : rc;
}

static int look(struct work *w, const struct holmes_host_request *req)
{
    int rc = collect(w);

    if (rc == 0)
        rc = tree_read_machine(w->t, w->h);
    if (rc == 0)
        rc = tree_read_pci(w->t, w->h);
    if (rc == 0)
        rc = take_netifs(w);
    if (rc == 0)
        rc = choose_netifs(w, &req->netif);
    if (rc == 0)
        rc = choose_ports(w, req);
    if (rc == 0)
        rc = settle_paths(w);
    if (rc == 0)
        rc = skip_bare_names(w);
    if (rc == 0 && w->t->class[0])
        rc = host_note(w->h, "only class/infiniband was recorded: interfaces, GPUs and PCI "
                             "functions are not told");
    if (rc == 0 && !w->t->live && w->nifs > 0 && !addrs_told(w))
        rc = host_note(w->h, "no address is recorded (ip-addr.json): no interface can be chosen");
    if (rc == 0 && w->t->live)
        rc = host_live_place(w->h);
    return rc == 0 ? host_finish(w->h) : rc;
}

int holmes_host_discover(const char *root, const struct holmes_host_request *req,
                         struct holmes_host **out, char *why, size_t why_len)
{
    struct holmes_host_request env;
    struct tree t;
    struct work w = {.t = &t, .why = why, .why_len = why_len};
    int rc = tree_find(root, &t, why, why_len);

    if (rc != 0)
        return rc;
    if (!req) {
        env = holmes_host_request_env();
        req = &env;
    }
    why[0] = '\0';
    w.h = host_new(t.live ? HOLMES_HOST_LIVE : HOLMES_HOST_RECORDED);
    rc = w.h ? look(&w, req) : -ENOMEM;
    free(w.ifs);
    free(w.ports);
    if (rc != 0) {
        if (!why[0])
            snprintf(why, why_len, "%s: %s", root, holmes_strerror(rc));
        holmes_host_destroy(w.h);
        return rc;
    }
    *out = w.h;
    return 0;
}
