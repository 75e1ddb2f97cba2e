/* Memory registration: by address, or a piece of a dma-buf. */
#include <errno.h>
#include <stdio.h>
#include <sys/resource.h>

#include "log.h"
#include "verbs.h"

static void mr_fill(struct wire_mr *out, struct ibv_mr *mr, const void *addr)
{
    out->key = mr->rkey;
    out->base = (uint64_t)(uintptr_t)addr;
    out->desc = mr;
    out->priv = mr;
}

/* Pinned memory counts against a limit that is 64 KiB or 8 MiB where nobody raised it. */
static void explain_memlock(const struct wire_nic *wn, size_t len)
{
    struct rlimit limit;
    char text[32] = "unlimited";

    if (getrlimit(RLIMIT_MEMLOCK, &limit) != 0)
        return;
    if (limit.rlim_cur != RLIM_INFINITY)
        snprintf(text, sizeof text, "%llu KiB", (unsigned long long)limit.rlim_cur / 1024);
    holmes_warn(NET,
                "nic %s: no memory to register %zu bytes: RLIMIT_MEMLOCK is %s; raise it "
                "(ulimit -l unlimited; LimitMEMLOCK=infinity of a service; --ulimit memlock=-1 "
                "of a container)",
                wn->nic.name, len, text);
}

static int mr_errno(const struct wire_nic *wn, size_t len)
{
    int rc = holmes_verbs_errno(EIO);

    if (rc == -ENOMEM)
        explain_memlock(wn, len);
    return rc;
}

int holmes_verbs_mr_reg(struct wire_nic *wn, void *addr, size_t len, struct wire_mr *out)
{
    struct ibv_mr *mr;

    if (len == 0)
        return -EINVAL;
    errno = 0;
    if (wn->access & IBV_ACCESS_RELAXED_ORDERING)
        mr = holmes_verbs.reg_mr_iova2(wn->pd, addr, len, (uintptr_t)addr, wn->access);
    else
        mr = holmes_verbs.reg_mr(wn->pd, addr, len, (int)wn->access);
    if (!mr)
        return mr_errno(wn, len);
    mr_fill(out, mr, addr);
    return 0;
}

int holmes_verbs_mr_reg_dmabuf(struct wire_nic *wn, void *addr, size_t len, uint64_t offset, int fd,
                               struct wire_mr *out)
{
    struct ibv_mr *mr;
    int rc;

    if (!holmes_verbs.reg_dmabuf_mr)
        return -EOPNOTSUPP;
    if (fd >= 0 && len == 0)
        return -EINVAL;
    errno = 0;
    mr = holmes_verbs.reg_dmabuf_mr(wn->pd, offset, len, (uintptr_t)addr, fd, (int)wn->access);
    if (!mr) {
        rc = mr_errno(wn, len);
        return rc == -EPROTONOSUPPORT ? -EOPNOTSUPP : rc;
    }
    mr_fill(out, mr, addr);
    return 0;
}

void holmes_verbs_mr_dereg(struct wire_nic *wn, struct wire_mr *mr)
{
    int rc;

    if (!mr->priv)
        return;
    rc = holmes_verbs.dereg_mr(mr->priv);
    if (rc != 0)
        holmes_warn(NET, "nic %s: a memory registration does not close: %s", wn->nic.name,
                    holmes_strerror(rc > 0 ? -rc : holmes_verbs_errno(EIO)));
    mr->priv = NULL;
}
