/* Lines between check and its agents, both ways and on both sides, so that they cannot differ. */
#include "tool/check_msg.h"

#include <errno.h>
#include <jansson.h>
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "utf8.h"

/* The word under "is". */
static const char *const kinds[] = {
    [HOLMES_CHECK_HELLO] = "hello",   [HOLMES_CHECK_HANDLE_IS] = "handle",
    [HOLMES_CHECK_UP] = "up",         [HOLMES_CHECK_RTT] = "round trip",
    [HOLMES_CHECK_RATE] = "rate",     [HOLMES_CHECK_DONE] = "done",
    [HOLMES_CHECK_FAILED] = "failed",
};
#define NKINDS (sizeof kinds / sizeof kinds[0])

/* --- hex -------------------------------------------------------------------------------------- */

static int hex_digit(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

static int hex_read(const char *s, uint8_t out[HOLMES_CHECK_HANDLE])
{
    if (strlen(s) != (size_t)2 * HOLMES_CHECK_HANDLE)
        return -EINVAL;
    for (int i = 0; i < HOLMES_CHECK_HANDLE; i++) {
        int high = hex_digit(s[2 * i]), low = hex_digit(s[2 * i + 1]);

        if (high < 0 || low < 0)
            return -EINVAL;
        out[i] = (uint8_t)(high * 16 + low);
    }
    return 0;
}

static void hex_write(const uint8_t bytes[HOLMES_CHECK_HANDLE],
                      char out[2 * HOLMES_CHECK_HANDLE + 1])
{
    for (int i = 0; i < HOLMES_CHECK_HANDLE; i++)
        snprintf(out + (ptrdiff_t)2 * i, 3, "%02x", bytes[i]);
}

/* --- text ------------------------------------------------------------------------------------- */

void holmes_check_clean(char *text)
{
    char *to = text;
    size_t n;

    for (const char *from = text; *from; from += n) {
        uint32_t c = holmes_utf8_decode(from, &n);

        if (holmes_utf8_is_control(c) || c == HOLMES_UTF8_REPLACEMENT) {
            *to++ = '?';
        } else {
            memmove(to, from, n);
            to += n;
        }
    }
    *to = '\0';
}

/* --- messages of the agent -------------------------------------------------------------------- */

static bool read_text(const json_t *o, const char *key, char *out, size_t cap)
{
    const char *s = json_string_value(json_object_get(o, key));

    if (!s)
        return false;
    snprintf(out, cap, "%s", s);
    holmes_check_clean(out);
    return true;
}

static bool read_number(const json_t *o, const char *key, double *out)
{
    const json_t *v = json_object_get(o, key);
    double number = json_number_value(v);

    if (!json_is_number(v) || !isfinite(number) || number < 0)
        return false;
    *out = number;
    return true;
}

static const char *read_nics(const json_t *nics, struct holmes_check_msg *m)
{
    if (!json_is_array(nics) || json_array_size(nics) > HOLMES_CHECK_NICS_MAX)
        return "nics";
    m->nnics = (int)json_array_size(nics);
    for (int i = 0; i < m->nnics; i++) {
        const json_t *nic = json_array_get(nics, (size_t)i);
        const json_t *rdma = json_object_get(nic, "rdma");

        if (!read_text(nic, "name", m->nics[i].name, sizeof m->nics[i].name))
            return "nics: name";
        if (!read_number(nic, "gbps", &m->nics[i].gbps))
            return "nics: gbps";
        if (!json_is_boolean(rdma))
            return "nics: rdma";
        m->nics[i].rdma = json_is_true(rdma);
    }
    return NULL;
}

/* The field at fault, or NULL. */
static const char *read_fields(const json_t *o, struct holmes_check_msg *m)
{
    double protocol = 0;

    switch (m->kind) {
    case HOLMES_CHECK_HELLO:
        if (!read_number(o, "protocol", &protocol) || protocol != HOLMES_CHECK_PROTOCOL)
            return "protocol";
        if (!read_text(o, "version", m->version, sizeof m->version))
            return "version";
        return read_nics(json_object_get(o, "nics"), m);
    case HOLMES_CHECK_HANDLE_IS: {
        const char *hex = json_string_value(json_object_get(o, "handle"));

        return hex && hex_read(hex, m->handle) == 0 ? NULL : "handle";
    }
    case HOLMES_CHECK_UP:
        if (!read_text(o, "wire", m->wire, sizeof m->wire) || !m->wire[0])
            return "wire";
        if (!read_text(o, "reason", m->reason, sizeof m->reason))
            return "reason";
        if (!read_text(o, "local", m->local, sizeof m->local))
            return "local";
        return read_text(o, "peer", m->peer, sizeof m->peer) ? NULL : "peer";
    case HOLMES_CHECK_RTT:
        return read_number(o, "us", &m->rtt_us) ? NULL : "us";
    case HOLMES_CHECK_RATE:
        return read_number(o, "gbps", &m->gbps) ? NULL : "gbps";
    case HOLMES_CHECK_FAILED:
        return read_text(o, "reason", m->reason, sizeof m->reason) ? NULL : "reason";
    case HOLMES_CHECK_DONE:
        break;
    }
    return NULL;
}

static const char *read_message(const json_t *o, struct holmes_check_msg *m)
{
    const char *is = json_string_value(json_object_get(o, "is"));
    double pair = -1;
    size_t kind = 0;

    while (is && kind < NKINDS && strcmp(is, kinds[kind]) != 0)
        kind++;
    if (!is || kind == NKINDS)
        return "is";
    m->kind = (enum holmes_check_kind)kind;
    m->pair = -1;
    if (json_object_get(o, "pair")) {
        if (!read_number(o, "pair", &pair) || pair > INT_MAX || pair != floor(pair))
            return "pair";
        m->pair = (int)pair;
    } else if (m->kind != HOLMES_CHECK_HELLO && m->kind != HOLMES_CHECK_FAILED) {
        return "pair";
    }
    return read_fields(o, m);
}

int holmes_check_msg_parse(const char *line, size_t len, struct holmes_check_msg *out, char *why,
                           size_t why_len)
{
    struct holmes_check_msg m = {.pair = -1};
    const char *field;
    json_error_t e;
    json_t *o;

    if (len > HOLMES_CHECK_LINE_MAX) {
        snprintf(why, why_len, "a line of %zu bytes", len);
        return -EINVAL;
    }
    o = json_loadb(line, len, JSON_REJECT_DUPLICATES, &e);
    if (!json_is_object(o)) {
        snprintf(why, why_len, "no JSON object: %s", o ? "another value" : e.text);
        json_decref(o);
        return -EINVAL;
    }
    field = read_message(o, &m);
    json_decref(o);
    if (field) {
        snprintf(why, why_len, "field \"%s\" is missing or not as it should be", field);
        return -EINVAL;
    }
    *out = m;
    return 0;
}

static json_t *write_nics(const struct holmes_check_msg *m)
{
    json_t *nics = json_array();

    for (int i = 0; i < m->nnics; i++)
        json_array_append_new(nics, json_pack("{s:s, s:f, s:b}", "name", m->nics[i].name, "gbps",
                                              m->nics[i].gbps, "rdma", m->nics[i].rdma));
    return nics;
}

int holmes_check_msg_write(const struct holmes_check_msg *m, FILE *out)
{
    char hex[2 * HOLMES_CHECK_HANDLE + 1];
    json_t *o = json_pack("{s:s}", "is", kinds[m->kind]), *more = NULL;
    int rc = -ENOMEM;

    switch (m->kind) {
    case HOLMES_CHECK_HELLO:
        more = json_pack("{s:i, s:s, s:o}", "protocol", HOLMES_CHECK_PROTOCOL, "version",
                         m->version, "nics", write_nics(m));
        break;
    case HOLMES_CHECK_HANDLE_IS:
        hex_write(m->handle, hex);
        more = json_pack("{s:s}", "handle", hex);
        break;
    case HOLMES_CHECK_UP:
        more = json_pack("{s:s, s:s, s:s, s:s}", "wire", m->wire, "reason", m->reason, "local",
                         m->local, "peer", m->peer);
        break;
    case HOLMES_CHECK_RTT:
        more = json_pack("{s:f}", "us", m->rtt_us);
        break;
    case HOLMES_CHECK_RATE:
        more = json_pack("{s:f}", "gbps", m->gbps);
        break;
    case HOLMES_CHECK_FAILED:
        more = json_pack("{s:s}", "reason", m->reason);
        break;
    case HOLMES_CHECK_DONE:
        more = json_object();
        break;
    }
    if (m->pair >= 0)
        json_object_set_new(o, "pair", json_integer(m->pair));
    if (json_object_update(o, more) == 0 && json_dumpf(o, out, JSON_COMPACT) == 0)
        rc = fputc('\n', out) == EOF || fflush(out) != 0 ? -EIO : 0;
    json_decref(o);
    json_decref(more);
    return rc;
}

/* --- commands --------------------------------------------------------------------------------- */

static const char *const verbs[] = {
    [HOLMES_CHECK_LISTEN] = "listen", [HOLMES_CHECK_CONNECT] = "connect",
    [HOLMES_CHECK_PING] = "ping",     [HOLMES_CHECK_PONG] = "pong",
    [HOLMES_CHECK_SEND] = "send",     [HOLMES_CHECK_RECV] = "recv",
    [HOLMES_CHECK_DROP] = "drop",
};
#define NVERBS (sizeof verbs / sizeof verbs[0])

static bool take_word(const char **p, char *out, size_t cap)
{
    size_t len = strcspn(*p, " ");

    if (len == 0 || len >= cap)
        return false;
    memcpy(out, *p, len);
    out[len] = '\0';
    *p += len;
    *p += **p == ' ';
    return true;
}

static bool take_int(const char **p, int *out)
{
    char word[16], *end;
    long v;

    if (!take_word(p, word, sizeof word) || word[0] < '0' || word[0] > '9')
        return false;
    v = strtol(word, &end, 10);
    if (*end || v > INT_MAX)
        return false;
    *out = (int)v;
    return true;
}

int holmes_check_command_parse(const char *line, struct holmes_check_command *out)
{
    struct holmes_check_command c = {.pair = -1};
    char word[2 * HOLMES_CHECK_HANDLE + 1];
    size_t verb = 0;
    bool ok;

    if (!take_word(&line, word, sizeof word))
        return -EINVAL;
    while (verb < NVERBS && strcmp(word, verbs[verb]) != 0)
        verb++;
    if (verb == NVERBS)
        return -EINVAL;
    c.verb = (enum holmes_check_verb)verb;
    ok = c.verb == HOLMES_CHECK_DROP || take_int(&line, &c.pair);
    if (ok && c.verb == HOLMES_CHECK_LISTEN)
        ok = take_int(&line, &c.nic);
    if (ok && (c.verb == HOLMES_CHECK_SEND || c.verb == HOLMES_CHECK_RECV))
        ok = take_int(&line, &c.run_ms);
    if (ok && c.verb != HOLMES_CHECK_DROP && c.verb != HOLMES_CHECK_LISTEN)
        ok = take_int(&line, &c.limit_ms);
    if (ok && c.verb == HOLMES_CHECK_CONNECT)
        ok = take_word(&line, word, sizeof word) && hex_read(word, c.handle) == 0;
    if (!ok || *line)
        return -EINVAL;
    *out = c;
    return 0;
}

void holmes_check_command_write(const struct holmes_check_command *c, char *buf, size_t len)
{
    char hex[2 * HOLMES_CHECK_HANDLE + 1];

    switch (c->verb) {
    case HOLMES_CHECK_LISTEN:
        snprintf(buf, len, "listen %d %d", c->pair, c->nic);
        break;
    case HOLMES_CHECK_CONNECT:
        hex_write(c->handle, hex);
        snprintf(buf, len, "connect %d %d %s", c->pair, c->limit_ms, hex);
        break;
    case HOLMES_CHECK_PING:
    case HOLMES_CHECK_PONG:
        snprintf(buf, len, "%s %d %d", verbs[c->verb], c->pair, c->limit_ms);
        break;
    case HOLMES_CHECK_SEND:
    case HOLMES_CHECK_RECV:
        snprintf(buf, len, "%s %d %d %d", verbs[c->verb], c->pair, c->run_ms, c->limit_ms);
        break;
    case HOLMES_CHECK_DROP:
        snprintf(buf, len, "drop");
        break;
    }
}
