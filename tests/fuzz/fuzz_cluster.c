/* Cluster files: every failure says why; what is read is written as text, and as JSON, that reads
 * back to the same; the fabrics of it are settled or refused, and then every group lies in one. */
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cluster.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void expect(int holds)
{
    if (!holds)
        __builtin_trap();
}

static char *text_of(const struct holmes_cluster *c,
                     int (*write)(const struct holmes_cluster *c, FILE *out))
{
    char *text = NULL;
    size_t len;
    FILE *f = open_memstream(&text, &len);

    expect(write(c, f) == 0);
    fclose(f);
    return text;
}

static void check_fabrics(struct holmes_cluster *c, bool separate)
{
    struct holmes_fabrics *f = NULL;
    char why[1024] = "";
    int rc = holmes_fabrics_find(c, separate, &f, why, sizeof why);

    expect(rc == 0 ? f != NULL : rc == -EINVAL && why[0]);
    for (int i = 0; f && i < c->ngroups; i++) {
        expect(f->group_fabric[i] >= -1 && f->group_fabric[i] < f->n);
        expect(f->group_fabric[i] >= 0 || c->groups[i].state != HOLMES_NODE_OK);
    }
    holmes_fabrics_destroy(f);
}

static int hosts_of(const struct holmes_cluster *c)
{
    int n = 0;

    for (int i = 0; i < c->ngroups; i++)
        n += c->groups[i].hosts.nhosts;
    return n;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct holmes_cluster *c = NULL, *again = NULL, *from_json = NULL;
    char why[1024] = "", *text, *json, *twice;
    int hosts;

    if (size > 16384)
        return 0;
    if (holmes_cluster_parse("fuzz", data, size, &c, why, sizeof why) != 0) {
        expect(strncmp(why, "fuzz:", 5) == 0 && !c);
        return 0;
    }
    text = text_of(c, holmes_cluster_write);
    expect(holmes_cluster_parse("again", text, strlen(text), &again, why, sizeof why) == 0);
    twice = text_of(again, holmes_cluster_write);
    expect(strcmp(text, twice) == 0);
    free(twice);
    /* JSON is UTF-8, and YAML in libyaml's hands is too. */
    json = text_of(c, holmes_cluster_json);
    expect(holmes_cluster_parse("json", json, strlen(json), &from_json, why, sizeof why) == 0);
    twice = text_of(from_json, holmes_cluster_write);
    expect(strcmp(text, twice) == 0);
    hosts = hosts_of(c);
    check_fabrics(c, false);
    check_fabrics(again, true);
    expect(hosts_of(c) == hosts && hosts_of(again) == hosts);
    free(text);
    free(twice);
    free(json);
    holmes_cluster_destroy(c);
    holmes_cluster_destroy(again);
    holmes_cluster_destroy(from_json);
    return 0;
}
