/* A plan document as JSON text. Containers get a line per element and what is plain stays on one
 * line, so that people can read it and a diff of two plans says something. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "plan.h"
#include "plan_fields.h"

/* --- layout ----------------------------------------------------------------------------------- */

#define SCALAR_FLAGS (JSON_ENCODE_ANY | JSON_REAL_PRECISION(15))

static bool is_container(const json_t *v)
{
    return json_is_object(v) || json_is_array(v);
}

/* Whether the value goes over several lines: lists do, and objects that hold containers. */
static bool is_tall(const json_t *v)
{
    const char *key;
    json_t *member;

    if (json_is_array(v))
        return json_array_size(v) > 0;
    json_object_foreach((json_t *)v, key, member) if (is_container(member)) return true;
    return false;
}

static void indent(FILE *out, int depth)
{
    fprintf(out, "\n%*s", 2 * depth, "");
}

static int layout(const json_t *v, FILE *out, int depth)
{
    const char *key;
    json_t *member;
    size_t i;
    int rc = 0;

    if (!is_container(v) || !is_tall(v))
        return json_dumpf(v, out, SCALAR_FLAGS) == 0 ? 0 : -EIO;
    fputc(json_is_array(v) ? '[' : '{', out);
    if (json_is_array(v)) {
        json_array_foreach((json_t *)v, i, member)
        {
            if (i > 0)
                fputc(',', out);
            indent(out, depth + 1);
            rc = rc ? rc : layout(member, out, depth + 1);
        }
    } else {
        i = 0;
        json_object_foreach((json_t *)v, key, member)
        {
            if (i++ > 0)
                fputc(',', out);
            indent(out, depth + 1);
            fprintf(out, "\"%s\": ", key); /* keys are our own */
            rc = rc ? rc : layout(member, out, depth + 1);
        }
    }
    indent(out, depth);
    fputc(json_is_array(v) ? ']' : '}', out);
    return rc;
}

/* --- the document -----------------------------------------------------------------------------
 * Each function takes over what it is given to add and says 0 or a negative errno. */

static int add(json_t *object, const char *key, json_t *value)
{
    return value && json_object_set_new(object, key, value) == 0 ? 0 : -ENOMEM;
}

/* A new object with the table's fields, at the end of `list`. */
static int append(json_t *list, const struct holmes_json_field *fields, const void *in,
                  json_t **object)
{
    *object = json_object();
    if (!*object || json_array_append_new(list, *object) != 0)
        return -ENOMEM;
    return holmes_json_fields_write(*object, fields, in);
}

/* An empty list, or object, as a member. NULL: no memory. */
static json_t *add_list(json_t *object, const char *key)
{
    json_t *list = json_array();

    return add(object, key, list) == 0 ? list : NULL;
}

static json_t *add_object(json_t *object, const char *key)
{
    json_t *member = json_object();

    return add(object, key, member) == 0 ? member : NULL;
}

static int add_texts(json_t *object, const char *key, char *const *texts, int n)
{
    json_t *list = add_list(object, key);

    for (int i = 0; list && i < n; i++)
        if (json_array_append_new(list, holmes_json_text(texts[i])) != 0)
            return -ENOMEM;
    return list ? 0 : -ENOMEM;
}

static int add_hosts(json_t *object, const struct holmes_hostlist *hosts, int first, int n)
{
    struct holmes_hostlist part;
    char *text;
    int rc = holmes_hostlist_slice(hosts, first, n, &part);

    if (rc != 0)
        return rc;
    text = holmes_hostlist_text(&part);
    rc = text ? add(object, "hosts", json_string(text)) : -ENOMEM;
    free(text);
    holmes_hostlist_fini(&part);
    return rc;
}

static int write_types(const struct holmes_cluster *c, json_t *list)
{
    json_t *type, *nics, *nic;
    int rc = list ? 0 : -ENOMEM;

    for (int i = 0; rc == 0 && i < c->ntypes; i++) {
        rc = append(list, holmes_type_fields, &c->types[i], &type);
        nics = rc == 0 ? add_list(type, "nics") : NULL;
        if (rc == 0 && !nics)
            rc = -ENOMEM;
        for (int k = 0; rc == 0 && k < c->types[i].nnics; k++)
            rc = append(nics, holmes_nic_fields, &c->types[i].nics[k], &nic);
    }
    return rc;
}

static int write_groups(const struct holmes_plan_doc *doc, json_t *list)
{
    const struct holmes_cluster *c = doc->cluster;
    int rc = list ? 0 : -ENOMEM;

    for (int i = 0; rc == 0 && i < c->ngroups; i++) {
        const struct holmes_node_group *g = &c->groups[i];
        int fabric = doc->fabrics->group_fabric[i]; /* -1: none, and none is told */
        json_t *group = json_object();

        if (!group || json_array_append_new(list, group) != 0)
            return -ENOMEM;
        rc = add_hosts(group, &g->hosts, 0, g->hosts.nhosts);
        if (rc == 0)
            rc = add(group, "type", holmes_json_text(c->types[g->type].name));
        if (rc == 0 && fabric >= 0)
            rc = add(group, "in", holmes_json_text(doc->fabrics->fabrics[fabric].name));
        if (rc == 0)
            rc = holmes_json_fields_write(group, holmes_group_fields, g);
    }
    return rc;
}

static int write_cluster(const struct holmes_plan_doc *doc, json_t *root)
{
    const struct holmes_cluster *c = doc->cluster;
    json_t *cluster = add_object(root, "cluster"), *list, *link;
    int rc = cluster ? 0 : -ENOMEM;

    if (rc == 0 && c->name)
        rc = add(cluster, "name", holmes_json_text(c->name));
    if (rc == 0)
        rc = write_types(c, add_list(cluster, "types"));
    if (rc == 0)
        rc = write_groups(doc, add_list(cluster, "groups"));
    if (rc != 0)
        return rc;
    list = add_list(cluster, "links");
    for (int i = 0; list && rc == 0 && i < c->nlinks; i++)
        rc = append(list, holmes_link_fields, &c->links[i], &link);
    return list ? rc : -ENOMEM;
}

static int write_fabrics(const struct holmes_fabrics *f, json_t *root)
{
    json_t *list = add_list(root, "fabrics"), *fabric;
    int rc = list ? 0 : -ENOMEM;

    for (int i = 0; rc == 0 && i < f->n; i++)
        rc = append(list, holmes_fabric_fields, &f->fabrics[i], &fabric);
    if (rc == 0 && f->nnotes > 0)
        rc = add_texts(root, "fabric_notes", f->notes, f->nnotes);
    return rc;
}

static int write_request(const struct holmes_plan_request *req, json_t *root)
{
    json_t *request = add_object(root, "request"), *model;
    int rc;

    if (!request || !(model = add_object(request, "model")))
        return -ENOMEM;
    rc = holmes_json_fields_write(model, holmes_gpt_fields, &req->model);
    return rc == 0 ? holmes_json_fields_write(request, holmes_request_fields, req) : rc;
}

/* Neighbours in rank order that are neighbours in their group, with as many GPUs: one entry. */
static int write_nodes(const struct holmes_plan_doc *doc, json_t *list)
{
    const struct holmes_plan *p = doc->plan;
    int rc = list ? 0 : -ENOMEM;

    for (int first = 0, n; rc == 0 && first < p->nnodes; first += n) {
        const struct holmes_plan_node *node = &p->nodes[first];
        json_t *run = json_object();

        for (n = 1; first + n < p->nnodes && node[n].group == node->group &&
                    node[n].host == node->host + n && node[n].gpus == node->gpus;)
            n++;
        if (!run || json_array_append_new(list, run) != 0)
            return -ENOMEM;
        rc = add_hosts(run, &doc->cluster->groups[node->group].hosts, node->host, n);
        if (rc == 0 && (add(run, "group", json_integer(node->group)) != 0 ||
                        add(run, "first_host", json_integer(node->host)) != 0 ||
                        add(run, "nhosts", json_integer(n)) != 0 ||
                        add(run, "gpus", json_integer(node->gpus)) != 0 ||
                        add(run, "first_rank", json_integer(node->first_rank)) != 0))
            rc = -ENOMEM;
    }
    return rc;
}

static int write_stages(const struct holmes_plan_doc *doc, json_t *list)
{
    const struct holmes_plan *p = doc->plan;
    json_t *stage;
    int rc = list ? 0 : -ENOMEM;

    for (int i = 0; rc == 0 && i < p->nstages; i++) {
        const char *fabric = doc->fabrics->fabrics[p->stages[i].fabric].name;

        rc = append(list, holmes_stage_fields, &p->stages[i], &stage);
        if (rc == 0)
            rc = add(stage, "fabric", holmes_json_text(fabric));
    }
    return rc;
}

static int write_lists(const struct holmes_plan_doc *doc, json_t *plan)
{
    const struct holmes_plan *p = doc->plan;
    json_t *list, *entry;
    int rc = write_nodes(doc, add_list(plan, "nodes"));

    if (rc == 0)
        rc = write_stages(doc, add_list(plan, "stages"));
    if (rc != 0 || !(list = add_list(plan, "edges")))
        return rc ? rc : -ENOMEM;
    for (int i = 0; rc == 0 && i < p->nedges; i++)
        rc = append(list, holmes_edge_fields, &p->edges[i], &entry);
    if (rc != 0 || !(list = add_list(plan, "idle")))
        return rc ? rc : -ENOMEM;
    for (int i = 0; rc == 0 && i < p->nidle; i++) {
        const struct holmes_plan_idle *idle = &p->idle[i];

        rc = append(list, holmes_idle_fields, idle, &entry);
        if (rc == 0)
            rc = add_hosts(entry, &doc->cluster->groups[idle->group].hosts, idle->first_host,
                           idle->nhosts);
    }
    return rc;
}

static int write_plan(const struct holmes_plan_doc *doc, json_t *root)
{
    const struct holmes_plan *p = doc->plan;
    json_t *plan = add_object(root, "plan"), *cost;
    int rc = plan ? holmes_json_fields_write(plan, holmes_plan_fields, p) : -ENOMEM;

    if (rc == 0)
        rc = write_lists(doc, plan);
    if (rc != 0 || !(cost = add_object(plan, "cost")))
        return rc ? rc : -ENOMEM;
    rc = holmes_json_fields_write(cost, holmes_cost_fields, &p->cost);
    if (rc == 0 && p->naive.step_s > 0) {
        cost = add_object(plan, "naive");
        rc = cost ? holmes_json_fields_write(cost, holmes_cost_fields, &p->naive) : -ENOMEM;
    }
    if (rc == 0)
        rc = add_texts(plan, "notes", p->notes, p->nnotes);
    return rc;
}

int holmes_plan_write(const struct holmes_plan_doc *doc, FILE *out)
{
    json_t *root = json_object();
    int rc = root ? add(root, "holmes-plan", json_integer(HOLMES_PLAN_DOC_VERSION)) : -ENOMEM;

    if (rc == 0)
        rc = write_request(&doc->request, root);
    if (rc == 0)
        rc = write_plan(doc, root);
    if (rc == 0)
        rc = write_fabrics(doc->fabrics, root);
    if (rc == 0)
        rc = write_cluster(doc, root);
    if (rc == 0)
        rc = layout(root, out, 0);
    json_decref(root);
    if (rc == 0)
        fputc('\n', out);
    return rc == 0 && (fflush(out) != 0 || ferror(out)) ? -EIO : rc;
}
