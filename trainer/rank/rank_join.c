/* Joins the job, learns who else is in it, and takes its place. */
#include "rank_priv.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "agree.h"
#include "launch.h"
#include "log.h"
#include "notes.h"
#include "secret.h"

int holmes_rank_connect(struct rank *r)
{
    char host[256], why[400];
    const char *secret = holmes_secret(r->config, why, sizeof why);
    uint16_t port;
    int rc;

    if (!secret)
        return holmes_rank_fail(r, HOLMES_EXIT_USAGE, false, "%s", why);
    holmes_config_endpoint(r->config->rendezvous, host, sizeof host, &port);
    if (r->config->serve) {
        /* A launcher's name for this host need not be an address that others reach. */
        rc = holmes_rdv_serve(r->config->launcher && strcmp(host, "127.0.0.1") != 0 ? NULL : host,
                              port, secret, r->world, &r->server);
        if (rc != 0)
            holmes_notes_drop(); /* it says the same */
        if (rc != 0)
            return holmes_rank_fail(r, HOLMES_EXIT_FAILED, false,
                                    "cannot serve the rendezvous on %s port %u: %s", host, port,
                                    holmes_strerror(rc));
    }
    rc = holmes_rdv_connect_as(r->hosts[r->rank], host, port, secret, r->rank, r->world,
                               r->config->join_timeout_s * 1000, &r->rdv);
    if (rc != 0)
        return holmes_rank_fail(r, HOLMES_EXIT_FAILED, false, "cannot join the job at %s: %s",
                                r->config->rendezvous, holmes_strerror(rc));
    atomic_store(&r->stop.rdv, r->rdv);
    holmes_rdv_on_abort(r->rdv, holmes_rank_job_ended, r);
    return 0;
}

int holmes_rank_gather(struct rank *r)
{
    int rc = holmes_rdv_barrier(r->rdv, HOLMES_RANK_JOIN, r->config->join_timeout_s * 1000);

    if (rc == -ETIMEDOUT)
        return holmes_rank_fail(r, HOLMES_EXIT_FAILED, false,
                                "after %d s not all %d ranks are here: %s",
                                r->config->join_timeout_s, r->world, holmes_rdv_reason(r->rdv));
    if (rc != 0)
        return holmes_rank_fail(r, HOLMES_EXIT_FAILED, true, "cannot meet the other ranks: %s",
                                holmes_strerror(rc));
    return 0;
}

/* Rank 0 tells what it was told, before the others ask. */
static int tell_terms(struct rank *r, const json_t *mine)
{
    char *text = json_dumps(mine, JSON_COMPACT);
    int rc = text ? holmes_rdv_put(r->rdv, "terms", text, strlen(text)) : -ENOMEM;

    free(text);
    return rc;
}

static int compare_terms(struct rank *r, const json_t *mine, char *why, size_t why_len)
{
    char text[16384];
    size_t len;
    int rc = holmes_rdv_get(r->rdv, "terms", text, sizeof text, &len, rank_join_ms(r));
    json_t *rank0;

    if (rc != 0)
        return rc;
    rank0 = json_loadb(text, len, 0, NULL);
    rc = holmes_agree_check(mine, rank0, why, why_len);
    json_decref(rank0);
    return rc;
}

/* All were told the same, and have the same data. */
static int agree(struct rank *r)
{
    struct holmes_ckpt_data data;
    char why[400] = "";
    json_t *mine;
    int rc = holmes_ckpt_data_of(r->config->data, &data, why, sizeof why);

    if (rc != 0)
        return holmes_rank_fail(r, HOLMES_EXIT_USAGE, false, "%s", why);
    mine = holmes_agree_terms(r->config, &data);
    if (!mine)
        rc = -ENOMEM;
    else
        rc = r->rank == 0 ? tell_terms(r, mine) : compare_terms(r, mine, why, sizeof why);
    json_decref(mine);
    if (rc == -EINVAL && why[0])
        return holmes_rank_fail(r, HOLMES_EXIT_USAGE, false, "%s", why);
    if (rc != 0)
        return holmes_rank_fail(r, HOLMES_EXIT_FAILED, true, "cannot compare options: %s",
                                holmes_strerror(rc));
    return 0;
}

/* Every rank tells its host and cluster, since placement is a function of all of them. */
int holmes_rank_meet(struct rank *r)
{
    char key[32];
    size_t len;
    int rc;

    snprintf(key, sizeof key, "host/%d", r->rank);
    rc = holmes_rdv_put(r->rdv, key, r->hosts[r->rank], sizeof r->hosts[0]);
    snprintf(key, sizeof key, "cluster/%d", r->rank);
    if (rc == 0)
        rc = holmes_rdv_put(r->rdv, key, r->clusters[r->rank], sizeof r->clusters[0]);
    for (int i = 0; i < r->world && rc == 0; i++) {
        if (i == r->rank)
            continue; /* known, and read by the thread that hears signals */
        snprintf(key, sizeof key, "host/%d", i);
        rc = holmes_rdv_get(r->rdv, key, r->hosts[i], sizeof r->hosts[i], &len, rank_join_ms(r));
        snprintf(key, sizeof key, "cluster/%d", i);
        if (rc == 0)
            rc = holmes_rdv_get(r->rdv, key, r->clusters[i], sizeof r->clusters[i], &len,
                                rank_join_ms(r));
        r->hosts[i][sizeof r->hosts[i] - 1] = r->clusters[i][sizeof r->clusters[i] - 1] = '\0';
    }
    if (rc != 0)
        return holmes_rank_fail(r, HOLMES_EXIT_FAILED, true, "cannot meet the other ranks: %s",
                                holmes_strerror(rc));
    return agree(r);
}

/* The order that --placement and --rank-order ask for. */
static int choose_order(const struct rank *r, const char *const *clusters, const char *const *hosts,
                        int *order, char *why, size_t why_len)
{
    const struct holmes_config *c = r->config;

    switch (c->placement) {
    case HOLMES_PLACEMENT_PLANNED:
        return holmes_order_planned(clusters, hosts, r->world, order);
    case HOLMES_PLACEMENT_NAIVE:
        holmes_order_naive(c->stages, c->replicas, c->tensors, order);
        return 0;
    case HOLMES_PLACEMENT_ORDER:
        break;
    }
    return holmes_order_parse(c->rank_order, r->world, order, why, why_len);
}

int holmes_rank_place(struct rank *r)
{
    const struct holmes_config *c = r->config;
    int parts = c->stages * c->virtual_stages;
    int *numbers = calloc((size_t)r->world + (size_t)parts, sizeof *numbers);
    int *layers = numbers ? numbers + r->world : NULL;
    const char **clusters = calloc(2 * (size_t)r->world, sizeof *clusters);
    const char **hosts = clusters + r->world;
    char why[500] = "out of memory";
    int rc = numbers && clusters ? 0 : -ENOMEM, stage;

    for (int i = 0; i < r->world && rc == 0; i++) {
        clusters[i] = r->clusters[i];
        hosts[i] = r->hosts[i];
    }
    if (rc == 0)
        rc = choose_order(r, clusters, hosts, numbers, why, sizeof why);
    if (rc == 0 && c->stage_layers)
        rc = holmes_list_parse(c->stage_layers, "--stage-layers", parts, 0, c->model.layers, layers,
                               why, sizeof why);
    if (!c->stage_layers)
        layers = NULL;
    if (rc == 0)
        rc = holmes_group_create(c->stages, c->replicas, c->tensors, numbers, c->model.layers,
                                 parts == c->stages ? layers : NULL, &r->group, why, sizeof why);
    if (rc == 0 && c->virtual_stages > 1)
        rc = holmes_group_set_chunks(r->group, c->virtual_stages, c->model.layers, layers, why,
                                     sizeof why);
    if (rc == 0)
        rc = holmes_group_check_hosts(r->group, hosts, why, sizeof why);
    stage = rc == 0 ? holmes_group_straddles(r->group, clusters) : -1;
    if (stage >= 0 && r->rank == 0 && c->placement == HOLMES_PLACEMENT_PLANNED) {
        holmes_warn(TRAIN,
                    "the replicas of stage %d lie in different clusters: their gradients "
                    "cross between them in every step",
                    stage);
        holmes_notes_show(NULL, NULL); /* no cause of what may fail later */
    }
    free(numbers);
    free(clusters);
    return rc == 0 ? 0 : holmes_rank_fail(r, HOLMES_EXIT_USAGE, false, "%s", why);
}
