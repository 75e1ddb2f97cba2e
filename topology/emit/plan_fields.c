/* One line per field: its name in the document, its place, its bounds. */
#include "plan_fields.h"

#include <limits.h>

#include "plan.h"

#define INT(s, field, low, high)                                                                   \
    {                                                                                              \
#field, HOLMES_JSON_INT, offsetof(struct s, field), low, high, false, NULL                 \
    }
#define INT_OR_0(s, field, high)                                                                   \
    {                                                                                              \
#field, HOLMES_JSON_INT, offsetof(struct s, field), 0, high, true, NULL                    \
    }
#define I64(s, field, low, high)                                                                   \
    {                                                                                              \
#field, HOLMES_JSON_I64, offsetof(struct s, field), low, high, false, NULL                 \
    }
#define REAL(s, field)                                                                             \
    {                                                                                              \
#field, HOLMES_JSON_REAL, offsetof(struct s, field), 0, REAL_MAX, false, NULL              \
    }
#define REAL_OR_0(s, field)                                                                        \
    {                                                                                              \
#field, HOLMES_JSON_REAL, offsetof(struct s, field), 0, REAL_MAX, true, NULL               \
    }
#define BOOL(s, field)                                                                             \
    {                                                                                              \
#field, HOLMES_JSON_BOOL, offsetof(struct s, field), 0, 0, true, NULL                      \
    }
#define TEXT(s, field)                                                                             \
    {                                                                                              \
#field, HOLMES_JSON_TEXT, offsetof(struct s, field), 0, 0, false, NULL                     \
    }
#define TEXT_OR_NULL(s, field)                                                                     \
    {                                                                                              \
#field, HOLMES_JSON_TEXT, offsetof(struct s, field), 0, 0, true, NULL                      \
    }
#define ENUM(s, field, names)                                                                      \
    {                                                                                              \
#field, HOLMES_JSON_ENUM, offsetof(struct s, field), 0, 0, true, names                     \
    }

#define REAL_MAX  1e30
#define SIZE      1000000000 /* of a model's dimension, a batch, a group */
#define LAYER_MAX 1000000
#define COUNT_MAX (double)(INT64_C(1) << 52)

static const char *const link_names[] = {"unknown", "infiniband", "ethernet", NULL};
static const char *const state_names[] = {"ok", "idle", "defective", NULL};

const struct holmes_json_field holmes_type_fields[] = {
    TEXT(holmes_node_type, name),
    INT(holmes_node_type, gpus, 0, HOLMES_PLAN_GPUS_MAX),
    TEXT_OR_NULL(holmes_node_type, gpu),
    REAL_OR_0(holmes_node_type, tflops),
    REAL_OR_0(holmes_node_type, memory_gib),
    REAL_OR_0(holmes_node_type, intra_gbps),
    {0},
};

const struct holmes_json_field holmes_nic_fields[] = {
    TEXT(holmes_cluster_nic, name),
    ENUM(holmes_cluster_nic, link, link_names),
    BOOL(holmes_cluster_nic, rdma),
    REAL_OR_0(holmes_cluster_nic, gbps),
    TEXT_OR_NULL(holmes_cluster_nic, prefix),
    TEXT_OR_NULL(holmes_cluster_nic, gids),
    TEXT_OR_NULL(holmes_cluster_nic, fabric),
    INT(holmes_cluster_nic, numa, -1, 1 << 20),
    {0},
};

const struct holmes_json_field holmes_group_fields[] = {
    TEXT_OR_NULL(holmes_node_group, fabric),
    ENUM(holmes_node_group, state, state_names),
    TEXT_OR_NULL(holmes_node_group, why),
    INT_OR_0(holmes_node_group, slots, HOLMES_PLAN_GPUS_MAX),
    {0},
};

const struct holmes_json_field holmes_link_fields[] = {
    TEXT_OR_NULL(holmes_cluster_link, from), TEXT_OR_NULL(holmes_cluster_link, to),
    REAL_OR_0(holmes_cluster_link, gbps),    REAL_OR_0(holmes_cluster_link, node_gbps),
    REAL_OR_0(holmes_cluster_link, rtt_ms),  {0},
};

const struct holmes_json_field holmes_fabric_fields[] = {
    TEXT(holmes_fabric, name),
    BOOL(holmes_fabric, rdma),
    ENUM(holmes_fabric, link, link_names),
    INT_OR_0(holmes_fabric, nics, 1024),
    REAL_OR_0(holmes_fabric, gbps),
    TEXT_OR_NULL(holmes_fabric, reason),
    {0},
};

const struct holmes_json_field holmes_gpt_fields[] = {
    {"name", HOLMES_JSON_CHARS, offsetof(struct holmes_gpt, name), 0,
     sizeof((struct holmes_gpt *)0)->name, true, NULL},
    INT(holmes_gpt, layers, 1, LAYER_MAX),
    INT(holmes_gpt, hidden, 1, SIZE),
    INT(holmes_gpt, heads, 1, SIZE),
    INT(holmes_gpt, sequence, 1, SIZE),
    INT_OR_0(holmes_gpt, vocabulary, SIZE),
    INT_OR_0(holmes_gpt, ffn, SIZE),
    BOOL(holmes_gpt, tied),
    BOOL(holmes_gpt, recompute),
    BOOL(holmes_gpt, sequence_parallel),
    BOOL(holmes_gpt, scores_stored),
    BOOL(holmes_gpt, half_gradients),
    BOOL(holmes_gpt, distributed_optimizer),
    INT(holmes_gpt, bytes_per_weight, 1, 8),
    BOOL(holmes_gpt, holmes_train),
    {0},
};

const struct holmes_json_field holmes_request_fields[] = {
    I64(holmes_plan_request, global_batch, 1, COUNT_MAX),
    INT_OR_0(holmes_plan_request, micro_batch, SIZE),
    INT_OR_0(holmes_plan_request, tensor, HOLMES_PLAN_GPUS_MAX),
    INT_OR_0(holmes_plan_request, pipeline, LAYER_MAX),
    INT_OR_0(holmes_plan_request, data, SIZE),
    BOOL(holmes_plan_request, allow_cross),
    BOOL(holmes_plan_request, no_overlap),
    REAL_OR_0(holmes_plan_request, efficiency),
    {"window_bytes", HOLMES_JSON_I64, offsetof(struct holmes_plan_request, window_bytes), 0,
     COUNT_MAX, true, NULL},
    {0},
};

const struct holmes_json_field holmes_plan_fields[] = {
    INT(holmes_plan, tensor, 1, HOLMES_PLAN_GPUS_MAX),
    INT(holmes_plan, pipeline, 1, LAYER_MAX),
    INT(holmes_plan, data, 1, SIZE),
    INT(holmes_plan, micro_batch, 1, SIZE),
    INT(holmes_plan, microbatches, 1, SIZE),
    I64(holmes_plan, world, 1, COUNT_MAX),
    I64(holmes_plan, window_bytes, 0, COUNT_MAX),
    {0},
};

const struct holmes_json_field holmes_stage_fields[] = {
    BOOL(holmes_plan_stage, crosses),
    INT(holmes_plan_stage, first_layer, 0, LAYER_MAX),
    INT(holmes_plan_stage, layers, 1, LAYER_MAX),
    INT(holmes_plan_stage, first_node, 0, HOLMES_HOSTS_MAX),
    INT(holmes_plan_stage, last_node, 0, HOLMES_HOSTS_MAX),
    REAL(holmes_plan_stage, tflops),
    REAL(holmes_plan_stage, compute_s),
    REAL(holmes_plan_stage, memory_gib),
    REAL_OR_0(holmes_plan_stage, memory_limit_gib),
    REAL(holmes_plan_stage, data_bytes),
    REAL(holmes_plan_stage, data_s),
    {0},
};

const struct holmes_json_field holmes_edge_fields[] = {
    INT(holmes_plan_edge, from_stage, 0, LAYER_MAX),
    INT(holmes_plan_edge, to_stage, 0, LAYER_MAX),
    BOOL(holmes_plan_edge, crosses),
    REAL(holmes_plan_edge, bytes),
    REAL(holmes_plan_edge, gbps),
    REAL(holmes_plan_edge, rtt_ms),
    REAL(holmes_plan_edge, message_s),
    {0},
};

const struct holmes_json_field holmes_idle_fields[] = {
    INT(holmes_plan_idle, group, 0, HOLMES_HOSTS_MAX),
    INT(holmes_plan_idle, first_host, 0, HOLMES_HOSTS_MAX),
    INT(holmes_plan_idle, nhosts, 1, HOLMES_HOSTS_MAX),
    INT(holmes_plan_idle, gpus, 0, HOLMES_PLAN_GPUS_MAX),
    TEXT_OR_NULL(holmes_plan_idle, reason),
    {0},
};

const struct holmes_json_field holmes_cost_fields[] = {
    REAL(holmes_plan_cost, step_s),
    REAL(holmes_plan_cost, compute_s),
    REAL(holmes_plan_cost, bubble_s),
    REAL(holmes_plan_cost, pipeline_comm_s),
    REAL(holmes_plan_cost, data_comm_s),
    REAL(holmes_plan_cost, embedding_s),
    REAL(holmes_plan_cost, tflops_per_gpu),
    REAL(holmes_plan_cost, cross_bytes),
    {0},
};
