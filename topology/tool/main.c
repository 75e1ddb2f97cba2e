/* holmes-topo: finds the verb and hands over. */
#include <stdio.h>
#include <string.h>

#include "verbs.h"

static const struct topo_verb verbs[] = {
    {"discover", "shows a machine's NICs and GPUs, what is used, and why the rest is not",
     topo_discover},
    {"gather", "makes a cluster file of what all nodes have", topo_gather},
    {"plan", "chooses sizes, places stages and layers, and says what a step will cost", topo_plan},
    {"check", "measures between the hosts of a plan or a list, before a job does", topo_check},
    {"check-agent", NULL, topo_check_agent}, /* what check starts on each of them */
    {"draw", "draws a plan: clusters, stages, nodes, and what the wires carry", topo_draw},
    {"emit", "hands a plan to Megatron-LM, torchrun, Slurm, Open MPI or holmes-train", topo_emit},
    {NULL, NULL, NULL},
};

static void usage(FILE *out)
{
    fputs("Usage: holmes-topo VERB [OPTION...]\n\n"
          "Finds the NICs of a cluster's nodes, plans who talks to whom over what, and hands the\n"
          "plan to the programs that train.\n\n",
          out);
    for (const struct topo_verb *v = verbs; v->name; v++)
        if (v->summary)
            fprintf(out, "  %-10s %s\n", v->name, v->summary);
    fputs("\nholmes-topo VERB --help tells of a verb.\n", out);
}

int main(int argc, char **argv)
{
    if (argc < 2) {
        usage(stderr);
        return TOPO_USAGE;
    }
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0 ||
        strcmp(argv[1], "help") == 0) {
        usage(stdout);
        return TOPO_OK;
    }
    if (strcmp(argv[1], "--version") == 0) {
        puts("holmes-topo " HOLMES_VERSION);
        return TOPO_OK;
    }
    for (const struct topo_verb *v = verbs; v->name; v++)
        if (strcmp(argv[1], v->name) == 0)
            return v->run(argc - 1, argv + 1);
    fprintf(stderr, "holmes-topo: no verb \"%s\"; there are:", argv[1]);
    for (const struct topo_verb *v = verbs; v->name; v++)
        if (v->summary)
            fprintf(stderr, " %s", v->name);
    fputc('\n', stderr);
    return TOPO_USAGE;
}
