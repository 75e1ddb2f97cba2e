/* Reads a file that describes a host, whichever of the three forms it has. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "host.h"
#include "log.h"
#include "xml.h"

/* The root element decides; XML may begin with declarations and comments of any length. */
static int parse_xml(const char *name, const void *data, size_t len, struct holmes_host **out,
                     char *why, size_t why_len)
{
    struct xml_file f = {.name = name, .why = why, .why_len = why_len};
    const xmlNode *root = xml_open(&f, data, len) == 0 ? xmlDocGetRootElement(f.doc) : NULL;
    bool hwloc = root && xml_is(root, "topology"), nccl = root && xml_is(root, "system");

    if (root && !hwloc && !nccl)
        xml_mistake(&f, root, NULL,
                    "neither <system>, with which NCCL topology XML begins, nor <topology>, with "
                    "which hwloc's does");
    xml_close(&f);
    if (f.rc != 0)
        return f.rc;
    return hwloc ? holmes_host_parse_hwloc(name, data, len, out, why, why_len)
                 : holmes_host_parse_nccl(name, data, len, out, why, why_len);
}

int holmes_host_parse(const char *name, const void *data, size_t len, struct holmes_host **out,
                      char *why, size_t why_len)
{
    const char *p = data, *end = p + len;

    while (p < end && (*p == ' ' || *p == '\t' || *p == '\r' || *p == '\n'))
        p++;
    if (p < end && *p == '{')
        return holmes_host_parse_json(name, data, len, out, why, why_len);
    if (p < end && (*p == '<' || *p == '\xef')) /* or a byte order mark */
        return parse_xml(name, data, len, out, why, why_len);
    snprintf(why, why_len,
             "%s:1: %s: NCCL topology XML, hwloc XML or what `holmes-topo discover --json` writes "
             "is right",
             name, p == end ? "is empty" : "neither XML nor JSON");
    return -EINVAL;
}

static int load(int fd, char **data, size_t *len)
{
    size_t room = 1 << 16, n = 0;
    char *buf = malloc(room);
    ssize_t got;

    while (buf && (got = read(fd, buf + n, room - n)) != 0) {
        char *more;

        if (got < 0) {
            int rc = -errno;

            if (rc == -EINTR)
                continue;
            free(buf);
            return rc;
        }
        n += (size_t)got;
        if (n < room)
            continue;
        if (n > HOLMES_HOST_FILE_MAX) {
            free(buf);
            return -EFBIG;
        }
        more = realloc(buf, room *= 2);
        if (!more)
            free(buf);
        buf = more;
    }
    if (!buf)
        return -ENOMEM;
    *data = buf;
    *len = n;
    return 0;
}

int holmes_host_read(const char *path, struct holmes_host **out, char *why, size_t why_len)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC), rc = fd < 0 ? -errno : 0;
    size_t len = 0;
    char *data = NULL;

    if (rc == 0)
        rc = load(fd, &data, &len);
    if (fd >= 0)
        close(fd);
    if (rc != 0) {
        snprintf(why, why_len, "%s: %s", path, holmes_strerror(rc));
        return rc;
    }
    rc = holmes_host_parse(path, data, len, out, why, why_len);
    free(data);
    return rc;
}
