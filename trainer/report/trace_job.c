/* Events travel through the rendezvous, piece by piece, as it is there whatever the plugin does; it
 * keeps what it is given, so that all ranks together record no more than it has room for. */
#include "trace_job.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "file.h"
#include "log.h"
#include "trace.h"

#define PIECE_BYTES  60000
#define JOB_BYTES    ((size_t)32 << 20) /* of all ranks, through the rendezvous */
#define EVENTS_MIN   256
#define ALIGN_ROUNDS 9

static int barrier(struct holmes_links *l)
{
    struct holmes_comm *c = l->world->comm;
    struct holmes_op *op = NULL;
    int rc = c->ops->barrier(c, &op);

    return rc ? rc : holmes_links_wait(l, l->world, &op);
}

static size_t capacity(int world)
{
    size_t n = JOB_BYTES / HOLMES_TRACE_EVENT_BYTES / (size_t)world;

    if (n > HOLMES_TRACE_CAPACITY)
        return HOLMES_TRACE_CAPACITY;
    return n < EVENTS_MIN ? EVENTS_MIN : n;
}

int holmes_trace_job_begin(const struct holmes_trace_job *j, char *why, size_t why_len)
{
    FILE *f;
    int rc;

    if (!j->path)
        return 0;
    if (j->rank == 0) {
        rc = holmes_file_create(j->path, &f);
        if (rc == 0 && fclose(f) != 0)
            rc = -errno;
        if (rc != 0) {
            snprintf(why, why_len, "--trace %s: %s", j->path, holmes_file_strerror(rc));
            return -EINVAL;
        }
    }
    rc = holmes_trace_start(capacity(j->group->world));
    for (int i = 0; i < ALIGN_ROUNDS && rc == 0; i++) {
        rc = barrier(j->links);
        holmes_trace_mark();
    }
    if (rc != 0)
        snprintf(why, why_len, "--trace: the ranks' clocks cannot be aligned: %s",
                 holmes_strerror(rc));
    return rc;
}

static int send_part(const struct holmes_trace_job *j, const char *data, size_t len)
{
    size_t pieces = (len + PIECE_BYTES - 1) / PIECE_BYTES;
    char key[48];
    int rc;

    snprintf(key, sizeof key, "trace/%d/bytes", j->rank);
    rc = holmes_rdv_put(j->rdv, key, &len, sizeof len);
    for (size_t i = 0; i < pieces && rc == 0; i++) {
        size_t at = i * PIECE_BYTES;

        snprintf(key, sizeof key, "trace/%d/%zu", j->rank, i);
        rc =
            holmes_rdv_put(j->rdv, key, data + at, len - at < PIECE_BYTES ? len - at : PIECE_BYTES);
    }
    return rc;
}

static int take_part(const struct holmes_trace_job *j, int rank, void **data, size_t *len)
{
    char key[48], *to = NULL;
    size_t got = 0, at = 0;
    int rc;

    snprintf(key, sizeof key, "trace/%d/bytes", rank);
    rc = holmes_rdv_get(j->rdv, key, len, sizeof *len, &got, j->timeout_ms);
    if (rc == 0 && (got != sizeof *len || *len == 0 || *len > JOB_BYTES + PIECE_BYTES))
        rc = -EBADMSG;
    if (rc == 0 && !(to = malloc(*len)))
        rc = -ENOMEM;
    for (int i = 0; rc == 0 && at < *len; i++, at += got) {
        snprintf(key, sizeof key, "trace/%d/%d", rank, i);
        rc = holmes_rdv_get(j->rdv, key, to + at, *len - at, &got, j->timeout_ms);
        if (rc == 0 && (got == 0 || got > *len - at))
            rc = -EBADMSG;
    }
    if (rc != 0)
        free(to);
    else
        *data = to;
    return rc;
}

static void name_process(const struct holmes_trace_job *j, int rank, char *text, size_t len)
{
    struct holmes_place at = holmes_group_place(j->group, rank);
    int n = snprintf(text, len, "rank %d (stage %d, replica %d", rank, at.stage, at.replica);

    if (j->group->tensors > 1)
        n += snprintf(text + n, len - (size_t)n, ", tensor %d", at.tensor);
    snprintf(text + n, len - (size_t)n, ") on %s", j->hosts[rank]);
}

static int write_file(const struct holmes_trace_job *j, const struct holmes_trace_part *parts)
{
    uint64_t events = 0, dropped;
    FILE *f;
    int rc = holmes_file_create(j->path, &f);

    if (rc != 0)
        return rc;
    rc = holmes_trace_write(f, parts, j->group->world, &events, &dropped);
    if (fclose(f) != 0 && rc == 0)
        rc = -errno;
    if (rc == 0 && dropped > 0)
        printf("trace %s: the last %llu events; %llu older ones were dropped, as there is room for "
               "%zu of each rank\n",
               j->path, (unsigned long long)events, (unsigned long long)dropped,
               capacity(j->group->world));
    else if (rc == 0)
        printf("trace %s: %llu events\n", j->path, (unsigned long long)events);
    return rc;
}

/* Rank 0: `mine` is its own part. */
static int collect(const struct holmes_trace_job *j, const void *mine, size_t len)
{
    int world = j->group->world, rc = 0;
    struct holmes_trace_part *parts = calloc((size_t)world, sizeof *parts);
    char(*names)[160] = calloc((size_t)world, sizeof *names);
    void **taken = calloc((size_t)world, sizeof *taken);

    if (!parts || !names || !taken)
        rc = -ENOMEM;
    for (int r = 0; r < world && rc == 0; r++) {
        name_process(j, r, names[r], sizeof names[r]);
        parts[r] = (struct holmes_trace_part){.rank = r, .process = names[r]};
        parts[r].data = mine;
        parts[r].len = len;
        if (r > 0) {
            rc = take_part(j, r, &taken[r], &parts[r].len);
            parts[r].data = taken[r];
        }
    }
    if (rc == 0)
        rc = write_file(j, parts);
    for (int r = 0; taken && r < world; r++)
        free(taken[r]);
    free(taken);
    free(names);
    free(parts);
    return rc;
}

int holmes_trace_job_end(const struct holmes_trace_job *j, char *why, size_t why_len)
{
    void *mine = NULL;
    size_t len = 0;
    int rc;

    if (!j->path)
        return 0;
    rc = holmes_trace_pack(&mine, &len);
    holmes_trace_stop();
    if (rc == 0)
        rc = j->rank == 0 ? collect(j, mine, len) : send_part(j, mine, len);
    free(mine);
    if (rc != 0)
        snprintf(why, why_len, "--trace %s: %s", j->path, holmes_strerror(rc));
    return rc;
}
