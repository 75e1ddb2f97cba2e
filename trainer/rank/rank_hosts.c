/* Where the launcher has put the ranks, beside the plan's hosts: each rank judges for itself, and
 * rank 0 sums up what is no failure. */
#include "rank_priv.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "launch.h"
#include "log.h"
#include "notes.h"
#include "planned.h"

#define TEXT_MAX 1024

/* Ranks that run elsewhere, and those of which it is not known; of each the first one's words. */
struct summary {
    int count;
    char first[TEXT_MAX];
};

static void note(struct summary *s, const char *text)
{
    if (s->count++ == 0)
        snprintf(s->first, sizeof s->first, "%s", text);
}

static const char *others(const struct summary *s, char buf[48])
{
    if (s->count == 1)
        return "";
    snprintf(buf, 48, " (and so for %d more rank%s)", s->count - 1, s->count == 2 ? "" : "s");
    return buf;
}

static void warn(const struct summary *elsewhere, const struct summary *unknown)
{
    char buf[48];

    if (elsewhere->count > 0)
        holmes_warn(TRAIN, "%s%s: hosts of one cluster in another order than planned",
                    elsewhere->first, others(elsewhere, buf));
    if (unknown->count > 0)
        holmes_warn(TRAIN,
                    "%s, a name that the plan does not have%s: whether ranks are where they were "
                    "planned is not known",
                    unknown->first, others(unknown, buf));
    holmes_notes_show(NULL, NULL); /* no cause of what may fail later */
}

/* Rank 0 hears of all. */
static int collect(struct rank *r)
{
    struct summary elsewhere = {0}, unknown = {0};
    char key[32], text[TEXT_MAX];
    size_t len;
    int rc = 0;

    for (int i = 0; i < r->world && rc == 0; i++) {
        snprintf(key, sizeof key, "planned/%d", i);
        rc = holmes_rdv_get(r->rdv, key, text, sizeof text - 1, &len, rank_join_ms(r));
        if (rc != 0)
            break;
        text[len] = '\0';
        if (text[0] == '0' + HOLMES_PLANNED_ELSEWHERE)
            note(&elsewhere, text + 1);
        else if (text[0] == '0' + HOLMES_PLANNED_UNKNOWN)
            note(&unknown, text + 1);
    }
    if (rc == 0)
        warn(&elsewhere, &unknown);
    return rc;
}

static int tell(struct rank *r, enum holmes_planned verdict, const char *planned, const char *own)
{
    char key[32], text[TEXT_MAX];
    int n = snprintf(text, sizeof text, "%drank %d, planned for %s, runs on %s", verdict, r->rank,
                     planned, own);

    snprintf(key, sizeof key, "planned/%d", r->rank);
    return holmes_rdv_put(r->rdv, key, text, (size_t)n);
}

int holmes_rank_compare_plan(struct rank *r)
{
    const struct holmes_config *c = r->config;
    char label[64], planned[256], mine[64], there[64];
    struct holmes_planned_names names;
    enum holmes_planned verdict;
    int owner, rc;

    holmes_config_label(c->host_labels, r->rank, label, sizeof label);
    holmes_planned_names(label, &names);
    verdict = holmes_planned_judge(c->planned_hosts, r->rank, r->world, &names, &owner);
    holmes_config_label(c->planned_hosts, r->rank, planned, sizeof planned);
    holmes_config_label(c->clusters, r->rank, mine, sizeof mine);
    holmes_config_label(c->clusters, owner > 0 ? owner : 0, there, sizeof there);
    if (verdict == HOLMES_PLANNED_ELSEWHERE && strcmp(mine, there) != 0)
        return holmes_rank_fail(
            r, HOLMES_EXIT_USAGE, false,
            "planned for host %s of cluster %s, it runs on %s, which the plan has in cluster %s: "
            "start ranks from the plan's hostfile or rankfile, or leave out --planned-hosts",
            planned, mine, r->hosts[r->rank], there);
    if (r->world == 1)
        return 0;
    rc = tell(r, verdict, planned, r->hosts[r->rank]);
    if (rc == 0 && r->rank == 0)
        rc = collect(r);
    return rc == 0 ? 0
                   : holmes_rank_fail(r, HOLMES_EXIT_FAILED, true, "cannot compare hosts: %s",
                                      holmes_strerror(rc));
}
