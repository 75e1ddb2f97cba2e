/* Arithmetic of the configuration, and values that are taken apart. */
#include "config.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int holmes_config_world(const struct holmes_config *c)
{
    if (c->dry_run)
        return c->stages * c->replicas * c->tensors;
    if (c->world > 0)
        return c->world;
    return c->local > 0 ? c->local : 1;
}

int holmes_config_microbatches(const struct holmes_config *c)
{
    return c->batch / (c->replicas * c->microbatch);
}

double holmes_config_lr(const struct holmes_config *c, int t)
{
    double left;

    if (t <= c->warmup)
        return c->lr * t / c->warmup;
    if (c->steps <= c->warmup + 1)
        return c->lr;
    left = (double)(c->steps - t) / (c->steps - c->warmup - 1);
    if (c->lr_decay == HOLMES_DECAY_CONSTANT)
        return c->lr;
    if (c->lr_decay == HOLMES_DECAY_COSINE)
        left = 0.5 * (1 - cos(M_PI * left));
    return c->final_lr + (c->lr - c->final_lr) * left;
}

void holmes_config_label(const char *list, int rank, char *out, size_t out_len)
{
    const char *p = list ? list : "";
    size_t n;

    if (strchr(p, ','))
        for (int i = 0; i < rank && p; i++)
            p = strchr(p, ',') ? strchr(p, ',') + 1 : "";
    n = strcspn(p, ",");
    snprintf(out, out_len, "%.*s", (int)n, p);
}

int holmes_config_endpoint(const char *text, char *host, size_t host_len, uint16_t *port)
{
    const char *colon = strrchr(text, ':');
    size_t n = colon ? (size_t)(colon - text) : 0;
    char *end;
    long v;

    if (!colon || n == 0 || colon[1] < '0' || colon[1] > '9')
        return -EINVAL;
    v = strtol(colon + 1, &end, 10);
    if (*end != '\0' || v < 0 || v > 65535)
        return -EINVAL;
    if (text[0] == '[' && text[n - 1] == ']') {
        text++;
        n -= 2;
    } else if (memchr(text, ':', n)) {
        return -EINVAL;
    }
    if (n == 0 || n >= host_len)
        return -EINVAL;
    memcpy(host, text, n);
    host[n] = '\0';
    *port = (uint16_t)v;
    return 0;
}
