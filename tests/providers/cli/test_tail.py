"""Noticing that a file grew: at once where the kernel tells, soon where it does not."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from providers.cli import tail as tail_module
from providers.cli.tail import IN_Q_OVERFLOW, Tail, open_tail

SOON_S = 20.0
"""The bound of a wait for what comes within a second where nothing else runs."""


@pytest.fixture
async def tail() -> AsyncIterator[Tail]:
    async with open_tail() as opened:
        yield opened


class Growing:
    """A file that is watched."""

    def __init__(self, path: Path) -> None:
        path.touch()
        self.path = path
        self.fd = os.open(path, os.O_RDONLY)
        self.woken = asyncio.Event()

    def grow(self) -> None:
        with open(self.path, "ab") as file:
            file.write(b"x")

    async def wakes_within(self, seconds: float) -> bool:
        try:
            await asyncio.wait_for(self.woken.wait(), seconds)
        except TimeoutError:
            return False
        self.woken.clear()
        return True


@pytest.fixture
async def file(tmp_path: Path) -> AsyncIterator[Growing]:
    growing = Growing(tmp_path / "stdout")
    yield growing
    os.close(growing.fd)


@pytest.fixture
def without_looks(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The regular look at every file is too far away to help."""
    monkeypatch.setattr(tail_module, "LOOK_S", 60.0)
    yield


async def test_growth_wakes_at_once_and_every_time(without_looks: None, tail: Tail, file: Growing) -> None:
    with tail.watch(os.fsencode(file.path), file.fd, file.woken.set):
        for _ in range(3):
            file.grow()
            assert await file.wakes_within(SOON_S)
    assert tail.note == ""


async def test_nothing_wakes_after_the_watch_ended(without_looks: None, tail: Tail, file: Growing) -> None:
    with tail.watch(os.fsencode(file.path), file.fd, file.woken.set):
        pass
    file.grow()

    assert not await file.wakes_within(0.2)


async def test_many_files_are_told_apart(without_looks: None, tail: Tail, tmp_path: Path) -> None:
    files = [Growing(tmp_path / str(number)) for number in range(20)]
    watches = [tail.watch(os.fsencode(one.path), one.fd, one.woken.set) for one in files]
    for watch in watches:
        watch.__enter__()
    files[7].grow()
    assert await files[7].wakes_within(SOON_S)

    assert [one.woken.is_set() for one in files] == [False] * 20
    for watch in watches:
        watch.__exit__(None, None, None)
    for one in files:
        os.close(one.fd)


async def test_a_second_watch_of_the_same_file_is_served_too(without_looks: None, tail: Tail, file: Growing) -> None:
    second = asyncio.Event()
    with tail.watch(os.fsencode(file.path), file.fd, file.woken.set):
        with tail.watch(os.fsencode(file.path), file.fd, second.set):
            await asyncio.sleep(0.05)
            second.clear()
            file.grow()
            await asyncio.wait_for(second.wait(), SOON_S)
        file.woken.clear()
        file.grow()
        assert await file.wakes_within(SOON_S), "the first one goes on when the second has left"


async def test_a_file_that_the_kernel_does_not_tell_of_is_polled(tail: Tail, file: Growing) -> None:
    with tail.watch(b"/no/such/path", file.fd, file.woken.set):
        await file.wakes_within(1)
        file.grow()
        assert await file.wakes_within(SOON_S)
    assert tail.note.startswith("file watching was refused (ENOENT)")


async def test_without_inotify_everything_is_polled_and_it_is_said(
    monkeypatch: pytest.MonkeyPatch, file: Growing
) -> None:
    tail = Tail()
    os.close(tail._inotify)
    tail._inotify, tail.note = -1, "file watching is not available; output is polled"
    tail.start()
    try:
        with tail.watch(os.fsencode(file.path), file.fd, file.woken.set):
            await file.wakes_within(1)
            file.grow()
            assert await file.wakes_within(SOON_S)
    finally:
        tail.close()


async def test_a_lost_notice_costs_a_second_at_most(monkeypatch: pytest.MonkeyPatch, tail: Tail, file: Growing) -> None:
    """Some file systems say nothing at all; the regular look does not depend on any notice."""
    monkeypatch.setattr(tail, "_on_events", lambda: os.read(tail._inotify, 65536))
    asyncio.get_running_loop().add_reader(tail._inotify, tail._on_events)
    with tail.watch(os.fsencode(file.path), file.fd, file.woken.set):
        assert await file.wakes_within(SOON_S)
        file.grow()
        assert await file.wakes_within(SOON_S)


async def test_an_overflowing_queue_wakes_everybody(
    without_looks: None, monkeypatch: pytest.MonkeyPatch, tail: Tail, file: Growing
) -> None:
    with tail.watch(os.fsencode(file.path), file.fd, file.woken.set):
        overflow = tail_module._RECORD.pack(-1, IN_Q_OVERFLOW, 0, 0)
        monkeypatch.setattr("providers.cli.tail.os.read", lambda fd, size: overflow)
        tail._on_events()
        assert file.woken.is_set()
