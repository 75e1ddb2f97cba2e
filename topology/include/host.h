/* One machine as data: its RDMA ports and interfaces with the verdict on each, its GPUs, where they
 * sit, and what was left out and why. What `holmes-topo discover` shows and writes, and what
 * `gather` makes the cluster file of.
 *
 * A host comes from the live machine or a recorded sysfs tree (holmes_host_discover), or from a
 * file: hwloc XML, NCCL topology XML, our own JSON (holmes_host_read). The choice of ports and
 * interfaces is that of topology.h, so what is shown here is what the plugin does. A source that
 * does not tell something leaves it unknown: nothing is guessed.
 */
#ifndef HOLMES_HOST_H
#define HOLMES_HOST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "topology.h"

#define HOLMES_HOST_VERSION     1           /* of the JSON */
#define HOLMES_HOST_FILE_MAX    (64u << 20) /* bytes of a file that is read */
#define HOLMES_HOST_DEVICES_MAX 4096        /* of each list of a host that is read from a file */
#define HOLMES_HOST_LINKS_MAX   32          /* direct links of a GPU */
#define HOLMES_PCI_MAX          20          /* "0000:3b:00.0", the domain has up to 8 digits */

enum holmes_host_source {
    HOLMES_HOST_LIVE,     /* this machine */
    HOLMES_HOST_RECORDED, /* a sysfs tree of another one */
    HOLMES_HOST_HWLOC,    /* hwloc XML */
    HOLMES_HOST_NCCL,     /* NCCL topology XML */
};

/* A PCI function that is a GPU or an adapter, or a bridge above one. */
struct holmes_host_pci {
    char address[HOLMES_PCI_MAX];
    int parent; /* the bridge above it, of a lower index; -1: it is right below the host bridge */
    int root;   /* equal: below the same host bridge */
    uint32_t class; /* 24 bits, 0x020700; 0: not told */
    uint16_t vendor, device, subsystem_vendor, subsystem_device; /* 0: not told */
    int numa_node;                                               /* -1: unknown */
    double link_gts;                                             /* per lane; 0: unknown */
    int link_width;                                              /* lanes; 0: unknown */
};

struct holmes_host_port {
    struct holmes_rdma_port_seen
        seen; /* its pci_path is the address alone, "" when there is none */
    struct holmes_rdma_verdict verdict;
    int nic; /* of a port in use: index into chosen.nics, which has the GIDs best first; -1 */
    char netdev[16]; /* interface of its best GID; "" when not told */
    bool told;       /* state and link layer are known: XML has neither */
};

struct holmes_host_netif {
    struct holmes_netif seen; /* pci_path as above */
    struct holmes_netif_verdict verdict;
    int nic;         /* of an interface in use: index into chosen.nics; -1 */
    bool addrs_told; /* false: the source has no addresses, which is not the same as none */
};

/* A direct link of a GPU to another one, a switch or a CPU: NVLink, xGMI. */
struct holmes_host_link {
    char target[HOLMES_PCI_MAX];
    uint32_t target_class; /* 0: not told */
    int count;
};

struct holmes_host_gpu {
    char address[HOLMES_PCI_MAX]; /* "" where the source has none */
    int pci;                      /* index into pcis; -1 */
    uint16_t vendor, device;      /* 0: not told */
    char vendor_name[32];         /* "NVIDIA", "AMD", "Intel", "" */
    char name[64];                /* model, where a driver or the file tells it; else "" */
    double memory_gib;            /* 0: unknown */
    int numa_node;                /* -1: unknown */
    int dev;                      /* number the driver or NCCL gives it; -1: not told */
    int sm;                       /* compute capability times 10; 0: not told */
    bool gdr;                     /* NCCL XML: GPUDirect RDMA works */
    bool xgmi;                    /* its links are AMD's */
    int nlinks;
    struct holmes_host_link links[HOLMES_HOST_LINKS_MAX];
};

/* A network adapter: a PCI function, or a device that has none. Ports, interfaces and functions of
 * equal PCI address are one NIC; what `discover` counts as NICs. */
struct holmes_host_nic {
    char name[32];                /* its first RDMA device, else its interface, else the address */
    char address[HOLMES_PCI_MAX]; /* "" when there is none */
    int pci;                      /* index into pcis; -1 */
    int numa_node;
    uint32_t speed_mbps; /* of the fastest port; 0: unknown */
    bool used;           /* one of its ports or interfaces is in use */
};

/* How far two devices are apart, in NCCL's and nvidia-smi's words. */
enum holmes_path {
    HOLMES_PATH_UNKNOWN,
    HOLMES_PATH_PIX,  /* at most one PCIe switch between them */
    HOLMES_PATH_PXB,  /* several, and no host bridge */
    HOLMES_PATH_PHB,  /* through their host bridge */
    HOLMES_PATH_NODE, /* through two host bridges of one NUMA node */
    HOLMES_PATH_SYS,  /* from one NUMA node to another */
};

/* A NUMA node with its processor, as NCCL's <cpu> has it. */
struct holmes_host_cpu {
    int numa_node;      /* -1: the source has none */
    char affinity[320]; /* "0000ffff,ffff0000", 32 bits a group; "" when not told */
    char arch[16];      /* "x86_64", "arm64", "ppc64"; "" when not told */
    char vendor[32];    /* "GenuineIntel"; "" when not told */
    int family, model;  /* -1: not told */
};

struct holmes_host_skip {
    char what[96];
    char reason[HOLMES_NETIF_REASON_MAX];
};

struct holmes_host {
    char hostname[256]; /* "" when the source does not tell */
    enum holmes_host_source source;
    double memory_gib; /* 0: unknown */
    int cores;         /* 0: unknown */
    int ncpus;
    struct holmes_host_cpu *cpus;
    int npcis;
    struct holmes_host_pci *pcis; /* parents before children */
    int nports;
    struct holmes_host_port *ports;
    int nnetifs;
    struct holmes_host_netif *netifs;
    int ngpus;
    struct holmes_host_gpu *gpus;
    int nnics;
    struct holmes_host_nic *nics;
    enum holmes_path *distance; /* [ngpus * nnics]: of gpu g and nic n at g * nnics + n */
    struct holmes_nics chosen;  /* what the plugin uses */
    int nskipped;
    struct holmes_host_skip *skipped; /* seen and in none of the lists above */
    int nnotes;
    char **notes; /* sentences for people: what the source lacks, variables without effect */
};

/* The variables that decide the choice; see topology.h for each. */
struct holmes_host_request {
    struct holmes_netif_request netif;
    struct holmes_rdma_request rdma;
    bool rdma_off; /* NCCL_IB_DISABLE */
};

/* The variables of the environment, as the plugin reads them. */
struct holmes_host_request holmes_host_request_env(void);

/* Looks at the machine whose "/" is `root`; "/" is this one. A recorded tree holds sys/ and, where
 * it was recorded, proc/, etc/hostname and ip-addr.json (the output of `ip -j addr`, the only place
 * that has IPv4 addresses). `root` may also be the sysfs itself, or a folder that holds only what
 * class/infiniband has. Of another machine's tree nothing is asked from this machine's kernel.
 *
 * `req` NULL: holmes_host_request_env(). On failure *out is untouched and `why` has a sentence:
 * -EINVAL for a variable that cannot be met or a root that is no such tree, -ENOENT and other
 * errors of reading, -ENOMEM. That no interface is usable is no failure: it is told in notes. */
int holmes_host_discover(const char *root, const struct holmes_host_request *req,
                         struct holmes_host **out, char *why, size_t why_len);

/* Reads a host from hwloc XML, NCCL topology XML (NCCL_TOPO_FILE, NCCL_TOPO_DUMP_FILE) or JSON,
 * told apart by content. Verdicts: of JSON those of the machine that wrote it; NCCL XML names the
 * devices that NCCL used, which are therefore used; hwloc XML tells too little to judge. On failure
 * *out is untouched and `why` has a sentence with file, line and what is wrong. -EINVAL, -EFBIG,
 * -ENOENT and other errors of opening, -ENOMEM. */
int holmes_host_read(const char *path, struct holmes_host **out, char *why, size_t why_len);
/* The same from memory; `name` stands for the file in messages. */
int holmes_host_parse(const char *name, const void *data, size_t len, struct holmes_host **out,
                      char *why, size_t why_len);
/* Each of the three by itself. */
int holmes_host_parse_json(const char *name, const void *data, size_t len, struct holmes_host **out,
                           char *why, size_t why_len);
int holmes_host_parse_nccl(const char *name, const void *data, size_t len, struct holmes_host **out,
                           char *why, size_t why_len);
int holmes_host_parse_hwloc(const char *name, const void *data, size_t len,
                            struct holmes_host **out, char *why, size_t why_len);

/* Writes what holmes_host_parse_json reads (docs/host.md); reading it back gives an equal host. 0
 * or a negative errno. */
int holmes_host_json(const struct holmes_host *h, FILE *out);

/* Writes NCCL topology XML for NCCL_TOPO_FILE. What has no PCI address gets one that no machine
 * has, as NCCL itself gives it. 0 or a negative errno; -ENODATA when the host has neither GPU nor
 * NIC. */
int holmes_host_nccl_xml(const struct holmes_host *h, FILE *out);

void holmes_host_destroy(struct holmes_host *h); /* NULL is fine */

/* --- questions about a host ---------------------------------------------------------------- */

/* Ports in use. */
int holmes_host_ports_used(const struct holmes_host *h);

/* InfiniBand subnet prefix of a port's GID 0, "fe80:0:0:0" (four groups), into `buf`, which it
 * returns; NULL when the port is no InfiniBand port or has no GID 0. */
const char *holmes_host_prefix(const struct holmes_host_port *p, char *buf, size_t len);

/* Kinds of the GIDs of a RoCE port in use, best first, "v2-ipv4,v2-ipv6,v1-ipv4", into `buf`, which
 * it returns; "" when none. */
const char *holmes_host_gid_kinds(const struct holmes_host *h, const struct holmes_host_port *p,
                                  char *buf, size_t len);

const char *holmes_path_name(enum holmes_path p); /* "PIX"; "?" for unknown */
const char *holmes_host_source_name(enum holmes_host_source s);

#endif
