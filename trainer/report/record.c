/* Packs the records of the log. */
#include "record.h"

#include <math.h>

static json_t *model_object(const struct holmes_model *m)
{
    return json_pack("{s:i, s:i, s:i, s:i, s:i, s:b, s:I}", "layers", m->layers, "channels",
                     m->channels, "heads", m->heads, "seq_len", m->seq_len, "vocab", m->vocab,
                     "tied", m->tied, "parameters", (json_int_t)holmes_model_params(m));
}

/* [[first, last], ...] of the parts of the model that a stage has. */
static json_t *chunks_array(const struct holmes_group *g, int stage)
{
    json_t *chunks = json_array();

    for (int part = stage; part < g->chunks * g->stages; part += g->stages)
        json_array_append_new(
            chunks, json_pack("[i, i]", g->first_layer[part], g->first_layer[part + 1] - 1));
    return chunks;
}

static json_t *rank_object(const struct holmes_run_facts *f, int rank)
{
    const struct holmes_place at = holmes_group_place(f->group, rank);

    return json_pack(
        "{s:i, s:i, s:i, s:i, s:i, s:i, s:o, s:s, s:s}", "rank", rank, "stage", at.stage, "replica",
        at.replica, "tensor", at.tensor, "first_layer", f->group->first_layer[at.stage],
        "last_layer", f->group->first_layer[at.stage + 1] - 1, "chunks",
        chunks_array(f->group, at.stage), "host", f->hosts[rank], "cluster", f->clusters[rank]);
}

static const char *placement_name(const struct holmes_config *c)
{
    switch (c->placement) {
    case HOLMES_PLACEMENT_PLANNED:
        return "planned";
    case HOLMES_PLACEMENT_NAIVE:
        return "naive";
    case HOLMES_PLACEMENT_ORDER:
        break;
    }
    return "order";
}

static json_t *data_object(const struct holmes_config *c, const struct holmes_dataloader *d)
{
    struct holmes_data_attr attr = {0};
    char why[200];

    holmes_config_data(c, &attr, why, sizeof why); /* it was right before */
    return json_pack("{s:s, s:s, s:I, s:I, s:I, s:[f, f, f]}", "file", c->data, "unit",
                     holmes_dataloader_unit(d), "tokens", (json_int_t)holmes_dataloader_tokens(d),
                     "documents", (json_int_t)holmes_dataloader_documents(d), "epoch_samples",
                     (json_int_t)holmes_dataloader_epoch(d), "split", attr.split[0], attr.split[1],
                     attr.split[2]);
}

json_t *holmes_record_config(const struct holmes_run_facts *f)
{
    const struct holmes_config *c = f->config;
    json_t *ranks = json_array();
    json_t *net = f->net.path[0] ? json_pack("{s:s, s:s, s:s, s:i, s:i}", "path", f->net.path,
                                             "name", f->net.name, "device", f->net.device, "abi",
                                             f->net.abi, "speed_mbps", f->net.speed_mbps)
                                 : json_null();

    for (int r = 0; r < f->group->world; r++)
        json_array_append_new(ranks, rank_object(f, r));
    return json_pack("{s:s, s:i, s:o, s:o, s:i, s:i, s:i, s:f, s:f, s:i, s:f, s:f, s:I, s:i, s:i,"
                     " s:i, s:i, s:b, s:s, s:o, s:o, s:s, s:i}",
                     "record", "config", "version", 1, "model", model_object(&c->model), "data",
                     data_object(c, f->data), "batch", c->batch, "microbatch", c->microbatch,
                     "steps", c->steps, "lr", c->lr, "final_lr", c->final_lr, "warmup", c->warmup,
                     "clip", c->clip, "weight_decay", c->weight_decay, "seed", (json_int_t)c->seed,
                     "pipeline", c->stages, "data_parallel", c->replicas, "tensor", c->tensors,
                     "virtual_stages", c->virtual_stages, "overlap",
                     c->overlap == HOLMES_OVERLAP_ON, "placement", placement_name(c), "ranks",
                     ranks, "plugin", net, "kernels", c->kernels, "threads", f->threads);
}

/* JSON has no infinities. */
static json_t *real_or_null(double v)
{
    return isfinite(v) ? json_real(v) : json_null();
}

json_t *holmes_record_step(int step, const struct holmes_step_result *s, double seconds,
                           double tokens_per_s)
{
    json_t *r = json_pack("{s:s, s:i, s:o, s:o, s:f, s:f, s:f}", "record", "step", "step", step,
                          "loss", real_or_null(s->loss), "grad_norm", real_or_null(s->grad_norm),
                          "lr", s->lr, "step_seconds", seconds, "tokens_per_s", tokens_per_s);

    if (r && s->skipped)
        json_object_set_new(r, "skipped", json_true());
    return r;
}

json_t *holmes_record_held_out(int step, double loss, double unigram_nats, int sequences)
{
    return json_pack("{s:s, s:i, s:f, s:f, s:i}", "record", "held_out", "step", step, "loss", loss,
                     "unigram_nats", unigram_nats, "sequences", sequences);
}

/* NULL for a peer that nothing went to or came from: most are none of this rank's neighbours. */
static json_t *peer_object(const struct holmes_link *k, int peer)
{
    struct holmes_comm_traffic t;

    k->comm->ops->traffic(k->comm, peer, &t);
    if (t.messages_sent == 0 && t.messages_received == 0)
        return NULL;
    return json_pack("{s:i, s:I, s:I, s:I, s:I, s:I, s:I}", "rank", k->ranks[peer], "bytes_sent",
                     (json_int_t)t.bytes_sent, "bytes_received", (json_int_t)t.bytes_received,
                     "messages_sent", (json_int_t)t.messages_sent, "messages_received",
                     (json_int_t)t.messages_received, "eval_bytes_sent",
                     (json_int_t)k->eval_sent[peer], "eval_bytes_received",
                     (json_int_t)k->eval_received[peer]);
}

static json_t *link_object(const struct holmes_link *k)
{
    json_t *peers = json_array();

    for (int peer = 0; peer < k->comm->size; peer++)
        if (peer != k->comm->rank)
            json_array_append_new(peers, peer_object(k, peer)); /* takes no NULL */
    return json_pack("{s:s, s:s, s:s, s:f, s:o}", "name", k->name, "kind", k->comm->kind, "backend",
                     k->comm->ops->name, "wait_seconds", (double)k->wait_ns / 1e9, "peers", peers);
}

json_t *holmes_record_traffic(int rank, const struct holmes_links *l, const char *host,
                              const char *cluster, double net_cpu_seconds)
{
    json_t *communicators = json_array();

    for (int i = 0; i < l->count; i++)
        json_array_append_new(communicators, link_object(&l->all[i]));
    return json_pack("{s:s, s:i, s:i, s:i, s:i, s:s, s:s, s:f, s:o}", "record", "traffic", "rank",
                     rank, "stage", l->stage, "replica", l->replica, "tensor", l->tensor, "host",
                     host, "cluster", cluster, "net_cpu_seconds", net_cpu_seconds, "communicators",
                     communicators);
}

json_t *holmes_record_resume(const struct holmes_resumed *from)
{
    return json_pack("{s:s, s:i, s:s, s:I, s:f, s:O}", "record", "resume", "step", from->step,
                     "path", from->path, "bytes", (json_int_t)from->bytes, "seconds", from->seconds,
                     "changes", from->changes);
}

json_t *holmes_record_checkpoint(int step, const struct holmes_saved *s)
{
    return json_pack("{s:s, s:i, s:s, s:I, s:f}", "record", "checkpoint", "step", step, "path",
                     s->path, "bytes", (json_int_t)s->bytes, "seconds", s->seconds);
}

json_t *holmes_record_memory(const struct holmes_memory *m, double measured)
{
    return json_pack("{s:I, s:o, s:I, s:I, s:I, s:I, s:I, s:I}", "predicted_bytes",
                     (json_int_t)holmes_memory_total(m), "measured_bytes",
                     measured >= 0 ? json_integer((json_int_t)measured) : json_null(), "parameters",
                     (json_int_t)m->parameters, "gradients", (json_int_t)m->gradients, "optimizer",
                     (json_int_t)m->optimizer, "activations", (json_int_t)m->activations,
                     "pipeline", (json_int_t)m->pipeline, "communication",
                     (json_int_t)m->communication);
}

json_t *holmes_record_end(int steps, double seconds, double tokens_per_s, double loss)
{
    return json_pack("{s:s, s:i, s:f, s:f, s:f}", "record", "end", "steps", steps, "seconds",
                     seconds, "tokens_per_s", tokens_per_s, "loss", loss);
}
