/* YAML documents by libyaml's node tree: where a value stands, and whether the document follows a
 * libcyaml schema. */
#include "cluster/yaml_doc.h"

#include <errno.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <yaml.h>

#include "cluster/near_name.h"

#define PATH_MAX_LEN 512
#define WORDS_MAX    32
#define DEPTH_MAX    64 /* lists and groups in one another; libyaml's time grows with its square */

struct holmes_yaml_doc {
    const char *name;
    yaml_document_t yaml;
};

/* Values in the order of the document have the names of their keys and counts: "nodes[3].type". */
struct place {
    char path[PATH_MAX_LEN];
    int line;
};

static int line_of(const yaml_node_t *node)
{
    return (int)node->start_mark.line + 1;
}

static yaml_node_t *node_at(const struct holmes_yaml_doc *doc, int index)
{
    return yaml_document_get_node((yaml_document_t *)&doc->yaml, index);
}

static const char *scalar_text(const yaml_node_t *node)
{
    return node->type == YAML_SCALAR_NODE ? (const char *)node->data.scalar.value : NULL;
}

/* --- parse ----------------------------------------------------------------------------------- */

static int fail_yaml(const yaml_parser_t *parser, const char *name, char *why, size_t why_len)
{
    if (parser->error == YAML_MEMORY_ERROR)
        return -ENOMEM;
    if (parser->error == YAML_READER_ERROR)
        snprintf(why, why_len, "%s: not readable as YAML text: %s at byte %zu", name,
                 parser->problem ? parser->problem : "broken", parser->problem_offset);
    else
        snprintf(why, why_len, "%s:%zu: not readable as YAML: %s%s%s", name,
                 parser->problem_mark.line + 1, parser->problem ? parser->problem : "broken",
                 parser->context ? " " : "", parser->context ? parser->context : "");
    return -EINVAL;
}

/* Events come as the text is read, so that this stops where the nesting is too deep. Whatever else
 * is wrong is left to the loading. */
static int depth_check(const char *name, const void *data, size_t len, char *why, size_t why_len)
{
    yaml_parser_t parser;
    int depth = 0, rc = 0;
    bool more = true;

    if (!yaml_parser_initialize(&parser))
        return -ENOMEM;
    yaml_parser_set_input_string(&parser, data, len);
    while (rc == 0 && more) {
        yaml_event_t e;

        if (!yaml_parser_parse(&parser, &e))
            break;
        depth += e.type == YAML_SEQUENCE_START_EVENT || e.type == YAML_MAPPING_START_EVENT;
        depth -= e.type == YAML_SEQUENCE_END_EVENT || e.type == YAML_MAPPING_END_EVENT;
        more = e.type != YAML_STREAM_END_EVENT;
        if (depth > DEPTH_MAX) {
            snprintf(why, why_len, "%s:%zu: lists and groups are more than %d deep in one another",
                     name, e.start_mark.line + 1, DEPTH_MAX);
            rc = -EINVAL;
        }
        yaml_event_delete(&e);
    }
    yaml_parser_delete(&parser);
    return rc;
}

int holmes_yaml_doc_parse(const char *name, const void *data, size_t len,
                          struct holmes_yaml_doc **out, char *why, size_t why_len)
{
    int rc = depth_check(name, data, len, why, why_len);

    if (rc != 0)
        return rc;

    struct holmes_yaml_doc *doc = calloc(1, sizeof *doc);
    yaml_document_t second;
    yaml_parser_t parser;

    if (!doc)
        return -ENOMEM;
    if (!yaml_parser_initialize(&parser)) {
        free(doc);
        return -ENOMEM;
    }
    doc->name = name;
    yaml_parser_set_input_string(&parser, data, len);
    if (!yaml_parser_load(&parser, &doc->yaml)) {
        rc = fail_yaml(&parser, name, why, why_len);
        goto fail_parser;
    }
    if (!yaml_document_get_root_node(&doc->yaml)) {
        snprintf(why, why_len, "%s: the file is empty", name);
        rc = -EINVAL;
        goto fail_doc;
    }
    if (!yaml_parser_load(&parser, &second)) {
        rc = fail_yaml(&parser, name, why, why_len);
        goto fail_doc;
    }

    const yaml_node_t *root = yaml_document_get_root_node(&second);

    if (root) {
        snprintf(why, why_len, "%s:%d: a second document (\"---\") begins; one is expected", name,
                 line_of(root));
        rc = -EINVAL;
    }
    yaml_document_delete(&second);
    if (rc != 0)
        goto fail_doc;
    yaml_parser_delete(&parser);
    *out = doc;
    return 0;

fail_doc:
    yaml_document_delete(&doc->yaml);
fail_parser:
    yaml_parser_delete(&parser);
    free(doc);
    return rc;
}

void holmes_yaml_doc_destroy(struct holmes_yaml_doc *doc)
{
    if (!doc)
        return;
    yaml_document_delete(&doc->yaml);
    free(doc);
}

/* --- places ---------------------------------------------------------------------------------- */

/* The node at the path; where there is none, NULL, and *line is that of the last there was. */
static const yaml_node_t *node_find(const struct holmes_yaml_doc *doc, const char *path, int *line)
{
    const yaml_node_t *node = node_at(doc, 1);

    *line = line_of(node);
    while (*path && node) {
        const yaml_node_t *next = NULL;

        if (*path == '[') {
            long i = strtol(path + 1, (char **)&path, 10);

            path++;
            if (node->type == YAML_SEQUENCE_NODE && i >= 0 &&
                i < node->data.sequence.items.top - node->data.sequence.items.start) {
                next = node_at(doc, node->data.sequence.items.start[i]);
                *line = line_of(next);
            }
        } else {
            path += *path == '.';

            size_t len = strcspn(path, ".[");

            for (yaml_node_pair_t *p =
                     node->type == YAML_MAPPING_NODE ? node->data.mapping.pairs.start : NULL;
                 p && p < node->data.mapping.pairs.top && !next; p++) {
                const yaml_node_t *key = node_at(doc, p->key);
                const char *text = scalar_text(key);

                if (text && strlen(text) == len && memcmp(text, path, len) == 0) {
                    next = node_at(doc, p->value);
                    *line = line_of(key);
                }
            }
            path += len;
        }
        node = next;
    }
    return node;
}

const char *holmes_yaml_doc_text(const struct holmes_yaml_doc *doc, const char *path)
{
    int line;
    const yaml_node_t *node = node_find(doc, path, &line);

    return node ? scalar_text(node) : NULL;
}

int holmes_yaml_doc_line(const struct holmes_yaml_doc *doc, const char *path)
{
    int line;

    node_find(doc, path, &line);
    return line;
}

static int fail_v(const struct holmes_yaml_doc *doc, const char *path, int line, char *why,
                  size_t why_len, const char *fmt, va_list ap)
    __attribute__((format(printf, 6, 0)));

static int fail_v(const struct holmes_yaml_doc *doc, const char *path, int line, char *why,
                  size_t why_len, const char *fmt, va_list ap)
{
    int n = snprintf(why, why_len, "%s:%d: %s%s", doc->name, line, path, *path ? ": " : "");

    if (n >= 0 && (size_t)n < why_len)
        vsnprintf(why + n, why_len - (size_t)n, fmt, ap);
    return -EINVAL;
}

int holmes_yaml_doc_fail(const struct holmes_yaml_doc *doc, const char *path, char *why,
                         size_t why_len, const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    fail_v(doc, path, holmes_yaml_doc_line(doc, path), why, why_len, fmt, ap);
    va_end(ap);
    return -EINVAL;
}

/* --- against a schema ------------------------------------------------------------------------ */

struct check {
    const struct holmes_yaml_doc *doc;
    char *why;
    size_t why_len;
    struct place at;
};

static int check_fail(struct check *c, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

static int check_fail(struct check *c, const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    fail_v(c->doc, c->at.path, c->at.line, c->why, c->why_len, fmt, ap);
    va_end(ap);
    return -EINVAL;
}

static int check_value(struct check *c, const yaml_node_t *node,
                       const cyaml_schema_value_t *schema);

/* "a, b, c" */
static void words_join(const char *const *words, char *buf, size_t len)
{
    size_t at = 0;

    buf[0] = '\0';
    for (int i = 0; words[i] && at < len; i++)
        at += (size_t)snprintf(buf + at, len - at, "%s%s", i > 0 ? ", " : "", words[i]);
}

static int check_enum(struct check *c, const char *text, const cyaml_schema_value_t *schema)
{
    const char *words[WORDS_MAX + 1] = {NULL};
    char list[400];

    for (uint32_t i = 0; i < schema->enumeration.count; i++) {
        if (strcmp(text, schema->enumeration.strings[i].str) == 0)
            return 0;
        if (i < WORDS_MAX)
            words[i] = schema->enumeration.strings[i].str;
    }
    words_join(words, list, sizeof list);
    return check_fail(c, "\"%.60s\" is none of: %s", text, list);
}

static int check_key_known(struct check *c, const char *key, const cyaml_schema_field_t *fields,
                           int *index)
{
    const char *words[WORDS_MAX + 1] = {NULL};
    char list[400];

    for (int i = 0; fields[i].key; i++) {
        if (strcmp(key, fields[i].key) == 0) {
            *index = i;
            return 0;
        }
        if (i < WORDS_MAX)
            words[i] = fields[i].key;
    }

    const char *near = holmes_near_name(key, words);

    words_join(words, list, sizeof list);
    if (near)
        return check_fail(c, "there is no key \"%.60s\"; did you mean \"%s\"?", key, near);
    return check_fail(c, "there is no key \"%.60s\"; there are: %s", key, list);
}

static int check_mapping(struct check *c, const yaml_node_t *node,
                         const cyaml_schema_field_t *fields)
{
    size_t path_len = strlen(c->at.path);
    int line = c->at.line, lines[WORDS_MAX] = {0}, rc = 0;

    if (node->type != YAML_MAPPING_NODE)
        return check_fail(c, "keys with values are expected here");
    for (yaml_node_pair_t *p = node->data.mapping.pairs.start; p < node->data.mapping.pairs.top;
         p++) {
        const yaml_node_t *key_node = node_at(c->doc, p->key);
        const char *key = scalar_text(key_node);
        int i = 0;

        c->at.line = line_of(key_node);
        if (!key)
            return check_fail(c, "a key is not a plain word");
        rc = check_key_known(c, key, fields, &i);
        if (rc != 0)
            return rc;
        if (i < WORDS_MAX && lines[i] > 0)
            return check_fail(c, "key \"%s\" comes twice, first in line %d", key, lines[i]);
        if (i < WORDS_MAX)
            lines[i] = c->at.line;
        snprintf(c->at.path + path_len, sizeof c->at.path - path_len, "%s%s",
                 path_len > 0 ? "." : "", key);
        rc = check_value(c, node_at(c->doc, p->value), &fields[i].value);
        if (rc != 0)
            return rc;
        c->at.path[path_len] = '\0';
    }
    c->at.line = line;
    for (int i = 0; fields[i].key && i < WORDS_MAX; i++)
        if (lines[i] == 0 && !(fields[i].value.flags & CYAML_FLAG_OPTIONAL))
            return check_fail(c, "the key \"%s\" is missing", fields[i].key);
    return 0;
}

static int check_sequence(struct check *c, const yaml_node_t *node,
                          const cyaml_schema_value_t *schema)
{
    size_t path_len = strlen(c->at.path);
    int line = c->at.line;

    if (node->type != YAML_SEQUENCE_NODE)
        return check_fail(c, "a list is expected here");

    long n = node->data.sequence.items.top - node->data.sequence.items.start;

    if (n < (long)schema->sequence.min)
        return check_fail(c, "the list has %ld entr%s; at least %u %s needed", n,
                          n == 1 ? "y" : "ies", schema->sequence.min,
                          schema->sequence.min == 1 ? "is" : "are");
    if (schema->sequence.max != CYAML_UNLIMITED && n > (long)schema->sequence.max)
        return check_fail(c, "the list has %ld entries; at most %u are taken", n,
                          schema->sequence.max);
    for (long i = 0; i < n; i++) {
        const yaml_node_t *entry = node_at(c->doc, node->data.sequence.items.start[i]);

        snprintf(c->at.path + path_len, sizeof c->at.path - path_len, "[%ld]", i);
        c->at.line = line_of(entry);

        int rc = check_value(c, entry, schema->sequence.entry);

        if (rc != 0)
            return rc;
    }
    c->at.path[path_len] = '\0';
    c->at.line = line;
    return 0;
}

static int check_value(struct check *c, const yaml_node_t *node, const cyaml_schema_value_t *schema)
{
    switch (schema->type) {
    case CYAML_MAPPING:
        return check_mapping(c, node, schema->mapping.fields);
    case CYAML_SEQUENCE:
        return check_sequence(c, node, schema);
    default:
        break;
    }

    const char *text = scalar_text(node);

    if (!text)
        return check_fail(c, "one word or number is expected here, not a %s",
                          node->type == YAML_SEQUENCE_NODE ? "list" : "group of keys");
    if (strlen(text) != node->data.scalar.length)
        return check_fail(c, "the text has a zero byte in it");
    if (schema->type == CYAML_ENUM)
        return check_enum(c, text, schema);
    if (text[0] == '\0')
        return check_fail(c, "nothing is given");
    return 0;
}

int holmes_yaml_doc_check(const struct holmes_yaml_doc *doc, const cyaml_schema_value_t *schema,
                          char *why, size_t why_len)
{
    const yaml_node_t *root = node_at(doc, 1);
    struct check c = {.doc = doc, .why = why, .why_len = why_len, .at = {"", line_of(root)}};

    return check_value(&c, root, schema);
}
