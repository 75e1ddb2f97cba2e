/* The libcyaml schema of the cluster file (docs/cluster-file.md). */
#include "cluster/cluster_file.h"

#include "cluster.h"

#define OPTIONAL_TEXT CYAML_FLAG_POINTER | CYAML_FLAG_OPTIONAL
#define TEXT_MAX      CYAML_UNLIMITED

static const cyaml_strval_t kinds[] = {
    {"infiniband", FILE_INFINIBAND},
    {"roce", FILE_ROCE},
    {"ethernet", FILE_ETHERNET},
};

const cyaml_strval_t holmes_cluster_gids[4] = {
    {"v1-ipv4", FILE_GID_V1_IPV4},
    {"v1-ipv6", FILE_GID_V1_IPV6},
    {"v2-ipv4", FILE_GID_V2_IPV4},
    {"v2-ipv6", FILE_GID_V2_IPV6},
};

static const cyaml_strval_t states[] = {
    {"ok", HOLMES_NODE_OK},
    {"idle", HOLMES_NODE_IDLE},
    {"defective", HOLMES_NODE_DEFECTIVE},
};

static const cyaml_strval_t truths[] = {
    {"true", 1},
    {"false", 0},
    {"yes", 1},
    {"no", 0},
};

static const cyaml_schema_value_t gid = {
    CYAML_VALUE_ENUM(CYAML_FLAG_STRICT, int, holmes_cluster_gids, 4),
};

static const cyaml_schema_field_t nic_fields[] = {
    CYAML_FIELD_STRING_PTR("name", CYAML_FLAG_POINTER, struct file_nic, name, 1, TEXT_MAX),
    CYAML_FIELD_ENUM("kind", CYAML_FLAG_STRICT, struct file_nic, kind, kinds, 3),
    CYAML_FIELD_STRING_PTR("gbps", OPTIONAL_TEXT, struct file_nic, gbps, 1, TEXT_MAX),
    CYAML_FIELD_STRING_PTR("prefix", OPTIONAL_TEXT, struct file_nic, prefix, 1, TEXT_MAX),
    CYAML_FIELD_SEQUENCE_COUNT("gids", OPTIONAL_TEXT | CYAML_FLAG_FLOW, struct file_nic, gids,
                               ngids, &gid, 1, 4),
    CYAML_FIELD_STRING_PTR("fabric", OPTIONAL_TEXT, struct file_nic, fabric, 1, TEXT_MAX),
    CYAML_FIELD_STRING_PTR("numa", OPTIONAL_TEXT, struct file_nic, numa, 1, TEXT_MAX),
    CYAML_FIELD_END,
};
static const cyaml_schema_value_t nic = {
    CYAML_VALUE_MAPPING(CYAML_FLAG_FLOW, struct file_nic, nic_fields),
};

static const cyaml_schema_field_t type_fields[] = {
    CYAML_FIELD_STRING_PTR("name", CYAML_FLAG_POINTER, struct file_type, name, 1, TEXT_MAX),
    CYAML_FIELD_STRING_PTR("gpus", CYAML_FLAG_POINTER, struct file_type, gpus, 1, TEXT_MAX),
    CYAML_FIELD_STRING_PTR("gpu", OPTIONAL_TEXT, struct file_type, gpu, 1, TEXT_MAX),
    CYAML_FIELD_STRING_PTR("tflops", OPTIONAL_TEXT, struct file_type, tflops, 1, TEXT_MAX),
    CYAML_FIELD_STRING_PTR("memory-gib", OPTIONAL_TEXT, struct file_type, memory_gib, 1, TEXT_MAX),
    CYAML_FIELD_STRING_PTR("intra-gbps", OPTIONAL_TEXT, struct file_type, intra_gbps, 1, TEXT_MAX),
    CYAML_FIELD_SEQUENCE_COUNT("nics", OPTIONAL_TEXT, struct file_type, nics, nnics, &nic, 0, 256),
    CYAML_FIELD_END,
};
static const cyaml_schema_value_t type = {
    CYAML_VALUE_MAPPING(CYAML_FLAG_BLOCK, struct file_type, type_fields),
};

static const cyaml_schema_field_t nodes_fields[] = {
    CYAML_FIELD_STRING_PTR("hosts", CYAML_FLAG_POINTER, struct file_nodes, hosts, 1, TEXT_MAX),
    CYAML_FIELD_STRING_PTR("type", CYAML_FLAG_POINTER, struct file_nodes, type, 1, TEXT_MAX),
    CYAML_FIELD_STRING_PTR("fabric", OPTIONAL_TEXT, struct file_nodes, fabric, 1, TEXT_MAX),
    CYAML_FIELD_ENUM_PTR("state", CYAML_FLAG_STRICT | CYAML_FLAG_OPTIONAL, struct file_nodes, state,
                         states, 3),
    CYAML_FIELD_STRING_PTR("why", OPTIONAL_TEXT, struct file_nodes, why, 1, TEXT_MAX),
    CYAML_FIELD_STRING_PTR("slots", OPTIONAL_TEXT, struct file_nodes, slots, 1, TEXT_MAX),
    CYAML_FIELD_END,
};
static const cyaml_schema_value_t nodes = {
    CYAML_VALUE_MAPPING(CYAML_FLAG_BLOCK, struct file_nodes, nodes_fields),
};

static const cyaml_schema_value_t fabric_name = {
    CYAML_VALUE_STRING(CYAML_FLAG_POINTER, char, 1, TEXT_MAX),
};
static const cyaml_schema_field_t link_fields[] = {
    CYAML_FIELD_SEQUENCE_COUNT("between", OPTIONAL_TEXT | CYAML_FLAG_FLOW, struct file_link,
                               between, nbetween, &fabric_name, 2, 2),
    CYAML_FIELD_STRING_PTR("gbps", OPTIONAL_TEXT, struct file_link, gbps, 1, TEXT_MAX),
    CYAML_FIELD_STRING_PTR("node-gbps", OPTIONAL_TEXT, struct file_link, node_gbps, 1, TEXT_MAX),
    CYAML_FIELD_STRING_PTR("rtt-ms", OPTIONAL_TEXT, struct file_link, rtt_ms, 1, TEXT_MAX),
    CYAML_FIELD_END,
};
static const cyaml_schema_value_t link = {
    CYAML_VALUE_MAPPING(CYAML_FLAG_BLOCK, struct file_link, link_fields),
};

static const cyaml_schema_field_t probe_fields[] = {
    CYAML_FIELD_STRING_PTR("from", CYAML_FLAG_POINTER, struct file_probe, from, 1, TEXT_MAX),
    CYAML_FIELD_STRING_PTR("to", CYAML_FLAG_POINTER, struct file_probe, to, 1, TEXT_MAX),
    CYAML_FIELD_ENUM("reaches", CYAML_FLAG_STRICT, struct file_probe, reaches, truths, 4),
    CYAML_FIELD_END,
};
static const cyaml_schema_value_t probe = {
    CYAML_VALUE_MAPPING(CYAML_FLAG_FLOW, struct file_probe, probe_fields),
};

static const cyaml_schema_field_t cluster_fields[] = {
    CYAML_FIELD_STRING_PTR("holmes-cluster", CYAML_FLAG_POINTER, struct file_cluster, version, 1,
                           TEXT_MAX),
    CYAML_FIELD_STRING_PTR("name", OPTIONAL_TEXT, struct file_cluster, name, 1, TEXT_MAX),
    CYAML_FIELD_SEQUENCE_COUNT("node-types", CYAML_FLAG_POINTER, struct file_cluster, types, ntypes,
                               &type, 1, 100000),
    CYAML_FIELD_SEQUENCE_COUNT("nodes", CYAML_FLAG_POINTER, struct file_cluster, nodes, nnodes,
                               &nodes, 1, HOLMES_HOSTS_MAX),
    CYAML_FIELD_SEQUENCE_COUNT("links", OPTIONAL_TEXT, struct file_cluster, links, nlinks, &link, 0,
                               100000),
    CYAML_FIELD_SEQUENCE_COUNT("probes", OPTIONAL_TEXT, struct file_cluster, probes, nprobes,
                               &probe, 0, 10000000),
    CYAML_FIELD_END,
};
const cyaml_schema_value_t holmes_cluster_schema = {
    CYAML_VALUE_MAPPING(CYAML_FLAG_POINTER | CYAML_FLAG_BLOCK, struct file_cluster, cluster_fields),
};
