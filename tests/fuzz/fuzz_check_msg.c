/* Lines of a check agent: what is taken has texts that end and show nothing harmful, and numbers
 * that can be reckoned with. */
#include <math.h>
#include <string.h>

#include "topology/tool/check_msg.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void look(const char *text, size_t cap)
{
    size_t len = strnlen(text, cap);

    if (len == cap)
        __builtin_trap();
    for (size_t i = 0; i < len; i++)
        if ((unsigned char)text[i] < ' ' || text[i] == 0x7f)
            __builtin_trap();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct holmes_check_command c;
    struct holmes_check_msg m;
    char why[256] = "", line[600];

    if (holmes_check_msg_parse((const char *)data, size, &m, why, sizeof why) != 0) {
        if (!why[0])
            __builtin_trap();
    } else {
        look(m.version, sizeof m.version);
        look(m.wire, sizeof m.wire);
        look(m.reason, sizeof m.reason);
        look(m.local, sizeof m.local);
        look(m.peer, sizeof m.peer);
        if (m.nnics < 0 || m.nnics > HOLMES_CHECK_NICS_MAX || m.pair < -1 || !(m.rtt_us >= 0) ||
            !(m.gbps >= 0) || !isfinite(m.rtt_us) || !isfinite(m.gbps))
            __builtin_trap();
        for (int i = 0; i < m.nnics; i++)
            look(m.nics[i].name, sizeof m.nics[i].name);
    }
    if (size < sizeof line) {
        memcpy(line, data, size);
        line[size] = '\0';
        if (holmes_check_command_parse(line, &c) == 0 && (c.run_ms < 0 || c.limit_ms < 0))
            __builtin_trap();
    }
    return 0;
}
