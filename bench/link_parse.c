/* The words in which links are described, both ways. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "link.h"

#define QUEUE_US        5000
#define QUEUE_BYTES_MIN (512 << 10) /* eight streams with a super-packet each under way */
#define SUPER_US        200
#define SUPER_MAX       (500 << 10) /* a little less than the kernel's limit */

struct unit {
    const char *name;
    uint64_t scale; /* of 1 into the list's own unit */
};

static const struct {
    struct unit units[4];
    uint64_t min, max;
    const char *help;
} lists[] = {
    [HOLMES_LINK_RATE] = {{{"K", 1000}, {"M", 1000000}, {"G", 1000000000}},
                          1000000,
                          UINT64_C(400000000000),
                          "bits per second with K, M or G, 1M to 400G: like 10G, or 1G,3G for two "
                          "NICs"},
    [HOLMES_LINK_RTT] = {{{"us", 1}, {"ms", 1000}, {"s", 1000000}},
                         0,
                         10000000,
                         "a time with us, ms or s, up to 10s: like 20ms, or one for each NIC"},
    [HOLMES_LINK_LOSS] = {{{"%", 10000}},
                          0,
                          500000,
                          "a share of the packets in percent, 0% to 50%: like 1%, or one for each "
                          "NIC"},
};

const char *holmes_link_list_help(enum holmes_link_list what)
{
    return lists[what].help;
}

/* Digits, perhaps with a fraction, times 10^6, from *text on, which moves behind them. No more than
 * nine digits before the point and six behind, so that it fits whatever comes. */
static int decimal_parse(const char **text, uint64_t *out)
{
    size_t whole = strspn(*text, "0123456789"), places = 0;
    uint64_t value = 0;

    if (whole == 0 || whole > 9)
        return -EINVAL;
    for (; whole > 0; whole--)
        value = value * 10 + (uint64_t)(*(*text)++ - '0');
    if (**text == '.') {
        places = strspn(++*text, "0123456789");
        if (places == 0 || places > 6)
            return -EINVAL;
    }
    for (size_t i = 0; i < 6; i++)
        value = value * 10 + (i < places ? (uint64_t)(*(*text)++ - '0') : 0);
    *out = value;
    return 0;
}

static int value_parse(enum holmes_link_list what, const char **text, uint64_t *out)
{
    uint64_t millionths, value;
    size_t len;

    if (decimal_parse(text, &millionths) != 0)
        return -EINVAL;
    len = strcspn(*text, ",");
    for (const struct unit *u = lists[what].units; u->name; u++) {
        if (strlen(u->name) != len || strncmp(*text, u->name, len) != 0)
            continue;
        if (millionths > UINT64_MAX / u->scale)
            return -EINVAL;
        value = millionths * u->scale / 1000000;
        if (value < lists[what].min || value > lists[what].max)
            return -EINVAL;
        *text += len;
        *out = value;
        return 0;
    }
    return -EINVAL;
}

int holmes_link_list_parse(enum holmes_link_list what, const char *text,
                           uint64_t values[HOLMES_LINKS_MAX])
{
    uint64_t found[HOLMES_LINKS_MAX];
    int n = 0;

    do {
        if (n == HOLMES_LINKS_MAX || value_parse(what, &text, &found[n]) != 0)
            return -EINVAL;
        n++;
    } while (*text++ == ',');
    memcpy(values, found, (size_t)n * sizeof found[0]);
    return n;
}

uint64_t holmes_link_queue(const struct holmes_link_shape *shape)
{
    uint64_t bytes = shape->bits_per_s / 8 / 1000 * QUEUE_US / 1000;

    if (shape->bits_per_s == 0)
        return 0;
    return bytes > QUEUE_BYTES_MIN ? bytes : QUEUE_BYTES_MIN;
}

uint32_t holmes_link_super_packet(const struct holmes_link_shape *shape)
{
    uint64_t bytes = shape->bits_per_s / 8 * SUPER_US / 1000000;

    if (shape->loss_ppm || bytes < HOLMES_SUPER_PACKET)
        return HOLMES_SUPER_PACKET;
    return bytes < SUPER_MAX ? (uint32_t)bytes : SUPER_MAX;
}

uint64_t holmes_link_total_rate(const struct holmes_link_attr *attr)
{
    uint64_t sum = 0;

    for (int i = 0; i < attr->nlinks; i++) {
        if (attr->shapes[i].bits_per_s == 0)
            return 0;
        sum += attr->shapes[i].bits_per_s;
    }
    return sum;
}

/* Of one of `n` streams. */
static double stream_rate(const struct holmes_link_attr *attr, size_t stream, size_t n)
{
    size_t nlinks = (size_t)attr->nlinks, link = stream % nlinks;
    size_t sharers = n / nlinks + (link < n % nlinks);

    return (double)attr->shapes[link].bits_per_s / (double)sharers;
}

double holmes_link_part(const struct holmes_link_attr *attr, size_t first, size_t n)
{
    double sum = 0, before = 0;

    if (first == n)
        return 1;
    if (!attr || holmes_link_total_rate(attr) == 0)
        return (double)first / (double)n;
    for (size_t i = 0; i < n; i++) {
        sum += stream_rate(attr, i, n);
        before += i < first ? stream_rate(attr, i, n) : 0;
    }
    return before / sum;
}

void holmes_link_describe(const struct holmes_link_shape *shape, bool queues, char *buf, size_t len)
{
    char rate[48] = "no limit of rate", queue[48] = "", rtt[48] = "", loss[48] = "";
    double gbps = (double)shape->bits_per_s / 1e9;

    if (shape->bits_per_s)
        snprintf(rate, sizeof rate, "%.4g %s each way", gbps < 1 ? gbps * 1e3 : gbps,
                 gbps < 1 ? "Mbit/s" : "Gbit/s");
    if (shape->bits_per_s && queues)
        snprintf(queue, sizeof queue, ", queue %.3g ms",
                 (double)holmes_link_queue(shape) * 8e-6 / gbps);
    if (shape->rtt_us)
        snprintf(rtt, sizeof rtt, ", round trip +%.6g ms", (double)shape->rtt_us / 1e3);
    if (shape->loss_ppm)
        snprintf(loss, sizeof loss, ", loss %.6g %% each way", (double)shape->loss_ppm / 1e4);
    snprintf(buf, len, "%s%s%s%s", rate, queue, rtt, loss);
}
