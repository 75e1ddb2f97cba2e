/* The two ends of the model, embedding and head, over a vocabulary whose rows tensor ranks share: a
 * token's row is on one of them, and the softmax comes together from each rank's largest logit and
 * sum. */
#include "stage_priv.h"

int stage_embedding_forward(struct holmes_stage *s, struct slot *slot, void *stream)
{
    const struct holmes_model *m = &s->attr.model;
    /* Once in the sum, which is exact: all other ranks add zero. */
    const void *wpe = s->group.rank == 0 ? stage_weights(s, s->wpe) : NULL;

    s->k->embedding_forward(stream, slot->tokens, stage_weights(s, s->wte), wpe, s->attr.batch,
                            m->seq_len, m->channels, s->first_token, s->vocab);
    return stage_sum_partial(s, stream);
}

void stage_embedding_backward(struct holmes_stage *s, struct slot *slot, const void *dstream)
{
    const struct holmes_model *m = &s->attr.model;

    s->k->embedding_backward(s->grads + s->wte, s->grads + s->wpe, dstream, slot->tokens,
                             s->attr.batch, m->seq_len, m->channels, s->first_token, s->vocab);
}

int stage_head_forward(struct holmes_stage *s, struct slot *slot)
{
    const size_t part = 3 * (size_t)s->rows;
    float *mine = s->stats + (size_t)s->group.rank * part;
    int rc = 0;

    stage_norm_forward(s, &s->ln_f, &slot->ln_f, slot->final);
    s->k->matmul_forward(slot->logits, slot->ln_f.out, stage_weights(s, s->head), NULL, s->rows,
                         s->attr.model.channels, s->vocab);
    s->k->xent_stats(mine, slot->logits, slot->targets, s->rows, s->vocab, s->first_token);
    if (s->group.size > 1)
        rc = s->group.all_gather(s->group.ctx, mine, s->stats, part);
    if (rc == 0)
        s->k->xent_combine(s->loss, slot->lse, s->stats, s->group.size, s->rows);
    return rc;
}

int stage_head_backward(struct holmes_stage *s, struct slot *slot, void *dstream, float loss_scale)
{
    const int C = s->attr.model.channels;
    int rc;

    s->k->xent_backward(slot->logits, slot->logits, slot->lse, slot->targets,
                        loss_scale / (float)s->rows, s->rows, s->vocab, s->first_token);
    s->k->matmul_backward(s->dbranch, s->grads + s->head, NULL, slot->logits, slot->ln_f.out,
                          stage_weights(s, s->head), s->rows, C, s->vocab);
    rc = stage_sum_partial(s, s->dbranch);
    if (rc != 0)
        return rc;
    s->k->zero(dstream, (size_t)s->rows * (size_t)C * s->real);
    stage_norm_backward(s, &s->ln_f, &slot->ln_f, dstream, s->dbranch, slot->final);
    return 0;
}
