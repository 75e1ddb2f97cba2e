#include "queued_kernels.h"

#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fake_nccl.h"

static pthread_once_t once = PTHREAD_ONCE_INIT;
static const struct holmes_kernels *ref;
static struct holmes_kernels table;

static _Thread_local struct {
    void *stream;
    int (*look)(void *ctx);
    void *ctx;
    bool given_up;
    bool watched; /* since queued_watch */
    struct queued_watched seen;
} mine;

static void *queued_stream(void)
{
    if (!mine.stream)
        mine.stream = fake_gpu_queue();
    return mine.stream;
}

static void launch(void (*run)(void *args), const void *args, size_t bytes)
{
    fake_gpu_launch(queued_stream(), run, args, bytes);
}

/* A layer's call. */
static void queue(void (*run)(void *args), const void *args, size_t bytes)
{
    mine.seen.before += mine.watched && mine.seen.waits == 0;
    mine.seen.after += mine.watched && mine.seen.waits > 0;
    launch(run, args, bytes);
}

void queued_watch(void)
{
    mine.seen = (struct queued_watched){0};
    mine.watched = true;
    fake_gpu_hold(true);
}

void queued_host_waits(void)
{
    if (!mine.watched)
        return;
    mine.seen.waits++;
    fake_gpu_hold(false);
}

struct queued_watched queued_watch_end(void)
{
    mine.watched = false;
    fake_gpu_hold(false);
    return mine.seen;
}

void queued_leave(void)
{
    if (mine.stream)
        fake_gpu_queue_end(mine.stream);
    mine.stream = NULL;
}

static void queued_on_wait(int (*look)(void *ctx), void *ctx)
{
    mine.look = look;
    mine.ctx = ctx;
}

static const char *queued_error(void)
{
    return mine.given_up ? "given up" : NULL;
}

static void queued_sync(void)
{
    queued_host_waits();
    while (!mine.given_up && !fake_gpu_done(queued_stream())) {
        mine.given_up = mine.look && mine.look(mine.ctx) != 0;
        sched_yield();
    }
}

/* ---- memory ---- */

static void queued_free(void *p)
{
    fake_gpu_free(p);
}

struct zero_args {
    void *p;
    size_t bytes;
};

static void run_zero(void *p)
{
    const struct zero_args *x = p;

    ref->zero(x->p, x->bytes);
}

static void queued_zero(void *p, size_t bytes)
{
    launch(run_zero, &(struct zero_args){p, bytes}, sizeof(struct zero_args));
}

struct copy_args {
    void *to;
    const void *from;
    size_t bytes;
    void *host; /* what the host gave, to free */
};

static void run_copy(void *p)
{
    const struct copy_args *x = p;

    memmove(x->to, x->from, x->bytes);
    free(x->host);
}

static void queued_copy(void *to, const void *from, size_t bytes)
{
    struct copy_args x = {.to = to, .from = from, .bytes = bytes};

    if (!fake_gpu_owns(from)) {
        x.host = malloc(bytes + 1);
        if (!x.host)
            abort();
        x.from = memcpy(x.host, from, bytes);
    }
    if (!fake_gpu_owns(to))
        queued_sync();
    if (mine.given_up)
        return;
    launch(run_copy, &x, sizeof x);
    if (!fake_gpu_owns(to))
        queued_sync();
}

/* ---- layers ---- */

#define QUEUED3(call, A, B, C)                                                                     \
    struct call##_args {                                                                           \
        A a;                                                                                       \
        B b;                                                                                       \
        C c;                                                                                       \
    };                                                                                             \
    static void run_##call(void *p)                                                                \
    {                                                                                              \
        const struct call##_args *x = p;                                                           \
        ref->call(x->a, x->b, x->c);                                                               \
    }                                                                                              \
    static void queued_##call(A a, B b, C c)                                                       \
    {                                                                                              \
        queue(run_##call, &(struct call##_args){a, b, c}, sizeof(struct call##_args));             \
    }

#define QUEUED4(call, A, B, C, D)                                                                  \
    struct call##_args {                                                                           \
        A a;                                                                                       \
        B b;                                                                                       \
        C c;                                                                                       \
        D d;                                                                                       \
    };                                                                                             \
    static void run_##call(void *p)                                                                \
    {                                                                                              \
        const struct call##_args *x = p;                                                           \
        ref->call(x->a, x->b, x->c, x->d);                                                         \
    }                                                                                              \
    static void queued_##call(A a, B b, C c, D d)                                                  \
    {                                                                                              \
        queue(run_##call, &(struct call##_args){a, b, c, d}, sizeof(struct call##_args));          \
    }

#define QUEUED5(call, A, B, C, D, E)                                                               \
    struct call##_args {                                                                           \
        A a;                                                                                       \
        B b;                                                                                       \
        C c;                                                                                       \
        D d;                                                                                       \
        E e;                                                                                       \
    };                                                                                             \
    static void run_##call(void *p)                                                                \
    {                                                                                              \
        const struct call##_args *x = p;                                                           \
        ref->call(x->a, x->b, x->c, x->d, x->e);                                                   \
    }                                                                                              \
    static void queued_##call(A a, B b, C c, D d, E e)                                             \
    {                                                                                              \
        queue(run_##call, &(struct call##_args){a, b, c, d, e}, sizeof(struct call##_args));       \
    }

#define QUEUED6(call, A, B, C, D, E, F)                                                            \
    struct call##_args {                                                                           \
        A a;                                                                                       \
        B b;                                                                                       \
        C c;                                                                                       \
        D d;                                                                                       \
        E e;                                                                                       \
        F f;                                                                                       \
    };                                                                                             \
    static void run_##call(void *p)                                                                \
    {                                                                                              \
        const struct call##_args *x = p;                                                           \
        ref->call(x->a, x->b, x->c, x->d, x->e, x->f);                                             \
    }                                                                                              \
    static void queued_##call(A a, B b, C c, D d, E e, F f)                                        \
    {                                                                                              \
        queue(run_##call, &(struct call##_args){a, b, c, d, e, f}, sizeof(struct call##_args));    \
    }

#define QUEUED7(call, A, B, C, D, E, F, G)                                                         \
    struct call##_args {                                                                           \
        A a;                                                                                       \
        B b;                                                                                       \
        C c;                                                                                       \
        D d;                                                                                       \
        E e;                                                                                       \
        F f;                                                                                       \
        G g;                                                                                       \
    };                                                                                             \
    static void run_##call(void *p)                                                                \
    {                                                                                              \
        const struct call##_args *x = p;                                                           \
        ref->call(x->a, x->b, x->c, x->d, x->e, x->f, x->g);                                       \
    }                                                                                              \
    static void queued_##call(A a, B b, C c, D d, E e, F f, G g)                                   \
    {                                                                                              \
        queue(run_##call, &(struct call##_args){a, b, c, d, e, f, g}, sizeof(struct call##_args)); \
    }

#define QUEUED8(call, A, B, C, D, E, F, G, H)                                                      \
    struct call##_args {                                                                           \
        A a;                                                                                       \
        B b;                                                                                       \
        C c;                                                                                       \
        D d;                                                                                       \
        E e;                                                                                       \
        F f;                                                                                       \
        G g;                                                                                       \
        H h;                                                                                       \
    };                                                                                             \
    static void run_##call(void *p)                                                                \
    {                                                                                              \
        const struct call##_args *x = p;                                                           \
        ref->call(x->a, x->b, x->c, x->d, x->e, x->f, x->g, x->h);                                 \
    }                                                                                              \
    static void queued_##call(A a, B b, C c, D d, E e, F f, G g, H h)                              \
    {                                                                                              \
        queue(run_##call, &(struct call##_args){a, b, c, d, e, f, g, h},                           \
              sizeof(struct call##_args));                                                         \
    }

#define QUEUED9(call, A, B, C, D, E, F, G, H, I)                                                   \
    struct call##_args {                                                                           \
        A a;                                                                                       \
        B b;                                                                                       \
        C c;                                                                                       \
        D d;                                                                                       \
        E e;                                                                                       \
        F f;                                                                                       \
        G g;                                                                                       \
        H h;                                                                                       \
        I i;                                                                                       \
    };                                                                                             \
    static void run_##call(void *p)                                                                \
    {                                                                                              \
        const struct call##_args *x = p;                                                           \
        ref->call(x->a, x->b, x->c, x->d, x->e, x->f, x->g, x->h, x->i);                           \
    }                                                                                              \
    static void queued_##call(A a, B b, C c, D d, E e, F f, G g, H h, I i)                         \
    {                                                                                              \
        queue(run_##call, &(struct call##_args){a, b, c, d, e, f, g, h, i},                        \
              sizeof(struct call##_args));                                                         \
    }

#define QUEUED10(call, A, B, C, D, E, F, G, H, I, J)                                               \
    struct call##_args {                                                                           \
        A a;                                                                                       \
        B b;                                                                                       \
        C c;                                                                                       \
        D d;                                                                                       \
        E e;                                                                                       \
        F f;                                                                                       \
        G g;                                                                                       \
        H h;                                                                                       \
        I i;                                                                                       \
        J j;                                                                                       \
    };                                                                                             \
    static void run_##call(void *p)                                                                \
    {                                                                                              \
        const struct call##_args *x = p;                                                           \
        ref->call(x->a, x->b, x->c, x->d, x->e, x->f, x->g, x->h, x->i, x->j);                     \
    }                                                                                              \
    static void queued_##call(A a, B b, C c, D d, E e, F f, G g, H h, I i, J j)                    \
    {                                                                                              \
        queue(run_##call, &(struct call##_args){a, b, c, d, e, f, g, h, i, j},                     \
              sizeof(struct call##_args));                                                         \
    }

QUEUED9(embedding_forward, void *, const int32_t *, const void *, const void *, int, int, int, int,
        int)
QUEUED9(embedding_backward, float *, float *, const void *, const int32_t *, int, int, int, int,
        int)
QUEUED8(layernorm_forward, void *, float *, float *, const void *, const void *, const void *, int,
        int)
QUEUED10(layernorm_backward, void *, float *, float *, const void *, const void *, const float *,
         const float *, const void *, int, int)
QUEUED7(matmul_forward, void *, const void *, const void *, const void *, int, int, int)
QUEUED8(matmul_gelu_forward, void *, void *, const void *, const void *, const void *, int, int,
        int)
QUEUED9(matmul_backward, void *, float *, float *, const void *, const void *, const void *, int,
        int, int)
QUEUED7(attention_forward, void *, float *, const void *, int, int, int, int)
QUEUED10(attention_backward, void *, void *, const void *, const void *, const float *,
         const void *, int, int, int, int)
QUEUED3(gelu_forward, void *, const void *, size_t)
QUEUED4(gelu_backward, void *, const void *, const void *, size_t)
QUEUED6(residual_forward, void *, const void *, const void *, const void *, int, int)
QUEUED6(xent_stats, float *, const void *, const int32_t *, int, int, int)
QUEUED5(xent_combine, double *, float *, const float *, int, int)
QUEUED8(xent_backward, void *, const void *, const float *, const int32_t *, float, int, int, int)
QUEUED3(convert, void *, const float *, size_t)
QUEUED3(sum_squares, double *, const float *, size_t)

struct adamw_args {
    float *w;
    void *real;
    float *m, *v;
    const float *g;
    size_t n;
    struct holmes_adamw_step step;
};

static void run_adamw(void *p)
{
    const struct adamw_args *x = p;

    ref->adamw(x->w, x->real, x->m, x->v, x->g, x->n, &x->step);
}

static void queued_adamw(float *w, void *real, float *m, float *v, const float *g, size_t n,
                         const struct holmes_adamw_step *step)
{
    launch(run_adamw, &(struct adamw_args){w, real, m, v, g, n, *step}, sizeof(struct adamw_args));
}

static void fill(void)
{
    ref = holmes_kernels_find("ref");
    table = *ref;
    table.name = "queued";
    table.alloc = fake_gpu_alloc;
    table.free = queued_free;
    table.zero = queued_zero;
    table.copy = queued_copy;
    table.sync = queued_sync;
    table.on_wait = queued_on_wait;
    table.stream = queued_stream;
    table.error = queued_error;
    table.embedding_forward = queued_embedding_forward;
    table.embedding_backward = queued_embedding_backward;
    table.layernorm_forward = queued_layernorm_forward;
    table.layernorm_backward = queued_layernorm_backward;
    table.matmul_forward = queued_matmul_forward;
    table.matmul_gelu_forward = queued_matmul_gelu_forward;
    table.matmul_backward = queued_matmul_backward;
    table.attention_forward = queued_attention_forward;
    table.attention_backward = queued_attention_backward;
    table.gelu_forward = queued_gelu_forward;
    table.gelu_backward = queued_gelu_backward;
    table.residual_forward = queued_residual_forward;
    table.xent_stats = queued_xent_stats;
    table.xent_combine = queued_xent_combine;
    table.xent_backward = queued_xent_backward;
    table.convert = queued_convert;
    table.sum_squares = queued_sum_squares;
    table.adamw = queued_adamw;
}

const struct holmes_kernels *queued_kernels(void)
{
    pthread_once(&once, fill);
    return &table;
}
