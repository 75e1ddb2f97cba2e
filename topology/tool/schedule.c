/* Rounds of disjoint pairs. */
#include "tool/schedule.h"

#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

static int schedule_init(struct holmes_schedule *s, int nrounds, int npairs)
{
    *s = (struct holmes_schedule){.nrounds = nrounds, .npairs = npairs};
    s->first = calloc((size_t)nrounds + 1, sizeof *s->first);
    s->pairs = calloc((size_t)npairs + 1, sizeof *s->pairs);
    if (s->first && s->pairs)
        return 0;
    holmes_schedule_fini(s);
    return -ENOMEM;
}

void holmes_schedule_fini(struct holmes_schedule *s)
{
    free(s->first);
    free(s->pairs);
    *s = (struct holmes_schedule){.nrounds = 0};
}

/* The last player stays, the others move round a circle by one seat a round; who sits opposite each
 * other play. With an odd number the last player is nobody. */
int holmes_schedule_all(int n, struct holmes_schedule *out)
{
    int even = n + n % 2, circle = even - 1, at = 0, rc;
    struct holmes_schedule s;

    if (n < 2)
        return schedule_init(out, 0, 0);
    rc = schedule_init(&s, circle, n * (n - 1) / 2);
    if (rc != 0)
        return rc;
    for (int r = 0; r < circle; r++) {
        s.first[r] = at;
        if (n == even)
            s.pairs[at++] = (struct holmes_pair){r, circle};
        for (int k = 1; k <= (even - 2) / 2; k++)
            s.pairs[at++] = (struct holmes_pair){(r + k) % circle, (r + circle - k) % circle};
    }
    s.first[circle] = at;
    *out = s;
    return 0;
}

/* --- given pairs ------------------------------------------------------------------------------ */

struct placed {
    struct holmes_pair pair;
    int order, round;
};

static int by_nodes(const void *x, const void *y)
{
    const struct placed *p = x, *q = y;

    if (p->pair.a != q->pair.a)
        return p->pair.a < q->pair.a ? -1 : 1;
    if (p->pair.b != q->pair.b)
        return p->pair.b < q->pair.b ? -1 : 1;
    return p->order < q->order ? -1 : p->order > q->order;
}

static int by_order(const void *x, const void *y)
{
    const struct placed *p = x, *q = y;

    return p->order < q->order ? -1 : p->order > q->order;
}

/* Leaves each pair once, in the order of the list. */
static int unique(struct placed *p, int n)
{
    int kept = 0;

    qsort(p, (size_t)n, sizeof *p, by_nodes);
    for (int i = 0; i < n; i++)
        if (kept == 0 || p[kept - 1].pair.a != p[i].pair.a || p[kept - 1].pair.b != p[i].pair.b)
            p[kept++] = p[i];
    qsort(p, (size_t)kept, sizeof *p, by_order);
    return kept;
}

/* A row of bits for each node: the rounds in which it is taken. */
static int place(struct placed *p, int npairs, int n, int *nrounds)
{
    size_t words = 1;
    uint64_t *taken;
    int *degree = calloc((size_t)n + 1, sizeof *degree), most = 0;

    if (!degree)
        return -ENOMEM;
    for (int i = 0; i < npairs; i++) {
        degree[p[i].pair.a]++;
        degree[p[i].pair.b]++;
    }
    for (int i = 0; i < n; i++)
        most = degree[i] > most ? degree[i] : most;
    free(degree);
    words = (size_t)(2 * most) / 64 + 1; /* the first free round is below the sum of both degrees */
    taken = calloc((size_t)n * words + 1, sizeof *taken);
    if (!taken)
        return -ENOMEM;
    *nrounds = 0;
    for (int i = 0; i < npairs; i++) {
        uint64_t *a = taken + (size_t)p[i].pair.a * words, *b = taken + (size_t)p[i].pair.b * words;
        size_t w = 0;
        int bit;

        while (~(a[w] | b[w]) == 0)
            w++;
        bit = __builtin_ctzll(~(a[w] | b[w]));
        a[w] |= UINT64_C(1) << bit;
        b[w] |= UINT64_C(1) << bit;
        p[i].round = (int)w * 64 + bit;
        *nrounds = p[i].round >= *nrounds ? p[i].round + 1 : *nrounds;
    }
    free(taken);
    return 0;
}

int holmes_schedule_pairs(int n, const struct holmes_pair *pairs, int npairs,
                          struct holmes_schedule *out)
{
    struct placed *p = calloc((size_t)npairs + 1, sizeof *p);
    int *next = NULL, nrounds, rc = -ENOMEM;
    struct holmes_schedule s;

    if (!p)
        return -ENOMEM;
    for (int i = 0; i < npairs; i++) {
        int a = pairs[i].a, b = pairs[i].b;

        if (a < 0 || b < 0 || a >= n || b >= n || a == b) {
            free(p);
            return -EINVAL;
        }
        p[i] = (struct placed){.pair = {a < b ? a : b, a < b ? b : a}, .order = i};
    }
    npairs = unique(p, npairs);
    rc = place(p, npairs, n, &nrounds);
    if (rc == 0)
        rc = schedule_init(&s, nrounds, npairs);
    if (rc != 0)
        goto out;
    for (int i = 0; i < npairs; i++)
        s.first[p[i].round + 1]++;
    for (int r = 0; r < nrounds; r++)
        s.first[r + 1] += s.first[r];
    next = calloc((size_t)nrounds + 1, sizeof *next);
    if (!next) {
        holmes_schedule_fini(&s);
        rc = -ENOMEM;
        goto out;
    }
    memcpy(next, s.first, (size_t)nrounds * sizeof *next);
    for (int i = 0; i < npairs; i++)
        s.pairs[next[p[i].round]++] = p[i].pair;
    *out = s;
out:
    free(next);
    free(p);
    return rc;
}

/* --- which pairs ------------------------------------------------------------------------------ */

struct pair_list {
    struct holmes_pair *pairs;
    int n, room;
};

static int add(struct pair_list *l, int a, int b)
{
    if (a == b)
        return 0;
    if (l->n == l->room) {
        int room = l->room ? 2 * l->room : 256;
        struct holmes_pair *grown = realloc(l->pairs, (size_t)room * sizeof *grown);

        if (!grown)
            return -ENOMEM;
        l->pairs = grown;
        l->room = room;
    }
    l->pairs[l->n++] = (struct holmes_pair){a, b};
    return 0;
}

/* The node of a rank: nodes are in rank order. */
static int node_of(const struct holmes_plan *p, int64_t rank)
{
    int low = 0, high = p->nnodes - 1;

    while (low < high) {
        int middle = low + (high - low + 1) / 2;

        if (p->nodes[middle].first_rank <= rank)
            low = middle;
        else
            high = middle - 1;
    }
    return low;
}

static int node_at(const struct holmes_plan *p, int stage, int replica)
{
    return node_of(p, (int64_t)p->tensor * (replica + (int64_t)p->data * stage));
}

static int add_step(const struct holmes_plan *p, struct pair_list *l)
{
    int rc = 0;

    for (int s = 0; s < p->pipeline; s++) {
        for (int r = 0; rc == 0 && r < p->data; r++) {
            int here = node_at(p, s, r);

            if (s + 1 < p->pipeline)
                rc = add(l, here, node_at(p, s + 1, r));
            if (rc == 0)
                rc = add(l, here, node_at(p, s, (r + 1) % p->data));
        }
    }
    return rc;
}

/* The first node of each fabric with the first of each other. */
static int add_fabrics(const struct holmes_plan_doc *doc, struct pair_list *l)
{
    int n = doc->fabrics->n, rc = 0, *first = malloc(((size_t)n + 1) * sizeof *first);

    if (!first)
        return -ENOMEM;
    for (int i = 0; i < n; i++)
        first[i] = -1;
    for (int i = 0; i < doc->plan->nnodes; i++) {
        int f = doc->fabrics->group_fabric[doc->plan->nodes[i].group];

        if (f >= 0 && f < n && first[f] < 0)
            first[f] = i;
    }
    for (int i = 0; i < n; i++)
        for (int k = i + 1; rc == 0 && k < n; k++)
            if (first[i] >= 0 && first[k] >= 0)
                rc = add(l, first[i], first[k]);
    free(first);
    return rc;
}

int holmes_schedule_sample(const struct holmes_plan_doc *doc, struct holmes_pair **out, int *npairs)
{
    struct pair_list l = {NULL, 0, 0};
    int rc = add_step(doc->plan, &l);

    if (rc == 0)
        rc = add_fabrics(doc, &l);
    if (rc != 0) {
        free(l.pairs);
        return rc;
    }
    *out = l.pairs;
    *npairs = l.n;
    return 0;
}

int holmes_schedule_ring(int n, struct holmes_pair **out, int *npairs)
{
    struct pair_list l = {NULL, 0, 0};
    int rc = 0;

    for (int i = 0; rc == 0 && i < n; i++) {
        rc = add(&l, i, (i + 1) % n);
        if (rc == 0)
            rc = add(&l, i, (i + n / 2) % n);
    }
    if (rc != 0) {
        free(l.pairs);
        return rc;
    }
    *out = l.pairs;
    *npairs = l.n;
    return 0;
}
