"""The node's side of a warm process's stdin: messages handed to the warden, and what became of them.

A message is under way until the warden has answered it. When the link to a living warden has to be made anew, what is
under way is sent again: the warden knows by its key whether it has it.
"""

from __future__ import annotations

import asyncio
import binascii
from collections.abc import Iterator
from enum import StrEnum
from typing import NamedTuple

from providers.keeper import stdin_pipe
from providers.keeper.protocol import Frame, Kind

PIECE_BYTES = 256 << 10


class InputRefusal(StrEnum):
    """Why a message did not get into the process whole."""

    FULL = stdin_pipe.FULL
    """16 MiB are under way already, or the message alone is larger. Try again when others are through."""
    GONE = stdin_pipe.GONE
    """The process has ended, or closed its stdin."""
    CLOSED = stdin_pipe.CLOSED
    """The end of input was sent before."""
    LOST = "lost"
    """The warden is gone, or serves a newer node: nobody can tell what became of the message."""


class InputRefused(Exception):
    """A message was not written whole. ``written`` bytes of it are in the pipe; None when nobody knows."""

    def __init__(self, refusal: InputRefusal, written: int | None = 0) -> None:
        super().__init__(f"input refused: {refusal.value} ({'unknown' if written is None else written} bytes written)")
        self.refusal, self.written = refusal, written


class _UnderWay(NamedTuple):
    data: bytes
    answer: asyncio.Future[None]


class Inputs:
    """The messages of one warden link that are under way."""

    def __init__(self) -> None:
        self._under_way: dict[str, _UnderWay] = {}

    def add(self, key: str, data: bytes) -> asyncio.Future[None]:
        """Take *data* under way; the same key again is the same message.

        Raises:
            InputRefused: too much is under way.
        """
        if (found := self._under_way.get(key)) is not None:
            return found.answer
        if sum(len(each.data) for each in self._under_way.values()) + len(data) > stdin_pipe.LIMIT_BYTES:
            raise InputRefused(InputRefusal.FULL)
        answer: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        answer.add_done_callback(_retrieve)
        self._under_way[key] = _UnderWay(data, answer)
        return answer

    def frames(self, key: str | None = None) -> Iterator[Frame]:
        """The frames of the message *key*, or of all that is under way."""
        for each in list(self._under_way) if key is None else [key]:
            yield from _pieces(each, self._under_way[each].data)

    def apply(self, frame: Frame) -> None:
        """Take the warden's answer."""
        if (found := self._under_way.pop(str(frame.get("key")), None)) is None or found.answer.done():
            return
        if frame["kind"] == Kind.TAKEN:
            found.answer.set_result(None)
        else:
            found.answer.set_exception(InputRefused(InputRefusal(frame["reason"]), int(frame["written"])))

    def lose(self) -> None:
        """No answer will come any more."""
        for each in self._under_way.values():
            if not each.answer.done():
                each.answer.set_exception(InputRefused(InputRefusal.LOST, None))
        self._under_way.clear()


def _pieces(key: str, data: bytes) -> Iterator[Frame]:
    view = memoryview(data)
    for offset in range(0, max(len(data), 1), PIECE_BYTES):
        piece = binascii.b2a_base64(view[offset : offset + PIECE_BYTES], newline=False).decode("ascii")
        is_last = offset + PIECE_BYTES >= len(data)
        yield {"kind": Kind.INPUT, "key": key, "offset": offset, "data": piece, "last": is_last}


def _retrieve(answer: asyncio.Future[None]) -> None:
    """Whoever handed a message over may have left; its refusal is no one's error then."""
    if not answer.cancelled():
        answer.exception()
