/* The end of a run: everybody's counters come together, are logged, and summed up for the reader.
 */
#include "rank_priv.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "launch.h"
#include "log.h"
#include "memory.h"
#include "record.h"

/* What the trainer took at most, beside what was predicted. */
static json_t *own_memory(const struct rank *r)
{
    const struct holmes_config *c = r->config;
    struct holmes_memory predicted;
    size_t now, peak;

    if (holmes_memory_predict(c, r->group, holmes_group_place(r->group, r->rank), r->kernels,
                              &predicted) != 0)
        return json_null();
    /* What a GPU holds is not in the process's RAM. */
    if (r->resident == 0 || r->kernels->stream() || holmes_memory_resident(&now, &peak) != 0)
        return holmes_record_memory(&predicted, -1);
    return holmes_record_memory(&predicted, (double)peak - (double)r->resident);
}

static json_t *own_traffic(struct rank *r)
{
    json_t *record =
        holmes_record_traffic(r->rank, &r->links, r->hosts[r->rank], r->clusters[r->rank],
                              r->net ? holmes_net_cpu_seconds(r->net) : 0);

    if (record)
        json_object_set_new(record, "memory", own_memory(r));
    return record;
}

/* Closes the network, after which the plugin has written its counters, and adds them to the record:
 * which wire carried what. */
static json_t *closing_traffic(struct rank *r)
{
    json_t *mine = own_traffic(r), *communicator;
    size_t i;

    holmes_trainer_destroy(r->trainer);
    r->trainer = NULL;
    holmes_links_close(&r->links);
    holmes_net_close(r->net);
    holmes_nccl_close(r->nccl);
    r->net = NULL;
    r->nccl = NULL;
    holmes_wires_read(&r->wires);
    json_array_foreach(json_object_get(mine, "communicators"), i, communicator)
    {
        const char *name = json_string_value(json_object_get(communicator, "name"));

        json_object_set_new(communicator, "wires",
                            holmes_wires_of(&r->wires, holmes_comm_net_id(name ? name : "")));
    }
    return mine;
}

static int send_traffic(struct rank *r, json_t *mine)
{
    static char text[60000];
    char key[32];
    size_t len = mine ? json_dumpb(mine, text, sizeof text, JSON_COMPACT) : 0;

    json_decref(mine);
    snprintf(key, sizeof key, "traffic/%d", r->rank);
    return len == 0 || len > sizeof text ? -EMSGSIZE : holmes_rdv_put(r->rdv, key, text, len);
}

/* Takes the records of all ranks: each is written, and kept for the table. */
static int take_traffic(struct rank *r, json_t *mine, json_t *all, int *code)
{
    static char text[60000];
    char key[32];
    size_t len;
    int rc = 0;

    for (int i = 0; i < r->world && rc == 0 && *code == 0; i++) {
        json_t *record = i == 0 ? mine : NULL;

        snprintf(key, sizeof key, "traffic/%d", i);
        if (i > 0)
            rc = holmes_rdv_get(r->rdv, key, text, sizeof text, &len, rank_join_ms(r));
        if (rc == 0 && i > 0)
            record = json_loadb(text, len, 0, NULL);
        if (rc == 0) {
            json_array_append(all, record);
            *code = holmes_rank_write(r, record);
        }
    }
    return rc;
}

/* Rank 0 writes everybody's counters: one file tells of the whole job. */
static int collect_traffic(struct rank *r, json_t *all)
{
    int rc = 0, code = 0;
    json_t *mine;

    /* Nobody hangs up while others still compute. */
    if (r->world > 1)
        rc = holmes_rdv_barrier(r->rdv, "trained", rank_join_ms(r));
    if (rc != 0)
        return holmes_rank_fail(r, HOLMES_EXIT_FAILED, true, "after the last step: %s",
                                holmes_strerror(rc));
    mine = closing_traffic(r);
    rc = r->rank == 0 ? take_traffic(r, mine, all, &code) : send_traffic(r, mine);
    if (rc != 0)
        return holmes_rank_fail(r, HOLMES_EXIT_FAILED, true, "cannot collect the counters: %s",
                                holmes_strerror(rc));
    return code;
}

static void print_trained(const struct rank *r, int steps, double seconds)
{
    const struct holmes_config *c = r->config;

    printf("trained %d step%s in %.1f s: %.0f tokens/s, %.0f ms per step", steps,
           steps == 1 ? "" : "s", seconds, (double)steps * c->batch * c->model.seq_len / seconds,
           seconds / steps * 1e3);
    if (r->loss_count > 0)
        printf(", loss %.3f", r->loss_sum / r->loss_count);
    if (r->loss_count > 1)
        printf(" (mean of the last %d)", r->loss_count);
    putchar('\n');
}

static int print_results(const struct rank *r, double seconds, double held_out, const json_t *all)
{
    const struct holmes_config *c = r->config;
    const int steps = r->last_step - r->resumed.step;
    const char *unit = holmes_dataloader_unit(r->data);
    double unigram;

    if (r->last_step < c->steps)
        printf("stopped by a signal after step %d of %d, which is saved: --resume goes on from "
               "it\n",
               r->last_step, c->steps);
    if (steps > 0)
        print_trained(r, steps, seconds);
    else
        printf("nothing left to train: %s is at --steps %d\n", r->resumed.path, c->steps);
    if (r->skipped > 0)
        printf("%d of them skipped: loss or gradients were not finite\n", r->skipped);
    if (held_out >= 0 && holmes_dataloader_unigram_nats(r->data, &unigram) == 0)
        printf("held-out loss %.3f nats per %s; single %ss alone (unigram entropy) %.3f\n",
               held_out, unit, unit, unigram);
    holmes_wires_print(all, stdout);
    return fflush(stdout) == 0 ? 0 : -errno;
}

int holmes_rank_finish(struct rank *r, double held_out)
{
    const struct holmes_config *c = r->config;
    int steps = r->last_step - r->resumed.step;
    double seconds = (double)(r->step_ns - r->started_ns) / 1e9;
    double rate = steps > 0 ? (double)steps * c->batch * c->model.seq_len / seconds : 0;
    double loss = r->loss_count ? r->loss_sum / r->loss_count : 0;
    json_t *all = json_array();
    int code = collect_traffic(r, all), rc = 0;

    if (code == 0)
        code = holmes_rank_write(r, holmes_record_end(steps, seconds, rate, loss));
    if (code == 0 && r->world > 1) {
        rc = holmes_rdv_barrier(r->rdv, "end", rank_join_ms(r));
        if (rc != 0)
            code = holmes_rank_fail(r, HOLMES_EXIT_FAILED, true, "at the end: %s",
                                    holmes_strerror(rc));
    }
    if (code == 0 && r->rank == 0)
        rc = print_results(r, seconds, held_out, all);
    json_decref(all);
    if (code == 0 && rc != 0)
        return holmes_rank_fail(r, HOLMES_EXIT_FAILED, false, "stdout: %s", holmes_strerror(rc));
    return code;
}
