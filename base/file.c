/* Reads by doubling: what a pipe or /proc holds is not known before. */
#include "file.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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
