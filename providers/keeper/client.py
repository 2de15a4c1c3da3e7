"""Spawning runs through the keeper, and finding them again: the node's way to processes.

    async with open_keeper(data_dir, generation=7) as keeper:
        link = await keeper.spawn(request)      # or: await keeper.adopt(directory)
        ...
        link.stop(steps=["term"], grace_s=2.0, reason="cancelled")
        await link.wait_gone(5.0)

Neither leaving the block nor losing the keeper ends a run; a run ends by itself, by its deadline or bounds, or by
``stop``. Everything happens on the running loop, without threads, and no wait is without a bound.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from providers.keeper.home import install, other_homes
from providers.keeper.inputs import InputRefusal, InputRefused
from providers.keeper.keeper_connection import KeeperConnection, KeeperUnavailable, connect_or_start, retire
from providers.keeper.kernel import clear_append_only
from providers.keeper.orphans import OrphansEnded, end_orphans, living_markers
from providers.keeper.protocol import Frame, Kind, SpawnOrder
from providers.keeper.records import ExitRecord, Owner, lock_is_held, read_exit, read_owner, tree_was_proven_gone
from providers.keeper.warden_link import WardenLink, connect_to_ctl

__all__ = [
    "ExitRecord",
    "InputRefusal",
    "InputRefused",
    "Keeper",
    "KeeperUnavailable",
    "OrphansEnded",
    "Owner",
    "SpawnFailed",
    "SpawnRequest",
    "WardenLink",
    "clear_append_only",
    "end_orphans",
    "living_markers",
    "lock_is_held",
    "open_keeper",
    "read_exit",
    "read_owner",
    "tree_was_proven_gone",
]

ANSWER_TIMEOUT_S = 10.0
_SPAWN_TRIES = 2
_ADOPT_TRIES = 100
_ADOPT_PAUSE_S = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class SpawnRequest:
    """One child to start. ``env`` may hold secrets: it is sent and kept in memory only, and never shown."""

    directory: Path
    """The run directory; it exists, mode 0700, and no run was started in it before."""
    argv: tuple[str, ...]
    """``argv[0]`` is the absolute path of the program."""
    cwd: str
    env: Mapping[str, str] = field(repr=False)
    """The whole environment; ``IOP_RUN`` is added."""
    marker: str
    """The value of ``IOP_RUN``: unique to this run."""
    stdout_fd: int
    """A regular file, open O_WRONLY | O_APPEND and made with mode 0400; the caller closes its copy."""
    stdin_fd: int | None = None
    """Open for reading; the caller closes its copy. None: an empty stdin, or the pipe of ``stdin_pipe``."""
    stdin_pipe: bool = False
    """The warden makes a pipe and is its only writer (``WardenLink.send_input``); ``stdin_fd`` is not given."""
    deadline_boot_s: float | None = None
    """On CLOCK_BOOTTIME; the stop's reason is then ``deadline``."""
    output_bytes: int = 1 << 30
    """Over it the tree is frozen and killed; ``limit`` is ``output_limit``."""
    disk_watermark_bytes: int = 64 << 20
    """Less free space, while this run prints: the same with ``storage_full``."""
    process_limit: int | None = None
    """RLIMIT_NPROC of the child. It counts all processes of the user and does not bind root."""


class SpawnFailed(Exception):
    """The child did not become the program; nothing of it is left, and the run directory can be used again.

    ``stage`` says what failed: ``cwd`` (the working directory), ``exec`` (the program), ``directory`` (the run directory),
    ``limits``, ``setup``, ``fork``; ``errno`` why, 0 when it was no system call.
    """

    def __init__(self, stage: str, errno: int, message: str) -> None:
        super().__init__(f"{stage}: {message}")
        self.stage, self.errno = stage, errno


@asynccontextmanager
async def open_keeper(data_dir: Path, *, generation: int) -> AsyncIterator[Keeper]:
    """The keeper of *data_dir*: a living one of this build, or a new one; those of other builds are retired.

    Args:
        data_dir: exists, belongs to this node alone.
        generation: grows with every node that takes the data directory; wardens obey the newest.

    Raises:
        KeeperUnavailable: none could be started.
    """
    home = await asyncio.to_thread(install, data_dir)
    for other in other_homes(home):
        retire(other)
    keeper = Keeper(home, generation=generation)
    await keeper.connect()
    try:
        yield keeper
    finally:
        await keeper.leave()


class Keeper:
    """Makes wardens on request. Any number of calls may be under way."""

    def __init__(self, home: Path, *, generation: int) -> None:
        self._home = home
        self._generation = generation
        self._connection: KeeperConnection | None = None
        self._connecting = asyncio.Lock()  # one keeper is started, however many runs miss it
        self._links: set[WardenLink] = set()

    @property
    def pid(self) -> int | None:
        """The keeper's process, None while no connection to one stands."""
        return self._connection.pid if self._connection is not None and self._connection.is_alive else None

    async def spawn(self, request: SpawnRequest) -> WardenLink:
        """Start a child under its own warden; the link is returned when the child runs the program.

        Once per run directory: where a child was started before, this returns the link to that one. Cancelling the call may
        leave a warden behind; ``adopt`` finds it. Look at the link's attributes after ``on_change``: they may hold news.

        Raises:
            SpawnFailed: the program was not started.
            KeeperUnavailable: no keeper, or no answer; ``adopt`` tells later whether a warden took the run.
        """
        for _ in range(_SPAWN_TRIES):
            try:
                link = await self._spawn_once(request)
            except ConnectionError:
                continue
            if link is not None or (link := await self._find(request.directory)) is not None:
                return link
            self._hang_up()  # it took the order and made no warden of it: greet it anew, or its successor
        raise KeeperUnavailable(f"the keeper of {self._home} left twice while it was asked for a warden")

    async def adopt(self, directory: Path) -> WardenLink | None:
        """Connect to the living warden of *directory*; None when none lives, and the directory tells the rest."""
        for _ in range(_ADOPT_TRIES):
            if not lock_is_held(directory):
                return None
            sock = connect_to_ctl(directory)
            link = None if sock is None else await self._adopt_over(sock, directory)
            if link is not None:
                return link
            await asyncio.sleep(_ADOPT_PAUSE_S)  # it is just beginning, or just leaving
        raise KeeperUnavailable(f"the warden of {directory} holds its lock and does not answer")

    async def connect(self) -> KeeperConnection:
        """The connection to a living keeper; one is started when there is none.

        Raises:
            KeeperUnavailable: none could be started.
        """
        async with self._connecting:
            if self._connection is None or not self._connection.is_alive:
                self._connection = await connect_or_start(self._home, generation=self._generation)
            return self._connection

    async def leave(self) -> None:
        """Say good-bye and close all links; no run ends by it, and the keeper leaves when no warden lives."""
        for link in tuple(self._links):
            await link.close()
        if self._connection is not None:
            try:
                await self._connection.send({"kind": Kind.BYE})
            except ConnectionError:
                pass
            self._hang_up()

    def _hang_up(self) -> None:
        if self._connection is not None:
            self._connection.close()

    async def _spawn_once(self, request: SpawnRequest) -> WardenLink | None:
        """One try; None when nothing was heard, or another warden has the directory."""
        connection = await self.connect()
        ours, theirs = socket.socketpair()
        link = self._new_link(request.directory)
        first = link.attach(ours, greet=False)
        try:
            with theirs, open(os.devnull, "rb") as nothing:
                order = self._order(request).to_frame()
                stdin_fd = nothing.fileno() if request.stdin_fd is None else request.stdin_fd
                await connection.send(order, (theirs.fileno(), stdin_fd, request.stdout_fd))
            return self._judge(link, await self._answer(first))
        finally:
            if link.owner is None:
                await self._forget(link)

    def _judge(self, link: WardenLink, frame: Frame | None) -> WardenLink | None:
        if frame is None or frame["kind"] in (Kind.HELD, Kind.FENCED):
            return None
        if frame["kind"] == Kind.SPAWN_FAILED:
            raise SpawnFailed(str(frame["stage"]), int(frame["errno"]), str(frame["message"]))
        return link

    async def _adopt_over(self, sock: socket.socket, directory: Path) -> WardenLink | None:
        link = self._new_link(directory)
        try:
            frame = await self._answer(link.attach(sock, greet=True))
            if frame is not None and frame["kind"] == Kind.FENCED:
                raise KeeperUnavailable(f"a newer node serves the run in {directory}")
            return link if link.owner is not None else None
        finally:
            if link.owner is None:
                await self._forget(link)

    async def _find(self, directory: Path) -> WardenLink | None:
        """The link of a directory that may have been used: to its warden, or to what is written there."""
        if (link := await self.adopt(directory)) is not None:
            return link
        if read_owner(directory) is None and read_exit(directory) is None:
            return None
        link = self._new_link(directory)
        link.settle()
        return link

    async def _answer(self, first: asyncio.Future[Frame | None]) -> Frame | None:
        try:
            async with asyncio.timeout(ANSWER_TIMEOUT_S):
                return await first
        except TimeoutError as error:
            raise KeeperUnavailable(f"no answer of a warden within {ANSWER_TIMEOUT_S:g} s") from error

    def _order(self, request: SpawnRequest) -> SpawnOrder:
        return SpawnOrder(
            generation=self._generation,
            directory=os.fspath(request.directory.absolute()),
            argv=request.argv,
            cwd=request.cwd,
            env=dict(request.env),
            marker=request.marker,
            deadline_boot_s=request.deadline_boot_s,
            output_bytes=request.output_bytes,
            disk_watermark_bytes=request.disk_watermark_bytes,
            process_limit=request.process_limit,
            stdin_pipe=request.stdin_pipe,
        )

    def _new_link(self, directory: Path) -> WardenLink:
        link = WardenLink(directory, generation=self._generation)
        self._links.add(link)
        link.on_change(lambda: self._links.discard(link) if link.is_over else None)
        return link

    async def _forget(self, link: WardenLink) -> None:
        self._links.discard(link)
        await link.close()
