/* What NCCL does with a net plugin, without NCCL: ranks of a two-rank communicator, each with the
 * threads that a real one has.
 *
 *     init thread      init, devices, getProperties; drives everything, makes no other call
 *     service thread   listen, connect, accept, regMr, deregMr, close*; polls in a hot loop
 *     progress thread  isend, irecv, test, iflush; tests only the oldest request of an operation
 *
 * A script runs on the init thread of each rank. Both ranks live in one process as threads, or in
 * two processes. Every wait is bounded. A function that fails leaves a sentence in rank->failure
 * and returns false; nothing here asserts, because Criterion cannot from other threads.
 */
#ifndef NCCL_SIDE_H
#define NCCL_SIDE_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "../support/patience.h"
#include "net_api.h"

/* NCCL's buffers of one connection, parts of one allocation. */
enum proto { LL, LL128, SIMPLE, NPROTOS };
#define LL_BYTES     524288
#define LL128_BYTES  4915200
#define SIMPLE_BYTES 4194304
#define BUFFER_BYTES (LL_BYTES + LL128_BYTES + SIMPLE_BYTES)
#define STEPS        8
#define MAX_CHANNELS 4
#define MAX_OPS      16
#define SCRIPT_MS    patience_ms(20000) /* each wait of a script */

struct channel {
    void *listen, *send, *recv;
    char handle[NCCL_NET_HANDLE_MAXSIZE]; /* the peer's */
    uint8_t *send_buf, *recv_buf;
    void *send_mr[NPROTOS], *recv_mr[NPROTOS];
    unsigned send_slot, recv_slot; /* slots go on across operations */
};

/* One entry of the progress thread's list. */
struct op {
    bool sending;
    struct channel *ch;
    enum proto proto;
    const size_t *sizes; /* what is sent, message by message */
    int nmsgs;
    size_t recv_max; /* what irecv offers */
    int depth;       /* messages in flight */
    size_t stride;   /* bytes from slot to slot */
    uint64_t seed;   /* equal on both ends: contents of the messages */
    int tag;

    int filled, posted, done;
    unsigned base; /* first slot */
    void *requests[STEPS];
    bool finished;
    ncclResult_t result;
};

struct rank {
    struct net_api api;
    const char *plugin;
    int version, rank;
    int boot; /* to the other rank: NCCL's bootstrap */
    uint64_t comm_id;
    void *ctx;
    int nchannels;
    int ndevices; /* channel c is on device c % ndevices; 0 means 1 */
    bool p2p;     /* one registration per connection */
    struct channel channels[MAX_CHANNELS];
    void *script_arg;

    /* service thread */
    pthread_t service;
    bool service_runs;
    pthread_mutex_t service_lock;
    pthread_cond_t service_cond;
    bool (*job)(struct rank *, void *);
    void *job_arg;
    bool job_result, service_stop;

    /* progress thread */
    pthread_t progress;
    bool progress_runs;
    pthread_mutex_t progress_lock;
    pthread_cond_t progress_cond;
    struct op *ops[MAX_OPS];
    int nops;
    atomic_bool abort;
    bool progress_stop;

    pthread_mutex_t failure_lock;
    char failure[512]; /* the first */
};

typedef bool rank_script(struct rank *r);

bool rank_fail(struct rank *r, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* In a function that returns bool and has `struct rank *r`. */
#define RANK_CHECK(cond, ...)                                                                      \
    do {                                                                                           \
        if (!(cond))                                                                               \
            return rank_fail(r, __VA_ARGS__);                                                      \
    } while (0)

/* ---- the parts of a script, in NCCL's order ---- */

/* init, devices, getProperties; starts the service thread. */
bool rank_init(struct rank *r);
/* All listens, handles through the bootstrap, connects and accepts polled alternately, closeListen
 * at once, three registrations for each direction (one for p2p). Starts the progress thread. */
bool rank_connect(struct rank *r, int nchannels);
/* Runs operations on the progress thread until all are finished or one failed. */
bool rank_run(struct rank *r, struct op *ops, int nops);
/* Starts them only; they must outlive the progress thread or be waited for. */
void rank_start(struct rank *r, struct op *ops, int nops);
/* Until the operation has sent or posted so many. */
bool rank_wait_posted(struct rank *r, struct op *op, int posted);
/* Until it finished; the result is in op->result. */
bool rank_wait_finished(struct rank *r, struct op *op, int timeout_ms);
/* The same without taking a wait in vain for a failure. */
bool rank_wait_ended(struct rank *r, struct op *op, int timeout_ms);
bool rank_barrier(struct rank *r);
/* P stops at once, with whatever is outstanding; S deregisters and closes; then finalize. */
bool rank_destroy(struct rank *r);

/* Exchanges equal amounts with the other rank. */
bool boot_exchange(struct rank *r, const void *mine, void *theirs, size_t len);

/* ---- running scripts ---- */

/* Both ranks as threads of this process; `ncomms` communicators at once. */
void run_in_threads(const char *plugin, int version, int ncomms, rank_script *script, void *arg);
/* Each rank in a process; this one is rank 0. `arg` is copied: no pointers into this process. */
void run_in_processes(const char *plugin, int version, rank_script *script, const void *arg,
                      size_t arg_len);

/* Frees what a rank that never got to rank_destroy holds. */
void rank_fini(struct rank *r);
void rank_setup(struct rank *r, const char *plugin, int version, int rank, int boot, void *arg);

/* ---- the log ---- */

/* A ncclDebugLogger_t that keeps what it gets. */
void test_logger(ncclDebugLogLevel level, unsigned long flags, const char *file, int line,
                 const char *fmt, ...);
/* Whether a line of this level (NCCL_LOG_NONE: any) has both texts. */
bool log_has(ncclDebugLogLevel level, const char *a, const char *b);
int log_count(ncclDebugLogLevel level, const char *text);
void log_clear(void);
const char *log_text(void); /* for failure messages; valid until the next line */

#endif
