/* Which fabric a host is in, by the user's word: --fabric ID=HOSTS, and the tops of a switch tree.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fabric_ids.h"
#include "tool/gather.h"

struct rule {
    char *id;
    struct holmes_hostlist hosts;
    bool met;
};

struct gather_ids {
    char *everywhere; /* of --fabric ID without hosts */
    int nrules;
    struct rule *rules;
    struct holmes_hostindex *by_host; /* tag: rule */
    struct holmes_switch_tree tree;
    struct holmes_hostindex *by_switch; /* tag: switch */
};

void gather_ids_destroy(struct gather_ids *ids)
{
    if (!ids)
        return;
    holmes_hostindex_destroy(ids->by_host);
    holmes_hostindex_destroy(ids->by_switch);
    for (int i = 0; i < ids->nrules; i++) {
        free(ids->rules[i].id);
        holmes_hostlist_fini(&ids->rules[i].hosts);
    }
    free(ids->rules);
    free(ids->everywhere);
    holmes_switch_tree_fini(&ids->tree);
    free(ids);
}

/* Ids of several --fabric may be equal: their hosts add up. */
static int rule_read(struct gather_ids *ids, const char *text, char *why, size_t why_len)
{
    const char *equals = strchr(text, '=');
    size_t len = equals ? (size_t)(equals - text) : strlen(text);
    struct rule *r = &ids->rules[ids->nrules];
    char say[300], name[HOLMES_HOST_NAME_MAX], id[HOLMES_RDMA_NAME_MAX];
    int rc, twice;

    if (fabric_word_copy(text, len, id) != 0) {
        snprintf(why, why_len,
                 "--fabric \"%.80s\": an id is letters, digits, '.', '-', '_', at most %d of them, "
                 "as in A=a[1-4]",
                 text, HOLMES_RDMA_NAME_MAX - 1);
        return -EINVAL;
    }
    if (!equals) {
        if (ids->everywhere) {
            snprintf(why, why_len, "--fabric %s: all hosts are \"%s\" already", text,
                     ids->everywhere);
            return -EINVAL;
        }
        ids->everywhere = strdup(text);
        return ids->everywhere ? 0 : -ENOMEM;
    }
    r->id = strndup(text, len);
    if (!r->id)
        return -ENOMEM;
    ids->nrules++;
    rc = holmes_hostlist_parse(equals + 1, &r->hosts, say, sizeof say);
    if (rc == -EINVAL)
        snprintf(why, why_len, "--fabric \"%.80s\": %s", text, say);
    if (rc != 0)
        return rc;
    rc = holmes_hostindex_add(ids->by_host, &r->hosts, ids->nrules - 1, &twice);
    if (rc == -EEXIST) {
        snprintf(why, why_len, "--fabric \"%.80s\": host %s is told twice", text,
                 holmes_hostlist_name(&r->hosts, twice, name, sizeof name));
        rc = -EINVAL;
    }
    return rc;
}

static int tree_read(struct gather_ids *ids, const char *path, char *why, size_t why_len)
{
    char word[HOLMES_RDMA_NAME_MAX];
    int twice, rc = holmes_switch_tree_read(path, &ids->tree, why, why_len);

    for (int i = 0; i < ids->tree.n && rc == 0; i++) {
        const char *id = ids->tree.switches[ids->tree.switches[i].top].name;

        rc = holmes_hostindex_add(ids->by_switch, &ids->tree.switches[i].nodes, i, &twice);
        if (rc == 0 && !ids->tree.blocks && fabric_word_copy(id, strlen(id), word) != 0) {
            snprintf(why, why_len,
                     "%s: switch \"%.60s\" at the top is too long for a fabric's id: at most %d "
                     "characters; give --fabric in its place",
                     path, id, HOLMES_RDMA_NAME_MAX - 1);
            rc = -EINVAL;
        }
    }
    return rc;
}

int gather_ids_create(const struct gather_options *o, struct gather_ids **out, char *why,
                      size_t why_len)
{
    struct gather_ids *ids;
    int rc = 0;

    *out = NULL;
    if (o->nfabrics == 0 && !o->topology)
        return 0;
    ids = calloc(1, sizeof *ids);
    if (!ids)
        return -ENOMEM;
    ids->rules = calloc((size_t)o->nfabrics + 1, sizeof *ids->rules);
    if (!ids->rules || holmes_hostindex_create(&ids->by_host) != 0 ||
        holmes_hostindex_create(&ids->by_switch) != 0)
        rc = -ENOMEM;
    for (int i = 0; i < o->nfabrics && rc == 0; i++)
        rc = rule_read(ids, o->fabrics[i], why, why_len);
    if (rc == 0 && o->topology)
        rc = tree_read(ids, o->topology, why, why_len);
    if (rc == 0)
        *out = ids;
    else
        gather_ids_destroy(ids);
    return rc;
}

const char *gather_ids_find(struct gather_ids *ids, const char *host)
{
    int tag, at;

    if (!ids)
        return NULL;
    if (holmes_hostindex_find(ids->by_host, host, &tag, &at) == 0) {
        ids->rules[tag].met = true;
        return ids->rules[tag].id;
    }
    if (holmes_hostindex_find(ids->by_switch, host, &tag, &at) == 0) {
        /* Blocks are parts of one network, whose name nobody tells. */
        return ids->tree.blocks ? "blocks" : ids->tree.switches[ids->tree.switches[tag].top].name;
    }
    return ids->everywhere;
}

const char *gather_ids_unused(const struct gather_ids *ids)
{
    for (int i = 0; ids && i < ids->nrules; i++)
        if (!ids->rules[i].met)
            return ids->rules[i].id;
    return NULL;
}
