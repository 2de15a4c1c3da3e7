from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runtime.events import EventType, RuntimeEvent
from runtime.feed import READ_LIMIT, Cursor, Feed
from runtime.journal import NAME, Journal
from tests.support.hosts import PATIENCE_S


def event(sequence: int, text: str = "x") -> RuntimeEvent:
    return RuntimeEvent(run_id="r", type=EventType.DELTA, sequence=sequence, time_ns=sequence, delta=text)


class Run:
    """The writing side of a live run: journal first, then the feed."""

    def __init__(self, folder: Path, *, ring_bytes: int = 256 * 1024) -> None:
        self.feed, self.path = Feed(ring_bytes=ring_bytes), folder / NAME
        self.journal = Journal(folder)
        self.written: list[RuntimeEvent] = []

    def write(self, *events: RuntimeEvent) -> None:
        self.journal.append(events)
        self.feed.publish(events)
        self.written += events

    def cursor(self, after: int = 0) -> Cursor:
        return Cursor(self.path, after=after, feed=self.feed, last=0)

    def close(self) -> None:
        self.feed.end()
        self.journal.close()


async def rest(cursor: Cursor) -> list[RuntimeEvent]:
    """All that is left of an ended run."""
    found: list[RuntimeEvent] = []
    with cursor:
        async with asyncio.timeout(PATIENCE_S):
            while events := await cursor.read():
                found += events
    return found


async def read(cursor: Cursor) -> list[RuntimeEvent]:
    async with asyncio.timeout(PATIENCE_S):
        return await cursor.read()


async def test_a_reader_that_keeps_up_never_opens_the_journal(tmp_path: Path) -> None:
    run, seen = Run(tmp_path), []
    run.path.unlink()  # whoever opens it by name fails
    cursor = run.cursor()

    for n in range(1, 500):
        run.write(event(n))
        seen += await read(cursor)

    assert seen == run.written
    run.close()


async def test_a_waiting_reader_is_woken_by_each_publish_and_by_the_end(tmp_path: Path) -> None:
    run = Run(tmp_path)
    cursor = run.cursor()

    for n in (1, 2):
        waiting = asyncio.create_task(read(cursor))
        await asyncio.sleep(0)
        assert not waiting.done()
        run.write(event(n))
        assert await waiting == [event(n)]
    waiting = asyncio.create_task(read(cursor))
    await asyncio.sleep(0)
    run.close()

    assert await waiting == []
    assert cursor.is_at_end


@pytest.mark.req("NB-19")
async def test_a_reader_that_is_behind_goes_through_the_journal_and_back_to_memory(tmp_path: Path) -> None:
    run = Run(tmp_path, ring_bytes=10 * 300)
    run.write(*(event(n) for n in range(1, 301)))
    cursor, seen = run.cursor(), []
    opened: list[bool] = []

    for n in range(301, 340):
        seen += await read(cursor)
        opened.append(cursor._fd is not None)
        run.write(event(n))
    run.close()
    seen += await rest(cursor)

    assert seen == run.written
    assert (opened[0], opened[-1]) == (True, False)


@pytest.mark.req("NB-19")
def test_memory_holds_a_bounded_tail(tmp_path: Path) -> None:
    feed = Feed(ring_bytes=10_000)

    for n in range(1, 1000):
        feed.publish([event(n, "x" * 100)])

    assert 10 < len(feed._ring) <= 10_000 // 100
    assert feed.recent(998, 9) == [event(999, "x" * 100)]
    assert feed.recent(1, 9) is None


@pytest.mark.req("NB-19")
def test_an_event_larger_than_the_memory_is_held_alone(tmp_path: Path) -> None:
    feed = Feed(ring_bytes=1000)

    feed.publish([event(1), event(2, "x" * 5000)])

    assert [each.sequence for each in feed._ring] == [2]


async def test_no_reader_sees_what_is_not_published(tmp_path: Path) -> None:
    """The terminal is in the journal, unsynced, before anybody may see it."""
    run = Run(tmp_path, ring_bytes=1)
    run.write(event(1), event(2))
    run.journal.append([event(3)])
    cursor = run.cursor()

    assert [e.sequence for e in await read(cursor)] == [1, 2]
    waiting = asyncio.create_task(read(cursor))
    for _ in range(5):
        await asyncio.sleep(0)
    assert not waiting.done()
    run.feed.publish([event(3)])

    assert await waiting == [event(3)]
    cursor.close()
    run.close()


async def test_a_batch_is_bounded(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.write(*(event(n) for n in range(1, 1000)))

    assert len(await read(run.cursor())) == READ_LIMIT
    run.close()


async def test_two_readers_take_nothing_from_each_other(tmp_path: Path) -> None:
    run = Run(tmp_path)
    one, other = run.cursor(), run.cursor()
    run.write(event(1), event(2))
    first = await read(one)
    one.close()
    run.write(event(3))
    run.close()

    assert first == [event(1), event(2)]
    assert await rest(other) == run.written
    assert await rest(run.cursor(after=2)) == [event(3)]
    assert await rest(run.cursor()) == run.written


@pytest.mark.req("NB-19")
async def test_a_reader_that_leaves_while_it_waits_leaves_nothing_behind(tmp_path: Path) -> None:
    run = Run(tmp_path)
    for _ in range(100):
        waiting = asyncio.create_task(run.cursor().read())
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting

    assert run.feed._waiters == []
    run.write(event(1))
    run.close()


async def test_a_run_that_has_ended_is_its_journal(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.write(*(event(n) for n in range(1, 200)))
    run.close()

    for after in (0, 1, 150, 198, 199):
        assert await rest(Cursor(run.path, after=after, feed=None, last=199)) == run.written[after:]


@pytest.mark.parametrize("ring_bytes", [1, 1500, 1 << 20])
async def test_a_gap_in_the_numbers_hides_nothing(tmp_path: Path, ring_bytes: int) -> None:
    """After a batch that could not be stored, and after a reboot, numbers go on higher."""
    run = Run(tmp_path, ring_bytes=ring_bytes)
    run.write(*(event(n) for n in (1, 2, 3, 4)))
    run.write(*(event(n) for n in range(9, 30)))
    run.close()

    for after in (0, 3, 4, *range(9, 29)):
        assert await rest(run.cursor(after)) == [e for e in run.written if e.sequence > after]


@settings(deadline=None, max_examples=40)
@given(
    steps=st.lists(st.tuples(st.sampled_from(["write", "read a", "read b"]), st.integers(1, 90)), max_size=40),
    ring_bytes=st.sampled_from([1, 2000, 1 << 20]),
)
def test_at_any_pace_every_reader_gets_every_event_once_and_in_order(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, int]], ring_bytes: int
) -> None:
    async def play() -> None:
        run = Run(tmp_path_factory.mktemp("run"), ring_bytes=ring_bytes)
        cursors = {"read a": run.cursor(), "read b": run.cursor()}
        seen: dict[str, list[RuntimeEvent]] = {name: [] for name in cursors}
        for step, count in steps:
            if step == "write":
                first = len(run.written) + 1
                run.write(*(event(n, "x" * (n % 50)) for n in range(first, first + count)))
            elif len(seen[step]) < len(run.written):
                seen[step] += await read(cursors[step])
        run.close()
        for name, cursor in cursors.items():
            seen[name] += await rest(cursor)
            assert seen[name] == run.written

    asyncio.run(play())


@pytest.mark.req("RT-35")
async def test_a_terminal_that_was_not_stored_reaches_a_reader_across_a_gap(tmp_path: Path) -> None:
    run = Run(tmp_path, ring_bytes=1)
    run.write(event(1), event(2))
    behind = run.cursor(1)
    run.feed.publish([event(9)])  # 3 to 8, and this one, the disk did not take
    run.close()

    assert [e.sequence for e in await rest(behind)] == [2, 9]
