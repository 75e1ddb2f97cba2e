/* Files that others name: what comes to an end is read, anything else is refused and not waited
 * for.
 */
#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "../support/test_folder.h"
#include "base/file.h"

static char dir[TEST_FOLDER_MAX], path[TEST_FOLDER_MAX + 8];

static void set_up(void)
{
    test_folder_make(dir, "file");
    snprintf(path, sizeof path, "%s/f", dir);
}

static void tear_down(void)
{
    test_folder_remove(dir);
}

TestSuite(file, .init = set_up, .fini = tear_down, .timeout = 60);

static void expect_refusal(const char *name, int rc, const char *says)
{
    char *text = NULL;
    size_t len;
    FILE *f = NULL;

    cr_expect_eq(holmes_file_read(name, 100, &text, &len), rc, "%s", name);
    cr_expect_eq(holmes_file_open(name, &f), rc, "%s", name);
    cr_expect_null(text);
    cr_expect_null(f);
    cr_expect_not_null(strstr(holmes_file_strerror(rc), says), "%s", holmes_file_strerror(rc));
}

Test(file, what_has_no_end_is_refused)
{
    expect_refusal("/dev/zero", -ENOTSUP, "device");
    expect_refusal("/dev/null", -ENOTSUP, "device");
    expect_refusal(dir, -EISDIR, "directory");
    expect_refusal(path, -ENOENT, "No such file");
    cr_assert_eq(mkfifo(path, 0600), 0);
    expect_refusal(path, -EPIPE, "nobody writes");
}

/* Written to before it is opened, and with nothing in it yet. */
Test(file, a_pipe_is_read_to_its_end)
{
    char *text;
    size_t len;
    int fd;

    cr_assert_eq(mkfifo(path, 0600), 0);
    fd = open(path, O_RDWR | O_CLOEXEC);
    cr_assert_geq(fd, 0);
    cr_assert_eq(write(fd, "abc", 3), 3);
    {
        FILE *f;

        cr_assert_eq(holmes_file_open(path, &f), 0);
        cr_expect_eq(getc(f), 'a');
        cr_expect_eq(getc(f), 'b');
        cr_expect_eq(getc(f), 'c');
        fclose(f);
        cr_assert_eq(holmes_file_open(path, &f), 0, "a writer who is silent is one");
        fclose(f);
    }
    close(fd);
    if (fork() == 0) {
        fd = open(path, O_WRONLY | O_CLOEXEC);
        _exit(write(fd, "the hound", 9) == 9 ? 0 : 1);
    }
    cr_assert_eq(holmes_file_read(path, 100, &text, &len), 0);
    cr_expect_eq(len, 9);
    cr_expect_str_eq(text, "the hound");
    free(text);
}

Test(file, what_nobody_reads_is_not_written)
{
    char text[8] = "";
    FILE *f = NULL;
    int fd;

    cr_assert_eq(mkfifo(path, 0600), 0);
    cr_expect_eq(holmes_file_create(path, &f), -ENXIO);
    cr_expect_null(f);
    cr_expect_not_null(strstr(holmes_file_strerror(-ENXIO), "nobody reads"));

    fd = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    cr_assert_geq(fd, 0);
    cr_assert_eq(holmes_file_create(path, &f), 0);
    fputs("221b", f);
    cr_expect_eq(fclose(f), 0);
    cr_expect_eq(read(fd, text, sizeof text), 4);
    cr_expect_str_eq(text, "221b");
    close(fd);
}

Test(file, what_was_there_is_replaced)
{
    char *text;
    size_t len;
    FILE *f;

    for (int i = 2; i > 0; i--) {
        cr_assert_eq(holmes_file_create(path, &f), 0);
        fprintf(f, "%.*s", i, "ab");
        cr_assert_eq(fclose(f), 0);
    }
    cr_assert_eq(holmes_file_read(path, 100, &text, &len), 0);
    cr_expect_str_eq(text, "a");
    free(text);
    cr_expect_eq(holmes_file_create(dir, &f), -EISDIR);
    cr_expect_eq(holmes_file_create("/dev/null", &f), 0);
    fclose(f);
}
