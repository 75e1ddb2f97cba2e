/* A scripted peer on a raw socket, for what a true peer never does. */
#ifndef HOLMES_TEST_FAKE_PEER_H
#define HOLMES_TEST_FAKE_PEER_H

#include "transport/proto.h"

/* Blocking socket connected to the first address of the handle. */
int fake_peer_dial(const void *handle);
void fake_peer_send(int fd, const void *bytes, size_t len);
void fake_peer_frame(int fd, uint16_t version, uint16_t type, uint32_t length, const void *payload,
                     size_t len);
/* Reads a whole frame's payload of the given type; asserts that it comes. */
void fake_peer_expect(int fd, uint16_t type, void *payload, size_t len);
/* True when the other end closed or reset within `timeout_ms`. */
bool fake_peer_closed(int fd, int timeout_ms);

#endif
