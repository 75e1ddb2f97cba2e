/* Numbers in files of people, and the files. */
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

int holmes_file_read(const char *path, size_t max, char **out, size_t *len)
{
    FILE *f = strcmp(path, "-") == 0 ? stdin : fopen(path, "rbe");
    char *text = NULL;
    size_t n = 0, cap = 0;
    int rc = 0;

    if (!f)
        return -errno;
    do {
        if (n + 1 >= cap) {
            char *more = realloc(text, cap = cap > 0 ? 2 * cap : 1 << 16);

            if (!more) {
                rc = -ENOMEM;
                break;
            }
            text = more;
        }
        errno = 0;

        size_t got = fread(text + n, 1, cap - n - 1, f);

        n += got;
        if (n > max)
            rc = -EFBIG;
        else if (got == 0 && ferror(f))
            rc = errno ? -errno : -EIO;
        else if (got == 0)
            break;
    } while (rc == 0);
    if (f != stdin)
        fclose(f);
    if (rc != 0) {
        free(text);
        return rc;
    }
    text[n] = '\0';
    *out = text;
    *len = n;
    return 0;
}
