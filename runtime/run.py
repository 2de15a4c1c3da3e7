"""One live run: its events on their way to the journal and the readers, and the order in which it ends.

The order of the end is the heart of the promises: ticket and session are free, then the terminal is in the journal and
synced, and only then can any reader see it.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from runtime.cancellation import to_the_end
from runtime.capacity import Ticket
from runtime.clock import Alarm
from runtime.emitter import Emitter
from runtime.events import EventType, RuntimeEvent
from runtime.feed import Cursor, Feed
from runtime.journal import NAME as JOURNAL
from runtime.journal import Journal, StorageFull
from runtime.permissions import PermissionDesk
from runtime.provider import RunContext, Stop, StopReason
from runtime.records import RunRecord, RunState
from runtime.registry import Lease
from runtime.sessions import Session, Sessions
from runtime.states import outcome_of
from runtime.turns import Turn
from runtime.types import ExecutionSpec

log = logging.getLogger(__name__)

CANCEL_FILE = "cancel"


class SessionView:
    """The run's private view of its session: the provider's own id, and nothing else."""

    def __init__(self, sessions: Sessions, session: Session) -> None:
        self._sessions, self._session = sessions, session

    @property
    def key(self) -> str:
        return self._session.key

    @property
    def is_named(self) -> bool:
        return not self._session.anonymous

    @property
    def has_history(self) -> bool:
        return self._sessions.has_history(self._session)

    @property
    def native_id(self) -> str | None:
        return self._sessions.native_id(self._session)

    @property
    def is_fork(self) -> bool:
        return bool(self._session.forked_from)

    @property
    def source_id(self) -> str | None:
        return self._sessions.source_id(self._session)

    async def remember(self, native_id: str) -> None:
        await self._sessions.remember(self._session, native_id)


class LiveRun:
    """A run between acceptance and its recorded outcome. It is the writer its emitter writes to."""

    def __init__(
        self,
        *,
        record: RunRecord,
        spec: ExecutionSpec,
        directory: Path,
        ctx: RunContext,
        feed: Feed,
        lease: Lease | None,
        ticket: Ticket,
        session: Session,
        turn: Turn,
        desk: PermissionDesk,
        note_history: Callable[[], None] = lambda: None,
        make_room: Callable[[], bool] = lambda: False,
        journal_bytes: int = 1 << 30,
    ) -> None:
        self.record, self.spec, self.directory = record, spec, directory
        self.ctx, self.feed, self.lease, self.session = ctx, feed, lease, session
        self.ticket, self.turn = ticket, turn
        self._note_history, self._make_room = note_history, make_room
        self.desk = desk
        self.is_stored = False
        self._journal_bytes = journal_bytes
        self._journal: Journal | None = None
        self.emitter: Emitter | None = None
        self.accepted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.task: asyncio.Task[None] | None = None
        self.ended = asyncio.Event()
        self.readers = 0
        self._grace: asyncio.TimerHandle | None = None
        self._alarm: Alarm | None = None
        self._cancelling: asyncio.Task[None] | None = None
        ctx.on_stop(self._on_stop)

    # -- events -----------------------------------------------------------------------------------------------------

    def open_journal(self) -> None:
        self._journal = Journal(self.directory)

    async def write(self, events: Sequence[RuntimeEvent]) -> None:
        """Store and show *events*; the terminal one in the order of the end."""
        if not events[-1].is_terminal:
            self._store(events)
            return
        try:
            if len(events) > 1:
                self._store_or_make_room(events[:-1])
        finally:  # nobody may wait for ever for a terminal, whatever became of that which came with it
            await to_the_end(self._end(events[-1]))

    def _store_or_make_room(self, events: Sequence[RuntimeEvent]) -> None:
        """What belongs to the end of a run is worth the reserve: its start, if nothing was stored before."""
        try:
            self._store(events)
        except StorageFull:
            if not self._make_room():
                raise
            self._store(events)

    def _store(self, events: Sequence[RuntimeEvent]) -> None:
        assert self._journal is not None
        self._journal.append(events)
        if self._journal.size_bytes > self._journal_bytes:  # many tiny lines: their events weigh more than they do
            message = f"the run's events are more than the output limit of {self._journal_bytes} bytes"
            self.ctx.request_stop(Stop(reason=StopReason.OUTPUT_LIMIT, message=message))
        if self.record.state is RunState.ACCEPTED:
            self.record = replace(self.record, state=RunState.RUNNING)
        self.feed.publish(events)

    async def _end(self, terminal: RuntimeEvent) -> None:
        self.release()
        self.is_stored = await self._store_terminal(terminal)
        if terminal.type is EventType.COMPLETE:
            self._note_history()
        failure = None if terminal.failure is None else terminal.failure.to_failure()
        self.record = replace(self.record, state=outcome_of(terminal.type), ended_ns=terminal.time_ns, failure=failure)
        self.feed.publish([terminal])
        self.feed.end()
        self.ended.set()

    async def _store_terminal(self, terminal: RuntimeEvent) -> bool:
        """Append and sync; False when the disk takes nothing even after room was made.

        Such a terminal is shown all the same, since nobody may wait for ever, but it is not recorded as the outcome: the
        next start of the host decides anew, from the evidence.
        """
        assert self._journal is not None
        try:
            try:
                self._journal.append([terminal])
            except StorageFull:
                self._make_room()
                self._journal.append([terminal])
            await asyncio.to_thread(self._journal.sync)
        except (StorageFull, OSError):
            log.exception("terminal could not be stored", extra={"run_id": self.spec.run_id})
            return False
        return True

    def cursor(self, after: int) -> Cursor:
        """A new place in this run's events, beyond *after*."""
        return Cursor(self.directory / JOURNAL, after=after, feed=self.feed, last=0)

    def release(self) -> None:
        """Free what the run occupied: its execution slot and its session. Repeating does nothing."""
        self.ticket.release()
        self.turn.release()

    def close(self) -> None:
        """Let go of the journal; the readers go on with the file."""
        self.release()
        if self.lease is not None:
            self.lease.release()
        self._cancel_grace()
        if self._alarm is not None:
            self._alarm.cancel()
        if self._journal is not None:
            self._journal.close()
            self._journal = None
        self.feed.end()
        self.ended.set()

    @property
    def queue_position(self) -> int:
        """The place among those that wait for the session, then for a slot, 1 being next; 0 once it may execute."""
        return self.turn.position or self.ticket.position

    # -- readers and the end of their patience -----------------------------------------------------------------------

    def attach(self) -> None:
        self.readers += 1
        self._cancel_grace()

    def detach(self, grace_s: float, abandon: Callable[[], None]) -> None:
        """One reader less; the last one of a foreground run starts the grace, after which *abandon* is called."""
        self.readers -= 1
        self.start_grace(grace_s, abandon)

    def start_grace(self, grace_s: float, abandon: Callable[[], None]) -> None:
        if self.readers or self.spec.background or self.ended.is_set():
            return
        self._cancel_grace()
        self._grace = asyncio.get_running_loop().call_later(grace_s, abandon)

    def _cancel_grace(self) -> None:
        if self._grace is not None:
            self._grace.cancel()
            self._grace = None

    # -- stopping ---------------------------------------------------------------------------------------------------

    @property
    def is_ending(self) -> bool:
        """The terminal is decided, though perhaps not visible yet."""
        return self.ended.is_set() or (self.emitter is not None and self.emitter.has_ended)

    def arm_deadline(self) -> None:
        """From now on the run is told to stop when its deadline passes; at once if it has passed."""
        if self._alarm is not None:
            self._alarm.cancel()
        if (at := self.record.deadline_boot_s) is not None:
            stop = Stop(reason=StopReason.DEADLINE, message="the run deadline passed")
            self._alarm = Alarm(at, lambda: self.ctx.request_stop(stop))

    def set_deadline(self, at_boot_s: float | None) -> None:
        """Move the deadline, for the provider and the record alike."""
        self.record = replace(self.record, deadline_boot_s=at_boot_s)
        self.ctx.deadline_boot_s = at_boot_s
        self.arm_deadline()

    async def cancel(self, reason: str) -> bool:
        """Record the cancel durably, then ask the run to end; False when its outcome was decided before.

        A caller that leaves meanwhile changes nothing: what is on disk takes effect now, not after a restart.
        """
        if self.is_ending or self.ctx.stop is not None:
            return self._is_being_cancelled()
        if self._cancelling is None:
            self._cancelling = asyncio.create_task(self._record_and_stop(reason), name=f"cancel {self.spec.run_id}")
        await asyncio.shield(self._cancelling)
        return self._is_being_cancelled()

    async def _record_and_stop(self, reason: str) -> None:
        await self._record_cancel(reason)
        if not self.is_ending:
            self.ctx.request_stop(Stop(reason=StopReason.CANCELLED, message=reason))

    def _on_stop(self) -> None:
        """A run that is told to stop because the disk is full needs some of it to end: its warden's record, its terminal."""
        if self.ctx.stop is not None and self.ctx.stop.reason is StopReason.STORAGE_FULL:
            self._make_room()

    async def _record_cancel(self, reason: str) -> None:
        try:
            try:
                await asyncio.to_thread(write_cancel, self.directory, reason)
            except OSError:
                if not self._make_room():
                    raise
                await asyncio.to_thread(write_cancel, self.directory, reason)
        except OSError:  # a full disk, a directory removed under us: the run must be stoppable all the same
            log.exception("cancel could not be recorded", extra={"run_id": self.spec.run_id})

    def _is_being_cancelled(self) -> bool:
        """A cancel has counted and the run is on its way to its end; afterwards one is answered with how it ended."""
        stop = self.ctx.stop
        return stop is not None and stop.reason is StopReason.CANCELLED and not self.record.state.is_terminal


def write_cancel(directory: Path, reason: str) -> None:
    """Make the cancel of the run in *directory* durable, before the first signal. Blocks."""
    temporary = directory / f"{CANCEL_FILE}.tmp"
    with open(temporary, "w", encoding="utf-8") as file:
        json.dump({"reason": reason, "time_ns": time.time_ns()}, file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, directory / CANCEL_FILE)
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def read_cancel(directory: Path) -> Stop | None:
    """The cancel an earlier host process recorded for the run in *directory*."""
    try:
        with open(directory / CANCEL_FILE, encoding="utf-8") as file:
            reason = str(json.load(file).get("reason", ""))
    except FileNotFoundError:
        return None
    except (ValueError, AttributeError):
        reason = ""  # the file is there: a cancel was asked for, whatever is in it
    return Stop(reason=StopReason.CANCELLED, message=reason or "cancelled")
