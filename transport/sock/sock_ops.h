/* The slots of holmes_wire_sock, by file. */
#ifndef HOLMES_SOCK_OPS_H
#define HOLMES_SOCK_OPS_H

#include "sock.h"

/* sock_mr.c */
int holmes_sock_mr_reg(struct wire_nic *wn, void *addr, size_t len, struct wire_mr *out);
void holmes_sock_mr_dereg(struct wire_nic *wn, struct wire_mr *mr);
/* sock_rise.c */
void holmes_sock_nic_progress(struct wire_nic *wn);
/* sock_lane.c */
int holmes_sock_lane_create(struct wire_nic *wn, struct wire_cq *cq, enum wire_role role,
                            const struct wire_lane_params *params, void *blob, size_t *blob_len,
                            struct wire_lane **out);
int holmes_sock_lane_connect(struct wire_lane *lane, const void *blob, size_t blob_len);
void holmes_sock_lane_via(struct wire_lane *lane, const struct holmes_addr *peer);
int holmes_sock_lane_poll(struct wire_lane *lane);
int holmes_sock_lane_streams(const struct wire_lane *lane);
void holmes_sock_lane_linger(struct wire_lane *lane);
bool holmes_sock_lane_settled(struct wire_lane *lane);
void holmes_sock_lane_close(struct wire_lane *lane);
/* sock_data.c */
int holmes_sock_cq_open(struct wire_nic *wn, struct wire_cq **out);
void holmes_sock_cq_close(struct wire_cq *cq);
int holmes_sock_cq_poll(struct wire_cq *cq, struct wire_event *events, int max);
bool holmes_sock_cq_push(struct wire_cq *cq);
bool holmes_sock_cq_awaited(const struct wire_cq *cq);
/* sock_send.c */
int holmes_sock_lane_post(struct wire_lane *lane, const struct wire_write *w);

#endif
