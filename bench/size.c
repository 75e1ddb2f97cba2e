/* Sizes and numbers of the command line. strtoul would take signs, blanks and half of "8x", so
 * digits are read here. */
#include "size.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#define SIZE_MAX_BYTES (UINT64_C(1) << 40)

/* Digits from *text on, which moves behind them. */
static int digits_parse(const char **text, uint64_t *out)
{
    uint64_t value = 0;

    if (**text < '0' || **text > '9')
        return -EINVAL;
    for (; **text >= '0' && **text <= '9'; (*text)++) {
        value = value * 10 + (uint64_t)(**text - '0');
        if (value > SIZE_MAX_BYTES)
            return -ERANGE;
    }
    *out = value;
    return 0;
}

int holmes_size_parse(const char *text, uint64_t *out)
{
    static const char units[] = "KkMmGg";
    const char *unit;
    uint64_t value;
    int rc = digits_parse(&text, &value);

    if (rc != 0)
        return rc;
    unit = *text ? strchr(units, *text) : NULL;
    if (*text && (!unit || text[1]))
        return -EINVAL;
    if (unit) {
        int shift = 10 * (int)((unit - units) / 2 + 1);
        if (value > SIZE_MAX_BYTES >> shift)
            return -ERANGE;
        value <<= shift;
    }
    *out = value;
    return 0;
}

void holmes_size_format(uint64_t bytes, char *buf, size_t len)
{
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
    double value = (double)bytes;
    size_t unit = 0;

    for (; value >= 1024 && unit < 4; unit++)
        value /= 1024;
    snprintf(buf, len, value == (uint64_t)value ? "%.0f %s" : "%.1f %s", value, units[unit]);
}

int holmes_number_parse(const char *text, long min, long max, long *out)
{
    uint64_t value;

    if (digits_parse(&text, &value) != 0 || *text || (long)value < min || (long)value > max)
        return -EINVAL;
    *out = (long)value;
    return 0;
}
