"""The execution of accepted runs: wait for a slot, drive the provider, record the outcome, let go.

One task per run, owned here. What a run holds (slot, session, provider, journal) is given back on every path.
"""

from __future__ import annotations

import asyncio
import logging

from runtime import records
from runtime.background import Background
from runtime.cancellation import first_of
from runtime.clock import boot_time_s
from runtime.config import RuntimeConfig
from runtime.emitter import Emitter, execute
from runtime.events import error
from runtime.failure import failure_from_exception
from runtime.index import Index
from runtime.provider import Describer, Stop, StopReason
from runtime.records import RunState
from runtime.run import LiveRun
from runtime.sessions import Sessions
from runtime.states import is_success
from runtime.storage import Storage

log = logging.getLogger(__name__)

SUPPRESSED = "suppressed"
"""File in a run's directory: how many events of its provider did not fit the grammar and were shown to nobody."""
PREVIOUS_TURN_S = 5.0
"""How long a turn waits for what is left of the one before it on its session."""


class Executor:
    """Executes runs. *live* is the table of all runs between acceptance and recorded outcome; runs leave it here."""

    def __init__(
        self,
        config: RuntimeConfig,
        storage: Storage,
        index: Index,
        live: dict[tuple[str, str], LiveRun],
        tasks: Background,
        known: Sessions,
    ) -> None:
        self.config, self._storage, self._index, self._live, self._tasks = config, storage, index, live, tasks
        self._sessions = known
        self._begun: dict[str, set[asyncio.Task[None]]] = {}

    def begin(self, run: LiveRun, emitter: Emitter) -> None:
        """Execute the accepted *run* in a task of its own; this object owns the task."""
        run.emitter = emitter
        run.task = self._tasks.start(self._drive(run, emitter), name=f"run {run.spec.run_id}")

    async def _drive(self, run: LiveRun, emitter: Emitter) -> None:
        assert run.lease is not None
        if not run.ctx.adopting:  # an adopted run may have ended in time: recovery arms it when that is known
            run.arm_deadline()
        try:
            await self._wait_for_session(run)
            await self._wait_for_slot(run)
            await execute(run.lease.provider, run.ctx, run.spec, emitter)
        except Exception as problem:
            await self._end_all_the_same(run, emitter, problem)
        finally:
            await self.settle(run)

    async def _wait_for_session(self, run: LiveRun) -> None:
        """Wait until it is this run's turn or it is told to stop, then a while for what is left of the turns before.

        The runs before have bounds of their own; a bound here would lose what was said behind a long one.
        """
        if not run.turn.granted.is_set():
            await first_of(run.turn.granted.wait(), run.ctx.stopped())
        if not run.turn.granted.is_set():
            return
        assert run.task is not None
        begun = self._begun.setdefault(run.session.key, set())
        before = tuple(begun)
        begun.add(run.task)
        if before:
            await first_of(asyncio.wait(before), run.ctx.stopped(), within_s=PREVIOUS_TURN_S)

    async def _end_all_the_same(self, run: LiveRun, emitter: Emitter, problem: Exception) -> None:
        """What went wrong here was the host's doing; the run's readers get a terminal, if it can be shown at all."""
        log.error("run failed in its host: %s", problem, exc_info=problem, extra={"run_id": run.spec.run_id})
        if not emitter.has_ended:
            await emitter.emit([error(failure_from_exception(problem))])

    async def _wait_for_slot(self, run: LiveRun) -> None:
        """Wait until a slot is free or the run is told to stop; its own time-out counts from then."""
        if run.ticket.granted.is_set():
            return
        run.ticket.enter()
        await first_of(run.ticket.granted.wait(), run.ctx.stopped(), within_s=self.config.queue_timeout_s)
        if not run.ticket.granted.is_set():
            waited = f"no execution slot became free within {self.config.queue_timeout_s:g} s"
            run.ctx.request_stop(Stop(reason=StopReason.QUEUE, message=waited))
        elif run.spec.timeout:
            deadline = earliest(run.record.deadline_boot_s, boot_time_s() + run.spec.timeout.total_seconds())
            await self._index.run(records.renew_deadline(run.record.ulid, deadline))
            run.set_deadline(deadline)

    async def settle(self, run: LiveRun) -> None:
        """Record the outcome in the index and let go; readers have seen the terminal already."""
        run.close()
        try:
            await self._record_outcome(run)
        finally:  # what could not be recorded is found in the journal at the next start
            if run.is_stored or run.record.ended_ns is None:
                self._live.pop((run.record.principal, run.record.run_id), None)
            self._leave(run)

    def _leave(self, run: LiveRun) -> None:
        begun = self._begun.get(run.session.key, set())
        begun -= {run.task}
        if not begun:
            self._begun.pop(run.session.key, None)

    async def _record_outcome(self, run: LiveRun) -> None:
        record, size_bytes = run.record, 0
        if not run.is_stored or record.ended_ns is None:
            return
        try:
            size_bytes = await asyncio.to_thread(self._tidy, run)
        except OSError:  # a full disk, a directory removed under us: the outcome is recorded all the same
            log.exception("run could not be tidied", extra={"run_id": run.spec.run_id})
        outcome = records.finish(
            record.ulid, state=record.state, ended_ns=record.ended_ns, failure=record.failure,
            recovered=record.recovered, size_bytes=size_bytes,
        )  # fmt: skip
        if record.state is RunState.COMPLETE:
            await self._sessions.store_history(record.principal, record.session_id)
        await self._index.run(outcome)
        log.info("ended", extra={"run_id": run.spec.run_id, "state": record.state.value})

    def _tidy(self, run: LiveRun) -> int:
        """Drop the raw output where it is not kept, and answer how many bytes the run left. Blocks."""
        is_kept = self.config.keep_raw.keeps(is_complete=is_success(run.record.state))
        if run.lease is not None and isinstance(run.lease.provider, Describer) and not is_kept:
            self._storage.remove_files(run.directory, run.lease.provider.artifacts(run.directory).values())
        if run.emitter is not None and run.emitter.suppressed:
            (run.directory / SUPPRESSED).write_text(str(run.emitter.suppressed), encoding="ascii")
        return self._storage.size_bytes(run.directory)


def earliest(*moments: float | None) -> float | None:
    """The first of *moments* that is one; None when none is."""
    return min((moment for moment in moments if moment is not None), default=None)
