/* The table of forms, and the small things that several of them write. */
#include "emit.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "utf8.h"

const struct holmes_emit_form *const holmes_emit_forms[] = {
    &holmes_emit_megatron,
    &holmes_emit_torchrun,
    &holmes_emit_slurm,
    &holmes_emit_mpirun,
    &holmes_emit_holmes,
    &holmes_emit_fabrics,
    NULL,
};

const struct holmes_emit_form *holmes_emit_find(const char *name)
{
    for (int i = 0; holmes_emit_forms[i]; i++)
        if (strcmp(holmes_emit_forms[i]->name, name) == 0)
            return holmes_emit_forms[i];
    return NULL;
}

const struct holmes_emit_part *holmes_emit_find_part(const struct holmes_emit_form *form,
                                                     const char *name)
{
    for (const struct holmes_emit_part *p = form->parts; p->name; p++)
        if (strcmp(p->name, name) == 0)
            return p;
    return NULL;
}

/* A line of its own is what tells words apart in most of the files. */
static int check_line(const char *option, const char *text, char *why, size_t why_len)
{
    if (!text || (*text && !strpbrk(text, "\n\r\t")))
        return 0;
    snprintf(why, why_len, "%s: %s", option,
             *text ? "tabs and line ends do not belong in a name" : "nothing is given");
    return -EINVAL;
}

int holmes_emit_check(const struct holmes_emit_options *o, char *why, size_t why_len)
{
    size_t n = o->plugin ? strlen(o->plugin) : 0;

    if (o->plugin && o->plugin[0] != '/')
        return snprintf(why, why_len,
                        "--plugin \"%s\": an absolute path is right, as each rank has "
                        "its own working directory",
                        o->plugin),
               -EINVAL;
    if (o->plugin && strchr(o->plugin, ','))
        return snprintf(why, why_len, "--plugin \"%s\": NCCL takes a comma for the end of a name",
                        o->plugin),
               -EINVAL;
    if (n >= 255)
        return snprintf(why, why_len, "--plugin: %zu bytes; NCCL skips names of 255 and more", n),
               -EINVAL;
    if (o->master && !holmes_host_name_ok(o->master, strlen(o->master)) &&
        strspn(o->master, "0123456789abcdefABCDEF:.") != strlen(o->master))
        return snprintf(why, why_len, "--master \"%s\": a host's name or address is right",
                        o->master),
               -EINVAL;
    if (check_line("--plugin", o->plugin, why, why_len) != 0 ||
        check_line("--master", o->master, why, why_len) != 0 ||
        check_line("--program", o->program, why, why_len) != 0)
        return -EINVAL;
    return 0;
}

const char *holmes_emit_host(const struct holmes_plan_doc *doc, int node, char *buf)
{
    const struct holmes_plan_node *n = &doc->plan->nodes[node];

    return holmes_hostlist_name(&doc->cluster->groups[n->group].hosts, n->host, buf,
                                HOLMES_HOST_NAME_MAX);
}

int holmes_emit_hosts(const struct holmes_plan_doc *doc, struct holmes_hostlist *out)
{
    struct holmes_hostlist list = {0};
    char name[HOLMES_HOST_NAME_MAX];
    int rc = 0;

    for (int i = 0; rc == 0 && i < doc->plan->nnodes; i++)
        rc = holmes_hostlist_append(&list, holmes_emit_host(doc, i, name));
    if (rc != 0)
        holmes_hostlist_fini(&list);
    else
        *out = list;
    return rc;
}

const char *holmes_emit_master(const struct holmes_plan_doc *doc,
                               const struct holmes_emit_options *o, char *buf)
{
    return o->master ? o->master : holmes_emit_host(doc, 0, buf);
}

int holmes_emit_port(const struct holmes_emit_options *o)
{
    return o->port > 0 ? o->port : 29500;
}

const char *holmes_emit_program(const struct holmes_emit_options *o)
{
    return o->program ? o->program : "pretrain_gpt.py";
}

void holmes_emit_plain(const char *text, FILE *out)
{
    size_t n;

    for (; *text; text += n) {
        uint32_t c = holmes_utf8_decode(text, &n);

        if (c == HOLMES_UTF8_REPLACEMENT || holmes_utf8_is_control(c))
            fputc('?', out);
        else
            fwrite(text, 1, n, out);
    }
}

void holmes_emit_quote(const char *text, FILE *out)
{
    static const char safe[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"
                               "-_./:=,@%+";

    if (*text && strspn(text, safe) == strlen(text)) {
        fputs(text, out);
        return;
    }
    fputc('\'', out);
    for (; *text; text++) {
        if (*text == '\'')
            fputs("'\\''", out);
        else
            fputc(*text, out);
    }
    fputc('\'', out);
}

void holmes_emit_title(const struct holmes_plan_doc *doc, const char *what, FILE *out)
{
    const struct holmes_plan *p = doc->plan;

    fprintf(out, "# %s.\n# From a plan of holmes-topo: ", what);
    holmes_emit_plain(doc->request.model.name[0] ? doc->request.model.name : "a GPT", out);
    fprintf(out, ", %" PRId64 " rank%s (tensor %d, data %d, pipeline %d) on %d node%s\n", p->world,
            p->world == 1 ? "" : "s", p->tensor, p->data, p->pipeline, p->nnodes,
            p->nnodes == 1 ? "" : "s");
}

/* Open MPI's and DeepSpeed's form. */
int holmes_emit_hostfile(const struct holmes_plan_doc *doc, const struct holmes_emit_options *o,
                         FILE *out, char *why, size_t why_len)
{
    char name[HOLMES_HOST_NAME_MAX];

    (void)o, (void)why, (void)why_len;
    holmes_emit_title(doc, "Hosts in rank order", out);
    for (int i = 0; i < doc->plan->nnodes; i++)
        fprintf(out, "%s slots=%d\n", holmes_emit_host(doc, i, name), doc->plan->nodes[i].gpus);
    return 0;
}

/* Open MPI wants a slot list for each rank and binds the rank to those cores. */
int holmes_emit_rankfile(const struct holmes_plan_doc *doc, const struct holmes_emit_options *o,
                         FILE *out, char *why, size_t why_len)
{
    int cores = o->cores > 0 ? o->cores : 1;
    char name[HOLMES_HOST_NAME_MAX];

    (void)why, (void)why_len;
    holmes_emit_title(doc, "Rankfile of Open MPI", out);
    fprintf(out, "# Each rank is bound to %d core%s of its host (--cores)\n", cores,
            cores == 1 ? "" : "s");
    for (int i = 0; i < doc->plan->nnodes; i++) {
        const struct holmes_plan_node *n = &doc->plan->nodes[i];

        holmes_emit_host(doc, i, name);
        for (int k = 0; k < n->gpus; k++) {
            fprintf(out, "rank %" PRId64 "=%s slot=%d", n->first_rank + k, name, k * cores);
            if (cores > 1)
                fprintf(out, "-%d", (k + 1) * cores - 1);
            fputc('\n', out);
        }
    }
    return 0;
}
