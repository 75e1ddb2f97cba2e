/* torchrun, once on each node. Its static rendezvous numbers ranks node by node in the order of
 * --node-rank and takes another number of processes from each node; other rendezvous back ends
 * ignore --node-rank, so nothing is said of them. */
#include "emit.h"

static int write_commands(const struct holmes_plan_doc *doc, const struct holmes_emit_options *o,
                          FILE *out, char *why, size_t why_len)
{
    const struct holmes_plan *p = doc->plan;
    char host[HOLMES_HOST_NAME_MAX], master[HOLMES_HOST_NAME_MAX];

    (void)why, (void)why_len;
    holmes_emit_title(doc, "A command for each node: host, tab, command for bash", out);
    fputs("# In a folder that all nodes see, with env.sh and args.sh in it:\n"
          "#   grep -v '^#' commands | while IFS=$'\\t' read -r host command; do\n"
          "#       ssh -n \"$host\" \"cd '$PWD' && bash -c $(printf %q \"$command\")\" &\n"
          "#   done; wait\n",
          out);
    for (int i = 0; i < p->nnodes; i++) {
        fprintf(out,
                "%s\t. ./env.sh; . ./args.sh; torchrun --nnodes=%d --node-rank=%d "
                "--nproc-per-node=%d --master-addr=%s --master-port=%d ",
                holmes_emit_host(doc, i, host), p->nnodes, i, p->nodes[i].gpus,
                holmes_emit_master(doc, o, master), holmes_emit_port(o));
        holmes_emit_quote(holmes_emit_program(o), out);
        fputs(" \"${MEGATRON_ARGS[@]}\"\n", out);
    }
    return 0;
}

const struct holmes_emit_form holmes_emit_torchrun = {
    .name = "torchrun",
    .summary = "torchrun: a command for each node",
    .parts =
        {
            {"commands", "commands", "host, tab, command", write_commands},
            {"env", "env.sh", "environment, to be sourced", holmes_emit_env},
            {"fabrics", "fabrics", "fabric ids, where the user gave some", holmes_emit_fabric_map,
             .wanted = holmes_emit_has_fabrics},
            {"args", "args.sh", "arguments of Megatron-LM", holmes_emit_args},
        },
};
