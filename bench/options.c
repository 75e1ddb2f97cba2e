/* Command line: argp reads it, each value is checked where it is read, and what must fit together
 * is checked at the end. */
#include "options.h"

#include <argp.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "size.h"

enum {
    KEY_CSV = 256,
    KEY_JSON,
    KEY_SVG,
    KEY_ROUNDS,
    KEY_ITERS,
    KEY_STREAMS,
    KEY_THREADS,
    KEY_NO_REFERENCE,
    KEY_CHECK,
    KEY_NO_CHECK,
    KEY_WINDOW,
    KEY_BOTH_WAYS,
    KEY_IDLE,
    KEY_MEASURE,
    KEY_TIMEOUT,
    KEY_DEVICE,
    KEY_BACKEND,
    KEY_TYPE,
    KEY_RATE,
    KEY_RTT,
    KEY_LOSS,
    KEY_LINK_HOOK,
    KEY_RELAY,
};

struct parse {
    struct holmes_bench_options *o;
    bool has_collective, failed;
    uint64_t links[3][HOLMES_LINKS_MAX]; /* by enum holmes_link_list */
    int nlinks[3];
    char *why;
    size_t why_len;
};

static const struct argp_option argp_options[] = {
    {NULL, 0, NULL, 0, "What to compare:", 1},
    {"plugin", 'p', "[LABEL=]PLUGIN[,NAME=VALUE...]", 0,
     "NCCL net plugin: a path, a file name, or the NAME of libnccl-net-NAME.so; NAME=VALUE is set "
     "in the environment of this side's processes only. Give it again for each side to compare. "
     "Without any, only the reference runs",
     0},
    {"backend", KEY_BACKEND, "WHAT", 0,
     "net (default): the plugin's calls are made here, on host memory. nccl: by NCCL, on GPUs, "
     "with each plugin in turn as its network; PLUGIN none: with its own (NCCL_NET=Socket or IB "
     "chooses)",
     0},
    {"device", KEY_DEVICE, "NAME", 0, "the plugins' device of this name (default: the first)", 0},
    {"reference-streams", KEY_STREAMS, "LIST", 0,
     "numbers of TCP streams for the reference: 1-8, 4, or 1,2,4 (default 1,2,4,8)", 0},
    {"reference-threads", KEY_THREADS, "LIST", 0,
     "threads that drive the streams of a rank: numbers from 1 to 8, which poll as a plugin does, "
     "or \"streams\", a blocking one for each end of each stream (default 1,streams)",
     0},
    {"no-reference", KEY_NO_REFERENCE, NULL, 0, "plugins only", 0},
    {NULL, 0, NULL, 0, "How much:", 2},
    {"ranks", 'n', "N", 0, "processes on this machine, 2 to 64 (default 2)", 0},
    {"min", 'b', "SIZE", 0, "smallest size: bytes, or with K, M, G (default 8)", 0},
    {"max", 'e', "SIZE", 0, "largest size (default 256M)", 0},
    {"factor", 'f', "F", 0, "each size is F times the one before (default 2)", 0},
    {"type", KEY_TYPE, "TYPE", 0, "float (default) or bfloat16", 0},
    {"rounds", KEY_ROUNDS, "R", 0, "times that each side is measured, in turns (default 5)", 0},
    {"iters", KEY_ITERS, "N", 0,
     "operations in each measurement (default: as many as fill 0.1 s, at least 1)", 0},
    {"window", KEY_WINDOW, "N", 0,
     "sendrecv: messages under way in the bandwidth test, 1 to 32 (default 8; fewer when they are "
     "large)",
     0},
    {"measure", KEY_MEASURE, "WHICH", 0, "sendrecv: latency, bandwidth, or both (default)", 0},
    {"both-ways", KEY_BOTH_WAYS, NULL, 0,
     "sendrecv: every pair sends in both directions at once in the bandwidth test, with a window "
     "for each; figures are those of one direction",
     0},
    {"idle-us", KEY_IDLE, "US", 0,
     "microseconds that a rank of sendrecv, and of a reference that polls, sleeps when nothing "
     "moved, up to 1000 (default 0: it yields and looks again, as NCCL does)",
     0},
    {"check", KEY_CHECK, NULL, 0, "check every element, in a pass that is not timed (default)", 0},
    {"no-check", KEY_NO_CHECK, NULL, 0, "leave that out", 0},
    {"timeout", KEY_TIMEOUT, "SECONDS", 0, "for any single operation (default 60)", 0},
    {NULL, 0, NULL, 0, "Over what (else this host's loopback):", 3},
    {"rate", KEY_RATE, "LIST", 0,
     "links between network namespaces of their own, one for each rank, with so many bits per "
     "second each way: 1G, 10G; a list like 1G,3G gives each rank that many NICs",
     0},
    {"rtt", KEY_RTT, "LIST", 0, "round trip that these links add: 20ms, 500us", 0},
    {"relay", KEY_RELAY, NULL, 0,
     "carry packets by a process of holmes-bench's own even where the kernel has netem, or where "
     "nothing is delayed or lost: it takes orders of the hook",
     0},
    {"link-hook", KEY_LINK_HOOK, "COMMAND", 0,
     "before each side's first measurement of a size, for each of its ranks: run this by sh in the "
     "rank's network, with BENCH_SIDE, BENCH_RANK, BENCH_PID and BENCH_SIZE (docs/bench.md)",
     0},
    {"loss", KEY_LOSS, "LIST", 0, "share of the packets that they lose, each way: 1%, 0.1%", 0},
    {NULL, 0, NULL, 0, "What to write besides the table:", 4},
    {"csv", KEY_CSV, "FILE", 0, "every median, spread and ratio, one line each", 0},
    {"json", KEY_JSON, "FILE", 0, "the same and every single measurement", 0},
    {"svg", KEY_SVG, "FILE", 0, "bandwidth and time by size, a line for each side", 0},
    {NULL, 0, NULL, 0, "Help:", -1},
    {0},
};

static const char argp_doc[] =
    "Measures collectives over NCCL net plugins on this machine's CPUs, beside plain TCP "
    "streams.\v"
    "COLLECTIVE is all_reduce, all_gather, reduce_scatter or sendrecv. (Two other commands, "
    "`holmes-bench connections` and `holmes-bench ranks`, measure what many connections cost; "
    "each has a --help of its own.) Each side (a plugin, or the reference) has its own N "
    "processes; the sides take turns, one measurement each, round by round, so that a drift of "
    "the machine meets all alike. Shown is the median of the rounds; the spread is (max - min) / "
    "median. A ratio is the median over the rounds of the other side's time divided by this "
    "one's: above 1 this side is faster.\n"
    "\n"
    "Columns are those of nccl-tests: algbw is size / time; busbw is that times the share of the "
    "size which crosses each link: 2(n-1)/n for all_reduce, (n-1)/n for all_gather and "
    "reduce_scatter, 1 for sendrecv. The time is that of the slowest rank. sendrecv pairs ranks "
    "0-1, 2-3, ... and gives two tables: latency (half a round trip of one message) and "
    "bandwidth (one way or, with --both-ways, both at once; several messages under way). There "
    "the plugin's own calls are made as NCCL's proxy thread makes them, by one thread of each "
    "rank; collectives run over the trainer's communicator.\n"
    "\n"
    "The reference moves the same bytes between as many processes in the same pattern over plain "
    "TCP streams on 127.0.0.1. It includes the kernel's TCP and the copies to and from user "
    "memory. It does not include sums, message boundaries, tags or memory registration, and "
    "above 32 KiB blocks it does not wait for one step of the ring before the next: it is a "
    "limit, not a competitor. \"TCP x4\" has 4 streams, blocking calls and one thread for each "
    "end of each stream; \"poll x4\" has 4 streams that one thread of each rank drives without "
    "blocking, as a plugin's are; \"poll x4/2\" two threads. Shown is the fastest number of "
    "streams of each kind, and ratios use it.\n"
    "\n"
    "Examples:\n"
    "  holmes-bench all_reduce -p ./libnccl-net-holmes.so -n 4 -b 1M -e 256M -f 16\n"
    "  holmes-bench sendrecv -p new=build/libnccl-net-holmes.so -p "
    "old=/opt/libnccl-net-holmes.so\n"
    "  holmes-bench sendrecv -p one=holmes,HOLMES_LANES=1 -p four=holmes,HOLMES_LANES=4\n"
    "  holmes-bench all_reduce --backend nccl -p holmes -p socket=none,NCCL_NET=Socket\n"
    "  holmes-bench all_gather --reference-streams 4 --csv streams.csv --svg streams.svg\n"
    "  holmes-bench sendrecv -p holmes --rate 10G --both-ways\n"
    "  holmes-bench sendrecv -p holmes --rate 1G --rtt 20ms --loss 1%\n"
    "\n"
    "Exit status: 0 all is well; 1 wrong results or a plugin that failed; 2 usage.";

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

static error_t read_size(struct parse *p, const char *option, const char *text, uint64_t *out)
{
    int rc = holmes_size_parse(text, out);

    if (rc == -ERANGE)
        return refuse(p, "%s \"%s\": above the largest size, 1024G", option, text);
    if (rc != 0 || *out == 0)
        return refuse(p, "%s \"%s\": give bytes, or a number with K, M or G, like 64K", option,
                      text);
    return 0;
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

int holmes_threads_parse(const char *text, int threads[HOLMES_BENCH_THREADS_MAX])
{
    static const char word[] = "streams";
    bool wanted[HOLMES_BENCH_STREAMS_MAX + 1] = {false};
    int n = 0;

    do {
        if (strncmp(text, word, sizeof word - 1) == 0) {
            wanted[0] = true;
            text += sizeof word - 1;
        } else if (*text >= '1' && *text <= '8') {
            wanted[*text++ - '0'] = true;
        } else {
            return -EINVAL;
        }
        if (*text && *text != ',')
            return -EINVAL;
    } while (*text++ == ',');
    for (int i = 0; i <= HOLMES_BENCH_STREAMS_MAX; i++)
        if (wanted[i])
            threads[n++] = i;
    return n;
}

int holmes_streams_parse(const char *text, int streams[HOLMES_BENCH_STREAMS_MAX])
{
    bool wanted[HOLMES_BENCH_STREAMS_MAX + 1] = {false};
    int n = 0;

    do {
        int low, high, used = 0;

        if (*text < '1' || *text > '8')
            return -EINVAL;
        low = high = *text - '0';
        if (text[1] == '-') {
            if (text[2] < '1' || text[2] > '8')
                return -EINVAL;
            high = text[2] - '0';
            used = 2;
        }
        text += used + 1;
        if (high < low || (*text && *text != ','))
            return -EINVAL;
        for (int i = low; i <= high; i++)
            wanted[i] = true;
    } while (*text++ == ',');
    for (int i = 1; i <= HOLMES_BENCH_STREAMS_MAX; i++)
        if (wanted[i])
            streams[n++] = i;
    return n;
}

static bool label_taken(const struct holmes_bench_options *o, const char *label)
{
    for (int i = 0; i < o->nplugins; i++)
        if (strcmp(o->plugins[i].label, label) == 0)
            return true;
    return false;
}

/* libnccl-net-NAME.so gives NAME, anything else its file name; a second one of the name "NAME#2".
 */
static void label_from_path(const struct holmes_bench_options *o, const char *path, char label[64])
{
    static const char prefix[] = "libnccl-net-";
    const char *name = strrchr(path, '/') ? strrchr(path, '/') + 1 : path;
    char base[48];
    size_t len;

    if (strncmp(name, prefix, sizeof prefix - 1) == 0)
        name += sizeof prefix - 1;
    len = strcspn(name, ".");
    snprintf(base, sizeof base, "%.*s", len ? (int)len : (int)strlen(name), name);
    snprintf(label, 64, "%s", base);
    for (int i = 2; label_taken(o, label); i++)
        snprintf(label, 64, "%s#%d", base, i);
}

/* Where the next ",NAME=" begins in `text`: at its comma, or at the end. Names are upper case, as
 * those of variables are; a value may have commas, as "eth0,eth1" has. */
static size_t setting_find(const char *text)
{
    size_t at = 0;

    for (; text[at]; at++) {
        const char *name = text + at + 1;
        size_t len = 0;

        if (text[at] != ',')
            continue;
        while ((*name >= 'A' && *name <= 'Z') || *name == '_' ||
               (len && *name >= '0' && *name <= '9')) {
            name++;
            len++;
        }
        if (len && *name == '=')
            break;
    }
    return at;
}

/* Cuts the settings off `text`. */
static error_t read_settings(struct parse *p, char *text, struct holmes_bench_plugin *plugin)
{
    size_t at = setting_find(text);

    while (text[at]) {
        if (plugin->nsettings == HOLMES_BENCH_SETTINGS_MAX)
            return refuse(p, "--plugin \"%s\": more than %d settings for a side", text,
                          HOLMES_BENCH_SETTINGS_MAX);
        text[at] = '\0';
        text += at + 1;
        plugin->settings[plugin->nsettings++] = text;
        at = setting_find(text);
    }
    return 0;
}

static error_t read_plugin(struct parse *p, char *text)
{
    struct holmes_bench_options *o = p->o;
    struct holmes_bench_plugin plugin = {.path = text};
    size_t label_len;

    if (o->nplugins == HOLMES_BENCH_PLUGINS_MAX)
        return refuse(p, "--plugin \"%s\": more than %d plugins", text, HOLMES_BENCH_PLUGINS_MAX);
    if (read_settings(p, text, &plugin) != 0)
        return EINVAL;
    label_len = strcspn(text, "=/");
    if (text[label_len] == '=') {
        plugin.path = text + label_len + 1;
        if (label_len == 0 || label_len >= sizeof plugin.label)
            return refuse(p, "--plugin \"%s\": a label has 1 to 63 characters", text);
        snprintf(plugin.label, sizeof plugin.label, "%.*s", (int)label_len, text);
        if (label_taken(o, plugin.label))
            return refuse(p, "--plugin \"%s\": the label \"%s\" is taken", text, plugin.label);
    } else {
        label_from_path(o, text, plugin.label);
    }
    if (!*plugin.path)
        return refuse(p, "--plugin \"%s\": no plugin is named", text);
    o->plugins[o->nplugins++] = plugin;
    return 0;
}

static error_t read_type(struct parse *p, const char *text)
{
    if (strcmp(text, "float") == 0)
        p->o->type = HOLMES_FLOAT32;
    else if (strcmp(text, "bfloat16") == 0)
        p->o->type = HOLMES_BFLOAT16;
    else
        return refuse(p, "--type \"%s\": give float or bfloat16", text);
    return 0;
}

static error_t read_backend(struct parse *p, const char *text)
{
    p->o->through_nccl = strcmp(text, "nccl") == 0;
    if (!p->o->through_nccl && strcmp(text, "net") != 0)
        return refuse(p, "--backend \"%s\": give net or nccl", text);
    return 0;
}

static error_t read_measure(struct parse *p, const char *text)
{
    p->o->no_latency = strcmp(text, "bandwidth") == 0;
    p->o->no_bandwidth = strcmp(text, "latency") == 0;
    if (!p->o->no_latency && !p->o->no_bandwidth && strcmp(text, "both") != 0)
        return refuse(p, "--measure \"%s\": give latency, bandwidth or both", text);
    return 0;
}

static error_t read_collective(struct parse *p, const char *text)
{
    if (p->has_collective)
        return refuse(p, "\"%s\": one collective at a time", text);
    if (holmes_collective_parse(text, &p->o->collective) != 0)
        return refuse(p,
                      "\"%s\" is no collective: give all_reduce, all_gather, reduce_scatter or "
                      "sendrecv",
                      text);
    p->has_collective = true;
    return 0;
}

static error_t read_links(struct parse *p, enum holmes_link_list what, const char *text)
{
    static const char *const options[] = {"--rate", "--rtt", "--loss"};
    int n = holmes_link_list_parse(what, text, p->links[what]);

    if (n < 0)
        return refuse(p, "%s \"%s\": give %s", options[what], text, holmes_link_list_help(what));
    p->nlinks[what] = n;
    return 0;
}

static error_t read_file(struct parse *p, const char *option, char *text, const char **out)
{
    if (!*text)
        return refuse(p, "%s \"\": name a file", option);
    *out = text;
    return 0;
}

/* Options that say what and where. */
static error_t parse_what(int key, char *arg, struct parse *p)
{
    struct holmes_bench_options *o = p->o;

    switch (key) {
    case 'p':
        return read_plugin(p, arg);
    case KEY_DEVICE:
        o->device = arg;
        return 0;
    case KEY_TYPE:
        return read_type(p, arg);
    case KEY_STREAMS:
        o->nstreams = holmes_streams_parse(arg, o->streams);
        return o->nstreams > 0 ? 0
                               : refuse(p,
                                        "--reference-streams \"%s\": give numbers from 1 to 8, "
                                        "like 1-8, 4 or 1,2,4",
                                        arg);
    case KEY_THREADS:
        o->nthreads = holmes_threads_parse(arg, o->threads);
        return o->nthreads > 0 ? 0
                               : refuse(p,
                                        "--reference-threads \"%s\": give numbers from 1 to 8 or "
                                        "\"streams\", like 1,streams",
                                        arg);
    case KEY_BOTH_WAYS:
        o->both_ways = true;
        return 0;
    case KEY_BACKEND:
        return read_backend(p, arg);
    case KEY_MEASURE:
        return read_measure(p, arg);
    case KEY_NO_REFERENCE:
        o->reference = false;
        return 0;
    case KEY_RATE:
        return read_links(p, HOLMES_LINK_RATE, arg);
    case KEY_RTT:
        return read_links(p, HOLMES_LINK_RTT, arg);
    case KEY_RELAY:
        o->link.relay = true;
        return 0;
    case KEY_LINK_HOOK:
        o->link_hook = arg;
        return 0;
    case KEY_LOSS:
        return read_links(p, HOLMES_LINK_LOSS, arg);
    case KEY_CHECK:
    case KEY_NO_CHECK:
        o->check = key == KEY_CHECK;
        return 0;
    case KEY_CSV:
        return read_file(p, "--csv", arg, &o->csv);
    case KEY_JSON:
        return read_file(p, "--json", arg, &o->json);
    case KEY_SVG:
        return read_file(p, "--svg", arg, &o->svg);
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

/* Options that say how much, and what argp tells us. */
static error_t parse_key(int key, char *arg, struct argp_state *state)
{
    struct parse *p = state->input;
    struct holmes_bench_options *o = p->o;

    switch (key) {
    case 'n':
        return read_number(p, "--ranks", arg, 2, HOLMES_BENCH_RANKS_MAX, &o->nranks);
    case 'b':
        return read_size(p, "--min", arg, &o->min_bytes);
    case 'e':
        return read_size(p, "--max", arg, &o->max_bytes);
    case 'f':
        return read_number(p, "--factor", arg, 2, 1 << 20, &o->factor);
    case KEY_ROUNDS:
        return read_number(p, "--rounds", arg, 1, 1000, &o->rounds);
    case KEY_ITERS:
        return read_number(p, "--iters", arg, 1, 1000000, &o->iters);
    case KEY_WINDOW:
        return read_number(p, "--window", arg, 1, 32, &o->window);
    case KEY_IDLE:
        return read_number(p, "--idle-us", arg, 0, 1000, &o->idle_us);
    case KEY_TIMEOUT:
        return read_number(p, "--timeout", arg, 1, 86400, &o->timeout_s);
    case ARGP_KEY_ARG:
        return read_collective(p, arg);
    default:
        return parse_what(key, arg, p);
    }
}

/* One value holds for all links; otherwise there is one for each. */
static void links_fit(struct parse *p)
{
    struct holmes_link_attr *a = &p->o->link;

    for (int what = 0; what < 3; what++)
        if (p->nlinks[what] > a->nlinks)
            a->nlinks = p->nlinks[what];
    for (int what = 0; what < 3; what++)
        if (p->nlinks[what] > 1 && p->nlinks[what] != a->nlinks)
            refuse(p,
                   "--rate, --rtt and --loss name %d, %d and %d links: give one value for all, "
                   "or one for each",
                   p->nlinks[0], p->nlinks[1], p->nlinks[2]);
    if (a->relay && a->nlinks == 0)
        refuse(p, "--relay: there are no links, give --rate, --rtt or --loss");
    if (p->o->link_hook && a->nlinks == 0)
        refuse(p, "--link-hook \"%s\": there are no links, give --rate, --rtt or --loss",
               p->o->link_hook);
    for (int k = 0; k < a->nlinks; k++)
        a->shapes[k] = (struct holmes_link_shape){
            .bits_per_s = p->links[HOLMES_LINK_RATE][p->nlinks[HOLMES_LINK_RATE] > 1 ? k : 0],
            .rtt_us = p->links[HOLMES_LINK_RTT][p->nlinks[HOLMES_LINK_RTT] > 1 ? k : 0],
            .loss_ppm = p->links[HOLMES_LINK_LOSS][p->nlinks[HOLMES_LINK_LOSS] > 1 ? k : 0],
        };
}

static int options_fit(struct parse *p)
{
    struct holmes_bench_options *o = p->o;
    struct holmes_shape shape;

    links_fit(p);
    if (!p->has_collective)
        refuse(p, "name a collective: all_reduce, all_gather, reduce_scatter or sendrecv "
                  "(holmes-bench --help explains)");
    else if (o->min_bytes > o->max_bytes)
        refuse(p, "--min %ju is above --max %ju", (uintmax_t)o->min_bytes, (uintmax_t)o->max_bytes);
    else if (o->collective == HOLMES_SENDRECV && o->nranks % 2)
        refuse(p, "--ranks %d: sendrecv works in pairs, give an even number", o->nranks);
    else if (o->collective != HOLMES_SENDRECV && o->both_ways)
        refuse(p, "--both-ways is for sendrecv; in %s every rank sends and receives at once",
               holmes_collective_name(o->collective));
    else if (o->threads[o->nthreads - 1] > o->streams[o->nstreams - 1])
        refuse(p,
               "--reference-threads %d: more threads than streams, of which there are %d at most",
               o->threads[o->nthreads - 1], o->streams[o->nstreams - 1]);
    else if (o->collective != HOLMES_SENDRECV && (o->no_latency || o->no_bandwidth))
        refuse(p, "--measure is for sendrecv; %s has one measure",
               holmes_collective_name(o->collective));
    else if (o->through_nccl && o->nplugins == 0)
        refuse(p, "--backend nccl without --plugin: name a plugin, or none for NCCL's own network");
    else if (o->through_nccl && o->device)
        refuse(p,
               "--device %s is for --backend net: NCCL chooses by NCCL_IB_HCA and "
               "NCCL_SOCKET_IFNAME",
               o->device);
    else if (o->through_nccl && o->link.nlinks > 0)
        refuse(p, "--rate, --rtt and --loss are for --backend net");
    else if (!o->reference && o->nplugins == 0)
        refuse(p, "--no-reference and no --plugin: nothing is left to measure");
    else if (!holmes_shape_of(o->collective, o->max_bytes, o->nranks, o->type, &shape))
        refuse(p, "--max %ju: too small for one element%s", (uintmax_t)o->max_bytes,
               shape.in_blocks != shape.out_blocks ? " for each rank" : "");
    return p->failed ? -EINVAL : 0;
}

int holmes_bench_options_parse(int argc, char **argv, struct holmes_bench_options *out, char *why,
                               size_t why_len)
{
    static const struct argp argp = {argp_options, parse_key, "COLLECTIVE", argp_doc,
                                     NULL,         NULL,      NULL};
    struct holmes_bench_options o = {
        .nranks = 2,
        .min_bytes = 8,
        .max_bytes = UINT64_C(256) << 20,
        .factor = 2,
        .rounds = 5,
        .window = 8,
        .timeout_s = 60,
        .reference = true,
        .check = true,
        .streams = {1, 2, 4, 8},
        .nstreams = 4,
        .threads = {0, 1},
        .nthreads = 2,
    };
    struct parse p = {.o = &o, .why = why, .why_len = why_len};
    int rc;

    rc = argp_parse(&argp, argc, argv, 0, NULL, &p);
    if (rc != 0 && !p.failed)
        refuse(&p, "%s", strerror(rc));
    if (!p.failed)
        options_fit(&p);
    if (p.failed)
        return -EINVAL;
    *out = o;
    return 0;
}
