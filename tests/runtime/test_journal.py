from __future__ import annotations

import errno
import os
import resource
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest

from runtime import journal
from runtime.events import EventType, RuntimeEvent
from runtime.failure import FailureCode
from runtime.journal import BLOCK, Journal, JournalEnd, StorageFull, first_sequence, open_end, peek_last, read, seek
from runtime.provider import Position

SIZES = (1, 300, BLOCK - 120, 5, BLOCK, 3 * BLOCK, 40, 700, 5 * BLOCK, 9)
"""Texts around the block size and well beyond it, beside small ones."""


def event(sequence: int, text: str = "x", *, offset: int = -1, index: int = 0) -> RuntimeEvent:
    return RuntimeEvent(
        run_id="r", type=EventType.DELTA, sequence=sequence, time_ns=sequence, delta=text, offset=offset, index=index
    )


def written(folder: Path, events: Sequence[RuntimeEvent]) -> Path:
    writer = Journal(folder)
    writer.append(events)
    writer.close()
    return folder / journal.NAME


@contextmanager
def opened(path: Path) -> Iterator[int]:
    fd = os.open(path, os.O_RDONLY)
    try:
        yield fd
    finally:
        os.close(fd)


def beyond(path: Path, after: int, *, through: int = 1 << 62) -> list[RuntimeEvent]:
    """Everything after the cursor, read as a reader does."""
    found: list[RuntimeEvent] = []
    with opened(path) as fd:
        offset = seek(fd, after)
        while True:
            events, offset = read(fd, offset, through=through)
            if not events:
                return found
            found += events


# --- writing


def test_what_is_appended_is_one_record_a_line(tmp_path: Path) -> None:
    path = written(tmp_path, [event(1, "a\nb"), event(2)])

    lines = path.read_bytes().splitlines()

    assert [msgspec.json.decode(line, type=RuntimeEvent) for line in lines] == [event(1, "a\nb"), event(2)]
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_journal_opened_again_is_continued(tmp_path: Path) -> None:
    written(tmp_path, [event(1)])
    path = written(tmp_path, [event(2)])

    assert beyond(path, 0) == [event(1), event(2)]


@contextmanager
def file_size_limit(limit: int) -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("room", [0, 1, 50, 150, 300])
def test_an_append_that_fails_half_way_leaves_nothing(tmp_path: Path, room: int) -> None:
    """The kernel takes what fits and refuses the rest; the part that fitted must go again."""
    path = written(tmp_path, [event(1)])
    writer, size = Journal(tmp_path), path.stat().st_size

    with file_size_limit(size + room), pytest.raises(OSError, match="File too large"):
        writer.append([event(n, "x" * 100) for n in range(2, 9)])

    assert path.stat().st_size == size
    writer.append([event(2)])
    writer.close()
    assert beyond(path, 0) == [event(1), event(2)]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    disk = tmp_path / "disk"
    disk.mkdir()
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(disk)], capture_output=True, check=False
    )
    if made.returncode:
        pytest.skip("only root can mount a disk small enough to fill")
    yield disk
    subprocess.run(["umount", "-l", str(disk)], check=True)


@pytest.mark.req("E-4")
def test_a_full_disk_is_a_typed_failure_and_the_journal_stays_whole(small_disk: Path) -> None:
    writer = Journal(small_disk)
    writer.append([event(1)])

    with pytest.raises(StorageFull, match="free some on the node's data directory") as refusal:
        for n in range(2, 100):
            writer.append([event(n, "x" * 5000)])

    assert (refusal.value.failure.code, refusal.value.failure.retryable) == (FailureCode.STORAGE_FULL, True)
    assert isinstance(refusal.value.__cause__, OSError)
    assert refusal.value.__cause__.errno == errno.ENOSPC
    held = beyond(small_disk / journal.NAME, 0)
    assert [each.sequence for each in held] == list(range(1, len(held) + 1))
    assert (small_disk / journal.NAME).read_bytes().endswith(b"\n")
    writer.append([event(100, "small")])
    writer.sync()
    writer.close()


# --- the end, as a crash leaves it


def test_a_missing_journal_is_empty(tmp_path: Path) -> None:
    path = tmp_path / journal.NAME

    assert (open_end(path), peek_last(path), first_sequence(path)) == (JournalEnd(), None, 0)


def test_a_record_torn_at_any_byte_is_cut_off_and_no_other(tmp_path: Path) -> None:
    events = [event(1, "a", offset=5), event(2, "ü", offset=9, index=1), event(3, "c")]
    path = written(tmp_path, events)
    data = path.read_bytes()
    ends = [0] + [n + 1 for n, byte in enumerate(data) if byte == 10]

    for cut in range(len(data) + 1):
        path.write_bytes(data[:cut])
        whole = sum(end <= cut for end in ends) - 1

        found = open_end(path)

        assert (found.size, found.last) == (ends[whole], events[whole - 1] if whole else None)
        assert path.read_bytes() == data[: ends[whole]]
        assert found.position == (Position(), Position(5, 0), Position(9, 1), Position(9, 1))[whole]


@pytest.mark.parametrize("garbage", [b"\0" * 500 + b"\n", b"{}\n", b"\n\n", b'{"run_id":"r"', b"\xff" * 3 * BLOCK])
def test_what_is_no_record_is_cut_off_at_the_end(tmp_path: Path, garbage: bytes) -> None:
    """Blocks of zeros are what a power cut leaves of a file whose length was written before its content."""
    path = written(tmp_path, [event(1), event(2)])
    size = path.stat().st_size
    with open(path, "ab") as file:
        file.write(garbage)

    assert open_end(path) == JournalEnd(size=size, last=event(2))
    assert path.stat().st_size == size


def test_a_record_larger_than_a_block_is_found_at_the_end(tmp_path: Path) -> None:
    events = [event(1, offset=7), event(2, "x" * 5 * BLOCK)]
    path = written(tmp_path, events)

    assert open_end(path) == JournalEnd(size=path.stat().st_size, last=events[1], position=Position(7, 0))
    assert peek_last(path) == events[1]


def test_the_last_place_in_the_output_is_that_of_the_last_event_that_has_one(tmp_path: Path) -> None:
    path = written(tmp_path, [event(1, offset=7), event(2, offset=20, index=3), *(event(n) for n in range(3, 900))])

    assert open_end(path).position == Position(20, 3)


def test_looking_at_the_end_does_not_touch_the_file(tmp_path: Path) -> None:
    path = written(tmp_path, [event(1), event(2)])
    with open(path, "ab") as file:
        file.write(b'{"run_id":"r","ty')
    before = path.read_bytes()

    assert peek_last(path) == event(2)
    assert path.read_bytes() == before


# --- finding a cursor


def mixed(count: int, *, gap_after: int = 0) -> list[RuntimeEvent]:
    """Records of all sizes; numbers jump by 2^20 after *gap_after*."""
    jump = 1 << 20
    return [
        event(n + (jump if gap_after and n > gap_after else 0), "x" * SIZES[n % len(SIZES)])
        for n in range(1, count + 1)
    ]


@pytest.mark.parametrize("gap_after", [0, 20])
def test_every_cursor_finds_exactly_what_lies_beyond_it(tmp_path: Path, gap_after: int) -> None:
    events = mixed(45, gap_after=gap_after)
    path = written(tmp_path, events)
    cursors = {0, events[-1].sequence + 1, *(near for e in events for near in (e.sequence - 1, e.sequence))}

    for after in sorted(cursors):
        with opened(path) as fd:
            offset = seek(fd, after)
            found, _ = read(fd, offset, through=1 << 62)
        rest = [each.sequence for each in events if each.sequence > after]

        assert [each.sequence for each in found] == rest[: len(found)]
        assert bool(found) is bool(rest)
    assert beyond(path, 0) == events


def test_reading_stops_at_what_may_be_seen(tmp_path: Path) -> None:
    path = written(tmp_path, mixed(30))

    for through in (0, 1, 7, 30, 31):
        assert [e.sequence for e in beyond(path, 0, through=through)] == list(range(1, min(through, 30) + 1))


def test_a_record_that_is_being_written_is_not_read(tmp_path: Path) -> None:
    path = written(tmp_path, [event(1)])
    with open(path, "ab") as file:
        file.write(b'{"run_id":"r","type":"delta","sequ')

    assert beyond(path, 0) == [event(1)]


def test_finding_a_cursor_reads_a_handful_of_blocks(tmp_path: Path) -> None:
    """No record before the cursor is decoded, whatever the length of the run."""
    path = written(tmp_path, [event(n, "x" * 50) for n in range(1, 40_001)])
    decoded = 0
    original = journal._decode

    def counting(line: bytes) -> RuntimeEvent | None:
        nonlocal decoded
        decoded += 1
        return original(line)

    journal._decode = counting
    try:
        with opened(path) as fd:
            offset = seek(fd, 33_333)
    finally:
        journal._decode = original

    assert decoded < 1000
    with opened(path) as fd:
        assert read(fd, offset, through=1 << 62)[0][0].sequence == 33_334


def test_the_first_record_says_from_where_on_events_are_held(tmp_path: Path) -> None:
    assert first_sequence(written(tmp_path, [event(51), event(52)])) == 51
