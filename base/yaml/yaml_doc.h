/* A YAML document with its line numbers, by libyaml's node tree. Nesting is bounded, a second
 * document in the text is refused. A library of its own: base/ needs no libyaml. */
#ifndef HOLMES_YAML_DOC_H
#define HOLMES_YAML_DOC_H

#include <stdarg.h>
#include <stddef.h>
#include <yaml.h>

struct holmes_yaml_doc;

/* 0, or -EINVAL with "NAME:LINE: ..." in `why`, or -ENOMEM. The caller destroys *out. `name` and
 * `data` must live as long. */
int holmes_yaml_doc_parse(const char *name, const void *data, size_t len,
                          struct holmes_yaml_doc **out, char *why, size_t why_len);
void holmes_yaml_doc_destroy(struct holmes_yaml_doc *doc);

/* The text at a path such as "nodes[3].type", or NULL. */
const char *holmes_yaml_doc_text(const struct holmes_yaml_doc *doc, const char *path);
/* The line of a path, or of what of it there is. */
int holmes_yaml_doc_line(const struct holmes_yaml_doc *doc, const char *path);
/* Puts "NAME:LINE: PATH: ..." into `why`; returns -EINVAL. */
int holmes_yaml_doc_fail(const struct holmes_yaml_doc *doc, const char *path, char *why,
                         size_t why_len, const char *fmt, ...)
    __attribute__((format(printf, 5, 6)));
/* The same with the line told. */
int holmes_yaml_doc_fail_at(const struct holmes_yaml_doc *doc, const char *path, int line,
                            char *why, size_t why_len, const char *fmt, va_list ap)
    __attribute__((format(printf, 6, 0)));

/* For walks: node 1 is the root; others have the numbers that libyaml's sequences and pairs hold.
 */
const yaml_node_t *holmes_yaml_doc_node(const struct holmes_yaml_doc *doc, int index);
int holmes_yaml_doc_line_of(const yaml_node_t *node);
/* The text of a scalar, which may hold zero bytes before its length; NULL for lists and groups. */
const char *holmes_yaml_doc_scalar(const yaml_node_t *node);

#endif
