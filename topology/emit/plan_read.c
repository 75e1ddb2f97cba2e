/* A plan document from JSON text. Every number is checked where it stands, then the plan as a whole
 * (plan_check.c); what fails leaves nothing behind. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "plan.h"
#include "plan_check.h"
#include "plan_fields.h"

#define NAMES_MAX 4096 /* of types, of fabrics: looked through for each reference */
#define FILE_MAX  ((size_t)256 << 20)

/* Room for the elements of a list, zeroed; NULL: no memory. */
static void *room(const json_t *list, size_t size)
{
    return calloc(json_array_size(list) + 1, size);
}

/* The texts of an optional list. */
static int read_texts(struct holmes_json_reader *r, const json_t *object, const char *key,
                      char ***out, int *n)
{
    const json_t *list;
    size_t mark;

    if (!json_object_get(object, key))
        return 0;
    list = holmes_json_need(r, object, key, JSON_ARRAY);
    if (!list)
        return -EINVAL;
    if (!(*out = room(list, sizeof **out)))
        return -ENOMEM;
    for (size_t i = 0; i < json_array_size(list); i++) {
        const char *text;

        mark = holmes_json_enter(r, ".%s[%zu]", key, i);
        text = holmes_json_need_text(r, json_array_get(list, i));
        if (!text)
            return -EINVAL;
        if (!((*out)[*n] = strdup(text)))
            return -ENOMEM;
        ++*n;
        holmes_json_leave(r, mark);
    }
    return 0;
}

/* The member `key` as one of n names, each at `stride` bytes from the last. */
static int read_name(struct holmes_json_reader *r, const json_t *object, const char *key,
                     const char *what, char *const *names, size_t stride, int n, int *out)
{
    size_t mark = holmes_json_enter(r, ".%s", key);
    const json_t *member = json_object_get(object, key);
    const char *text;

    if (!member)
        return holmes_json_refuse(r, " is missing: the name of a %s is right", what);
    text = holmes_json_need_text(r, member);
    if (!text)
        return -EINVAL;
    for (int i = 0; i < n; i++) {
        if (strcmp(*(char *const *)((const char *)names + (size_t)i * stride), text) == 0) {
            *out = i;
            holmes_json_leave(r, mark);
            return 0;
        }
    }
    return holmes_json_refuse(r, " is \"%.60s\": there is no %s of that name", text, what);
}

static int read_fabrics(struct holmes_json_reader *r, const json_t *root, struct holmes_fabrics *f)
{
    const json_t *list = holmes_json_need(r, root, "fabrics", JSON_ARRAY);
    int rc = 0;

    if (!list)
        return -EINVAL;
    if (json_array_size(list) > NAMES_MAX)
        return holmes_json_refuse(r, ".fabrics has %zu entries: %d are the most",
                                  json_array_size(list), NAMES_MAX);
    if (!(f->fabrics = room(list, sizeof *f->fabrics)))
        return -ENOMEM;
    for (size_t i = 0; rc == 0 && i < json_array_size(list); i++) {
        size_t mark = holmes_json_enter(r, ".fabrics[%zu]", i);

        f->n++;
        rc = holmes_json_fields_read(r, json_array_get(list, i), holmes_fabric_fields, NULL,
                                     &f->fabrics[i]);
        for (size_t k = 0; rc == 0 && k < i; k++)
            if (strcmp(f->fabrics[k].name, f->fabrics[i].name) == 0)
                rc = holmes_json_refuse(r, ".name is \"%.60s\", as that of fabrics[%zu]",
                                        f->fabrics[i].name, k);
        if (rc == 0)
            holmes_json_leave(r, mark);
    }
    return rc ? rc : read_texts(r, root, "fabric_notes", &f->notes, &f->nnotes);
}

static int read_nics(struct holmes_json_reader *r, const json_t *object,
                     struct holmes_node_type *type)
{
    const json_t *list = holmes_json_need(r, object, "nics", JSON_ARRAY);
    int rc = 0;

    if (!list)
        return -EINVAL;
    if (!(type->nics = room(list, sizeof *type->nics)))
        return -ENOMEM;
    for (size_t i = 0; rc == 0 && i < json_array_size(list); i++) {
        size_t mark = holmes_json_enter(r, ".nics[%zu]", i);

        type->nnics++;
        rc = holmes_json_fields_read(r, json_array_get(list, i), holmes_nic_fields, NULL,
                                     &type->nics[i]);
        if (rc == 0)
            holmes_json_leave(r, mark);
    }
    return rc;
}

static int read_types(struct holmes_json_reader *r, const json_t *cluster, struct holmes_cluster *c)
{
    static const char *const others[] = {"nics", NULL};
    const json_t *list = holmes_json_need(r, cluster, "types", JSON_ARRAY);
    int rc = 0;

    if (!list)
        return -EINVAL;
    if (json_array_size(list) > NAMES_MAX)
        return holmes_json_refuse(r, ".types has %zu entries: %d are the most",
                                  json_array_size(list), NAMES_MAX);
    if (!(c->types = room(list, sizeof *c->types)))
        return -ENOMEM;
    for (size_t i = 0; rc == 0 && i < json_array_size(list); i++) {
        size_t mark = holmes_json_enter(r, ".types[%zu]", i);
        const json_t *type = json_array_get(list, i);

        c->ntypes++;
        rc = holmes_json_fields_read(r, type, holmes_type_fields, others, &c->types[i]);
        for (size_t k = 0; rc == 0 && k < i; k++)
            if (strcmp(c->types[k].name, c->types[i].name) == 0)
                rc = holmes_json_refuse(r, ".name is \"%.60s\", as that of types[%zu]",
                                        c->types[i].name, k);
        if (rc == 0)
            rc = read_nics(r, type, &c->types[i]);
        if (rc == 0)
            holmes_json_leave(r, mark);
    }
    return rc;
}

static int read_hosts(struct holmes_json_reader *r, const json_t *group,
                      struct holmes_hostlist *out)
{
    size_t mark = holmes_json_enter(r, ".hosts");
    const json_t *member = json_object_get(group, "hosts");
    const char *text;
    char what[256];
    int rc;

    if (!member)
        return holmes_json_refuse(r, " is missing: host names as in \"a[0001-0004],b7\" are right");
    text = holmes_json_need_text(r, member);
    if (!text)
        return -EINVAL;
    rc = holmes_hostlist_parse(text, out, what, sizeof what);
    if (rc == -EINVAL)
        return holmes_json_refuse(r, ": %s", what);
    if (rc == 0)
        holmes_json_leave(r, mark);
    return rc;
}

static int read_groups(struct holmes_json_reader *r, const json_t *cluster,
                       struct holmes_cluster *c, struct holmes_fabrics *f)
{
    static const char *const others[] = {"hosts", "type", "in", NULL};
    const json_t *list = holmes_json_need(r, cluster, "groups", JSON_ARRAY);
    int rc = 0, hosts = 0;

    if (!list)
        return -EINVAL;
    c->groups = room(list, sizeof *c->groups);
    f->group_fabric = room(list, sizeof *f->group_fabric);
    if (!c->groups || !f->group_fabric)
        return -ENOMEM;
    for (size_t i = 0; rc == 0 && i < json_array_size(list); i++) {
        struct holmes_node_group *g = &c->groups[i];
        const json_t *group = json_array_get(list, i);
        size_t mark = holmes_json_enter(r, ".groups[%zu]", i);

        c->ngroups++;
        rc = holmes_json_fields_read(r, group, holmes_group_fields, others, g);
        if (rc == 0)
            rc = read_hosts(r, group, &g->hosts);
        if (rc == 0 && g->hosts.nhosts > HOLMES_HOSTS_MAX - hosts)
            rc = holmes_json_refuse(r, ".hosts: more than %d hosts in all", HOLMES_HOSTS_MAX);
        if (rc == 0)
            rc = read_name(r, group, "type", "node type", &c->types[0].name, sizeof c->types[0],
                           c->ntypes, &g->type);
        f->group_fabric[i] = -1; /* not placed: see cluster.h */
        if (rc == 0 && json_object_get(group, "in"))
            rc = read_name(r, group, "in", "fabric", &f->fabrics[0].name, sizeof f->fabrics[0],
                           f->n, &f->group_fabric[i]);
        if (rc == 0)
            holmes_json_leave(r, mark);
        hosts += g->hosts.nhosts;
    }
    return rc;
}

static int check_hosts_differ(const struct holmes_cluster *c, struct holmes_json_reader *r)
{
    struct holmes_hostindex *index = NULL;
    char name[HOLMES_HOST_NAME_MAX];
    int twice, rc = holmes_hostindex_create(&index);

    for (int i = 0; rc == 0 && i < c->ngroups; i++) {
        rc = holmes_hostindex_add(index, &c->groups[i].hosts, i, &twice);
        if (rc == -EEXIST) {
            holmes_hostlist_name(&c->groups[i].hosts, twice, name, sizeof name);
            rc = holmes_json_refuse(r, ".groups[%d] has the host %s, which is there already", i,
                                    name);
        }
    }
    holmes_hostindex_destroy(index);
    return rc;
}

static int read_cluster(struct holmes_json_reader *r, const json_t *root,
                        struct holmes_plan_doc *doc)
{
    static const struct holmes_json_field fields[] = {
        {"name", HOLMES_JSON_TEXT, offsetof(struct holmes_cluster, name), 0, 0, true, NULL}, {0}};
    static const char *const others[] = {"types", "groups", "links", NULL};
    struct holmes_cluster *c = doc->cluster;
    const json_t *cluster = holmes_json_need(r, root, "cluster", JSON_OBJECT), *list;
    size_t top = holmes_json_enter(r, ".cluster");
    int rc;

    if (!cluster)
        return -EINVAL;
    rc = holmes_json_fields_read(r, cluster, fields, others, c);
    if (rc == 0)
        rc = read_types(r, cluster, c);
    if (rc == 0)
        rc = read_groups(r, cluster, c, doc->fabrics);
    if (rc == 0)
        rc = check_hosts_differ(c, r);
    if (rc != 0)
        return rc;
    list = holmes_json_need(r, cluster, "links", JSON_ARRAY);
    if (!list)
        return -EINVAL;
    if (!(c->links = room(list, sizeof *c->links)))
        return -ENOMEM;
    for (size_t i = 0; rc == 0 && i < json_array_size(list); i++) {
        size_t mark = holmes_json_enter(r, ".links[%zu]", i);

        c->nlinks++;
        rc = holmes_json_fields_read(r, json_array_get(list, i), holmes_link_fields, NULL,
                                     &c->links[i]);
        if (rc == 0)
            holmes_json_leave(r, mark);
    }
    if (rc == 0)
        holmes_json_leave(r, top);
    return rc;
}

static int read_request(struct holmes_json_reader *r, const json_t *root,
                        struct holmes_plan_request *req)
{
    static const char *const others[] = {"model", NULL};
    const json_t *request = holmes_json_need(r, root, "request", JSON_OBJECT), *model;
    size_t top = holmes_json_enter(r, ".request"), mark;
    int rc;

    if (!request)
        return -EINVAL;
    rc = holmes_json_fields_read(r, request, holmes_request_fields, others, req);
    if (rc != 0)
        return rc;
    model = holmes_json_need(r, request, "model", JSON_OBJECT);
    if (!model)
        return -EINVAL;
    mark = holmes_json_enter(r, ".model");
    rc = holmes_json_fields_read(r, model, holmes_gpt_fields, NULL, &req->model);
    if (rc == 0) {
        holmes_json_leave(r, mark);
        holmes_json_leave(r, top);
    }
    return rc;
}

/* A run of hosts of a group, as "nodes" and "idle" have them. `hosts` is there for people, but must
 * agree. */
static int check_run(struct holmes_json_reader *r, const struct holmes_cluster *c,
                     const json_t *object, int group, int first, int n)
{
    const char *told = json_string_value(json_object_get(object, "hosts"));
    struct holmes_hostlist part;
    char *text;
    int rc;

    if (group >= c->ngroups)
        return holmes_json_refuse(r, ".group is %d, but there are %d groups", group, c->ngroups);
    if (first >= c->groups[group].hosts.nhosts || n > c->groups[group].hosts.nhosts - first)
        return holmes_json_refuse(r, ": hosts %d to %d of a group of %d", first, first + n - 1,
                                  c->groups[group].hosts.nhosts);
    rc = holmes_hostlist_slice(&c->groups[group].hosts, first, n, &part);
    if (rc != 0)
        return rc;
    text = holmes_hostlist_text(&part);
    holmes_hostlist_fini(&part);
    if (!text)
        return -ENOMEM;
    if (!told || strcmp(told, text) != 0)
        rc = holmes_json_refuse(r, ".hosts is %s%.60s%s, but first_host and nhosts say \"%.60s\"",
                                told ? "\"" : "", told ? told : "missing", told ? "\"" : "", text);
    free(text);
    return rc;
}

struct run {
    int group, first_host, nhosts, gpus;
    int64_t first_rank;
};

static int read_run(struct holmes_json_reader *r, const struct holmes_cluster *c,
                    const json_t *object, struct run *run)
{
#define RUN(field, low, high)                                                                      \
    {                                                                                              \
#field, HOLMES_JSON_INT, offsetof(struct run, field), low, high, false, NULL               \
    }
    static const struct holmes_json_field fields[] = {
        RUN(group, 0, HOLMES_HOSTS_MAX),
        RUN(first_host, 0, HOLMES_HOSTS_MAX),
        RUN(nhosts, 1, HOLMES_HOSTS_MAX),
        RUN(gpus, 1, HOLMES_PLAN_GPUS_MAX),
        {"first_rank", HOLMES_JSON_I64, offsetof(struct run, first_rank), 0, 1e15, false, NULL},
        {0},
    };
    static const char *const others[] = {"hosts", NULL};
    int rc = holmes_json_fields_read(r, object, fields, others, run);

    return rc ? rc : check_run(r, c, object, run->group, run->first_host, run->nhosts);
}

static int read_nodes(struct holmes_json_reader *r, const json_t *plan, struct holmes_plan_doc *doc)
{
    const json_t *list = holmes_json_need(r, plan, "nodes", JSON_ARRAY);
    struct holmes_plan *p = doc->plan;
    struct holmes_plan_node *grown;
    int capacity = 0;

    if (!list)
        return -EINVAL;
    for (size_t i = 0; i < json_array_size(list); i++) {
        size_t mark = holmes_json_enter(r, ".nodes[%zu]", i);
        struct run run = {0};
        int rc = read_run(r, doc->cluster, json_array_get(list, i), &run);

        if (rc != 0)
            return rc;
        if (run.nhosts > HOLMES_HOSTS_MAX - p->nnodes)
            return holmes_json_refuse(r, ": more than %d nodes in all", HOLMES_HOSTS_MAX);
        if (p->nnodes + run.nhosts > capacity) {
            capacity = 2 * (p->nnodes + run.nhosts);
            grown = realloc(p->nodes, (size_t)capacity * sizeof *grown);
            if (!grown)
                return -ENOMEM;
            p->nodes = grown;
        }
        for (int k = 0; k < run.nhosts; k++)
            p->nodes[p->nnodes++] = (struct holmes_plan_node){
                run.group, run.first_host + k, run.gpus, run.first_rank + (int64_t)k * run.gpus};
        holmes_json_leave(r, mark);
    }
    if (p->nnodes == 0)
        return holmes_json_refuse(r, ".nodes is empty");
    return 0;
}

static int read_stages(struct holmes_json_reader *r, const json_t *plan,
                       struct holmes_plan_doc *doc)
{
    static const char *const others[] = {"fabric", NULL};
    const json_t *list = holmes_json_need(r, plan, "stages", JSON_ARRAY);
    const struct holmes_fabrics *f = doc->fabrics;
    struct holmes_plan *p = doc->plan;
    int rc = 0;

    if (!list)
        return -EINVAL;
    if (!(p->stages = room(list, sizeof *p->stages)))
        return -ENOMEM;
    for (size_t i = 0; rc == 0 && i < json_array_size(list); i++) {
        size_t mark = holmes_json_enter(r, ".stages[%zu]", i);
        const json_t *stage = json_array_get(list, i);

        rc = holmes_json_fields_read(r, stage, holmes_stage_fields, others, &p->stages[i]);
        if (rc == 0)
            rc = read_name(r, stage, "fabric", "fabric", &f->fabrics[0].name, sizeof f->fabrics[0],
                           f->n, &p->stages[i].fabric);
        if (rc == 0)
            holmes_json_leave(r, mark);
        p->nstages++;
    }
    return rc;
}

static int read_edges(struct holmes_json_reader *r, const json_t *plan, struct holmes_plan *p)
{
    const json_t *list = holmes_json_need(r, plan, "edges", JSON_ARRAY);
    int rc = 0;

    if (!list)
        return -EINVAL;
    if (!(p->edges = room(list, sizeof *p->edges)))
        return -ENOMEM;
    for (size_t i = 0; rc == 0 && i < json_array_size(list); i++) {
        size_t mark = holmes_json_enter(r, ".edges[%zu]", i);

        rc = holmes_json_fields_read(r, json_array_get(list, i), holmes_edge_fields, NULL,
                                     &p->edges[i]);
        if (rc == 0)
            holmes_json_leave(r, mark);
        p->nedges++;
    }
    return rc;
}

static int read_idle(struct holmes_json_reader *r, const json_t *plan, struct holmes_plan_doc *doc)
{
    static const char *const others[] = {"hosts", NULL};
    const json_t *list = holmes_json_need(r, plan, "idle", JSON_ARRAY);
    struct holmes_plan *p = doc->plan;
    int rc = 0;

    if (!list)
        return -EINVAL;
    if (!(p->idle = room(list, sizeof *p->idle)))
        return -ENOMEM;
    for (size_t i = 0; rc == 0 && i < json_array_size(list); i++) {
        size_t mark = holmes_json_enter(r, ".idle[%zu]", i);
        const json_t *idle = json_array_get(list, i);

        p->nidle++;
        rc = holmes_json_fields_read(r, idle, holmes_idle_fields, others, &p->idle[i]);
        if (rc == 0)
            rc = check_run(r, doc->cluster, idle, p->idle[i].group, p->idle[i].first_host,
                           p->idle[i].nhosts);
        if (rc == 0)
            holmes_json_leave(r, mark);
    }
    return rc;
}

static int read_cost(struct holmes_json_reader *r, const json_t *plan, const char *key,
                     struct holmes_plan_cost *out)
{
    const json_t *cost = holmes_json_need(r, plan, key, JSON_OBJECT);
    size_t mark = holmes_json_enter(r, ".%s", key);
    int rc = cost ? holmes_json_fields_read(r, cost, holmes_cost_fields, NULL, out) : -EINVAL;

    if (rc == 0)
        holmes_json_leave(r, mark);
    return rc;
}

static int read_plan(struct holmes_json_reader *r, const json_t *root, struct holmes_plan_doc *doc)
{
    static const char *const others[] = {"nodes", "stages", "edges", "idle",
                                         "cost",  "naive",  "notes", NULL};
    const json_t *plan = holmes_json_need(r, root, "plan", JSON_OBJECT);
    struct holmes_plan *p = doc->plan;
    int rc;

    holmes_json_enter(r, ".plan");
    if (!plan)
        return -EINVAL;
    rc = holmes_json_fields_read(r, plan, holmes_plan_fields, others, p);
    if (rc == 0)
        rc = read_nodes(r, plan, doc);
    if (rc == 0)
        rc = read_stages(r, plan, doc);
    if (rc == 0)
        rc = read_edges(r, plan, p);
    if (rc == 0)
        rc = read_idle(r, plan, doc);
    if (rc == 0)
        rc = read_cost(r, plan, "cost", &p->cost);
    if (rc == 0 && json_object_get(plan, "naive"))
        rc = read_cost(r, plan, "naive", &p->naive);
    if (rc == 0)
        rc = read_texts(r, plan, "notes", &p->notes, &p->nnotes);
    return rc ? rc : holmes_plan_check(doc, r);
}

static int read_document(struct holmes_json_reader *r, const json_t *root,
                         struct holmes_plan_doc *doc)
{
    static const struct holmes_json_field none[] = {{0}};
    static const char *const others[] = {"holmes-plan",  "request", "plan", "fabrics",
                                         "fabric_notes", "cluster", NULL};
    const json_t *version = json_object_get(root, "holmes-plan");
    int rc;

    if (!json_is_integer(version))
        return holmes_json_refuse(r,
                                  "no \"holmes-plan\": %d in it: this is no plan of "
                                  "holmes-topo plan",
                                  HOLMES_PLAN_DOC_VERSION);
    if (json_integer_value(version) != HOLMES_PLAN_DOC_VERSION)
        return holmes_json_refuse(r,
                                  "version %lld of the format: this holmes-topo reads version "
                                  "%d",
                                  (long long)json_integer_value(version), HOLMES_PLAN_DOC_VERSION);
    doc->cluster = calloc(1, sizeof *doc->cluster);
    doc->fabrics = calloc(1, sizeof *doc->fabrics);
    doc->plan = calloc(1, sizeof *doc->plan);
    if (!doc->cluster || !doc->fabrics || !doc->plan)
        return -ENOMEM;
    rc = holmes_json_fields_read(r, root, none, others, doc);
    if (rc == 0)
        rc = read_fabrics(r, root, doc->fabrics);
    if (rc == 0)
        rc = read_cluster(r, root, doc);
    if (rc == 0)
        rc = read_request(r, root, &doc->request);
    return rc ? rc : read_plan(r, root, doc);
}

int holmes_plan_parse(const char *name, const void *data, size_t len, struct holmes_plan_doc *out,
                      char *why, size_t why_len)
{
    struct holmes_json_reader r = {.file = name, .why = why, .why_len = why_len};
    struct holmes_plan_doc doc = {0};
    json_error_t error;
    json_t *root = json_loadb(data, len, JSON_REJECT_DUPLICATES, &error);
    int rc;

    if (!root) {
        snprintf(why, why_len, "%s: line %d, column %d: %s", name, error.line, error.column,
                 error.text);
        return json_error_code(&error) == json_error_out_of_memory ? -ENOMEM : -EINVAL;
    }
    rc = read_document(&r, root, &doc);
    json_decref(root);
    if (rc == -ENOMEM)
        snprintf(why, why_len, "%s: out of memory", name);
    if (rc != 0)
        holmes_plan_doc_fini(&doc);
    else
        *out = doc;
    return rc;
}

/* The whole file, malloc()ed. */
static int read_file(int fd, char **data, size_t *len)
{
    size_t room_len = 0;

    for (ssize_t n = 1; n > 0;) {
        if (*len == room_len) {
            char *grown;

            room_len = room_len ? 2 * room_len : 1 << 16;
            if (room_len > 2 * FILE_MAX)
                return -EFBIG;
            if (!(grown = realloc(*data, room_len)))
                return -ENOMEM;
            *data = grown;
        }
        n = read(fd, *data + *len, room_len - *len);
        if (n < 0 && errno == EINTR)
            n = 1;
        else if (n < 0)
            return -errno;
        else
            *len += (size_t)n;
    }
    return 0;
}

int holmes_plan_read(const char *path, struct holmes_plan_doc *out, char *why, size_t why_len)
{
    char *data = NULL;
    size_t len = 0;
    int fd = open(path, O_RDONLY | O_CLOEXEC), rc = fd < 0 ? -errno : read_file(fd, &data, &len);

    if (fd >= 0)
        close(fd);
    if (rc != 0)
        snprintf(why, why_len, "%s: %s", path, strerror(-rc));
    else
        rc = holmes_plan_parse(path, data, len, out, why, why_len);
    free(data);
    return rc;
}

void holmes_plan_doc_fini(struct holmes_plan_doc *doc)
{
    holmes_cluster_destroy(doc->cluster);
    holmes_fabrics_destroy(doc->fabrics);
    holmes_plan_destroy(doc->plan);
    *doc = (struct holmes_plan_doc){0};
}
