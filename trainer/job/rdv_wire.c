/* Bytes of the rendezvous protocol and the proofs of its handshake. */
#include "rdv_wire.h"

#include <errno.h>
#include <string.h>
#include <sys/random.h>

#include "siphash.h"

void holmes_rdv_u32_write(uint8_t *out, uint32_t v)
{
    for (int i = 0; i < 4; i++)
        out[i] = (uint8_t)(v >> (8 * i));
}

uint32_t holmes_rdv_u32_read(const uint8_t *in)
{
    return (uint32_t)in[0] | (uint32_t)in[1] << 8 | (uint32_t)in[2] << 16 | (uint32_t)in[3] << 24;
}

void holmes_rdv_u64_write(uint8_t *out, uint64_t v)
{
    holmes_rdv_u32_write(out, (uint32_t)v);
    holmes_rdv_u32_write(out + 4, (uint32_t)(v >> 32));
}

uint64_t holmes_rdv_u64_read(const uint8_t *in)
{
    return holmes_rdv_u32_read(in) | (uint64_t)holmes_rdv_u32_read(in + 4) << 32;
}

void holmes_rdv_header_write(uint8_t out[HOLMES_RDV_HEADER], const struct holmes_rdv_header *h)
{
    holmes_rdv_u32_write(out, h->len);
    holmes_rdv_u32_write(out + 4, h->type);
    holmes_rdv_u32_write(out + 8, h->id);
}

struct holmes_rdv_header holmes_rdv_header_read(const uint8_t in[HOLMES_RDV_HEADER])
{
    return (struct holmes_rdv_header){
        .len = holmes_rdv_u32_read(in),
        .type = holmes_rdv_u32_read(in + 4),
        .id = holmes_rdv_u32_read(in + 8),
    };
}

void holmes_rdv_prove_write(uint8_t out[HOLMES_RDV_PROVE_BYTES], const struct holmes_rdv_prove *p)
{
    holmes_rdv_u64_write(out, p->mac);
    holmes_rdv_u32_write(out + 8, p->rank);
    holmes_rdv_u32_write(out + 12, p->nranks);
    holmes_rdv_u32_write(out + 16, p->pid);
    memcpy(out + 20, p->host, HOLMES_RDV_HOST_MAX);
}

void holmes_rdv_prove_read(const uint8_t in[HOLMES_RDV_PROVE_BYTES], struct holmes_rdv_prove *p)
{
    p->mac = holmes_rdv_u64_read(in);
    p->rank = holmes_rdv_u32_read(in + 8);
    p->nranks = holmes_rdv_u32_read(in + 12);
    p->pid = holmes_rdv_u32_read(in + 16);
    memcpy(p->host, in + 20, HOLMES_RDV_HOST_MAX);
    p->host[HOLMES_RDV_HOST_MAX - 1] = '\0';
}

struct holmes_rdv_key holmes_rdv_key(const char *secret)
{
    static const uint8_t low[16] = "holmes rdv key 0", high[16] = "holmes rdv key 1";
    struct holmes_rdv_key k;

    holmes_rdv_u64_write(k.bytes, holmes_siphash(low, secret, strlen(secret)));
    holmes_rdv_u64_write(k.bytes + 8, holmes_siphash(high, secret, strlen(secret)));
    return k;
}

uint64_t holmes_rdv_client_mac(const struct holmes_rdv_key *k, const uint8_t *client_nonce,
                               const uint8_t *server_nonce, const struct holmes_rdv_prove *p)
{
    uint8_t said[8 + 2 * HOLMES_RDV_NONCE + HOLMES_RDV_PROVE_BYTES] = "client";
    struct holmes_rdv_prove claim = *p;

    claim.mac = 0;
    memcpy(said + 8, client_nonce, HOLMES_RDV_NONCE);
    memcpy(said + 8 + HOLMES_RDV_NONCE, server_nonce, HOLMES_RDV_NONCE);
    holmes_rdv_prove_write(said + 8 + 2 * HOLMES_RDV_NONCE, &claim);
    return holmes_siphash(k->bytes, said, sizeof said);
}

uint64_t holmes_rdv_server_mac(const struct holmes_rdv_key *k, const uint8_t *client_nonce,
                               const uint8_t *server_nonce)
{
    uint8_t said[8 + 2 * HOLMES_RDV_NONCE] = "server";

    memcpy(said + 8, server_nonce, HOLMES_RDV_NONCE);
    memcpy(said + 8 + HOLMES_RDV_NONCE, client_nonce, HOLMES_RDV_NONCE);
    return holmes_siphash(k->bytes, said, sizeof said);
}

int holmes_rdv_nonce(uint8_t nonce[HOLMES_RDV_NONCE])
{
    return getrandom(nonce, HOLMES_RDV_NONCE, 0) == HOLMES_RDV_NONCE ? 0 : -EIO;
}
