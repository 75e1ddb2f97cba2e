/* The verbs of holmes-topo. Each gets the arguments from its own name on, as main does, and returns
 * the exit status. */
#ifndef HOLMES_TOPO_VERBS_H
#define HOLMES_TOPO_VERBS_H

enum topo_exit { TOPO_OK = 0, TOPO_FAILED = 1, TOPO_USAGE = 2 };

struct topo_verb {
    const char *name, *summary;
    int (*run)(int argc, char **argv); /* summary NULL: not shown */
};

int topo_discover(int argc, char **argv);
int topo_gather(int argc, char **argv);
int topo_check(int argc, char **argv);
int topo_check_agent(int argc, char **argv); /* of a library of its own: it needs the transport */
int topo_draw(int argc, char **argv);
int topo_emit(int argc, char **argv);
int topo_plan(int argc, char **argv);

#endif
