"""What a starting host does with the runs that an earlier one left: adopt the living, finish the finished, execute what
was accepted but never begun, and say ``interrupted`` for the rest. Every unended run gets its terminal, once.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from runtime import journal, records
from runtime.cancellation import first_of
from runtime.clock import boot_id, boot_time_s
from runtime.emitter import Emitter, Resumption
from runtime.events import error
from runtime.failure import Failure, FailureCode, FailureError
from runtime.feed import Feed
from runtime.provider import Describer, Stop, StopReason
from runtime.records import RunRecord, RunState
from runtime.registry import Lease
from runtime.run import LiveRun, read_cancel
from runtime.runs import Runs
from runtime.sessions import Session
from runtime.states import outcome_of
from runtime.types import ExecutionSpec

log = logging.getLogger(__name__)

BOOT_GAP = 1 << 20
"""After a reboot events of the page cache may be gone: numbering resumes this far above, so none is used twice."""
LARGE_BYTES = 16 << 20
"""A run with more output than this is read again while the node serves already; its readers wait, the others do not."""
CATCH_UP_S = 60.0
"""How long serving waits for one adopted run to be read up to its present."""

EndLeftovers = Callable[[Path, str], Coroutine[Any, Any, None]]
"""Ends what is left of the run in a directory, by its key: the host knows how."""


async def recover(runs: Runs, end_leftovers: EndLeftovers) -> None:
    """Take up every unended run of the index, then let *runs* accept; a run that cannot be taken up harms no other."""
    taken_up: list[LiveRun] = []
    for record in await runs.index.run(records.unended):
        try:
            if (run := await _take_up(runs, record, end_leftovers)) is not None:
                taken_up.append(run)
        except Exception:
            log.exception("run could not be taken up", extra={"run_id": record.run_id})
            await _give_up(runs, record)
        await asyncio.sleep(0)
    large = [run for run in taken_up if _raw_bytes(run) > LARGE_BYTES]
    await asyncio.gather(*(_caught_up(run) for run in taken_up if run not in large))
    runs.recovered.set()
    for run in large:
        runs.tasks.start(_caught_up(run), name="catch up")
    for run in taken_up:
        run.start_grace(runs.config.foreground_grace_s, partial(runs.abandon, run))
    log.info("recovery complete", extra={"taken_up": len(taken_up)})


async def _give_up(runs: Runs, record: RunRecord) -> None:
    """Record that the run was interrupted, without an event: its journal or its request cannot be used."""
    if (run := runs.live.pop((record.principal, record.run_id), None)) is not None:
        run.close()
    failure = Failure(code=FailureCode.INTERRUPTED, message="interrupted: what was stored of the run cannot be used")
    outcome = records.finish(
        record.ulid, state=RunState.ERROR, ended_ns=time.time_ns(), failure=failure, recovered=True
    )
    try:
        await runs.index.run(outcome)
    except FailureError:
        log.exception("run stays without an outcome", extra={"run_id": record.run_id})


def _raw_bytes(run: LiveRun) -> int:
    """How much output the run's provider has to read again."""
    provider = None if run.lease is None else run.lease.provider
    files: dict[str, Path] = provider.artifacts(run.directory) if isinstance(provider, Describer) else {}
    return sum(_size_bytes(path) for path in files.values())


def _size_bytes(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:  # its run has ended meanwhile, and what it printed is not kept
        return 0


async def _caught_up(run: LiveRun) -> None:
    """Wait until the run is known to be going on, or has ended; only then may its deadline end it.

    A run that waits for a slot, or whose provider begins it anew, has nothing to catch up with.
    """
    if run.ticket.granted.is_set() and run.lease is not None and run.lease.capabilities.survives_host:
        await first_of(run.ctx.caught_up.wait(), run.ended.wait(), within_s=CATCH_UP_S)
    if not run.ended.is_set():
        run.arm_deadline()


async def _take_up(runs: Runs, record: RunRecord, end_leftovers: EndLeftovers) -> LiveRun | None:
    directory = runs.storage.run_directory(record.ulid)
    end = journal.open_end(directory / journal.NAME)
    if end.last is not None and end.last.is_terminal:
        await _finish_finished(runs, record, end, end_leftovers)
        return None
    if record.spec is None:
        raise ValueError("the stored request cannot be read")
    is_gone = not directory.is_dir()
    runs.storage.make_run_directory(record.ulid)
    run = _live_again(runs, replace(record, recovered=True), record.spec, end)
    emitter = _emitter(runs, run, end, is_gone=is_gone)
    await runs.index.run(records.renew_boot(record.ulid, boot_id()))
    if (reason := _why_not(run, end, is_gone=is_gone)) is not None:
        await end_leftovers(directory, record.ulid)
        await _interrupt(runs, run, emitter, reason, has_begun=end.last is not None)
        return None
    runs.executor.begin(run, emitter)
    return run


async def _finish_finished(runs: Runs, record: RunRecord, end: journal.JournalEnd, end_leftovers: EndLeftovers) -> None:
    """The terminal is in the journal, only the index does not know it yet."""
    assert end.last is not None
    outcome = outcome_of(end.last.type)
    failure = None if end.last.failure is None else end.last.failure.to_failure()
    directory = runs.storage.run_directory(record.ulid)
    runs.tasks.start(end_leftovers(directory, record.ulid), name="leftovers")  # nothing waits for it: the run is over
    if outcome is RunState.COMPLETE and record.spec is not None:
        session = runs.sessions.find(record.principal, record.session_id)
        if session is not None:
            runs.sessions.note_history(session)
            await runs.sessions.store_history(record.principal, record.session_id)
    await runs.index.run(
        records.finish(
            record.ulid,
            state=outcome,
            ended_ns=end.last.time_ns,
            failure=failure,
            recovered=record.recovered,
            size_bytes=runs.storage.size_bytes(directory),
        )
    )


def _live_again(runs: Runs, record: RunRecord, spec: ExecutionSpec, end: journal.JournalEnd) -> LiveRun:
    has_begun = end.last is not None
    found, turn = runs.sessions.reclaim(record.principal, record.session_id, record.ulid, has_begun=has_begun)
    session = found or _forgotten_session(record, spec)
    try:
        lease: Lease | None = runs.registry.lease(adapter=spec.adapter, target=spec.target)
    except FailureError:
        lease = None  # the profile is gone from the configuration
    limit = 0 if lease is None else lease.capabilities.max_concurrency
    ticket = runs.capacity.park(adapter=spec.adapter, target=spec.target, target_limit=limit)
    if turn.granted.is_set():
        runs.capacity.enter(ticket, has_begun=has_begun)
    feed = Feed(published=0 if end.last is None else end.last.sequence, ring_bytes=runs.config.ring_bytes)
    run = runs.acceptance.live_run(record, spec, session, lease, turn, ticket, feed)
    runs.live[record.principal, record.run_id] = run  # from here on whoever gives up lets go of what it holds
    run.record = replace(record, state=RunState.ACCEPTED if end.last is None else RunState.RUNNING)
    run.ctx.recorded = end.position
    run.ctx.adopting = lease is not None and lease.capabilities.survives_host  # the others begin anew
    if (stop := read_cancel(run.directory)) is not None:
        run.ctx.request_stop(stop)
    run.open_journal()
    run.accepted.set_result(None)
    return run


def _emitter(runs: Runs, run: LiveRun, end: journal.JournalEnd, *, is_gone: bool) -> Emitter:
    last = end.last
    sequence = 0 if last is None else last.sequence
    if run.record.boot_id != boot_id() or is_gone:
        sequence += BOOT_GAP
    before = Resumption(
        last_sequence=sequence, last_time_ns=0 if last is None else last.time_ns, has_started=last is not None
    )
    run.emitter = Emitter(run.ctx, run.spec, run, resumption=before, sink_timeout_s=runs.config.sink_timeout_s)
    return run.emitter


def _why_not(run: LiveRun, end: journal.JournalEnd, *, is_gone: bool) -> str | None:
    """Why the run cannot go on, as a sentence; None when its provider is to be asked."""
    if is_gone:
        return "the run's directory is gone"
    if run.lease is None:
        return f"target {run.spec.target!r} is no longer configured"
    if end.last is not None and not run.lease.capabilities.survives_host:
        return "the node stopped while the run was executing"
    deadline = run.record.deadline_boot_s
    if end.last is None and deadline is not None and (run.record.boot_id != boot_id() or deadline <= boot_time_s()):
        run.ctx.request_stop(Stop(reason=StopReason.DEADLINE, message="the run deadline passed before it could begin"))
    return None


async def _interrupt(runs: Runs, run: LiveRun, emitter: Emitter, reason: str, *, has_begun: bool) -> None:
    facts = {"spawned": "true" if has_begun else "unknown"}
    await emitter.emit([error(Failure(code=FailureCode.INTERRUPTED, message=f"interrupted: {reason}", metadata=facts))])
    await runs.executor.settle(run)


def _forgotten_session(record: RunRecord, spec: ExecutionSpec) -> Session:
    return Session(
        principal=record.principal, session_id=record.session_id, key=record.ulid, adapter=spec.adapter, target=spec.target,
        anonymous=True, created_ns=record.accepted_ns, used_ns=record.accepted_ns,
    )  # fmt: skip
