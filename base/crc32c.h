/* CRC-32C (Castagnoli), the checksum of iSCSI and of most file formats that have one: finds every
 * burst of up to 32 flipped bits. Against accidents, not against malice. */
#ifndef HOLMES_CRC32C_H
#define HOLMES_CRC32C_H

#include <stddef.h>
#include <stdint.h>

/* `crc` is 0, or the result for the bytes before these. Thread safe. */
uint32_t holmes_crc32c(uint32_t crc, const void *data, size_t len);

#endif
