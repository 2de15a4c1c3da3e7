"""Frames survive any cutting of the stream, and nothing else is taken for a frame."""

from __future__ import annotations

import os
import socket
import struct
import threading
from typing import Any

import pytest

from providers.keeper.protocol import FRAME_LIMIT_BYTES, Frame, FrameReader, Kind, ProtocolError, SpawnOrder, encode
from providers.keeper.spares import give, take

FRAMES: list[Frame] = [
    {"kind": Kind.HELLO, "protocol": 1},
    {"kind": Kind.STOP, "reason": "\udcff ü"},
    {"kind": "of a later version"},
]


@pytest.mark.parametrize("step", [1, 3, 4, 7, 1000])
def test_frames_are_the_same_however_the_stream_is_cut(step: int) -> None:
    stream = b"".join(map(encode, FRAMES))
    reader = FrameReader()

    read = [frame for start in range(0, len(stream), step) for frame in reader.feed(stream[start : start + step])]

    assert read == FRAMES


@pytest.mark.parametrize("body", [b"nonsense", b"[]", b"{}", b'{"kind": 1}', b"\xff"])
def test_a_body_that_is_no_frame_is_refused(body: bytes) -> None:
    with pytest.raises(ProtocolError):
        FrameReader().feed(struct.pack(">I", len(body)) + body)


def test_a_length_nobody_sends_is_refused_before_it_is_awaited() -> None:
    with pytest.raises(ProtocolError):
        FrameReader().feed(struct.pack(">I", FRAME_LIMIT_BYTES + 1))


def test_an_order_survives_the_journey_and_ignores_what_it_does_not_know() -> None:
    order = SpawnOrder(3, "/run", ("/bin/true", "a b"), "/", {"A": "\udcff"}, "run-1", 1.5, 10, 20, None)

    (frame,) = FrameReader().feed(encode({**order.to_frame(), "later": True}))

    assert SpawnOrder.from_frame(frame) == order


@pytest.mark.parametrize(
    "frame", [{"kind": "spawn"}, {"kind": "spawn", **dict.fromkeys(SpawnOrder._fields), **SpawnOrder._field_defaults}]
)
def test_an_order_that_is_not_whole_is_refused(frame: Frame) -> None:
    with pytest.raises(ProtocolError):
        SpawnOrder.from_frame(frame)


def test_an_order_that_was_taken_whole_counts_as_given_although_the_spare_hung_up() -> None:
    order = SpawnOrder(3, "/run", ("/bin/true",), "/", {}, "run-1", None, 10, 20, None)
    ours, theirs = socket.socketpair()
    taken: list[tuple[SpawnOrder, list[int]] | None] = []
    spare = threading.Thread(target=lambda: taken.append(take(theirs)))

    class Slow(socket.socket):
        """Comes back from a send only when the spare has hung up."""

        def sendmsg(self, *arguments: Any) -> int:
            sent = super().sendmsg(*arguments)
            spare.join()
            return sent

    with Slow(fileno=ours.detach()) as slow, open(os.devnull) as null:
        spare.start()
        given = give(slow, order.to_frame(), [null.fileno()] * 3)

    assert given
    (whole,) = taken
    assert whole is not None
    read, descriptors = whole
    assert read == order
    for descriptor in descriptors:
        os.close(descriptor)
