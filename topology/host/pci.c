#include "pci.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "build.h"

/* `least` to `most` hexadecimal digits and `end`; the text behind them, or NULL. */
static const char *hex_field(const char *s, size_t least, size_t most, char end, char **out)
{
    size_t n = 0;

    while (n < most && isxdigit((unsigned char)s[n]))
        *(*out)++ = (char)tolower((unsigned char)s[n++]);
    if (n < least || s[n] != end)
        return NULL;
    *(*out)++ = end;
    return s + n + (end != '\0');
}

bool pci_address(const char *text, char out[HOLMES_PCI_MAX])
{
    char buf[HOLMES_PCI_MAX], *p = buf;
    const char *first = strchr(text, ':');

    if (first && !strchr(first + 1, ':')) {
        memcpy(p, "0000:", 5);
        p += 5;
    } else {
        text = hex_field(text, 4, 8, ':', &p);
    }
    text = text ? hex_field(text, 2, 2, ':', &p) : NULL;
    text = text ? hex_field(text, 2, 2, '.', &p) : NULL;
    text = text ? hex_field(text, 1, 1, '\0', &p) : NULL;
    if (!text)
        return false;
    memcpy(out, buf, (size_t)(p - buf));
    return true;
}

void pci_address_of_path(const char *path, char out[HOLMES_PCI_MAX])
{
    const char *slash = strrchr(path, '/');

    if (!pci_address(slash ? slash + 1 : path, out))
        out[0] = '\0';
}

bool pci_class(const char *text, uint32_t *out)
{
    char *end;
    unsigned long v = strtoul(text, &end, 16);
    size_t digits = (size_t)(end - text);

    if (!isxdigit((unsigned char)*text) || *end)
        return false;
    if (digits >= 2 && (text[1] == 'x' || text[1] == 'X'))
        digits -= 2;
    if (digits == 4)
        v <<= 8; /* without the programming interface */
    else if (digits == 2)
        v <<= 16; /* NCCL's own "0x03" and "0x02" */
    else if (digits != 6)
        return false;
    *out = (uint32_t)v;
    return true;
}

const char *pci_vendor_name(uint16_t vendor)
{
    switch (vendor) {
    case 0x10de:
        return "NVIDIA";
    case 0x1002:
        return "AMD";
    case 0x8086:
        return "Intel";
    case 0x1da3:
        return "Habana";
    default:
        return "";
    }
}

bool pci_is_nic(uint32_t class)
{
    return class >> 16 == 0x02 || class >> 8 == 0x0c06;
}

enum pci_gpu pci_gpu(uint32_t class, uint16_t vendor, const char *driver)
{
    bool maker = *pci_vendor_name(vendor);

    switch (class >> 8) {
    case 0x1200: /* processing accelerator */
        return maker ? PCI_GPU : PCI_COPROCESSOR;
    case 0x0b40:
        return PCI_COPROCESSOR;
    case 0x0302: /* 3D controller: no screen can be plugged in */
        return maker ? PCI_GPU : PCI_CONSOLE;
    case 0x0380:
        return maker && vendor != 0x8086                                              ? PCI_GPU
               : driver && (strcmp(driver, "xe") == 0 || strcmp(driver, "i915") == 0) ? PCI_GPU
                                                                                      : PCI_CONSOLE;
    case 0x0300:
        return vendor == 0x10de || (vendor == 0x1002 && driver && strcmp(driver, "amdgpu") == 0)
                   ? PCI_GPU
                   : PCI_CONSOLE;
    default:
        return class >> 16 == 0x03 ? (maker && vendor != 0x8086 ? PCI_GPU : PCI_CONSOLE)
                                   : PCI_NO_DISPLAY;
    }
}

int gpu_skip(struct holmes_host *h, const char *address, enum pci_gpu kind, uint16_t vendor)
{
    const char *name = pci_vendor_name(vendor);
    char of[48];

    if (*name)
        snprintf(of, sizeof of, "%s", name);
    else
        snprintf(of, sizeof of, "vendor 0x%04x", vendor);
    if (kind == PCI_CONSOLE)
        return host_skip(h, address, "display of %s for the console, no GPU that computes", of);
    if (kind == PCI_COPROCESSOR)
        return host_skip(h, address, "coprocessor of %s, not a GPU", of);
    return 0;
}

void gpu_memory_of_name(struct holmes_host_gpu *g)
{
    for (const char *p = g->name; g->memory_gib <= 0 && *p; p++) {
        char *end;
        unsigned long gib;

        if (!isdigit((unsigned char)*p) || (p > g->name && isalnum((unsigned char)p[-1])))
            continue;
        gib = strtoul(p, &end, 10);
        if (gib > 0 && gib < 4096 && strncmp(end, "GB", 2) == 0 && !isalnum((unsigned char)end[2]))
            g->memory_gib = (double)gib;
    }
}

static int depth_of(const struct holmes_host *h, int i)
{
    int depth = 0;

    for (i = h->pcis[i].parent; i >= 0; i = h->pcis[i].parent)
        depth++;
    return depth;
}

/* Below one host bridge: by the bridges between each of them and the lowest one above both. */
static enum holmes_path distance_below(const struct holmes_host *h, int a, int b)
{
    int up_a = 0, up_b = 0, depth_a = depth_of(h, a), depth_b = depth_of(h, b);

    for (; depth_a > depth_b; depth_a--, up_a++)
        a = h->pcis[a].parent;
    for (; depth_b > depth_a; depth_b--, up_b++)
        b = h->pcis[b].parent;
    for (; a != b; up_a++, up_b++) {
        a = h->pcis[a].parent;
        b = h->pcis[b].parent;
    }
    if (a < 0)
        return HOLMES_PATH_PHB;
    /* A switch has one port up and one down to each device. */
    return up_a <= 2 && up_b <= 2 ? HOLMES_PATH_PIX : HOLMES_PATH_PXB;
}

enum holmes_path pci_distance(const struct holmes_host *h, int a, int b, int numa_a, int numa_b)
{
    bool far = numa_a >= 0 && numa_b >= 0 && numa_a != numa_b;

    if (a < 0 || b < 0)
        return far ? HOLMES_PATH_SYS : HOLMES_PATH_UNKNOWN;
    if (a == b)
        return HOLMES_PATH_PIX;
    if (h->pcis[a].root != h->pcis[b].root) {
        if (far)
            return HOLMES_PATH_SYS;
        /* A machine that numbers no NUMA node has one. */
        return (numa_a >= 0 && numa_b >= 0) || h->ncpus <= 1 ? HOLMES_PATH_NODE
                                                             : HOLMES_PATH_UNKNOWN;
    }
    return distance_below(h, a, b);
}
