/* docs/environment.md against the table in env.c: the same variables with the same defaults and
 * sentences, and no others. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "env.h"

#define MAX_TEXT 65536

static const char *document(void)
{
    static char text[MAX_TEXT];
    FILE *f = fopen(HOLMES_SOURCE_ROOT "/docs/environment.md", "r");
    size_t n;

    cr_assert_not_null(f);
    n = fread(text, 1, sizeof text - 1, f);
    cr_assert(feof(f), "the document outgrew the test");
    fclose(f);
    text[n] = '\0';
    return text;
}

Test(environment_doc, has_every_variable_as_the_table_has_it)
{
    const char *text = document();

    for (int i = 0; i < HOLMES_ENV_COUNT; i++) {
        const struct holmes_env_var *v = &holmes_env_vars[i];
        char row[512];

        if (v->dflt)
            snprintf(row, sizeof row, "\n| `%s` | `%s` | %s |\n", v->name, v->dflt, v->help);
        else
            snprintf(row, sizeof row, "\n| `%s` | unset | %s |\n", v->name, v->help);
        cr_expect(strstr(text, row), "no such row:%s", row);
    }
}

Test(environment_doc, has_no_variable_that_the_table_lacks)
{
    const char *text = document();
    int rows = 0;

    for (const char *p = strstr(text, "\n| `"); p; p = strstr(p + 1, "\n| `")) {
        size_t len = strcspn(p + 4, "`");
        int known = 0;

        for (int i = 0; i < HOLMES_ENV_COUNT; i++)
            known |= strlen(holmes_env_vars[i].name) == len &&
                     strncmp(holmes_env_vars[i].name, p + 4, len) == 0;
        cr_expect(known, "%.*s is documented and does not exist", (int)len, p + 4);
        rows++;
    }
    cr_expect_eq(rows, HOLMES_ENV_COUNT);
}
