/* Slurm. It sorts the nodes of an allocation as it likes; what makes ranks follow the plan is
 * --distribution=arbitrary, which takes a host for each task from the file in SLURM_HOSTFILE. */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "emit.h"

static char *nodelist(const struct holmes_plan_doc *doc)
{
    struct holmes_hostlist list;
    char *text;

    if (holmes_emit_hosts(doc, &list) != 0)
        return NULL;
    text = holmes_hostlist_text(&list);
    holmes_hostlist_fini(&list);
    return text;
}

static int write_nodelist(const struct holmes_plan_doc *doc, const struct holmes_emit_options *o,
                          FILE *out, char *why, size_t why_len)
{
    char *text = nodelist(doc);

    (void)o;
    if (!text) {
        snprintf(why, why_len, "out of memory");
        return -ENOMEM;
    }
    fprintf(out, "%s\n", text);
    free(text);
    return 0;
}

static int write_hostfile(const struct holmes_plan_doc *doc, const struct holmes_emit_options *o,
                          FILE *out, char *why, size_t why_len)
{
    char name[HOLMES_HOST_NAME_MAX];

    (void)o, (void)why, (void)why_len;
    for (int i = 0; i < doc->plan->nnodes; i++) {
        holmes_emit_host(doc, i, name);
        for (int k = 0; k < doc->plan->nodes[i].gpus; k++)
            fprintf(out, "%s\n", name);
    }
    return 0;
}

static int write_rankmap(const struct holmes_plan_doc *doc, const struct holmes_emit_options *o,
                         FILE *out, char *why, size_t why_len)
{
    const struct holmes_plan *p = doc->plan;
    const int64_t per_stage = (int64_t)p->tensor * p->data;
    char name[HOLMES_HOST_NAME_MAX];

    (void)o, (void)why, (void)why_len;
    holmes_emit_title(doc, "Which ranks are where: ranks, host, stages, replicas", out);
    for (int i = 0; i < p->nnodes; i++) {
        int64_t rank = p->nodes[i].first_rank, end = rank + p->nodes[i].gpus;

        holmes_emit_host(doc, i, name);
        while (rank < end) { /* a node may end one stage and begin the next */
            int64_t stage = rank / per_stage, stop = (stage + 1) * per_stage;

            stop = stop < end ? stop : end;
            fprintf(out, "%" PRId64 "-%" PRId64 "\t%s\t%" PRId64 "\t%" PRId64 "-%" PRId64 "\n",
                    rank, stop - 1, name, stage, rank % per_stage / p->tensor,
                    (stop - 1) % per_stage / p->tensor);
            rank = stop;
        }
    }
    return 0;
}

/* GPUs of each node where all use as many, else 0. */
static int gpus_of_each(const struct holmes_plan *p)
{
    for (int i = 1; i < p->nnodes; i++)
        if (p->nodes[i].gpus != p->nodes[0].gpus)
            return 0;
    return p->nodes[0].gpus;
}

static int write_batch(const struct holmes_plan_doc *doc, const struct holmes_emit_options *o,
                       FILE *out, char *why, size_t why_len)
{
    const struct holmes_plan *p = doc->plan;
    char master[HOLMES_HOST_NAME_MAX], *hosts = nodelist(doc);
    int gpus = gpus_of_each(p);

    if (!hosts) {
        snprintf(why, why_len, "out of memory");
        return -ENOMEM;
    }
    fputs("#!/bin/bash\n", out);
    holmes_emit_title(doc, "Batch script, for sbatch in a folder that all nodes see", out);
    fprintf(out,
            "#SBATCH --nodes=%d\n#SBATCH --ntasks=%" PRId64 "\n#SBATCH --nodelist=%s\n"
            "#SBATCH --exclusive\n",
            p->nnodes, p->world, hosts);
    if (gpus > 0)
        fprintf(out, "#SBATCH --gpus-per-node=%d\n", gpus);
    else
        fprintf(out,
                "# Nodes use different numbers of GPUs, which no option of Slurm says: have all "
                "of each node's.\n#SBATCH --gpus=%" PRId64 "\n",
                p->world);
    fprintf(out,
            "cd \"$SLURM_SUBMIT_DIR\" || exit\n"
            "export SLURM_HOSTFILE=$PWD/hostfile\n"
            "export MASTER_ADDR=%s MASTER_PORT=%d WORLD_SIZE=%" PRId64 "\n"
            "exec srun --ntasks=%" PRId64 " --distribution=arbitrary --kill-on-bad-exit=1 \\\n"
            "    bash -c 'export RANK=$SLURM_PROCID LOCAL_RANK=$SLURM_LOCALID\n"
            "        . ./env.sh; . ./args.sh\n"
            "        exec ${PYTHON-python3} \"$0\" \"${MEGATRON_ARGS[@]}\" \"$@\"' ",
            holmes_emit_master(doc, o, master), holmes_emit_port(o), p->world, p->world);
    holmes_emit_quote(holmes_emit_program(o), out);
    fputs(" \"$@\"\n", out);
    free(hosts);
    return 0;
}

const struct holmes_emit_form holmes_emit_slurm = {
    .name = "slurm",
    .summary = "Slurm: batch script, nodelist, a host for each task, rank map",
    .parts =
        {
            {"batch", "job.sbatch", "batch script", write_batch, .script = true},
            {"hostfile", "hostfile", "a host for each task, for SLURM_HOSTFILE", write_hostfile},
            {"nodelist", "nodelist", "for --nodelist", write_nodelist},
            {"rankmap", "rankmap", "which ranks are where, for people", write_rankmap},
            {"env", "env.sh", "environment, to be sourced", holmes_emit_env},
            {"fabrics", "fabrics", "fabric ids, where the user gave some", holmes_emit_fabric_map,
             .wanted = holmes_emit_has_fabrics},
            {"args", "args.sh", "arguments of Megatron-LM", holmes_emit_args},
        },
};
