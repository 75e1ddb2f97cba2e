/* Configurations as YAML files: one mapping, whose keys are the names of options. */
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "config_spec.h"
#include "yaml_doc.h"

#define FILE_BYTES_MAX (4 << 20) /* a rank order of 100,000 ranks is 0.6 MB */

int holmes_config_file_read(const char *path, char **data, size_t *len, char *why, size_t why_len)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* no FIFO's writer is waited for */
    FILE *f = fd >= 0 ? fdopen(fd, "r") : NULL;
    struct stat st;
    char *buf = NULL;
    int rc = 0;

    if (!f || fstat(fileno(f), &st) != 0) {
        snprintf(why, why_len, "--config %s: %s", path, strerror(errno));
        rc = -EINVAL;
    } else if (!S_ISREG(st.st_mode) || st.st_size > FILE_BYTES_MAX) {
        snprintf(why, why_len, "--config %s: a file of at most %d MiB is right", path,
                 FILE_BYTES_MAX >> 20);
        rc = -EINVAL;
    } else if (!(buf = malloc((size_t)st.st_size + 1))) {
        rc = -ENOMEM;
    } else {
        *len = fread(buf, 1, (size_t)st.st_size, f);
        if (ferror(f)) {
            snprintf(why, why_len, "--config %s: %s", path, strerror(EIO));
            rc = -EINVAL;
        }
    }
    if (f)
        fclose(f);
    if (rc != 0)
        free(buf);
    else
        *data = buf;
    return rc;
}

struct reader {
    const struct holmes_yaml_doc *doc;
    struct holmes_config *config;
    char *why;
    size_t why_len;
    int lines[HOLMES_CONFIG_OPTIONS]; /* of keys that have come; 0: not yet */
};

static int fail(struct reader *r, int line, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
static int fail(struct reader *r, int line, const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    holmes_yaml_doc_fail_at(r->doc, "", line, r->why, r->why_len, fmt, ap);
    va_end(ap);
    return -EINVAL;
}

static int set_at(struct reader *r, const struct holmes_spec *s, const char *text, int line)
{
    char why[400];
    int rc = s->type == SPEC_START ? holmes_preset_apply(text, r->config, why, sizeof why)
                                   : holmes_spec_set(s, text, r->config, why, sizeof why);

    return rc == -EINVAL ? fail(r, line, "%s", why) : rc;
}

/* "a,b,c" of a list of words. */
static int set_list(struct reader *r, const struct holmes_spec *s, const yaml_node_t *list,
                    int line)
{
    char *joined = NULL;
    size_t len = 0;
    FILE *out = open_memstream(&joined, &len);
    int rc = 0;

    if (!out)
        return -ENOMEM;
    for (const yaml_node_item_t *i = list->data.sequence.items.start;
         i < list->data.sequence.items.top && rc == 0; i++) {
        const yaml_node_t *node = holmes_yaml_doc_node(r->doc, *i);
        const char *word = holmes_yaml_doc_scalar(node);

        if (!word || !*word || strchr(word, ',') || strlen(word) != node->data.scalar.length)
            rc = fail(r, holmes_yaml_doc_line_of(node),
                      "%s: words or numbers without commas are the entries of this list", s->name);
        else
            fprintf(out, "%s%s", i > list->data.sequence.items.start ? "," : "", word);
    }
    if (fclose(out) != 0 && rc == 0)
        rc = -ENOMEM;
    if (rc == 0)
        rc = set_at(r, s, joined, line);
    free(joined);
    return rc;
}

static int set_pair(struct reader *r, const struct holmes_spec *s, const yaml_node_t *value,
                    int line)
{
    const char *text = holmes_yaml_doc_scalar(value);
    bool is_list = s->type == SPEC_LIST || s->type == SPEC_ORDER;

    if (value->type == YAML_SEQUENCE_NODE && is_list)
        return set_list(r, s, value, line);
    if (!text)
        return fail(r, line, "%s: one word or number is right%s, not a %s", s->name,
                    is_list ? ", or a list" : "",
                    value->type == YAML_SEQUENCE_NODE ? "list" : "group of keys");
    if (strlen(text) != value->data.scalar.length)
        return fail(r, line, "%s: the text has a zero byte in it", s->name);
    return set_at(r, s, text, line);
}

static int find_key(struct reader *r, const yaml_node_t *key, const struct holmes_spec **out)
{
    const char *name = holmes_yaml_doc_scalar(key), *near;
    const struct holmes_spec *s = name ? holmes_spec_find(name) : NULL;
    int line = holmes_yaml_doc_line_of(key), *first;

    if (!name)
        return fail(r, line, "a key is the name of an option, not a list or group");
    if (s && s->type == SPEC_START && strcmp(name, "preset") != 0)
        return fail(r, line, "\"%s\" is for the command line: each process has its own", name);
    if (!s) {
        near = holmes_spec_near(strncmp(name, "--", 2) == 0 ? name + 2 : name);
        return fail(r, line, "there is no option \"%.60s\"%s%s%s", name,
                    near ? "; did you mean \"" : "; holmes-train --help lists them",
                    near ? near : "", near ? "\"?" : "");
    }
    first = &r->lines[s - holmes_specs];
    if (*first > 0)
        return fail(r, line, "\"%s\" comes twice, first in line %d", name, *first);
    *first = line;
    *out = s;
    return 0;
}

/* The preset's turn, then that of all others. */
static int walk(struct reader *r, const yaml_node_t *root, bool preset, bool skip)
{
    const yaml_node_pair_t *p;
    int rc = 0;

    memset(r->lines, 0, sizeof r->lines);
    for (p = root->data.mapping.pairs.start; p < root->data.mapping.pairs.top && rc == 0; p++) {
        const yaml_node_t *key = holmes_yaml_doc_node(r->doc, p->key);
        const struct holmes_spec *s = NULL;

        rc = find_key(r, key, &s);
        if (rc == 0 && (s->type == SPEC_START) == preset && !skip)
            rc = set_pair(r, s, holmes_yaml_doc_node(r->doc, p->value),
                          holmes_yaml_doc_line_of(key));
    }
    return rc;
}

int holmes_config_file_apply(const char *name, const char *data, size_t len, bool no_preset,
                             struct holmes_config *c, char *why, size_t why_len)
{
    struct holmes_yaml_doc *doc;
    struct reader r = {.config = c, .why = why, .why_len = why_len};
    const yaml_node_t *root;
    int rc = holmes_yaml_doc_parse(name, data, len, &doc, why, why_len);

    if (rc != 0)
        return rc;
    r.doc = doc;
    root = holmes_yaml_doc_node(doc, 1);
    if (root->type != YAML_MAPPING_NODE)
        rc = fail(&r, holmes_yaml_doc_line_of(root),
                  "lines of \"option: value\" are right in such a file");
    if (rc == 0)
        rc = walk(&r, root, true, no_preset);
    if (rc == 0)
        rc = walk(&r, root, false, false);
    holmes_yaml_doc_destroy(doc);
    return rc;
}

/* --- the other way ---------------------------------------------------------------------------- */

static bool is_plain(const char *text)
{
    static const char plain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
                                "_./+-:";
    size_t len = strlen(text);

    return len > 0 && strspn(text, plain) == len && !strchr("-:", text[0]) && text[len - 1] != ':';
}

/* Length of the UTF-8 character at `s` that YAML takes in quotes as it is; 0: none. */
static int utf8_length(const unsigned char *s)
{
    int n = s[0] < 0x80 ? 1 : s[0] >= 0xc2 && s[0] < 0xe0 ? 2 : s[0] >= 0xe0 && s[0] < 0xf0 ? 3 : 4;
    uint32_t v = n == 1 ? s[0] : (uint32_t)s[0] & (0x7fu >> n);

    if (s[0] >= 0xf5 || (s[0] >= 0x80 && s[0] < 0xc2))
        return 0;
    for (int i = 1; i < n; i++) {
        if ((s[i] & 0xc0) != 0x80)
            return 0;
        v = v << 6 | (s[i] & 0x3fu);
    }
    if ((n == 3 && v < 0x800) || (n == 4 && v < 0x10000) || v > 0x10ffff ||
        (v >= 0xd800 && v < 0xe000))
        return 0;
    return n;
}

/* One scalar; false where the text is not UTF-8, which YAML cannot hold. */
static bool print_scalar(const char *text, FILE *out)
{
    const unsigned char *s = (const unsigned char *)text;

    if (is_plain(text))
        return fputs(text, out) >= 0;
    fputc('"', out);
    while (*s) {
        int n = utf8_length(s);

        if (n == 0)
            return false;
        if (n == 1 && (*s < 0x20 || *s == 0x7f))
            fprintf(out, "\\x%02x", *s);
        else if (n == 2 && s[0] == 0xc2 && s[1] < 0xa0)
            fprintf(out, "\\x%02x", s[1]);
        else if (n == 3 && (s[0] == 0xef || s[0] == 0xe2))
            fprintf(out, "\\u%04x", (s[0] & 15u) << 12 | (s[1] & 63u) << 6 | (s[2] & 63u));
        else
            fprintf(out, "%s%.*s", *s == '"' || *s == '\\' ? "\\" : "", n, (const char *)s);
        s += n;
    }
    fputc('"', out);
    return true;
}

static bool print_list(const char *text, FILE *out)
{
    char *copy = strdup(text), *rest = copy, *word;
    bool good = copy != NULL, first = true;

    /* An empty entry is a fault that the check names; as a list it could not be read back. */
    if (good && (strstr(text, ",,") || text[0] == ',' || text[strlen(text) - 1] == ',')) {
        free(copy);
        return print_scalar(text, out);
    }
    fputc('[', out);
    while (good && (word = strsep(&rest, ","))) {
        if (!first)
            fputs(", ", out);
        first = false;
        good = print_scalar(word, out);
    }
    fputc(']', out);
    free(copy);
    return good;
}

static bool print_value(const struct holmes_spec *s, const char *text, FILE *out)
{
    return s->type == SPEC_LIST || s->type == SPEC_ORDER ? print_list(text, out)
                                                         : print_scalar(text, out);
}

int holmes_config_print(const struct holmes_config *c, FILE *out, char *why, size_t why_len)
{
    const struct holmes_spec *s = holmes_specs;
    char buf[64];

    for (int i = 0; i < holmes_nspecs; i++, s++) {
        const char *text = holmes_spec_get(s, c, buf, sizeof buf);

        if (s->type == SPEC_GROUP && i > 0) {
            fprintf(out, "\n# %s\n", s->doc);
        } else if (text) {
            fprintf(out, "%s: ", s->name);
            if (!print_value(s, text, out)) {
                snprintf(why, why_len, "--%s: the text is not UTF-8, which YAML needs", s->name);
                return -EINVAL;
            }
            fputc('\n', out);
        } else if (s->name && s->type != SPEC_START) {
            fprintf(out, "# %s: %s\n", s->name, s->arg);
        }
    }
    if (fflush(out) != 0 || ferror(out)) {
        snprintf(why, why_len, "cannot write the configuration: %s", strerror(errno));
        return -EIO;
    }
    return 0;
}
