/* What the options say about the data, and what the data say about the options. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include "config.h"
#include "config_spec.h"

#define REFUSE(...)                                                                                \
    do {                                                                                           \
        snprintf(why, why_len, __VA_ARGS__);                                                       \
        return -EINVAL;                                                                            \
    } while (0)

/* "969,30,1": up to three numbers, of which Megatron-LM makes shares. */
static int parse_split(const char *text, double split[3])
{
    const char *p = text;
    char *end;
    int n = 0;

    split[0] = split[1] = split[2] = 0;
    do {
        split[n] = strtod(p, &end);
        if (end == p || *p == '-' || !(split[n] >= 0 && split[n] < 1e9))
            return -EINVAL;
        p = end + 1;
        n++;
    } while (*end == ',' && n < 3);
    return *end == '\0' && split[0] > 0 ? 0 : -EINVAL;
}

int holmes_config_data(const struct holmes_config *c, struct holmes_data_attr *out, char *why,
                       size_t why_len)
{
    *out = (struct holmes_data_attr){.path = c->data,
                                     .seq_len = c->model.seq_len,
                                     .batch = c->batch,
                                     .vocab = c->model.vocab,
                                     .split = {1 - c->heldout, c->heldout, 0},
                                     .seed = c->seed};
    if (!c->split)
        return 0;
    if (parse_split(c->split, out->split) != 0)
        REFUSE("--split \"%s\": one to three numbers from 0, the first above 0, are right, as in "
               "969,30,1",
               c->split);
    return 0;
}

int holmes_config_settle_vocab(struct holmes_config *c, char *why, size_t why_len)
{
    char cause[500] = "";
    int rc;

    if (!c->data)
        REFUSE("--data FILE is missing: name a text file to train on, or PREFIX of PREFIX.bin and "
               "PREFIX.idx");
    if (c->model.vocab != 0)
        return 0;
    rc = holmes_data_vocab(c->data, &c->model.vocab, cause, sizeof cause);
    if (rc == -ENOENT)
        REFUSE("--vocab is missing, and %s: say how many tokens the vocabulary of --data has",
               cause);
    if (rc != 0)
        REFUSE("--data %s: %s", c->data, cause);
    return 0;
}

int holmes_config_check_data(const struct holmes_config *c, char *why, size_t why_len)
{
    struct holmes_data_attr attr;
    struct holmes_dataloader *d = NULL;
    char cause[500] = "";
    int rc = holmes_config_data(c, &attr, why, why_len);

    if (rc == 0 && holmes_dataloader_open(&attr, &d, cause, sizeof cause) != 0)
        REFUSE("--data %s: %s", c->data, cause);
    holmes_dataloader_close(d);
    return rc;
}
