/* Bytes on a handshake socket: framing, then every check that a frame's payload gets. */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "transport/oob.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

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
        f.type = data[0] % 9;
        f.length = proto_payload_size(f.type) < 0 ? 0 : (uint32_t)proto_payload_size(f.type);
        (void)!write(fd[1], &f, sizeof f);
    }
    (void)!write(fd[1], data, size);
    close(fd[1]);
    do {
        rc = oob_recv(&o, why, sizeof why);
        if (rc == 0 && o.in_frame.length > PROTO_PAYLOAD_MAX)
            __builtin_trap();
        if (rc == 0 && (o.in_frame.type == PROTO_INFO || o.in_frame.type == PROTO_AUTH)) {
            struct proto_info info;

            memcpy(&info, o.in_payload, sizeof info);
            if (proto_info_check(&info, why, sizeof why) == 0 &&
                (info.nlanes > HOLMES_MAX_LANES || memchr(info.host, 0, sizeof info.host) == NULL))
                __builtin_trap();
        }
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
