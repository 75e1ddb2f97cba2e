/* What the variables of launchers make of a process. */
#include <criterion/criterion.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "config_spec.h"
#include "launch_env.h"

/* "A=1 B=2": the environment as one line. */
static const char *look_up(void *ctx, const char *name)
{
    static char value[8][64];
    static int turn;
    size_t len = strlen(name);

    for (const char *p = ctx; p && *p; p += strcspn(p, " "), p += *p == ' ')
        if (strncmp(p, name, len) == 0 && p[len] == '=') {
            char *out = value[turn++ % 8];

            snprintf(out, sizeof value[0], "%.*s", (int)strcspn(p + len + 1, " "), p + len + 1);
            return out;
        }
    return NULL;
}

static int read_place(const char *variables, struct holmes_launch_place *p, char *why, size_t len)
{
    struct holmes_launch_env env = {look_up, (void *)(uintptr_t)variables};

    return holmes_launch_env_read(&env, p, why, len);
}

#define OMPI_2_OF_4 "OMPI_COMM_WORLD_RANK=2 OMPI_COMM_WORLD_SIZE=4 "
#define SRUN_2_OF_4 "SLURM_PROCID=2 SLURM_STEP_NUM_TASKS=4 SLURM_NTASKS=4 "

Test(launch_env, reads_what_each_launcher_tells)
{
    static const struct {
        const char *variables, *launcher, *host;
        int rank, world, local, port; /* port 0: any that comes from the job */
    } rows[] = {
        {"", NULL, "", 0, 0, 0, 0},
        {"RANK=3", NULL, "", 0, 0, 0, 0},
        {"OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=1", NULL, "", 0, 1, 0, 0},
        {"SLURM_PROCID=0 SLURM_NTASKS=4 SLURM_LOCALID=0 SLURM_JOB_ID=7", NULL, "", 0, 0, 0, 0},
        {"RANK=3 WORLD_SIZE=4 LOCAL_RANK=1 LOCAL_WORLD_SIZE=2 MASTER_ADDR=n1 MASTER_PORT=29400 "
         "TORCHELASTIC_RUN_ID=x",
         "torchrun", "n1", 3, 4, 2, 29401},
        {"RANK=1 WORLD_SIZE=2 MASTER_ADDR=fd00::1 MASTER_PORT=65535", "torchrun", "fd00::1", 1, 2,
         0, 65534},
        {OMPI_2_OF_4 "OMPI_COMM_WORLD_LOCAL_RANK=0 OMPI_COMM_WORLD_LOCAL_SIZE=2", "mpirun", "", 2,
         4, 2, 29500},
        {OMPI_2_OF_4 "OMPI_COMM_WORLD_LOCAL_SIZE=4 PMIX_NAMESPACE=77", "mpirun", "127.0.0.1", 2, 4,
         4, 0},
        {OMPI_2_OF_4 "MASTER_ADDR=n7", "mpirun", "n7", 2, 4, 0, 29500},
        {SRUN_2_OF_4 "SLURM_STEP_NODELIST=a[07-09],b SLURM_NODEID=2 SLURM_LOCALID=0 "
                     "SLURM_STEP_TASKS_PER_NODE=1(x2),2 SLURM_JOB_ID=12",
         "srun", "a07", 2, 4, 2, 0},
        {SRUN_2_OF_4 "SLURM_NODEID=3 SLURM_STEP_TASKS_PER_NODE=1(x2),2", "srun", "", 2, 4, 0,
         29500},
        {"PMI_RANK=1 PMI_SIZE=2 MPI_LOCALRANKID=1 MPI_LOCALNRANKS=2", "mpiexec", "127.0.0.1", 1, 2,
         2, 29500},
        /* one inside the other */
        {OMPI_2_OF_4 "SLURM_PROCID=0 SLURM_STEP_NUM_TASKS=2 OMPI_COMM_WORLD_LOCAL_SIZE=4", "mpirun",
         "127.0.0.1", 2, 4, 4, 29500},
        {"RANK=5 WORLD_SIZE=8 LOCAL_WORLD_SIZE=4 MASTER_ADDR=h TORCHELASTIC_RUN_ID=x " SRUN_2_OF_4,
         "torchrun", "h", 5, 8, 4, 29500},
        {"RANK=2 WORLD_SIZE=4 MASTER_ADDR=h " SRUN_2_OF_4, "torchrun", "h", 2, 4, 0, 29500},
        {SRUN_2_OF_4 "PMI_RANK=2 PMI_SIZE=4", "srun", "", 2, 4, 0, 29500},
        {SRUN_2_OF_4 "PMI_RANK=9 PMI_SIZE=16", "mpiexec", "", 9, 16, 0, 29500},
    };

    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct holmes_launch_place p;
        char why[400] = "";

        cr_assert_eq(read_place(rows[i].variables, &p, why, sizeof why), 0, "%s: %s",
                     rows[i].variables, why);
        cr_expect_eq(p.world, rows[i].world, "%s", rows[i].variables);
        cr_expect((p.launcher == NULL) == (rows[i].launcher == NULL), "%s", rows[i].variables);
        if (!p.launcher || !rows[i].launcher)
            continue;
        cr_expect_str_eq(p.launcher, rows[i].launcher, "%s", rows[i].variables);
        cr_expect_str_eq(p.host, rows[i].host, "%s", rows[i].variables);
        cr_expect_eq(p.rank, rows[i].rank, "%s", rows[i].variables);
        cr_expect_eq(p.local_world, rows[i].local, "%s: %d", rows[i].variables, p.local_world);
        if (rows[i].port > 0)
            cr_expect_eq(p.port, rows[i].port, "%s: %d", rows[i].variables, p.port);
        else
            cr_expect(p.port >= 20000 && p.port < 30000, "%s: %d", rows[i].variables, p.port);
    }
}

Test(launch_env, jobs_have_ports_of_their_own)
{
    struct holmes_launch_place a, b;
    char why[400];

    cr_assert_eq(read_place(SRUN_2_OF_4 "SLURM_JOB_ID=12", &a, why, sizeof why), 0);
    cr_assert_eq(read_place(SRUN_2_OF_4 "SLURM_JOB_ID=13", &b, why, sizeof why), 0);
    cr_expect_neq(a.port, b.port);
    /* two steps of one job, on the same hosts */
    cr_assert_eq(read_place(SRUN_2_OF_4 "SLURM_JOB_ID=12 SLURM_STEP_ID=0", &a, why, sizeof why), 0);
    cr_assert_eq(read_place(SRUN_2_OF_4 "SLURM_JOB_ID=12 SLURM_STEP_ID=1", &b, why, sizeof why), 0);
    cr_expect_neq(a.port, b.port);
}

Test(launch_env, refuses_variables_that_contradict_each_other)
{
    static const struct {
        const char *variables, *says;
    } rows[] = {
        {"OMPI_COMM_WORLD_RANK=0",
         "mpirun has started this process, but OMPI_COMM_WORLD_SIZE is not set"},
        {"OMPI_COMM_WORLD_SIZE=2", "but OMPI_COMM_WORLD_RANK is not set"},
        {"OMPI_COMM_WORLD_RANK=4 OMPI_COMM_WORLD_SIZE=4", "are 0 to 3"},
        {"OMPI_COMM_WORLD_RANK=x OMPI_COMM_WORLD_SIZE=4", "OMPI_COMM_WORLD_RANK=\"x\": a number"},
        {"OMPI_COMM_WORLD_RANK=-1 OMPI_COMM_WORLD_SIZE=4", "\"-1\": a number"},
        {"OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=99999999999999999999", "_SIZE=\"9999"},
        {"SLURM_STEP_NUM_TASKS=4", "srun has started this process, but SLURM_PROCID is not set"},
        {"TORCHELASTIC_RUN_ID=x RANK=0", "torchrun has started this process, but WORLD_SIZE"},
        {OMPI_2_OF_4 "OMPI_COMM_WORLD_LOCAL_SIZE=2 OMPI_COMM_WORLD_LOCAL_RANK=2",
         "OMPI_COMM_WORLD_LOCAL_RANK=2, but this host has 2 ranks"},
        {OMPI_2_OF_4 "OMPI_COMM_WORLD_LOCAL_SIZE=5", "_LOCAL_SIZE=\"5\": a number from 1 to 4"},
        {SRUN_2_OF_4 "SLURM_STEP_NODELIST=a[1-", "SLURM_STEP_NODELIST: "},
        {"RANK=1 WORLD_SIZE=2 MASTER_ADDR=h MASTER_PORT=http", "MASTER_PORT=\"http\""},
        {"RANK=1 WORLD_SIZE=2 MASTER_ADDR=h " OMPI_2_OF_4,
         "RANK=1 of WORLD_SIZE=2, but OMPI_COMM_WORLD_RANK=2 of OMPI_COMM_WORLD_SIZE=4"},
        {"RANK=2 WORLD_SIZE=8 MASTER_ADDR=h " SRUN_2_OF_4, "they contradict each other"},
    };

    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct holmes_launch_place p;
        char why[400] = "";

        cr_expect_eq(read_place(rows[i].variables, &p, why, sizeof why), -EINVAL, "%s",
                     rows[i].variables);
        cr_expect_not_null(strstr(why, rows[i].says), "%s: \"%s\" expected, it says: %s",
                           rows[i].variables, rows[i].says, why);
    }
}

static struct holmes_launch_place second_of_two(void)
{
    return (struct holmes_launch_place){.launcher = "srun",
                                        .how = "SLURM_STEP_NUM_TASKS",
                                        .rank = 1,
                                        .world = 2,
                                        .local_world = 2,
                                        .host = "n1",
                                        .port = 20001};
}

Test(launch_env, makes_a_rank_of_the_configuration)
{
    struct holmes_launch_place p = second_of_two();
    struct holmes_config c;
    char why[400];

    holmes_config_init(&c);
    cr_assert_eq(holmes_launch_env_apply(&p, &c, why, sizeof why), 0, "%s", why);
    cr_expect_eq(c.rank, 1);
    cr_expect_eq(c.world, 2);
    cr_expect_eq(c.local_ranks, 2);
    cr_expect_not(c.serve, "rank 0 alone serves");
    cr_expect_str_eq(c.rendezvous, "n1:20001");
    holmes_config_fini(&c);

    holmes_config_init(&c);
    p.rank = 0;
    snprintf(p.host, sizeof p.host, "fd00::1");
    setenv("HOLMES_RENDEZVOUS_PORT", "4321", 1);
    cr_assert_eq(holmes_launch_env_apply(&p, &c, why, sizeof why), 0, "%s", why);
    cr_expect(c.serve);
    cr_expect_str_eq(c.rendezvous, "[fd00::1]:4321");
    holmes_config_fini(&c);

    holmes_config_init(&c);
    c.rendezvous = "10.0.0.1:5";
    p.host[0] = '\0';
    cr_assert_eq(holmes_launch_env_apply(&p, &c, why, sizeof why), 0, "%s", why);
    cr_expect_str_eq(c.rendezvous, "10.0.0.1:5", "what the user says goes before");
    holmes_config_fini(&c);
}

Test(launch_env, leaves_the_ranks_of_a_launcher_of_our_own_alone)
{
    struct holmes_launch_place p = second_of_two();
    struct holmes_config c;
    char why[400];

    holmes_config_init(&c);
    c.local = 4;
    c.rank = 3;
    c.world = 4;
    c.launcher_fd = 5;
    cr_assert_eq(holmes_launch_env_apply(&p, &c, why, sizeof why), 0, "%s", why);
    cr_expect_eq(c.rank, 3);
    cr_expect_null(c.launcher);
    holmes_config_fini(&c);
}

Test(launch_env, refuses_options_that_contradict_the_launcher)
{
    static const struct {
        int local, rank, world;
        bool serve, no_host;
        const char *says;
    } rows[] = {
        {2, -1, 0, false, false, "--local 2 starts all ranks by itself, but srun has started this"},
        {0, 0, 2, false, false, "--rank 0, but srun has started this process as rank 1"},
        {0, -1, 3, false, false, "--world 3, but srun has started 2 ranks (SLURM_STEP_NUM_TASKS)"},
        {0, -1, 0, true, false, "--serve is for ranks that are started by hand"},
        {0, -1, 0, false, true,
         "srun does not tell where rank 0 runs: give all ranks --rendezvous"},
    };

    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct holmes_launch_place p = second_of_two();
        struct holmes_config c;
        char why[400] = "";

        holmes_config_init(&c);
        c.local = rows[i].local;
        c.rank = rows[i].rank;
        c.world = rows[i].world;
        c.serve = rows[i].serve;
        if (rows[i].no_host)
            p.host[0] = '\0';
        cr_expect_eq(holmes_launch_env_apply(&p, &c, why, sizeof why), -EINVAL);
        cr_expect_not_null(strstr(why, rows[i].says), "\"%s\" expected, it says: %s", rows[i].says,
                           why);
        holmes_config_fini(&c);
    }
}
