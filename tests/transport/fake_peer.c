#include "fake_peer.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <poll.h>
#include <string.h>
#include <unistd.h>

int fake_peer_dial(const void *handle)
{
    struct proto_handle h;
    struct holmes_addr addr;
    struct timeval timeout = {.tv_sec = 10};
    int fd;

    memcpy(&h, handle, sizeof h);
    cr_assert_eq(proto_addr_decode(&h.addrs[0], &addr), 0);
    fd = socket(addr.sa.sa_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    cr_assert_geq(fd, 0);
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof timeout);
    cr_assert_eq(connect(fd, &addr.sa, holmes_addr_len(&addr)), 0, "%s", strerror(errno));
    return fd;
}

void fake_peer_send(int fd, const void *bytes, size_t len)
{
    for (size_t done = 0; done < len;) {
        ssize_t n = send(fd, (const char *)bytes + done, len - done, MSG_NOSIGNAL);

        if (n <= 0)
            return; /* it closed on us: what the test looks at next */
        done += (size_t)n;
    }
}

void fake_peer_frame(int fd, uint16_t version, uint16_t type, uint32_t length, const void *payload,
                     size_t len)
{
    struct proto_frame f = {
        .magic = PROTO_FRAME_MAGIC, .version = version, .type = type, .length = length};

    fake_peer_send(fd, &f, sizeof f);
    fake_peer_send(fd, payload, len);
}

void fake_peer_expect(int fd, uint16_t type, void *payload, size_t len)
{
    struct proto_frame f;

    cr_assert_eq(recv(fd, &f, sizeof f, MSG_WAITALL), (ssize_t)sizeof f, "no frame: %s",
                 strerror(errno));
    cr_assert_eq(f.type, type);
    cr_assert_eq(f.length, len);
    cr_assert_eq(recv(fd, payload, len, MSG_WAITALL), (ssize_t)len);
}

bool fake_peer_closed(int fd, int timeout_ms)
{
    struct pollfd p = {.fd = fd, .events = POLLIN};
    char byte;

    if (poll(&p, 1, timeout_ms) <= 0)
        return false;
    return recv(fd, &byte, 1, 0) <= 0;
}
