/* A progress bar with an estimate of the time left, for anything that takes longer than a breath.
 *
 * On a terminal one line is rewritten, at most ten times a second, cut to the terminal's width. In
 * a file or pipe a plain line is written every ten seconds and at the end, so that logs stay
 * short. Not thread safe: one thread updates it.
 *
 *     train [#########...........]  45%  225/500  eta 1:12  loss 2.104, 5320 tokens/s
 */
#ifndef HOLMES_PROGRESS_H
#define HOLMES_PROGRESS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

struct holmes_progress {
    FILE *out;
    const char *label;
    uint64_t total;
    uint64_t first;           /* done before this began: the estimate leaves it out */
    uint64_t log_interval_ns; /* between lines in a file or pipe; 0: each update is shown */
    bool tty, counts;
    bool ever;                     /* something was shown */
    uint64_t started_ns, shown_ns; /* shown_ns 0: show at the next update */
    int shown_columns;             /* of the line standing on the terminal */
    uint64_t done;
    char suffix[128];
};

/* Nothing is shown before the first update. `first` is 0, `log_interval_ns` ten seconds; both may
 * be set then. `out` (stderr as a rule) and `label` must live until
 * finish. `total` is in any unit in which the work is even; `counts` shows done/total too. */
void holmes_progress_init(struct holmes_progress *p, FILE *out, const char *label, uint64_t total,
                          bool counts);
/* `done` of `total`, and free text after the estimate (kept to 127 bytes). */
void holmes_progress_update(struct holmes_progress *p, uint64_t done, const char *suffix_fmt, ...)
    __attribute__((format(printf, 3, 4)));
/* Takes the bar off the terminal, so that other lines can be printed; the next update, shown at
 * once, brings it back. Does nothing in a file or pipe. */
void holmes_progress_hide(struct holmes_progress *p);
/* Shows the last state with the time taken and ends the line. Nothing if nothing was ever shown. */
void holmes_progress_finish(struct holmes_progress *p);

/* The line itself, without time, terminal or newline: pure. At most `columns` columns (UTF-8 is not
 * cut inside a character). `finished` shows the time taken in place of the estimate. Returns the
 * columns used. */
int holmes_progress_format(const struct holmes_progress *p, double elapsed_s, bool finished,
                           int columns, char *buf, size_t len);
/* "0:07", "12:30", "1:02:03"; "-" for what is no time. */
void holmes_progress_format_time(double seconds, char *buf, size_t len);

#endif
