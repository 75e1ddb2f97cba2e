/* The streams of a lane of the wire of plain sockets: heads and bytes from a peer that is raised,
 * while writes of ours are under way. Nothing may land outside the registered memory, and bad heads
 * end the lane.
 *
 * Input: portions, a byte in front of each: bit 7 the stream that it goes by, and its length - 1.
 */
#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "transport/sock/sock_ops.h"

#define KEY     0x4b45590000000000u /* "KEY", and index 0 */
#define ROOM    4096                /* bytes of the registration */
#define EDGE    64
#define STREAMS 2
#define WRITES  3
#define OURS    (300 * 1024) /* bytes of each: more than a socket buffer holds */

static uint8_t memory[EDGE + ROOM + EDGE];
static uint8_t ours[OURS];

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void drain(struct wire_cq *cq)
{
    struct wire_event events[16];
    int n;

    do {
        n = holmes_sock_cq_poll(cq, events, 16);
        for (int i = 0; i < n; i++)
            if (events[i].type != WIRE_IMM && events[i].context != ours)
                __builtin_trap(); /* not posted */
    } while (n > 0);
}

static void open_streams(struct wire_lane *lane, struct wire_nic *wn, int peers[STREAMS])
{
    lane->nstreams = STREAMS;
    for (int i = 0; i < STREAMS; i++) {
        int fds[2];

        if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, fds) != 0)
            abort();
        lane->streams[i].lane = lane;
        lane->streams[i].fd = fds[0];
        lane->streams[i].wn = wn;
        peers[i] = fds[1];
    }
}

/* The peer reads, so that more is sent. */
static void take_all(int peer)
{
    static uint8_t bytes[64 * 1024];

    while (recv(peer, bytes, sizeof bytes, MSG_DONTWAIT) > 0)
        continue;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct sock_mr mr = {.key = KEY, .base = memory + EDGE, .len = ROOM};
    struct wire_nic wn = {.listen_fd = -1, .mrs = &mr, .nmrs = 1};
    struct wire_lane *lane = calloc(1, sizeof *lane);
    struct wire_cq cq = {.wn = &wn};
    int peers[STREAMS];

    if (!lane)
        abort();
    pthread_rwlock_init(&wn.mrs_lock, NULL);
    holmes_list_init(&cq.lanes);
    holmes_list_append(&cq.lanes, &lane->in_cq);
    lane->wn = &wn;
    lane->cq = &cq;
    open_streams(lane, &wn, peers);
    memset(memory, 0, sizeof memory);
    for (int i = 0; i < WRITES; i++)
        if (holmes_sock_lane_post(
                lane, &(struct wire_write){
                          .buf = ours, .len = OURS, .remote_key = KEY, .context = ours}) != 0)
            abort();
    while (size > 1 && holmes_sock_lane_poll(lane) == 0) {
        int peer = peers[data[0] >> 7];
        size_t part = 1 + (data[0] & 0x7fu);

        data++;
        size--;
        part = part < size ? part : size;
        /* A stream that was lost takes no more. */
        if (send(peer, data, part, MSG_NOSIGNAL) < 0 && errno != EPIPE && errno != EAGAIN)
            abort();
        data += part;
        size -= part;
        take_all(peer);
        drain(&cq);
    }
    for (int i = 0; i < STREAMS; i++)
        close(peers[i]);
    /* A stream that was idle is not looked at in every poll. */
    for (int i = 0; i < 64 && holmes_sock_lane_poll(lane) == 0; i++)
        drain(&cq);
    if (holmes_sock_lane_poll(lane) == 0)
        __builtin_trap(); /* the peer is gone */
    for (int i = 0; i < EDGE; i++)
        if (memory[i] || memory[EDGE + ROOM + i])
            __builtin_trap();
    for (int i = 0; i < STREAMS; i++) {
        close(lane->streams[i].fd);
        free(lane->streams[i].dealt.at);
    }
    pthread_rwlock_destroy(&wn.mrs_lock);
    free(lane->out.ring);
    free(lane->out.copies.bytes);
    free(lane->out.again.at);
    holmes_sock_receiver_fini(&lane->in);
    free(lane);
    return 0;
}
