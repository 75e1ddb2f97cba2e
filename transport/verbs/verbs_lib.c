/* Opens libibverbs at run time. Without it there is no RDMA, which is no reason to fail: the other
 * wire carries everything. */
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "env.h"
#include "log.h"
#include "verbs.h"

struct verbs_lib holmes_verbs;

/* The version is asked for by name: what dlsym would take for the newest may once have another
 * signature. */
#define CORE "IBVERBS_1.1"

static const struct {
    const char *name, *version;
    size_t slot;
    bool optional;
} verbs_symbols[] = {
    {"ibv_fork_init", CORE, offsetof(struct verbs_lib, fork_init), false},
    {"ibv_get_device_list", CORE, offsetof(struct verbs_lib, get_device_list), false},
    {"ibv_free_device_list", CORE, offsetof(struct verbs_lib, free_device_list), false},
    {"ibv_get_device_name", CORE, offsetof(struct verbs_lib, get_device_name), false},
    {"ibv_open_device", CORE, offsetof(struct verbs_lib, open_device), false},
    {"ibv_close_device", CORE, offsetof(struct verbs_lib, close_device), false},
    {"ibv_get_async_event", CORE, offsetof(struct verbs_lib, get_async_event), false},
    {"ibv_ack_async_event", CORE, offsetof(struct verbs_lib, ack_async_event), false},
    {"ibv_query_device", CORE, offsetof(struct verbs_lib, query_device), false},
    {"ibv_query_port", CORE, offsetof(struct verbs_lib, query_port), false},
    {"ibv_query_gid", CORE, offsetof(struct verbs_lib, query_gid), false},
    {"ibv_alloc_pd", CORE, offsetof(struct verbs_lib, alloc_pd), false},
    {"ibv_dealloc_pd", CORE, offsetof(struct verbs_lib, dealloc_pd), false},
    {"ibv_reg_mr", CORE, offsetof(struct verbs_lib, reg_mr), false},
    {"ibv_dereg_mr", CORE, offsetof(struct verbs_lib, dereg_mr), false},
    {"ibv_create_cq", CORE, offsetof(struct verbs_lib, create_cq), false},
    {"ibv_resize_cq", CORE, offsetof(struct verbs_lib, resize_cq), false},
    {"ibv_destroy_cq", CORE, offsetof(struct verbs_lib, destroy_cq), false},
    {"ibv_create_qp", CORE, offsetof(struct verbs_lib, create_qp), false},
    {"ibv_modify_qp", CORE, offsetof(struct verbs_lib, modify_qp), false},
    {"ibv_destroy_qp", CORE, offsetof(struct verbs_lib, destroy_qp), false},
    {"ibv_wc_status_str", CORE, offsetof(struct verbs_lib, wc_status_str), false},
    {"ibv_event_type_str", CORE, offsetof(struct verbs_lib, event_type_str), false},
    {"ibv_reg_mr_iova2", "IBVERBS_1.8", offsetof(struct verbs_lib, reg_mr_iova2), true},
    {"ibv_reg_dmabuf_mr", "IBVERBS_1.12", offsetof(struct verbs_lib, reg_dmabuf_mr), true},
};

static int lib_resolve(void *handle, const char *path, char *why, size_t why_len)
{
    for (size_t i = 0; i < sizeof verbs_symbols / sizeof *verbs_symbols; i++) {
        void *fn = dlvsym(handle, verbs_symbols[i].name, verbs_symbols[i].version);

        if (!fn && !verbs_symbols[i].optional) {
            snprintf(why, why_len, "%s has no %s@%s: it is no libibverbs, or too old, RDMA off",
                     path, verbs_symbols[i].name, verbs_symbols[i].version);
            return -ELIBACC;
        }
        memcpy((char *)&holmes_verbs + verbs_symbols[i].slot, &fn, sizeof fn);
    }
    return 0;
}

static void open_explain(const char *path, char *why, size_t why_len)
{
    const char *error = dlerror();

    if (!error || strstr(error, "No such file"))
        snprintf(why, why_len, "%s not found, RDMA off", path);
    else
        snprintf(why, why_len, "%s cannot be opened (%s), RDMA off", path, error);
}

/* Registered memory must stay where it is when the process forks (a data loader). */
static void lib_prepare_fork(void)
{
    int rc = holmes_verbs.fork_init();

    if (rc != 0)
        holmes_warn(INIT,
                    "libibverbs cannot make fork safe (%s): children of this process must "
                    "exec at once",
                    holmes_strerror(rc > 0 ? -rc : -EIO));
}

static void say_idle_options(void)
{
    char names[512];

    if (holmes_verbs_options_idle(names, sizeof names) > 0)
        holmes_info(INIT, "set, but without effect in Holmes: %s", names);
}

static int lib_open(char *why, size_t why_len)
{
    const char *path = holmes_env_string(HOLMES_ENV_LIBIBVERBS);
    void *handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    int rc;

    if (!handle) {
        open_explain(path, why, why_len);
        return -ELIBACC;
    }
    rc = lib_resolve(handle, path, why, why_len);
    if (rc != 0) {
        dlclose(handle);
        return rc;
    }
    holmes_info(INIT, "%s opened", path);
    lib_prepare_fork();
    say_idle_options();
    return 0; /* never closed again: providers leave hooks behind */
}

int holmes_verbs_load(char *why, size_t why_len)
{
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    static char sentence[512];
    static int result = 1;

    pthread_mutex_lock(&lock);
    if (result > 0)
        result = lib_open(sentence, sizeof sentence);
    if (result != 0)
        snprintf(why, why_len, "%s", sentence);
    pthread_mutex_unlock(&lock);
    return result;
}

int holmes_verbs_query_port(struct ibv_context *ctx, uint8_t port, struct ibv_port_attr *out)
{
    struct verbs_context *vctx = verbs_get_ctx_op(ctx, query_port);
    int rc;

    memset(out, 0, sizeof *out);
    if (vctx)
        rc = vctx->query_port(ctx, port, out, sizeof *out);
    else
        rc = holmes_verbs.query_port(ctx, port, (struct _compat_ibv_port_attr *)out);
    if (rc == 0)
        return 0;
    return rc > 0 ? -rc : holmes_verbs_errno(EIO);
}
