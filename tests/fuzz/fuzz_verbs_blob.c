/* The blob of a verbs lane, from a peer that may be anyone: what is taken must be what it encodes
 * to, and give a path or a refusal. */
#include <string.h>

#include "transport/verbs/verbs.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_taken(const struct verbs_end *e, const uint8_t *data)
{
    struct ibv_qp_attr attr = {0};
    uint8_t again[VERBS_BLOB_LEN];
    char text[VERBS_END_TEXT];

    holmes_verbs_blob_encode(e, again);
    if (memcmp(again, data, sizeof again) != 0)
        __builtin_trap();
    if (holmes_verbs_path(e, e, 1, 0, 0, 0, &attr) != 0 || attr.path_mtu != (enum ibv_mtu)e->mtu)
        __builtin_trap();
    if (strlen(holmes_verbs_end_text(e, text)) >= sizeof text)
        __builtin_trap();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const uint8_t head[] = {'H', 'V', 'R', 'B', VERBS_WIRE_VERSION};
    uint8_t close_to_right[VERBS_BLOB_LEN] = {0};
    struct verbs_end e;

    if (holmes_verbs_blob_decode(data, size, &e) == 0) {
        if (size != VERBS_BLOB_LEN)
            __builtin_trap();
        check_taken(&e, data);
    }
    /* Past the magic, with few other bits set, so that the fields are reached. */
    for (size_t i = 0; i < sizeof close_to_right && i < size; i++)
        close_to_right[i] = data[i] & 0x07;
    memcpy(close_to_right, head, sizeof head);
    memset(close_to_right + 18, 0, 2);
    close_to_right[8] = close_to_right[12] = 0;
    if (holmes_verbs_blob_decode(close_to_right, sizeof close_to_right, &e) == 0)
        check_taken(&e, close_to_right);
    return 0;
}
