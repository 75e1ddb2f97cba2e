/* SipHash-2-4, a keyed 64-bit hash (Aumasson and Bernstein, "SipHash: a fast short-input PRF",
 * 2012). Used as the message authentication code of handshakes. Our own because the plugin links
 * no library that a container may lack; tests/unit/test_siphash.c holds the paper's vector. */
#ifndef HOLMES_SIPHASH_H
#define HOLMES_SIPHASH_H

#include <stddef.h>
#include <stdint.h>

uint64_t holmes_siphash(const uint8_t key[16], const void *data, size_t len);

#endif
