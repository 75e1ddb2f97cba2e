/* A YAML document with its line numbers, checked against a libcyaml schema before libcyaml loads
 * it. libcyaml alone stops at the first fault with a trace in its log, takes any word for true,
 * loses the first of two equal keys, and knows no line once it is done. */
#ifndef HOLMES_YAML_DOC_H
#define HOLMES_YAML_DOC_H

#include <cyaml/cyaml.h>
#include <stddef.h>

struct holmes_yaml_doc;

/* 0, or -EINVAL with "NAME:LINE: ..." in `why`, or -ENOMEM. The caller destroys *out. `data` must
 * live as long. */
int holmes_yaml_doc_parse(const char *name, const void *data, size_t len,
                          struct holmes_yaml_doc **out, char *why, size_t why_len);
/* Whether the document is one of the schema: kinds of values, keys (an unknown one is told with the
 * near name), words of an enum, counts. Same errors. */
int holmes_yaml_doc_check(const struct holmes_yaml_doc *doc, const cyaml_schema_value_t *schema,
                          char *why, size_t why_len);
/* The text at a path such as "nodes[3].type", or NULL. */
const char *holmes_yaml_doc_text(const struct holmes_yaml_doc *doc, const char *path);
/* The line of a path, or of what of it there is. */
int holmes_yaml_doc_line(const struct holmes_yaml_doc *doc, const char *path);
/* Puts "NAME:LINE: PATH: ..." into `why`; returns -EINVAL. */
int holmes_yaml_doc_fail(const struct holmes_yaml_doc *doc, const char *path, char *why,
                         size_t why_len, const char *fmt, ...)
    __attribute__((format(printf, 5, 6)));
void holmes_yaml_doc_destroy(struct holmes_yaml_doc *doc);

#endif
