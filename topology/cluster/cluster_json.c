/* A cluster as JSON: the keys of the cluster file, so that the YAML reader reads it too. */
#include <errno.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "cluster.h"

/* Steals `value`; what is NULL is left out by the callers, so here it is lack of memory. */
static bool put(json_t *to, const char *key, json_t *value)
{
    return value && json_object_set_new(to, key, value) == 0;
}

static bool put_text(json_t *to, const char *key, const char *text)
{
    return !text || put(to, key, json_string(text));
}

static json_t *number(double n)
{
    return n == (double)(json_int_t)n ? json_integer((json_int_t)n) : json_real(n);
}

/* Of a number whose 0 means unknown. */
static bool put_known(json_t *to, const char *key, double n)
{
    return n == 0 || put(to, key, number(n));
}

/* Steals both. */
static bool add(json_t *list, json_t *value, bool whole)
{
    if (!value || !whole) {
        json_decref(value);
        return false;
    }
    return json_array_append_new(list, value) == 0;
}

static bool nics_put(json_t *list, const struct holmes_node_type *t)
{
    for (int i = 0; i < t->nnics; i++) {
        const struct holmes_cluster_nic *n = &t->nics[i];
        json_t *o = json_object();
        bool ok = put_text(o, "name", n->name) &&
                  put_text(o, "kind",
                           !n->rdma                            ? "ethernet"
                           : n->link == HOLMES_LINK_INFINIBAND ? "infiniband"
                                                               : "roce") &&
                  put_known(o, "gbps", n->gbps) && put_text(o, "prefix", n->prefix);

        if (ok && n->gids) {
            json_t *gids = json_array();
            char text[64], *save = NULL;

            snprintf(text, sizeof text, "%s", n->gids);
            for (char *w = strtok_r(text, ",", &save); w; w = strtok_r(NULL, ",", &save))
                json_array_append_new(gids, json_string(w));
            ok = put(o, "gids", gids);
        }
        ok = ok && put_text(o, "fabric", n->fabric) &&
             (n->numa < 0 || put(o, "numa", json_integer(n->numa)));
        if (!add(list, o, ok))
            return false;
    }
    return true;
}

static bool types_put(json_t *list, const struct holmes_cluster *c)
{
    for (int i = 0; i < c->ntypes; i++) {
        const struct holmes_node_type *t = &c->types[i];
        json_t *o = json_object(), *nics = json_array();
        bool ok = put_text(o, "name", t->name) && put(o, "gpus", json_integer(t->gpus)) &&
                  put_text(o, "gpu", t->gpu) && put_known(o, "tflops", t->tflops) &&
                  put_known(o, "memory-gib", t->memory_gib) &&
                  put_known(o, "intra-gbps", t->intra_gbps);

        ok = put(o, "nics", nics) && ok && nics_put(nics, t);
        if (!add(list, o, ok))
            return false;
    }
    return true;
}

static bool groups_put(json_t *list, const struct holmes_cluster *c)
{
    static const char *const states[] = {"ok", "idle", "defective"};

    for (int i = 0; i < c->ngroups; i++) {
        const struct holmes_node_group *g = &c->groups[i];
        char *hosts = holmes_hostlist_text(&g->hosts);
        json_t *o = json_object();
        bool ok = hosts && put_text(o, "hosts", hosts) &&
                  put_text(o, "type", c->types[g->type].name) && put_text(o, "fabric", g->fabric) &&
                  put_text(o, "state", states[g->state]) && put_text(o, "why", g->why) &&
                  put_known(o, "slots", g->slots);

        free(hosts);
        if (!add(list, o, ok))
            return false;
    }
    return true;
}

static bool links_put(json_t *list, const struct holmes_cluster *c)
{
    for (int i = 0; i < c->nlinks; i++) {
        const struct holmes_cluster_link *l = &c->links[i];
        json_t *o = json_object();
        bool ok = (!l->from || put(o, "between", json_pack("[ss]", l->from, l->to))) &&
                  put_known(o, "gbps", l->gbps) && put_known(o, "node-gbps", l->node_gbps) &&
                  put_known(o, "rtt-ms", l->rtt_ms);

        if (!add(list, o, ok))
            return false;
    }
    return true;
}

static bool probes_put(json_t *list, const struct holmes_cluster *c)
{
    for (int i = 0; i < c->nprobes; i++) {
        const struct holmes_cluster_probe *p = &c->probes[i];

        if (!add(list,
                 json_pack("{sssssb}", "from", p->from, "to", p->to, "reaches", (int)p->reaches),
                 true))
            return false;
    }
    return true;
}

int holmes_cluster_json(const struct holmes_cluster *c, FILE *out)
{
    static const struct {
        const char *key;
        bool (*fill)(json_t *list, const struct holmes_cluster *c);
    } parts[] = {{"node-types", types_put},
                 {"nodes", groups_put},
                 {"links", links_put},
                 {"probes", probes_put}};
    json_t *top = json_object();
    bool ok = put(top, "holmes-cluster", json_integer(HOLMES_CLUSTER_VERSION)) &&
              put_text(top, "name", c->name);
    int rc = 0;

    for (int i = 0; i < 4 && ok; i++) {
        json_t *list = json_array();

        ok = put(top, parts[i].key, list) && parts[i].fill(list, c);
    }
    if (!ok)
        rc = -ENOMEM;
    else if (json_dumpf(top, out, JSON_INDENT(2)) != 0 || fputc('\n', out) == EOF)
        rc = -EIO;
    json_decref(top);
    return rc;
}
