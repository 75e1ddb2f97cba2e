/* The wires of this build, in order of preference. */
#include <stdatomic.h>

#include "driver.h"

static const struct wire_ops *const built_in[] = {
#ifdef HOLMES_HAVE_VERBS
    &holmes_wire_verbs,
#endif
#ifdef HOLMES_HAVE_OFI
    &holmes_wire_ofi,
#endif
    NULL,
};

static _Atomic(const struct wire_ops *const *) chosen;

const struct wire_ops *const *holmes_wires(void)
{
    const struct wire_ops *const *wires = atomic_load(&chosen);

    return wires ? wires : built_in;
}

void holmes_wires_override(const struct wire_ops *const *wires)
{
    atomic_store(&chosen, wires);
}
