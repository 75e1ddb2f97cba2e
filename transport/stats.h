/* Counters of connections that were closed, kept for the report at the end (HOLMES_STATS). The
 * owner locks. */
#ifndef HOLMES_STATS_H
#define HOLMES_STATS_H

#include "port_counters.h"
#include "transport.h"

struct stats {
    struct holmes_conn_stats *closed;
    size_t count, cap;
};

/* An RDMA port, and what it counted while it was open. */
struct stats_port {
    const char *name;
    struct port_counters counters;
};

void stats_add(struct stats *s, const struct holmes_conn_stats *conn);
/* Writes JSON to the file, through a temporary file renamed into place. Logs and returns a negative
 * errno when it cannot. */
int stats_write(const struct stats *s, const struct stats_port *ports, int nports,
                const char *path);
void stats_fini(struct stats *s);

#endif
