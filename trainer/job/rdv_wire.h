/* What rendezvous client and server say to each other.
 *
 *   client                                server
 *   HELLO {magic, nonce c} ------------->
 *                        <------------- CHALLENGE {nonce s}
 *   PROVE {mac(c,s,...), rank, host} --->
 *                        <------------- WELCOME {mac(s,c)}    or REFUSED {errno, text}
 *   PUT | GET | BARRIER {id, ...} ------>
 *                        <------------- REPLY {id, errno, value or text}
 *                        <------------- ABORTED {text}        at any time, once
 *   ABORT {text} | LEAVE --------------->
 *
 * A frame is a header of 12 bytes (payload length, type, id; little endian) and its payload. A
 * stranger learns a nonce and, when it answers wrongly, that it was refused.
 */
#ifndef HOLMES_RDV_WIRE_H
#define HOLMES_RDV_WIRE_H

#include <stddef.h>
#include <stdint.h>

enum holmes_rdv_type {
    HOLMES_RDV_HELLO = 1,
    HOLMES_RDV_CHALLENGE,
    HOLMES_RDV_PROVE,
    HOLMES_RDV_WELCOME,
    HOLMES_RDV_REFUSED,
    HOLMES_RDV_PUT,
    HOLMES_RDV_GET,
    HOLMES_RDV_BARRIER,
    HOLMES_RDV_REPLY,
    HOLMES_RDV_ABORT,
    HOLMES_RDV_ABORTED,
    HOLMES_RDV_LEAVE,
};

enum {
    HOLMES_RDV_HEADER = 12,
    HOLMES_RDV_NONCE = 16,
    HOLMES_RDV_KEY_MAX = 255,
    HOLMES_RDV_VALUE_MAX = 64 * 1024,
    HOLMES_RDV_TEXT_MAX = 400,
    HOLMES_RDV_FRAME_MAX = HOLMES_RDV_VALUE_MAX + HOLMES_RDV_KEY_MAX + 64, /* payload */
    HOLMES_RDV_STRANGER_MAX = 256, /* payload, before the peer has proved itself */
    HOLMES_RDV_HOST_MAX = 64,
};

#define HOLMES_RDV_MAGIC "holmesR1"

struct holmes_rdv_hello {
    char magic[8];
    uint8_t nonce[HOLMES_RDV_NONCE];
};

struct holmes_rdv_prove {
    uint64_t mac;
    uint32_t rank, nranks, pid;
    char host[HOLMES_RDV_HOST_MAX];
};

struct holmes_rdv_header {
    uint32_t len, type, id;
};

void holmes_rdv_header_write(uint8_t out[HOLMES_RDV_HEADER], const struct holmes_rdv_header *h);
struct holmes_rdv_header holmes_rdv_header_read(const uint8_t in[HOLMES_RDV_HEADER]);
void holmes_rdv_u32_write(uint8_t *out, uint32_t v);
uint32_t holmes_rdv_u32_read(const uint8_t *in);
void holmes_rdv_u64_write(uint8_t *out, uint64_t v);
uint64_t holmes_rdv_u64_read(const uint8_t *in);

/* PROVE as bytes; the host is cut and always terminated on reading. */
enum { HOLMES_RDV_PROVE_BYTES = 20 + HOLMES_RDV_HOST_MAX };
void holmes_rdv_prove_write(uint8_t out[HOLMES_RDV_PROVE_BYTES], const struct holmes_rdv_prove *p);
void holmes_rdv_prove_read(const uint8_t in[HOLMES_RDV_PROVE_BYTES], struct holmes_rdv_prove *p);

/* A job's key, from its secret. */
struct holmes_rdv_key {
    uint8_t bytes[16];
};
struct holmes_rdv_key holmes_rdv_key(const char *secret);
/* The client's proof covers what it claims to be; the server's only the nonces. The two differ in a
 * label, so that neither can be played back as the other. */
uint64_t holmes_rdv_client_mac(const struct holmes_rdv_key *k, const uint8_t *client_nonce,
                               const uint8_t *server_nonce, const struct holmes_rdv_prove *p);
uint64_t holmes_rdv_server_mac(const struct holmes_rdv_key *k, const uint8_t *client_nonce,
                               const uint8_t *server_nonce);
int holmes_rdv_nonce(uint8_t nonce[HOLMES_RDV_NONCE]);

#endif
