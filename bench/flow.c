/* The two halves of a proxy's turn: post, then test. */
#include "flow.h"

#include <errno.h>

static int flow_post(struct holmes_flow *f, bool *moved)
{
    struct holmes_plugin *p = f->conn->attr.plugin;
    uint64_t end = f->allowed < f->total ? f->allowed : f->total;

    while (f->posted < end && f->posted - f->done < f->window) {
        size_t slot = f->posted % f->window;
        char *at = f->base + slot * f->stride;
        int rc = f->conn->attr.sends ? holmes_plugin_isend(p, f->conn->comm, at, f->bytes, 0,
                                                           f->region->mr, &f->requests[slot])
                                     : holmes_plugin_irecv(p, f->conn->comm, at, f->bytes, 0,
                                                           f->region->mr, &f->requests[slot]);

        if (rc == -EAGAIN)
            return 0;
        if (rc != 0)
            return rc;
        f->posted++;
        *moved = true;
    }
    return 0;
}

static int flow_test(struct holmes_flow *f, bool *moved)
{
    while (f->done < f->posted) {
        bool done = false;
        size_t len = 0;
        int rc =
            holmes_plugin_test(f->conn->attr.plugin, f->requests[f->done % f->window], &done, &len);

        if (rc != 0 || !done)
            return rc;
        /* What a send's test says of its length is nobody's business, not even NCCL's. */
        if (!f->conn->attr.sends && len != f->bytes)
            return -EPROTO;
        f->done++;
        *moved = true;
    }
    return 0;
}

int holmes_flow_step(struct holmes_flow *f, bool *moved)
{
    int rc = flow_post(f, moved);

    return rc != 0 ? rc : flow_test(f, moved);
}
