"""The stdin of a warm process: a pipe whose only writer is the warden.

A node hands over whole messages in pieces. A message counts when its last piece has arrived: from then on it is written
to the end, whatever becomes of the node; one whose node died before is forgotten. So the child never sees half of one.
Messages have keys. One whose key was accepted before is not accepted again, only answered again: a node that does not
know what its predecessor, or a lost connection, has handed over sends it once more.

Not a FIFO that the node holds open: it takes a message after the child died, and the next child would execute it.
"""

from __future__ import annotations

import binascii
import fcntl
import os
import sys
from collections import deque

from providers.keeper.protocol import Frame, Kind

LIMIT_BYTES = 16 << 20
"""Accepted and not yet in the pipe, what has arrived of the next message included."""
KEYS_KEPT = 1024
KEYS_TOLD = 16
PIPE_LIMIT_BYTES = 1 << 20
"""No pipe of an ordinary user holds more; messages older than that were read."""

_FIONREAD = 0x541B

FULL, GONE, CLOSED = "full", "gone", "closed"
"""Why a message is refused: too much is queued, the child is gone, or the end of input was asked for before it."""


class _Message:
    def __init__(self, key: str) -> None:
        self.key = key
        self.pieces: deque[memoryview] = deque()
        self.size = self.written = 0

    def add(self, data: bytes) -> None:
        self.pieces.append(memoryview(data))
        self.size += len(data)


class StdinPipe:
    """The writing end, and what is to be written. ``descriptor`` is -1 once it is closed.

    ``unread`` are the keys of messages that were whole in the pipe when the child ended, and of which it had read
    nothing: they were never executed. ``taken`` are the last keys of messages that got whole into the pipe.
    """

    def __init__(self, descriptor: int) -> None:
        os.set_blocking(descriptor, False)
        self.descriptor = descriptor
        self._queue: deque[_Message] = deque()
        self._arriving: _Message | None = None
        self._accepted: dict[str, bool] = {}  # key: whether it is in the pipe
        self._is_ending = False
        self._written: deque[tuple[str, int]] = deque()
        self.unread: list[str] = []

    @property
    def taken(self) -> list[str]:
        return [key for key, is_written in self._accepted.items() if is_written][-KEYS_TOLD:]

    @property
    def is_waiting(self) -> bool:
        """Something is to be written as soon as the pipe takes it."""
        return bool(self._queue)

    def take(self, frame: Frame) -> list[Frame]:
        """Take the piece in *frame*, in order of its message; what to answer."""
        key, offset, data = _piece(frame)
        if key in self._accepted:
            return [_taken(key)] if offset == 0 and self._accepted[key] else []
        if offset == 0:
            self._arriving = _Message(key)  # a message that a lost connection left unfinished goes with this
        arriving = self._arriving
        if arriving is None or arriving.key != key or arriving.size != offset:
            return []  # the rest of a message that was refused
        if (reason := self._objection(len(data))) is not None:
            self._arriving = None
            return [_refused(key, reason, 0)]
        arriving.add(data)
        if frame.get("last"):
            self._accept(arriving)
        return []

    def write(self) -> list[Frame]:
        """Write as much as the pipe takes now; what to answer."""
        answers: list[Frame] = []
        try:
            while self._queue and self._write_some(self._queue[0]):
                message = self._queue.popleft()
                self._accepted[message.key] = True
                self._note_written(message)
                answers.append(_taken(message.key))
        except BlockingIOError:
            pass
        except OSError:
            answers += self.give_up()
        if self._is_ending and not self._queue:
            self._close()
        return answers

    def end(self) -> list[Frame]:
        """Close after what is queued; what to answer."""
        self._is_ending = True
        return self.write()

    def give_up(self) -> list[Frame]:
        """The child is gone: close, and refuse what is not whole in the pipe; ``written`` counts what the child has read."""
        left = self._unread_bytes()
        refused = []
        for message in self._queue:
            refused.append(_refused(message.key, GONE, max(0, message.written - left)))
            left -= min(left, message.written)
            del self._accepted[message.key]
        self._queue.clear()
        self._close()
        for key, size in reversed(self._written):
            if size > left:
                break
            self.unread.append(key)
            left -= size
        self._written.clear()
        return refused

    def _unread_bytes(self) -> int:
        """What is in the pipe, and nobody will read."""
        if self.descriptor < 0:
            return 0
        try:
            return int.from_bytes(fcntl.ioctl(self.descriptor, _FIONREAD, bytes(4)), sys.byteorder)
        except OSError:
            return 0

    def _note_written(self, message: _Message) -> None:
        self._written.append((message.key, message.size))
        while sum(size for _, size in self._written) - self._written[0][1] > PIPE_LIMIT_BYTES:
            self._written.popleft()

    def _objection(self, more_bytes: int) -> str | None:
        if self._is_ending:
            return CLOSED
        if self.descriptor < 0:
            return GONE
        arriving = 0 if self._arriving is None else self._arriving.size
        queued = sum(message.size - message.written for message in self._queue)
        return FULL if queued + arriving + more_bytes > LIMIT_BYTES else None

    def _accept(self, message: _Message) -> None:
        self._arriving = None
        self._queue.append(message)
        self._accepted[message.key] = False
        while len(self._accepted) > KEYS_KEPT:
            del self._accepted[next(iter(self._accepted))]

    def _write_some(self, message: _Message) -> bool:
        """Write *message* until the pipe takes no more, which raises, or it is whole."""
        while message.pieces:
            piece = message.pieces.popleft()
            try:
                count = os.write(self.descriptor, piece) if piece else 0
            except BlockingIOError:
                message.pieces.appendleft(piece)
                raise
            message.written += count
            if count < len(piece):
                message.pieces.appendleft(piece[count:])
        return True

    def _close(self) -> None:
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1


def _piece(frame: Frame) -> tuple[str, int, bytes]:
    key, offset, data = frame.get("key"), frame.get("offset"), frame.get("data")
    if not isinstance(key, str) or not isinstance(offset, int) or not isinstance(data, str):
        return "", -1, b""
    try:
        return key, offset, binascii.a2b_base64(data)
    except binascii.Error:
        return key, -1, b""


def _taken(key: str) -> Frame:
    return {"kind": Kind.TAKEN, "key": key}


def _refused(key: str, reason: str, written: int) -> Frame:
    return {"kind": Kind.REFUSED, "key": key, "reason": reason, "written": written}
