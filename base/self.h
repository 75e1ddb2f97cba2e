/* What this process holds, as its kernel lists it. */
#ifndef HOLMES_SELF_H
#define HOLMES_SELF_H

/* Open descriptors. Negative errno when the kernel cannot be asked. */
int holmes_self_fds(void);

/* Threads, likewise. One that was joined is not counted, although the kernel may go on listing it
 * for a moment. */
int holmes_self_threads(void);

#endif
