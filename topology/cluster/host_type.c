/* What of a machine decides its node type: its GPUs, and the NICs that the plugin would use. */
#include "cluster/host_type.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cluster/gpu_spec.h"
#include "cluster/text.h"

#define NVLINK_GBPS 200 /* of one link, each way, since NVLink 2 */

void holmes_node_type_fini(struct holmes_node_type *t)
{
    for (int i = 0; i < t->nnics; i++) {
        free(t->nics[i].name);
        free(t->nics[i].prefix);
        free(t->nics[i].gids);
        free(t->nics[i].fabric);
    }
    free(t->nics);
    free(t->name);
    free(t->gpu);
    *t = (struct holmes_node_type){0};
}

/* --- GPUs ------------------------------------------------------------------------------------ */

/* As the source tells; where it tells nothing of links, as the data sheet. */
static double gpu_links_gbps(const struct holmes_host_gpu *g)
{
    int links = 0;

    if (g->nlinks == 0 && g->sm <= 0)
        return holmes_gpu_spec_nvlink_gbps(g->name);
    if (g->xgmi || g->sm < 70)
        return 0;
    for (int i = 0; i < g->nlinks; i++)
        links += g->links[i].count;
    return links * (double)NVLINK_GBPS;
}

/* What is not the same on all GPUs of the node is the least of them: the slowest one counts. */
static int gpus_describe(const struct holmes_host *h, struct holmes_node_type *t)
{
    t->gpus = h->ngpus;
    for (int i = 0; i < h->ngpus; i++) {
        const struct holmes_host_gpu *g = &h->gpus[i];
        double links = gpu_links_gbps(g), peak = holmes_gpu_spec_tflops(g->name);

        if (i == 0 || g->memory_gib < t->memory_gib)
            t->memory_gib = g->memory_gib;
        if (i == 0 || links < t->intra_gbps)
            t->intra_gbps = links;
        if (i == 0 || peak < t->tflops)
            t->tflops = peak;
        if (g->name[0] && !t->gpu && !(t->gpu = strdup(g->name)))
            return -ENOMEM;
    }
    return 0;
}

/* --- NICs ------------------------------------------------------------------------------------ */

static const struct holmes_host_port *port_of_nic(const struct holmes_host *h, int nic)
{
    for (int i = 0; i < h->nports; i++)
        if (h->ports[i].verdict.used && h->ports[i].nic == nic)
            return &h->ports[i];
    return NULL;
}

/* The kinds in the order in which the cluster file writes them. */
static char *gids_in_order(const char *kinds)
{
    static const char *const order[] = {"v1-ipv4", "v1-ipv6", "v2-ipv4", "v2-ipv6"};
    char text[64] = "";

    for (int i = 0; i < 4; i++)
        if (strstr(kinds, order[i]))
            snprintf(text + strlen(text), sizeof text - strlen(text), "%s%s", text[0] ? "," : "",
                     order[i]);
    return strdup(text);
}

static enum holmes_link_layer nic_link(const struct holmes_nic *nic, enum holmes_link_layer untold)
{
    if (nic->rdma.port == 0)
        return HOLMES_LINK_UNKNOWN;
    return nic->rdma.link_layer != HOLMES_LINK_UNKNOWN
               ? (enum holmes_link_layer)nic->rdma.link_layer
               : untold;
}

static int nic_describe(const struct holmes_host *h, int i, enum holmes_link_layer untold,
                        struct holmes_cluster_nic *out)
{
    const struct holmes_nic *nic = &h->chosen.nics[i];
    const struct holmes_host_port *port = nic->rdma.port > 0 ? port_of_nic(h, i) : NULL;
    char text[128] = "";

    out->name = strdup(nic->name);
    out->link = nic_link(nic, untold);
    out->rdma = out->link != HOLMES_LINK_UNKNOWN;
    out->gbps = nic->speed_mbps / 1000.0;
    out->numa = nic->numa_node >= 0 ? nic->numa_node : -1;
    if (!out->name)
        return -ENOMEM;
    if (out->rdma && nic->rdma.fabric[0] && !(out->fabric = strdup(nic->rdma.fabric)))
        return -ENOMEM;
    if (port && out->link == HOLMES_LINK_INFINIBAND &&
        holmes_host_prefix(port, text, sizeof text) && !(out->prefix = strdup(text)))
        return -ENOMEM;
    if (port && out->link == HOLMES_LINK_ETHERNET && out->rdma &&
        holmes_host_gid_kinds(h, port, text, sizeof text)[0] && !(out->gids = gids_in_order(text)))
        return -ENOMEM;
    return 0;
}

/* The interface of a RoCE port that is listed: one wire, which stands in the file once. */
static bool is_of_port(const struct holmes_host *h, int i)
{
    const struct holmes_nic *nic = &h->chosen.nics[i];

    for (int k = 0; k < h->nports && nic->rdma.port == 0; k++)
        if (h->ports[k].verdict.used && h->ports[k].seen.link_layer == HOLMES_LINK_ETHERNET &&
            strcmp(h->ports[k].netdev, nic->name) == 0)
            return true;
    return false;
}

/* One id on all RDMA NICs is the node's: two clusters of equal machines are one type. */
static char *common_fabric(struct holmes_node_type *t)
{
    char *first = NULL;

    for (int i = 0; i < t->nnics; i++) {
        struct holmes_cluster_nic *n = &t->nics[i];

        if (!n->rdma)
            continue;
        if (!n->fabric || (first && strcmp(first, n->fabric) != 0))
            return NULL;
        first = n->fabric;
    }
    return first;
}

int holmes_host_type(const struct holmes_host *h, enum holmes_link_layer link,
                     struct holmes_node_type *out, struct holmes_host_sides *sides)
{
    struct holmes_host_sides s = {.fabric = NULL};
    struct holmes_node_type t = {.gpus = 0};
    int rc = gpus_describe(h, &t);

    if (rc == 0 && h->chosen.n > 0 && !(t.nics = calloc((size_t)h->chosen.n, sizeof *t.nics)))
        rc = -ENOMEM;
    for (int i = 0; rc == 0 && i < h->chosen.n; i++) {
        const struct holmes_nic *nic = &h->chosen.nics[i];

        if (nic->rdma.port > 0 && nic_link(nic, link) == HOLMES_LINK_UNKNOWN) {
            if (s.nuntold++ == 0)
                snprintf(s.untold, sizeof s.untold, "%s", nic->name);
        } else if (!is_of_port(h, i)) {
            rc = nic_describe(h, i, link, &t.nics[t.nnics++]);
        }
    }
    if (rc == 0 && common_fabric(&t)) {
        s.fabric = strdup(common_fabric(&t));
        for (int i = 0; i < t.nnics; i++) {
            free(t.nics[i].fabric);
            t.nics[i].fabric = NULL;
        }
        rc = s.fabric ? 0 : -ENOMEM;
    }
    if (rc != 0) {
        holmes_node_type_fini(&t);
        return rc;
    }
    *out = t;
    *sides = s;
    return 0;
}

/* --- types ----------------------------------------------------------------------------------- */

static const char *or_none(const char *text)
{
    return text ? text : "";
}

char *holmes_node_type_key(const struct holmes_node_type *t)
{
    char *text = NULL;
    size_t len;
    FILE *f = open_memstream(&text, &len);

    if (!f)
        return NULL;
    fprintf(f, "%d|%s|%.17g|%.17g|%.17g", t->gpus, or_none(t->gpu), t->tflops, t->memory_gib,
            t->intra_gbps);
    for (int i = 0; i < t->nnics; i++) {
        const struct holmes_cluster_nic *n = &t->nics[i];

        fprintf(f, "\n%s|%d|%d|%.17g|%s|%s|%s|%d", n->name, n->rdma, (int)n->link, n->gbps,
                or_none(n->prefix), or_none(n->gids), or_none(n->fabric), n->numa);
    }
    if (fclose(f) != 0) {
        free(text);
        return NULL;
    }
    return text;
}

static const struct holmes_cluster_nic *nic_find(const struct holmes_node_type *t, const char *name)
{
    for (int i = 0; i < t->nnics; i++)
        if (strcmp(t->nics[i].name, name) == 0)
            return &t->nics[i];
    return NULL;
}

static const char *kind(const struct holmes_cluster_nic *n)
{
    return !n->rdma ? "Ethernet" : n->link == HOLMES_LINK_INFINIBAND ? "InfiniBand" : "RoCE";
}

static void say_nic(FILE *f, const char **sep, const struct holmes_cluster_nic *n,
                    const struct holmes_cluster_nic *usual)
{
    if (n->rdma != usual->rdma || n->link != usual->link)
        fprintf(f, "%s%s is %s, not %s", *sep, n->name, kind(n), kind(usual));
    else if (n->gbps != usual->gbps)
        fprintf(f, "%s%s at %g Gb/s, not %g", *sep, n->name, n->gbps, usual->gbps);
    else if (strcmp(or_none(n->prefix), or_none(usual->prefix)) != 0)
        fprintf(f, "%s%s has prefix %s, not %s", *sep, n->name, n->prefix ? n->prefix : "(none)",
                usual->prefix ? usual->prefix : "(none)");
    else if (strcmp(or_none(n->gids), or_none(usual->gids)) != 0)
        fprintf(f, "%s%s has GIDs %s, not %s", *sep, n->name, n->gids ? n->gids : "(none)",
                usual->gids ? usual->gids : "(none)");
    else if (strcmp(or_none(n->fabric), or_none(usual->fabric)) != 0)
        fprintf(f, "%s%s has fabric %s, not %s", *sep, n->name, n->fabric ? n->fabric : "(none)",
                usual->fabric ? usual->fabric : "(none)");
    else if (n->numa != usual->numa)
        fprintf(f, "%s%s on NUMA node %d, not %d", *sep, n->name, n->numa, usual->numa);
    else
        return;
    *sep = ", ";
}

const char *holmes_node_type_difference(const struct holmes_node_type *t,
                                        const struct holmes_node_type *usual, char *buf, size_t len)
{
    const char *sep = "";
    char *text = NULL;
    size_t n;
    FILE *f = open_memstream(&text, &n);

    snprintf(buf, len, "?");
    if (!f)
        return buf;
    if (t->gpus != usual->gpus) {
        fprintf(f, "%d GPUs, not %d", t->gpus, usual->gpus);
        sep = ", ";
    }
    if (strcmp(or_none(t->gpu), or_none(usual->gpu)) != 0) {
        fprintf(f, "%sGPU is %s, not %s", sep, t->gpu ? t->gpu : "(untold)",
                usual->gpu ? usual->gpu : "(untold)");
        sep = ", ";
    }
    if (t->memory_gib != usual->memory_gib) {
        fprintf(f, "%s%g GiB per GPU, not %g", sep, t->memory_gib, usual->memory_gib);
        sep = ", ";
    }
    if (t->intra_gbps != usual->intra_gbps) {
        fprintf(f, "%s%g Gb/s between GPUs, not %g", sep, t->intra_gbps, usual->intra_gbps);
        sep = ", ";
    }
    for (int i = 0; i < usual->nnics; i++)
        if (!nic_find(t, usual->nics[i].name)) {
            fprintf(f, "%sno %s", sep, usual->nics[i].name);
            sep = ", ";
        }
    for (int i = 0; i < t->nnics; i++) {
        const struct holmes_cluster_nic *other = nic_find(usual, t->nics[i].name);

        if (other) {
            say_nic(f, &sep, &t->nics[i], other);
        } else {
            fprintf(f, "%s%s in addition", sep, t->nics[i].name);
            sep = ", ";
        }
    }
    if (*sep == '\0')
        fputs("its NICs come in another order", f);
    if (fclose(f) == 0 && len > 4)
        snprintf(buf, len, "%.*s%s", (int)(n < len ? n : len - 4), text, n < len ? "" : "...");
    free(text);
    return buf;
}

const char *holmes_node_type_name(const struct holmes_node_type *t, char *buf, size_t len)
{
    static const struct {
        const char *word;
        bool rdma;
        enum holmes_link_layer link;
    } kinds[] = {
        {"ib", true, HOLMES_LINK_INFINIBAND},
        {"roce", true, HOLMES_LINK_ETHERNET},
        {"eth", false, HOLMES_LINK_UNKNOWN},
    };
    bool rdma = false;

    if (t->gpus > 0)
        snprintf(buf, len, "%dgpu", t->gpus);
    else
        snprintf(buf, len, "cpu");
    for (int k = 0; k < 3; k++) {
        int n = 0;
        double fastest = 0;

        for (int i = 0; i < t->nnics; i++)
            if (t->nics[i].rdma == kinds[k].rdma && t->nics[i].link == kinds[k].link) {
                n++;
                if (t->nics[i].gbps > fastest)
                    fastest = t->nics[i].gbps;
            }
        if (n == 0 || (!kinds[k].rdma && rdma)) /* beside RDMA, Ethernet is nothing to tell by */
            continue;
        rdma = rdma || kinds[k].rdma;
        snprintf(buf + strlen(buf), len - strlen(buf), "-%d%s", n, kinds[k].word);
        if (fastest > 0)
            snprintf(buf + strlen(buf), len - strlen(buf), "%g", fastest);
    }
    return buf;
}
