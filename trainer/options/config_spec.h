/* The options of holmes-train as one table, from which the command line, --help, files of --config,
 * presets and --print-config are made. */
#ifndef HOLMES_CONFIG_SPEC_H
#define HOLMES_CONFIG_SPEC_H

#include <stdio.h>

#include "config.h"

enum holmes_spec_type {
    SPEC_GROUP,  /* a heading of --help */
    SPEC_INT,    /* int, min to max */
    SPEC_U64,    /* uint64_t */
    SPEC_REAL,   /* double, min to max */
    SPEC_TEXT,   /* const char * */
    SPEC_LIST,   /* const char *, "a,b,c"; a list in YAML */
    SPEC_FLAG,   /* bool: --name, --name=no */
    SPEC_CHOICE, /* an enum whose values are the words of `arg`, "a|b", in this order */
    SPEC_ORDER,  /* the rank order: a list, and the placement that follows it */
    SPEC_START,  /* what to do or be, not how to train: no place in a file */
};

struct holmes_spec {
    const char *name, *arg, *doc; /* no doc: not shown */
    enum holmes_spec_type type;
    size_t offset; /* in struct holmes_config */
    double min, max;
    const char *def; /* set at first, and shown; NULL: all zero, and the text says what that does */
};

extern const struct holmes_spec holmes_specs[];
extern const int holmes_nspecs; /* at most HOLMES_CONFIG_OPTIONS */

/* The option of that name, or NULL. */
const struct holmes_spec *holmes_spec_find(const char *name);
/* What a misspelt name was meant to be, or NULL. */
const char *holmes_spec_near(const char *name);
/* Sets the field from `text`, of which a copy is kept. -EINVAL with a sentence in `why` that begins
 * with the name and the value, or -ENOMEM. */
int holmes_spec_set(const struct holmes_spec *s, const char *text, struct holmes_config *c,
                    char *why, size_t why_len);
/* The field as text that holmes_spec_set takes, in `buf` or the config's own; NULL: nothing is set.
 */
const char *holmes_spec_get(const struct holmes_spec *s, const struct holmes_config *c, char *buf,
                            size_t len);

/* Parts of holmes_config_check: options that ask for what cannot be had beside the others; the
 * vocabulary that the data bring, if none was given; whether the data can be opened. -EINVAL with a
 * sentence. */
int holmes_config_check_pairs(const struct holmes_config *c, char *why, size_t why_len);
int holmes_config_settle_vocab(struct holmes_config *c, char *why, size_t why_len);
int holmes_config_check_data(const struct holmes_config *c, char *why, size_t why_len);

/* Whether the table of config_pairs.c has the option. */
bool holmes_config_has_rule(const char *option);

/* Every option at its default. */
void holmes_config_init(struct holmes_config *c);
/* Values that follow others where they were not given. */
void holmes_config_derive(struct holmes_config *c);

/* Sets what a named model sets. -EINVAL with the names there are. */
int holmes_preset_apply(const char *name, struct holmes_config *c, char *why, size_t why_len);
/* The table of --preset help. 0 or a negative errno. */
int holmes_preset_list(FILE *out);

/* The bytes of a file, which the caller frees. -EINVAL with a sentence, or -ENOMEM. */
int holmes_config_file_read(const char *path, char **data, size_t *len, char *why, size_t why_len);
/* Sets what a YAML mapping of option names says; a `preset` in it comes before the rest, unless
 * `no_preset`. -EINVAL with "NAME:LINE: ..." in `why`, or -ENOMEM; then *c is partly set. */
int holmes_config_file_apply(const char *name, const char *data, size_t len, bool no_preset,
                             struct holmes_config *c, char *why, size_t why_len);
/* The whole configuration as such a file. -EINVAL with a sentence where a text is not UTF-8, or the
 * errno of `out`. */
int holmes_config_print(const struct holmes_config *c, FILE *out, char *why, size_t why_len);

#endif
