#include <criterion/criterion.h>
#include <string.h>

#include "crc32c.h"

/* RFC 3720, appendix B.4, and the check value of the CRC catalogue. */
Test(crc32c, matches_published_vectors)
{
    uint8_t bytes[32];

    cr_assert_eq(holmes_crc32c(0, "123456789", 9), 0xe3069283u);
    memset(bytes, 0, sizeof bytes);
    cr_assert_eq(holmes_crc32c(0, bytes, sizeof bytes), 0x8a9136aau);
    memset(bytes, 0xff, sizeof bytes);
    cr_assert_eq(holmes_crc32c(0, bytes, sizeof bytes), 0x62a8ab43u);
    for (uint8_t i = 0; i < 32; i++)
        bytes[i] = i;
    cr_assert_eq(holmes_crc32c(0, bytes, sizeof bytes), 0x46dd794eu);
    cr_assert_eq(holmes_crc32c(0, bytes, 0), 0);
}

Test(crc32c, of_parts_is_that_of_the_whole)
{
    const char text[] = "the footprints of a gigantic hound";

    for (size_t cut = 0; cut <= sizeof text; cut++)
        cr_expect_eq(holmes_crc32c(holmes_crc32c(0, text, cut), text + cut, sizeof text - cut),
                     holmes_crc32c(0, text, sizeof text), "cut at %zu", cut);
}
