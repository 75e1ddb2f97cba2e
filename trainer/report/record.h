/* The records of the log as JSON objects: what a run was told, did and sent. docs/trainer.md
 * describes each field. All return NULL when out of memory. */
#ifndef HOLMES_RECORD_H
#define HOLMES_RECORD_H

#include <jansson.h>

#include "ckpt_run.h"
#include "comm_net.h"
#include "config.h"
#include "dataloader.h"
#include "group.h"
#include "links.h"
#include "memory.h"
#include "train.h"

struct holmes_run_facts {
    const struct holmes_config *config;
    const struct holmes_group *group;
    const char (*hosts)[64], (*clusters)[64]; /* [world] */
    struct holmes_net_info net;               /* path empty: no plugin */
    const struct holmes_dataloader *data;
    int threads;
};

json_t *holmes_record_config(const struct holmes_run_facts *f);
json_t *holmes_record_step(int step, const struct holmes_step_result *s, double seconds,
                           double tokens_per_s);
json_t *holmes_record_held_out(int step, double loss, double unigram_nats, int sequences);
json_t *holmes_record_traffic(int rank, const struct holmes_links *l, const char *host,
                              const char *cluster, double net_cpu_seconds);
json_t *holmes_record_resume(const struct holmes_resumed *from);
json_t *holmes_record_checkpoint(int step, const struct holmes_saved *s);
/* "memory" of a traffic record. `measured`: bytes; negative: not known. */
json_t *holmes_record_memory(const struct holmes_memory *predicted, double measured);
json_t *holmes_record_end(int steps, double seconds, double tokens_per_s, double loss);

#endif
