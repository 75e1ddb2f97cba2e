/* What check and its agents say to each other. To the agent go lines of plain words:
 *
 *     listen PAIR NIC            make a listener on NIC number NIC (modulo the number of NICs)
 *     connect PAIR MS HANDLE     connect to the peer's handle (hex) and accept its connection
 *     ping PAIR MS               small messages to and fro for at most MS, as the one who begins
 *     pong PAIR MS               the other side of it; gives up after MS
 *     send PAIR RUN MS           large messages for RUN ms; gives up after MS
 *     recv PAIR RUN MS           the other side of it
 *     drop                       close what is open
 *
 * and back comes, for each but drop, one line of JSON, after a first line that says hello. Lines of
 * the agent are foreign bytes: the login shell of its host may write what it likes, and so may
 * whoever runs there.
 */
#ifndef HOLMES_TOPO_CHECK_MSG_H
#define HOLMES_TOPO_CHECK_MSG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#define HOLMES_CHECK_PROTOCOL   1
#define HOLMES_CHECK_HANDLE     128 /* bytes, HOLMES_HANDLE_SIZE of the transport */
#define HOLMES_CHECK_NICS_MAX   48
#define HOLMES_CHECK_LINE_MAX   (64u << 10)
#define HOLMES_CHECK_REASON_MAX 256

enum holmes_check_kind {
    HOLMES_CHECK_HELLO,     /* the agent is there: version, nnics and nics */
    HOLMES_CHECK_HANDLE_IS, /* answers listen: handle */
    HOLMES_CHECK_UP,     /* answers connect: wire, reason, local, peer of its sending connection */
    HOLMES_CHECK_RTT,    /* answers ping: rtt_us */
    HOLMES_CHECK_RATE,   /* answers send: gbps */
    HOLMES_CHECK_DONE,   /* answers pong and recv */
    HOLMES_CHECK_FAILED, /* answers any of them, or stands in the place of hello: reason */
};

struct holmes_check_msg {
    enum holmes_check_kind kind;
    int pair; /* of all but hello; -1 */
    char version[32];
    int nnics;
    struct holmes_check_nic {
        char name[64];
        double gbps; /* 0: unknown */
        bool rdma;
    } nics[HOLMES_CHECK_NICS_MAX];
    uint8_t handle[HOLMES_CHECK_HANDLE];
    char wire[16], reason[HOLMES_CHECK_REASON_MAX], local[64], peer[64];
    double rtt_us, gbps;
};

/* Texts come out clean (below) and cut to their room, numbers finite and not below 0.
 * -EINVAL for anything that is no such message, with the field at fault in `why`. */
int holmes_check_msg_parse(const char *line, size_t len, struct holmes_check_msg *out, char *why,
                           size_t why_len);
/* One line. 0, -ENOMEM or -EIO. */
int holmes_check_msg_write(const struct holmes_check_msg *m, FILE *out);

/* Makes a text fit for a terminal and for JSON, in place: control characters and bytes that are no
 * UTF-8 become '?'. Never longer. */
void holmes_check_clean(char *text);

/* A command to the agent, from its line. */
struct holmes_check_command {
    enum holmes_check_verb {
        HOLMES_CHECK_LISTEN,
        HOLMES_CHECK_CONNECT,
        HOLMES_CHECK_PING,
        HOLMES_CHECK_PONG,
        HOLMES_CHECK_SEND,
        HOLMES_CHECK_RECV,
        HOLMES_CHECK_DROP,
    } verb;
    int pair, nic, run_ms, limit_ms;
    uint8_t handle[HOLMES_CHECK_HANDLE];
};
/* -EINVAL. */
int holmes_check_command_parse(const char *line, struct holmes_check_command *out);
/* Without a newline; `buf` of 512 bytes is enough. */
void holmes_check_command_write(const struct holmes_check_command *c, char *buf, size_t len);

#endif
