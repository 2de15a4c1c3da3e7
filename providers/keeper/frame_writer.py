"""Frames on their way to a peer that may read slowly: none is lost, torn or overtaken while the connection stands."""

from __future__ import annotations

import asyncio
import socket
from collections import deque


class FrameWriter:
    """Writes to one non-blocking socket on the running loop. What it holds is bounded by who uses it.

    An error ends nothing here: whoever reads the socket sees its end.
    """

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._loop = asyncio.get_running_loop()
        self._held: deque[memoryview] = deque()

    def send(self, data: bytes) -> None:
        """Send *data* after everything before it."""
        self._held.append(memoryview(data))
        if len(self._held) == 1:
            self._flush()
            if self._held:
                self._loop.add_writer(self._sock.fileno(), self._on_writable)

    def close(self) -> None:
        """Forget what is held; the socket stays the caller's."""
        if self._held:
            self._loop.remove_writer(self._sock.fileno())
        self._held.clear()

    def _on_writable(self) -> None:
        self._flush()
        if not self._held:
            self._loop.remove_writer(self._sock.fileno())

    def _flush(self) -> None:
        while self._held:
            try:
                sent = self._sock.send(self._held[0], socket.MSG_NOSIGNAL)
            except BlockingIOError:
                return
            except OSError:
                self._held.clear()
                return
            if sent == len(self._held[0]):
                self._held.popleft()
            else:
                self._held[0] = self._held[0][sent:]
