/* The list syntax of NCCL_SOCKET_IFNAME: [^][=]name[,name...]. */
#ifndef HOLMES_IFNAME_FILTER_H
#define HOLMES_IFNAME_FILTER_H

#include <stdbool.h>
#include <stddef.h>

#define IFNAME_FILTER_MAX 16 /* names in a list: NCCL's limit */

struct ifname_filter {
    bool exclude; /* leading '^' */
    bool exact;   /* leading '=' (after '^') */
    int n;        /* 0: no list was given */
    char names[IFNAME_FILTER_MAX][64];
};

/* NULL or "" is no list. Returns -EINVAL with a sentence about the syntax in `why`: a list without
 * a name, a modifier that is not in front, too many names. */
int ifname_filter_parse(const char *text, struct ifname_filter *out, char *why, size_t why_len);

/* Position in the list of the first name that `ifname` fits, or -1. */
int ifname_filter_match(const struct ifname_filter *f, const char *ifname);

#endif
