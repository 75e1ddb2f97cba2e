/* Sizes as people write them: 8, 4K, 1M, 1G, in powers of 1024. */
#ifndef HOLMES_BENCH_SIZE_H
#define HOLMES_BENCH_SIZE_H

#include <stddef.h>
#include <stdint.h>

/* Digits and at most one of K, M, G, in either case; nothing before or after. 0, -EINVAL when it is
 * no size, -ERANGE when it is above 1 TiB. */
int holmes_size_parse(const char *text, uint64_t *out);

/* "8 B", "64 KiB", "1.5 MiB". */
void holmes_size_format(uint64_t bytes, char *buf, size_t len);

/* A whole number within [min, max]: 0 or -EINVAL. */
int holmes_number_parse(const char *text, long min, long max, long *out);

#endif
