/* Options that mean nothing beside the values of others. One table: what asks for something that
 * cannot be had is refused, what merely does nothing is warned of. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "config.h"
#include "config_spec.h"

#define EFFECTLESS_MAX 64 /* bytes of a value in a sentence */

typedef bool applies(const struct holmes_config *c);

struct rule {
    const char *option; /* changed from its default */
    applies *when;      /* and this holds */
    bool refused;       /* else warned of */
    const char *why;    /* "--OPTION VALUE why"; or "... no effect: why", one line for all rows
                         * of the same reason that follow each other */
};

static bool one_rank(const struct holmes_config *c)
{
    return holmes_config_world(c) == 1;
}

static bool one_replica(const struct holmes_config *c)
{
    return c->replicas == 1;
}

static bool one_stage(const struct holmes_config *c)
{
    return c->stages == 1;
}

static bool no_save(const struct holmes_config *c)
{
    return !c->save;
}

static bool latest_of_nothing(const struct holmes_config *c)
{
    return !c->save && strcmp(c->resume, "latest") == 0;
}

static bool weights_of_checkpoint(const struct holmes_config *c)
{
    return c->resume && strcmp(c->resume, "latest") != 0;
}

static bool saves_seldom(const struct holmes_config *c)
{
    return c->save_every > c->steps;
}

static bool has_split(const struct holmes_config *c)
{
    return c->split != NULL;
}

static bool no_sequences(const struct holmes_config *c)
{
    return c->eval_sequences == 0;
}

static bool holds_nothing_out(const struct holmes_config *c)
{
    struct holmes_data_attr attr;
    char why[300];

    return c->split && holmes_config_data(c, &attr, why, sizeof why) == 0 && attr.split[1] <= 0;
}

static bool evaluates_seldom(const struct holmes_config *c)
{
    return c->eval_every > c->steps;
}

static bool stops_at_nan(const struct holmes_config *c)
{
    return c->on_nan == HOLMES_NAN_STOP;
}

static bool constant_rate(const struct holmes_config *c)
{
    return c->lr_decay == HOLMES_DECAY_CONSTANT && c->final_lr != c->lr;
}

static bool only_warms_up(const struct holmes_config *c)
{
    return c->warmup >= c->steps;
}

static bool warms_up_too_long(const struct holmes_config *c)
{
    return c->warmup > c->steps;
}

static bool threads_of_others(const struct holmes_config *c)
{
    return c->threads > 1 && strcmp(c->kernels, "cpu") != 0;
}

static bool is_quiet(const struct holmes_config *c)
{
    return c->quiet;
}

static const struct rule rules[] = {
    {"held-out", has_split, true, "beside --split: both say what is held out: leave out one"},
    {"eval-every", no_sequences, true, "evaluates nothing with --eval-sequences 0: leave out one"},
    {"eval-every", holds_nothing_out, true, "has nothing to evaluate on: --split holds none out"},
    {"final-lr", constant_rate, true, "is never reached with --lr-decay constant: leave it out"},
    {"max-skipped", stops_at_nan, true, "needs --on-nan skip"},
    {"virtual-stages", one_stage, true,
     "needs a pipeline: with --pipeline 1 there is no bubble to shrink"},
    {"resume", latest_of_nothing, true, "is the newest checkpoint in --save DIR, which is missing"},
    {"save-every", no_save, true, "needs --save DIR"},
    {"keep", no_save, true, "needs --save DIR"},
    {"init", weights_of_checkpoint, true,
     "beside --resume: the weights come from the checkpoint: leave out one"},

    {"warmup", warms_up_too_long, false, "it is longer than --steps, --lr is never reached"},
    {"lr-decay", only_warms_up, false, "all --steps are --warmup"},
    {"final-lr", only_warms_up, false, "all --steps are --warmup"},
    {"eval-sequences", holds_nothing_out, false, "--split holds nothing out"},
    {"eval-every", evaluates_seldom, false, "there are fewer --steps"},
    {"save-every", saves_seldom, false, "there are fewer --steps"},
    {"stop-timeout", no_save, false, "without --save a signal ends at once"},
    {"threads", threads_of_others, false, "only --kernels cpu have threads"},
    {"progress-every", is_quiet, false, "--quiet shows no progress"},
    {"peak-tflops", is_quiet, false, "--quiet shows no progress"},
    {"overlap", one_replica, false, "--data-parallel is 1"},
    {"bucket-mb", one_replica, false, "--data-parallel is 1"},
    {"placement", one_rank, false, "there is one rank"},
    {"rank-order", one_rank, false, "there is one rank"},
    {"rendezvous", one_rank, false, "there is one rank"},
    {"secret-file", one_rank, false, "there is one rank"},
    {"join-timeout", one_rank, false, "there is one rank"},
    {"op-timeout", one_rank, false, "there is one rank"},
    {"plugin", one_rank, false, "there is one rank"},
    {"net-device", one_rank, false, "there is one rank"},
    {"comm", one_rank, false, "there is one rank"},
};
#define NRULES ((int)(sizeof rules / sizeof *rules))

static bool rule_applies(const struct rule *r, const struct holmes_config *c)
{
    return holmes_config_changed(c, r->option) && r->when(c);
}

int holmes_config_check_pairs(const struct holmes_config *c, char *why, size_t why_len)
{
    char buf[64];

    for (int i = 0; i < NRULES; i++) {
        const struct rule *r = &rules[i];
        const char *value;

        if (!r->refused || !rule_applies(r, c))
            continue;
        value = holmes_spec_get(holmes_spec_find(r->option), c, buf, sizeof buf);
        snprintf(why, why_len, "--%s %.*s %s", r->option, EFFECTLESS_MAX, value ? value : "",
                 r->why);
        return -EINVAL;
    }
    return 0;
}

void holmes_config_warn_pairs(const struct holmes_config *c, FILE *out)
{
    for (int i = 0; i < NRULES;) {
        const char *why = rules[i].why;
        int n = 0;

        for (; i < NRULES && strcmp(rules[i].why, why) == 0; i++)
            if (!rules[i].refused && rule_applies(&rules[i], c))
                fprintf(out, "%s--%s",
                        n++ ? ", " : "holmes-train: without effect: ", rules[i].option);
        if (n > 0)
            fprintf(out, ": %s\n", why);
    }
}

bool holmes_config_has_rule(const char *option)
{
    for (int i = 0; i < NRULES; i++)
        if (strcmp(rules[i].option, option) == 0)
            return true;
    return false;
}
