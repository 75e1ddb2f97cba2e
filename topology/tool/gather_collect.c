/* Where gather's machines come from: a folder of recorded ones, or commands on the hosts. */
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "host.h"
#include "progress.h"
#include "tool/fanout.h"
#include "tool/gather.h"
#include "tool/hosts.h"
#include "tool/launcher.h"

static int slots_of(const struct gather_hosts *hosts, int i)
{
    return hosts->slots ? hosts->slots[i] : 0;
}

static int take(struct holmes_merge *m, struct gather_ids *ids, const char *name,
                struct holmes_host *h, int slots)
{
    int rc = holmes_merge_add(m, name, h, slots, gather_ids_find(ids, name));

    holmes_host_destroy(h);
    return rc;
}

/* --- a folder -------------------------------------------------------------------------------- */

/* "a0001" of "a0001.json"; false for files that are no host's. */
static bool host_of_file(const char *file, char *name, size_t len)
{
    const char *dot = strrchr(file, '.');
    size_t n = dot ? (size_t)(dot - file) : 0;

    if (!dot || (strcmp(dot, ".json") != 0 && strcmp(dot, ".xml") != 0) || n >= len ||
        !holmes_host_name_ok(file, n))
        return false;
    snprintf(name, len, "%.*s", (int)n, file);
    return true;
}

static int wanted(const struct dirent *d)
{
    char name[HOLMES_HOST_NAME_MAX];

    return host_of_file(d->d_name, name, sizeof name);
}

static int by_number(const struct dirent **a, const struct dirent **b)
{
    return strverscmp((*a)->d_name, (*b)->d_name);
}

static int file_take(const char *path, const char *name, int slots, struct gather_ids *ids,
                     struct holmes_merge *m)
{
    struct holmes_host *h;
    char why[512];
    int rc = holmes_host_read(path, &h, why, sizeof why);

    if (rc == -ENOMEM)
        return rc;
    return rc == 0 ? take(m, ids, name, h, slots) : holmes_merge_fail(m, name, why);
}

/* A few files are read before a bar could be seen. */
static void bar_update(struct holmes_progress *bar, int done)
{
    if (bar->label && bar->total > 100)
        holmes_progress_update(bar, (uint64_t)done, "%s", "");
}

static int folder_all(const char *folder, struct gather_ids *ids, struct holmes_merge *m,
                      struct holmes_progress *bar, char *why, size_t why_len)
{
    struct dirent **files;
    int n = scandir(folder, &files, wanted, by_number), rc = 0;
    char before[HOLMES_HOST_NAME_MAX] = "";

    if (n < 0) {
        snprintf(why, why_len, "%s: %s", folder, strerror(errno));
        return -EINVAL;
    }
    bar->total = (uint64_t)n;
    if (n == 0) {
        snprintf(why, why_len,
                 "%s: no file NAME.json in it, as `holmes-topo discover --json > NAME.json` writes "
                 "one on each node",
                 folder);
        rc = -EINVAL;
    }
    for (int i = 0; i < n; i++) {
        char path[4096], name[HOLMES_HOST_NAME_MAX];

        host_of_file(files[i]->d_name, name, sizeof name);
        snprintf(path, sizeof path, "%s/%s", folder, files[i]->d_name);
        if (rc == 0 && strcmp(name, before) == 0) {
            snprintf(why, why_len, "%s: host %s comes twice, as .json and as .xml", folder, name);
            rc = -EINVAL;
        }
        if (rc == 0)
            rc = file_take(path, name, 0, ids, m);
        bar_update(bar, i + 1);
        snprintf(before, sizeof before, "%s", name);
        free(files[i]);
    }
    free(files);
    return rc;
}

static int folder_named(const char *folder, const struct gather_hosts *hosts, int i,
                        struct gather_ids *ids, struct holmes_merge *m)
{
    static const char *const endings[] = {"json", "xml"};
    char path[4096], name[HOLMES_HOST_NAME_MAX], why[512];

    holmes_hostlist_name(&hosts->list, i, name, sizeof name);
    for (int k = 0; k < 2; k++) {
        struct stat st;

        snprintf(path, sizeof path, "%s/%s.%s", folder, name, endings[k]);
        if (stat(path, &st) == 0)
            return file_take(path, name, slots_of(hosts, i), ids, m);
    }
    snprintf(why, sizeof why, "no file %s.json in %s", name, folder);
    return holmes_merge_fail(m, name, why);
}

int gather_from_folder(const struct gather_options *o, const struct gather_hosts *hosts,
                       struct gather_ids *ids, struct holmes_merge *m, char *why, size_t why_len)
{
    int n = hosts->list.nhosts, rc = 0;
    struct holmes_progress bar;

    holmes_progress_init(&bar, stderr, o->quiet ? NULL : "gather", (uint64_t)n, true);
    if (n == 0)
        rc = folder_all(o->from, ids, m, &bar, why, why_len);
    for (int i = 0; i < n && rc == 0; i++) {
        rc = folder_named(o->from, hosts, i, ids, m);
        bar_update(&bar, i + 1);
    }
    holmes_progress_finish(&bar);
    return rc;
}

/* --- the hosts themselves -------------------------------------------------------------------- */

static int answer_take(const struct holmes_fanout *f, int i, int slots, struct gather_ids *ids,
                       struct holmes_merge *m)
{
    const struct holmes_fanout_result *r = holmes_fanout_result(f, i);
    struct holmes_host *h;
    char why[512];
    int rc;

    if (r->state != HOLMES_FANOUT_DONE) {
        holmes_fanout_explain(f, i, why, sizeof why);
        return holmes_merge_fail(m, r->host, why);
    }
    rc = holmes_host_parse_json("its answer", r->out, r->out_len, &h, why, sizeof why);
    if (rc == -ENOMEM)
        return rc;
    return rc == 0 ? take(m, ids, r->host, h, slots) : holmes_merge_fail(m, r->host, why);
}

static char **names_of(const struct holmes_hostlist *l)
{
    char **names = calloc((size_t)l->nhosts + 1, sizeof *names), name[HOLMES_HOST_NAME_MAX];

    for (int i = 0; names && i < l->nhosts; i++)
        if (!(names[i] = strdup(holmes_hostlist_name(l, i, name, sizeof name)))) {
            while (i-- > 0)
                free(names[i]);
            free(names);
            return NULL;
        }
    return names;
}

int gather_from_hosts(const struct gather_options *o, const struct gather_hosts *hosts,
                      struct gather_ids *ids, struct holmes_merge *m, char *why, size_t why_len)
{
    char path[4096], discover[] = "discover", json[] = "--json";
    char *argv[] = {(char *)holmes_own_program(o->program, path, sizeof path), discover, json,
                    NULL};
    struct holmes_fanout_options options = {
        .launcher = o->launcher    ? o->launcher
                    : hosts->slurm ? HOLMES_LAUNCHER_SRUN
                                   : NULL,
        .argv = argv,
        .at_once = o->at_once,
        .deadline_ms = (uint64_t)o->time_limit_s * 1000,
        .label = o->quiet ? NULL : "gather",
    };
    char **names = names_of(&hosts->list);
    struct holmes_fanout *f;
    int rc = names ? holmes_fanout_create(&options, (const char *const *)names, hosts->list.nhosts,
                                          &f, why, why_len)
                   : -ENOMEM;

    if (rc == 0) {
        rc = holmes_fanout_run(f);
        for (int i = 0; i < hosts->list.nhosts && rc == 0; i++)
            rc = answer_take(f, i, slots_of(hosts, i), ids, m);
        holmes_fanout_destroy(f);
        if (rc == -EINTR)
            snprintf(why, why_len, "stopped by a signal; nothing is written");
    }
    for (int i = 0; names && i < hosts->list.nhosts; i++)
        free(names[i]);
    free(names);
    return rc;
}
