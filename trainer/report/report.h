/* `holmes-train compare`: two runs that differ in placement, side by side. */
#ifndef HOLMES_REPORT_H
#define HOLMES_REPORT_H

#include <stdio.h>

#include "summary.h"

/* What the slow link's arithmetic says. Seconds per step. */
struct holmes_prediction {
    double link_seconds[2]; /* busiest direction's bytes / bandwidth */
    double speed_up;        /* measured: step time of the first by that of the second */
    double saved, predicted_saved, share; /* share = predicted_saved / saved */
};

/* slow_mbit in Mbit/s, 0: unknown; link_seconds, predicted_saved and share are then 0, and also
 * where the bytes of a run are not counted. */
void holmes_predict(const struct holmes_summary runs[2], double slow_mbit,
                    struct holmes_prediction *out);

int holmes_report_table(const struct holmes_summary runs[2], double slow_mbit, FILE *out);
int holmes_report_svg(const struct holmes_summary runs[2], double slow_mbit, FILE *out);
json_t *holmes_report_json(const struct holmes_summary runs[2], double slow_mbit);

/* argv[0] is "compare". Returns an exit status of launch.h. */
int holmes_report_main(int argc, char **argv);

#endif
