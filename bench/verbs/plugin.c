/* Messages over a net plugin, called as NCCL's proxy calls it: one connection for each direction.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "net_plugin.h"
#include "side.h"

struct side {
    struct side_config config;
    struct holmes_plugin *plugin;
    void *ctx, *listen, *out, *in;
    char *buffers; /* SIDE_WINDOW to send from, as many to receive into */
    void *out_mr, *in_mr;
    void *sends[SIDE_WINDOW], *recvs[SIDE_WINDOW]; /* requests; NULL: done */
};

/* The plugin shows the one device that NCCL_IB_HCA picks. */
static void plugin_load(struct side *s)
{
    char why[256] = "", only[64];
    int n = 0;

    snprintf(only, sizeof only, "=%s", s->config.device);
    setenv("NCCL_IB_HCA", only, 1);
    setenv("HOLMES_WIRE", "verbs", 1);
    if (holmes_plugin_open(s->config.plugin, &s->plugin, why, sizeof why) != 0 ||
        holmes_plugin_init(s->plugin, 1, &s->ctx) != 0)
        side_die("cannot load %s: %s", s->config.plugin, why);
    if (holmes_plugin_devices(s->plugin, &n) != 0 || n != 1)
        side_die("%s shows %d devices where %s is the only one", s->config.plugin, n,
                 s->config.device);
}

static void connect_both(struct side *s)
{
    char mine[HOLMES_PLUGIN_HANDLE_BYTES] = "", theirs[HOLMES_PLUGIN_HANDLE_BYTES];
    int rc = holmes_plugin_listen(s->plugin, s->ctx, 0, mine, &s->listen);

    if (rc != 0)
        side_die("listen: %s", strerror(-rc));
    side_swap(s->config.socket, mine, theirs, sizeof mine);
    while (!s->out || !s->in) {
        if (!s->out)
            rc = holmes_plugin_connect(s->plugin, s->ctx, 0, theirs, &s->out);
        if ((rc == 0 || rc == -EAGAIN) && !s->in)
            rc = holmes_plugin_accept(s->plugin, s->listen, &s->in);
        if (rc != 0 && rc != -EAGAIN)
            side_die("connect: %s", strerror(-rc));
    }
}

static struct side *plugin_open(const struct side_config *config)
{
    struct side *s = calloc(1, sizeof *s);
    size_t half = SIDE_WINDOW * config->size;

    if (!s || posix_memalign((void **)&s->buffers, 4096, 2 * half) != 0)
        side_die("out of memory");
    memset(s->buffers, 0x5a, 2 * half);
    s->config = *config;
    plugin_load(s);
    connect_both(s);
    if (holmes_plugin_reg(s->plugin, s->out, s->buffers, half, &s->out_mr) != 0 ||
        holmes_plugin_reg(s->plugin, s->in, s->buffers + half, half, &s->in_mr) != 0)
        side_die("cannot register %zu bytes", half);
    return s;
}

static void plugin_close(struct side *s)
{
    holmes_plugin_dereg(s->plugin, s->out, s->out_mr);
    holmes_plugin_dereg(s->plugin, s->in, s->in_mr);
    holmes_plugin_close_send(s->plugin, s->out);
    holmes_plugin_close_recv(s->plugin, s->in);
    holmes_plugin_close_listen(s->plugin, s->listen);
    holmes_plugin_fini(s->plugin, s->ctx);
    holmes_plugin_close(s->plugin);
    free(s->buffers);
    free(s);
}

static void plugin_recv(struct side *s, unsigned i)
{
    unsigned slot = i % SIDE_WINDOW;
    int rc;

    do {
        rc = holmes_plugin_irecv(s->plugin, s->in,
                                 s->buffers + (SIDE_WINDOW + slot) * s->config.size, s->config.size,
                                 0, s->in_mr, &s->recvs[slot]);
    } while (rc == -EAGAIN);
    if (rc != 0)
        side_die("irecv: %s", strerror(-rc));
}

static bool plugin_send(struct side *s, unsigned i)
{
    unsigned slot = i % SIDE_WINDOW;
    int rc = holmes_plugin_isend(s->plugin, s->out, s->buffers + slot * s->config.size,
                                 s->config.size, 0, s->out_mr, &s->sends[slot]);

    if (rc != 0 && rc != -EAGAIN)
        side_die("isend: %s", strerror(-rc));
    return rc == 0;
}

static bool request_done(struct side *s, void **request)
{
    bool done = false;
    size_t len;
    int rc = holmes_plugin_test(s->plugin, *request, &done, &len);

    if (rc != 0)
        side_die("test: %s", strerror(-rc));
    if (done && len != s->config.size)
        side_die("%zu bytes instead of %zu", len, s->config.size);
    return done;
}

static bool plugin_recv_done(struct side *s, unsigned i)
{
    return request_done(s, &s->recvs[i % SIDE_WINDOW]);
}

static bool plugin_send_done(struct side *s, unsigned i)
{
    return request_done(s, &s->sends[i % SIDE_WINDOW]);
}

const struct side_ops side_plugin = {
    .name = "plugin",
    .open = plugin_open,
    .close = plugin_close,
    .recv = plugin_recv,
    .send = plugin_send,
    .recv_done = plugin_recv_done,
    .send_done = plugin_send_done,
};
