/* How a rank fails: it finds out whose failure it is before it speaks, once, and tells the others.
 */
#include "rank_priv.h"

#include <poll.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include "clock.h"
#include "launch.h"
#include "log.h"
#include "notes.h"

#define RANK_GRACE_S 2 /* from the end of the job to that of a rank that computes on */

/* The launcher prints the first sentence it gets; a rank started by hand prints its own. */
void holmes_rank_say(const struct rank *r, const char *sentence)
{
    int fd = r->config->launcher_fd;
    char line[1200];
    int n;

    if (r->world == 1)
        n = snprintf(line, sizeof line, "%s%s\n", fd < 0 ? "holmes-train: " : "", sentence);
    else
        n = snprintf(line, sizeof line, "%srank %d on %s: %s\n", fd < 0 ? "holmes-train: " : "",
                     r->rank, r->hosts[r->rank], sentence);
    if (n >= (int)sizeof line) {
        n = sizeof line - 1;
        line[n - 1] = '\n';
    }
    if (write(fd < 0 ? STDERR_FILENO : fd, line, (size_t)n) < 0)
        return; /* nobody listens any more */
}

/* A neighbour's death shows here as a broken connection; wait a moment for the true cause. */
static bool is_peers_failure(const struct rank *r)
{
    uint64_t deadline = holmes_deadline_ms(RANK_BLAME_MS);

    if (!r->rdv)
        return false;
    while (holmes_rdv_poll(r->rdv) == 0) {
        struct timespec pause = {.tv_nsec = 20000000};

        if (holmes_deadline_passed(deadline))
            return false;
        nanosleep(&pause, NULL);
    }
    return true;
}

/* Whoever comes first speaks for this process. */
bool holmes_rank_may_speak(struct rank *r)
{
    return !atomic_exchange(&r->spoken, true);
}

/* Whether this rank closes within the grace: its connection goes then. */
static bool closes(const struct rank *r)
{
    struct pollfd closing = {.fd = r->closing_fd, .events = POLLIN};

    return poll(&closing, 1, RANK_GRACE_S * 1000) != 0;
}

/* A rank that computes does not see that the job has ended before it next waits for others, which
 * may be long; this ends it. A rank that is on its way out gets as long again. */
static void *end_in_time(void *arg)
{
    struct rank *r = arg;
    char sentence[500];

    if (closes(r))
        return NULL;
    if (holmes_rank_may_speak(r)) {
        snprintf(sentence, sizeof sentence, "the job ended: %s", holmes_rdv_reason(r->rdv));
        if (r->config->launcher_fd < 0)
            holmes_rank_say(r, sentence);
    } else if (closes(r)) {
        return NULL;
    }
    _exit(HOLMES_EXIT_PEER);
}

void holmes_rank_job_ended(void *ctx)
{
    struct rank *r = ctx;

    r->closing_fd = eventfd(0, EFD_CLOEXEC);
    if (r->closing_fd >= 0 && pthread_create(&r->ender, NULL, end_in_time, r) == 0)
        return;
    holmes_warn(TRAIN, "no thread to end this rank in time");
    if (r->closing_fd >= 0)
        close(r->closing_fd);
    r->closing_fd = -1;
}

void holmes_rank_no_more_ends(struct rank *r)
{
    if (r->rdv)
        holmes_rdv_on_abort(r->rdv, NULL, NULL);
    if (r->closing_fd < 0)
        return;
    eventfd_write(r->closing_fd, 1);
    pthread_join(r->ender, NULL);
    close(r->closing_fd);
    r->closing_fd = -1;
}

/* `remote`: the failure may be the consequence of another rank's. Returns the exit status. */
int holmes_rank_fail(struct rank *r, int code, bool remote, const char *fmt, ...)
{
    char text[600], cause[400], sentence[1100];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    holmes_progress_hide(&r->progress);
    if (remote && is_peers_failure(r)) {
        holmes_notes_take_last(cause, sizeof cause);
        snprintf(sentence, sizeof sentence, "the job ended: %s", holmes_rdv_reason(r->rdv));
        if (holmes_rank_may_speak(r) && r->config->launcher_fd < 0)
            holmes_rank_say(r, sentence);
        return HOLMES_EXIT_PEER;
    }
    holmes_notes_take_last(cause, sizeof cause);
    snprintf(sentence, sizeof sentence, "%s%s%s%s", text, cause[0] ? " (" : "", cause,
             cause[0] ? ")" : "");
    if (holmes_rank_may_speak(r))
        holmes_rank_say(r, sentence);
    if (r->rdv)
        holmes_rdv_abort(r->rdv, sentence);
    return code;
}

int holmes_rank_ckpt_fail(struct rank *r, const struct holmes_ckpt_failure *f)
{
    return holmes_rank_fail(r, f->code, f->remote, "%s", f->why);
}

/* Names the communicator, and who is in it: one of them is what this rank waited for. */
int holmes_rank_step_failed(struct rank *r, const char *what, int step, int rc)
{
    const struct holmes_link *k = r->links.failed;
    const char *data = holmes_dataloader_error(r->data);
    char members[128] = "";
    size_t n = 0;

    if (*data)
        return holmes_rank_fail(r, HOLMES_EXIT_USAGE, false, "--data %s", data);

    for (int i = 0; k && i < k->comm->size && n < sizeof members; i++)
        n += (size_t)snprintf(members + n, sizeof members - n, "%s%d", i ? ", " : "", k->ranks[i]);
    if (r->kernels->error() && r->links.follow_error == 0) /* else a consequence of that */
        return holmes_rank_fail(r, HOLMES_EXIT_FAILED, false, "%s %d: the GPU failed: %s", what,
                                step, r->kernels->error());
    if (!k)
        return holmes_rank_fail(r, HOLMES_EXIT_FAILED, true, "%s %d: %s", what, step,
                                holmes_strerror(rc));
    return holmes_rank_fail(r, HOLMES_EXIT_FAILED, true, "%s %d: %s among ranks %s: %s", what, step,
                            k->name, members, holmes_strerror(rc));
}
