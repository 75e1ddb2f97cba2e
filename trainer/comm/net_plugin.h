/* An NCCL net plugin found and loaded as NCCL does it, behind one call table in errno terms
 * whatever ABI version (8 to 12) the library offers.
 *
 * Calls on one connection may come from two threads at once in the pattern NCCL has: isend, irecv
 * and test from one, registration and close from another. Nothing here blocks but open.
 */
#ifndef HOLMES_NET_PLUGIN_H
#define HOLMES_NET_PLUGIN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define HOLMES_PLUGIN_HANDLE_BYTES 128

struct holmes_plugin;

struct holmes_plugin_device {
    char name[64];
    int speed_mbps;
    size_t max_message; /* largest isend, bytes */
};

/* Looks for `name` verbatim and, unless it is a path or reads lib....so, for libnccl-net-NAME.so;
 * takes the newest table among ncclNetPlugin_v12 to _v8. -ENOENT, -ENOSYS (no such table) or
 * -EINVAL with a sentence in `why`. */
int holmes_plugin_open(const char *name, struct holmes_plugin **out, char *why, size_t why_len);
void holmes_plugin_close(struct holmes_plugin *p); /* after its contexts; NULL is fine */

int holmes_plugin_abi(const struct holmes_plugin *p);
const char *holmes_plugin_name(const struct holmes_plugin *p);
const char *holmes_plugin_path(const struct holmes_plugin *p);

/* A context. From v11 on the plugin is initialised per communicator (comm_id is the same on all
 * its ranks); before, the first call initialises the library and the others do nothing. */
int holmes_plugin_init(struct holmes_plugin *p, uint64_t comm_id, void **ctx);
void holmes_plugin_fini(struct holmes_plugin *p, void *ctx);
int holmes_plugin_devices(struct holmes_plugin *p, int *ndev);
int holmes_plugin_device(struct holmes_plugin *p, int dev, struct holmes_plugin_device *out);
/* The device of this name (NULL: the first), its index and how many there are. On failure `why` is
 * a sentence that lists the names. */
int holmes_plugin_find_device(struct holmes_plugin *p, const char *name, int *dev,
                              struct holmes_plugin_device *out, int *ndev, char *why,
                              size_t why_len);

/* `handle` goes to the peer byte by byte and is written by connect too, which keeps its state in
 * it. connect and accept are polled: -EAGAIN while the peer is not there yet. */
int holmes_plugin_listen(struct holmes_plugin *p, void *ctx, int dev, void *handle, void **comm);
int holmes_plugin_connect(struct holmes_plugin *p, void *ctx, int dev, void *handle, void **comm);
int holmes_plugin_accept(struct holmes_plugin *p, void *listen_comm, void **comm);
void holmes_plugin_close_listen(struct holmes_plugin *p, void *comm);
void holmes_plugin_close_send(struct holmes_plugin *p, void *comm);
void holmes_plugin_close_recv(struct holmes_plugin *p, void *comm);

int holmes_plugin_reg(struct holmes_plugin *p, void *comm, void *data, size_t len, void **mr);
void holmes_plugin_dereg(struct holmes_plugin *p, void *comm, void *mr);

/* -EAGAIN: repeat the call later. `len` of irecv is an upper bound. */
int holmes_plugin_isend(struct holmes_plugin *p, void *comm, const void *data, size_t len, int tag,
                        void *mr, void **request);
int holmes_plugin_irecv(struct holmes_plugin *p, void *comm, void *data, size_t len, int tag,
                        void *mr, void **request);
/* When done, the request is the plugin's again and *len holds what arrived or left. */
int holmes_plugin_test(struct holmes_plugin *p, void *request, bool *done, size_t *len);

/* "ncclRemoteError" for the errno that a plugin's answer was turned into; NULL for other errnos. */
const char *holmes_plugin_result_name(int negative_errno);

#endif
