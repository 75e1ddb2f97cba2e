/* The grouping while it is made. Hosts are gathered in *atoms*, which are never parted: an entry
 * whose hosts the rules join, or one host of an entry whose hosts only probes can join. Atoms are
 * united (union-find) first by rules, then by probes. */
#ifndef HOLMES_FABRIC_PRIV_H
#define HOLMES_FABRIC_PRIV_H

#include "cluster.h"
#include "cluster/fabric_facts.h"

struct fabric_atom {
    int group;
    int host;    /* its only host; -1: all hosts of the group that have no atom of their own */
    int by_rule; /* the atom that stands for all that rules 1 to 3 joined */
    bool probed; /* a probe joined it to another */
};

/* One answer of a probe: host numbers are of the whole cluster, NICs of the type (-1: any). */
struct fabric_answer {
    int host[2], nic[2];
    int atom[2];
    bool reaches;
    int probe; /* index, for messages */
};

/* Two of fabric_root, the lower first, that a probe parts. */
struct fabric_apart {
    int low, high;
};

struct fabric_grouping {
    struct holmes_cluster *c;
    int ngroups; /* of c, before any is split */
    bool separate;
    char *why;
    size_t why_len;

    struct fabric_facts *facts; /* [ngroups] */
    int *first_host;            /* [ngroups + 1]: number of the group's first host */
    bool *as_entry;             /* [ngroups]: joined because it is one entry */

    int natoms;
    struct fabric_atom *atoms;
    int *parent;     /* [natoms] */
    int *group_atom; /* [ngroups]: atom of the hosts without their own, or -1 */
    int *host_atom;  /* [hosts], or NULL: no host has its own; -1: the group's */

    int nanswers;
    struct fabric_answer *answers;
    int naparts;
    struct fabric_apart *aparts; /* sorted */

    int nnotes;
    char **notes;
};

int fabric_fail(struct fabric_grouping *g, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));
/* The same for what stands in a line of the file; 0: in none. */
int fabric_fail_at(struct fabric_grouping *g, int line, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
/* Keeps a sentence for people; lack of memory only loses it. Beyond a few dozen they are counted.
 */
void fabric_note(struct fabric_grouping *g, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));

bool fabric_notes_full(const struct fabric_grouping *g);

int fabric_root(struct fabric_grouping *g, int atom);
/* The one of the lower number stands for both. */
void fabric_join(struct fabric_grouping *g, int a, int b);
int fabric_host_atom(const struct fabric_grouping *g, int group, int host);
/* The hosts of an atom, or of all that is joined to it, as text that is cut where it is long; into
 * `buf`, which it returns. */
const char *fabric_hosts_text(struct fabric_grouping *g, int atom, bool joined, char *buf,
                              size_t len);

/* Reads the cluster's probes into answers, one per pair of endpoints. */
int fabric_probes_read(struct fabric_grouping *g);
/* Joins by the answers what rules leave open, and refuses those that contradict. */
int fabric_probes_apply(struct fabric_grouping *g);
/* Lists what probes part, once nothing more is joined. */
int fabric_probes_part(struct fabric_grouping *g);
/* Whether a probe said that these two, both of fabric_root, do not reach each other. */
bool fabric_probe_parts(const struct fabric_grouping *g, int root_a, int root_b);

/* Splits groups and makes the result. */
int fabric_build(struct fabric_grouping *g, struct holmes_fabrics **out);

#endif
