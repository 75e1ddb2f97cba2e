/* Cluster files: libcyaml loads and saves them, yaml_doc.h checks them before and finds the lines
 * of faults. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cluster.h"
#include "cluster/cluster_file.h"
#include "cluster/cluster_yaml.h"
#include "cluster/text.h"
#include "cluster/yaml_schema.h"
#include "file.h"

#define FILE_SIZE_MAX (256u << 20)

static const cyaml_config_t cyaml = {
    .log_level = CYAML_LOG_ERROR, /* and nobody to log to: the check says more */
    .mem_fn = cyaml_mem,
    .flags = CYAML_CFG_STYLE_BLOCK,
};

/* A newer file may have keys that this program does not know: the version is told first. */
static int version_check(const struct holmes_yaml_doc *doc, char *why, size_t why_len)
{
    const char *text = holmes_yaml_doc_text(doc, "holmes-cluster");
    int version;

    if (!text)
        return holmes_yaml_doc_fail(doc, "", why, why_len,
                                    "no cluster file: the key \"holmes-cluster: %d\" is missing",
                                    HOLMES_CLUSTER_VERSION);
    if (holmes_text_whole(text, 0, 1000000, &version) != 0 || version != HOLMES_CLUSTER_VERSION)
        return holmes_yaml_doc_fail(doc, "holmes-cluster", why, why_len,
                                    "version %.40s of the format; this program reads version %d",
                                    text, HOLMES_CLUSTER_VERSION);
    return 0;
}

static int cyaml_errno(cyaml_err_t err)
{
    return err == CYAML_ERR_OOM ? -ENOMEM : -EINVAL;
}

int holmes_cluster_parse(const char *name, const void *data, size_t len,
                         struct holmes_cluster **out, char *why, size_t why_len)
{
    struct holmes_yaml_doc *doc;
    struct file_cluster *file = NULL;
    int rc = holmes_yaml_doc_parse(name, data, len, &doc, why, why_len);

    if (rc != 0)
        return rc;
    rc = version_check(doc, why, why_len);
    if (rc == 0)
        rc = holmes_yaml_schema_check(doc, &holmes_cluster_schema, why, why_len);
    if (rc == 0) {
        cyaml_err_t err = cyaml_load_data(data, len, &cyaml, &holmes_cluster_schema,
                                          (cyaml_data_t **)&file, NULL);

        rc = err == CYAML_OK ? 0 : cyaml_errno(err);
        if (rc == -EINVAL) /* what the check let pass and libcyaml does not: no line is known */
            snprintf(why, why_len, "%s: %s", name, cyaml_strerror(err));
    }
    if (rc == 0)
        rc = holmes_cluster_from_file(doc, file, out, why, why_len);
    if (rc == -ENOMEM)
        snprintf(why, why_len, "%s: not enough memory", name);
    cyaml_free(&cyaml, &holmes_cluster_schema, file, 0);
    holmes_yaml_doc_destroy(doc);
    return rc;
}

int holmes_cluster_read(const char *path, struct holmes_cluster **out, char *why, size_t why_len)
{
    char *text;
    size_t len;
    int rc = holmes_file_read(path, FILE_SIZE_MAX, &text, &len);

    if (rc != 0) {
        snprintf(why, why_len, "%s: %s", path, holmes_file_strerror(rc));
        return rc;
    }
    rc = holmes_cluster_parse(strcmp(path, "-") == 0 ? "standard input" : path, text, len, out, why,
                              why_len);
    free(text);
    return rc;
}

int holmes_cluster_write(const struct holmes_cluster *c, FILE *out)
{
    struct file_cluster *file;
    char *text = NULL;
    size_t len = 0;
    int rc = holmes_cluster_to_file(c, &file);

    if (rc != 0)
        return rc;

    cyaml_err_t err = cyaml_save_data(&text, &len, &cyaml, &holmes_cluster_schema, file, 0);

    if (err != CYAML_OK)
        rc = cyaml_errno(err);
    else if (fwrite(text, 1, len, out) != len)
        rc = -EIO;
    cyaml.mem_fn(NULL, text, 0);
    holmes_cluster_file_free(file);
    return rc;
}
