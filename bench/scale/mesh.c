/* `holmes-bench ranks`: every rank is a thread with its own copy of the plugin, so that it has a
 * listener, NICs and connections of its own as a process of a job has. The ranks make a ring and a
 * binary tree, as NCCL does. */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <unistd.h>

#include "clock.h"
#include "scale.h"
#include "set.h"

#define PAUSE_NS 200000 /* there are more ranks than cores */

struct link {
    int from, to;
    char handle[HOLMES_PLUGIN_HANDLE_BYTES];
};

struct mesh;

struct rank {
    struct mesh *mesh;
    int rank, copy_fd;
    pthread_t thread;
    struct holmes_plugin *plugin;
    void *ctx;
    bool initialised;
    struct holmes_scale_set set;
    int rc;
    char why[512];
};

struct mesh {
    const struct holmes_scale_options *o;
    int nranks, nlinks;
    struct link *links;
    struct rank *ranks;
    pthread_barrier_t step; /* of all ranks and the thread that measures */
    atomic_bool failed;
};

/* ---- who talks to whom ---- */

static void link_add(struct mesh *m, int from, int to)
{
    m->links[m->nlinks++] = (struct link){.from = from, .to = to};
}

/* A ring one way, and a binary tree both ways. */
static int links_make(struct mesh *m)
{
    m->links = calloc((size_t)m->nranks * 3, sizeof *m->links);
    if (!m->links)
        return -ENOMEM;
    for (int r = 0; r < m->nranks; r++) {
        link_add(m, r, (r + 1) % m->nranks);
        if (r == 0)
            continue;
        link_add(m, r, (r - 1) / 2);
        link_add(m, (r - 1) / 2, r);
    }
    return 0;
}

/* ---- a rank ---- */

/* A library is loaded once however often it is opened; a copy of its file is another library. The
 * descriptor stays, because its name is the library's. */
static int copy_of(const char *path, int *out)
{
    int from = open(path, O_RDONLY | O_CLOEXEC), to, rc = 0;
    off_t left = 0;

    if (from < 0)
        return -errno;
    to = memfd_create("holmes-bench-plugin", MFD_CLOEXEC);
    if (to < 0)
        rc = -errno;
    else
        left = lseek(from, 0, SEEK_END);
    lseek(from, 0, SEEK_SET);
    while (rc == 0 && left > 0) {
        ssize_t n = sendfile(to, from, NULL, (size_t)left);

        if (n <= 0)
            rc = n < 0 ? -errno : -EIO;
        left -= n > 0 ? n : 0;
    }
    close(from);
    if (rc != 0 && to >= 0)
        close(to);
    if (rc == 0)
        *out = to;
    return rc;
}

static void rank_fail(struct rank *r, int rc, const char *what)
{
    if (r->rc != 0)
        return;
    r->rc = rc;
    snprintf(r->why, sizeof r->why, "rank %d: %s", r->rank, what);
    atomic_store(&r->mesh->failed, true);
}

static bool going(const struct rank *r)
{
    return !atomic_load(&r->mesh->failed);
}

static void rank_load(struct rank *r)
{
    char path[32], why[256] = "";
    int rc;

    snprintf(path, sizeof path, "/proc/self/fd/%d", r->copy_fd);
    rc = holmes_plugin_open(path, &r->plugin, why, sizeof why);
    if (rc == 0) {
        rc = holmes_plugin_init(r->plugin, 1, &r->ctx);
        r->initialised = rc == 0;
    }
    if (rc != 0)
        rank_fail(r, rc, why[0] ? why : "the plugin's init failed");
}

static int ends_of(const struct rank *r)
{
    int n = 0;

    for (int i = 0; i < r->mesh->nlinks; i++)
        n += (r->mesh->links[i].from == r->rank) + (r->mesh->links[i].to == r->rank);
    return n;
}

static void rank_make(struct rank *r)
{
    struct mesh *m = r->mesh;
    int rc = holmes_scale_set_create(r->plugin, r->ctx, ends_of(r), &r->set), n = 0;

    if (rc != 0) {
        rank_fail(r, rc, "no memory");
        return;
    }
    r->set.pause_ns = PAUSE_NS;
    r->set.timeout_ns = m->o->timeout_s * 1000000000ll;
    r->set.stop = &m->failed;
    for (int i = 0; i < m->nlinks; i++) {
        if (m->links[i].from == r->rank) {
            r->set.ends[n].sends = true;
            r->set.ends[n++].number = (uint32_t)i;
        }
        if (m->links[i].to == r->rank)
            r->set.ends[n++].number = (uint32_t)i;
    }
    rc = holmes_scale_set_listen(&r->set);
    if (rc != 0)
        rank_fail(r, rc, r->set.why);
    for (int i = 0; i < r->set.n; i++) {
        const struct holmes_scale_end *e = &r->set.ends[i];

        if (!e->sends)
            memcpy(m->links[e->number].handle, e->handle, sizeof e->handle);
    }
}

static void rank_raise(struct rank *r)
{
    int rc;

    for (int i = 0; i < r->set.n; i++) {
        struct holmes_scale_end *e = &r->set.ends[i];

        if (e->sends)
            memcpy(e->handle, r->mesh->links[e->number].handle, sizeof e->handle);
    }
    rc = holmes_scale_set_raise(&r->set);
    if (rc != 0)
        rank_fail(r, rc, r->set.why);
}

static void rank_exchange(struct rank *r)
{
    int rc = holmes_scale_set_post(&r->set);

    if (rc == 0)
        rc = holmes_scale_set_exchange(&r->set);
    if (rc != 0)
        rank_fail(r, rc, r->set.why);
}

static void rank_close(struct rank *r)
{
    holmes_scale_set_close(&r->set);
}

static void rank_unload(struct rank *r)
{
    holmes_scale_set_destroy(&r->set);
    if (r->initialised)
        holmes_plugin_fini(r->plugin, r->ctx);
    holmes_plugin_close(r->plugin);
}

/* What all ranks do, step by step; `always`: after a failure too. Between two steps the main thread
 * looks. */
static const struct {
    void (*run)(struct rank *r);
    bool always;
} steps[] = {
    {rank_load, false},     {rank_make, false}, {rank_raise, false},
    {rank_exchange, false}, {rank_close, true}, {rank_unload, true},
};
#define STEPS (sizeof steps / sizeof *steps)

static void *rank_main(void *arg)
{
    struct rank *r = arg;

    for (size_t i = 0; i < STEPS; i++) {
        pthread_barrier_wait(&r->mesh->step);
        if (steps[i].always || going(r))
            steps[i].run(r);
        pthread_barrier_wait(&r->mesh->step);
    }
    return NULL;
}

/* ---- the thread that measures ---- */

static int64_t run_step(struct mesh *m)
{
    int64_t start = (int64_t)holmes_now_ns(); /* the ranks wait already */

    pthread_barrier_wait(&m->step);
    pthread_barrier_wait(&m->step);
    return (int64_t)holmes_now_ns() - start;
}

static int times_of_ends(const struct mesh *m, struct holmes_scale_mesh *out)
{
    int64_t *took = malloc(2 * (size_t)m->nlinks * sizeof *took);
    int n = 0;

    if (!took)
        return -ENOMEM;
    for (int r = 0; r < m->nranks; r++) {
        for (int i = 0; i < m->ranks[r].set.n; i++)
            took[n++] = m->ranks[r].set.ends[i].took_ns;
    }
    out->raise = holmes_scale_times_of(took, n, out->raise.total_ns);
    free(took);
    return 0;
}

static int measure(struct mesh *m, struct holmes_scale_mesh *out)
{
    int rc = 0;

    out->start_ns = run_step(m);
    run_step(m); /* listens, which open the NICs */
    holmes_scale_usage_now(&out->started);
    out->raise.total_ns = run_step(m);
    holmes_scale_usage_now(&out->up);
    out->raise_cpu_ns = out->up.cpu_ns - out->started.cpu_ns;
    if (!atomic_load(&m->failed))
        rc = times_of_ends(m, out);
    out->exchange_ns = run_step(m);
    holmes_scale_usage_now(&out->used);
    out->close_ns = run_step(m);
    holmes_scale_usage_now(&out->closed);
    run_step(m);
    return rc;
}

static void threads_start(struct mesh *m)
{
    for (int i = 0; i < m->nranks; i++) {
        int rc = pthread_create(&m->ranks[i].thread, NULL, rank_main, &m->ranks[i]);

        /* The others wait for it and cannot be let go. */
        if (rc != 0) {
            fprintf(stderr, "holmes-bench: cannot start thread %d of %d: %s\n", i + 1, m->nranks,
                    strerror(rc));
            _exit(1);
        }
    }
}

static int first_failure(const struct mesh *m, char *why, size_t why_len)
{
    const struct rank *found = NULL;

    for (int i = 0; i < m->nranks; i++) {
        const struct rank *r = &m->ranks[i];

        if (r->rc != 0 && (!found || found->rc == -ECANCELED))
            found = r;
    }
    if (found)
        snprintf(why, why_len, "%s", found->why);
    return found ? found->rc : 0;
}

/* Where the plugin lies is known once it was opened; that also loads what it brings along, which
 * stays. */
static int look_up(const struct holmes_scale_options *o, struct holmes_scale_mesh *out, char *path,
                   size_t path_len, char *why, size_t why_len)
{
    struct holmes_plugin *p;
    int rc = holmes_plugin_open(o->plugin, &p, why, why_len);

    if (rc != 0)
        return rc;
    snprintf(path, path_len, "%s", holmes_plugin_path(p));
    snprintf(out->about, sizeof out->about, "%.180s, net \"%.40s\" (ABI v%d)", path,
             holmes_plugin_name(p), holmes_plugin_abi(p));
    out->finalizes = holmes_plugin_abi(p) >= 11;
    holmes_plugin_close(p);
    return 0;
}

static int copies_make(struct mesh *m, const char *path, char *why, size_t why_len)
{
    for (int i = 0; i < m->nranks; i++) {
        int rc = copy_of(path, &m->ranks[i].copy_fd);

        if (rc != 0) {
            snprintf(why, why_len, "cannot copy %s: %s", path, strerror(-rc));
            return rc;
        }
    }
    return 0;
}

static void *end_at_once(void *arg)
{
    return arg;
}

/* The first thread of a process may bring another that stays: the thread sanitizer has one. It is
 * none of the plugin's. */
static void make_a_first_thread(void)
{
    pthread_t thread;

    if (pthread_create(&thread, NULL, end_at_once, NULL) == 0)
        pthread_join(thread, NULL);
}

static int mesh_run(struct mesh *m, struct holmes_scale_mesh *out, char *why, size_t why_len)
{
    int rc;

    threads_start(m);
    rc = measure(m, out);
    for (int i = 0; i < m->nranks; i++)
        pthread_join(m->ranks[i].thread, NULL);
    holmes_scale_usage_now(&out->after);
    return rc != 0 ? rc : first_failure(m, why, why_len);
}

int holmes_scale_mesh_run(const struct holmes_scale_options *o, struct holmes_scale_mesh *out,
                          char *why, size_t why_len)
{
    struct mesh m = {.o = o, .nranks = o->counts[0]};
    char path[512];
    int rc;

    holmes_scale_nofile_raise();
    rc = look_up(o, out, path, sizeof path, why, why_len);
    if (rc != 0)
        return rc;
    m.ranks = calloc((size_t)m.nranks, sizeof *m.ranks);
    rc = m.ranks ? links_make(&m) : -ENOMEM;
    for (int i = 0; rc == 0 && i < m.nranks; i++)
        m.ranks[i] = (struct rank){.mesh = &m, .rank = i, .copy_fd = -1};
    if (rc == 0)
        rc = copies_make(&m, path, why, why_len);
    if (rc == 0) {
        out->ranks = m.nranks;
        out->connections = m.nlinks;
        pthread_barrier_init(&m.step, NULL, (unsigned)m.nranks + 1);
        make_a_first_thread();
        holmes_scale_usage_now(&out->before);
        rc = mesh_run(&m, out, why, why_len);
        pthread_barrier_destroy(&m.step);
    }
    for (int i = 0; m.ranks && i < m.nranks; i++) {
        if (m.ranks[i].copy_fd >= 0)
            close(m.ranks[i].copy_fd);
    }
    free(m.ranks);
    free(m.links);
    return rc;
}
