#include "stats.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "log.h"

void stats_add(struct stats *s, const struct holmes_conn_stats *conn)
{
    if (s->count == s->cap) {
        size_t cap = s->cap ? 2 * s->cap : 16;
        struct holmes_conn_stats *grown = realloc(s->closed, cap * sizeof *grown);

        if (!grown) {
            holmes_warn(NET, "out of memory: counters of connection %llu are lost",
                        (unsigned long long)conn->id);
            return;
        }
        s->closed = grown;
        s->cap = cap;
    }
    s->closed[s->count++] = *conn;
}

void stats_fini(struct stats *s)
{
    free(s->closed);
    memset(s, 0, sizeof *s);
}

static void write_text(FILE *f, const char *value)
{
    fputc('"', f);
    for (; *value; value++) {
        unsigned char c = (unsigned char)*value;

        if (c == '"' || c == '\\')
            fprintf(f, "\\%c", c);
        else if (c < 0x20)
            fprintf(f, "\\u%04x", c);
        else
            fputc(c, f);
    }
    fputc('"', f);
}

static void write_string(FILE *f, const char *key, const char *value)
{
    write_text(f, key);
    fputc(':', f);
    write_text(f, value);
    fputc(',', f);
}

static void write_conn(FILE *f, const struct holmes_conn_stats *c)
{
    fprintf(f, "    {\"id\":%llu,\"direction\":\"%s\",", (unsigned long long)c->id,
            c->sending ? "send" : "recv");
    fprintf(f, "\"communicator\":\"%016llx\",", (unsigned long long)c->communicator);
    write_string(f, "local", c->local);
    write_string(f, "peer", c->peer);
    write_string(f, "wire", c->wire);
    write_string(f, "reason", c->reason);
    fprintf(f,
            "\"lanes\":%d,\"messages\":%llu,\"bytes\":%llu,\"retries\":%llu,\"staged_bytes\":%llu}",
            c->lanes, (unsigned long long)c->messages, (unsigned long long)c->bytes,
            (unsigned long long)c->retries, (unsigned long long)c->staged_bytes);
}

static void write_port(FILE *f, const struct stats_port *p)
{
    fputs("    {", f);
    write_string(f, "name", p->name);
    fputs("\"counters\":{", f);
    for (int i = 0; i < p->counters.n; i++) {
        char number[32];

        snprintf(number, sizeof number, "%llu", (unsigned long long)p->counters.counters[i].value);
        write_text(f, p->counters.counters[i].name);
        fprintf(f, ":%s%s", number, i + 1 < p->counters.n ? "," : "");
    }
    fputs("}}", f);
}

int stats_write(const struct stats *s, const struct stats_port *ports, int nports, const char *path)
{
    char temp[1088];
    int rc = strlen(path) + 64 < sizeof temp ? 0 : -ENAMETOOLONG;
    FILE *f;

    if (rc != 0)
        goto out;
    snprintf(temp, sizeof temp, "%s.%ld.tmp", path, (long)getpid());
    f = fopen(temp, "we");
    if (!f) {
        rc = -errno;
        goto out;
    }
    fputs("{\"version\":1,\"connections\":[\n", f);
    for (size_t i = 0; i < s->count; i++) {
        write_conn(f, &s->closed[i]);
        fputs(i + 1 < s->count ? ",\n" : "\n", f);
    }
    fputs("],\"ports\":[\n", f);
    for (int i = 0; i < nports; i++) {
        write_port(f, &ports[i]);
        fputs(i + 1 < nports ? ",\n" : "\n", f);
    }
    fputs("]}\n", f);
    if (ferror(f))
        rc = -EIO;
    if (fclose(f) != 0 && rc == 0)
        rc = -errno;
    if (rc == 0 && rename(temp, path) != 0)
        rc = -errno;
    if (rc != 0)
        unlink(temp);
out:
    if (rc != 0)
        holmes_warn(NET, "cannot write HOLMES_STATS=\"%s\": %s", path, holmes_strerror(rc));
    return rc;
}
