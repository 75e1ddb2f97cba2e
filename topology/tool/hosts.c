/* Host names from the command line, a hostfile or Slurm. */
#include "tool/hosts.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* All names of `more` that `l` does not have. */
static int append_all(struct holmes_hostlist *l, const struct holmes_hostlist *more)
{
    char name[HOLMES_HOST_NAME_MAX];
    int rc = 0;

    for (int i = 0; rc == 0 && i < more->nhosts; i++) {
        holmes_hostlist_name(more, i, name, sizeof name);
        if (holmes_hostlist_find(l, name) < 0)
            rc = holmes_hostlist_append(l, name);
    }
    return rc;
}

static int read_line(char *line, struct holmes_hostlist *l, char *what, size_t what_len)
{
    struct holmes_hostlist names = {.nranges = 0};
    char *word = line + strspn(line, " \t");
    int rc;

    word[strcspn(word, " \t\r\n#")] = '\0';
    if (!*word)
        return 0;
    rc = holmes_hostlist_parse(word, &names, what, what_len);
    if (rc == 0)
        rc = append_all(l, &names);
    holmes_hostlist_fini(&names);
    return rc;
}

static int read_file(const char *path, struct holmes_hostlist *out, char *why, size_t why_len)
{
    struct holmes_hostlist l = {.nranges = 0};
    FILE *in = fopen(path, "re");
    char *line = NULL, what[256] = "";
    size_t room = 0;
    int rc = 0, number = 0;

    if (!in) {
        rc = -errno;
        snprintf(why, why_len, "%s: %s", path, strerror(errno));
        return rc;
    }
    while (rc == 0 && getline(&line, &room, in) >= 0) {
        number++;
        rc = read_line(line, &l, what, sizeof what);
    }
    if (rc == 0 && ferror(in))
        rc = -EIO;
    if (rc == 0 && l.nhosts == 0) {
        rc = -EINVAL;
        number = 0;
        snprintf(what, sizeof what, "it names no host");
    }
    if (rc != 0)
        snprintf(why, why_len, "%s:%d: %s", path, number, what[0] ? what : strerror(-rc));
    else
        *out = l;
    if (rc != 0)
        holmes_hostlist_fini(&l);
    free(line);
    fclose(in);
    return rc;
}

int holmes_hosts_choose(const char *list, const char *file, struct holmes_hostlist *out,
                        bool *slurm, char *why, size_t why_len)
{
    const char *nodes = getenv("SLURM_JOB_NODELIST"), *from = "--hosts";
    char what[256];
    int rc;

    *slurm = false;
    if (list && file) {
        snprintf(why, why_len, "--hosts and --hostfile: give one of them");
        return -EINVAL;
    }
    if (file)
        return read_file(file, out, why, why_len);
    if (!list && nodes && *nodes) {
        list = nodes;
        from = "SLURM_JOB_NODELIST";
        *slurm = true;
    }
    if (!list) {
        snprintf(why, why_len,
                 "no hosts: give --hosts a[01-04],b7 or --hostfile FILE, or run it in a Slurm "
                 "allocation");
        return -EINVAL;
    }
    rc = holmes_hostlist_parse(list, out, what, sizeof what);
    if (rc != 0)
        snprintf(why, why_len, "%s \"%.200s\": %s", from, list, what);
    return rc;
}
