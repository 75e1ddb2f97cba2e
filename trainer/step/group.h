/* Which rank is which (stage, replica, tensor), and which layers a stage has: placement as data.
 * Pure.
 *
 * An order lists world ranks by place: place (stage * replicas + replica) * tensors + tensor is
 * taken by order[place]. Replicas of one stage exchange gradients, neighbouring stages of one
 * replica activations, and the ranks of a tensor group, which share one replica of one stage,
 * partial sums inside every layer.
 */
#ifndef HOLMES_GROUP_H
#define HOLMES_GROUP_H

#include <stdbool.h>
#include <stddef.h>

struct holmes_group {
    int stages, replicas, tensors, world; /* world = stages * replicas * tensors */
    int chunks;                           /* parts of the model that a stage has: 1 at first */
    int *order;                           /* [world] place -> rank */
    int *first_layer; /* [chunks * stages + 1]: part c has [first_layer[c], first_layer[c+1]), and
                         is chunk c / stages of stage c % stages: with one chunk parts are stages */
};

struct holmes_place {
    int stage, replica, tensor;
};

/* `order` NULL: rank = place. `stage_layers` NULL: as even as it goes, the middle stages first to
 * have one more, as the ends also hold embedding and head; given, the first and the last stage may
 * have none. Both are copied. -EINVAL with a sentence in `why`, or -ENOMEM. */
int holmes_group_create(int stages, int replicas, int tensors, const int *order, int layers,
                        const int *stage_layers, struct holmes_group **out, char *why,
                        size_t why_len);
/* Virtual stages: cuts the model into chunks * stages parts instead, as holmes_group_create does.
 * On failure the group is as it was. */
int holmes_group_set_chunks(struct holmes_group *g, int chunks, int layers, const int *part_layers,
                            char *why, size_t why_len);
void holmes_group_destroy(struct holmes_group *g);

int holmes_group_rank(const struct holmes_group *g, int stage, int replica, int tensor);
struct holmes_place holmes_group_place(const struct holmes_group *g, int rank);

/* Stages inside clusters, tensor groups inside hosts: ranks sorted by cluster, then by host (those
 * named first come first; equal ones keep their order), then placed stage by stage. Names may be
 * NULL or "" for unknown. 0 or -ENOMEM. */
int holmes_order_planned(const char *const *clusters, const char *const *hosts, int world,
                         int *order);
/* What a launcher that knows of no clusters does: pipelines of tensor groups on consecutive ranks.
 */
void holmes_order_naive(int stages, int replicas, int tensors, int *order);
/* "0,2,1,3": every rank below `world` once. */
int holmes_order_parse(const char *text, int world, int *order, char *why, size_t why_len);

/* First stage whose replicas lie in different clusters, or -1. */
int holmes_group_straddles(const struct holmes_group *g, const char *const *clusters);
/* -EINVAL with a sentence that names ranks and hosts when a tensor group lies on two hosts, else 0.
 */
int holmes_group_check_hosts(const struct holmes_group *g, const char *const *hosts, char *why,
                             size_t why_len);

/* "3,5": one number from min to max for each of `count`. */
int holmes_list_parse(const char *text, const char *what, int count, int min, int max, int *out,
                      char *why, size_t why_len);

#endif
