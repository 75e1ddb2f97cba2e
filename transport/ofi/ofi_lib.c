/* Opens libfabric at run time and leaves the process otherwise as it was. Debian's build pulls in
 * psm, whose constructor installs handlers for SIGSEGV, SIGINT and others: every disposition that
 * changed while the library came up is put back, as soon as it can be, since a signal until then
 * ends the process. */
#include <dlfcn.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "env.h"
#include "log.h"
#include "ofi.h"

#define REMEDY                                                                                     \
    "install libfabric 1.17 or later (Debian: libfabric1), name one with HOLMES_LIBFABRIC, or "    \
    "leave HOLMES_TCP unset, which needs none"

struct ofi_lib holmes_ofi;

/* struct fi_info has had its present layout since ABI 1.3, struct fi_fabric_attr since 1.1. The
 * versions are asked for by name, because dlsym would give a later library's newest, whose layout
 * our headers may not know. */
static const struct {
    const char *name, *version;
    size_t slot;
} ofi_symbols[] = {
    {"fi_getinfo", "FABRIC_1.3", offsetof(struct ofi_lib, getinfo)},
    {"fi_freeinfo", "FABRIC_1.3", offsetof(struct ofi_lib, freeinfo)},
    {"fi_dupinfo", "FABRIC_1.3", offsetof(struct ofi_lib, dupinfo)},
    {"fi_fabric", "FABRIC_1.1", offsetof(struct ofi_lib, fabric)},
    {"fi_version", "FABRIC_1.0", offsetof(struct ofi_lib, version)},
};

struct signal_guard {
    struct sigaction saved[NSIG];
    bool valid[NSIG];
};

static void signal_guard_save(struct signal_guard *g)
{
    for (int sig = 1; sig < NSIG; sig++)
        g->valid[sig] = sigaction(sig, NULL, &g->saved[sig]) == 0;
}

static void signal_guard_restore(const struct signal_guard *g)
{
    for (int sig = 1; sig < NSIG; sig++) {
        struct sigaction now;

        if (!g->valid[sig] || sigaction(sig, NULL, &now) != 0)
            continue;
        if (now.sa_sigaction != g->saved[sig].sa_sigaction ||
            now.sa_flags != g->saved[sig].sa_flags)
            sigaction(sig, &g->saved[sig], NULL);
    }
}

static int lib_resolve(void *handle, const char *path, char *why, size_t why_len)
{
    for (size_t i = 0; i < sizeof ofi_symbols / sizeof *ofi_symbols; i++) {
        void *fn = dlvsym(handle, ofi_symbols[i].name, ofi_symbols[i].version);

        if (!fn) {
            snprintf(why, why_len, "%s has no %s@%s: it is no libfabric, or too old; " REMEDY, path,
                     ofi_symbols[i].name, ofi_symbols[i].version);
            return -ELIBACC;
        }
        memcpy((char *)&holmes_ofi + ofi_symbols[i].slot, &fn, sizeof fn);
    }
    return 0;
}

/* The first fi_getinfo initialises all providers (0.2 s) and shows that ours is there. */
static int lib_probe(const char *path, char *why, size_t why_len)
{
    struct holmes_addr any = {
        .in = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)}};
    uint32_t v = holmes_ofi.version();
    struct fi_info *info;
    int rc;

    if (FI_VERSION_LT(v, OFI_API_VERSION)) {
        snprintf(why, why_len, "%s is libfabric %u.%u, too old; " REMEDY, path, FI_MAJOR(v),
                 FI_MINOR(v));
        return -ELIBACC;
    }
    rc = holmes_ofi_query(&any, &info);
    if (rc != 0) {
        snprintf(why, why_len,
                 "%s (libfabric %u.%u) offers no provider tcp (%s): does FI_PROVIDER leave it out?",
                 path, FI_MAJOR(v), FI_MINOR(v), holmes_strerror(rc));
        return -ELIBACC;
    }
    holmes_ofi.freeinfo(info);
    holmes_info(INIT, "libfabric %u.%u from %s, provider tcp", FI_MAJOR(v), FI_MINOR(v), path);
    return 0;
}

static int lib_open(char *why, size_t why_len)
{
    const char *path = holmes_env_string(HOLMES_ENV_LIBFABRIC);
    struct signal_guard guard;
    void *handle;
    int rc;

    signal_guard_save(&guard);
    handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    signal_guard_restore(&guard); /* providers take longer than constructors */
    if (handle) {
        rc = lib_resolve(handle, path, why, why_len);
        if (rc == 0)
            rc = lib_probe(path, why, why_len);
    } else {
        const char *error = dlerror();

        snprintf(why, why_len, "%s cannot be opened (%s): " REMEDY, path,
                 error ? error : "no reason given");
        rc = -ELIBACC;
    }
    /* Never closed again, not even after a failure: providers leave exit hooks behind. */
    signal_guard_restore(&guard);
    return rc;
}

int holmes_ofi_load(char *why, size_t why_len)
{
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    static char sentence[512];
    static int result = 1;

    pthread_mutex_lock(&lock);
    if (result > 0)
        result = lib_open(sentence, sizeof sentence);
    if (result != 0)
        snprintf(why, why_len, "%s", sentence);
    pthread_mutex_unlock(&lock);
    return result;
}

static struct fi_info *query_hints(const struct holmes_addr *addr)
{
    struct fi_info *h = holmes_ofi.dupinfo(NULL);

    if (!h)
        return NULL;
    h->caps = FI_MSG | FI_RMA;
    h->addr_format = addr->sa.sa_family == AF_INET6 ? FI_SOCKADDR_IN6 : FI_SOCKADDR_IN;
    h->ep_attr->type = FI_EP_MSG;
    h->domain_attr->threading = FI_THREAD_SAFE;
    h->domain_attr->mr_mode = FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY;
    h->domain_attr->data_progress = FI_PROGRESS_MANUAL;
    h->domain_attr->control_progress = FI_PROGRESS_MANUAL;
    h->tx_attr->msg_order =
        FI_ORDER_WAW; /* the record before the immediate, the bytes before both */
    h->fabric_attr->prov_name = strdup("tcp");
    h->src_addrlen = holmes_addr_len(addr);
    h->src_addr = malloc(h->src_addrlen);
    if (!h->fabric_attr->prov_name || !h->src_addr) {
        holmes_ofi.freeinfo(h);
        return NULL;
    }
    memcpy(h->src_addr, addr, h->src_addrlen);
    return h;
}

/* "tcp" itself, not a layer over it ("tcp;ofi_rxm"), and with receive contexts of its own. */
static bool offer_fits(const struct fi_info *i)
{
    return i->fabric_attr->prov_name && strcmp(i->fabric_attr->prov_name, "tcp") == 0 &&
           i->ep_attr->type == FI_EP_MSG && i->ep_attr->rx_ctx_cnt != FI_SHARED_CONTEXT &&
           i->domain_attr->cq_data_size >= sizeof(uint32_t) && i->tx_attr->inject_size >= 64 &&
           !(i->domain_attr->mr_mode & (FI_MR_ENDPOINT | FI_MR_RMA_EVENT | FI_MR_RAW)) &&
           (i->mode & (FI_CONTEXT | FI_CONTEXT2 | FI_MSG_PREFIX | FI_RX_CQ_DATA)) == 0;
}

int holmes_ofi_query(const struct holmes_addr *addr, struct fi_info **out)
{
    struct fi_info *hints = query_hints(addr), *all = NULL, *found = NULL;
    int rc;

    if (!hints)
        return -ENOMEM;
    rc = holmes_ofi_errno(holmes_ofi.getinfo(OFI_API_VERSION, NULL, NULL, 0, hints, &all));
    holmes_ofi.freeinfo(hints);
    if (rc != 0)
        return rc;
    for (struct fi_info *i = all; i && !found; i = i->next) {
        if (offer_fits(i)) {
            found = holmes_ofi.dupinfo(i);
            rc = found ? 0 : -ENOMEM;
            break;
        }
        rc = -ENODATA;
    }
    holmes_ofi.freeinfo(all);
    if (rc == 0)
        *out = found;
    return rc;
}
