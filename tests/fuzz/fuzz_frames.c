/* Bytes on a handshake socket: framing, then every check that a frame's payload gets. */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "transport/choose.h"
#include "transport/oob.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const struct proto_offer offer = {.nports = 2};

static void check_offer(const struct proto_offer *o)
{
    struct choose_pair pair;
    char why[160];

    if (proto_offer_check(o, why, sizeof why) != 0)
        return;
    if (o->nports > HOLMES_MAX_RAILS || !memchr(o->host, 0, sizeof o->host))
        __builtin_trap();
    for (int i = 0; i < o->nports; i++) {
        for (int j = 0; j < o->nports; j++) {
            choose_pair(&o->ports[i], &o->ports[j], &pair);
            if (!memchr(pair.reason, 0, sizeof pair.reason) || !pair.reason[0])
                __builtin_trap();
        }
    }
}

static void check_payload(const struct oob *o)
{
    union {
        struct proto_offer offer;
        struct proto_info info;
        struct proto_verdict verdict;
        struct proto_probe probe;
    } u;
    char why[160];

    memcpy(&u, o->in_payload, sizeof u < sizeof o->in_payload ? sizeof u : sizeof o->in_payload);
    switch (o->in_frame.type) {
    case PROTO_AUTH:
        check_offer(&u.offer);
        break;
    case PROTO_INFO:
        if (proto_info_check(&u.info, why, sizeof why) == 0 && u.info.nlanes > HOLMES_MAX_LANES)
            __builtin_trap();
        break;
    case PROTO_VERDICT:
        if (proto_verdict_check(&u.verdict, &offer, why, sizeof why) == 0 &&
            (u.verdict.nrails > HOLMES_MAX_RAILS ||
             (u.verdict.rdma && u.verdict.rails[0].dial_port >= offer.nports)))
            __builtin_trap();
        break;
    case PROTO_PROBE:
        if (proto_probe_check(&u.probe, &offer, why, sizeof why) == 0 &&
            u.probe.len > PROTO_PROBE_MAX)
            __builtin_trap();
        break;
    default:
        break;
    }
}

static void feed(const uint8_t *data, size_t size, bool with_header)
{
    struct proto_frame f = {.magic = PROTO_FRAME_MAGIC, .version = PROTO_VERSION};
    struct oob o;
    char why[160];
    int fd[2], rc;

    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, fd) != 0)
        return;
    oob_init(&o, fd[0]);
    if (with_header && size > 0) {
        f.type = data[0] % 11;
        f.length = proto_payload_size(f.type) < 0 ? 0 : (uint32_t)proto_payload_size(f.type);
        (void)!write(fd[1], &f, sizeof f);
    }
    (void)!write(fd[1], data, size);
    close(fd[1]);
    do {
        rc = oob_recv(&o, why, sizeof why);
        if (rc == 0 && o.in_frame.length > PROTO_PAYLOAD_MAX)
            __builtin_trap();
        if (rc == 0)
            check_payload(&o);
    } while (rc == 0);
    if (rc == -EAGAIN)
        __builtin_trap(); /* the other end is closed: there must be an end */
    oob_close(&o);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    feed(data, size, false);
    feed(data, size, true);
    return 0;
}
