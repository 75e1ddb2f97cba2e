/* YAML documents by libyaml's node tree: reading one with suspicion, and where its values stand. */
#include "yaml_doc.h"

#include <errno.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DEPTH_MAX 64 /* lists and groups in one another; libyaml's time grows with its square */

struct holmes_yaml_doc {
    const char *name;
    yaml_document_t yaml;
};

int holmes_yaml_doc_line_of(const yaml_node_t *node)
{
    return (int)node->start_mark.line + 1;
}

const yaml_node_t *holmes_yaml_doc_node(const struct holmes_yaml_doc *doc, int index)
{
    return yaml_document_get_node((yaml_document_t *)&doc->yaml, index);
}

const char *holmes_yaml_doc_scalar(const yaml_node_t *node)
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
                 holmes_yaml_doc_line_of(root));
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
    const yaml_node_t *node = holmes_yaml_doc_node(doc, 1);

    *line = holmes_yaml_doc_line_of(node);
    while (*path && node) {
        const yaml_node_t *next = NULL;

        if (*path == '[') {
            long i = strtol(path + 1, (char **)&path, 10);

            path++;
            if (node->type == YAML_SEQUENCE_NODE && i >= 0 &&
                i < node->data.sequence.items.top - node->data.sequence.items.start) {
                next = holmes_yaml_doc_node(doc, node->data.sequence.items.start[i]);
                *line = holmes_yaml_doc_line_of(next);
            }
        } else {
            path += *path == '.';

            size_t len = strcspn(path, ".[");

            for (yaml_node_pair_t *p =
                     node->type == YAML_MAPPING_NODE ? node->data.mapping.pairs.start : NULL;
                 p && p < node->data.mapping.pairs.top && !next; p++) {
                const yaml_node_t *key = holmes_yaml_doc_node(doc, p->key);
                const char *text = holmes_yaml_doc_scalar(key);

                if (text && strlen(text) == len && memcmp(text, path, len) == 0) {
                    next = holmes_yaml_doc_node(doc, p->value);
                    *line = holmes_yaml_doc_line_of(key);
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

    return node ? holmes_yaml_doc_scalar(node) : NULL;
}

int holmes_yaml_doc_line(const struct holmes_yaml_doc *doc, const char *path)
{
    int line;

    node_find(doc, path, &line);
    return line;
}

int holmes_yaml_doc_fail_at(const struct holmes_yaml_doc *doc, const char *path, int line,
                            char *why, size_t why_len, const char *fmt, va_list ap)
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
    holmes_yaml_doc_fail_at(doc, path, holmes_yaml_doc_line(doc, path), why, why_len, fmt, ap);
    va_end(ap);
    return -EINVAL;
}
