/* HOLMES_FABRIC=@FILE: one file for all hosts of a job, which says what HOLMES_FABRIC would on
 * each. Every line is checked on every host, so that a mistake is told everywhere alike. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "fabric_ids.h"
#include "file.h"
#include "hostlist.h"

#define WORDS_MAX 3
#define MAP_MAX   (64u << 20) /* bytes of a file */
#define RIGHT     "\"HOSTS ID\" or \"HOSTS DEVICE[:PORT] ID\" is right"

struct map {
    const char *name;     /* of the file */
    const char *hosts[2]; /* this host's name, and without its domain */
    struct fabric_ids ids;
    int all_line; /* that gave ids.all */
    bool named;
    char *why;
    size_t why_len;
};

static int complain(const struct map *m, int line, const char *value, const char *what)
{
    snprintf(m->why, m->why_len, "HOLMES_FABRIC=\"@%s\": line %d: %s (%.80s); " RIGHT, m->name,
             line, what, value);
    return -EINVAL;
}

static bool names_this_host(const struct map *m, const struct holmes_hostlist *l)
{
    return holmes_hostlist_find(l, m->hosts[0]) >= 0 || holmes_hostlist_find(l, m->hosts[1]) >= 0;
}

static int take_entry(struct map *m, int line, char *device, const char *id)
{
    struct fabric_entry e = {.line = line};
    char *colon = strchr(device, ':');

    if (colon) {
        e.port = fabric_port_parse(colon + 1, strlen(colon + 1));
        if (e.port < 0)
            return complain(m, line, device, "a port is a number from 1 to 255");
        *colon = '\0';
    }
    if (fabric_word_copy(device, strlen(device), e.device) != 0)
        return complain(m, line, device, "no device has such a name");
    fabric_word_copy(id, strlen(id), e.id);
    for (int i = 0; i < m->ids.n; i++) {
        const struct fabric_entry *o = &m->ids.entries[i];

        if (o->port != e.port || strcmp(o->device, e.device) != 0)
            continue;
        snprintf(m->why, m->why_len,
                 "HOLMES_FABRIC=\"@%s\": line %d: %s of %s has an id already, from line %d",
                 m->name, line, device, m->hosts[0], o->line);
        return -EINVAL;
    }
    if (m->ids.n == FABRIC_IDS_MAX)
        return complain(m, line, device, "more than 32 entries for this host");
    m->ids.entries[m->ids.n++] = e;
    return 0;
}

static int take_all(struct map *m, int line, const char *id)
{
    if (m->all_line) {
        snprintf(m->why, m->why_len,
                 "HOLMES_FABRIC=\"@%s\": line %d: %s has an id already, from line %d", m->name,
                 line, m->hosts[0], m->all_line);
        return -EINVAL;
    }
    fabric_word_copy(id, strlen(id), m->ids.all);
    m->all_line = line;
    return 0;
}

/* The words of a line are checked whether they concern this host or not. */
static int take_words(struct map *m, int line, char *const *words, int n)
{
    struct holmes_hostlist l = {.nranges = 0};
    char what[256], word[HOLMES_RDMA_NAME_MAX];
    bool here;
    int rc;

    if (n < 2)
        return complain(m, line, words[0], "no id is given");
    if (n > WORDS_MAX)
        return complain(m, line, words[WORDS_MAX], "this is one word too many");
    if (fabric_word_copy(words[n - 1], strlen(words[n - 1]), word) != 0)
        return complain(m, line, words[n - 1], "an id is 1 to 31 letters, digits or -_.");
    rc = holmes_hostlist_parse(words[0], &l, what, sizeof what);
    if (rc == -ENOMEM)
        return rc;
    if (rc != 0)
        return complain(m, line, words[0], what);
    here = names_this_host(m, &l);
    holmes_hostlist_fini(&l);
    m->named = m->named || here;
    if (n == 2)
        return here ? take_all(m, line, words[1]) : 0;
    if (!here) {
        struct fabric_ids kept = m->ids;

        m->ids.n = 0;
        rc = take_entry(m, line, words[1], words[2]);
        m->ids = kept;
        return rc;
    }
    return take_entry(m, line, words[1], words[2]);
}

static int take_line(struct map *m, int line, char *text)
{
    char *words[WORDS_MAX + 1], *rest = text;
    int n = 0;

    text[strcspn(text, "#")] = '\0';
    while (n <= WORDS_MAX && (words[n] = strtok_r(n == 0 ? text : NULL, " \t\r", &rest)))
        n++;
    return n > 0 ? take_words(m, line, words, n) : 0;
}

int fabric_map_parse(const char *name, const char *data, size_t len, const char *host,
                     struct fabric_ids *out, bool *named, char *why, size_t why_len)
{
    char *copy = malloc(len + 1), *next, *short_name = strdup(host);
    struct map m = {.name = name, .hosts = {host, short_name}, .why = why, .why_len = why_len};
    int rc = copy && short_name ? 0 : -ENOMEM, line = 0;

    if (rc == 0) {
        memcpy(copy, data, len);
        copy[len] = '\0';
        short_name[strcspn(short_name, ".")] = '\0';
        if (strlen(copy) != len)
            rc = complain(&m, 1, "a 0 byte", "this is no text");
    }
    for (char *p = copy; rc == 0 && p; p = next) {
        next = strchr(p, '\n');
        if (next)
            *next++ = '\0';
        rc = take_line(&m, ++line, p);
    }
    if (rc == -ENOMEM)
        snprintf(why, why_len, "HOLMES_FABRIC=\"@%s\": out of memory", name);
    if (rc == 0) {
        *out = m.ids;
        *named = m.named;
    }
    free(copy);
    free(short_name);
    return rc;
}

int fabric_map_read(const char *path, const char *host, struct fabric_ids *out, char *why,
                    size_t why_len)
{
    char *data, own[HOLMES_HOST_NAME_MAX] = "";
    bool named = false;
    size_t len;
    int rc;

    if (!host) {
        if (gethostname(own, sizeof own - 1) != 0)
            return -errno;
        host = own;
    }
    /* "-" is a file here, no standard input. */
    rc = *path ? holmes_file_read(strcmp(path, "-") == 0 ? "./-" : path, MAP_MAX, &data, &len)
               : -ENOENT;
    if (rc != 0) {
        snprintf(why, why_len,
                 "HOLMES_FABRIC=\"@%s\": %s; a file that can be read on every host, "
                 "with lines of which " RIGHT,
                 path, *path ? holmes_file_strerror(rc) : "no file is named");
        return -EINVAL;
    }
    rc = fabric_map_parse(path, data, len, host, out, &named, why, why_len);
    free(data);
    if (rc == 0 && !named)
        snprintf(why, why_len,
                 "HOLMES_FABRIC=\"@%s\" has no line for this host, %s: its ports have no id", path,
                 *host ? host : "whose name is not known");
    return rc;
}
