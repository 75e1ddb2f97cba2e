/* The verbs of holmes-data. Each reads its arguments, argv[0] being the verb, and returns the exit
 * status: 0, 1 for what failed, 2 for bad usage or input, 130 or 143 when ended by a signal. */
#ifndef HOLMES_DATA_H
#define HOLMES_DATA_H

#include <signal.h>

int holmes_data_encode(int argc, char **argv);
int holmes_data_decode(int argc, char **argv);
int holmes_data_info(int argc, char **argv);

/* The signal that asked the program to end; 0: none. Long work looks at it. */
extern volatile sig_atomic_t holmes_data_signal;

/* Says "holmes-data: why" and returns the exit status of an error: 2 for -EINVAL, -EILSEQ, -ENOENT
 * and others that are the input's, else 1. */
int holmes_data_fail(int rc, const char *why);

#endif
