/* Command lines of `connections` and `ranks`. */
#include <argp.h>
#include <errno.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "scale.h"
#include "size.h"

enum { KEY_JSON = 256, KEY_PEERS, KEY_IDLE, KEY_TIMEOUT };

#define PLUGIN_HELP                                                                                \
    "NCCL net plugin: a path, a file name, or the NAME of libnccl-net-NAME.so (default holmes)"
#define ENVIRONMENT_HELP                                                                           \
    "The plugin's own settings come from the environment, as under NCCL: HOLMES_TCP=libfabric, "   \
    "HOLMES_LANES=4. "

struct parse {
    struct holmes_scale_options *o;
    bool failed;
    char *why;
    size_t why_len;
};

static error_t refuse(struct parse *p, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static error_t refuse(struct parse *p, const char *fmt, ...)
{
    va_list ap;

    if (!p->failed) {
        va_start(ap, fmt);
        vsnprintf(p->why, p->why_len, fmt, ap);
        va_end(ap);
    }
    p->failed = true;
    return EINVAL;
}

static error_t read_number(struct parse *p, const char *option, const char *text, long min,
                           long max, int *out)
{
    long value;

    if (holmes_number_parse(text, min, max, &value) != 0)
        return refuse(p, "%s \"%s\": give a whole number from %ld to %ld", option, text, min, max);
    *out = (int)value;
    return 0;
}

static error_t read_counts(struct parse *p, const char *text)
{
    struct holmes_scale_options *o = p->o;

    for (o->ncounts = 0;; text++) {
        size_t len = strcspn(text, ",");
        char one[16] = "";
        long value;

        if (len < sizeof one)
            memcpy(one, text, len);
        if (o->ncounts == HOLMES_SCALE_COUNTS_MAX ||
            holmes_number_parse(one, 1, HOLMES_SCALE_CONNECTIONS_MAX, &value) != 0)
            return refuse(p,
                          "--connections: give up to %d whole numbers from 1 to %d, like 100,1000; "
                          "\"%s\" does not fit",
                          HOLMES_SCALE_COUNTS_MAX, HOLMES_SCALE_CONNECTIONS_MAX, text);
        o->counts[o->ncounts++] = (int)value;
        text += len;
        if (*text == '\0')
            return 0;
    }
}

static error_t parse_common(int key, char *arg, struct parse *p)
{
    switch (key) {
    case 'p':
        p->o->plugin = arg;
        return *arg ? 0 : refuse(p, "--plugin \"\": no plugin is named");
    case KEY_JSON:
        p->o->json = arg;
        return *arg ? 0 : refuse(p, "--json \"\": name a file");
    case KEY_TIMEOUT:
        return read_number(p, "--timeout", arg, 1, 3600, &p->o->timeout_s);
    case ARGP_KEY_ARG:
        return refuse(p, "\"%s\": options only", arg);
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static error_t parse_connections(int key, char *arg, struct argp_state *state)
{
    struct parse *p = state->input;

    switch (key) {
    case 'c':
        return read_counts(p, arg);
    case KEY_PEERS:
        return read_number(p, "--peers", arg, 1, HOLMES_SCALE_PEERS_MAX, &p->o->npeers);
    case KEY_IDLE:
        return read_number(p, "--idle", arg, 0, 600, &p->o->idle_s);
    default:
        return parse_common(key, arg, p);
    }
}

static error_t parse_ranks(int key, char *arg, struct argp_state *state)
{
    struct parse *p = state->input;

    if (key == 'n')
        return read_number(p, "--ranks", arg, 2, HOLMES_SCALE_RANKS_MAX, &p->o->counts[0]);
    return parse_common(key, arg, p);
}

static const struct argp_option connections_options[] = {
    {"plugin", 'p', "PLUGIN", 0, PLUGIN_HELP, 0},
    {"connections", 'c', "LIST", 0,
     "how many connections the process under measure has: 1000 (default), or 100,1000 for a turn "
     "of each",
     0},
    {"peers", KEY_PEERS, "N", 0, "processes at their other ends (default 16)", 0},
    {"idle", KEY_IDLE, "SECONDS", 0,
     "how long to rest, and how long to poll, with all connections up; 0: neither (default 2)", 0},
    {"timeout", KEY_TIMEOUT, "SECONDS", 0, "for any single step (default 120)", 0},
    {"json", KEY_JSON, "FILE", 0, "write everything that was measured", 0},
    {0},
};

static const char connections_doc[] =
    "Measures what many connections of one process cost over an NCCL net plugin."
    "\v"
    "One process holds one end of every connection, half of them sending and half receiving; peer "
    "processes hold the others. All connections are raised at once by one thread that calls "
    "connect "
    "and accept in turns, as NCCL does. Then nothing is done for a while; then a receive that "
    "nobody serves is tested again and again on each receiving connection, as NCCL's progress "
    "thread does; then each connection carries a message, which is checked; then all are closed. "
    "Descriptors and threads must be those of before. A first turn with a few connections is not "
    "shown: what it leaves behind belongs to the NIC. " ENVIRONMENT_HELP "\n\n"
    "Exit status: 0 all is well; 1 a connection failed, a message was wrong, or something was left "
    "behind; 2 usage.";

static const struct argp_option ranks_options[] = {
    {"plugin", 'p', "PLUGIN", 0, PLUGIN_HELP, 0},
    {"ranks", 'n', "N", 0, "threads, each a rank of its own (default 256)", 0},
    {"timeout", KEY_TIMEOUT, "SECONDS", 0, "for any single step (default 120)", 0},
    {"json", KEY_JSON, "FILE", 0, "write everything that was measured", 0},
    {0},
};

static const char ranks_doc[] =
    "Connects many ranks, simulated by threads of one process, over an NCCL net plugin."
    "\v"
    "Each rank has a copy of the plugin for itself, and so a listener and NICs of its own, as a "
    "process of a job has. The ranks form a ring and a binary tree (both ways): up to 8 connection "
    "ends a rank. All are raised at once; each connection carries a message, which is checked; all "
    "are closed. " ENVIRONMENT_HELP "\n\n"
    "Exit status: 0 all is well; 1 a connection failed, a message was wrong, or something was left "
    "behind; 2 usage.";

bool holmes_scale_is_command(const char *word)
{
    return strcmp(word, "connections") == 0 || strcmp(word, "ranks") == 0;
}

int holmes_scale_options_parse(int argc, char **argv, struct holmes_scale_options *out, char *why,
                               size_t why_len)
{
    static const struct argp connections = {
        connections_options, parse_connections, NULL, connections_doc, NULL, NULL, NULL};
    static const struct argp ranks = {ranks_options, parse_ranks, NULL, ranks_doc,
                                      NULL,          NULL,        NULL};
    struct holmes_scale_options o = {
        .ranks = strcmp(argv[0], "ranks") == 0,
        .plugin = "holmes",
        .ncounts = 1,
        .npeers = 16,
        .idle_s = 2,
        .timeout_s = 120,
    };
    struct parse p = {.o = &o, .why = why, .why_len = why_len};
    char name[64];
    int rc;

    o.counts[0] = o.ranks ? 256 : 1000;
    snprintf(name, sizeof name, "holmes-bench %s", argv[0]);
    argv[0] = name; /* what --help calls itself */
    rc = argp_parse(o.ranks ? &ranks : &connections, argc, argv, 0, NULL, &p);
    if (rc != 0 && !p.failed)
        refuse(&p, "%s", strerror(rc));
    for (int i = 0; !o.ranks && i < o.ncounts; i++) {
        if (o.counts[i] < o.npeers)
            refuse(&p, "--connections %d: fewer than --peers %d", o.counts[i], o.npeers);
    }
    if (p.failed)
        return -EINVAL;
    *out = o;
    return 0;
}
