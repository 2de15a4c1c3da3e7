"""The grammar of a run, enforced in one place: ``start (delta | reasoning_delta)* terminal``, exactly one terminal.

Between a provider that may report anything in any order and a host that must be able to rely on the order. The emitter
stamps, numbers, bounds and cleans; what does not fit the grammar is suppressed and counted, never passed on.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from runtime.budget import TurnCount
from runtime.events import (
    RECOVERED,
    TERMINAL,
    Draft,
    EventType,
    FailureRecord,
    RuntimeEvent,
    cancelled,
    error,
    replacing_invalid,
    start,
)
from runtime.failure import Failure, FailureCode, FailureError, failure_from_exception
from runtime.provider import Position, Provider, RunContext, Stop, StopReason
from runtime.types import ExecutionSpec

log = logging.getLogger(__name__)

DELTA_LIMIT_BYTES = 256 * 1024
_DELTAS = frozenset({EventType.DELTA, EventType.REASONING_DELTA})

_STOP_FAILURES = {
    StopReason.DEADLINE: (FailureCode.DEADLINE_EXCEEDED, "the run deadline passed"),
    StopReason.SILENCE: (FailureCode.SILENCE_TIMEOUT, "the agent gave no output for too long"),
    StopReason.OUTPUT_LIMIT: (FailureCode.OUTPUT_LIMIT, "the agent printed more than the output limit"),
    StopReason.STORAGE_FULL: (FailureCode.STORAGE_FULL, "the node's disk is full"),
    StopReason.BUDGET: (FailureCode.BUDGET_EXHAUSTED, "the run's budget is spent"),
    StopReason.QUEUE: (FailureCode.CAPACITY_EXHAUSTED, "no execution slot became free in time"),
    StopReason.SINK: (FailureCode.INTERNAL, "the host could not take the run's events"),
}


class EventWriter(Protocol):
    """Where events go: a host's store, or a list in a test."""

    async def write(self, events: Sequence[RuntimeEvent], /) -> None:
        """Store *events*; raising means that the host cannot take the run's events."""


class SinkFailed(FailureError):
    """The host could not take the run's events; not the provider's fault."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Resumption:
    """What an earlier host had already emitted of the run."""

    last_sequence: int = 0
    last_time_ns: int = 0
    has_started: bool = False


class Emitter:
    """The sink a provider reports to. One per run and host process; used on one loop.

    Output that the journal already holds (``ctx.recorded``) is recognised by its position and passed over, so a provider
    may report a run again from its beginning.
    """

    def __init__(
        self,
        ctx: RunContext,
        spec: ExecutionSpec,
        writer: EventWriter,
        *,
        session_id: str | None = None,
        resumption: Resumption | None = None,
        sink_timeout_s: float = 30.0,
        clock: Callable[[], int] = time.time_ns,
    ) -> None:
        before = resumption or Resumption()
        self._ctx, self._spec, self._writer = ctx, spec, writer
        self._session_id = spec.session_id if session_id is None else session_id
        self._recovered = resumption is not None
        self._sequence, self._time_ns, self._started = before.last_sequence, before.last_time_ns, before.has_started
        self._sink_timeout_s, self._clock = sink_timeout_s, clock
        self._skip_through = ctx.recorded
        self._turns = None if ctx.budget.turns is None else TurnCount()
        self.suppressed = 0
        self.has_ended = False
        self.sink_error: BaseException | None = None

    @property
    def has_started(self) -> bool:
        return self._started

    async def emit(self, drafts: Sequence[Draft]) -> None:
        """Take *drafts* in order.

        Raises:
            SinkFailed: the host's store raised or did not answer in time; the run has been told to stop.
            ValueError: a draft has a type outside of the grammar.
        """
        events: list[RuntimeEvent] = []
        now = max(self._clock(), self._time_ns)
        self._time_ns = now
        try:
            for draft in drafts:
                self._take(draft, now, events)
        finally:  # what was numbered before a bad draft is stored
            if events:
                await self._write(events)

    def _take(self, draft: Draft, now: int, events: list[RuntimeEvent]) -> None:
        kind = draft.type
        if self.has_ended or (self.sink_error is not None and kind not in TERMINAL):
            self.suppressed += 1  # after a batch that was not taken, what follows would hide the hole
            return
        if self._turns is not None:  # also of what is passed over: an adopted run's count goes on
            self._count_turn(self._turns, draft)
        if kind in _DELTAS:
            for piece, text in enumerate(split_text(draft.text)):
                self._append(draft, kind, text, piece, now, events)
        elif kind is EventType.START:
            self._begin(draft, now, events)
        elif kind is EventType.ACTIVITY:
            self._append(draft, kind, "", 0, now, events)
        elif kind in TERMINAL:
            self._end(draft, now, events)
        else:
            raise ValueError(f"event type {kind!r} is not one of {', '.join(EventType)}")

    def _count_turn(self, count: TurnCount, draft: Draft) -> None:
        if why := self._ctx.budget.passed_by_turns(count.take(draft)):
            self._ctx.request_stop(Stop(reason=StopReason.BUDGET, message=why))

    def _begin(self, draft: Draft, now: int, events: list[RuntimeEvent]) -> None:
        if self._started:
            self.suppressed += not self._recovered  # an adopted run reports its start again, rightly
            return
        self._started = True
        events.append(self._stamp(draft, EventType.START, now))

    def _append(
        self, draft: Draft, kind: EventType, text: str, piece: int, now: int, events: list[RuntimeEvent]
    ) -> None:
        offset, skip = draft.offset, self._skip_through
        if 0 <= offset <= skip.offset and (offset < skip.offset or Position(offset, draft.index, piece) <= skip):
            return
        if not self._started:
            self._begin(start(), now, events)
        self._sequence += 1
        metadata = {**draft.metadata, RECOVERED: "true"} if self._recovered and offset < 0 else draft.metadata
        events.append(
            RuntimeEvent(
                run_id=self._spec.run_id, type=kind, sequence=self._sequence, time_ns=now, delta=text, usage=draft.usage,
                activity=draft.activity, metadata=metadata, session_id=self._session_id,
                background=self._spec.background, offset=offset, index=draft.index, piece=piece,
            )
        )  # fmt: skip

    def _end(self, draft: Draft, now: int, events: list[RuntimeEvent]) -> None:
        stop = self._ctx.stop
        if stop is not None:  # what was recorded first decides, whatever the provider made of it
            draft = terminal_of_stop(stop, draft)
        if not self._started:
            self._begin(start(), now, events)
        self.has_ended = True
        events.append(self._stamp(draft, draft.type, now))

    def _stamp(self, draft: Draft, kind: EventType, now: int) -> RuntimeEvent:
        self._sequence += 1
        text = replacing_invalid(draft.text)
        failure = draft.failure
        if kind is EventType.ERROR and failure is None:
            failure = Failure(code=FailureCode.INTERNAL, message=text)
        metadata = {**draft.metadata, **self._ctx.labels}
        if self._recovered:
            metadata[RECOVERED] = "true"
        return RuntimeEvent(
            run_id=self._spec.run_id, type=kind, sequence=self._sequence, time_ns=now, usage=draft.usage,
            message=text if failure is None else "", error="" if failure is None else failure.message,
            failure=None if failure is None else FailureRecord.of(failure), metadata=metadata,
            session_id=self._session_id, background=self._spec.background,
        )  # fmt: skip

    async def _write(self, events: list[RuntimeEvent]) -> None:
        try:
            async with asyncio.timeout(self._sink_timeout_s):
                await self._writer.write(events)
        except Exception as cause:
            self.sink_error = self.sink_error or cause
            self._started = self._started and events[0].type is not EventType.START
            self._ctx.request_stop(_stop_of_sink(cause))
            raise SinkFailed("the host could not take the run's events") from cause


async def execute(provider: Provider, ctx: RunContext, spec: ExecutionSpec, emitter: Emitter) -> None:
    """Drive *provider* through one run so that exactly one terminal reaches the writer, however it behaves.

    A provider that returns without a terminal, or raises, is given one: ``cancelled`` or the stop's failure when the run
    was told to stop, else ``error``. Raises only what :meth:`Emitter.emit` raises for the terminal itself, and the
    cancellation of this call.
    """
    failure: Failure | None = None
    try:
        if ctx.stop is None or ctx.adopting:  # a run told to stop before it began never begins
            await provider.execute(ctx, spec, emitter)
    except asyncio.CancelledError as problem:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise
        failure = failure_from_exception(problem)  # nobody cancelled this call: it came from within the provider
    except Exception as problem:
        failure = failure_from_exception(problem)
        if failure.code is FailureCode.INTERNAL and emitter.sink_error is None:
            log.exception("provider failed without a typed failure", extra={"run_id": spec.run_id})
    if emitter.has_ended:
        return
    await emitter.emit([_missing_terminal(ctx, failure)])


def _missing_terminal(ctx: RunContext, failure: Failure | None) -> Draft:
    if ctx.stop is None and failure is not None and failure.code is FailureCode.CANCELLED:
        return cancelled(failure.message)
    return error(failure or Failure(code=FailureCode.INTERNAL, message="the provider returned without an outcome"))


def terminal_of_stop(stop: Stop, draft: Draft) -> Draft:
    """The terminal of a run that was told to stop; usage and facts of the provider's own terminal are kept."""
    if stop.reason is StopReason.CANCELLED:
        return Draft(EventType.CANCELLED, stop.message or "cancelled", draft.metadata, draft.usage)
    code, message = _STOP_FAILURES[stop.reason]
    facts = (
        {}
        if draft.failure is None
        else {k: v for k, v in draft.failure.metadata.items() if k in ("exit_code", "signal", "killed")}
    )
    return error(
        Failure(code=code, message=stop.message or message, metadata=facts), usage=draft.usage, metadata=draft.metadata
    )


def _stop_of_sink(cause: BaseException) -> Stop:
    if isinstance(cause, FailureError) and cause.failure.code is FailureCode.STORAGE_FULL:
        return Stop(reason=StopReason.STORAGE_FULL, message=cause.failure.message)
    if isinstance(cause, TimeoutError):
        return Stop(reason=StopReason.SINK, message="the host did not take the run's events in time")
    return Stop(reason=StopReason.SINK)


def split_text(text: str, limit_bytes: int = DELTA_LIMIT_BYTES) -> Sequence[str]:
    """*text* cleaned, in pieces of at most *limit_bytes* of UTF-8, cut at characters; nothing for an empty text."""
    if not text:
        return ()
    clean = text if text.isascii() and "\0" not in text else replacing_invalid(text)
    if len(clean) * 4 <= limit_bytes or len(clean.encode()) <= limit_bytes:
        return (clean,)
    step = limit_bytes // 4
    return [clean[i : i + step] for i in range(0, len(clean), step)]
