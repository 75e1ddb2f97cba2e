/* Host lists: what is read prints as text that reads back to the same names, each found at its
 * place; cut and grown by hand it is the same again. */
#include <stdlib.h>
#include <string.h>

#include "hostlist.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void expect(int holds)
{
    if (!holds)
        __builtin_trap();
}

static void same(const struct holmes_hostlist *a, const struct holmes_hostlist *b)
{
    char one[HOLMES_HOST_NAME_MAX], other[HOLMES_HOST_NAME_MAX];

    expect(a->nhosts == b->nhosts);
    for (int i = 0; i < a->nhosts; i += 1 + a->nhosts / 64)
        expect(strcmp(holmes_hostlist_name(a, i, one, sizeof one),
                      holmes_hostlist_name(b, i, other, sizeof other)) == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct holmes_hostlist list, again, part, grown = {0};
    char *text = calloc(1, size + 1), *printed, why[200], name[HOLMES_HOST_NAME_MAX];

    memcpy(text, data, size);
    why[0] = '\0';
    if (size > 2000 || holmes_hostlist_parse(text, &list, why, sizeof why) != 0) {
        expect(size > 2000 || why[0]);
        free(text);
        return 0;
    }
    if (list.nhosts > 20000) { /* more of the same, slowly */
        holmes_hostlist_fini(&list);
        free(text);
        return 0;
    }
    printed = holmes_hostlist_text(&list);
    expect(printed && holmes_hostlist_parse(printed, &again, why, sizeof why) == 0);
    same(&list, &again);
    for (int i = 0; i < list.nhosts && i < 64; i++)
        expect(holmes_hostlist_find(&list, holmes_hostlist_name(&list, i, name, sizeof name)) == i);
    for (int i = 0; i < list.nhosts; i++)
        expect(holmes_hostlist_append(&grown, holmes_hostlist_name(&list, i, name, sizeof name)) ==
               0);
    same(&list, &grown);
    expect(holmes_hostlist_slice(&list, list.nhosts / 3, list.nhosts / 2, &part) == 0);
    expect(part.nhosts == list.nhosts / 2);
    for (int i = 0; i < part.nhosts && i < 64; i++)
        expect(holmes_hostlist_find(&list, holmes_hostlist_name(&part, i, name, sizeof name)) ==
               list.nhosts / 3 + i);
    holmes_hostlist_fini(&list);
    holmes_hostlist_fini(&again);
    holmes_hostlist_fini(&part);
    holmes_hostlist_fini(&grown);
    free(printed);
    free(text);
    return 0;
}
