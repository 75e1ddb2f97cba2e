/* What the values of the configuration must be to each other and to the world. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "config.h"
#include "config_spec.h"
#include "group.h"
#include "kernels.h"
#include "utf8.h"

#define DRY_RUN_RANKS_MAX (1 << 20)
#define LABEL_MAX         63  /* as in struct rank */
#define HOST_MAX          253 /* of a name in the domain name system */

#define REFUSE(...)                                                                                \
    do {                                                                                           \
        snprintf(why, why_len, __VA_ARGS__);                                                       \
        return -EINVAL;                                                                            \
    } while (0)

int holmes_config_check_place(const struct holmes_config *c, char *why, size_t why_len)
{
    char host[256];
    uint16_t port;

    if (c->local > 0 && c->launcher_fd < 0 && (c->rank >= 0 || c->world > 0 || c->serve))
        REFUSE("--local starts all ranks by itself: leave out --rank, --world and --serve");
    if (c->rank < 0 && c->world > 0 && !c->serve)
        REFUSE("--world needs --rank, the number of this process in it, or --serve");
    if (c->rank >= 0 && c->world == 0)
        REFUSE("--rank needs --world, the number of ranks");
    if (c->rank >= 0 && c->rank >= c->world)
        REFUSE("--rank %d: ranks of --world %d are 0 to %d", c->rank, c->world, c->world - 1);
    if ((c->rank >= 0 || c->serve) && !c->rendezvous)
        REFUSE("--rank and --serve need --rendezvous HOST:PORT");
    if (c->serve && c->world == 0)
        REFUSE("--serve needs --world, the number of ranks");
    if (c->rendezvous && holmes_config_endpoint(c->rendezvous, host, sizeof host, &port) != 0)
        REFUSE("--rendezvous \"%s\": HOST:PORT is right", c->rendezvous);
    if (c->rendezvous && port == 0 && c->local == 0)
        REFUSE("--rendezvous \"%s\": all ranks must know the port, from 1 to 65535", c->rendezvous);
    return 0;
}

static int check_ranks(const struct holmes_config *c, char *why, size_t why_len)
{
    int world = holmes_config_world(c);
    long long places = (long long)c->stages * c->replicas * c->tensors;

    if (world != places)
        REFUSE("--pipeline %d times --data-parallel %d times --tensor %d are %lld ranks, but there "
               "%s %d: they must agree",
               c->stages, c->replicas, c->tensors, places, world == 1 ? "is" : "are", world);
    if (holmes_config_given(c, "comm") && c->comm == HOLMES_COMM_LOOPBACK && world > 1)
        REFUSE("--comm loopback carries one rank, not %d", world);
    if (world > 1 && (c->comm == HOLMES_COMM_NCCL) != (strncmp(c->kernels, "cuda", 4) == 0))
        REFUSE("--comm %s with --kernels %s: several ranks on GPUs talk by --comm nccl, and others "
               "cannot",
               c->comm == HOLMES_COMM_NCCL ? "nccl" : "net", c->kernels);
    return 0;
}

/* Without ranks there are as many as the split needs. */
static int check_dry_run(const struct holmes_config *c, char *why, size_t why_len)
{
    long long places = (long long)c->stages * c->replicas * c->tensors;

    if (places > DRY_RUN_RANKS_MAX)
        REFUSE("--dry-run: %lld ranks are more than %d", places, DRY_RUN_RANKS_MAX);
    return 0;
}

static int check_recipe(const struct holmes_config *c, char *why, size_t why_len)
{
    if (c->lr_decay != HOLMES_DECAY_CONSTANT && c->final_lr > c->lr)
        REFUSE("--final-lr %g is above --lr %g: it is what the rate falls to", c->final_lr, c->lr);
    return 0;
}

static int check_labels(const char *list, const char *option, int max, int world, char *why,
                        size_t why_len)
{
    int n = 1;

    for (const char *p = list; p && *p; p++)
        n += *p == ',';
    if (list && (!*list || (n > 1 && n != world)))
        REFUSE("--%s \"%s\": one name, or one for each of the %d ranks, is right", option, list,
               world);
    for (const char *p = list; p && *p; p += strcspn(p, ","), p += *p == ',')
        if (strcspn(p, ",") > (size_t)max)
            REFUSE("--%s: \"%.80s\" is too long, %d bytes are the most", option, p, max);
    for (size_t len = 0; list && *list; list += len) {
        const uint32_t c = holmes_utf8_decode(list, &len);

        if (c == HOLMES_UTF8_REPLACEMENT || holmes_utf8_is_control(c))
            REFUSE("--%s: byte 0x%02x is no part of a name in UTF-8", option, (unsigned char)*list);
    }
    return 0;
}

static int check_virtual(const struct holmes_config *c, char *why, size_t why_len)
{
    int microbatches = holmes_config_microbatches(c);

    if (c->virtual_stages > 1 && microbatches % c->stages != 0)
        REFUSE("--virtual-stages %d takes the microbatches of a replica through in groups of "
               "--pipeline %d, but --batch %d is %d for each: a multiple of %d is right",
               c->virtual_stages, c->stages, c->batch, microbatches, c->stages);
    return 0;
}

static int check_split(const struct holmes_config *c, char *why, size_t why_len)
{
    int world = holmes_config_world(c), parts = c->stages * c->virtual_stages, rc = 0;
    long long round = (long long)c->replicas * c->microbatch;
    int *order;

    if (c->batch % round != 0)
        REFUSE("--batch %d cannot be divided by --data-parallel %d times --microbatch %d: a "
               "multiple of %lld is right",
               c->batch, c->replicas, c->microbatch, round);
    if (c->model.heads % c->tensors != 0)
        REFUSE("--tensor %d does not divide the model's --heads %d: each of its ranks takes as "
               "many heads",
               c->tensors, c->model.heads);
    if (c->model.vocab < c->tensors)
        REFUSE("--tensor %d is more than the vocabulary of %d tokens has rows to share", c->tensors,
               c->model.vocab);
    if (!c->stage_layers && c->stages > c->model.layers)
        REFUSE("--pipeline %d is deeper than the model's --layers %d: %d stages at most", c->stages,
               c->model.layers, c->model.layers);
    if (check_virtual(c, why, why_len) != 0)
        return -EINVAL;
    if (!c->stage_layers && parts > c->model.layers)
        REFUSE("--pipeline %d times --virtual-stages %d are %d parts, more than the model's "
               "--layers %d",
               c->stages, c->virtual_stages, parts, c->model.layers);
    order = calloc((size_t)world + (size_t)parts, sizeof *order);
    if (!order)
        REFUSE("out of memory");
    if (c->placement == HOLMES_PLACEMENT_ORDER)
        rc = holmes_order_parse(c->rank_order, world, order, why, why_len);
    if (rc == 0 && c->stage_layers) {
        struct holmes_group *g = NULL;

        rc = holmes_list_parse(c->stage_layers, "--stage-layers", parts, 0, c->model.layers,
                               order + world, why, why_len);
        if (rc == 0)
            rc = holmes_group_create(parts, c->replicas, c->tensors, NULL, c->model.layers,
                                     order + world, &g, why, why_len);
        holmes_group_destroy(g);
    }
    free(order);
    return rc;
}

int holmes_config_check(struct holmes_config *c, char *why, size_t why_len)
{
    int rc = holmes_config_check_place(c, why, why_len);

    if (rc != 0 || (c->serve && c->rank < 0)) /* a mere host of the service */
        return rc;
    if (c->dry_run && !c->data && c->model.vocab == 0)
        REFUSE("--dry-run without --data needs --vocab, the number of tokens there are");
    rc = holmes_config_check_pairs(c, why, why_len);
    if (rc != 0)
        return rc;
    rc = c->dry_run && !c->data ? 0 : holmes_config_settle_vocab(c, why, why_len);
    if (rc == 0)
        rc = holmes_model_check(&c->model, why, why_len);
    if (rc == 0)
        rc = c->dry_run ? check_dry_run(c, why, why_len) : check_ranks(c, why, why_len);
    if (rc == 0)
        rc = check_split(c, why, why_len);
    if (rc == 0)
        rc = check_recipe(c, why, why_len);
    if (rc == 0)
        rc = check_labels(c->host_labels, "host-label", LABEL_MAX, holmes_config_world(c), why,
                          why_len);
    if (rc == 0)
        rc = check_labels(c->clusters, "cluster", LABEL_MAX, holmes_config_world(c), why, why_len);
    if (rc == 0)
        rc = check_labels(c->planned_hosts, "planned-hosts", HOST_MAX, holmes_config_world(c), why,
                          why_len);
    if (rc == 0 && !holmes_kernels_known(c->kernels))
        REFUSE("--kernels \"%s\": one of %s is right", c->kernels, holmes_kernels_names());
    if (rc == 0 && c->data)
        rc = holmes_config_check_data(c, why, why_len);
    return rc;
}
