"""The append-only events of one run: ``events.jsonl``, one JSON record a line, written before any reader sees it.

Records carry their ``sequence``, so finding a cursor is a binary search over byte offsets; no index is kept, and no record
before the cursor is decoded. A record torn by a crash is cut off when the journal is opened again.
"""

from __future__ import annotations

import errno
import os
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path

import msgspec

from runtime.events import RuntimeEvent
from runtime.failure import FailureCode, FailureError
from runtime.provider import Position

BLOCK = 64 * 1024
PROBE = 4 * 1024  # few records are longer; a seek reads one or two of these per halving
NAME = "events.jsonl"
START = Position()

_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(RuntimeEvent)
_sequence = attrgetter("sequence")


class StorageFull(FailureError):
    """The disk took no more; what was written before is intact."""

    code = FailureCode.STORAGE_FULL


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalEnd:
    """The end of a journal as found: its size in bytes without a torn record, its last event, and
    the last position in the run's raw output that any event has."""

    size: int = 0
    last: RuntimeEvent | None = None
    position: Position = START


class Journal:
    """The writer. One per run; every append is one ``write``."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / NAME
        self._fd = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        self._size = os.fstat(self._fd).st_size

    def append(self, events: Sequence[RuntimeEvent]) -> int:
        """Write *events* whole or not at all, and return their size in bytes.

        Raises:
            StorageFull: there was no room; the file ends where it ended before.
        """
        data = _encoder.encode_lines(events)
        try:
            written = os.write(self._fd, data)
            while written < len(data):  # a short write means that the next one says why
                written += os.write(self._fd, data[written:])
        except OSError as error:
            os.ftruncate(self._fd, self._size)
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise StorageFull(
                    "no space left for the run's journal; free some on the node's data directory"
                ) from error
            raise
        self._size += written
        return written

    @property
    def size_bytes(self) -> int:
        return self._size

    def sync(self) -> None:
        """Make all that was appended survive a power cut. Blocks: call it in a thread."""
        os.fdatasync(self._fd)

    def close(self) -> None:
        os.close(self._fd)


def open_end(path: Path) -> JournalEnd:
    """The last whole record of the journal at *path*; what a crash tore after it is cut off. A missing file is empty."""
    try:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return JournalEnd()
    try:
        size = os.fstat(fd).st_size
        end = _last_line_end(fd, size)
        while end:
            begin = _last_line_end(fd, end - 1)
            last = _decode(os.pread(fd, end - 1 - begin, begin))
            if last is not None:
                break
            end = begin  # a damaged record: keep what stands before it
        else:
            last = None
        if end < size:
            os.ftruncate(fd, end)
        return JournalEnd(size=end, last=last, position=_last_position(fd, end))
    finally:
        os.close(fd)


def peek_last(path: Path) -> RuntimeEvent | None:
    """The last whole record, without touching the file: for looking at a run that somebody else may be writing."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        end = _last_line_end(fd, os.fstat(fd).st_size)
        begin = _last_line_end(fd, end - 1) if end else 0
        return _decode(os.pread(fd, end - 1 - begin, begin)) if end else None
    finally:
        os.close(fd)


def _last_position(fd: int, end: int) -> Position:
    """Read backwards to the last event that came from output; those the host made stand only here and there."""
    while end:
        begin = _last_line_end(fd, end - 1)
        event = _decode(os.pread(fd, end - 1 - begin, begin))
        if event is not None and event.offset >= 0:
            return Position(event.offset, event.index, event.piece)
        end = begin
    return START


def first_sequence(path: Path) -> int:
    """The sequence of the first record held; 0 when there is none."""
    try:
        with open(path, "rb") as file:
            event = _decode(file.readline())
    except FileNotFoundError:
        return 0
    return 0 if event is None else event.sequence


def seek(fd: int, after: int) -> int:
    """The byte offset of the first record with a sequence beyond *after*: halve, resynchronise at the next line, compare."""
    low, high = 0, os.fstat(fd).st_size  # low: a line begin whose predecessors are all <= after
    while high - low > PROBE:
        begin = _next_line(fd, (low + high) // 2, high)
        event = None if begin >= high else _decode_at(fd, begin)
        if event is None:
            high = (low + high) // 2
        elif event.sequence > after:
            high = begin
        else:
            low = begin
    return _scan(fd, low, after)


def read(fd: int, offset: int, *, through: int, block: int = BLOCK) -> tuple[list[RuntimeEvent], int]:
    """Events from *offset* on up to sequence *through*, about *block* bytes of them, and the offset to go on from."""
    data = os.pread(fd, block, offset)
    end = data.rfind(b"\n") + 1
    while not end and len(data) == block:  # one record larger than the block
        block *= 4
        data = os.pread(fd, block, offset)
        end = data.find(b"\n") + 1
    lines = data[:end]
    events = _decoder.decode_lines(lines)
    if events and events[-1].sequence > through:
        kept = bisect_right(events, through, key=_sequence)
        events, end = events[:kept], end - len(lines.split(b"\n", kept)[kept])
    return events, offset + end


def read_all(path: Path) -> Iterator[RuntimeEvent]:
    """Every whole record, in order; nothing when there is no journal."""
    try:
        with open(path, "rb") as file:
            for line in file:
                if (event := _decode(line)) is not None:
                    yield event
    except FileNotFoundError:
        return


def _scan(fd: int, offset: int, after: int) -> int:
    while True:
        line = _line_at(fd, offset)
        event = _decode(line)
        if event is None or event.sequence > after:
            return offset
        offset += len(line)


def _decode(line: bytes) -> RuntimeEvent | None:
    try:
        return _decoder.decode(line)
    except msgspec.DecodeError:
        return None


def _decode_at(fd: int, offset: int) -> RuntimeEvent | None:
    return _decode(_line_at(fd, offset))


def _line_at(fd: int, offset: int) -> bytes:
    """The line that begins at *offset*, with its LF; empty at the end or when it has no LF yet."""
    block = PROBE
    while True:
        data = os.pread(fd, block, offset)
        end = data.find(b"\n") + 1
        if end or len(data) < block:
            return data[:end]
        block *= 4


def _next_line(fd: int, offset: int, limit: int) -> int:
    while offset < limit:
        data = os.pread(fd, PROBE, offset)
        end = data.find(b"\n")
        if end >= 0:
            return offset + end + 1
        if not data:
            break
        offset += len(data)
    return limit


def _last_line_end(fd: int, size: int) -> int:
    """The offset after the last LF, reading backwards."""
    end = size
    while end > 0:
        begin = max(0, end - BLOCK)
        found = os.pread(fd, end - begin, begin).rfind(b"\n")
        if found >= 0:
            return begin + found + 1
        end = begin
    return 0
