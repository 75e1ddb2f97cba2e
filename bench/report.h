/* Results for people (tables), spreadsheets (CSV), programs (JSON) and eyes (SVG). All show the
 * sizes that are done. */
#ifndef HOLMES_BENCH_REPORT_H
#define HOLMES_BENCH_REPORT_H

#include <stdio.h>

#include "results.h"

/* Each returns 0 or a negative errno: -EIO when `out` failed. The stream stays open. */
int holmes_report_table(const struct holmes_results *r, FILE *out);
int holmes_report_csv(const struct holmes_results *r, FILE *out);
int holmes_report_json(const struct holmes_results *r, FILE *out);
int holmes_report_svg(const struct holmes_results *r, FILE *out);

#endif
