/* Forward and backward of one block on one tensor rank: it has whole heads of attention and columns
 * of the MLP, and what its ranks' projections give adds up to the branch. So a block sums twice
 * over the group in forward, and twice in backward, where the gradients of the two norms' outputs
 * come together. */
#include "stage_priv.h"

void stage_norm_forward(struct holmes_stage *s, const struct norm *n, struct norm_acts *acts,
                        const void *in)
{
    s->k->layernorm_forward(acts->out, acts->mean, acts->rstd, in, stage_weights(s, n->weight),
                            stage_weights(s, n->bias), s->rows, s->attr.model.channels);
}

void stage_norm_backward(struct holmes_stage *s, const struct norm *n, const struct norm_acts *acts,
                         void *din, const void *dout, const void *in)
{
    s->k->layernorm_backward(din, s->grads + n->weight, s->grads + n->bias, dout, in, acts->mean,
                             acts->rstd, stage_weights(s, n->weight), s->rows,
                             s->attr.model.channels);
}

int stage_sum_partial(struct holmes_stage *s, void *stream)
{
    if (s->group.size == 1)
        return 0;
    return s->group.all_reduce(s->group.ctx, stream,
                               (size_t)s->rows * (size_t)s->attr.model.channels, s->k->dtype);
}

static void linear_forward(struct holmes_stage *s, const struct linear *l, void *out,
                           const void *in)
{
    s->k->matmul_forward(out, in, stage_weights(s, l->weight), stage_weights(s, l->bias), s->rows,
                         l->in, l->out);
}

static void linear_backward(struct holmes_stage *s, const struct linear *l, void *din,
                            const void *dout, const void *in)
{
    s->k->matmul_backward(din, s->grads + l->weight, s->grads + l->bias, dout, in,
                          stage_weights(s, l->weight), s->rows, l->in, l->out);
}

/* out = stream + the projection of what a branch computed, the bias added once after the sum. */
static int branch_forward(struct holmes_stage *s, const struct linear *l, void *out,
                          const void *stream, const void *in)
{
    int rc;

    s->k->matmul_forward(s->branch, in, stage_weights(s, l->weight), NULL, s->rows, l->in, l->out);
    rc = stage_sum_partial(s, s->branch);
    if (rc == 0)
        s->k->residual_forward(out, stream, s->branch, stage_weights(s, l->bias), s->rows, l->out);
    return rc;
}

/* All that backward needs: everything up to the last projection. */
static int inner_forward(struct holmes_stage *s, const struct block *b, struct block_acts *a)
{
    int rc;

    s->held = NULL;
    stage_norm_forward(s, &b->ln_1, &a->ln_1, a->in);
    linear_forward(s, &b->qkv, a->qkv, a->ln_1.out);
    s->k->attention_forward(a->attention, a->lse, a->qkv, s->attr.batch, s->attr.model.seq_len,
                            s->width, s->heads);
    rc = branch_forward(s, &b->attn_proj, a->mid, a->in, a->attention);
    if (rc != 0)
        return rc;
    stage_norm_forward(s, &b->ln_2, &a->ln_2, a->mid);
    s->k->matmul_gelu_forward(a->gelu, a->fc, a->ln_2.out, stage_weights(s, b->fc.weight),
                              stage_weights(s, b->fc.bias), s->rows, b->fc.in, b->fc.out);
    s->held = a;
    return 0;
}

/* x += attention(ln_1(x)); x += mlp(ln_2(x)) */
int stage_block_forward(struct holmes_stage *s, const struct block *b, struct block_acts *a,
                        void *out)
{
    int rc = inner_forward(s, b, a);

    return rc ? rc : branch_forward(s, &b->mlp_proj, out, a->mid, a->gelu);
}

/* The residual's own part of dstream stays where it is; each branch adds to it through its norm. */
int stage_block_backward(struct holmes_stage *s, const struct block *b, struct block_acts *a,
                         void *dstream)
{
    int rc = 0;

    if (s->attr.recompute && s->held != a)
        rc = inner_forward(s, b, a);
    if (rc != 0)
        return rc;
    linear_backward(s, &b->mlp_proj, s->dwide, dstream, a->gelu);
    s->k->gelu_backward(s->dwide, s->dwide, a->fc, (size_t)s->rows * (size_t)b->fc.out);
    linear_backward(s, &b->fc, s->dbranch, s->dwide, a->ln_2.out);
    rc = stage_sum_partial(s, s->dbranch);
    if (rc != 0)
        return rc;
    stage_norm_backward(s, &b->ln_2, &a->ln_2, dstream, s->dbranch, a->mid);

    linear_backward(s, &b->attn_proj, s->dbranch, dstream, a->attention);
    s->k->attention_backward(s->dwide, s->attention_scratch, s->dbranch, a->attention, a->lse,
                             a->qkv, s->attr.batch, s->attr.model.seq_len, s->width, s->heads);
    linear_backward(s, &b->qkv, s->dbranch, s->dwide, a->ln_1.out);
    rc = stage_sum_partial(s, s->dbranch);
    if (rc == 0)
        stage_norm_backward(s, &b->ln_1, &a->ln_1, dstream, s->dbranch, a->in);
    return rc;
}
