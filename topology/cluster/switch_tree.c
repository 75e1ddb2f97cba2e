/* Slurm's topology.conf: which switch each node hangs on, and which switches hang together. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "cluster/conf_line.h"
#include "file.h"
#include "hostfile.h"
#include "near_name.h"

#define FILE_SIZE_MAX (64u << 20)
#define SWITCHES_MAX  200000

/* What a line says besides its nodes. */
struct entry {
    struct holmes_hostlist below; /* switches */
};

struct reader {
    struct conf_lines lines;
    struct holmes_switch_tree tree;
    struct entry *entries; /* [tree.n]; room of both for the next power of two */
};

/* --- lines ----------------------------------------------------------------------------------- */

struct fields {
    char *switch_name, *block_name, *switches, *nodes;
    bool passed_over;
};

static int fields_read(const struct reader *r, char *text, struct fields *f)
{
    static const char *const known[] = {"SwitchName", "Switches",   "Nodes", "LinkSpeed",
                                        "BlockName",  "BlockSizes", NULL};
    char **const places[] = {&f->switch_name, &f->switches, &f->nodes, NULL, &f->block_name, NULL};
    char *save = NULL;

    for (char *w = strtok_r(text, " \t\r", &save); w; w = strtok_r(NULL, " \t\r", &save)) {
        char *value = strchr(w, '=');
        int k = 0;

        if (!value)
            return conf_lines_fail(&r->lines, "\"%.40s\" is not understood: KEY=VALUE is expected",
                                   w);
        *value++ = '\0';
        while (known[k] && strcasecmp(w, known[k]) != 0)
            k++;
        if (!known[k]) {
            const char *near = holmes_near_name(w, known);

            return conf_lines_fail(&r->lines, "there is no key \"%.40s\"; %s%s", w,
                                   near ? "did you mean "
                                        : "there are: SwitchName, Switches, Nodes, "
                                          "LinkSpeed, BlockName, BlockSizes",
                                   near ? near : "");
        }
        if (!*value)
            return conf_lines_fail(&r->lines, "%s: nothing is given", known[k]);
        if (places[k] && *places[k])
            return conf_lines_fail(&r->lines, "%s: told twice in one line", known[k]);
        if (places[k])
            *places[k] = value;
        else
            f->passed_over = true;
    }
    return 0;
}

static int list_read(const struct reader *r, const char *field, const char *text,
                     struct holmes_hostlist *out)
{
    char say[300];
    int rc;

    if (strcasecmp(text, "ALL") == 0)
        return conf_lines_fail(&r->lines, "%s: ALL names no hosts; list them", field);
    rc = holmes_hostlist_parse(text, out, say, sizeof say);
    return rc == -EINVAL ? conf_lines_fail(&r->lines, "%s: %s", field, say) : rc;
}

static int room(struct reader *r)
{
    int n = r->tree.n;
    size_t cap = n > 0 ? 2 * (size_t)n : 1;
    void *more;

    if (n >= SWITCHES_MAX)
        return conf_lines_fail(&r->lines, "more than %d switches", SWITCHES_MAX);
    if ((n & (n - 1)) != 0)
        return 0;
    if (!(more = realloc(r->tree.switches, cap * sizeof *r->tree.switches)))
        return -ENOMEM;
    r->tree.switches = more;
    if (!(more = realloc(r->entries, cap * sizeof *r->entries)))
        return -ENOMEM;
    r->entries = more;
    return 0;
}

static int line_read(struct reader *r)
{
    struct fields f = {.passed_over = false};
    int rc = fields_read(r, r->lines.text, &f);
    const char *name = f.switch_name ? f.switch_name : f.block_name;

    if (rc != 0)
        return rc;
    if (!name && f.passed_over && !f.nodes && !f.switches)
        return 0; /* BlockSizes on a line of its own */
    if (!name)
        return conf_lines_fail(&r->lines, "SwitchName: missing");
    if (f.switch_name && f.block_name)
        return conf_lines_fail(&r->lines, "BlockName: not together with SwitchName");
    if (r->tree.n > 0 && r->tree.blocks != (f.block_name != NULL))
        return conf_lines_fail(&r->lines, "%s: a file has either switches or blocks",
                               f.block_name ? "BlockName" : "SwitchName");
    if (f.block_name && f.switches)
        return conf_lines_fail(&r->lines, "Switches: a block has nodes only");
    if (!f.switches == !f.nodes)
        return conf_lines_fail(&r->lines, "%s \"%s\" needs either Switches or Nodes%s",
                               f.block_name ? "block" : "switch", name,
                               f.switches ? ", not both" : "");
    if (!holmes_host_name_ok(name, strlen(name)))
        return conf_lines_fail(&r->lines,
                               "%s: \"%.60s\" is no name (letters, digits, '.', '-', '_')",
                               f.block_name ? "BlockName" : "SwitchName", name);
    rc = room(r);
    if (rc != 0)
        return rc;

    struct holmes_switch *s = &r->tree.switches[r->tree.n];
    struct entry *e = &r->entries[r->tree.n];

    *s = (struct holmes_switch){.name = strdup(name), .parent = -1, .line = r->lines.line};
    *e = (struct entry){.below = {0}};
    if (!s->name)
        return -ENOMEM;
    r->tree.n++;
    r->tree.blocks = f.block_name != NULL;
    return f.nodes ? list_read(r, "Nodes", f.nodes, &s->nodes)
                   : list_read(r, "Switches", f.switches, &e->below);
}

/* --- the tree -------------------------------------------------------------------------------- */

static int by_name(const void *a, const void *b)
{
    const struct holmes_switch *x = *(const struct holmes_switch *const *)a;
    const struct holmes_switch *y = *(const struct holmes_switch *const *)b;
    int order = strcmp(x->name, y->name);

    return order != 0 ? order : x->line - y->line;
}

static struct holmes_switch *switch_find(struct holmes_switch **sorted, int n, char *name)
{
    struct holmes_switch key = {.name = name}, *k = &key;
    int low = 0, high = n - 1;

    while (low <= high) {
        int mid = low + (high - low) / 2, order = strcmp(k->name, sorted[mid]->name);

        if (order == 0)
            return sorted[mid];
        if (order < 0)
            high = mid - 1;
        else
            low = mid + 1;
    }
    return NULL;
}

static int parents_of(struct reader *r, struct holmes_switch **sorted, int i)
{
    struct holmes_switch_tree *t = &r->tree;
    char name[HOLMES_HOST_NAME_MAX];

    for (int k = 0; k < r->entries[i].below.nhosts; k++) {
        struct holmes_switch *s;

        holmes_hostlist_name(&r->entries[i].below, k, name, sizeof name);
        s = switch_find(sorted, t->n, name);
        r->lines.line = t->switches[i].line;
        if (!s)
            return conf_lines_fail(&r->lines, "Switches: no line defines switch \"%s\"", name);
        if (s->parent >= 0)
            return conf_lines_fail(&r->lines,
                                   "Switches: switch \"%s\" is below \"%s\" already (line %d)",
                                   name, t->switches[s->parent].name, t->switches[s->parent].line);
        s->parent = i;
    }
    return 0;
}

/* The top of each, by following parents; what never ends is a circle. */
static int tops_find(struct reader *r)
{
    struct holmes_switch_tree *t = &r->tree;

    for (int i = 0; i < t->n; i++)
        t->switches[i].top = -1;
    for (int i = 0; i < t->n; i++) {
        int top = i, steps = 0;

        while (t->switches[top].top < 0 && t->switches[top].parent >= 0 && steps++ <= t->n)
            top = t->switches[top].parent;
        if (steps > t->n) {
            r->lines.line = t->switches[i].line;
            return conf_lines_fail(&r->lines, "switch \"%s\" is below itself, over other switches",
                                   t->switches[i].name);
        }
        if (t->switches[top].top >= 0)
            top = t->switches[top].top;
        for (int s = i; s >= 0 && t->switches[s].top < 0; s = t->switches[s].parent)
            t->switches[s].top = top;
    }
    return 0;
}

static int nodes_check(struct reader *r)
{
    struct holmes_hostindex *seen;
    int rc = holmes_hostindex_create(&seen), nhosts = 0;

    for (int i = 0; rc == 0 && i < r->tree.n; i++) {
        const struct holmes_switch *s = &r->tree.switches[i];
        char name[HOLMES_HOST_NAME_MAX];
        int twice, other, host;

        r->lines.line = s->line;
        nhosts += s->nodes.nhosts;
        if (nhosts > HOLMES_HOSTS_MAX) {
            rc = conf_lines_fail(&r->lines, "Nodes: more than %d hosts", HOLMES_HOSTS_MAX);
            break;
        }
        rc = holmes_hostindex_add(seen, &s->nodes, i, &twice);
        if (rc != -EEXIST)
            continue;
        holmes_hostlist_name(&s->nodes, twice, name, sizeof name);
        holmes_hostindex_find(seen, name, &other, &host);
        rc = conf_lines_fail(&r->lines, "Nodes: node %s is below \"%s\" already (line %d)", name,
                             r->tree.switches[other].name, r->tree.switches[other].line);
    }
    holmes_hostindex_destroy(seen);
    return rc;
}

static int tree_join(struct reader *r)
{
    int n = r->tree.n, rc = 0;
    struct holmes_switch **sorted = malloc(((size_t)n + 1) * sizeof *sorted);

    if (!sorted)
        return -ENOMEM;
    for (int i = 0; i < n; i++)
        sorted[i] = &r->tree.switches[i];
    qsort(sorted, (size_t)n, sizeof *sorted, by_name);
    for (int i = 1; i < n && rc == 0; i++)
        if (strcmp(sorted[i - 1]->name, sorted[i]->name) == 0) {
            r->lines.line = sorted[i]->line;
            rc = conf_lines_fail(&r->lines, "%s \"%s\" comes twice, first in line %d",
                                 r->tree.blocks ? "block" : "switch", sorted[i]->name,
                                 sorted[i - 1]->line);
        }
    for (int i = 0; i < n && rc == 0; i++)
        rc = parents_of(r, sorted, i);
    free(sorted);
    if (rc == 0)
        rc = tops_find(r);
    return rc == 0 ? nodes_check(r) : rc;
}

int holmes_switch_tree_parse(const char *name, const char *data, size_t len,
                             struct holmes_switch_tree *out, char *why, size_t why_len)
{
    struct reader r = {.entries = NULL};
    int rc;

    conf_lines_init(&r.lines, name, data, len, true, why, why_len);
    while ((rc = conf_lines_next(&r.lines)) == 1) {
        rc = line_read(&r);
        if (rc != 0)
            break;
    }
    if (rc == 0 && r.tree.n == 0) {
        snprintf(why, why_len, "%s: no switch in the file", name);
        rc = -EINVAL;
    }
    if (rc == 0)
        rc = tree_join(&r);
    if (rc == -ENOMEM)
        snprintf(why, why_len, "%s: not enough memory", name);
    for (int i = 0; i < r.tree.n; i++)
        holmes_hostlist_fini(&r.entries[i].below);
    free(r.entries);
    conf_lines_fini(&r.lines);
    if (rc == 0)
        *out = r.tree;
    else
        holmes_switch_tree_fini(&r.tree);
    return rc;
}

int holmes_switch_tree_read(const char *path, struct holmes_switch_tree *out, char *why,
                            size_t why_len)
{
    char *text;
    size_t len;
    int rc = holmes_file_read(path, FILE_SIZE_MAX, &text, &len);

    if (rc != 0) {
        snprintf(why, why_len, "%s: %s", path, holmes_file_strerror(rc));
        return rc;
    }
    rc = holmes_switch_tree_parse(strcmp(path, "-") == 0 ? "standard input" : path, text, len, out,
                                  why, why_len);
    free(text);
    return rc;
}

int holmes_switch_tree_hosts(const struct holmes_switch_tree *t, struct holmes_hostlist *out)
{
    struct holmes_hostlist all = {0};
    char name[HOLMES_HOST_NAME_MAX];

    for (int i = 0; i < t->n; i++)
        for (int k = 0; k < t->switches[i].nodes.nhosts; k++)
            if (holmes_hostlist_append(
                    &all, holmes_hostlist_name(&t->switches[i].nodes, k, name, sizeof name)) != 0) {
                holmes_hostlist_fini(&all);
                return -ENOMEM;
            }
    *out = all;
    return 0;
}

void holmes_switch_tree_fini(struct holmes_switch_tree *t)
{
    for (int i = 0; i < t->n; i++) {
        free(t->switches[i].name);
        holmes_hostlist_fini(&t->switches[i].nodes);
    }
    free(t->switches);
    *t = (struct holmes_switch_tree){0};
}
