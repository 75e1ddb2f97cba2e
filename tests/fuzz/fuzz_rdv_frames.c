/* What the rendezvous server makes of bytes, from strangers and from ranks that have proved
 * themselves. The input is a sequence of {who, length, bytes}: whoever it is, the bytes join what
 * that connection has sent. Nothing from a stranger may change the job; answers are whole frames.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "log.h"
#include "rdv_job.h"

#define RANKS     3
#define STRANGERS 2

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void expect(bool holds)
{
    if (!holds)
        __builtin_trap();
}

static void quiet(void *ctx, enum holmes_log_level level, enum holmes_log_subsys subsys,
                  const char *file, int line, const char *func, const char *msg)
{
    (void)ctx, (void)level, (void)subsys, (void)file, (void)line, (void)func, (void)msg;
}

static bool say(struct holmes_rdv_job *j, struct holmes_rdv_peer *p, const void *bytes, size_t len)
{
    while (len > 0) {
        size_t room = p->in_cap - p->in_len, n = len < room ? len : room;

        expect(n > 0); /* or the connection would stand still */
        memcpy(p->in + p->in_len, bytes, n);
        p->in_len += n;
        if (!holmes_rdv_job_frames(j, p) || p->doomed)
            return false;
        bytes = (const uint8_t *)bytes + n;
        len -= n;
    }
    return true;
}

static bool frame(struct holmes_rdv_job *j, struct holmes_rdv_peer *p, enum holmes_rdv_type type,
                  const void *payload, size_t len)
{
    struct holmes_rdv_header h = {(uint32_t)len, type, 0};
    uint8_t head[HOLMES_RDV_HEADER];

    holmes_rdv_header_write(head, &h);
    return say(j, p, head, sizeof head) && say(j, p, payload, len);
}

/* As a client would. */
static void join(struct holmes_rdv_job *j, struct holmes_rdv_peer *p, int rank)
{
    struct holmes_rdv_prove claim = {0, (uint32_t)rank, RANKS, 1, "host"};
    struct holmes_rdv_hello hello = {HOLMES_RDV_MAGIC, {0}};
    uint8_t proof[HOLMES_RDV_PROVE_BYTES];

    expect(frame(j, p, HOLMES_RDV_HELLO, &hello, sizeof hello));
    claim.mac = holmes_rdv_client_mac(&j->key, hello.nonce, p->server_nonce, &claim);
    holmes_rdv_prove_write(proof, &claim);
    expect(frame(j, p, HOLMES_RDV_PROVE, proof, sizeof proof));
    expect(p->state == HOLMES_RDV_PEER_MEMBER);
}

/* What has been said to a peer is frames that it would take. */
static void check_output(const struct holmes_rdv_peer *p)
{
    size_t at = 0;

    while (at < p->out_len) {
        struct holmes_rdv_header h;

        expect(p->out_len - at >= HOLMES_RDV_HEADER);
        h = holmes_rdv_header_read(p->out + at);
        expect(h.type >= HOLMES_RDV_HELLO && h.type <= HOLMES_RDV_LEAVE);
        expect(h.len <= HOLMES_RDV_FRAME_MAX && h.len <= p->out_len - at - HOLMES_RDV_HEADER);
        at += HOLMES_RDV_HEADER + h.len;
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct holmes_rdv_peer *peers[RANKS + STRANGERS];
    struct holmes_rdv_job j;

    holmes_log_set_sink(quiet, NULL, HOLMES_LOG_WARN);
    expect(holmes_rdv_job_init(&j, "secret", RANKS) == 0);
    for (int i = 0; i < RANKS + STRANGERS; i++) {
        peers[i] = holmes_rdv_job_add(&j, -1);
        expect(peers[i] != NULL);
        if (i < RANKS)
            join(&j, peers[i], i);
    }
    while (size >= 2) {
        int who = data[0] % (RANKS + STRANGERS);
        size_t len = data[1];
        bool was_well = j.aborted[0] == '\0';

        data += 2;
        size -= 2;
        len = len < size ? len : size;
        if (peers[who]) {
            bool alive = say(&j, peers[who], data, len);

            check_output(peers[who]);
            expect(who < RANKS || peers[who]->state != HOLMES_RDV_PEER_MEMBER);
            if (!alive) {
                holmes_rdv_job_close(&j, peers[who]);
                peers[who] = NULL;
            }
            expect(who < RANKS || !was_well || j.aborted[0] == '\0');
        }
        data += len;
        size -= len;
    }
    holmes_rdv_store_expire(j.store);
    holmes_rdv_job_fini(&j);
    return 0;
}
