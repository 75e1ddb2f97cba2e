/* XML files of others, read with care: no network, no entities, bounded depth; and their
 * attributes, where every mistake is told with file, line, element and attribute. */
#ifndef HOLMES_HOST_XML_H
#define HOLMES_HOST_XML_H

#include <libxml/parser.h>
#include <libxml/tree.h>

#include "host.h"

struct xml_file {
    const char *name;
    xmlDoc *doc;
    char *why;
    size_t why_len;
    int rc; /* of the first mistake; later ones keep it */
};

/* Parses. `f->name`, `why` and `why_len` are set; 0 or -EINVAL. xml_close after either. */
int xml_open(struct xml_file *f, const void *data, size_t len);
void xml_close(struct xml_file *f);

void xml_mistake(struct xml_file *f, const xmlNode *node, const char *attr, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
void xml_no_memory(struct xml_file *f);

bool xml_is(const xmlNode *node, const char *name); /* an element of that name */

/* The attribute's text without copy; NULL when absent. Only what is plain text counts. */
const char *xml_attr(const xmlNode *node, const char *attr);
/* The same where it must be there and not be empty; NULL after a mistake. */
const char *xml_need(struct xml_file *f, const xmlNode *node, const char *attr);
/* A whole number, decimal or 0x; `unknown` when absent or empty. */
int64_t xml_int(struct xml_file *f, const xmlNode *node, const char *attr, int64_t low,
                int64_t high, int64_t unknown);
/* Into `out`; too long is a mistake. */
void xml_text(struct xml_file *f, const xmlNode *node, const char *attr, char *out, size_t len);

#endif
