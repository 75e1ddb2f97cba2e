/* Whether a YAML document follows a libcyaml schema. */
#include "cluster/yaml_schema.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "near_name.h"

#define PATH_MAX_LEN 512
#define WORDS_MAX    32

/* Values in the order of the document have the names of their keys and counts: "nodes[3].type". */
struct place {
    char path[PATH_MAX_LEN];
    int line;
};

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
    holmes_yaml_doc_fail_at(c->doc, c->at.path, c->at.line, c->why, c->why_len, fmt, ap);
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
        const yaml_node_t *key_node = holmes_yaml_doc_node(c->doc, p->key);
        const char *key = holmes_yaml_doc_scalar(key_node);
        int i = 0;

        c->at.line = holmes_yaml_doc_line_of(key_node);
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
        rc = check_value(c, holmes_yaml_doc_node(c->doc, p->value), &fields[i].value);
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
        const yaml_node_t *entry = holmes_yaml_doc_node(c->doc, node->data.sequence.items.start[i]);

        snprintf(c->at.path + path_len, sizeof c->at.path - path_len, "[%ld]", i);
        c->at.line = holmes_yaml_doc_line_of(entry);

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

    const char *text = holmes_yaml_doc_scalar(node);

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

int holmes_yaml_schema_check(const struct holmes_yaml_doc *doc, const cyaml_schema_value_t *schema,
                             char *why, size_t why_len)
{
    const yaml_node_t *root = holmes_yaml_doc_node(doc, 1);
    struct check c = {
        .doc = doc, .why = why, .why_len = why_len, .at = {"", holmes_yaml_doc_line_of(root)}};

    return check_value(&c, root, schema);
}
