#!/usr/bin/env python3
"""How fast one plain TCP stream is: `pathspeed.py recv PORT` on one host prints what it received,
in Mbit/s; `pathspeed.py send ADDRESS PORT` on another sends for a second. Only there to show what
the demo's links carry before Holmes uses them."""
import socket
import sys
import time

DEADLINE_S = 10


def receive(port):
    with socket.create_server(("", port)) as server:
        server.settimeout(DEADLINE_S)
        stream, _ = server.accept()
    stream.settimeout(DEADLINE_S)
    total = len(stream.recv(1 << 20))
    first, start = total, time.monotonic()
    while data := stream.recv(1 << 20):
        total += len(data)
    print(f"{(total - first) * 8e-6 / (time.monotonic() - start):.0f}")


def send(address, port):
    deadline = time.monotonic() + DEADLINE_S
    while True:
        try:
            stream = socket.create_connection((address, port), timeout=DEADLINE_S)
            break
        except ConnectionRefusedError:  # the receiver is still starting
            if time.monotonic() > deadline:
                raise
            time.sleep(0.02)
    end = time.monotonic() + 1
    block = bytes(1 << 16)
    while time.monotonic() < end:
        stream.sendall(block)
    stream.close()


if sys.argv[1:2] == ["recv"] and len(sys.argv) == 3:
    receive(int(sys.argv[2]))
elif sys.argv[1:2] == ["send"] and len(sys.argv) == 4:
    send(sys.argv[2], int(sys.argv[3]))
else:
    sys.exit(__doc__)
