#include "planned.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <netdb.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <unistd.h>

#include "config.h"
#include "env.h"

static void add(struct holmes_planned_names *names, const char *name)
{
    if (name && name[0] && names->n < HOLMES_PLANNED_NAMES)
        snprintf(names->name[names->n++], sizeof names->name[0], "%s", name);
}

void holmes_planned_names(const char *label, struct holmes_planned_names *out)
{
    char own[256] = "";

    *out = (struct holmes_planned_names){0};
    if (gethostname(own, sizeof own - 1) == 0)
        add(out, own);
    add(out, holmes_env_fact("SLURMD_NODENAME")); /* known in a container too */
    add(out, label);
}

static bool is_address(const char *name)
{
    unsigned char addr[16];

    return inet_pton(AF_INET, name, addr) == 1 || inet_pton(AF_INET6, name, addr) == 1;
}

bool holmes_planned_same(const char *a, const char *b)
{
    size_t na = strlen(a), nb = strlen(b), n = na < nb ? na : nb;

    if (n == 0 || strncasecmp(a, b, n) != 0)
        return false;
    if (na == nb)
        return true;
    return (na < nb ? b : a)[n] == '.' && !is_address(a) && !is_address(b);
}

/* Whether one of this host's interfaces has the address. */
static bool is_own_address(const char *name)
{
    struct ifaddrs *all = NULL;
    bool found = false;
    char text[INET6_ADDRSTRLEN];

    if (!is_address(name) || getifaddrs(&all) != 0)
        return false;
    for (const struct ifaddrs *i = all; i && !found; i = i->ifa_next) {
        const struct sockaddr *a = i->ifa_addr;

        if (!a || (a->sa_family != AF_INET && a->sa_family != AF_INET6))
            continue;
        found = getnameinfo(a,
                            a->sa_family == AF_INET ? sizeof(struct sockaddr_in)
                                                    : sizeof(struct sockaddr_in6),
                            text, sizeof text, NULL, 0, NI_NUMERICHOST) == 0 &&
                strcmp(text, name) == 0;
    }
    freeifaddrs(all);
    return found;
}

static bool is_here(const char *planned, const struct holmes_planned_names *names)
{
    if (strcasecmp(planned, "localhost") == 0 || is_own_address(planned))
        return true;
    for (int i = 0; i < names->n; i++)
        if (holmes_planned_same(planned, names->name[i]))
            return true;
    return false;
}

enum holmes_planned holmes_planned_judge(const char *planned, int rank, int world,
                                         const struct holmes_planned_names *names, int *owner)
{
    char host[256], last[256] = "";
    const char *rest = planned;

    *owner = -1;
    holmes_config_label(planned, rank, host, sizeof host);
    if (is_here(host, names)) {
        *owner = rank;
        return HOLMES_PLANNED_HERE;
    }
    for (int i = 0; i < world && *rest && *owner < 0; i++) {
        const size_t len = strcspn(rest, ",");

        snprintf(host, sizeof host, "%.*s", (int)len, rest);
        if (strcmp(host, last) != 0 && is_here(host, names)) /* ranks of a host follow each other */
            *owner = i;
        snprintf(last, sizeof last, "%s", host);
        rest += len + (rest[len] == ',');
    }
    return *owner < 0 ? HOLMES_PLANNED_UNKNOWN : HOLMES_PLANNED_ELSEWHERE;
}
