/* A small authenticated key-value service over TCP with which the ranks of a job find each other.
 *
 * One process serves (rank 0 or the launcher). A client proves that it knows the job's secret
 * (HMAC-like: SipHash over nonces, base/siphash.h); strangers get nothing. Keys are set once. When
 * a rank's connection ends before holmes_rdv_leave, or a rank calls holmes_rdv_abort, every waiting
 * and later call of all others returns -ECONNABORTED and holmes_rdv_reason() says which rank, on
 * which host, why. A host that is gone without a word is noticed within seconds
 * (HOLMES_RDV_GONE_MS), whatever its rank was doing.
 */
#ifndef HOLMES_RENDEZVOUS_H
#define HOLMES_RENDEZVOUS_H

#include <stddef.h>
#include <stdint.h>

struct holmes_rdv_server;
struct holmes_rdv;

/* Serves on a thread of its own. port 0: any free one. `host` may be NULL for all addresses. */
int holmes_rdv_serve(const char *host, uint16_t port, const char *secret, int nranks,
                     struct holmes_rdv_server **out);
uint16_t holmes_rdv_port(const struct holmes_rdv_server *s);
/* Waits until all ranks have left (0) or the job is aborted and all connections are gone
 * (-ECONNABORTED); -ETIMEDOUT, timeout_ms < 0 waits for ever. What hosts the service calls it
 * before stop, so that no rank loses an answer under way. */
int holmes_rdv_server_wait(struct holmes_rdv_server *s, int timeout_ms);
/* Ends its thread, after giving connected ranks up to two seconds to leave. NULL is fine. */
void holmes_rdv_stop(struct holmes_rdv_server *s);

/* Retries a refused connection until timeout_ms. On failure holmes_rdv_reason(NULL) is a sentence.
 */
int holmes_rdv_connect(const char *host, uint16_t port, const char *secret, int rank, int nranks,
                       int timeout_ms, struct holmes_rdv **out);
/* The same; others are told `name` as this rank's host (NULL: the host's own name). */
int holmes_rdv_connect_as(const char *name, const char *host, uint16_t port, const char *secret,
                          int rank, int nranks, int timeout_ms, struct holmes_rdv **out);
int holmes_rdv_put(struct holmes_rdv *r, const char *key, const void *data, size_t len);
/* Waits until the key is set. -ETIMEDOUT; -EMSGSIZE when cap is too small. */
int holmes_rdv_get(struct holmes_rdv *r, const char *key, void *data, size_t cap, size_t *len,
                   int timeout_ms);
/* All nranks must call it with the same name; -ETIMEDOUT names the first rank that is missing
 * through holmes_rdv_reason. */
int holmes_rdv_barrier(struct holmes_rdv *r, const char *name, int timeout_ms);
/* 0 while the job is well, else -ECONNABORTED: does not block, may be called from any thread. */
int holmes_rdv_poll(struct holmes_rdv *r);
/* Calls on_abort once, from any thread, when the job is aborted or the server is gone; at once when
 * that has happened. It must not block nor call this header. NULL: no more. */
void holmes_rdv_on_abort(struct holmes_rdv *r, void (*on_abort)(void *ctx), void *ctx);
/* Why the job was aborted, else why the last call of this thread failed. Valid until the thread's
 * next call of this header. */
const char *holmes_rdv_reason(struct holmes_rdv *r);
void holmes_rdv_abort(struct holmes_rdv *r, const char *reason);
void holmes_rdv_leave(struct holmes_rdv *r); /* orderly; frees; NULL is fine */

#endif
