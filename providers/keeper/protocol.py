"""What node, keeper and wardens say to each other: JSON objects on unix stream sockets, each after its length.

A frame is four bytes of big-endian length and one JSON object in ASCII; text that is not UTF-8 (a path, an environment
value) travels as surrogate escapes. The object's ``kind`` says what it is. Three conversations use it:

* node ⇄ keeper: ``hello`` both ways, then ``spawn`` (with three file descriptors), ``bye``, or ``retire``;
* node ⇄ warden, over the socket pair that came with ``spawn``, or over ``ctl`` in the run directory after a ``hello``;
* nobody answers ``spawn`` on the keeper's socket: the warden does, on its own link.

Standard library only, and no dataclasses (they double the memory of the process): this file is part of the keeper's copy.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from enum import StrEnum
from typing import Any, NamedTuple

PROTOCOL = 1
SPOKEN = frozenset({PROTOCOL})
"""Versions this side understands: the current one and, once there is one, the one before."""

FRAME_LIMIT_BYTES = 16 << 20
# an argv and an environment are bounded by the kernel far below this (ARG_MAX is 2 MiB by default)
SPAWN_DESCRIPTORS = 3

_LENGTH = struct.Struct(">I")

Frame = dict[str, Any]


class Kind(StrEnum):
    """Every frame there is."""

    HELLO = "hello"  # both ways, first: protocol; from a node also its generation
    SPAWN = "spawn"  # node → keeper, with [warden's link, stdin, stdout]
    BYE = "bye"  # node → keeper: a clean stop, nobody will come back
    RETIRE = "retire"  # node of another version → keeper: take no new runs, leave when idle
    SPAWNED = "spawned"  # warden → node: the child runs the asked program
    SPAWN_FAILED = "spawn_failed"  # warden → node: it does not, and nothing is left of it
    HELD = "held"  # warden → node: this run directory has, or had, another warden
    STOP = "stop"  # node → warden
    STOPPING = "stopping"  # warden → node: a stop is under way, with the reason of the first one
    LIMIT = "limit"  # warden → node: the tree is frozen and will be killed
    EXITED = "exited"  # warden → node: the exit record is written
    GONE = "gone"  # warden → node: no process of the tree is left, the lock is free
    FENCED = "fenced"  # warden → node: a newer node owns this run
    INPUT = "input"  # node → warden: a piece of a message for the child's stdin
    INPUT_END = "input_end"  # node → warden: close the child's stdin after what is queued
    TAKEN = "taken"  # warden → node: the last byte of a message is in the pipe
    REFUSED = "refused"  # warden → node: a message will not be written whole, with the reason
    DEADLINE = "deadline"  # node → warden: a new deadline, or none


class ProtocolError(Exception):
    """The peer sent what no version of this protocol sends. Close the connection."""


class SpawnOrder(NamedTuple):
    """What a warden is asked to run; the meaning of each field is that of the node's ``SpawnRequest``."""

    generation: int
    directory: str
    argv: tuple[str, ...]
    cwd: str
    env: dict[str, str]
    marker: str
    deadline_boot_s: float | None
    output_bytes: int
    disk_watermark_bytes: int
    process_limit: int | None
    stdin_pipe: bool = False

    def to_frame(self) -> Frame:
        return {"kind": Kind.SPAWN, **self._asdict()}

    @classmethod
    def from_frame(cls, frame: Frame) -> SpawnOrder:
        """The order in *frame*; keys of a later minor addition are ignored."""
        try:
            # what came with a later minor addition has a default, for nodes that do not know it
            values = {name: frame[name] for name in cls._fields if name in frame or name not in cls._field_defaults}
            values["argv"] = tuple(values["argv"])
        except (KeyError, TypeError) as error:
            raise ProtocolError(f"not a spawn order: {error!r}") from error
        return cls(**values)


def encode(frame: Mapping[str, object]) -> bytes:
    """*frame* as it travels."""
    body = json.dumps(frame, separators=(",", ":")).encode("ascii")
    if len(body) > FRAME_LIMIT_BYTES:
        raise ProtocolError(f"a frame of {len(body)} bytes, at most {FRAME_LIMIT_BYTES} are allowed")
    return _LENGTH.pack(len(body)) + body


class FrameReader:
    """Cuts a stream of bytes into frames; keeps at most one incomplete frame."""

    def __init__(self) -> None:
        self._held = bytearray()

    def feed(self, data: bytes) -> list[Frame]:
        """The frames that *data* completes, in order.

        Raises:
            ProtocolError: not this protocol; nothing more can be read from this peer.
        """
        self._held += data
        frames: list[Frame] = []
        while (body := self._cut()) is not None:
            frames.append(_decode(body))
        return frames

    def _cut(self) -> bytes | None:
        if len(self._held) < _LENGTH.size:
            return None
        (length,) = _LENGTH.unpack_from(self._held)
        if length > FRAME_LIMIT_BYTES:
            raise ProtocolError(f"a frame of {length} bytes")
        end = _LENGTH.size + length
        if len(self._held) < end:
            return None
        body = bytes(self._held[_LENGTH.size : end])
        del self._held[:end]
        return body


def _decode(body: bytes) -> Frame:
    try:
        frame = json.loads(body)
    except ValueError as error:
        raise ProtocolError("a frame that is not JSON") from error
    if not isinstance(frame, dict) or not isinstance(frame.get("kind"), str):
        raise ProtocolError("a frame without a kind")
    return frame
