/* A folder of a test's own, made before it and removed after it. */
#ifndef HOLMES_TEST_FOLDER_H
#define HOLMES_TEST_FOLDER_H

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>

#define TEST_FOLDER_MAX 64

/* "/tmp/holmes-NAME-" and what makes it unique. */
static inline void test_folder_make(char dir[TEST_FOLDER_MAX], const char *name)
{
    snprintf(dir, TEST_FOLDER_MAX, "/tmp/holmes-%s-XXXXXX", name);
    cr_assert_not_null(mkdtemp(dir));
}

/* With all that is in it. */
static inline void test_folder_remove(const char *dir)
{
    char command[TEST_FOLDER_MAX + 8];

    snprintf(command, sizeof command, "rm -rf %s", dir);
    cr_expect_eq(system(command), 0);
}

/* A text to train on: 3000 times `often`, every third time `seldom` in its place. */
static inline void test_folder_text(const char *path, const char *often, const char *seldom)
{
    FILE *f = fopen(path, "we");

    cr_assert_not_null(f);
    for (int i = 0; i < 3000; i++)
        fputs(i % 3 ? often : seldom, f);
    cr_assert_eq(fclose(f), 0);
}

#endif
