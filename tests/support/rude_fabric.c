/* What a libfabric does to signals whose providers bring libinfinipath: its constructor takes
 * SIGTERM to itself, unless IPATH_NO_BACKTRACE is set, and ends the process with status 1. A
 * SIGTERM then comes: while the constructor still runs (RUDE_LOADING=1), or while providers are
 * looked for. */
#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default"))) /* versions: rude_fabric.map */

static void end(int sig)
{
    (void)sig;
    _exit(1);
}

__attribute__((constructor)) static void take_signals(void)
{
    if (!getenv("IPATH_NO_BACKTRACE"))
        signal(SIGTERM, end);
    if (RUDE_LOADING && kill(getpid(), SIGTERM) == 0)
        for (;;)
            pause();
}

EXPORT uint32_t fi_version(void)
{
    return 99u << 16;
}

EXPORT int fi_getinfo(uint32_t version, const char *node, const char *service, uint64_t flags,
                      const void *hints, void **info)
{
    (void)version, (void)node, (void)service, (void)flags, (void)hints, (void)info;
    return -61; /* FI_ENODATA */
}

EXPORT void fi_freeinfo(void *info)
{
    (void)info;
}

EXPORT void *fi_dupinfo(const void *info)
{
    (void)info;
    raise(SIGTERM);
    return NULL; /* no memory for what fi_getinfo would be asked */
}

EXPORT int fi_fabric(void *attr, void **fabric, void *context)
{
    (void)attr, (void)fabric, (void)context;
    return -61;
}
