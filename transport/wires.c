/* The wires of this build, in order of preference, and the one over TCP that the user wants. */
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

#include "driver.h"
#include "env.h"

#define USUAL_TCP "sockets" /* HOLMES_TCP=auto; docs/sockets.md says why */

/* `tcp`: the value of HOLMES_TCP that asks for it; NULL: it is always there. */
static const struct {
    const struct wire_ops *ops;
    const char *tcp;
} built_in[] = {
#ifdef HOLMES_HAVE_VERBS
    {&holmes_wire_verbs, NULL},
#endif
    {&holmes_wire_sock, "sockets"},
#ifdef HOLMES_HAVE_OFI
    {&holmes_wire_ofi, "libfabric"},
#endif
};
#define BUILT_IN (sizeof built_in / sizeof *built_in)

static const struct wire_ops *wanted[BUILT_IN + 1];
static pthread_once_t wanted_once = PTHREAD_ONCE_INIT;
static _Atomic(const struct wire_ops *const *) chosen;

static void wanted_fill(void)
{
    const char *tcp = holmes_env_string(HOLMES_ENV_TCP);
    size_t n = 0;

    if (strcmp(tcp, "auto") == 0)
        tcp = USUAL_TCP;
    for (size_t i = 0; i < BUILT_IN; i++)
        if (!built_in[i].tcp || strcmp(tcp, built_in[i].tcp) == 0)
            wanted[n++] = built_in[i].ops;
}

const struct wire_ops *const *holmes_wires(void)
{
    const struct wire_ops *const *wires = atomic_load(&chosen);

    pthread_once(&wanted_once, wanted_fill);
    return wires ? wires : wanted;
}

void holmes_wires_override(const struct wire_ops *const *wires)
{
    atomic_store(&chosen, wires);
}
