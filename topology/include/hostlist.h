/* Host names as ranges: "a[0001-5000],b7" in Slurm's notation. */
#ifndef HOLMES_HOSTLIST_H
#define HOLMES_HOSTLIST_H

#include <stddef.h>
#include <stdint.h>

#define HOLMES_HOSTS_MAX     1000000 /* of one list */
#define HOLMES_HOST_NAME_MAX 256

/* prefix, number with at least `width` digits, suffix; `width` 0 with low == high == 0: the prefix
 * alone. */
struct holmes_host_range {
    char *prefix, *suffix;
    uint64_t low, high; /* both included */
    int width;
};

struct holmes_hostlist {
    int nranges;
    struct holmes_host_range *ranges;
    int nhosts;
};

/* "a[0001-0004,7]-ib,b1". Names are letters, digits, '.', '-', '_'; one bracket per name; a name
 * may come once. -EINVAL with a sentence that names the part at fault, -ENOMEM. */
int holmes_hostlist_parse(const char *text, struct holmes_hostlist *out, char *why, size_t why_len);
/* The i-th name into `buf` (HOLMES_HOST_NAME_MAX), which it returns. */
const char *holmes_hostlist_name(const struct holmes_hostlist *l, int i, char *buf, size_t len);
/* Index of a name, or -1. */
int holmes_hostlist_find(const struct holmes_hostlist *l, const char *name);
/* Hosts [first, first + n) as a list of their own. 0 or -ENOMEM. */
int holmes_hostlist_slice(const struct holmes_hostlist *l, int first, int n,
                          struct holmes_hostlist *out);
/* Adds the name at the end, to the last range where it continues that. 0, -EINVAL, -ENOMEM. */
int holmes_hostlist_append(struct holmes_hostlist *l, const char *name);
/* The shortest text in order; the caller frees it. NULL: no memory. */
char *holmes_hostlist_text(const struct holmes_hostlist *l);
void holmes_hostlist_fini(struct holmes_hostlist *l);

#endif
