/* GPU memory on a wire that cannot reach it: bytes pass through pinned host memory, copied by the
 * GPU's copy engine on a stream of the connection's own while earlier ones are on the wire.
 *
 * A connection's pinned memory is a ring; a chunk of it is taken, filled, emptied and given back in
 * the order of taking. All of it is made when the connection first registers GPU memory; afterwards
 * nothing is allocated and nothing waits for the device. Called with the connection's lock held.
 */
#ifndef HOLMES_STAGE_H
#define HOLMES_STAGE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct device;
struct holmes_mr;
struct stage;

/* Where in a message the flags stand by which a polling reader knows that the bytes before them are
 * there. They must not become visible first (docs/architecture.md). */
enum stage_layout {
    STAGE_PLAIN, /* nobody polls: completion tells */
    STAGE_LL,    /* NCCL's LL: 4 bytes, 4 bytes of flag */
    STAGE_LL128, /* NCCL's LL128: 120 bytes, 8 bytes of flag */
    STAGE_FLAGS, /* either of them */
};

enum stage_state {
    STAGE_FREE,
    STAGE_TAKEN,   /* the caller's: the wire fills it or empties it */
    STAGE_COPYING, /* between GPU and host */
    STAGE_READY,   /* copied from the GPU */
};

struct stage_chunk {
    enum stage_state state;
    void *buf;
    size_t len, span;         /* span: bytes of the ring that become free with it */
    struct stage_chunk *next; /* the caller's */
    void *owner;              /* the caller's */

    /* Copy under way. */
    void *event;
    uint64_t device;
    enum stage_layout layout;
    int pass;
    int *done; /* counted down when the copy to the GPU is complete */
};

/* Takes pinned memory out of the device's budget, and a stream, from the CUDA context that is
 * current on the calling thread. -EOPNOTSUPP after one log line when there is no driver or no
 * context. */
int stage_create(struct device *dev, struct stage **out);
/* Waits for copies under way, for a bounded time: afterwards none touches anything. NULL is fine.
 */
void stage_drain(struct stage *s);
void stage_destroy(struct stage *s);

/* Bytes of the pieces that a message is cut into: a multiple of 128. */
size_t stage_slice(const struct stage *s);
/* The ring's registration: chunks lie in it. */
struct holmes_mr *stage_mr(const struct stage *s);

/* `len` bytes of the ring, len at most a slice; NULL: none free now. */
struct stage_chunk *stage_take(struct stage *s, size_t len);
/* The chunk's bytes are not needed any more. */
void stage_give(struct stage *s, struct stage_chunk *chunk);
/* Whether a wire's context is a chunk of this ring. */
bool stage_owns(const struct stage *s, const void *context);

/* Starts to fill the chunk from GPU memory; STAGE_READY tells the end. -EIO when CUDA refuses. */
int stage_copy_out(struct stage *s, struct stage_chunk *chunk, const void *device);
/* Starts to copy the first `len` bytes of the chunk to GPU memory; then *done is counted down and
 * the chunk given back. */
int stage_copy_in(struct stage *s, struct stage_chunk *chunk, void *device, size_t len,
                  enum stage_layout layout, int *done);
/* Notices copies that are complete. 0, or -EIO after a log line. */
int stage_poll(struct stage *s);

/* ---- pure parts ---- */

/* Pinned bytes for one more connection of a NIC whose others hold `used`: less as the budget is
 * used up, never nothing, because a connection without would not move. */
size_t stage_share(size_t budget, size_t used);

/* One strided copy: `depth` blocks of `height` rows of `width` bytes, the first at `at`. */
struct stage_rows {
    size_t at, width, pitch, height, block, depth;
};
/* The copies of pass `pass` over a message of `len` bytes: every byte belongs to one pass, and a
 * flag to a later one than the bytes it vouches for. Returns their number, at most 2; 0 for the
 * pass behind the last. */
int stage_pass(enum stage_layout layout, size_t len, int pass, struct stage_rows rows[2]);

#endif
