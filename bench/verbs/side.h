/* One of two processes that send each other messages, over bare queue pairs or over a net plugin:
 * the same calls for both, so that the same loop measures either.
 *
 * Messages of each direction are numbered from 0; message i uses buffer i % SIDE_WINDOW, so at most
 * that many may be under way. Nothing blocks but open. Errors end the program.
 */
#ifndef HOLMES_VERBS_SIDE_H
#define HOLMES_VERBS_SIDE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define SIDE_WINDOW 16u

struct side; /* each backend's own */

struct side_config {
    const char *device; /* "rxe_v0" */
    const char *plugin; /* path or name; not used by bare queue pairs */
    int gid_index;      /* not used by the plugin */
    size_t size;        /* of every message */
    int socket;         /* to the other process, for whatever has to be told */
};

struct side_ops {
    const char *name;
    struct side *(*open)(const struct side_config *config);
    void (*close)(struct side *s);
    void (*recv)(struct side *s, unsigned i);
    bool (*send)(struct side *s, unsigned i); /* false: not now */
    bool (*recv_done)(struct side *s, unsigned i);
    bool (*send_done)(struct side *s, unsigned i);
};

extern const struct side_ops side_bare, side_plugin;

/* For the backends. */
void side_die(const char *fmt, ...) __attribute__((noreturn, format(printf, 1, 2)));
/* Sends `len` bytes and receives as many. */
void side_swap(int socket, const void *mine, void *theirs, size_t len);

#endif
