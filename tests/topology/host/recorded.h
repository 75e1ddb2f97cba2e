/* Recorded machines of tests/data, unpacked or built into a folder of the test's own. */
#ifndef RECORDED_H
#define RECORDED_H

#include <criterion/criterion.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "host.h"

struct recorded {
    char dir[64];
    char root[160]; /* of the machine */
};

__attribute__((format(printf, 1, 2))) static inline void run_command(const char *fmt, ...)
{
    char command[1024];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(command, sizeof command, fmt, ap);
    va_end(ap);
    cr_assert_eq(system(command), 0, "%s", command);
}

static inline struct recorded recorded_dir(void)
{
    struct recorded r;

    /* Trees are hundreds of small files. */
    snprintf(r.dir, sizeof r.dir, "%s/holmes-host-XXXXXX",
             access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp");
    cr_assert_not_null(mkdtemp(r.dir));
    return r;
}

/* tests/data/sysfs/NAME.tar.gz */
static inline struct recorded recorded_unpack(const char *name)
{
    struct recorded r = recorded_dir();

    run_command("tar xzf '%s/sysfs/%s.tar.gz' -C %s", TEST_DATA, name, r.dir);
    snprintf(r.root, sizeof r.root, "%s/%s", r.dir, name);
    return r;
}

/* tests/data/hosts/NAME.table, the machine of that number */
static inline struct recorded recorded_build(const char *name, int number)
{
    struct recorded r = recorded_dir();

    snprintf(r.root, sizeof r.root, "%s/%s", r.dir, name);
    run_command("python3 '%s/hosts/tree.py' '%s/hosts/%s.table' %d %s", TEST_DATA, TEST_DATA, name,
                number, r.root);
    return r;
}

static inline void recorded_remove(const struct recorded *r)
{
    run_command("rm -r %s", r->dir);
}

static const struct holmes_host_request nothing_asked = {.rdma = HOLMES_RDMA_NOTHING_ASKED};

static inline struct holmes_host *discover_ok(const char *root)
{
    struct holmes_host *h = NULL;
    char why[1024] = "";

    cr_assert_eq(holmes_host_discover(root, &nothing_asked, &h, why, sizeof why), 0, "%s: %s", root,
                 why);
    return h;
}

static inline struct holmes_host *parse_ok(const char *name, const char *text)
{
    struct holmes_host *h = NULL;
    char why[1024] = "";

    cr_assert_eq(holmes_host_parse(name, text, strlen(text), &h, why, sizeof why), 0, "%s", why);
    return h;
}

/* What a writer writes. The caller frees it. */
static inline char *written(int (*write)(const struct holmes_host *, FILE *),
                            const struct holmes_host *h)
{
    char *text = NULL;
    size_t len;
    FILE *f = open_memstream(&text, &len);

    cr_assert_not_null(f);
    cr_assert_eq(write(h, f), 0);
    fclose(f);
    return text;
}

static inline const struct holmes_host_port *find_port(const struct holmes_host *h,
                                                       const char *device)
{
    for (int i = 0; i < h->nports; i++)
        if (strcmp(h->ports[i].seen.device, device) == 0)
            return &h->ports[i];
    cr_assert(false, "no RDMA device %s", device);
    return NULL;
}

static inline const struct holmes_host_netif *find_netif(const struct holmes_host *h,
                                                         const char *name)
{
    for (int i = 0; i < h->nnetifs; i++)
        if (strcmp(h->netifs[i].seen.name, name) == 0)
            return &h->netifs[i];
    cr_assert(false, "no interface %s", name);
    return NULL;
}

static inline const char *skipped_because(const struct holmes_host *h, const char *what)
{
    for (int i = 0; i < h->nskipped; i++)
        if (strcmp(h->skipped[i].what, what) == 0)
            return h->skipped[i].reason;
    cr_assert(false, "%s was not skipped", what);
    return NULL;
}

#endif
