/* Decoding of UTF-8 text that may be anything: names of hosts, files and devices. */
#ifndef HOLMES_UTF8_H
#define HOLMES_UTF8_H

#include <stddef.h>
#include <stdint.h>

#define HOLMES_UTF8_REPLACEMENT 0xfffdu

/* The code point at `s`, and in *len its bytes (at least 1 unless the string ends, then 0). Bytes
 * that form no code point, surrogates and overlong forms give HOLMES_UTF8_REPLACEMENT with *len 1.
 */
static inline uint32_t holmes_utf8_decode(const char *s, size_t *len)
{
    static const uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
    const unsigned char *b = (const unsigned char *)s;
    size_t n = b[0] < 0xc0 ? 1 : b[0] < 0xe0 ? 2 : b[0] < 0xf0 ? 3 : b[0] < 0xf8 ? 4 : 1;
    uint32_t c = n == 1 ? b[0] : b[0] & (0x7fu >> n);

    *len = b[0] != 0;
    if (n == 1)
        return b[0] < 0x80 ? c : HOLMES_UTF8_REPLACEMENT;
    for (size_t i = 1; i < n; i++) {
        if ((b[i] & 0xc0) != 0x80)
            return HOLMES_UTF8_REPLACEMENT;
        c = c << 6 | (b[i] & 0x3f);
    }
    if (c < least[n] || c > 0x10ffff || (c >= 0xd800 && c < 0xe000))
        return HOLMES_UTF8_REPLACEMENT;
    *len = n;
    return c;
}

/* Control characters, which neither a terminal nor XML should be given. */
static inline int holmes_utf8_is_control(uint32_t c)
{
    return c < 0x20 || (c >= 0x7f && c < 0xa0) || c == 0xfffe || c == 0xffff;
}

/* Columns on a terminal: 0 for combining marks, 2 for East Asian wide characters and most emoji. */
static inline int holmes_utf8_columns(uint32_t c)
{
    if ((c >= 0x300 && c < 0x370) || (c >= 0x200b && c < 0x2010) || (c >= 0xfe00 && c < 0xfe10))
        return 0;
    if ((c >= 0x1100 && c < 0x1160) || (c >= 0x2e80 && c < 0xa4d0) || (c >= 0xac00 && c < 0xd7a4) ||
        (c >= 0xf900 && c < 0xfb00) || (c >= 0xfe30 && c < 0xfe70) || (c >= 0xff00 && c < 0xff61) ||
        (c >= 0x1f300 && c < 0x1f650) || (c >= 0x20000 && c < 0x40000))
        return 2;
    return 1;
}

#endif
