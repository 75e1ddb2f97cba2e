/* The list syntax of NCCL_IB_HCA: [^][=]device[:port[:rail[:plane]]][,...]. */
#ifndef HOLMES_HCA_LIST_H
#define HOLMES_HCA_LIST_H

#include <stdbool.h>
#include <stddef.h>

#define HCA_LIST_MAX 32 /* entries: NCCL's limit */

struct hca_list {
    bool exclude; /* leading '^' */
    bool exact;   /* leading '=' (after '^') */
    bool rails;   /* rails or planes were given */
    int n;        /* 0: no list was given */
    struct hca_entry {
        char device[64]; /* by prefix unless exact */
        int port;        /* 0: any */
    } entries[HCA_LIST_MAX];
};

/* NULL or "" is no list. Returns -EINVAL with a sentence about the syntax in `why`: a list without
 * a name, a modifier that is not in front, a port that is none, too many entries. */
int hca_list_parse(const char *text, struct hca_list *out, char *why, size_t why_len);

/* Whether an entry fits, whatever the list does with those that fit. */
bool hca_list_fits(const struct hca_list *l, const char *device, int port);

#endif
