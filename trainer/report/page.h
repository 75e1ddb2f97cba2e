/* The report: as an HTML page that needs nothing but itself, as a table for terminals, as JSON. */
#ifndef HOLMES_PAGE_H
#define HOLMES_PAGE_H

#include <jansson.h>
#include <stdio.h>

#include "pictures.h"

/* Well-formed XML that browsers take as HTML. 0, -ENOMEM, -EIO. */
int holmes_page_html(const struct holmes_report *r, FILE *out);
/* 0, -ENOMEM, -EIO. */
int holmes_page_table(const struct holmes_report *r, FILE *out);
/* NULL: no memory. What is not known is null. */
json_t *holmes_page_json(const struct holmes_report *r);

/* `holmes-train report`; argv[0] is "report". Returns an exit status of launch.h. */
int holmes_page_main(int argc, char **argv);

#endif
