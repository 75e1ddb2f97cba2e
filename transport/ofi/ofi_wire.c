/* Encodes and decodes what the ofi wire sends to its peer: the blob that a lane's two ends exchange
 * over the handshake socket, and the private data of a connect request. Decoders take foreign
 * bytes: every field is checked, unknown ones are refused. */
#include <errno.h>
#include <string.h>

#include "ofi.h"

static void put_be(uint8_t *p, uint64_t v, int bytes)
{
    for (int i = bytes - 1; i >= 0; i--, v >>= 8)
        p[i] = (uint8_t)v;
}

static uint64_t get_be(const uint8_t *p, int bytes)
{
    uint64_t v = 0;

    for (int i = 0; i < bytes; i++)
        v = v << 8 | p[i];
    return v;
}

size_t holmes_ofi_blob_encode(const struct ofi_blob *b, uint8_t out[OFI_BLOB_LEN])
{
    const struct holmes_addr *a = &b->addr;

    memset(out, 0, OFI_BLOB_LEN);
    put_be(out, OFI_WIRE_MAGIC, 4);
    out[4] = OFI_WIRE_VERSION;
    out[5] = (uint8_t)b->role;
    if (b->role == WIRE_CONNECT)
        return OFI_BLOB_HEAD;

    if (a->sa.sa_family == AF_INET6) {
        out[6] = 6;
        memcpy(out + 8, &a->in6.sin6_port, 2);
        memcpy(out + 20, &a->in6.sin6_addr, 16);
    } else {
        out[6] = 4;
        memcpy(out + 8, &a->in.sin_port, 2);
        memcpy(out + 20, &a->in.sin_addr, 4);
    }
    put_be(out + 12, b->secret, 8);
    return OFI_BLOB_LEN;
}

static int decode_addr(const uint8_t *p, struct holmes_addr *out)
{
    uint8_t rest = 0;

    memset(out, 0, sizeof *out);
    if (p[6] == 6) {
        out->in6.sin6_family = AF_INET6;
        memcpy(&out->in6.sin6_port, p + 8, 2);
        memcpy(&out->in6.sin6_addr, p + 20, 16);
    } else if (p[6] == 4) {
        out->in.sin_family = AF_INET;
        memcpy(&out->in.sin_port, p + 8, 2);
        memcpy(&out->in.sin_addr, p + 20, 4);
        for (int i = 24; i < OFI_BLOB_LEN; i++)
            rest |= p[i];
    } else {
        return -EPROTO;
    }
    return rest == 0 && get_be(p + 8, 2) != 0 && get_be(p + 10, 2) == 0 ? 0 : -EPROTO;
}

int holmes_ofi_blob_decode(const void *bytes, size_t len, struct ofi_blob *out)
{
    const uint8_t *p = bytes;
    struct ofi_blob b = {0};

    if (len < OFI_BLOB_HEAD || get_be(p, 4) != OFI_WIRE_MAGIC || p[4] != OFI_WIRE_VERSION ||
        p[7] != 0)
        return -EPROTO;
    if (p[5] == WIRE_CONNECT) {
        if (len != OFI_BLOB_HEAD || p[6] != 0)
            return -EPROTO;
        b.role = WIRE_CONNECT;
    } else if (p[5] == WIRE_ACCEPT) {
        if (len != OFI_BLOB_LEN || decode_addr(p, &b.addr) != 0)
            return -EPROTO;
        b.role = WIRE_ACCEPT;
        b.secret = get_be(p + 12, 8);
        if (b.secret == 0)
            return -EPROTO;
    } else {
        return -EPROTO;
    }
    *out = b;
    return 0;
}

void holmes_ofi_request_encode(uint64_t secret, uint8_t out[OFI_REQUEST_LEN])
{
    memset(out, 0, OFI_REQUEST_LEN);
    put_be(out, OFI_WIRE_MAGIC, 4);
    out[4] = OFI_WIRE_VERSION;
    put_be(out + 8, secret, 8);
}

int holmes_ofi_request_decode(const void *bytes, size_t len, uint64_t *secret)
{
    const uint8_t *p = bytes;

    if (len != OFI_REQUEST_LEN || get_be(p, 4) != OFI_WIRE_MAGIC || p[4] != OFI_WIRE_VERSION ||
        get_be(p + 5, 3) != 0 || get_be(p + 8, 8) == 0)
        return -EPROTO;
    *secret = get_be(p + 8, 8);
    return 0;
}
