/* The progress bar. The line is made by a pure function; what remains here is when to show it and
 * how to replace the one before. It is erased with blanks, which every terminal understands. */
#include "progress.h"

#include <stdarg.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "clock.h"
#include "utf8.h"

#define BAR_CELLS       20
#define TTY_INTERVAL_NS 100000000u
#define LOG_INTERVAL_NS 10000000000u

void holmes_progress_format_time(double seconds, char *buf, size_t len)
{
    long s;

    if (!(seconds >= 0 && seconds < 1e9)) {
        snprintf(buf, len, "-");
        return;
    }
    s = (long)(seconds + 0.5);
    if (s < 3600)
        snprintf(buf, len, "%ld:%02ld", s / 60, s % 60);
    else
        snprintf(buf, len, "%ld:%02ld:%02ld", s / 3600, s / 60 % 60, s % 60);
}

/* Cuts `buf` to `columns` and makes it harmless; returns the columns it takes. */
static int line_fit(char *buf, int columns)
{
    int used = 0;
    size_t n, to = 0;

    for (size_t from = 0; buf[from]; from += n) {
        uint32_t c = holmes_utf8_decode(buf + from, &n);
        bool harmful = holmes_utf8_is_control(c) || c == HOLMES_UTF8_REPLACEMENT;
        int w = harmful ? 1 : holmes_utf8_columns(c);

        if (used + w > columns)
            break;
        used += w;
        if (harmful)
            buf[to++] = '?';
        for (size_t i = 0; i < n && !harmful; i++)
            buf[to++] = buf[from + i];
    }
    buf[to] = '\0';
    return used;
}

/* Negative: not known. */
static double time_left(const struct holmes_progress *p, uint64_t done, double elapsed_s)
{
    if (done == p->total)
        return 0;
    return done > p->first ? elapsed_s * (double)(p->total - done) / (double)(done - p->first) : -1;
}

int holmes_progress_format(const struct holmes_progress *p, double elapsed_s, bool finished,
                           int columns, char *buf, size_t len)
{
    uint64_t done = p->done < p->total ? p->done : p->total;
    double share = p->total ? (double)done / (double)p->total : 1.0;
    int cells = (int)(share * BAR_CELLS);
    char bar[BAR_CELLS + 1], when[24], counts[48] = "";
    double left_s = time_left(p, done, elapsed_s);

    memset(bar, '#', (size_t)cells);
    memset(bar + cells, '.', (size_t)(BAR_CELLS - cells));
    bar[BAR_CELLS] = '\0';
    holmes_progress_format_time(finished ? elapsed_s : left_s, when, sizeof when);
    if (p->counts)
        snprintf(counts, sizeof counts, "  %ju/%ju", (uintmax_t)p->done, (uintmax_t)p->total);
    snprintf(buf, len, "%s [%s] %3d%%%s  %s %s%s%s", p->label, bar, (int)(share * 100), counts,
             finished ? "took" : "eta", when, *p->suffix ? "  " : "", p->suffix);
    return line_fit(buf, columns);
}

void holmes_progress_init(struct holmes_progress *p, FILE *out, const char *label, uint64_t total,
                          bool counts)
{
    *p = (struct holmes_progress){.out = out,
                                  .label = label,
                                  .total = total,
                                  .counts = counts,
                                  .log_interval_ns = LOG_INTERVAL_NS,
                                  .tty = isatty(fileno(out)) == 1,
                                  .started_ns = holmes_now_ns()};
}

static int terminal_columns(const struct holmes_progress *p)
{
    struct winsize ws;

    if (ioctl(fileno(p->out), TIOCGWINSZ, &ws) == 0 && ws.ws_col > 1)
        return ws.ws_col - 1; /* the last column would wrap */
    return 79;
}

static void progress_show(struct holmes_progress *p, uint64_t now, bool finished)
{
    double elapsed_s = (double)(now - p->started_ns) / 1e9;
    char line[512];
    int columns, blanks;

    columns = holmes_progress_format(p, elapsed_s, finished, p->tty ? terminal_columns(p) : 500,
                                     line, sizeof line);
    if (p->tty) {
        blanks = p->shown_columns > columns ? p->shown_columns - columns : 0;
        fprintf(p->out, "\r%s%*s%s", line, blanks, "", finished ? "\n" : "");
        p->shown_columns = columns;
    } else {
        fprintf(p->out, "%s\n", line);
    }
    fflush(p->out);
    p->shown_ns = now;
    p->ever = true;
}

void holmes_progress_update(struct holmes_progress *p, uint64_t done, const char *suffix_fmt, ...)
{
    uint64_t now = holmes_now_ns();
    va_list ap;

    p->done = done;
    va_start(ap, suffix_fmt);
    vsnprintf(p->suffix, sizeof p->suffix, suffix_fmt, ap);
    va_end(ap);
    if (p->shown_ns == 0 || now - p->shown_ns >= (p->tty ? TTY_INTERVAL_NS : p->log_interval_ns))
        progress_show(p, now, false);
}

void holmes_progress_hide(struct holmes_progress *p)
{
    if (!p->tty || p->shown_columns == 0)
        return;
    fprintf(p->out, "\r%*s\r", p->shown_columns, "");
    fflush(p->out);
    p->shown_columns = 0;
    p->shown_ns = 0;
}

void holmes_progress_finish(struct holmes_progress *p)
{
    if (p->ever)
        progress_show(p, holmes_now_ns(), true);
}
