"""Which warm process is kept, used again, or closed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, cast

import pytest

from providers.cli.warm_processes import RECYCLE_BYTES, Revision, WarmProcess, WarmProcesses, open_warm_processes
from providers.keeper.client import Keeper, WardenLink
from tests.support.hosts import PATIENCE_S

REVISION = Revision(public="a", secret="b")


class FakeLink:
    """A warden link whose process ends as soon as its input does."""

    def __init__(self) -> None:
        self.exit: object = None
        self.gone = self.lost = self.is_over = False
        self.calls: list[str] = []
        self._callbacks: list[Callable[[], None]] = []

    def on_change(self, callback: Callable[[], None]) -> None:
        self._callbacks.append(callback)

    def close_input(self) -> None:
        self.calls.append("close_input")
        self.end()

    def end(self) -> None:
        self.exit, self.gone, self.is_over = self.exit or "exited", True, True
        for callback in self._callbacks:
            callback()

    async def wait_gone(self, timeout_s: float) -> bool:
        await asyncio.sleep(0)
        return self.gone

    async def close(self) -> None:
        self.calls.append("close")


@pytest.fixture
async def warm(tmp_path: Path) -> AsyncIterator[WarmProcesses]:
    async with open_warm_processes(tmp_path, cast(Keeper, None), limit=3, idle_s=600.0) as opened:
        yield opened


def busy(warm: WarmProcesses, session: str, revision: Revision = REVISION) -> WarmProcess:
    """A process in its turn."""
    directory = warm.new_directory(session, revision)
    link = cast(WardenLink, FakeLink())
    process = WarmProcess(directory=directory, session=session, revision=revision, link=link)
    warm.add(process)
    return process


def idle(warm: WarmProcesses, session: str, **more: Any) -> WarmProcess:
    """A process whose turn is over."""
    process = busy(warm, session, **more)
    warm.give_back(process)
    return process


async def settled(warm: WarmProcesses) -> None:
    """Until what was to be closed is closed: a directory is removed in a thread."""
    await asyncio.sleep(0)
    async with asyncio.timeout(PATIENCE_S):
        while warm._closing:
            await asyncio.sleep(0.002)


async def test_a_session_gets_its_own_idle_process(warm: WarmProcesses) -> None:
    mine, _ = idle(warm, "a"), idle(warm, "b")

    assert await warm.take("a", REVISION) is mine
    assert mine.is_busy
    assert await warm.take("a", REVISION) is None, "a busy process takes no second turn"


@pytest.mark.parametrize(
    ("started_with", "is_used"),
    [
        (Revision(public="a", secret="b"), True),
        (Revision(public="a", secret="rotated"), False),
        (Revision(public="other", secret="b"), False),
        (Revision(public="a"), True),
    ],
)
async def test_a_process_is_used_again_only_as_it_would_be_started(
    warm: WarmProcesses, started_with: Revision, is_used: bool
) -> None:
    process = idle(warm, "a", revision=started_with)

    taken = await warm.take("a", REVISION)

    assert (taken is process) == is_used
    assert process.directory.exists() == is_used, "what is not used again is gone before a fresh one begins"


async def test_a_crashed_process_is_forgotten(warm: WarmProcesses) -> None:
    process = idle(warm, "a")

    cast(FakeLink, process.link).end()
    await settled(warm)

    assert warm.idle == [] and not process.directory.exists()
    assert await warm.take("a", REVISION) is None


async def test_the_longest_unused_is_evicted_and_a_busy_one_never(warm: WarmProcesses) -> None:
    working = busy(warm, "w")
    old, new = idle(warm, "old"), idle(warm, "new")

    busy(warm, "more")
    await settled(warm)

    assert warm.idle == [new] and not old.directory.exists()
    assert working.directory.exists()


async def test_beyond_the_limit_a_process_does_not_outlive_its_turn(warm: WarmProcesses) -> None:
    working = [busy(warm, str(number)) for number in range(4)]

    for process in working:
        warm.give_back(process)
    await settled(warm)

    assert len(warm.idle) == 3


async def test_a_process_that_printed_too_much_is_recycled(warm: WarmProcesses) -> None:
    process = busy(warm, "a")
    process.printed_bytes = RECYCLE_BYTES + 1

    warm.give_back(process)
    await settled(warm)

    assert warm.idle == [] and cast(FakeLink, process.link).calls == ["close_input", "close"]


async def test_idle_processes_are_closed_after_a_while(tmp_path: Path) -> None:
    async with open_warm_processes(tmp_path, cast(Keeper, None), limit=3, idle_s=0.05) as warm:
        idle(warm, "a")
        later = idle(warm, "b")
        later.used_at += 3600  # as if its turn were over much later

        async with asyncio.timeout(PATIENCE_S):
            while len(warm.idle) == 2:
                await asyncio.sleep(0.005)
        assert warm.idle == [later]
        later.used_at -= 3600
        idle(warm, "c")  # the timer looks at all of them again
        async with asyncio.timeout(PATIENCE_S):
            while warm.idle:
                await asyncio.sleep(0.005)


async def test_a_session_keeps_one_process(warm: WarmProcesses) -> None:
    """Its turns may overlap for a moment while the one before is being ended."""
    first, second = busy(warm, "a"), busy(warm, "a")

    warm.give_back(first)
    warm.give_back(second)
    await settled(warm)

    assert warm.idle == [second] and not first.directory.exists()


async def test_a_closing_node_closes_the_idle_and_leaves_the_busy(tmp_path: Path) -> None:
    async with open_warm_processes(tmp_path, cast(Keeper, None), limit=3, idle_s=600.0) as warm:
        waiting, working = idle(warm, "a"), busy(warm, "b")

    assert not waiting.directory.exists()
    assert working.directory.exists() and cast(FakeLink, working.link).calls == []


async def test_an_ended_session_has_no_process_when_the_call_returns(warm: WarmProcesses) -> None:
    process, other = idle(warm, "a"), idle(warm, "b")

    await warm.end_session("a")

    assert warm.idle == [other] and not process.directory.exists()


async def test_a_session_that_is_ended_waits_for_its_turn_to_give_the_process_back(warm: WarmProcesses) -> None:
    """The turn has told its end by then, so the host holds the session for free."""
    process = busy(warm, "a")
    ending = asyncio.create_task(warm.end_session("a"))
    await settled(warm)
    assert not ending.done()

    warm.give_back(process)
    await ending

    assert warm.idle == [] and not process.directory.exists()
