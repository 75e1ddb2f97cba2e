/* What carried the bytes of each communicator, as the plugin counted it: Holmes writes its counters
 * (HOLMES_STATS) when its last communicator is gone. Another plugin tells nothing. */
#ifndef HOLMES_WIRES_H
#define HOLMES_WIRES_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

struct holmes_wires {
    char path[1024];
    bool ours;   /* nobody else asked for the file */
    json_t *doc; /* NULL: there is none */
};

/* Before the plugin is opened: has it write its counters, to the user's file if HOLMES_STATS names
 * one. 0, or a negative errno. */
int holmes_wires_prepare(struct holmes_wires *w);
/* After the plugin is closed. A file that is not there or not the plugin's is as good as none. */
void holmes_wires_read(struct holmes_wires *w);
void holmes_wires_close(struct holmes_wires *w);

/* [{"wire", "connections", "bytes_sent", "bytes_received"}] of the communicator with this id, empty
 * when nothing is known. NULL when out of memory. */
json_t *holmes_wires_of(const struct holmes_wires *w, uint64_t communicator);

/* Bytes that all ranks sent, by what they were for and what carried them, as a table for people.
 * `records`: array of traffic records whose communicators have "wires". Prints nothing when no
 * plugin told. 0, -ENOMEM or -EIO. */
int holmes_wires_print(const json_t *records, FILE *out);

#endif
