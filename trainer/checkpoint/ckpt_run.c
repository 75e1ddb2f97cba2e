#include "ckpt_run.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "clock.h"
#include "launch.h"
#include "log.h"

#define KEY      "resume"
#define SAVE_MS  (3600 * 1000) /* for the slowest rank's disk; a dead rank is seen at once */
#define AGREE_MS (600 * 1000)  /* rank 0 may wait for a lock */
#define TEXT_MAX (HOLMES_CKPT_PATH_MAX + 128)

struct holmes_ckpt_run {
    const struct holmes_config *config;
    int rank, world;
    struct holmes_rdv *rdv;
    struct holmes_ckpt_data data;         /* rank 0 */
    char from[HOLMES_CKPT_PATH_MAX + 64]; /* the checkpoint to go on from; "": none */
    struct holmes_ckpt *ckpt;             /* until it is loaded */
    int step;
    json_t *changes; /* rank 0 */
    struct holmes_saver *saver;
};

/* What a user told or gave, or what this machine cannot do. */
static int exit_status(int rc)
{
    switch (rc) {
    case -EINVAL:
    case -EBADMSG:
    case -ENOENT:
    case -ENOTDIR:
    case -EEXIST:
    case -EACCES:
    case -EROFS:
    case -ENAMETOOLONG:
    case -EBUSY:
        return HOLMES_EXIT_USAGE;
    default:
        return HOLMES_EXIT_FAILED;
    }
}

static int failed(struct holmes_ckpt_failure *f, int rc)
{
    f->remote = false;
    f->code = exit_status(rc);
    return f->code;
}

static int barrier(void *ctx, const char *name)
{
    const struct holmes_ckpt_run *r = ctx;

    return r->rdv ? holmes_rdv_barrier(r->rdv, name, SAVE_MS) : 0;
}

static int open_from(struct holmes_ckpt_run *r, struct holmes_ckpt_failure *f)
{
    int rc = holmes_ckpt_open(r->from, &r->ckpt, f->why, sizeof f->why);

    if (rc == 0)
        r->step = holmes_ckpt_manifest(r->ckpt)->step;
    return rc;
}

static int find(struct holmes_ckpt_run *r, struct holmes_ckpt_failure *f)
{
    const struct holmes_config *c = r->config;
    int rc = holmes_ckpt_locate(c->resume, c->save, r->from, sizeof r->from, f->why, sizeof f->why);

    if (rc != 0 || !r->from[0])
        return rc;
    rc = open_from(r, f);
    if (rc == 0)
        rc = holmes_ckpt_fits(r->ckpt, c, &r->data, &r->changes, f->why, sizeof f->why);
    return rc;
}

static int open_saver(struct holmes_ckpt_run *r, struct holmes_ckpt_failure *f)
{
    const struct holmes_ckpt_team team = {r->rank, r->world, barrier, r};

    if (!r->config->save)
        return 0;
    return holmes_saver_open(r->config, &r->data, &team, r->from[0] ? r->from : NULL, &r->saver,
                             f->why, sizeof f->why);
}

int holmes_ckpt_run_open(const struct holmes_config *c, int rank, int world,
                         struct holmes_ckpt_run **out, struct holmes_ckpt_failure *f)
{
    struct holmes_ckpt_run *r = calloc(1, sizeof *r);
    int rc = 0;

    if (!r) {
        snprintf(f->why, sizeof f->why, "out of memory");
        return failed(f, -ENOMEM);
    }
    *r = (struct holmes_ckpt_run){.config = c, .rank = rank, .world = world};
    if (rank == 0 && (c->save || c->resume))
        rc = holmes_ckpt_data_of(c->data, &r->data, f->why, sizeof f->why);
    if (rc == 0 && rank == 0 && c->resume)
        rc = find(r, f);
    if (rc == 0)
        rc = open_saver(r, f);
    if (rc != 0) {
        holmes_ckpt_run_close(r);
        return failed(f, rc);
    }
    *out = r;
    return 0;
}

void holmes_ckpt_run_close(struct holmes_ckpt_run *r)
{
    if (!r)
        return;
    holmes_saver_close(r->saver);
    holmes_ckpt_close(r->ckpt);
    json_decref(r->changes);
    free(r);
}

/* "CHECKSUM PATH", and nothing for a run that begins. */
static int tell(struct holmes_ckpt_run *r)
{
    char text[TEXT_MAX];
    int n = snprintf(text, sizeof text, "%s %s", r->ckpt ? holmes_ckpt_manifest(r->ckpt)->sum : "-",
                     r->from);

    return holmes_rdv_put(r->rdv, KEY, text, (size_t)n);
}

static int hear(struct holmes_ckpt_run *r, char sum[9])
{
    char text[TEXT_MAX];
    size_t len, n;
    int rc = holmes_rdv_get(r->rdv, KEY, text, sizeof text - 1, &len, AGREE_MS);

    if (rc != 0)
        return rc;
    text[len] = '\0';
    n = strcspn(text, " ");
    snprintf(sum, 9, "%.*s", (int)(n < 8 ? n : 8), text);
    snprintf(r->from, sizeof r->from, "%s", text[n] ? text + n + 1 : "");
    return 0;
}

int holmes_ckpt_run_agree(struct holmes_ckpt_run *r, struct holmes_rdv *rdv,
                          struct holmes_ckpt_failure *f)
{
    char sum[9] = "";
    int rc = 0;

    r->rdv = rdv;
    if (!rdv || !r->config->resume)
        return 0;
    rc = r->rank == 0 ? tell(r) : hear(r, sum);
    if (rc != 0) {
        snprintf(f->why, sizeof f->why, "cannot agree on what to go on from: %s",
                 holmes_strerror(rc));
        f->remote = true;
        f->code = HOLMES_EXIT_FAILED;
        return f->code;
    }
    if (r->rank == 0 || !r->from[0])
        return 0;
    rc = open_from(r, f);
    if (rc == 0 && strcmp(holmes_ckpt_manifest(r->ckpt)->sum, sum) != 0) {
        rc = -EINVAL;
        snprintf(f->why, sizeof f->why,
                 "%s: rank 0 sees another checkpoint under this name (%s there, %s here): a folder "
                 "that all hosts share is right",
                 r->from, sum, holmes_ckpt_manifest(r->ckpt)->sum);
    }
    return rc ? failed(f, rc) : 0;
}

int holmes_ckpt_run_step(const struct holmes_ckpt_run *r)
{
    return r->step;
}

int holmes_ckpt_run_load(struct holmes_ckpt_run *r, struct holmes_trainer *t,
                         struct holmes_resumed *out, struct holmes_ckpt_failure *f)
{
    const uint64_t started = holmes_now_ns();
    int rc;

    *out = (struct holmes_resumed){.step = r->step, .changes = r->changes};
    if (!r->ckpt)
        return 0;
    snprintf(out->path, sizeof out->path, "%s", r->from);
    rc = holmes_state_load(r->ckpt, t, f->why, sizeof f->why);
    if (rc != 0)
        return failed(f, rc);
    out->bytes = holmes_ckpt_bytes_read(r->ckpt);
    out->seconds = (double)(holmes_now_ns() - started) / 1e9;
    holmes_ckpt_close(r->ckpt);
    r->ckpt = NULL;
    return 0;
}

bool holmes_ckpt_run_due(const struct holmes_ckpt_run *r, int step, bool last)
{
    const struct holmes_config *c = r->config;

    if (!r->saver || step == r->step) /* it is there already */
        return false;
    return last || (c->save_every > 0 && step % c->save_every == 0);
}

int holmes_ckpt_run_save(struct holmes_ckpt_run *r, const struct holmes_trainer *t,
                         const struct holmes_links *links, int step, struct holmes_saved *out,
                         struct holmes_ckpt_failure *f)
{
    struct holmes_piece *pieces;
    int count, rc = holmes_state_pieces(t, links, &pieces, &count);

    if (rc != 0) {
        snprintf(f->why, sizeof f->why, "--save %s: %s", r->config->save, holmes_strerror(rc));
        return failed(f, rc);
    }
    rc = holmes_saver_save(r->saver, step, pieces, count,
                           holmes_stage_kernels(holmes_trainer_stage(t, 0))->copy, out, f->why,
                           sizeof f->why);
    holmes_state_free(pieces, count);
    if (rc == 0)
        return 0;
    f->code = HOLMES_EXIT_FAILED;
    f->remote = out->barrier_failed;
    if (f->remote)
        snprintf(f->why, sizeof f->why, "saving step %d: %s", step, holmes_strerror(rc));
    return f->code;
}
