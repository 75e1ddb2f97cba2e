/* Numbers in files of people. */
#include "cluster/text.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int holmes_text_number(const char *text, double low, double high, double *out)
{
    char *end;

    if (strlen(text) > 40 || strspn(text, "0123456789.eE+-") != strlen(text) || text[0] == '-' ||
        text[0] == '+')
        return -EINVAL;

    double n = strtod(text, &end);

    if (end == text || *end || !(n >= low && n <= high))
        return -EINVAL;
    *out = n;
    return 0;
}

int holmes_text_whole(const char *text, int low, int high, int *out)
{
    size_t len = strlen(text);

    if (len == 0 || len > 18 || strspn(text, "0123456789") != len)
        return -EINVAL;

    long n = strtol(text, NULL, 10);

    if (n < low || n > high)
        return -EINVAL;
    *out = (int)n;
    return 0;
}

const char *holmes_number_text(double number, char *buf, size_t len)
{
    for (int digits = 6; digits <= 17; digits++) {
        snprintf(buf, len, "%.*g", digits, number);
        if (strtod(buf, NULL) == number)
            break;
    }
    return buf;
}
