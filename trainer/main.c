/* holmes-train: reads the command line and becomes a launcher, a rank, the host of a rendezvous,
 * the comparison of two logs, or the report on any. */
#include <stdio.h>
#include <string.h>

#include "config.h"
#include "env.h"
#include "gpt2.h"
#include "launch.h"
#include "launch_env.h"
#include "log.h"
#include "memory.h"
#include "page.h"
#include "rank.h"
#include "report.h"
#include "secret.h"

static int check_environment(void)
{
    enum holmes_log_level level;
    char why[300];

    if (holmes_env_check(why, sizeof why) != 0) {
        fprintf(stderr, "holmes-train: %s\n", why);
        return -1;
    }
    if (holmes_log_level_parse(holmes_env_string(HOLMES_ENV_LOG), &level) == 0)
        holmes_log_set_level(level);
    return 0;
}

static const char *fact(void *ctx, const char *name)
{
    (void)ctx;
    return holmes_env_fact(name);
}

/* Where this process is among others: what it needs to talk to them. */
static int find_place(struct holmes_config *c, char *why, size_t why_len)
{
    struct holmes_launch_env env = {fact, NULL};
    struct holmes_launch_place place;
    int rc;

    if (c->dry_run) /* it starts nothing, whoever started it */
        return 0;
    rc = holmes_launch_env_read(&env, &place, why, why_len);
    if (rc == 0)
        rc = holmes_launch_env_apply(&place, c, why, why_len);
    if (rc == 0)
        rc = holmes_config_check_place(c, why, why_len);
    return rc == 0 ? holmes_secret_load(c, why, why_len) : rc;
}

/* What this process was told is wrong; the ranks of its job hear of it. `placed`: it knows where
 * they are. */
static int refuse(const struct holmes_config *c, bool placed, const char *why)
{
    char no_secret[400];

    if (placed && c->rank >= 0 && c->world > 1 && holmes_secret(c, no_secret, sizeof no_secret))
        return holmes_rank_refuse(c, why);
    fprintf(stderr, "holmes-train: %s\n", why);
    return HOLMES_EXIT_USAGE;
}

static int dry_run(const struct holmes_config *c)
{
    char why[400];

    if (holmes_memory_print(c, stdout, why, sizeof why) != 0) {
        fprintf(stderr, "holmes-train: %s\n", why);
        return HOLMES_EXIT_USAGE;
    }
    return fflush(stdout) == 0 ? HOLMES_EXIT_OK : HOLMES_EXIT_FAILED;
}

/* `told`: 0, or why the options are wrong already. */
static int run(struct holmes_config *c, int argc, char **argv, int told, char *why, size_t why_len)
{
    char unplaced[500] = "out of memory";
    int code = holmes_launch_bind_to_parent(c);
    bool placed;

    if (code != HOLMES_EXIT_OK)
        return code;
    placed = find_place(c, unplaced, sizeof unplaced) == 0;
    if (told != 0)
        return refuse(c, placed, why);
    if (!placed)
        return refuse(c, false, unplaced);
    if (holmes_config_check(c, why, why_len) != 0)
        return refuse(c, true, why);
    if (c->dry_run)
        return dry_run(c);
    if (c->serve && c->rank < 0)
        return holmes_serve(c);
    if (c->rank <= 0 && c->launcher_fd < 0) /* one of the job says it */
        holmes_config_warn_pairs(c, stderr);
    if (c->local > 1 && c->rank < 0)
        return holmes_launch(c, argc, argv);
    return holmes_rank_run(c);
}

int main(int argc, char **argv)
{
    struct holmes_config config;
    char why[600] = "out of memory";
    int code, rc;

    if (check_environment() != 0)
        return HOLMES_EXIT_USAGE;
    if (argc > 1 && strcmp(argv[1], "export") == 0)
        return holmes_export_main(argc - 1, argv + 1);
    if (argc > 1 && strcmp(argv[1], "compare") == 0)
        return holmes_report_main(argc - 1, argv + 1);
    if (argc > 1 && strcmp(argv[1], "report") == 0)
        return holmes_page_main(argc - 1, argv + 1);

    rc = holmes_config_parse(argc, argv, &config, why, sizeof why);
    code = run(&config, argc, argv, rc, why, sizeof why);
    holmes_config_fini(&config);
    return code;
}
