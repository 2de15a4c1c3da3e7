"""The engine of single runs: accept, follow, cancel.

A run is accepted when its row is durable; from then on it reaches exactly one terminal, in this process or the next.
:mod:`runtime.acceptance` makes it, :mod:`runtime.execution` executes it.
"""

from __future__ import annotations

import asyncio
import logging
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TypeVar

from runtime import records
from runtime.acceptance import Acceptance, Asked
from runtime.background import Background
from runtime.cancellation import to_the_end
from runtime.capacity import Capacity
from runtime.config import RuntimeConfig
from runtime.execution import Executor
from runtime.failure import FailureCode, FailureError, TargetNotFound
from runtime.index import Index
from runtime.keys import LOCAL, new_ulid, request_digest
from runtime.provider import Stop, StopReason
from runtime.readers import Reader, check_cursor, read_ended
from runtime.records import RunRecord, RunState
from runtime.registry import Lease, Registry
from runtime.resolve import (
    check_forks,
    check_mcp_servers,
    check_policy,
    check_request,
    check_same,
    parse_policy,
    run_not_found,
)
from runtime.run import LiveRun
from runtime.sessions import Session, Sessions
from runtime.storage import Storage
from runtime.types import RunRequest

T = TypeVar("T")
Found = LiveRun | RunRecord

log = logging.getLogger(__name__)

CANCEL_REPORT_S = 3.0
"""How long beyond the grace a cancel call waits to tell the outcome."""


class StorageLow(FailureError):
    """The disk is nearly full: new runs would hurt those that are running."""

    code = FailureCode.STORAGE_FULL


class Draining(FailureError):
    """The node takes no new runs; try another, or this one later."""

    code = FailureCode.DRAINING


@dataclass(frozen=True, slots=True, kw_only=True)
class CancelReceipt:
    """What a cancel did: accepted, or too late because the run had ended; and the state it is in now."""

    accepted: bool
    state: RunState


class Runs:
    """All runs of one data directory. One per host process, used on one loop; made by :func:`open_runs`."""

    def __init__(
        self, config: RuntimeConfig, storage: Storage, index: Index, registry: Registry, known: Sessions
    ) -> None:
        self.config, self.storage, self.index, self.registry, self.sessions = config, storage, index, registry, known
        self.capacity = Capacity(config.max_concurrent_runs, queue_limit=config.max_queued_runs)
        self.live: dict[tuple[str, str], LiveRun] = {}
        self.recovered = asyncio.Event()
        self.draining = asyncio.Event()
        self.is_leaving = False
        self.tasks = Background()
        self.executor = Executor(config, storage, index, self.live, self.tasks, known)
        self.acceptance = Acceptance(config, storage, index, known, self.capacity, self.executor, self.live)

    @property
    def queued(self) -> int:
        """How many accepted runs wait for a slot or for their session."""
        return self.capacity.waiting + self.sessions.turns.waiting

    @property
    def readers(self) -> int:
        return sum(run.readers for run in self.live.values())

    # -- accept -----------------------------------------------------------------------------------------------------

    async def dispatch(
        self, request: RunRequest, *, principal: str = LOCAL, after: int = 0, outer_deadline_s: float | None = None
    ) -> Reader:
        """Accept *request* and return a reader on its events; the same request again returns another reader.

        *outer_deadline_s* is the caller's own patience in seconds: it bounds a foreground run, and is no part of the
        request.

        Raises:
            FailureError: nothing was accepted, and no process was started.
        """
        asked = await self._asked(request, principal, outer_deadline_s=outer_deadline_s)
        return await self._once(asked, self._accept, lambda found: self._reader(found, after), after=after)

    async def queue(self, request: RunRequest, *, principal: str = LOCAL) -> str:
        """Accept *request* as a run that waits for its session, and answer its id; the same again answers the same.

        Raises:
            FailureError: nothing was accepted.
        """
        asked = await self._asked(request, principal, may_wait=True)
        await self._once(asked, lambda run: to_the_end(self.acceptance.admit(run)), self._until_accepted)
        return asked.run_id

    async def _once(
        self, asked: Asked, begin: Callable[[LiveRun], Awaitable[T]], join: Callable[[Found], Awaitable[T]], *,
        after: int = 0,
    ) -> T:  # fmt: skip
        """*begin* the run that is asked for, or *join* the one that is there under its id, if it is the same."""
        found = self._find(asked.principal, asked.run_id)
        if found is None:
            check_cursor(asked.run_id, after, first=1, last=0)
            found, is_new = await self._claim(asked)
            if is_new:
                try:
                    return await begin(found)
                except sqlite3.IntegrityError:  # it came in and has even ended
                    found = self._get(asked.principal, asked.run_id)
        check_same(found.record if isinstance(found, LiveRun) else found, asked.digest)
        return await join(found)

    async def _until_accepted(self, found: Found) -> None:
        if isinstance(found, LiveRun):
            await asyncio.shield(found.accepted)

    async def _asked(
        self, request: RunRequest, principal: str, *, outer_deadline_s: float | None = None, may_wait: bool = False
    ) -> Asked:
        """*request*, checked, with the id it will have; refused here it has claimed nothing."""
        await self.recovered.wait()
        mode = check_request(request, max_input_bytes=self.config.max_input_bytes)
        parse_policy(request.policy)
        return Asked(
            request=request, mode=mode, principal=principal, run_id=request.run_id or new_ulid().lower(),
            digest=request_digest(request), outer_deadline_s=outer_deadline_s, may_wait=may_wait,
        )  # fmt: skip

    async def _claim(self, asked: Asked) -> tuple[LiveRun, bool]:
        """The run of that id, with True when it was made here and is still to be admitted."""
        lease = await self._lease(asked)
        if (found := self.live.get((asked.principal, asked.run_id))) is not None:  # it came in while we waited
            lease.release()
            return found, False
        return self.acceptance.claim(asked, lease), True

    async def _lease(self, asked: Asked) -> Lease:
        request = asked.request
        if self.draining.is_set():
            raise Draining("this node takes no new runs; dispatch to another node")
        if (free := self.storage.free_bytes()) < 2 * self.config.disk_watermark_bytes:
            raise StorageLow(
                f"only {free >> 20} MiB are free in the node's data directory; make room, or dispatch elsewhere"
            )
        lease = self.registry.lease(adapter=request.adapter, target=request.target)
        try:
            check_policy(request.policy, lease.capabilities.policy_keys, target=lease.target)
            check_mcp_servers(request.policy, lease.capabilities.mcp_servers, target=lease.target)
            check_forks(asked.mode, lease.capabilities.forks, target=lease.target)
            served = (await lease.provider.capabilities()).targets
        except BaseException:
            lease.release()
            raise
        if lease.target not in served:
            lease.release()
            raise TargetNotFound(f"target {lease.target!r} is no longer served by its provider", target=lease.target)
        return lease

    async def _accept(self, run: LiveRun) -> Reader:
        """Make the claim durable and begin; a caller that leaves meanwhile leaves an accepted run like any other."""
        run.attach()
        reader = Reader(run.spec.run_id, run.cursor(0), lambda: self._detach(run))
        try:
            await to_the_end(self.acceptance.admit(run))
        except BaseException:
            reader.close()
            raise
        return reader

    # -- follow -----------------------------------------------------------------------------------------------------

    async def attach(self, run_id: str, *, principal: str = LOCAL, after: int = 0) -> Reader:
        """A reader on the run's events beyond sequence *after*, live or ended.

        Raises:
            NotFound: no such run of this principal.
            InvalidRequest: *after* is negative.
            CursorOutOfRange: events after it are not held, or it lies beyond the last.
        """
        await self.recovered.wait()
        return await self._reader(self._get(principal, run_id), after)

    async def _reader(self, found: Found, after: int) -> Reader:
        if isinstance(found, RunRecord):
            return read_ended(found, self.storage.run_directory(found.ulid), after)
        await asyncio.shield(found.accepted)
        if found.ended.is_set() and found.is_stored:  # a terminal that the disk did not take is in memory only
            return read_ended(found.record, found.directory, after)
        check_cursor(found.spec.run_id, after, first=1, last=found.feed.published)
        found.attach()
        return Reader(found.spec.run_id, found.cursor(after), lambda: self._detach(found))

    def _detach(self, run: LiveRun) -> None:
        run.detach(self.config.foreground_grace_s, lambda: self.abandon(run))

    def abandon(self, run: LiveRun) -> None:
        """Nobody has read a foreground run for the whole grace: cancel it, unless it was the host that sent them away."""
        if self.is_leaving:
            return
        self.tasks.start(run.cancel(f"no reader for {self.config.foreground_grace_s:g} s"), name="abandon")

    # -- look and cancel --------------------------------------------------------------------------------------------

    async def cancel(self, run_id: str, *, principal: str = LOCAL, reason: str = "") -> CancelReceipt:
        """End the run as cancelled; returns when it has ended, or when the grace is over. Idempotent.

        Raises:
            NotFound: no such run of this principal.
        """
        found = await self._accepted(principal, run_id)
        if isinstance(found, RunRecord):
            return CancelReceipt(accepted=False, state=found.state)
        accepted = await found.cancel(reason or "cancelled on request")
        try:
            async with asyncio.timeout(self.config.cancel_grace_s + CANCEL_REPORT_S):
                await found.ended.wait()
        except TimeoutError:
            pass  # the kill goes on; the state says that it is not over
        return CancelReceipt(accepted=accepted, state=found.record.state)

    def open_requests(self, record: RunRecord) -> tuple[str, ...]:
        """Ids of the run's questions that wait for an answer."""
        live = self.live.get((record.principal, record.run_id))
        return () if live is None else live.desk.open_requests

    async def get(self, run_id: str, *, principal: str = LOCAL) -> RunRecord:
        """The run as it is now."""
        found = await self._accepted(principal, run_id)
        return found.record if isinstance(found, LiveRun) else found

    def active_run_id(self, session: Session) -> str:
        """The run that has the session; empty when none has."""
        ulid = self.sessions.active_run(session)
        return next((run.spec.run_id for run in self.live.values() if run.record.ulid == ulid), "")

    def queue_position(self, record: RunRecord) -> int:
        """The run's place among those that wait for its session or for a slot, 1 being next; 0 when it does not wait."""
        live = self.live.get((record.principal, record.run_id))
        return 0 if live is None else live.queue_position

    async def page(
        self, *, principal: str = LOCAL, before: str = "", limit: int = 100, active_only: bool = False
    ) -> list[RunRecord]:
        """The principal's runs, newest first, beginning before the run with key *before*."""
        await self.recovered.wait()
        found = await self.index.run(records.page(principal, before=before, limit=limit, active_only=active_only))
        return [live.record if (live := self.live.get((principal, r.run_id))) else r for r in found]

    async def _accepted(self, principal: str, run_id: str) -> Found:
        """The run, once it is accepted: before that nothing of it is certain, and one that is refused was never there."""
        await self.recovered.wait()
        found = self._get(principal, run_id)
        if isinstance(found, LiveRun):
            try:
                await asyncio.shield(found.accepted)
            except (FailureError, sqlite3.IntegrityError) as refusal:
                raise run_not_found(run_id) from refusal
        return found

    def _get(self, principal: str, run_id: str) -> Found:
        found = self._find(principal, run_id)
        if found is None:
            raise run_not_found(run_id)
        return found

    def _find(self, principal: str, run_id: str) -> Found | None:
        if (live := self.live.get((principal, run_id))) is not None:
            return live
        return self.index.look_up(records.find(principal, run_id))

    # -- leave ------------------------------------------------------------------------------------------------------

    def drain(self) -> None:
        """Take no new runs from now on; those that are accepted go on."""
        self.draining.set()

    def leave(self) -> None:
        """Readers are sent away from now on, and come back to the next host: that they go abandons no run."""
        self.drain()
        self.is_leaving = True

    async def idle(self) -> None:
        """Wait until no accepted run is left."""
        while going_on := [run for run in self.live.values() if not run.ended.is_set()]:
            for run in going_on:
                await run.ended.wait()

    async def cancel_all(self, reason: str) -> None:
        """Cancel every run, and wait for their ends as long as a cancel may take."""
        found = [live.cancel(reason) for live in self.live.values()]
        await asyncio.gather(*found)
        try:
            async with asyncio.timeout(self.config.cancel_grace_s + CANCEL_REPORT_S):
                await self.idle()
        except TimeoutError:
            log.warning("runs are left after a cancel of all", extra={"left": len(self.live)})

    def reconfigure(self, config: RuntimeConfig) -> None:
        """Use *config* for runs accepted from now on; waiting ones begin when its limits let them."""
        self.config = self.executor.config = self.acceptance.config = config
        self.capacity.resize(config.max_concurrent_runs, queue_limit=config.max_queued_runs)

    async def close(self, *, grace_s: float = 5.0) -> None:
        """Take no more runs. Runs that survive their host are left to the next process; the others are cancelled."""
        self.leave()
        mortal = [
            run for run in self.live.values() if run.lease is not None and not run.lease.capabilities.survives_host
        ]
        for run in mortal:
            run.ctx.request_stop(Stop(reason=StopReason.CANCELLED, message="the node is shutting down"))
        tasks = {run.task for run in mortal if run.task is not None}
        if tasks:
            await asyncio.wait(tasks, timeout=grace_s)
        await self.tasks.end(within_s=grace_s)


@asynccontextmanager
async def open_runs(config: RuntimeConfig, storage: Storage, index: Index, registry: Registry) -> AsyncIterator[Runs]:
    """The engine over what is stored; it accepts nothing until ``recovered`` is set (:mod:`runtime.recovery`)."""
    runs = Runs(config, storage, index, registry, await Sessions.load(index))
    try:
        yield runs
    finally:
        await runs.close()
