"""A warden's ear for nodes: the link that its spawn came with, and whoever connects to ``ctl`` later.

One node is served at a time, the newest: a hello carries the generation of the node's data-directory lock, an older one
is told so and closed, an equal or newer one takes over. A node that does not read what it is told is dropped; it finds
everything again when it connects anew, because the answer to a hello is all that has happened.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable

from providers.keeper import run_directory
from providers.keeper.protocol import PROTOCOL, SPOKEN, Frame, FrameReader, Kind, ProtocolError, encode

STRANGERS_LIMIT = 8
# connections that have not said hello; the socket is the operator's own (0600), so this is against accidents only

_READ_BYTES = 64 << 10


class _Connection:
    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.reader = FrameReader()

    def tell(self, frame: Frame) -> bool:
        """False when the peer is gone or does not read: frames are never half sent."""
        data = encode(frame)
        try:
            return self.sock.send(data, socket.MSG_NOSIGNAL) == len(data)
        except OSError:
            return False


def listen() -> socket.socket:
    """The listening ``ctl`` in the working directory. Only the holder of the lock may call it."""
    run_directory.forget(run_directory.CTL)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    mask = os.umask(0o177)
    try:
        listener.bind(run_directory.CTL)
    finally:
        os.umask(mask)
    listener.listen(STRANGERS_LIMIT)
    return listener


class NodeLinks:
    """All connections of one warden. *recall* gives the frames that a newly greeted node is told."""

    def __init__(
        self, listener: socket.socket, first: socket.socket, generation: int, recall: Callable[[], list[Frame]]
    ) -> None:
        first.setblocking(False)
        self._listener = listener
        self._node: _Connection | None = _Connection(first)
        self._strangers: list[_Connection] = []
        self._generation = generation
        self._recall = recall

    def descriptors(self) -> list[int]:
        """What to poll for reading."""
        return [self._listener.fileno(), *(connection.sock.fileno() for connection in self._connections())]

    def receive(self, descriptor: int) -> list[Frame]:
        """Serve a readable *descriptor*; the frames of the greeted node, hellos already answered."""
        if descriptor == self._listener.fileno():
            self._accept()
            return []
        for connection in self._connections():
            if connection.sock.fileno() == descriptor:
                return self._read(connection)
        return []

    def tell(self, frame: Frame) -> None:
        """Tell the node, if one listens."""
        if self._node is not None and not self._node.tell(frame):
            self._drop(self._node)

    def close(self) -> None:
        for connection in self._connections():
            connection.sock.close()
        self._listener.close()

    def _connections(self) -> list[_Connection]:
        return [*self._strangers, self._node] if self._node is not None else list(self._strangers)

    def _accept(self) -> None:
        try:
            sock, _ = self._listener.accept()
        except OSError:
            return
        sock.setblocking(False)
        self._strangers.append(_Connection(sock))
        if len(self._strangers) > STRANGERS_LIMIT:
            self._drop(self._strangers[0])

    def _read(self, connection: _Connection) -> list[Frame]:
        try:
            data = connection.sock.recv(_READ_BYTES)
            frames = connection.reader.feed(data)
        except (BlockingIOError, ConnectionResetError):
            # a node killed with unread bytes resets the connection: told once, and then what it had sent can be read
            return []
        except (OSError, ProtocolError):
            self._drop(connection)
            return []
        if not data:
            self._drop(connection)
        return [frame for frame in frames if self._is_for_warden(connection, frame)]

    def _is_for_warden(self, connection: _Connection, frame: Frame) -> bool:
        if frame["kind"] == Kind.HELLO:
            self._greet(connection, frame)
            return False
        return connection is self._node

    def _greet(self, connection: _Connection, hello: Frame) -> None:
        generation = hello.get("generation")
        if hello.get("protocol") not in SPOKEN or not isinstance(generation, int) or generation < self._generation:
            connection.tell({"kind": Kind.FENCED, "protocol": PROTOCOL, "generation": self._generation})
            self._drop(connection)
            return
        self._generation = generation
        if self._node is not None and self._node is not connection:
            self._node.tell({"kind": Kind.FENCED, "protocol": PROTOCOL, "generation": generation})
            self._drop(self._node)
        if connection in self._strangers:
            self._strangers.remove(connection)
        self._node = connection
        for frame in ({"kind": Kind.HELLO, "protocol": PROTOCOL}, *self._recall()):
            self.tell(frame)

    def _drop(self, connection: _Connection) -> None:
        connection.sock.close()
        if connection is self._node:
            self._node = None
        elif connection in self._strangers:
            self._strangers.remove(connection)
