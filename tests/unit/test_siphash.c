#include <criterion/criterion.h>

#include "siphash.h"

/* Appendix A of the paper: key 00..0f, message 00..0e. */
Test(siphash, matches_the_vector_of_the_paper)
{
    uint8_t key[16], msg[15];

    for (uint8_t i = 0; i < 16; i++)
        key[i] = i;
    for (uint8_t i = 0; i < 15; i++)
        msg[i] = i;
    cr_assert_eq(holmes_siphash(key, msg, sizeof msg), 0xa129ca6149be45e5u);
    cr_assert_eq(holmes_siphash(key, msg, 0), 0x726fdb47dd0e0e31u);
}
