#include "port_counters.h"

#include <dirent.h>
#include <stdio.h>
#include <string.h>

void port_counters_read(const char *sysfs_root, const char *device, int port,
                        struct port_counters *out)
{
    char folder[256], path[640];
    struct dirent *e;
    DIR *dir;

    memset(out, 0, sizeof *out);
    snprintf(folder, sizeof folder, "%s/class/infiniband/%s/ports/%d/hw_counters", sysfs_root,
             device, port);
    dir = opendir(folder);
    if (!dir)
        return;
    while (out->n < PORT_COUNTERS_MAX && (e = readdir(dir))) {
        unsigned long long value;
        FILE *f;

        /* "lifespan" is how often the driver looks, not a count */
        if (e->d_name[0] == '.' || strcmp(e->d_name, "lifespan") == 0 ||
            strlen(e->d_name) >= sizeof out->counters[0].name)
            continue;
        snprintf(path, sizeof path, "%s/%s", folder, e->d_name);
        f = fopen(path, "re");
        if (!f)
            continue;
        if (fscanf(f, "%llu", &value) == 1) {
            memcpy(out->counters[out->n].name, e->d_name, strlen(e->d_name) + 1);
            out->counters[out->n++].value = value;
        }
        fclose(f);
    }
    closedir(dir);
}

void port_counters_since(struct port_counters *now, const struct port_counters *before)
{
    for (int i = 0; i < now->n; i++) {
        for (int j = 0; j < before->n; j++) {
            if (strcmp(now->counters[i].name, before->counters[j].name) == 0)
                now->counters[i].value -= before->counters[j].value;
        }
    }
}
