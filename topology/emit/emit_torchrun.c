/* torchrun, once on each node. Its static rendezvous numbers ranks node by node in the order of
 * --node-rank and takes another number of processes from each node; other rendezvous back ends
 * ignore --node-rank, so nothing is said of them. */
#include <stdlib.h>

#include "emit.h"

static int write_commands(const struct holmes_plan_doc *doc, const struct holmes_emit_options *o,
                          FILE *out, char *why, size_t why_len)
{
    const struct holmes_plan *p = doc->plan;
    char host[HOLMES_HOST_NAME_MAX], master[HOLMES_HOST_NAME_MAX];

    holmes_emit_title(doc, "A command for each node: host, tab, command for bash", out);
    fputs("# In a folder that all nodes see, with env.sh and args.sh in it:\n"
          "#   grep -v '^#' commands | while IFS=$'\\t' read -r host command; do\n"
          "#       ssh -n \"$host\" \"cd '$PWD' && bash -c $(printf %q \"$command\")\" &\n"
          "#   done; wait\n",
          out);
    for (int i = 0; i < p->nnodes; i++) {
        char *fabric;
        int rc = holmes_emit_fabric(doc, p->nodes[i].group, &fabric);

        if (rc != 0) {
            snprintf(why, why_len, "out of memory");
            return rc;
        }
        fprintf(out, "%s\t. ./env.sh; . ./args.sh; ", holmes_emit_host(doc, i, host));
        if (fabric) {
            fputs("HOLMES_FABRIC=", out);
            holmes_emit_quote(fabric, out);
            fputc(' ', out);
        }
        fprintf(out,
                "torchrun --nnodes=%d --node-rank=%d --nproc-per-node=%d --master-addr=%s "
                "--master-port=%d ",
                p->nnodes, i, p->nodes[i].gpus, holmes_emit_master(doc, o, master),
                holmes_emit_port(o));
        holmes_emit_quote(holmes_emit_program(o), out);
        fputs(" \"${MEGATRON_ARGS[@]}\"\n", out);
        free(fabric);
    }
    return 0;
}

const struct holmes_emit_form holmes_emit_torchrun = {
    .name = "torchrun",
    .summary = "torchrun: a command for each node",
    .parts =
        {
            {"commands", "commands", "host, tab, command", false, write_commands},
            {"env", "env.sh", "environment, to be sourced", false, holmes_emit_env},
            {"args", "args.sh", "arguments of Megatron-LM", false, holmes_emit_args},
        },
};
