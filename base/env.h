/* The one table of environment variables, and the only getenv of the project.
 *
 * HOLMES_* variables are ours: a value that does not fit is an error that names the value and what
 * would be right (holmes_env_check). NCCL_* variables keep NCCL's meaning and syntax; integers
 * follow NCCL's rule (strtoll, base 0; what does not parse counts as unset).
 */
#ifndef HOLMES_ENV_H
#define HOLMES_ENV_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum holmes_env_type {
    HOLMES_ENV_INT,    /* within [min, max] */
    HOLMES_ENV_STRING, /* free text; its user parses and refuses */
    HOLMES_ENV_CHOICE, /* one of the words in `choices`, separated by '|' */
    HOLMES_ENV_RANGE,  /* "low-high", 1 <= low <= high <= 65535 */
};

/* id, name, type, default, min, max, choices, help. docs/environment.md is checked against it. */
#define HOLMES_ENV_TABLE(X)                                                                        \
    X(LOG, "HOLMES_LOG", CHOICE, "warn", 0, 0, "warn|info|trace",                                  \
      "log level on stderr of the tools; under NCCL its own NCCL_DEBUG decides")                   \
    X(LANES, "HOLMES_LANES", INT, "0", 0, 8, NULL,                                                 \
      "lanes (TCP streams) per connection; 0 chooses from the NIC's speed")                        \
    X(PORT_RANGE, "HOLMES_PORT_RANGE", RANGE, NULL, 0, 0, NULL,                                    \
      "low-high: every listening socket lies in this range; unset lets the kernel choose")         \
    X(ADVERTISE, "HOLMES_ADVERTISE", STRING, NULL, 0, 0, NULL,                                     \
      "addr[,addr]: up to three addresses that replace the listener's own (NAT, gateways)")        \
    X(CONNECT_TIMEOUT, "HOLMES_CONNECT_TIMEOUT", INT, "60", 1, 3600, NULL,                         \
      "seconds after which a connect or a half-made accept gives up")                              \
    X(ACCEPT_TIMEOUT, "HOLMES_ACCEPT_TIMEOUT", INT, "600", 1, 86400, NULL,                         \
      "seconds an accept waits for its peer to appear at all")                                     \
    X(PEER_TIMEOUT, "HOLMES_PEER_TIMEOUT", INT, "15", 2, 3600, NULL,                               \
      "seconds without an answer from the peer's kernel after which a connection fails")           \
    X(WARN_STALL, "HOLMES_WARN_STALL", INT, "60", 0, 86400, NULL,                                  \
      "seconds without progress after which a connection says what it waits for; 0 never")         \
    X(NOFILE, "HOLMES_NOFILE", CHOICE, "raise", 0, 0, "raise|keep",                                \
      "raise the soft descriptor limit to the hard one, or keep it")                               \
    X(STATS, "HOLMES_STATS", STRING, NULL, 0, 0, NULL,                                             \
      "file for the counters of every connection as JSON; %h host, %p process id")                 \
    X(WIRE, "HOLMES_WIRE", CHOICE, "auto", 0, 0, "auto|verbs|tcp",                                 \
      "what carries connections: auto chooses for each, verbs refuses where RDMA does not reach")  \
    X(TCP, "HOLMES_TCP", CHOICE, "auto", 0, 0, "auto|libfabric|sockets",                           \
      "what drives connections over TCP, auto is sockets; the same on all ranks")                  \
    X(HOLD_US, "HOLMES_HOLD_US", INT, "5000", 0, 100000, NULL,                                      \
      "microseconds after which a clear-to-send or count that waited for company over tcp goes "   \
      "out without its caller; 0: none waits")                                                     \
    X(EAGER, "HOLMES_EAGER", INT, "2048", 0, 2048, NULL,                                           \
      "bytes up to which a send over tcp does not wait for its receive; 0: all wait")              \
    X(TCP_NICS, "HOLMES_TCP_NICS", STRING, NULL, 0, 0, NULL,                                       \
      "name[,name...] or all: Ethernet NICs over which each connection over tcp spreads, besides " \
      "its own; unset: none")                                                                      \
    X(PROBE_MS, "HOLMES_PROBE_MS", INT, "1000", 1, 60000, NULL,                                    \
      "milliseconds that the probe of an RDMA path may take when its ends do not tell")            \
    X(FABRIC, "HOLMES_FABRIC", STRING, NULL, 0, 0, NULL,                                           \
      "id, device[:port]=id[,...], or @file: RDMA ports with equal ids share a fabric, others "    \
      "not")                                                                                       \
    X(LIBCUDA, "HOLMES_LIBCUDA", STRING, "libcuda.so.1", 0, 0, NULL,                               \
      "CUDA driver to open, when GPU memory must go over tcp")                                     \
    X(STAGE_MB, "HOLMES_STAGE_MB", INT, "256", 1, 65536, NULL,                                     \
      "MiB of pinned memory per Ethernet NIC, shared by the connections that move GPU memory")     \
    X(LIBFABRIC, "HOLMES_LIBFABRIC", STRING, "libfabric.so.1", 0, 0, NULL,                         \
      "libfabric to open with HOLMES_TCP=libfabric")                                               \
    X(LIBIBVERBS, "HOLMES_LIBIBVERBS", STRING, "libibverbs.so.1", 0, 0, NULL,                      \
      "libibverbs to open")                                                                        \
    X(NET_NAME, "HOLMES_NET_NAME", STRING, "Holmes", 0, 0, NULL,                                   \
      "name the plugin shows NCCL (Megatron-LM accepts only IB or Socket as net_name)")            \
    X(JOB_SECRET, "HOLMES_JOB_SECRET", STRING, NULL, 0, 0, NULL,                                   \
      "what the ranks of a training job show each other at the rendezvous; the same for all")      \
    X(RENDEZVOUS_PORT, "HOLMES_RENDEZVOUS_PORT", INT, NULL, 1, 65535, NULL,                        \
      "port of rank 0 at which ranks of srun, mpirun and torchrun meet; unset: from the job")      \
    X(NCCL_SOCKET_IFNAME, "NCCL_SOCKET_IFNAME", STRING, NULL, 0, 0, NULL,                          \
      "[^][=]name[,name...]: interfaces by prefix, = exact, ^ excluded")                           \
    X(NCCL_SOCKET_FAMILY, "NCCL_SOCKET_FAMILY", STRING, NULL, 0, 0, NULL, "AF_INET or AF_INET6")   \
    X(NCCL_COMM_ID, "NCCL_COMM_ID", STRING, NULL, 0, 0, NULL,                                      \
      "NCCL's root address; a hint for the interface")                                             \
    X(NCCL_DEBUG, "NCCL_DEBUG", STRING, NULL, 0, 0, NULL,                                          \
      "NCCL's log level; lines of single messages are written at TRACE only")                      \
    X(NCCL_IB_HCA, "NCCL_IB_HCA", STRING, NULL, 0, 0, NULL,                                        \
      "[^][=]device[:port][,...]: RDMA ports by prefix of the device, = exact, ^ excluded")        \
    X(NCCL_IB_GID_INDEX, "NCCL_IB_GID_INDEX", INT, "-1", INT32_MIN, INT32_MAX, NULL,               \
      "the one GID that RoCE ports use; below 0 the best of their tables")                         \
    X(NCCL_IB_ROCE_VERSION_NUM, "NCCL_IB_ROCE_VERSION_NUM", INT, "2", 1, 2, NULL,                  \
      "RoCE version; 1 leaves v2 GIDs out where there are v1 ones")                                \
    X(NCCL_IB_ADDR_FAMILY, "NCCL_IB_ADDR_FAMILY", STRING, "AF_INET", 0, 0, NULL,                   \
      "AF_INET or AF_INET6; the latter leaves IPv4 RoCE GIDs out where there are others")          \
    X(NCCL_IB_ADDR_RANGE, "NCCL_IB_ADDR_RANGE", STRING, NULL, 0, 0, NULL,                          \
      "address/length: leaves other RoCE GIDs out where there are some in that range")             \
    X(NCCL_IB_ROUTABLE_FLID_GID_INDEX, "NCCL_IB_ROUTABLE_FLID_GID_INDEX", INT, "1", INT32_MIN,     \
      INT32_MAX, NULL, "InfiniBand GID that goes before GID 0 where it holds a FLID")              \
    X(NCCL_IB_MERGE_VFS, "NCCL_IB_MERGE_VFS", INT, "1", INT32_MIN, INT32_MAX, NULL,                \
      "0: NCCL sees virtual functions of an adapter as adapters of their own")                     \
    X(NCCL_LL_BUFFSIZE, "NCCL_LL_BUFFSIZE", INT, "524288", 1, INT64_MAX, NULL,                     \
      "NCCL's buffer for protocol LL; its length tells LL messages in GPU memory")                 \
    X(NCCL_LL128_BUFFSIZE, "NCCL_LL128_BUFFSIZE", INT, "4915200", 1, INT64_MAX, NULL,              \
      "NCCL's buffer for protocol LL128, likewise")                                                \
    X(NCCL_IB_QPS_PER_CONNECTION, "NCCL_IB_QPS_PER_CONNECTION", INT, "1", 1, 128, NULL,            \
      "queue pairs per RDMA port of a connection, the larger of both ends; at most 8 are used")    \
    X(NCCL_IB_SPLIT_DATA_ON_QPS, "NCCL_IB_SPLIT_DATA_ON_QPS", INT, "0", 0, 1, NULL,                \
      "1: cut each message over all queue pairs; 0: use them in turn")                             \
    X(NCCL_IB_MERGE_NICS, "NCCL_IB_MERGE_NICS", INT, "1", 0, 1, NULL,                              \
      "1: ports that NCCL finds in one adapter may be made one device; 0: they stay apart")        \
    X(NCCL_GDR_FLUSH_DISABLE, "NCCL_GDR_FLUSH_DISABLE", INT, "0", 0, 1, NULL,                      \
      "1: never read back what arrived in GPU memory before it is used")                           \
    X(NCCL_IB_DISABLE, "NCCL_IB_DISABLE", INT, "0", INT32_MIN, INT32_MAX, NULL,                    \
      "other than 0: no RDMA port is used")                                                        \
    X(NCCL_IB_TIMEOUT, "NCCL_IB_TIMEOUT", INT, "20", 0, 31, NULL,                                  \
      "a queue pair waits 4.096 us * 2^n for an answer before it sends again")                     \
    X(NCCL_IB_RETRY_CNT, "NCCL_IB_RETRY_CNT", INT, "7", 0, 7, NULL,                                \
      "how often it sends again before its connection fails")                                      \
    X(NCCL_IB_PKEY, "NCCL_IB_PKEY", INT, "0", 0, 65535, NULL,                                      \
      "index in the port's partition key table")                                                   \
    X(NCCL_IB_SL, "NCCL_IB_SL", INT, "-1", -1, 15, NULL,                                           \
      "service level; -1: the communicator's traffic class, else 0")                               \
    X(NCCL_IB_TC, "NCCL_IB_TC", INT, "-1", -1, 255, NULL,                                          \
      "traffic class; -1: the communicator's, else 0")                                             \
    X(NCCL_IB_FIFO_TC, "NCCL_IB_FIFO_TC", INT, "-1", -1, 255, NULL,                                \
      "traffic class of clear-to-sends; -1: as the data's")                                        \
    X(NCCL_IB_PCI_RELAXED_ORDERING, "NCCL_IB_PCI_RELAXED_ORDERING", INT, "2", 0, 2, NULL,          \
      "0 no, 1 yes, 2 where libibverbs can: registered memory may be written out of order")        \
    X(NCCL_IB_ADAPTIVE_ROUTING, "NCCL_IB_ADAPTIVE_ROUTING", INT, "-2", -2, 1, NULL,                \
      "1: large messages carry their immediate in a request of its own; -2: on InfiniBand only")   \
    X(NCCL_IB_AR_THRESHOLD, "NCCL_IB_AR_THRESHOLD", INT, "8192", -2, INT64_MAX, NULL,              \
      "bytes above which a message is large for NCCL_IB_ADAPTIVE_ROUTING")                         \
    X(NCCL_IB_RETURN_ASYNC_EVENTS, "NCCL_IB_RETURN_ASYNC_EVENTS", INT, "1", 0, 1, NULL,            \
      "0: fatal events of a device or queue pair are logged and end no connection")                \
    X(NCCL_IB_MQP_RETRY_ALL, "NCCL_IB_MQP_RETRY_ALL", INT, "0", 0, 1, NULL,                        \
      "1: raising a queue pair is tried again after any error, not only a time-out")               \
    X(NCCL_IB_MQP_RETRY_CNT, "NCCL_IB_MQP_RETRY_CNT", INT, "34", 0, 1000000, NULL,                 \
      "how often raising a queue pair is tried again")                                             \
    X(NCCL_IB_MQP_RETRY_SLEEP_MSEC, "NCCL_IB_MQP_RETRY_SLEEP_MSEC", INT, "100", 0, 3600000, NULL,  \
      "milliseconds between the tries")                                                            \
    X(NCCL_IB_USE_INLINE, "NCCL_IB_USE_INLINE", STRING, NULL, 0, 0, NULL,                          \
      "no effect: control writes are always inline")                                               \
    X(NCCL_IB_ECE_ENABLE, "NCCL_IB_ECE_ENABLE", STRING, NULL, 0, 0, NULL, "no effect")             \
    X(NCCL_IB_DATA_DIRECT, "NCCL_IB_DATA_DIRECT", STRING, NULL, 0, 0, NULL, "no effect")           \
    X(NCCL_IB_WARN_RAIL_LOCAL, "NCCL_IB_WARN_RAIL_LOCAL", STRING, NULL, 0, 0, NULL, "no effect")   \
    X(NCCL_IB_OOO_RQ, "NCCL_IB_OOO_RQ", STRING, NULL, 0, 0, NULL, "no effect")                     \
    X(NCCL_IB_SUBNET_AWARE_ROUTING, "NCCL_IB_SUBNET_AWARE_ROUTING", STRING, NULL, 0, 0, NULL,      \
      "no effect")                                                                                 \
    X(NCCL_IB_SUBNET_PREFIX_LEN, "NCCL_IB_SUBNET_PREFIX_LEN", STRING, NULL, 0, 0, NULL,            \
      "no effect")                                                                                 \
    X(NCCL_IB_DEVICE_PCI_ORDER, "NCCL_IB_DEVICE_PCI_ORDER", STRING, NULL, 0, 0, NULL, "no effect") \
    X(NCCL_IB_PREPOST_RECEIVE_WORK_REQUESTS, "NCCL_IB_PREPOST_RECEIVE_WORK_REQUESTS", STRING,      \
      NULL, 0, 0, NULL, "no effect")                                                               \
    X(NCCL_IB_RECEIVER_SIDE_MATCHING_SCHEME, "NCCL_IB_RECEIVER_SIDE_MATCHING_SCHEME", STRING,      \
      NULL, 0, 0, NULL, "no effect")

enum holmes_env_id {
#define X(id, name, type, dflt, min, max, choices, help) HOLMES_ENV_##id,
    HOLMES_ENV_TABLE(X)
#undef X
        HOLMES_ENV_COUNT
};

struct holmes_env_var {
    const char *name;
    enum holmes_env_type type;
    const char *dflt; /* NULL: unset */
    int64_t min, max;
    const char *choices;
    const char *help;
};
extern const struct holmes_env_var holmes_env_vars[HOLMES_ENV_COUNT];

/* Checks every variable of the table that is set, and that no unknown HOLMES_* variable is.
 * Returns 0, or -EINVAL with a sentence in `why` that names variable, value and what is right. */
int holmes_env_check(char *why, size_t why_len);

/* The value, or the default. A HOLMES_ENV_INT that does not fit gives the default: call
 * holmes_env_check first. The string lives as long as the environment is not changed. */
int64_t holmes_env_int(enum holmes_env_id id);
const char *holmes_env_string(enum holmes_env_id id);
/* Whether the environment has it, whatever its value. */
bool holmes_env_is_set(enum holmes_env_id id);

/* A variable that is no setting but a fact, such as the rank that a launcher tells. NULL: unset. */
const char *holmes_env_fact(const char *name);

/* A path with %h replaced by the host's name and %p by the process id. -ENOENT when unset or empty,
 * -ENAMETOOLONG. */
int holmes_env_path(enum holmes_env_id id, char *out, size_t cap);

/* "low-high" into two ports. Returns 0, -ENOENT when unset, -EINVAL when malformed. */
int holmes_env_range(enum holmes_env_id id, uint16_t *low, uint16_t *high);

#endif
