"""Making a run: take what it needs in one step, make the claim durable, begin it, or let go of everything.

The claims on id, session and slot are made without a gap, before the row is written, and undone if it cannot be.
"""

from __future__ import annotations

import logging
import sqlite3
import time
from collections.abc import Callable
from dataclasses import dataclass

from runtime import records, sessions
from runtime.capacity import Capacity, Ticket
from runtime.clock import boot_id, boot_time_s
from runtime.config import RuntimeConfig
from runtime.emitter import Emitter
from runtime.events import NO_METADATA
from runtime.execution import Executor, earliest
from runtime.failure import FailureError
from runtime.feed import Feed
from runtime.index import Index
from runtime.keys import new_ulid
from runtime.permissions import PermissionDesk
from runtime.provider import RunContext
from runtime.records import RunRecord
from runtime.registry import Lease
from runtime.resolve import check_workspace, parse_policy
from runtime.run import LiveRun, SessionView
from runtime.sessions import Session, Sessions
from runtime.storage import Storage, not_stored
from runtime.turns import Turn
from runtime.types import ExecutionSpec, PermissionRules, RunRequest, SessionMode

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A request that may be accepted: who asks, under which id and digest, and what is no part of the request.

    *outer_deadline_s* is the caller's own patience, and with *may_wait* the run waits while its session has an active one.
    """

    request: RunRequest
    mode: SessionMode
    principal: str
    run_id: str
    digest: str
    outer_deadline_s: float | None = None
    may_wait: bool = False


class Acceptance:
    """Makes the live runs of one data directory. *live* is the table of all of them; what is claimed is listed there."""

    def __init__(
        self,
        config: RuntimeConfig,
        storage: Storage,
        index: Index,
        known: Sessions,
        capacity: Capacity,
        executor: Executor,
        live: dict[tuple[str, str], LiveRun],
    ) -> None:
        self.config, self._storage, self._index, self._sessions = config, storage, index, known
        self._capacity, self._executor, self._live = capacity, executor, live

    def claim(self, asked: Asked, lease: Lease) -> LiveRun:
        """Take id, session and slot in one step; nothing is awaited here, and a refusal has taken nothing.

        Raises:
            FailureError: one of them cannot be had.
        """
        ulid, now_ns, principal = new_ulid(), time.time_ns(), asked.principal
        try:
            session, turn = self._sessions.claim(
                principal=principal, session_id=asked.request.session_id, mode=asked.mode, adapter=lease.adapter,
                target=lease.target, run=ulid, now_ns=now_ns, fork_from=asked.request.fork_from,
                queue_limit=self.config.max_queued_per_session if asked.may_wait else 0,
            )  # fmt: skip
        except FailureError:
            lease.release()
            raise
        try:
            ticket = self._ticket(lease, turn)
        except FailureError:
            turn.release()
            lease.release()
            raise
        spec = _spec(asked, lease, session.session_id, self._workspace(asked.request, lease, session))
        deadline = _deadline(asked, begins_now=ticket.granted.is_set())
        record = RunRecord(
            ulid=ulid, principal=principal, run_id=asked.run_id, digest=asked.digest, spec=spec,
            session_id=session.session_id, accepted_ns=now_ns, boot_id=boot_id(), deadline_boot_s=deadline,
            shared_with=self._sharing(spec.workspace, session),
        )  # fmt: skip
        run = self.live_run(record, spec, session, lease, turn, ticket, Feed(ring_bytes=self.config.ring_bytes))
        self._live[principal, asked.run_id] = run
        return run

    def _ticket(self, lease: Lease, turn: Turn) -> Ticket:
        """While a run waits for its session it occupies neither a slot nor a place in the queue for one."""
        limit = lease.capabilities.max_concurrency
        take = self._capacity.take if turn.granted.is_set() else self._capacity.park
        return take(adapter=lease.adapter, target=lease.target, target_limit=limit)

    def live_run(
        self, record: RunRecord, spec: ExecutionSpec, session: Session, lease: Lease | None, turn: Turn, ticket: Ticket,
        feed: Feed,
    ) -> LiveRun:  # fmt: skip
        """The live side of *record*, with everything it holds; the caller lists it in ``live`` and begins it."""
        policy = parse_policy(spec.policy)
        silence_s = policy.silence_timeout_s or (lease and lease.capabilities.silence_timeout_s)
        rules = PermissionRules() if lease is None else lease.capabilities.permissions
        desk = PermissionDesk(self._storage.run_directory(record.ulid), rules)
        ctx = RunContext(
            directory=self._storage.run_directory(record.ulid), session=SessionView(self._sessions, session),
            permissions=desk, budget=policy.budget, mcp_servers=policy.mcp_servers,
            deadline_boot_s=record.deadline_boot_s, silence_s=silence_s or self.config.silence_timeout_s,
            cancel_grace_s=self.config.cancel_grace_s, labels=lease.capabilities.labels if lease else NO_METADATA,
        )  # fmt: skip
        return LiveRun(
            record=record, spec=spec, directory=self._storage.run_directory(record.ulid), ctx=ctx, feed=feed, lease=lease,
            ticket=ticket, session=session, turn=turn, note_history=lambda: self._sessions.note_history(session),
            make_room=self._storage.release_reserve,
            journal_bytes=self.config.output_bytes, desk=desk,
        )  # fmt: skip

    async def admit(self, run: LiveRun) -> None:
        """The row comes last: before it everything can be undone, after it nothing can be refused."""
        try:
            if run.spec.workspace == self._private_workspace(run.session):
                self._storage.make_private_workspace(run.session.directory_key)
            check_workspace(run.spec.workspace)
            self._storage.make_run_directory(run.record.ulid)
            run.open_journal()
            await self._index.run(_acceptance(run))
        except OSError as error:
            refusal = not_stored(error, self._storage.root)
            self._forget(run, refusal)
            raise refusal from error
        except BaseException as error:
            self._forget(run, error)
            raise
        self._sessions.admit(run.session)
        run.accepted.set_result(None)
        log.info("accepted", extra={"run_id": run.spec.run_id, "target": run.spec.target})
        self._executor.begin(run, Emitter(run.ctx, run.spec, run, sink_timeout_s=self.config.sink_timeout_s))

    def _forget(self, run: LiveRun, error: BaseException) -> None:
        self._live.pop((run.record.principal, run.spec.run_id), None)
        run.accepted.set_exception(error)
        run.accepted.exception()  # a duplicate call may wait for it; nobody has to
        run.close()
        self._storage.remove_run(run.record.ulid)

    def _workspace(self, request: RunRequest, lease: Lease, session: Session) -> str:
        return request.workspace or lease.capabilities.default_workspace or self._private_workspace(session)

    def _private_workspace(self, session: Session) -> str:
        return str(self._storage.private_workspace(session.directory_key))

    def _sharing(self, workspace: str, session: Session) -> tuple[str, ...]:
        """The runs that work there at the same time; those of the same session never do."""
        others = [run for run in self._live.values() if run.session.key != session.key and not run.is_ending]
        return tuple(run.spec.run_id for run in others if run.spec.workspace == workspace)


def _acceptance(run: LiveRun) -> Callable[[sqlite3.Connection], None]:
    """Session and run in one transaction: no session is left behind by a run that was not accepted."""

    def operation(connection: sqlite3.Connection) -> None:
        sessions.save(run.session)(connection)
        records.insert(run.record)(connection)

    return operation


def _spec(asked: Asked, lease: Lease, session_id: str, workspace: str) -> ExecutionSpec:
    request = asked.request
    return ExecutionSpec(
        run_id=asked.run_id, adapter=lease.adapter, target=lease.target, session_id=session_id, session_mode=asked.mode,
        background=request.background, workspace=workspace, policy=request.policy, input=request.input,
        timeout=request.timeout, metadata=request.metadata,
    )  # fmt: skip


def _deadline(asked: Asked, *, begins_now: bool) -> float | None:
    """The boot time at which the run must end: its own time-out from its beginning, for a foreground run the caller's too."""
    now, request = boot_time_s(), asked.request
    own = now + request.timeout.total_seconds() if request.timeout and begins_now else None
    patience_s = asked.outer_deadline_s
    outer = now + patience_s if patience_s is not None and not request.background else None
    return earliest(own, outer)
