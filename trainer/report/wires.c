#include "wires.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "env.h"
#include "summary.h"
#include "table.h"

int holmes_wires_prepare(struct holmes_wires *w)
{
    const char *folder = getenv("TMPDIR");
    int rc, fd;

    memset(w, 0, sizeof *w);
    rc = holmes_env_path(HOLMES_ENV_STATS, w->path, sizeof w->path);
    if (rc != -ENOENT)
        return rc;
    snprintf(w->path, sizeof w->path, "%s/holmes-train.XXXXXX",
             folder && folder[0] && strlen(folder) < 900 ? folder : "/tmp");
    fd = mkstemp(w->path);
    if (fd < 0) {
        rc = -errno;
        w->path[0] = '\0';
        return rc;
    }
    close(fd);
    w->ours = true;
    return setenv("HOLMES_STATS", w->path, 1) == 0 ? 0 : -errno;
}

void holmes_wires_read(struct holmes_wires *w)
{
    if (w->path[0])
        w->doc = json_load_file(w->path, 0, NULL);
}

void holmes_wires_close(struct holmes_wires *w)
{
    if (w->ours) {
        unlink(w->path);
        unsetenv("HOLMES_STATS");
    }
    json_decref(w->doc);
    memset(w, 0, sizeof *w);
}

static json_t *find_or_add(json_t *wires, const char *name)
{
    json_t *use;
    size_t i;

    json_array_foreach(wires, i, use)
    {
        if (strcmp(json_string_value(json_object_get(use, "wire")), name) == 0)
            return use;
    }
    use = json_pack("{s:s, s:i, s:i, s:i}", "wire", name, "connections", 0, "bytes_sent", 0,
                    "bytes_received", 0);
    return json_array_append_new(wires, use) == 0 ? use : NULL;
}

static void add(json_t *object, const char *key, json_int_t value)
{
    json_object_set_new(object, key,
                        json_integer(json_integer_value(json_object_get(object, key)) + value));
}

json_t *holmes_wires_of(const struct holmes_wires *w, uint64_t communicator)
{
    json_t *wires = json_array();
    const json_t *c;
    char id[24];
    size_t i;

    snprintf(id, sizeof id, "%016" PRIx64, communicator);
    json_array_foreach(json_object_get(w->doc, "connections"), i, c)
    {
        const char *of = json_string_value(json_object_get(c, "communicator"));
        const char *wire = json_string_value(json_object_get(c, "wire"));
        const char *direction = json_string_value(json_object_get(c, "direction"));
        json_t *use;

        if (!of || strcmp(of, id) != 0 || !wire || !direction)
            continue;
        use = find_or_add(wires, wire);
        if (!use)
            continue;
        add(use, "connections", 1);
        add(use, strcmp(direction, "send") == 0 ? "bytes_sent" : "bytes_received",
            json_integer_value(json_object_get(c, "bytes")));
    }
    return wires;
}

/* ---- the table ---- */

#define WIRES_MAX 4

struct totals {
    int nwires;
    const char *wires[WIRES_MAX];
    double sent[HOLMES_KIND_COUNT][WIRES_MAX];
};

static void count_use(struct totals *t, int kind, const json_t *use)
{
    const char *name = json_string_value(json_object_get(use, "wire"));
    int w = 0;

    while (name && w < t->nwires && strcmp(t->wires[w], name) != 0)
        w++;
    if (!name || w == WIRES_MAX)
        return;
    if (w == t->nwires)
        t->wires[t->nwires++] = name;
    t->sent[kind][w] += json_number_value(json_object_get(use, "bytes_sent"));
}

static void count_communicator(struct totals *t, const json_t *communicator)
{
    const char *kind = json_string_value(json_object_get(communicator, "kind"));
    const json_t *use;
    size_t i;

    for (int k = 0; kind && k < HOLMES_KIND_COUNT; k++) {
        if (strcmp(holmes_kind_names[k], kind) != 0)
            continue;
        json_array_foreach(json_object_get(communicator, "wires"), i, use) count_use(t, k, use);
    }
}

static void print_row(struct holmes_table *table, const struct totals *t, int kind)
{
    double all = 0;

    for (int w = 0; w < t->nwires; w++)
        all += t->sent[kind][w];
    if (all == 0)
        return;
    holmes_table_cell(table, "%s", holmes_kind_titles[kind]);
    for (int w = 0; w < t->nwires; w++)
        holmes_table_cell(table, "%.1f", t->sent[kind][w] / 1e3);
}

int holmes_wires_print(const json_t *records, FILE *out)
{
    struct totals t = {0};
    struct holmes_table *table;
    const json_t *record, *communicator;
    char heading[64];
    size_t i, j;
    int rc;

    json_array_foreach(records, i, record)
        json_array_foreach(json_object_get(record, "communicators"), j, communicator)
            count_communicator(&t, communicator);
    if (t.nwires == 0)
        return 0;
    rc = holmes_table_create(1 + t.nwires, &table);
    if (rc != 0)
        return rc;
    holmes_table_column(table, "sent, kB", HOLMES_TABLE_LEFT);
    for (int w = 0; w < t.nwires; w++) {
        snprintf(heading, sizeof heading, "over %s", t.wires[w]);
        holmes_table_column(table, heading, HOLMES_TABLE_RIGHT);
    }
    for (int kind = 0; kind < HOLMES_KIND_COUNT; kind++)
        print_row(table, &t, kind);
    rc = holmes_table_print(table, out);
    holmes_table_destroy(table);
    return rc;
}
