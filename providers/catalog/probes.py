"""One short question to a CLI: a child of its own, bounded in time and output, of which nothing stays.

A probe is a run like any other to the keeper, in a private directory below the data directory: the CLI finds an empty
working directory of its own, whatever became of the one where the host was started, an empty input and no terminal.
"""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from providers.cli.run_files import STDERR, STDOUT, create_output, open_input
from providers.keeper.client import (
    Keeper,
    KeeperUnavailable,
    SpawnFailed,
    SpawnRequest,
    WardenLink,
    clear_append_only,
    end_orphans,
)
from runtime.cancellation import to_the_end
from runtime.clock import boot_time_s
from runtime.keys import new_ulid

OUTPUT_LIMIT_BYTES = 1 << 20
"""A version, a login state, a list of models; what prints more is not answering."""
AT_ONCE = 32
STOP_GRACE_S = 0.3
_GONE_S = 5.0
_LOOK_S = 0.05
_PIPE_BYTES = 60 << 10  # less than a pipe holds
_BACKSTOP_S = 2.0  # the warden's own deadline, should this process die meanwhile


class Ended(StrEnum):
    """How a probe ended."""

    EXITED = "exited"
    TIMED_OUT = "timed_out"
    TOO_MUCH_OUTPUT = "too_much_output"
    ANSWERED = "answered"
    """It had said what was wanted, and was then told to leave."""
    NOT_STARTED = "not_started"
    STOPPED = "stopped"
    """By us, or nobody can tell."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeOutput:
    """What a CLI answered. ``code`` is None unless it exited by itself, then negative for a signal."""

    ended: Ended
    code: int | None = None
    stdout: bytes = b""
    stderr: bytes = b""
    detail: str = ""

    @property
    def has_succeeded(self) -> bool:
        return self.ended is Ended.EXITED and self.code == 0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Question:
    """What is run, and until when."""

    argv: tuple[str, ...]
    env: Mapping[str, str]
    timeout_s: float
    stdin: bytes
    has_answered: Callable[[bytes], bool] | None


class Prober:
    """Runs probes of one host; any number of calls may be under way."""

    def __init__(self, keeper: Keeper, root: Path) -> None:
        """*root* is this host's own, 0700; what an earlier host left in it is removed by :meth:`sweep`."""
        self._keeper, self._root = keeper, root
        self._slots = asyncio.Semaphore(AT_ONCE)
        self._since = new_ulid()

    async def run(
        self, argv: tuple[str, ...], *, env: Mapping[str, str], timeout_s: float, stdin: bytes = b"",
        has_answered: Callable[[bytes], bool] | None = None,
    ) -> ProbeOutput:  # fmt: skip
        """Ask once. When this returns, or raises because it was cancelled, no process of the probe is left.

        Args:
            stdin: all of the input; then comes its end.
            has_answered: for a CLI that leaves at the end of its input before it has answered: the input (at most 60 KiB)
                then stays open until this says of all the output so far that it will do.
        """
        question = _Question(argv=argv, env=env, timeout_s=timeout_s, stdin=stdin, has_answered=has_answered)
        async with self._slots:
            stop = asyncio.Event()
            work = asyncio.create_task(self._run(question, stop), name=f"probe {argv[0]}")
            try:
                return await asyncio.shield(work)
            except asyncio.CancelledError:
                stop.set()
                await to_the_end(_settled(work))
                raise

    async def sweep(self) -> None:
        """End and remove what an earlier host's probes left; their own deadlines bound them too."""
        for directory in sorted(self._root.iterdir()) if self._root.is_dir() else []:
            if directory.name >= self._since:
                break  # our own
            try:
                if (link := await self._keeper.adopt(directory)) is not None:
                    await _end(link, "stopped")
            except KeeperUnavailable:
                continue
            await asyncio.to_thread(end_orphans, directory.name)
            await asyncio.to_thread(_remove, directory)

    async def _run(self, question: _Question, stop: asyncio.Event) -> ProbeOutput:
        directory = self._root / new_ulid()
        (directory / "cwd").mkdir(mode=0o700, parents=True)
        os.chmod(directory, 0o700)
        try:
            with _input(directory, question) as stdin_fd:
                link = await self._spawn(directory, question, stdin_fd)
                ended = await _follow(link, question, stop)
            return await asyncio.to_thread(_read, directory, link, ended)
        except SpawnFailed as failed:
            return ProbeOutput(ended=Ended.NOT_STARTED, detail=f"{failed.stage}: {os.strerror(failed.errno)}")
        except (KeeperUnavailable, OSError) as error:
            return ProbeOutput(ended=Ended.NOT_STARTED, detail=str(error))
        finally:
            await asyncio.to_thread(_remove, directory)

    async def _spawn(self, directory: Path, question: _Question, stdin_fd: int) -> WardenLink:
        stdout_fd = create_output(directory)
        try:
            return await self._keeper.spawn(
                SpawnRequest(
                    directory=directory, argv=question.argv, cwd=str(directory / "cwd"), env=question.env,
                    marker=directory.name,
                    stdin_fd=stdin_fd, stdout_fd=stdout_fd, output_bytes=OUTPUT_LIMIT_BYTES,
                    deadline_boot_s=boot_time_s() + question.timeout_s + _BACKSTOP_S,
                )
            )  # fmt: skip
        finally:
            os.close(stdout_fd)


@contextmanager
def _input(directory: Path, question: _Question) -> Iterator[int]:
    """The input, open for reading: a file that ends, or a pipe that ends with this block."""
    if question.has_answered is None:
        reading, writing = open_input(question.stdin.decode()), None
    else:
        reading, writing = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        os.write(writing, question.stdin[:_PIPE_BYTES])
        os.set_blocking(reading, True)
    try:
        yield reading
    finally:
        os.close(reading)
        if writing is not None:
            os.close(writing)


async def _follow(link: WardenLink, question: _Question, stop: asyncio.Event) -> Ended:
    """Wait for the end of the whole tree; make one when the time is over, it has answered, or somebody asks for it."""
    gone, told = asyncio.create_task(link.wait_gone(question.timeout_s)), asyncio.create_task(stop.wait())
    answer = asyncio.create_task(_answered(link.directory, question))
    waits = (gone, told, answer)
    try:
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        if not link.is_over and link.exit is None:
            ended = Ended.STOPPED if told.done() else Ended.ANSWERED if answer.done() else Ended.TIMED_OUT
            await _end(link, ended.value)
            return ended
        if not link.is_over:  # it has answered; what it left behind is being ended
            await link.wait_gone(_GONE_S)
        return Ended.TOO_MUCH_OUTPUT if link.limit is not None else Ended.EXITED if link.exit else Ended.STOPPED
    finally:
        for wait in waits:
            wait.cancel()
        if link.lost:
            await asyncio.to_thread(end_orphans, link.directory.name)
        await link.close()


async def _answered(directory: Path, question: _Question) -> None:
    """Return when enough was said; never, where the end of the process is what is waited for."""
    seen = 0
    while True:
        await asyncio.sleep(_LOOK_S)
        if question.has_answered is None or (size := _size(directory / STDOUT)) == seen:
            continue
        seen = size
        if question.has_answered(_head(directory / STDOUT)):
            return


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


async def _end(link: WardenLink, reason: str) -> None:
    link.stop(steps=("term",), grace_s=STOP_GRACE_S, reason=reason)
    await link.wait_gone(_GONE_S)


def _read(directory: Path, link: WardenLink, ended: Ended) -> ProbeOutput:
    code = None
    if ended is Ended.EXITED and link.exit is not None:
        code = link.exit.code if link.exit.code is not None else -(link.exit.signal or 0)
    return ProbeOutput(ended=ended, code=code, stdout=_head(directory / STDOUT), stderr=_head(directory / STDERR))


def _head(path: Path) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read(OUTPUT_LIMIT_BYTES)
    except OSError:
        return b""


def _remove(directory: Path) -> None:
    if (directory / STDOUT).exists():
        clear_append_only(directory / STDOUT)
    shutil.rmtree(directory, ignore_errors=True)


async def _settled(work: asyncio.Task[ProbeOutput]) -> None:
    await asyncio.wait([work])
