"""Processes that outlive a run: one of a logical session waits for its next turn.

A warm process is a convenience, never the session: the session is the agent's own, and a fresh process resumes it by its
native id. So any idle process may be closed at any time: when it was idle for long, when there are too many, when its
profile changed, when it printed so much that its output file is in the way, when it crashed, when the node stops. Closing
is polite: the end of its stdin, a while, then the signals.

Each has a directory of its own below ``<data>/processes``, with the files that a run directory has, and ``process.json``
for the node that finds it later. A process whose run is under way at a node's end is left alone; the next node's run
takes it up, and closes what no run claims.
"""

from __future__ import annotations

import asyncio
import logging
import shutil
import time
from collections.abc import AsyncIterator, Collection, Coroutine
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from providers.cli.dialect import State
from providers.cli.run_files import STDOUT, read_note
from providers.keeper.client import Keeper, WardenLink, clear_append_only, end_orphans
from runtime.keys import new_ulid

log = logging.getLogger(__name__)

DIRECTORY = "processes"
NOTE = "process.json"
RECYCLE_BYTES = 256 << 20
EOF_GRACE_S = 2.0  # agents save their session and end within a tenth of that
TERM_GRACE_S = 2.0
GONE_S = 5.0
CLOSE_ALL_S = 8.0
FREED_S = 5.0  # from the terminal of a turn until its process is idle: files are left, leftovers are ended


@dataclass(frozen=True, slots=True, kw_only=True)
class Revision:
    """What a process was started with: its command, directory and environment, and the secrets, which no file repeats.

    Of a process that an earlier node left ``secret`` is empty, and taken for equal.
    """

    public: str
    secret: str = ""

    def fits(self, other: Revision) -> bool:
        return self.public == other.public and (not self.secret or not other.secret or self.secret == other.secret)


@dataclass(slots=True, kw_only=True, eq=False)
class WarmProcess:
    """One process of a session.

    A process of another ``revision`` than the session's profile has now is not used again. ``state`` is the dialect's,
    after the last turn; ``printed_bytes`` is where that turn's output ends, ``unread`` where the first line begins that was
    not part of it.
    """

    directory: Path
    session: str
    revision: Revision
    link: WardenLink
    state: State = field(default_factory=dict)
    unread: int = 0
    printed_bytes: int = 0
    is_busy: bool = True
    used_at: float = 0.0
    freed: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def is_alive(self) -> bool:
        return self.link.exit is None and not self.link.is_over


class WarmProcesses:
    """The warm processes of a node. Used on one loop; made by :func:`open_warm_processes`."""

    def __init__(self, root: Path, keeper: Keeper, *, limit: int, idle_s: float) -> None:
        self.root, self.limit, self.idle_s = root, limit, idle_s
        self._keeper = keeper
        self._known: dict[str, WarmProcess | None] = {}  # by directory name; None while it is being started
        self._closing: dict[asyncio.Task[None], str] = {}  # by task: the session, whose next process waits for it
        self._timer: asyncio.TimerHandle | None = None
        self._is_closed = False

    @property
    def idle(self) -> list[WarmProcess]:
        """Those that wait, the longest unused first."""
        waiting = [each for each in self._known.values() if each is not None and not each.is_busy]
        return sorted(waiting, key=lambda each: each.used_at)

    # -- for one turn

    async def take(self, session: str, revision: Revision) -> WarmProcess | None:
        """The session's idle process, now busy; None when a fresh one is to be started.

        What cannot be used again is closed first: two processes of one conversation would both write it down.
        """
        found = next((each for each in self.idle if each.session == session), None)
        if found is not None and found.is_alive and found.revision.fits(revision):
            found.is_busy = True
            found.freed.clear()
            return found
        if found is not None:
            self._close(found)
        if closing := [task for task, owner in self._closing.items() if owner == session]:
            await asyncio.wait(closing)
        return None

    def new_directory(self, session: str, revision: Revision) -> Path:
        """The directory of a process to be started; :meth:`add` or :meth:`forget` it."""
        self._make_room()
        directory = self.root / new_ulid()
        self._known[directory.name] = None  # before it exists: nobody may take it for a leftover
        directory.mkdir(mode=0o700)
        (directory / NOTE).write_bytes(msgspec.json.encode({"session": session, "revision": revision.public}))
        return directory

    def add(self, process: WarmProcess) -> None:
        """Know *process*, busy with its first turn."""
        self._known[process.directory.name] = process
        process.link.on_change(lambda: self._on_change(process))

    def forget(self, directory: Path) -> None:
        """Nothing was started in *directory*."""
        self._known.pop(directory.name, None)
        shutil.rmtree(directory, ignore_errors=True)

    async def adopt(self, name: str, session: str) -> WarmProcess | None:
        """The living process *name* that an earlier node left in mid-turn; None when its directory tells the rest."""
        directory = self.root / name
        self._known[name] = None
        link = await self._keeper.adopt(directory)
        if link is None:
            return None
        revision = Revision(public=str(read_note(directory, NOTE).get("revision", "")))
        process = WarmProcess(directory=directory, session=session, revision=revision, link=link)
        self.add(process)
        return process

    def give_back(self, process: WarmProcess) -> None:
        """Its turn is over: keep it warm, or close it where it may not stay."""
        process.is_busy, process.used_at = False, time.monotonic()
        process.freed.set()
        others = [each for each in self.idle if each.session == process.session and each is not process]
        for other in others:
            self._close(other)
        is_spent = process.printed_bytes > RECYCLE_BYTES
        if self._is_closed or not process.is_alive or is_spent or len(self._known) > self.limit:
            self._close(process)
        self._arm()

    def end(self, process: WarmProcess) -> asyncio.Task[None]:
        """Close *process* after its turn; the session's next process waits for the task."""
        process.is_busy = False
        process.freed.set()
        return self._close(process)

    def leave(self, process: WarmProcess) -> None:
        """Its turn goes on without this node."""
        process.freed.set()
        self._known.pop(process.directory.name, None)

    # -- for sessions and nodes

    async def end_session(self, session: str) -> None:
        """Close what the session has; gone when this returns, or as good as.

        Its last turn may have told its end and not yet given its process back: that is waited for.
        """
        with suppress(TimeoutError):
            async with asyncio.timeout(FREED_S):
                for each in [each for each in self._known.values() if each is not None and each.session == session]:
                    await each.freed.wait()
        for each in [each for each in self.idle if each.session == session]:
            self._close(each)
        if closing := [task for task, owner in self._closing.items() if owner == session]:
            await asyncio.wait(closing)

    def close_leftovers(self, claimed: Collection[str]) -> None:
        """Begin to close what an earlier node left idle: all that is neither *claimed* by a run nor known here."""
        for directory in sorted(self.root.iterdir()):
            if directory.name not in claimed and directory.name not in self._known:
                self._known[directory.name] = None
                session = str(read_note(directory, NOTE).get("session", ""))
                self._in_background(self._close_leftover(directory), session)

    async def close(self) -> None:
        """Close all idle processes; those with a run under way go on for the next node."""
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()
        for each in self.idle:
            self._close(each)
        if self._closing:
            await asyncio.wait(self._closing, timeout=CLOSE_ALL_S)

    # -- closing

    def _make_room(self) -> None:
        """Evict the longest unused ones, as many as one more process needs; busy ones are bounded by the run slots."""
        excess = len(self._known) + 1 - self.limit
        for each in self.idle[: max(0, excess)]:
            log.info("evicted a warm process", extra={"warm_process": each.directory.name})
            self._close(each)

    def _on_change(self, process: WarmProcess) -> None:
        if not process.is_busy and not process.is_alive and process.directory.name in self._known:
            self._close(process)  # it crashed, or left: the next turn begins a fresh one

    def _close(self, process: WarmProcess) -> asyncio.Task[None]:
        self._known.pop(process.directory.name, None)
        return self._in_background(self._see_out(process.directory, process.link), process.session)

    async def _close_leftover(self, directory: Path) -> None:
        try:
            if (link := await self._keeper.adopt(directory)) is not None:
                await self._see_out(directory, link)
                return
            await asyncio.to_thread(self._remove, directory, may_have_orphans=True)
        finally:
            self._known.pop(directory.name, None)

    async def _see_out(self, directory: Path, link: WardenLink) -> None:
        """The end of stdin, then the ladder; nothing of it is left afterwards."""
        link.close_input()
        if not await link.wait_gone(EOF_GRACE_S) and not link.is_over:
            link.stop(steps=("term",), grace_s=TERM_GRACE_S, reason="finished")
            await link.wait_gone(TERM_GRACE_S + GONE_S)
        await link.close()
        if link.gone or link.lost:
            await asyncio.to_thread(self._remove, directory, may_have_orphans=link.lost)

    def _remove(self, directory: Path, *, may_have_orphans: bool) -> None:
        if may_have_orphans:
            end_orphans(directory.name)
            if (directory / STDOUT).exists():
                clear_append_only(directory / STDOUT)
        shutil.rmtree(directory, ignore_errors=True)

    def _in_background(self, work: Coroutine[Any, Any, None], session: str) -> asyncio.Task[None]:
        task = asyncio.create_task(work, name="close a warm process")
        self._closing[task] = session
        task.add_done_callback(self._on_closed)
        return task

    def _on_closed(self, task: asyncio.Task[None]) -> None:
        del self._closing[task]
        if not task.cancelled() and (problem := task.exception()) is not None:
            log.error("a warm process could not be closed", exc_info=problem)

    # -- idleness

    def _arm(self) -> None:
        """One timer for all, at the time the longest unused one has been idle for long enough."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if (waiting := self.idle) and not self._is_closed:
            delay = waiting[0].used_at + self.idle_s - time.monotonic()
            self._timer = asyncio.get_running_loop().call_later(max(0.0, delay) + 0.01, self._on_idle)

    def _on_idle(self) -> None:
        self._timer = None
        before = time.monotonic() - self.idle_s
        for each in [each for each in self.idle if each.used_at <= before]:
            self._close(each)
        self._arm()


@asynccontextmanager
async def open_warm_processes(
    data_dir: Path, keeper: Keeper, *, limit: int, idle_s: float
) -> AsyncIterator[WarmProcesses]:
    """The warm processes of the node that has *data_dir*; idle ones are closed when the block ends."""
    root = data_dir / DIRECTORY
    root.mkdir(mode=0o700, exist_ok=True)
    warm = WarmProcesses(root, keeper, limit=limit, idle_s=idle_s)
    try:
        yield warm
    finally:
        await warm.close()
