/* Intrusive doubly linked list. A list head and every unlinked node point at themselves. No
 * locking: the owner's lock rules. */
#ifndef HOLMES_LIST_H
#define HOLMES_LIST_H

#include <stdbool.h>
#include <stddef.h>

struct holmes_list {
    struct holmes_list *next, *prev;
};

#define HOLMES_LIST_INIT(name)                                                                     \
    {                                                                                              \
        &(name), &(name)                                                                           \
    }

static inline void holmes_list_init(struct holmes_list *l)
{
    l->next = l->prev = l;
}

static inline bool holmes_list_empty(const struct holmes_list *l)
{
    return l->next == l;
}

static inline void holmes_list_append(struct holmes_list *head, struct holmes_list *node)
{
    node->prev = head->prev;
    node->next = head;
    head->prev->next = node;
    head->prev = node;
}

/* Leaves `node` unlinked; removing an unlinked node is harmless. */
static inline void holmes_list_remove(struct holmes_list *node)
{
    node->prev->next = node->next;
    node->next->prev = node->prev;
    holmes_list_init(node);
}

/* Appends all that `from` holds, which is empty afterwards. */
static inline void holmes_list_splice(struct holmes_list *head, struct holmes_list *from)
{
    if (holmes_list_empty(from))
        return;
    from->next->prev = head->prev;
    from->prev->next = head;
    head->prev->next = from->next;
    head->prev = from->prev;
    holmes_list_init(from);
}

#define holmes_list_entry(node, type, member) ((type *)((char *)(node)-offsetof(type, member)))
/* Safe against removal of the current node. `type *it` is declared by the macro. */
#define holmes_list_each(it, tmp, head, type, member)                                              \
    for (type *it = holmes_list_entry((head)->next, type, member),                                 \
              *tmp = holmes_list_entry(it->member.next, type, member);                             \
         &it->member != (head); it = tmp, tmp = holmes_list_entry(it->member.next, type, member))

#endif
