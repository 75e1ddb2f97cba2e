/* What emit writes: compared with golden files, and held to the rules of those who read it.
 *
 * HOLMES_GOLDEN=write build/tests/topology/emit/test_topo_emit writes the golden files anew. */
#include <errno.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include "emit/emit.h"
#include "fabric_ids.h"
#include "plans.h"

static const int layers_7887[] = {7, 8, 8, 7};

/* Two clusters with a slow link, one with an id. */
static struct holmes_plan_doc two(void)
{
    static const struct plan_part parts[] = {
        {"a[001-004]", 8, "ib", HOLMES_LINK_INFINIBAND, true},
        {"b[1-3],c7", 8, "B", HOLMES_LINK_ETHERNET, false},
    };
    const struct plan_shape shape = {.model = "gpt-3.6b",
                                     .layers = 30,
                                     .tensor = 2,
                                     .pipeline = 4,
                                     .data = 8,
                                     .stage_layers = layers_7887,
                                     .rtt_ms = 20,
                                     .gbps = 12.5,
                                     .window_bytes = 31250000};

    return plan_make(&shape, parts, 2);
}

/* Three clusters of unequal nodes, layers that only a layout can say, and nothing told of NICs. */
static struct holmes_plan_doc uneven(void)
{
    static const int layers[] = {9, 3, 5, 7};
    static const struct plan_part parts[] = {
        {"big[1-2]", 4, "A", HOLMES_LINK_INFINIBAND, false},
        {"mid[01-02]", 2, "B", HOLMES_LINK_ETHERNET, false},
        {"small-1,small-2,other", 1, "Ethernet", HOLMES_LINK_UNKNOWN, false},
        {"late", 1, "Ethernet", HOLMES_LINK_UNKNOWN, false},
    };
    const struct plan_shape shape = {.model = "24 layers",
                                     .layers = 24,
                                     .tensor = 1,
                                     .pipeline = 4,
                                     .data = 4,
                                     .stage_layers = layers,
                                     .tied = true,
                                     .rtt_ms = 0.1,
                                     .gbps = 25,
                                     .window_bytes = 312500};

    return plan_make(&shape, parts, 4);
}

static char *emitted(const struct holmes_plan_doc *doc, holmes_emit_write *write,
                     const struct holmes_emit_options *o)
{
    char *text = NULL, why[512] = "";
    size_t len;
    FILE *out = open_memstream(&text, &len);

    cr_assert(write(doc, o, out, why, sizeof why) == 0, "%s", why);
    fclose(out);
    return text;
}

/* --- golden files ------------------------------------------------------------------------------
 */

/* Forms share parts: each is compared once, under the first that has it. */
static bool seen_before(int form, const struct holmes_emit_part *part)
{
    for (int i = 0; i < form; i++)
        for (const struct holmes_emit_part *p = holmes_emit_forms[i]->parts; p->name; p++)
            if (p->write == part->write)
                return true;
    return false;
}

static void compare(const char *plan, const char *form, const char *part, const char *text)
{
    char path[512], *golden = NULL;
    size_t room = 0;
    FILE *f;

    snprintf(path, sizeof path, TEST_DATA "/emit/%s/%s-%s", plan, form, part);
    if (getenv("HOLMES_GOLDEN")) {
        f = fopen(path, "w");
        cr_assert(f, "%s: %s", path, strerror(errno));
        fputs(text, f);
        fclose(f);
        return;
    }
    f = fopen(path, "r");
    cr_assert(f, "%s: %s", path, strerror(errno));
    cr_assert(getdelim(&golden, &room, '\0', f) > 0);
    fclose(f);
    cr_expect_str_eq(text, golden, "%s", path);
    free(golden);
}

static void compare_all(const char *name, struct holmes_plan_doc doc)
{
    const struct holmes_emit_options o = {.plugin = "/opt/holmes/lib/libnccl-net-holmes.so",
                                          .cores = 4};
    char dir[512];

    snprintf(dir, sizeof dir, TEST_DATA "/emit/%s", name);
    if (getenv("HOLMES_GOLDEN"))
        cr_assert(mkdir(dir, 0777) == 0 || errno == EEXIST);
    for (int i = 0; holmes_emit_forms[i]; i++) {
        const struct holmes_emit_form *form = holmes_emit_forms[i];

        for (const struct holmes_emit_part *p = form->parts; p->name; p++) {
            char *text;

            if (seen_before(i, p) || (p->wanted && !p->wanted(&doc)))
                continue;
            text = emitted(&doc, p->write, &o);
            compare(name, form->name, p->name, text);
            free(text);
        }
    }
    holmes_plan_doc_fini(&doc);
}

Test(emit, two_clusters_as_always)
{
    compare_all("two", two());
}

Test(emit, unequal_nodes_as_always)
{
    compare_all("uneven", uneven());
}

/* --- Megatron-LM's layers ----------------------------------------------------------------------
 */

/* Megatron-LM's own arithmetic, from its source: which layers each stage builds, given the options.
 * False: it would refuse them. */
static bool megatron_builds(const struct holmes_megatron_layers *o, int layers, int stages,
                            int *built)
{
    int left = layers, middle = stages, count;
    const char *p = o->layout;

    if (*p) { /* a layout: E once, first; L once, last; decoders add up; as many stages as asked */
        if (o->first || o->last || *p++ != 'E')
            return false;
        for (int i = 0; i < stages; i++) {
            for (built[i] = 0; *p == 't'; built[i] += count) {
                count = 1;
                if (*++p == '*')
                    count = (int)strtol(p + 1, (char **)&p, 10);
            }
            left -= built[i];
            if (i + 1 < stages && *p++ != '|')
                return false;
        }
        return strcmp(p, "L") == 0 && left == 0;
    }
    if (o->first) {
        left -= o->first;
        middle--;
    }
    if (o->last) {
        left -= o->last;
        middle--;
    }
    if (left < 0 || middle < 0 || (left != 0) != (middle != 0) || (middle && left % middle != 0))
        return false;
    for (int i = 0; i < stages; i++)
        built[i] = i == 0 && o->first           ? o->first
                   : i == stages - 1 && o->last ? o->last
                                                : left / middle;
    return true;
}

static const struct {
    int stages, layers[8];
    int first, last; /* expected */
    const char *layout;
} layer_cases[] = {
    {4, {7, 8, 8, 7}, 7, 7, ""},
    {4, {1, 1, 1, 2}, 1, 2, ""},
    {2, {16, 8}, 16, 0, ""},
    {1, {30}, 0, 0, ""},
    {4, {6, 6, 6, 6}, 0, 0, ""},
    {3, {9, 1, 9}, 9, 9, ""},
    {4, {8, 7, 7, 7}, 8, 7, ""},
    {4, {9, 3, 5, 7}, 0, 0, "Et*9|t*3|t*5|t*7L"},
    {4, {1, 2, 1, 2}, 0, 0, "Et|t*2|t|t*2L"},
    {5, {4, 4, 5, 4, 4}, 0, 0, "Et*4|t*4|t*5|t*4|t*4L"},
    {8, {1, 1, 1, 1, 1, 1, 2, 1}, 0, 0, "Et|t|t|t|t|t|t*2|tL"},
};

Test(megatron, layers_follow_its_rules)
{
    for (size_t i = 0; i < sizeof layer_cases / sizeof *layer_cases; i++) {
        struct holmes_megatron_layers found;
        int stages = layer_cases[i].stages, layers = 0, built[8];
        char why[256] = "";

        for (int k = 0; k < stages; k++)
            layers += layer_cases[i].layers[k];
        cr_assert(holmes_megatron_layers_find(layer_cases[i].layers, stages, &found, why,
                                              sizeof why) == 0,
                  "case %zu: %s", i, why);
        cr_expect(found.first == layer_cases[i].first && found.last == layer_cases[i].last,
                  "case %zu: first %d, last %d", i, found.first, found.last);
        cr_expect_str_eq(found.layout, layer_cases[i].layout);
        cr_assert(megatron_builds(&found, layers, stages, built), "case %zu is refused", i);
        cr_expect(memcmp(built, layer_cases[i].layers, (size_t)stages * sizeof *built) == 0,
                  "case %zu builds other layers", i);
    }
}

/* Every partition of up to 7 layers into up to 5 stages. */
Test(megatron, builds_what_any_plan_says)
{
    int n = 0;

    for (int code = 0; code < 4 * 4 * 4 * 4 * 4; code++) {
        for (int stages = 1; stages <= 5; stages++) {
            struct holmes_megatron_layers found;
            int layers[5], built[5], sum = 0;
            char why[256];

            for (int k = 0; k < stages; k++)
                sum += layers[k] = 1 + (code >> (2 * k)) % 4;
            cr_assert(holmes_megatron_layers_find(layers, stages, &found, why, sizeof why) == 0);
            cr_assert(megatron_builds(&found, sum, stages, built) &&
                          memcmp(built, layers, (size_t)stages * sizeof *built) == 0,
                      "%d stages, code %d: first %d, last %d, layout %s", stages, code, found.first,
                      found.last, found.layout);
            n++;
        }
    }
    cr_expect(n == 5 * 1024);
}

Test(megatron, refuses_a_stage_without_layers)
{
    static const int empty[] = {1, 1, 1, 0};
    struct holmes_megatron_layers found;
    char why[256];

    cr_expect(holmes_megatron_layers_find(empty, 4, &found, why, sizeof why) == -EINVAL);
    cr_expect_str_eq(why, "stage 3 of 4 has 0 layers: Megatron-LM wants one or more");
}

Test(megatron, refuses_heads_that_do_not_divide)
{
    struct holmes_plan_doc doc = two();
    const struct holmes_emit_options o = {0};
    char why[256];

    doc.request.model.heads = 31;
    cr_expect(holmes_emit_args(&doc, &o, stdout, why, sizeof why) == -EINVAL);
    cr_expect_str_eq(why, "31 heads over tensor 2: Megatron-LM wants them to divide evenly");
    holmes_plan_doc_fini(&doc);
}

/* --- NCCL's window -----------------------------------------------------------------------------
 */

Test(window, fits_the_link_within_nccl_s_limits)
{
    static const struct {
        int64_t bytes, chunk;
        int channels;
        int64_t buffer, window;
    } cases[] = {
        {1, 0, 2, 0, 2 << 20},
        {2 << 20, 0, 2, 0, 2 << 20},
        {(2 << 20) + 1, 256 << 10, 2, 0, 4 << 20},
        {31250000, 512 << 10, 8, 0, 32 << 20},
        {HOLMES_NCCL_WINDOW_MAX, 1 << 20, 8, 8 << 20, 64 << 20},
        {INT64_C(1) << 40, 1 << 20, 32, 8 << 20, 256 << 20},
    };

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct holmes_nccl_window w;

        holmes_nccl_window_choose(cases[i].bytes, &w);
        cr_expect(w.chunk == cases[i].chunk && w.channels == cases[i].channels &&
                      w.buffer == cases[i].buffer && w.bytes == cases[i].window,
                  "%lld bytes: %lld x %d, %lld, %lld", (long long)cases[i].bytes,
                  (long long)w.chunk, w.channels, (long long)w.buffer, (long long)w.bytes);
        /* A chunk above an eighth of the buffer is cut by NCCL; all chunks of 64 channels must fit
         * an int. */
        cr_expect(8 * w.chunk <= (w.buffer ? w.buffer : 4 << 20));
        cr_expect(64 * 16 * w.chunk < INT64_C(1) << 31);
    }
}

/* What the plan counted on is what NCCL is told. */
Test(window, is_the_one_that_the_plan_was_made_for)
{
    static const struct {
        int64_t asked;
        const char *chunk, *channels;
    } cases[] = {
        {0, "NCCL_P2P_NET_CHUNKSIZE=524288\n", "NCCL_NCHANNELS_PER_NET_PEER=8\n"},
        {HOLMES_NCCL_WINDOW, NULL, NULL},
        {1, NULL, NULL},
        {8 << 20, "NCCL_P2P_NET_CHUNKSIZE=524288\n", NULL},
    };

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct holmes_plan_doc doc = two();
        char *text;

        doc.request.window_bytes = cases[i].asked;
        text = emitted(&doc, holmes_emit_env, &(struct holmes_emit_options){0});
        cr_expect(cases[i].chunk ? strstr(text, cases[i].chunk) != NULL
                                 : strstr(text, "NCCL_P2P_NET_CHUNKSIZE") == NULL,
                  "%s", text);
        cr_expect(cases[i].channels ? strstr(text, cases[i].channels) != NULL
                                    : strstr(text, "NCCL_NCHANNELS") == NULL,
                  "%s", text);
        free(text);
        holmes_plan_doc_fini(&doc);
    }
}

/* --- the shell ---------------------------------------------------------------------------------
 */

/* What a command prints, its last newline cut off. */
static void shell(const char *command, char *out, size_t len)
{
    FILE *p = popen(command, "r");
    size_t n;

    cr_assert(p);
    n = fread(out, 1, len - 1, p);
    out[n] = '\0';
    if (n > 0 && out[n - 1] == '\n')
        out[n - 1] = '\0';
    cr_expect(pclose(p) == 0, "%s", command);
}

/* Writes the part to a file, sources it with RANK, and prints `expression`. */
static void sourced(const struct holmes_plan_doc *doc, const struct holmes_emit_options *o,
                    holmes_emit_write *write, const char *rank, const char *expression, char *out,
                    size_t len)
{
    char path[] = "/tmp/holmes-emit-XXXXXX", command[512], *text = emitted(doc, write, o);
    int fd = mkstemp(path);
    FILE *f = fdopen(fd, "w");

    cr_assert(f);
    fputs(text, f);
    fclose(f);
    free(text);
    snprintf(command, sizeof command, "RANK=%s bash -euc '. %s; printf \"%%s\\n\" %s'", rank, path,
             expression);
    shell(command, out, len);
    remove(path);
}

Test(emit, environment_names_plugin_and_fabrics)
{
    const struct holmes_emit_options o = {.plugin = "/opt/lib/libnccl-net-holmes.so"};
    struct holmes_plan_doc doc = two();
    char out[512], here[256], expected[300];

    sourced(&doc, &o, holmes_emit_env, "0", "\"$NCCL_NET_PLUGIN $NCCL_NET_PLUGIN_REF_COUNT\"", out,
            sizeof out);
    cr_expect_str_eq(out, "/opt/lib/libnccl-net-holmes.so 1");
    sourced(&doc, &o, holmes_emit_env, "0", "\"$HOLMES_FABRIC\"", out, sizeof out);
    snprintf(expected, sizeof expected, "@%s/fabrics", getcwd(here, sizeof here));
    cr_expect_str_eq(out, expected);
    holmes_plan_doc_fini(&doc);
    doc = uneven(); /* no ids */
    sourced(&doc, &o, holmes_emit_env, "0", "\"${HOLMES_FABRIC-none}\"", out, sizeof out);
    cr_expect_str_eq(out, "none");
    holmes_plan_doc_fini(&doc);
}

/* The plugin reads it as it was meant. */
Test(emit, fabric_map_is_what_the_plugin_reads)
{
    static const struct {
        const char *host, *mlx5_0, *mlx5_1;
    } hosts[] = {
        {"a001", "ib", "ib"}, {"a004", "ib", "ib"}, {"b2", "", "west"}, {"c7", "", "west"}};
    struct holmes_plan_doc doc = two();
    struct holmes_cluster_nic *nic = &doc.cluster->types[1].nics[1];
    char *text, why[512];
    bool named;

    free(nic->name);
    nic->name = strdup("mlx5_1:2");
    nic->fabric = strdup("west");
    text = emitted(&doc, holmes_emit_fabrics.parts[0].write, &(struct holmes_emit_options){0});
    for (size_t i = 0; i < sizeof hosts / sizeof hosts[0]; i++) {
        struct fabric_ids ids;

        cr_assert_eq(fabric_map_parse("map", text, strlen(text), hosts[i].host, &ids, &named, why,
                                      sizeof why),
                     0, "%s", why);
        cr_assert(named, "%s is not in %s", hosts[i].host, text);
        cr_assert_str_eq(fabric_ids_find(&ids, "mlx5_0", 1), hosts[i].mlx5_0);
        cr_assert_str_eq(fabric_ids_find(&ids, "mlx5_1", 2), hosts[i].mlx5_1);
    }
    free(text);
    free(nic->fabric);
    nic->fabric = strdup("no such id");
    cr_assert_eq(holmes_fabric_map_write(doc.cluster, stderr, why, sizeof why), -EINVAL);
    cr_assert(strstr(why, "fabric \"no such id\""), "%s", why);
    holmes_plan_doc_fini(&doc);
}

/* Nothing of a plan or an option is run by the shell that sources it. */
Test(emit, hostile_texts_stay_texts)
{
    const struct holmes_emit_options o = {.plugin = "/opt/$(touch evil)`touch evil`/'x y.so"};
    struct holmes_plan_doc doc = two();
    char out[512], dir[] = "/tmp/holmes-emit-XXXXXX";

    cr_assert(mkdtemp(dir) && chdir(dir) == 0);
    snprintf(doc.request.model.name, sizeof doc.request.model.name, "x\ntouch evil\n");
    sourced(&doc, &o, holmes_emit_env, "0", "\"$NCCL_NET_PLUGIN\"", out, sizeof out);
    cr_expect_str_eq(out, o.plugin);
    sourced(&doc, &o, holmes_emit_args, "0", "\"${MEGATRON_ARGS[0]}\"", out, sizeof out);
    cr_expect_str_eq(out, "--tensor-model-parallel-size");
    cr_expect(access("evil", F_OK) != 0);
    cr_expect(rmdir(dir) == 0);
    holmes_plan_doc_fini(&doc);
}

Test(emit, layout_reaches_megatron_as_one_word)
{
    const struct holmes_emit_options o = {0};
    struct holmes_plan_doc doc = uneven();
    char out[512];

    sourced(&doc, &o, holmes_emit_args, "0", "\"${MEGATRON_ARGS[4]} ${MEGATRON_ARGS[5]}\"", out,
            sizeof out);
    cr_expect_str_eq(out, "--pipeline-model-parallel-layout Et*9|t*3|t*5|t*7L");
    holmes_plan_doc_fini(&doc);
}

Test(emit, refuses_a_plugin_that_nccl_would_not_find)
{
    static const struct {
        const char *plugin, *says;
    } cases[] = {
        {"build/libnccl-net-holmes.so", "an absolute path is right"},
        {"/opt/a,b/libnccl-net-holmes.so", "comma"},
    };
    char why[256], longer[300];

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const struct holmes_emit_options o = {.plugin = cases[i].plugin};

        cr_expect(holmes_emit_check(&o, why, sizeof why) == -EINVAL);
        cr_expect(strstr(why, cases[i].plugin) && strstr(why, cases[i].says), "%s", why);
    }
    memset(longer, '/', sizeof longer);
    longer[255] = '\0';
    cr_expect(holmes_emit_check(&(struct holmes_emit_options){.plugin = longer}, why, sizeof why) ==
              -EINVAL);
}

/* --- holmes-train ------------------------------------------------------------------------------
 */

/* Plan order a1 b1 a2 b2 of a file in the order a1 a2 b1 b2. */
Test(emit, trainer_keeps_the_order_of_the_file)
{
    static const int even[] = {2, 2};
    static const struct plan_part parts[] = {{"a1", 1, "A", HOLMES_LINK_UNKNOWN, false},
                                             {"b1", 1, "B", HOLMES_LINK_UNKNOWN, false},
                                             {"a2", 1, "A", HOLMES_LINK_UNKNOWN, false},
                                             {"b2", 1, "B", HOLMES_LINK_UNKNOWN, false}};
    const struct plan_shape shape = {
        .model = "small", .layers = 4, .tensor = 1, .pipeline = 2, .data = 2, .stage_layers = even};
    const struct holmes_emit_part *part = holmes_emit_find_part(&holmes_emit_holmes, "args");
    struct holmes_plan_doc doc = plan_make(&shape, parts, 4);
    struct holmes_plan_node *n = doc.plan->nodes;
    char *text;

    n[1] = (struct holmes_plan_node){2, 0, 1, 1};
    n[2] = (struct holmes_plan_node){1, 0, 1, 2};
    text = emitted(&doc, part->write, &(struct holmes_emit_options){0});
    cr_expect(
        strstr(text, "--pipeline 2 --data-parallel 2 --rank-order 0,2,1,3 --stage-layers 2,2"),
        "%s", text);
    free(text);
    text = emitted(&doc, part->write, &(struct holmes_emit_options){.naive = true});
    cr_expect(strstr(text, "--rank-order 0,1,2,3 --batch"), "%s", text);
    free(text);
    part = holmes_emit_find_part(&holmes_emit_holmes, "ranks");
    text = emitted(&doc, part->write, &(struct holmes_emit_options){0});
    cr_expect_str_eq(text, "0\ta1\tA\n1\tb1\tB\n2\ta2\tA\n3\tb2\tB\n");
    free(text);
    part = holmes_emit_find_part(&holmes_emit_holmes, "labels");
    text = emitted(&doc, part->write, &(struct holmes_emit_options){0});
    cr_expect_str_eq(text, "--host-label a1,b1,a2,b2 --cluster A,B,A,B\n");
    free(text);
    holmes_plan_doc_fini(&doc);
}

/* The ranks that a hostfile in the plan's order starts: there the naive order is the other one. */
Test(emit, trainer_s_config_numbers_ranks_as_its_hostfile)
{
    static const int layers[] = {3, 1};
    static const struct plan_part parts[] = {{"a1", 1, "A", HOLMES_LINK_UNKNOWN, false},
                                             {"b1", 2, "B: \"1\"", HOLMES_LINK_UNKNOWN, false},
                                             {"a2", 1, "A", HOLMES_LINK_UNKNOWN, false}};
    const struct plan_shape shape = {.model = "small",
                                     .layers = 4,
                                     .tensor = 1,
                                     .pipeline = 2,
                                     .data = 2,
                                     .stage_layers = layers,
                                     .tied = true};
    const struct holmes_emit_part *part = holmes_emit_find_part(&holmes_emit_holmes, "config");
    struct holmes_plan_doc doc = plan_make(&shape, parts, 3);
    struct holmes_plan_node *n = doc.plan->nodes;
    char *text, why[300] = "";

    n[1] = (struct holmes_plan_node){2, 0, 1, 1};
    n[2] = (struct holmes_plan_node){1, 0, 2, 2};
    cr_expect_eq(part->write(&doc, &(struct holmes_emit_options){0}, stdout, why, sizeof why),
                 -EINVAL);
    cr_expect(strstr(why, "fabric \"B: \"1\"\": holmes-train takes lists of names"), "%s", why);
    for (int i = 0; i < doc.fabrics->n; i++)
        if (doc.fabrics->fabrics[i].name[0] == 'B')
            strcpy(doc.fabrics->fabrics[i].name, "B: 1");
    text = emitted(&doc, part->write, &(struct holmes_emit_options){0});
    cr_expect(strstr(text, "\npipeline: 2\ndata-parallel: 2\nrank-order: 0,1,2,3\n"
                           "stage-layers: 3,1\n"),
              "%s", text);
    cr_expect(strstr(text, "\ntied: yes\n"), "%s", text);
    cr_expect(strstr(text, "\ncluster: [\"A\", \"A\", \"B: 1\", \"B: 1\"]\n"), "%s", text);
    free(text);
    text = emitted(&doc, part->write, &(struct holmes_emit_options){.naive = true});
    cr_expect(strstr(text, "\nrank-order: 0,2,3,1\nbatch: "), "%s", text);
    free(text);
    part = holmes_emit_find_part(&holmes_emit_holmes, "hostfile");
    text = emitted(&doc, part->write, &(struct holmes_emit_options){0});
    cr_expect(strstr(text, "\na1 slots=1\na2 slots=1\nb1 slots=2\n"), "%s", text);
    free(text);
    holmes_plan_doc_fini(&doc);
}

/* A tensor group's ranks are neighbours in every order, on one host. */
Test(emit, trainer_has_the_plan_s_three_dimensions)
{
    static const int even[] = {2, 2};
    static const struct plan_part parts[] = {{"a1", 4, "A", HOLMES_LINK_UNKNOWN, false},
                                             {"b1", 4, "B", HOLMES_LINK_UNKNOWN, false}};
    const struct plan_shape shape = {
        .model = "small", .layers = 4, .tensor = 2, .pipeline = 2, .data = 2, .stage_layers = even};
    const struct holmes_emit_part *part = holmes_emit_find_part(&holmes_emit_holmes, "args");
    struct holmes_plan_doc doc = plan_make(&shape, parts, 2);
    char *text, why[300] = "";

    doc.request.model.recompute = true;
    text = emitted(&doc, part->write, &(struct holmes_emit_options){0});
    cr_expect(strstr(text, "--pipeline 2 --data-parallel 2 --tensor 2 --rank-order 0,1,2,3,4,5,6,7 "
                           "--stage-layers 2,2"),
              "%s", text);
    cr_expect(strstr(text, " --recompute\n"), "%s", text);
    free(text);
    doc.request.no_overlap = true;
    doc.request.model.vocabulary = 50257;
    text = emitted(&doc, part->write, &(struct holmes_emit_options){0});
    cr_expect(strstr(text, " --vocab 50257 --recompute --overlap off\n"), "%s", text);
    free(text);
    doc.request.model.ffn = 3 * doc.request.model.hidden;
    cr_expect_eq(part->write(&doc, &(struct holmes_emit_options){0}, stdout, why, sizeof why),
                 -EINVAL);
    cr_expect(strstr(why, "holmes-train's MLP is 4 x hidden"), "%s", why);
    holmes_plan_doc_fini(&doc);
}
