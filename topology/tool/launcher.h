/* How a command is started on another host: a template such as "ssh -oBatchMode=yes {host}" becomes
 * the argument vector of one process. Pure.
 *
 * The template is split into words at blanks; '...', "..." and a backslash keep blanks together,
 * and nothing else is expanded. In each word {host} stands for the host's name. The command's words
 * follow as they are, which is what `srun -N1 -n1 -w {host}` and `ip netns exec {host}` want. A
 * word {command} stands for the whole command in one word, quoted for a shell on the other side;
 * ssh and rsh, which hand their words to one, get it without being told.
 */
#ifndef HOLMES_TOPO_LAUNCHER_H
#define HOLMES_TOPO_LAUNCHER_H

#include <stddef.h>

#define HOLMES_LAUNCHER_SSH       "ssh -oBatchMode=yes -oConnectTimeout=10 {host}"
#define HOLMES_LAUNCHER_SRUN      "srun -N1 -n1 --overlap -w {host}"
#define HOLMES_LAUNCHER_WORDS_MAX 64

struct holmes_launcher {
    int nwords;
    char *words[HOLMES_LAUNCHER_WORDS_MAX];
};

/* -EINVAL with a sentence in `why` that names the template and what would be right; -ENOMEM. */
int holmes_launcher_parse(const char *template, struct holmes_launcher *out, char *why,
                          size_t why_len);
void holmes_launcher_fini(struct holmes_launcher *l);

/* A name that a launcher may be given: letters, digits and -_.:@ with no '-' at the front, which
 * would be an option. 0, or -EINVAL with a sentence. */
int holmes_launcher_check_host(const char *host, char *why, size_t why_len);

/* NULL-terminated vector for execvp in one piece of memory, given back with free; NULL: no memory.
 * `argv` is the command, NULL-terminated. */
char **holmes_launcher_argv(const struct holmes_launcher *l, const char *host, char *const *argv);

#endif
