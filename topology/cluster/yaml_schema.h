/* A YAML document checked against a libcyaml schema before libcyaml loads it. libcyaml alone stops
 * at the first fault with a trace in its log, takes any word for true, loses the first of two equal
 * keys, and knows no line once it is done. */
#ifndef HOLMES_YAML_SCHEMA_H
#define HOLMES_YAML_SCHEMA_H

#include <cyaml/cyaml.h>
#include <stddef.h>

#include "yaml_doc.h"

/* Whether the document is one of the schema: kinds of values, keys (an unknown one is told with the
 * near name), words of an enum, counts. 0, or -EINVAL with "NAME:LINE: ..." in `why`. */
int holmes_yaml_schema_check(const struct holmes_yaml_doc *doc, const cyaml_schema_value_t *schema,
                             char *why, size_t why_len);

#endif
