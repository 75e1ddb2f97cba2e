#include "xml.h"

#include <errno.h>
#include <limits.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

/* libxml2's message ends in a newline, and may quote what the file has. */
static void tell_parser_error(struct xml_file *f, const xmlError *e)
{
    char text[200];

    snprintf(text, sizeof text, "%s", e && e->message ? e->message : "no XML");
    for (char *p = text; *p; p++)
        if ((unsigned char)*p < ' ')
            *p = p[1] ? ' ' : '\0';
    snprintf(f->why, f->why_len, "%s:%d: %s", f->name, e ? e->line : 1, text);
    f->rc = -EINVAL;
}

int xml_open(struct xml_file *f, const void *data, size_t len)
{
    xmlParserCtxt *ctxt;

    f->doc = NULL;
    f->rc = 0;
    if (len > INT_MAX || len > HOLMES_HOST_FILE_MAX) {
        snprintf(f->why, f->why_len, "%s: larger than %u MiB", f->name, HOLMES_HOST_FILE_MAX >> 20);
        return f->rc = -EFBIG;
    }
    ctxt = xmlNewParserCtxt();
    if (!ctxt) {
        xml_no_memory(f);
        return f->rc;
    }
    f->doc = xmlCtxtReadMemory(ctxt, data, (int)len, NULL, NULL,
                               XML_PARSE_NONET | XML_PARSE_NOERROR | XML_PARSE_NOWARNING |
                                   XML_PARSE_BIG_LINES | XML_PARSE_COMPACT);
    if (!f->doc || !ctxt->wellFormed)
        tell_parser_error(f, xmlCtxtGetLastError(ctxt));
    else if (f->doc->intSubset && f->doc->intSubset->entities)
        xml_mistake(f, xmlDocGetRootElement(f->doc), NULL, "the file declares entities");
    xmlFreeParserCtxt(ctxt);
    return f->rc;
}

void xml_close(struct xml_file *f)
{
    xmlFreeDoc(f->doc);
    f->doc = NULL;
}

void xml_mistake(struct xml_file *f, const xmlNode *node, const char *attr, const char *fmt, ...)
{
    const char *value = attr ? xml_attr(node, attr) : NULL;
    char what[300];
    va_list ap;

    if (f->rc != 0)
        return;
    va_start(ap, fmt);
    vsnprintf(what, sizeof what, fmt, ap);
    va_end(ap);
    if (attr && value)
        snprintf(f->why, f->why_len, "%s:%ld: <%.64s %s=\"%.64s\">: %s", f->name,
                 xmlGetLineNo(node), (const char *)node->name, attr, value, what);
    else
        snprintf(f->why, f->why_len, "%s:%ld: <%.64s>: %s%s%s", f->name, xmlGetLineNo(node),
                 (const char *)node->name, attr ? attr : "", attr ? " " : "", what);
    f->rc = -EINVAL;
}

void xml_no_memory(struct xml_file *f)
{
    if (f->rc != 0)
        return;
    snprintf(f->why, f->why_len, "%s: no memory", f->name);
    f->rc = -ENOMEM;
}

bool xml_is(const xmlNode *node, const char *name)
{
    return node->type == XML_ELEMENT_NODE && strcmp((const char *)node->name, name) == 0;
}

const char *xml_attr(const xmlNode *node, const char *attr)
{
    for (const xmlAttr *a = node->properties; a; a = a->next) {
        const xmlNode *text = a->children;

        if (strcmp((const char *)a->name, attr) != 0)
            continue;
        if (!text)
            return "";
        return text->type == XML_TEXT_NODE && !text->next && text->content
                   ? (const char *)text->content
                   : NULL;
    }
    return NULL;
}

const char *xml_need(struct xml_file *f, const xmlNode *node, const char *attr)
{
    const char *s = xml_attr(node, attr);

    if (s && *s)
        return s;
    xml_mistake(f, node, attr, s ? "is empty" : "is missing");
    return NULL;
}

int64_t xml_int(struct xml_file *f, const xmlNode *node, const char *attr, int64_t low,
                int64_t high, int64_t unknown)
{
    const char *s = xml_attr(node, attr);
    long long v;
    char *end;

    if (!s || !*s)
        return unknown;
    errno = 0;
    v = strtoll(s, &end, 0);
    if (end == s || *end || errno || v < low || v > high) {
        xml_mistake(f, node, attr, "a whole number from %lld to %lld is right", (long long)low,
                    (long long)high);
        return unknown;
    }
    return v;
}

void xml_text(struct xml_file *f, const xmlNode *node, const char *attr, char *out, size_t len)
{
    const char *s = xml_attr(node, attr);

    if (s && strlen(s) >= len)
        xml_mistake(f, node, attr, "longer than %zu characters", len - 1);
    else if (s)
        memcpy(out, s, strlen(s) + 1);
}
