/* Host names as ranges: "a[0001-5000],b7" in Slurm's notation. */
#ifndef HOLMES_HOSTLIST_H
#define HOLMES_HOSTLIST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define HOLMES_HOSTS_MAX     250000 /* of one list */
#define HOLMES_HOST_NAME_MAX 256    /* with the final NUL */

/* prefix, number with at least `width` digits, suffix; `width` 0 with low == high == 0: the prefix
 * alone. */
struct holmes_host_range {
    char *prefix, *suffix;
    uint64_t low, high; /* both included */
    int width;
    int first; /* index in the list of its first host */
};

/* {0} is an empty list. */
struct holmes_hostlist {
    int nranges;
    struct holmes_host_range *ranges; /* of a list that grows: room for the next power of two */
    int nhosts;
};

/* "a[0001-0004,7]-ib,b1". Names are letters, digits, '.', '-', '_'; of several brackets in a name
 * the last runs fastest; a name may come once. -EINVAL with a sentence that names the part at
 * fault, -ENOMEM; *out is then untouched. */
int holmes_hostlist_parse(const char *text, struct holmes_hostlist *out, char *why, size_t why_len);
/* The i-th name into `buf` (HOLMES_HOST_NAME_MAX), which it returns. O(log ranges). */
const char *holmes_hostlist_name(const struct holmes_hostlist *l, int i, char *buf, size_t len);
/* Index of a name, or -1. O(ranges): whoever looks up many names makes an index (below). */
int holmes_hostlist_find(const struct holmes_hostlist *l, const char *name);
/* Hosts [first, first + n) as a list of their own. 0 or -ENOMEM. */
int holmes_hostlist_slice(const struct holmes_hostlist *l, int first, int n,
                          struct holmes_hostlist *out);
/* Adds the name at the end, to the last range where it continues that. Whether the list has it
 * already is not looked at. Amortised O(1). 0, -EINVAL (not a name, or the list is full), -ENOMEM.
 */
int holmes_hostlist_append(struct holmes_hostlist *l, const char *name);
/* The shortest text in order; the caller frees it. NULL: no memory. */
char *holmes_hostlist_text(const struct holmes_hostlist *l);
void holmes_hostlist_fini(struct holmes_hostlist *l);

/* Whether this can be a host's name: letters, digits, '.', '-', '_', the first no '-'. */
bool holmes_host_name_ok(const char *name, size_t len);

/* --- names of many lists, found in O(1) ------------------------------------------------------ */

struct holmes_hostindex;

/* 0 or -ENOMEM. */
int holmes_hostindex_create(struct holmes_hostindex **out);
/* Adds all names of `l`, which must live unchanged as long as the index; `tag` is the caller's
 * number for it. -EEXIST when a name is there already: *twice is then its index in `l` (and the
 * names before it have been added). -ENOMEM. */
int holmes_hostindex_add(struct holmes_hostindex *x, const struct holmes_hostlist *l, int tag,
                         int *twice);
/* Where the name is: its list's tag and its index there. 0 or -ENOENT. */
int holmes_hostindex_find(const struct holmes_hostindex *x, const char *name, int *tag, int *host);
void holmes_hostindex_destroy(struct holmes_hostindex *x);

#endif
