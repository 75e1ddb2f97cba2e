/* What dp.h promises, on a real stage over communicators that write down what is started on them
 * and move nothing: how arrays are cut, who owns what, and what starts and is waited for when. */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "dp.h"

enum kind { REDUCE, TAIL, GATHER, TIED };

struct started {
    enum kind kind;
    size_t offset, count; /* elements of the whole bucket */
    bool waited;
};

/* One rank's two communicators, of its replicas and of the other stage. */
static struct started ops[512];
static int nops;
static float *grads, *weights;

struct holmes_op {
    int index;
};

static int start(enum kind kind, size_t offset, size_t count, struct holmes_op **op)
{
    cr_assert_lt(nops, (int)(sizeof ops / sizeof *ops));
    ops[nops] = (struct started){kind, offset, count, false};
    *op = malloc(sizeof **op);
    (*op)->index = nops++;
    return 0;
}

static int fake_all_reduce(struct holmes_comm *c, const void *in, void *out, size_t count,
                           enum holmes_dtype t, struct holmes_op **op)
{
    (void)out, (void)t;
    return start(strcmp(c->kind, "embed") == 0 ? TIED : TAIL, (size_t)((const float *)in - grads),
                 count, op);
}

static int fake_reduce_scatter(struct holmes_comm *c, const void *in, void *out, size_t count,
                               enum holmes_dtype t, struct holmes_op **op)
{
    size_t at = (size_t)((const float *)in - grads);

    (void)t;
    cr_assert_eq((size_t)((float *)out - grads), at + (size_t)c->rank * count);
    return start(REDUCE, at, count * (size_t)c->size, op);
}

static int fake_all_gather(struct holmes_comm *c, const void *in, void *out, size_t count,
                           enum holmes_dtype t, struct holmes_op **op)
{
    size_t at = (size_t)((float *)out - weights);

    (void)t;
    cr_assert_eq((size_t)((const float *)in - weights), at + (size_t)c->rank * count);
    return start(GATHER, at, count * (size_t)c->size, op);
}

static int fake_wait(struct holmes_op *op, int timeout_ms)
{
    (void)timeout_ms;
    ops[op->index].waited = true;
    free(op);
    return 0;
}

static const struct holmes_comm_ops fake_ops = {.name = "fake",
                                                .all_reduce = fake_all_reduce,
                                                .reduce_scatter = fake_reduce_scatter,
                                                .all_gather = fake_all_gather,
                                                .wait = fake_wait};

/* --- a stage with its dp ------------------------------------------------------------------------
 */

#define LAYERS 4
#define T      4

struct fixture {
    struct holmes_stage *stage;
    struct holmes_links links;
    struct holmes_comm dp_comm, embed_comm;
    struct holmes_link dp_link, embed_link;
    struct holmes_dp *dp;
    size_t total;
};

/* The last stage of two, or with `alone` the only one; replica `rank` of `replicas`. */
static struct fixture *create(bool alone, bool tied, int replicas, int rank, bool overlap)
{
    struct fixture *f = calloc(1, sizeof *f);
    struct holmes_stage_attr sa = {
        .model =
            {.layers = LAYERS, .channels = 6, .heads = 2, .seq_len = T, .vocab = 11, .tied = tied},
        .first_layer = alone ? 0 : 1,
        .last_layer = LAYERS,
        .is_first = alone,
        .is_last = true,
        .batch = 1,
        .slots = 1,
        .kernels = holmes_kernels_find("ref")};
    struct holmes_dp_attr da = {.links = &f->links,
                                .hp = {.beta1 = 0.9f, .beta2 = 0.95f, .eps = 1e-8f},
                                .bucket_bytes = 300 * sizeof(float),
                                .overlap = overlap};

    cr_assert_eq(holmes_stage_create(&sa, &f->stage), 0);
    holmes_stage_init_params(f->stage, 1);
    f->total = holmes_stage_nparams(f->stage);
    grads = holmes_stage_grads(f->stage);
    weights = holmes_stage_weights(f->stage);
    memset(grads, 0, f->total * sizeof *grads);
    f->dp_comm =
        (struct holmes_comm){.ops = &fake_ops, .rank = rank, .size = replicas, .kind = "dp"};
    f->embed_comm = (struct holmes_comm){.ops = &fake_ops, .rank = 1, .size = 2, .kind = "embed"};
    f->dp_link = (struct holmes_link){.name = "dp.1", .comm = &f->dp_comm};
    f->embed_link = (struct holmes_link){.name = "embed.0", .comm = &f->embed_comm};
    f->links = (struct holmes_links){.stage = alone ? 0 : 1,
                                     .replica = rank,
                                     .dp = &f->dp_link,
                                     .embed = tied && !alone ? &f->embed_link : NULL,
                                     .timeout_ms = 1000};
    da.stage = f->stage;
    cr_assert_eq(holmes_dp_create(&da, &f->dp), 0);
    nops = 0;
    return f;
}

static void destroy(struct fixture *f)
{
    holmes_dp_destroy(f->dp);
    holmes_stage_destroy(f->stage);
    free(f);
}

static void run_forward(struct fixture *f, bool alone)
{
    static const int32_t tokens[T] = {1, 2, 3, 4};
    float in[T * 6] = {1, 2, 3};

    cr_assert_eq(holmes_stage_forward(f->stage, 0, tokens, tokens, alone ? NULL : in, NULL), 0);
}

static void run_backward(struct fixture *f, bool alone)
{
    float din[T * 6];

    cr_assert_eq(holmes_stage_backward(f->stage, 0, NULL, alone ? NULL : din, 1), 0);
}

static int count(enum kind kind, bool waited)
{
    int n = 0;

    for (int i = 0; i < nops; i++)
        n += ops[i].kind == kind && ops[i].waited == waited;
    return n;
}

/* --- cutting ------------------------------------------------------------------------------------
 */

static void check_cut(bool alone, bool tied, int replicas)
{
    struct fixture *f = create(alone, tied, replicas, 0, true);
    char *seen = calloc(f->total, 1);
    int tails = 0, n = holmes_dp_nbuckets(f->dp);
    size_t below = f->total;

    cr_expect_gt(n, 3);
    for (int i = 0; i < n; i++) {
        const struct holmes_bucket *b = holmes_dp_bucket(f->dp, i);
        bool copy = f->links.embed && i == n - 1;

        for (size_t k = b->offset; k < b->offset + b->count; k++)
            cr_assert_eq(seen[k]++, 0, "element %zu is in two buckets", k);
        tails += b->count % (size_t)replicas != 0;
        cr_expect_eq(b->counted, !copy, "tied weights count on the first stage");
        if (copy)
            cr_expect_eq(b->offset, holmes_stage_tied(f->stage)->offset);
        else
            cr_expect_lt(b->offset, below, "buckets go from the last layer to the first");
        below = copy ? below : b->offset;
    }
    cr_expect_null(memchr(seen, 0, f->total), "an element is in no bucket");
    cr_expect_leq(tails, 1 + (f->links.embed != NULL), "%d of %d buckets do not divide by %d",
                  tails, n, replicas);
    free(seen);
    destroy(f);
}

Test(dp, every_element_is_in_one_bucket_and_few_buckets_do_not_divide)
{
    for (int replicas = 1; replicas <= 7; replicas++) {
        check_cut(true, false, replicas);
        check_cut(true, true, replicas);
        check_cut(false, true, replicas);
    }
}

Test(dp, every_element_is_owned_by_one_replica)
{
    for (int replicas = 1; replicas <= 7; replicas++) {
        size_t total = 0;
        char *seen = NULL;

        for (int rank = 0; rank < replicas; rank++) {
            struct fixture *f = create(false, true, replicas, rank, true);

            total = f->total;
            seen = seen ? seen : calloc(total, 1);
            for (int i = 0; i < holmes_dp_nowned(f->dp); i++) {
                struct holmes_owned o;

                holmes_dp_owned(f->dp, i, &o);
                cr_assert_eq(o.w, weights + o.offset);
                cr_assert(o.m && o.v);
                for (size_t k = o.offset; k < o.offset + o.count; k++)
                    cr_assert_eq(seen[k]++, 0, "element %zu has two owners of %d", k, replicas);
            }
            destroy(f);
        }
        cr_expect_null(memchr(seen, 0, total), "an element has no owner of %d", replicas);
        free(seen);
    }
}

/* --- when ---------------------------------------------------------------------------------------
 */

Test(dp, buckets_start_in_the_last_backward_and_not_before)
{
    struct fixture *f = create(false, true, 3, 1, true);
    double squares;

    run_forward(f, false);
    run_backward(f, false);
    cr_expect_eq(nops, 0, "a backward that is not the last has started %d operations", nops);
    holmes_dp_last_backward(f->dp);
    run_forward(f, false);
    run_backward(f, false);
    /* All but the tied one, which waits for the other stage: that was asked at once. */
    cr_expect_eq(count(REDUCE, false), holmes_dp_nbuckets(f->dp) - 1);
    cr_expect_eq(ops[0].kind, TIED, "the head is done with first");
    cr_expect_eq(count(TIED, false), 1);
    cr_assert_eq(holmes_dp_reduce(f->dp), 0);
    cr_assert_eq(holmes_dp_take_squares(f->dp, &squares), 0);
    cr_expect_eq(count(REDUCE, true), holmes_dp_nbuckets(f->dp));
    cr_expect_eq(count(REDUCE, false) + count(TIED, false) + count(TAIL, false), 0);
    cr_expect_eq(ops[nops - 1 - (ops[nops - 1].kind == TAIL)].offset,
                 holmes_stage_tied(f->stage)->offset, "its reduction comes last");
    destroy(f);
}

Test(dp, without_overlap_all_of_it_starts_after_backward_in_the_same_order)
{
    static struct started first[sizeof ops / sizeof *ops];
    double squares;
    int n = 0;

    for (int overlap = 1; overlap >= 0; overlap--) {
        struct fixture *f = create(true, true, 3, 2, overlap);

        holmes_dp_last_backward(f->dp);
        run_forward(f, true);
        run_backward(f, true);
        cr_expect_eq(nops > 0, overlap);
        cr_assert_eq(holmes_dp_reduce(f->dp), 0);
        cr_assert_eq(holmes_dp_take_squares(f->dp, &squares), 0);
        cr_assert_eq(holmes_dp_update(f->dp, 1e-3f, 1, 1), 0);
        cr_assert_eq(holmes_dp_settle(f->dp), 0);
        if (overlap) {
            n = nops;
            memcpy(first, ops, sizeof ops);
        }
        cr_assert_eq(nops, n);
        for (int i = 0; i < n; i++)
            cr_expect(ops[i].kind == first[i].kind && ops[i].offset == first[i].offset &&
                          ops[i].count == first[i].count,
                      "operation %d is another one", i);
        destroy(f);
    }
}

/* The next forward waits for the embedding, then block by block. */
Test(dp, forward_waits_for_the_weights_it_reads_and_settling_for_the_rest)
{
    struct fixture *f = create(true, false, 2, 0, true);
    double squares;
    int last_gather = -1;

    holmes_dp_last_backward(f->dp);
    run_forward(f, true);
    run_backward(f, true);
    cr_assert_eq(holmes_dp_reduce(f->dp), 0);
    cr_assert_eq(holmes_dp_take_squares(f->dp, &squares), 0);
    nops = 0;
    cr_assert_eq(holmes_dp_update(f->dp, 1e-3f, 1, 1), 0);
    cr_expect_eq(count(GATHER, false), holmes_dp_nbuckets(f->dp), "all are under way");
    for (int i = 0; i < nops; i++) {
        if (ops[i].kind != GATHER)
            continue;
        cr_expect(last_gather < 0 || ops[last_gather].offset < ops[i].offset,
                  "what forward reads first is gathered first");
        last_gather = i;
    }
    run_forward(f, true);
    cr_expect_eq(count(GATHER, false), 0, "forward read weights that were on their way");
    cr_assert_eq(holmes_dp_update(f->dp, 1e-3f, 1, 2), 0);
    cr_expect_gt(count(GATHER, false), 0);
    cr_assert_eq(holmes_dp_settle(f->dp), 0);
    cr_expect_eq(count(GATHER, false), 0);
    holmes_dp_set_overlap(f->dp, false);
    cr_assert_eq(holmes_dp_update(f->dp, 1e-3f, 1, 3), 0);
    cr_expect_eq(count(GATHER, false), 0, "without overlap update waits");
    destroy(f);
}
