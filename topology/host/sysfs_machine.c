/* What a tree tells of the machine as a whole: its name, processors and memory, and the addresses
 * of its interfaces. */
#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>
#include <unistd.h>

#include "../sysfs.h"
#include "tree.h"

#define NODES      "devices/system/node"
#define CPUS       "devices/system/cpu"
#define ADDRS_FILE "ip-addr.json"

struct processor {
    char arch[16], vendor[32];
    int family, model;
};

/* "vendor_id\t: GenuineIntel" */
static bool field(const char *text, const char *name, char *out, size_t len)
{
    size_t n = strlen(name);

    for (const char *line = text; line; line = strchr(line, '\n')) {
        line += *line == '\n';
        if (strncmp(line, name, n) == 0) {
            const char *p = line + n + strspn(line + n, " \t");

            if (*p != ':')
                continue;
            p += 1 + strspn(p + 1, " \t");
            snprintf(out, len, "%.*s", (int)strcspn(p, "\n"), p);
            return true;
        }
    }
    return false;
}

static int number(const char *text, const char *name)
{
    char value[32], *end;
    long v;

    if (!field(text, name, value, sizeof value))
        return -1;
    v = strtol(value, &end, 10);
    return end != value && v >= 0 && v <= INT_MAX ? (int)v : -1;
}

static struct processor read_processor(const struct tree *t)
{
    struct processor p = {.family = -1, .model = -1};
    struct utsname name;
    char text[4096];

    if (t->base[0] && sysfs_read(t->base, "proc/cpuinfo", text, sizeof text) == 0) {
        field(text, "vendor_id", p.vendor, sizeof p.vendor);
        p.family = number(text, "cpu family");
        p.model = number(text, "model");
        if (p.vendor[0])
            snprintf(p.arch, sizeof p.arch, "x86_64");
        else if (strstr(text, "CPU implementer"))
            snprintf(p.arch, sizeof p.arch, "arm64");
        else if (strstr(text, "POWER"))
            snprintf(p.arch, sizeof p.arch, "ppc64");
    }
    if (t->live && !p.arch[0] && uname(&name) == 0)
        snprintf(p.arch, sizeof p.arch, "%.15s", name.machine);
    return p;
}

static int is_node(const struct dirent *e)
{
    return strncmp(e->d_name, "node", 4) == 0 && e->d_name[4] >= '0' && e->d_name[4] <= '9';
}

/* "Node 0 MemTotal:  65536 kB", or without "Node 0" in /proc/meminfo. */
static double memory_gib(const char *root, const char *path)
{
    char text[512], *p;
    double gib;

    if (sysfs_read(root, path, text, sizeof text) != 0)
        return 0;
    p = strstr(text, "MemTotal:");
    gib = p ? strtod(p + sizeof "MemTotal:" - 1, NULL) / (1 << 20) : 0;
    return gib > 0 && gib < HOST_MEMORY_MAX ? gib : 0;
}

static int add_cpu(struct holmes_host *h, int node, const struct processor *p, const char *affinity)
{
    struct holmes_host_cpu *c = host_add_cpu(h);

    if (!c)
        return -ENOMEM;
    c->numa_node = node;
    memcpy(c->arch, p->arch, sizeof c->arch);
    memcpy(c->vendor, p->vendor, sizeof c->vendor);
    c->family = p->family;
    c->model = p->model;
    snprintf(c->affinity, sizeof c->affinity, "%s", affinity);
    return 0;
}

static int read_nodes(const struct tree *t, struct holmes_host *h, const struct processor *p)
{
    char path[PATH_MAX], affinity[320];
    struct dirent **names;
    int n, rc = 0;

    if (!t->sys[0] || (size_t)snprintf(path, sizeof path, "%s/" NODES, t->sys) >= sizeof path)
        return 0;
    n = scandir(path, &names, is_node, versionsort);
    for (int i = 0; i < n; i++) {
        snprintf(path, sizeof path, NODES "/%s/cpumap", names[i]->d_name);
        if (sysfs_read(t->sys, path, affinity, sizeof affinity) != 0 ||
            affinity[strspn(affinity, "0123456789abcdef,")])
            affinity[0] = '\0';
        if (rc == 0)
            rc = add_cpu(h, atoi(names[i]->d_name + 4), p, affinity);
        snprintf(path, sizeof path, NODES "/%s/meminfo", names[i]->d_name);
        h->memory_gib += memory_gib(t->sys, path);
        free(names[i]);
    }
    if (n >= 0)
        free(names);
    return rc;
}

static int is_cpu(const struct dirent *e)
{
    return strncmp(e->d_name, "cpu", 3) == 0 && e->d_name[3] >= '0' && e->d_name[3] <= '9';
}

/* Hardware threads that share a core list each other; the first of each list stands for it. */
static int count_cores(const struct tree *t)
{
    char path[PATH_MAX], text[128];
    struct dirent **names;
    int n, cores = 0;

    if (!t->sys[0] || (size_t)snprintf(path, sizeof path, "%s/" CPUS, t->sys) >= sizeof path)
        return 0;
    n = scandir(path, &names, is_cpu, NULL);
    for (int i = 0; i < n; i++) {
        snprintf(path, sizeof path, CPUS "/%s/topology/thread_siblings_list", names[i]->d_name);
        cores += sysfs_read(t->sys, path, text, sizeof text) == 0 &&
                 atoi(text) == atoi(names[i]->d_name + 3);
        free(names[i]);
    }
    if (n >= 0)
        free(names);
    return cores;
}

int tree_read_machine(const struct tree *t, struct holmes_host *h)
{
    struct processor p = read_processor(t);
    double whole;
    int rc;

    if (t->live)
        gethostname(h->hostname, sizeof h->hostname - 1);
    else if (t->base[0] &&
             sysfs_read(t->base, "etc/hostname", h->hostname, sizeof h->hostname) != 0)
        h->hostname[0] = '\0';
    rc = read_nodes(t, h, &p);
    /* Memory that a hypervisor lends by turns is in the nodes only while it is there. */
    whole = t->base[0] ? memory_gib(t->base, "proc/meminfo") : 0;
    if (whole > h->memory_gib)
        h->memory_gib = whole;
    if (h->memory_gib > HOST_MEMORY_MAX)
        h->memory_gib = 0;
    h->cores = count_cores(t);
    if (rc == 0 && h->ncpus == 0 && p.arch[0])
        rc = add_cpu(h, -1, &p, "");
    return rc;
}

/* One of "addr_info". What is no address is left out, as the interface's other ones still hold. */
static void add_addr(struct holmes_netif *nif, json_t *info)
{
    const char *local = json_string_value(json_object_get(info, "local"));
    json_int_t len = json_integer_value(json_object_get(info, "prefixlen"));
    struct holmes_addr *a = &nif->addrs[nif->naddrs];

    if (!local || nif->naddrs == HOLMES_NIC_ADDRS_MAX)
        return;
    memset(a, 0, sizeof *a);
    if (inet_pton(AF_INET, local, &a->in.sin_addr) == 1 && len >= 0 && len <= 32)
        a->sa.sa_family = AF_INET;
    else if (inet_pton(AF_INET6, local, &a->in6.sin6_addr) == 1 && len >= 0 && len <= 128)
        a->sa.sa_family = AF_INET6;
    else
        return;
    a->prefix_len = (uint8_t)len;
    nif->naddrs++;
}

static void add_addrs(struct holmes_host *h, json_t *entry)
{
    const char *name = json_string_value(json_object_get(entry, "ifname"));
    json_t *infos = json_object_get(entry, "addr_info"), *info;
    size_t k;

    for (int i = 0; name && i < h->nnetifs; i++) {
        if (strcmp(h->netifs[i].seen.name, name) != 0)
            continue;
        h->netifs[i].addrs_told = true;
        json_array_foreach(infos, k, info) add_addr(&h->netifs[i].seen, info);
    }
}

int tree_read_addrs(const struct tree *t, struct holmes_host *h, char *why, size_t why_len)
{
    char path[PATH_MAX];
    json_error_t error;
    json_t *list, *entry;
    size_t i;
    FILE *f;

    if (!t->base[0] ||
        (size_t)snprintf(path, sizeof path, "%s/" ADDRS_FILE, t->base) >= sizeof path)
        return 0;
    f = fopen(path, "re");
    if (!f)
        return errno == ENOENT ? 0 : -errno;
    list = json_loadf(f, JSON_REJECT_DUPLICATES, &error);
    fclose(f);
    if (!json_is_array(list)) {
        snprintf(why, why_len, "%s:%d: %s", path, list ? 1 : error.line,
                 list ? "an array of interfaces is right, as `ip -j addr` prints it" : error.text);
        json_decref(list);
        return -EINVAL;
    }
    json_array_foreach(list, i, entry) add_addrs(h, entry);
    json_decref(list);
    return 0;
}
