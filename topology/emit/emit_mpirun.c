/* Open MPI. Hosts in order with --map-by slot give the plan's ranks and leave processes free on
 * their host; a rankfile does too, but binds each rank to the cores it lists. */
#include <inttypes.h>

#include "emit.h"

static int write_command(const struct holmes_plan_doc *doc, const struct holmes_emit_options *o,
                         FILE *out, char *why, size_t why_len)
{
    char master[HOLMES_HOST_NAME_MAX];

    (void)why, (void)why_len;
    fputs("#!/bin/bash\n", out);
    holmes_emit_title(doc, "Starts the job with Open MPI", out);
    fputs("# In a folder that all nodes see. Inside of an allocation, whose order of hosts mpirun "
          "may "
          "keep,\n# --rankfile rankfile in place of --map-by slot --bind-to none settles it.\n"
          "cd \"$(dirname \"$0\")\" || exit\n",
          out);
    fprintf(out,
            "exec mpirun -np %" PRId64 " --hostfile hostfile --map-by slot --bind-to none \\\n"
            "    -x MASTER_ADDR=%s -x MASTER_PORT=%d \\\n"
            "    bash -c 'export RANK=$OMPI_COMM_WORLD_RANK WORLD_SIZE=$OMPI_COMM_WORLD_SIZE\n"
            "        export LOCAL_RANK=$OMPI_COMM_WORLD_LOCAL_RANK\n"
            "        . ./env.sh; . ./args.sh\n"
            "        exec ${PYTHON-python3} \"$0\" \"${MEGATRON_ARGS[@]}\" \"$@\"' ",
            doc->plan->world, holmes_emit_master(doc, o, master), holmes_emit_port(o));
    holmes_emit_quote(holmes_emit_program(o), out);
    fputs(" \"$@\"\n", out);
    return 0;
}

const struct holmes_emit_form holmes_emit_mpirun = {
    .name = "mpirun",
    .summary = "Open MPI: rankfile, hostfile, and a script that starts the job",
    .parts =
        {
            {"rankfile", "rankfile", "a host and cores for each rank", holmes_emit_rankfile},
            {"hostfile", "hostfile", "hosts in rank order", holmes_emit_hostfile},
            {"run", "run.sh", "starts the job", write_command, .script = true},
            {"env", "env.sh", "environment, to be sourced", holmes_emit_env},
            {"fabrics", "fabrics", "fabric ids, where the user gave some", holmes_emit_fabric_map,
             .wanted = holmes_emit_has_fabrics},
            {"args", "args.sh", "arguments of Megatron-LM", holmes_emit_args},
        },
};
