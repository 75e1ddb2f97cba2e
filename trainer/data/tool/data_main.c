/* holmes-data: text into tokens that trainers read, and back. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "data.h"

volatile sig_atomic_t holmes_data_signal;

static const char usage[] =
    "Usage: holmes-data VERB [OPTION...]\n"
    "\n"
    "  encode   text files into PREFIX.bin and PREFIX.idx, the indexed dataset of Megatron-LM and\n"
    "           holmes-train\n"
    "  decode   such a dataset back into text\n"
    "  info     what is in one: type, documents, lengths, how often each token occurs\n"
    "\n"
    "Examples:\n"
    "  holmes-data encode -o corpus --append-eod book1.txt book2.txt\n"
    "  holmes-data encode -o corpus --append-eod --vocab-file vocab.json --merge-file merges.txt "
    "\\\n"
    "      pages.jsonl\n"
    "  holmes-data info corpus\n"
    "  holmes-train --data corpus --seq-len 256\n"
    "\n"
    "holmes-data VERB --help tells more. Exit status: 0 done; 1 it failed; 2 bad usage or input;\n"
    "130 or 143 ended by SIGINT or SIGTERM.\n";

static void on_signal(int number)
{
    holmes_data_signal = number;
}

int holmes_data_fail(int rc, const char *why)
{
    if (holmes_data_signal) {
        fprintf(stderr, "holmes-data: ended by signal %d; nothing was written\n",
                holmes_data_signal);
        return 128 + holmes_data_signal;
    }
    fprintf(stderr, "holmes-data: %s\n", why);
    return rc == -ENOMEM || rc == -EIO || rc == -ENOSPC || rc == -EFBIG ? 1 : 2;
}

int main(int argc, char **argv)
{
    static const struct {
        const char *name;
        int (*run)(int argc, char **argv);
    } verbs[] = {
        {"encode", holmes_data_encode}, {"decode", holmes_data_decode}, {"info", holmes_data_info}};
    const struct sigaction act = {.sa_handler = on_signal}; /* reads are interrupted */
    const char *verb = argc > 1 ? argv[1] : "";

    sigaction(SIGINT, &act, NULL);
    sigaction(SIGTERM, &act, NULL);
    for (size_t i = 0; i < sizeof verbs / sizeof *verbs; i++)
        if (strcmp(verb, verbs[i].name) == 0)
            return verbs[i].run(argc - 1, argv + 1);
    if (strcmp(verb, "help") == 0 || strcmp(verb, "--help") == 0 || strcmp(verb, "-?") == 0) {
        fputs(usage, stdout);
        return 0;
    }
    if (*verb)
        fprintf(stderr, "holmes-data: no verb \"%s\": encode, decode or info is right\n", verb);
    else
        fputs(usage, stderr);
    return 2;
}
