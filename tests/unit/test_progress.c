#include <criterion/criterion.h>
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "clock.h"
#include "progress.h"

Test(progress, line_shows_share_estimate_and_suffix)
{
    struct holmes_progress p = {
        .label = "train", .total = 500, .done = 225, .counts = true, .suffix = "loss 2.104"};
    char line[256];

    holmes_progress_format(&p, 59.0, false, 200, line, sizeof line);
    cr_assert_str_eq(line, "train [#########...........]  45%  225/500  eta 1:12  loss 2.104");
    holmes_progress_format(&p, 59.0, true, 200, line, sizeof line);
    cr_assert_str_eq(line, "train [#########...........]  45%  225/500  took 0:59  loss 2.104");
}

Test(progress, nothing_done_has_no_estimate_and_too_much_done_is_all)
{
    struct holmes_progress p = {.label = "x", .total = 10};
    char line[256];

    holmes_progress_format(&p, 5.0, false, 200, line, sizeof line);
    cr_assert_str_eq(line, "x [....................]   0%  eta -");
    p.done = 12;
    holmes_progress_format(&p, 5.0, false, 200, line, sizeof line);
    cr_assert_str_eq(line, "x [####################] 100%  eta 0:00");
    p.total = p.done = 0;
    holmes_progress_format(&p, 5.0, false, 200, line, sizeof line);
    cr_assert_str_eq(line, "x [####################] 100%  eta 0:00");
}

Test(progress, the_estimate_leaves_out_what_was_done_before)
{
    struct holmes_progress p = {
        .label = "train", .total = 500, .done = 425, .first = 400, .counts = true};
    char line[256];

    holmes_progress_format(&p, 50.0, false, 200, line, sizeof line);
    cr_assert_str_eq(line, "train [#################...]  85%  425/500  eta 2:30");
    p.done = 400;
    holmes_progress_format(&p, 50.0, false, 200, line, sizeof line);
    cr_assert_str_eq(line, "train [################....]  80%  400/500  eta -");
}

Test(progress, line_is_cut_to_the_columns_between_characters)
{
    struct holmes_progress p = {.label = "µµµµ", .total = 10};
    char line[256];

    cr_assert_eq(holmes_progress_format(&p, 5.0, false, 3, line, sizeof line), 3);
    cr_assert_str_eq(line, "µµµ");
    p.label = "a\033b\xc2\x85"
              "c";
    cr_assert_eq(holmes_progress_format(&p, 5.0, false, 5, line, sizeof line), 5);
    cr_assert_str_eq(line, "a?b?c");
}

Test(progress, times_read_as_a_clock)
{
    static const struct {
        double s;
        const char *text;
    } cases[] = {{0, "0:00"},       {6.6, "0:07"},         {59.6, "1:00"}, {750, "12:30"},
                 {3723, "1:02:03"}, {360000, "100:00:00"}, {-1, "-"},      {1.0 / 0.0, "-"}};
    char buf[32];

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        holmes_progress_format_time(cases[i].s, buf, sizeof buf);
        cr_assert_str_eq(buf, cases[i].text, "%g gave %s", cases[i].s, buf);
    }
}

Test(progress, file_gets_every_line_when_asked)
{
    struct holmes_progress p;
    FILE *f = tmpfile();
    int lines = 0, c;

    holmes_progress_init(&p, f, "run", 100, true);
    p.log_interval_ns = 0;
    for (uint64_t i = 1; i <= 100; i++)
        holmes_progress_update(&p, i, "x");
    rewind(f);
    while ((c = fgetc(f)) != EOF)
        lines += c == '\n';
    cr_assert_eq(lines, 100);
    fclose(f);
}

Test(progress, file_gets_first_and_last_line_only_when_quick)
{
    struct holmes_progress p;
    char buf[4096];
    size_t n;
    FILE *f = tmpfile();

    holmes_progress_init(&p, f, "run", 1000, true);
    holmes_progress_finish(&p);
    cr_assert_eq(ftell(f), 0, "a bar that never ran was shown");
    for (uint64_t i = 0; i <= 1000; i++)
        holmes_progress_update(&p, i, "item %d", (int)i);
    holmes_progress_hide(&p);
    holmes_progress_finish(&p);
    rewind(f);
    n = fread(buf, 1, sizeof buf - 1, f);
    buf[n] = '\0';
    cr_assert(strstr(buf, "  0%  0/1000  eta -  item 0\n"), "%s", buf);
    cr_assert(strstr(buf, "100%  1000/1000  took 0:0"), "%s", buf);
    cr_assert_null(strchr(buf, '\r'), "a file got terminal control");
    cr_assert_eq(strchr(strchr(buf, '\n') + 1, '\n')[1], '\0', "more than two lines:\n%s", buf);
    fclose(f);
}

/* The slave end of a terminal 60 columns wide; *master is non-blocking. */
static FILE *terminal(int *master)
{
    struct winsize ws = {.ws_row = 24, .ws_col = 60};
    int fd;

    *master = posix_openpt(O_RDWR | O_NOCTTY | O_NONBLOCK);
    cr_assert_geq(*master, 0);
    cr_assert_eq(grantpt(*master) | unlockpt(*master), 0);
    cr_assert_eq(ioctl(*master, TIOCSWINSZ, &ws), 0);
    fd = open(ptsname(*master), O_RDWR | O_NOCTTY);
    cr_assert_geq(fd, 0);
    return fdopen(fd, "w");
}

Test(progress, terminal_line_is_rewritten_and_never_wraps)
{
    struct holmes_progress p;
    char buf[4096] = "";
    uint64_t deadline;
    size_t n = 0;
    int master;
    FILE *f = terminal(&master);

    holmes_progress_init(&p, f, "run", 10, false);
    holmes_progress_update(&p, 1, "%s", "a suffix longer than the terminal is wide");
    holmes_progress_hide(&p);
    holmes_progress_update(&p, 10, "x");
    holmes_progress_finish(&p);
    /* The kernel hands a terminal's bytes over in its own time. */
    deadline = holmes_deadline_ms(30000);
    while (!strchr(buf, '\n') && !holmes_deadline_passed(deadline)) {
        struct pollfd pfd = {.fd = master, .events = POLLIN};
        ssize_t got = poll(&pfd, 1, 100) > 0 ? read(master, buf + n, sizeof buf - 1 - n) : 0;

        n += got > 0 ? (size_t)got : 0;
        buf[n] = '\0';
    }
    cr_assert(strstr(buf, "took 0:0"), "%s", buf);
    cr_assert_eq(strcspn(buf, "\n"), n - 1, "a line end before the last");
    for (char *line = strtok(buf, "\r\n"); line; line = strtok(NULL, "\r\n"))
        cr_assert_leq(strlen(line), 59, "%zu columns: %s", strlen(line), line);
    fclose(f);
    close(master);
}
