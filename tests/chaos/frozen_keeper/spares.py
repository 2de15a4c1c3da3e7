"""Handing an order to a warden that was forked ahead of it, over the socket pair between the two.

A spare lives only as long as its keeper: it sees the end of the pair and ends. What it was given whole, it executes,
whatever has become of the keeper meanwhile.
"""

from __future__ import annotations

import socket
from collections.abc import Sequence

from providers.keeper.protocol import SPAWN_DESCRIPTORS, Frame, FrameReader, SpawnOrder, encode

GIVE_TIMEOUT_S = 1.0
_READ_BYTES = 64 << 10


def give(sock: socket.socket, frame: Frame, descriptors: Sequence[int]) -> bool:
    """Give a spawn *frame* to the spare behind *sock*; False when it does not take the whole of it, and so does nothing."""
    data = memoryview(encode(frame))
    sock.settimeout(GIVE_TIMEOUT_S)
    try:
        sent = socket.send_fds(sock, [data], list(descriptors), socket.MSG_NOSIGNAL)
        if sent < len(data):  # sending nothing to a spare that has taken all, and hung up, would look like a refusal
            sock.sendall(data[sent:], socket.MSG_NOSIGNAL)
    except OSError:
        return False
    return True


def take(sock: socket.socket) -> tuple[SpawnOrder, list[int]] | None:
    """In the spare: wait for an order and its descriptors; None when the keeper ends first."""
    reader, descriptors = FrameReader(), list[int]()
    with sock:
        while True:
            data, more, _, _ = socket.recv_fds(sock, _READ_BYTES, SPAWN_DESCRIPTORS, socket.MSG_CMSG_CLOEXEC)
            descriptors += more
            if not data:
                return None
            for frame in reader.feed(data):
                return SpawnOrder.from_frame(frame), descriptors
