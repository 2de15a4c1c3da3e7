from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.emitter import (
    DELTA_LIMIT_BYTES,
    Emitter,
    Resumption,
    SinkFailed,
    execute,
    split_text,
    terminal_of_stop,
)
from runtime.events import (
    Draft,
    EventType,
    FailureRecord,
    Notice,
    RuntimeEvent,
    Usage,
    activity,
    cancelled,
    complete,
    delta,
    error,
    reasoning_delta,
    start,
)
from runtime.failure import DeadlineExceeded, Failure, FailureCode, FailureError, RunCancelled
from runtime.provider import EventSink, Position, RunContext, Stop, StopReason
from runtime.types import ExecutionSpec
from tests.support.hosts import PATIENCE_S, Agent, ListWriter, plays, says, shape, words

SPEC = ExecutionSpec(run_id="r1", adapter="scripted", target="agent", session_id="s1", background=True)
NOTICE = activity(Notice(code="retrying", message="once more"))
BROKEN = error(Failure(code=FailureCode.PROCESS_FAILED, message="exit 3", metadata={"exit_code": "3"}))
TERMINALS = (complete("done"), BROKEN, cancelled())


def emitter(writer: Any, ctx: RunContext | None = None, **given_: Any) -> Emitter:
    return Emitter(ctx or RunContext(), SPEC, writer, **given_)


async def emitted(*drafts: Draft, **given_: Any) -> list[RuntimeEvent]:
    writer = ListWriter()
    await emitter(writer, **given_).emit(drafts)
    return writer.events


async def executed(script: Any, ctx: RunContext | None = None, **given_: Any) -> tuple[list[RuntimeEvent], Emitter]:
    """The events of a whole run of *script*."""
    ctx, writer = ctx or RunContext(), ListWriter()
    sink = emitter(writer, ctx, **given_)
    async with asyncio.timeout(PATIENCE_S):
        await execute(Agent(script), ctx, SPEC, sink)
    return writer.events, sink


def stopped(reason: StopReason, message: str = "") -> RunContext:
    ctx = RunContext()
    ctx.request_stop(Stop(reason=reason, message=message))
    return ctx


# --- grammar


@pytest.mark.req("RT-05", "RT-13", "RT-14", "RT-18", "RT-33")
async def test_a_run_as_it_should_be() -> None:
    usage = Usage(input_tokens=0, output_tokens=7)

    events = await emitted(
        start(model="m"), reasoning_delta("hm", message_id="m1"), delta("hel", message_id="m2"),
        delta("lo", message_id="m2"), complete("hello", usage=usage, metadata={"k": "v"}), clock=lambda: 5,
    )  # fmt: skip

    whole: dict[str, Any] = {"run_id": "r1", "time_ns": 5, "session_id": "s1", "background": True}
    assert events == [
        RuntimeEvent(type=EventType.START, sequence=1, metadata={"model": "m"}, **whole),
        RuntimeEvent(type=EventType.REASONING_DELTA, sequence=2, delta="hm", metadata={"message_id": "m1"}, **whole),
        RuntimeEvent(type=EventType.DELTA, sequence=3, delta="hel", metadata={"message_id": "m2"}, **whole),
        RuntimeEvent(type=EventType.DELTA, sequence=4, delta="lo", metadata={"message_id": "m2"}, **whole),
        RuntimeEvent(
            type=EventType.COMPLETE, sequence=5, message="hello", usage=usage, metadata={"k": "v"}, **whole
        ),
    ]  # fmt: skip


DRAFTS = st.one_of(
    st.builds(start),
    st.builds(delta, st.text(max_size=5), message_id=st.just("m")),
    st.builds(reasoning_delta, st.text(max_size=5), message_id=st.just("m")),
    st.just(NOTICE),
    st.sampled_from(TERMINALS),
)
ENDINGS = st.sampled_from(
    [None, RuntimeError("broke"), RunCancelled("stop"), DeadlineExceeded("late"), asyncio.CancelledError()]
)


@pytest.mark.req("RT-14", "RT-15", "RT-16", "RT-17", "RT-18", "BAN-18", "E-1")
@given(batches=st.lists(st.lists(DRAFTS, max_size=4), max_size=8), ending=ENDINGS)
def test_whatever_a_provider_reports_the_host_sees_a_legal_run(
    batches: list[list[Draft]], ending: BaseException | None
) -> None:
    async def script(ctx: RunContext, spec: ExecutionSpec, sink: EventSink) -> None:
        for batch in batches:
            await sink.emit(batch)
        if ending is not None:
            raise ending

    events, sink = asyncio.run(executed(script))

    assert re.fullmatch("s[dra]*[CEX]", words(events))
    assert [event.sequence for event in events] == list(range(1, len(events) + 1))
    assert [event.time_ns for event in events] == sorted(event.time_ns for event in events)
    assert {(event.run_id, event.session_id, event.background) for event in events} == {("r1", "s1", True)}
    reported = [draft for batch in batches for draft in batch]
    told = [draft for draft in reported if draft.type not in (EventType.DELTA, EventType.REASONING_DELTA) or draft.text]
    first_end = next((n for n, draft in enumerate(told) if draft in TERMINALS), None)
    assert len(events) + sink.suppressed >= len(told)
    if first_end is not None:
        assert events[-1].type is told[first_end].type


@pytest.mark.req("RT-13", "RT-14")
async def test_interleaved_deltas_keep_the_order_of_arrival() -> None:
    events = await emitted(
        delta("1", message_id="m"),
        reasoning_delta("2", message_id="m"),
        NOTICE,
        delta("3", message_id="m"),
        TERMINALS[0],
    )

    assert words(events) == "sdradC"
    assert [event.delta for event in events[1:-1]] == ["1", "2", "", "3"]


@pytest.mark.req("RT-13")
async def test_activity_changes_nothing_about_the_six() -> None:
    with_it = await emitted(NOTICE, start(), NOTICE, delta("a", message_id="m"), NOTICE, complete("a"), NOTICE)
    without = await emitted(start(), delta("a", message_id="m"), complete("a"))

    six = [event for event in with_it if event.type is not EventType.ACTIVITY]
    assert shape(six) == shape(without)


@pytest.mark.req("RT-13")
async def test_an_empty_delta_is_no_event() -> None:
    assert words(await emitted(start(), delta("", message_id="m"), complete(""))) == "sC"


@pytest.mark.req("RT-13")
async def test_a_word_outside_of_the_grammar_is_refused_and_costs_nothing_else() -> None:
    writer = ListWriter()
    sink = emitter(writer)

    with pytest.raises(ValueError, match="'finished' is not one of start, delta"):
        await sink.emit([delta("a", message_id="m"), Draft("finished")])  # type: ignore[arg-type]
    await sink.emit([complete("a")])

    assert shape(writer.events) == [("start", ""), ("delta", "a"), ("complete", "a")]
    assert [event.sequence for event in writer.events] == [1, 2, 3]


@pytest.mark.req("RT-14")
async def test_a_second_start_is_suppressed_and_counted() -> None:
    writer = ListWriter()
    sink = emitter(writer)

    await sink.emit([start(), delta("a", message_id="m"), start(), complete("a")])

    assert (words(writer.events), sink.suppressed) == ("sdC", 1)


@pytest.mark.req("RT-15", "RT-16", "BAN-18")
@pytest.mark.parametrize("first", TERMINALS)
@pytest.mark.parametrize("late", [*TERMINALS, delta("late", message_id="m"), start(), NOTICE])
@pytest.mark.parametrize("together", [True, False])
async def test_nothing_follows_the_first_terminal(first: Draft, late: Draft, together: bool) -> None:
    writer = ListWriter()
    sink = emitter(writer)

    for batch in [[first, late, late]] if together else [[first], [late], [late]]:
        await sink.emit(batch)

    assert [event.type for event in writer.events] == [EventType.START, first.type]
    assert sink.suppressed == 2


@pytest.mark.req("RT-15", "BAN-18")
async def test_of_terminals_at_the_same_time_one_wins() -> None:
    """Natural end, time-out and cancel race; the writer yields, so that they really overlap."""

    class Yielding(ListWriter):
        async def write(self, events: Sequence[RuntimeEvent]) -> None:
            for _ in range(3):
                await asyncio.sleep(0)
            await super().write(events)

    for order in range(6):
        writer = Yielding()
        sink = emitter(writer)
        racers = [TERMINALS[(order + n) % 3] for n in range(3)]
        await asyncio.gather(*(sink.emit([draft]) for draft in racers))

        assert [event.type for event in writer.events] == [EventType.START, racers[0].type]
        assert sink.suppressed == 2


# --- envelope


@pytest.mark.req("RT-18")
async def test_time_never_goes_back() -> None:
    ticks = iter([10, 7, 12])
    writer = ListWriter()
    sink = emitter(writer, clock=lambda: next(ticks))

    for draft in (start(), delta("a", message_id="m"), complete("a")):
        await sink.emit([draft])

    assert [event.time_ns for event in writer.events] == [10, 10, 12]


@pytest.mark.req("RT-18", "RT-13")
async def test_every_word_has_its_text_where_it_belongs() -> None:
    texts = [
        (event.delta, event.message, event.error)
        for events in (
            await emitted(start(), delta("d", message_id="m"), reasoning_delta("r", message_id="m"), complete("c")),
            await emitted(cancelled("x")),
            await emitted(BROKEN),
        )
        for event in events
    ]

    nothing = ("", "", "")
    assert texts == [
        nothing, ("d", "", ""), ("r", "", ""), ("", "c", ""), nothing, ("", "x", ""), nothing, ("", "", "exit 3"),
    ]  # fmt: skip


async def test_an_error_without_a_failure_is_internal() -> None:
    events = await emitted(Draft(EventType.ERROR, "it broke"))

    assert events[-1].failure == FailureRecord(code="internal", message="it broke", retryable=False)
    assert (events[-1].error, events[-1].message) == ("it broke", "")


async def test_the_providers_labels_cannot_be_overwritten() -> None:
    ctx = RunContext(labels={"profile": "p1"})

    events = await emitted(start(profile="forged", model="m"), complete("", metadata={"profile": "forged"}), ctx=ctx)

    assert [dict(event.metadata) for event in events] == [{"profile": "p1", "model": "m"}, {"profile": "p1"}]


@pytest.mark.req("RT-18")
async def test_bad_characters_never_reach_the_writer() -> None:
    events = await emitted(delta("a\ud800b\0", message_id="m"), complete("c\udfff\0"))

    assert [event.delta or event.message for event in events[1:]] == ["a\ufffdb\ufffd", "c\ufffd\ufffd"]


# --- long deltas


@given(
    text=st.text(alphabet=st.sampled_from("aä日🎉\0\ud800"), max_size=80), limit=st.integers(min_value=4, max_value=40)
)
def test_a_split_text_is_whole_and_its_pieces_fit(text: str, limit: int) -> None:
    pieces = split_text(text, limit)

    clean = text.replace("\0", "\ufffd").replace("\ud800", "\ufffd")
    assert "".join(pieces) == clean
    assert all(0 < len(piece.encode()) <= limit for piece in pieces)


async def test_an_oversized_delta_comes_in_consecutive_pieces() -> None:
    text = "日🎉" * DELTA_LIMIT_BYTES

    events = await emitted(delta(text, message_id="m", offset=9), complete(""))

    pieces = [event for event in events if event.type is EventType.DELTA]
    assert "".join(piece.delta for piece in pieces) == text
    assert max(len(piece.delta.encode()) for piece in pieces) <= DELTA_LIMIT_BYTES
    assert [piece.sequence for piece in pieces] == list(range(2, len(pieces) + 2))
    assert {piece.metadata["message_id"] for piece in pieces} == {"m"}
    assert [(each.offset, each.index, each.piece) for each in pieces] == [(9, 0, n) for n in range(len(pieces))]


# --- taken up by another host


REPORT = (
    start(),
    delta("a", message_id="m", offset=10),
    delta("b", message_id="m", offset=10, index=1),
    activity(Notice(code="x"), offset=10, index=2),
    delta("日" * DELTA_LIMIT_BYTES, message_id="m", offset=20),
    delta("c", message_id="m", offset=30),
    complete("abc"),
)


async def test_what_the_journal_holds_is_passed_over_at_every_place() -> None:
    """A host may die between any two events; the provider reports from the beginning, and nothing comes twice."""
    whole = await emitted(*REPORT)

    for held in range(1, len(whole)):
        placed = [event for event in whole[:held] if event.offset >= 0]
        recorded = Position(placed[-1].offset, placed[-1].index, placed[-1].piece) if placed else Position()
        before = Resumption(last_sequence=held, last_time_ns=whole[held - 1].time_ns, has_started=True)
        rest = await emitted(*REPORT, ctx=RunContext(recorded=recorded, adopting=True), resumption=before)

        assert shape(whole[:held]) + shape(rest) == shape(whole)
        assert [event.sequence for event in rest] == list(range(held + 1, len(whole) + 1))
        assert all(event.time_ns >= whole[held - 1].time_ns for event in rest)


async def test_only_what_a_restarted_host_made_says_so() -> None:
    before = Resumption(last_sequence=1, has_started=True)

    rest = await emitted(delta("c", message_id="m", offset=30), NOTICE, complete("abc"), resumption=before)

    assert ["recovered" in event.metadata for event in rest] == [False, True, True]


async def test_a_start_reported_again_is_neither_shown_nor_counted() -> None:
    writer = ListWriter()
    sink = emitter(writer, resumption=Resumption(last_sequence=3, has_started=True))

    await sink.emit([start(), complete("x")])

    assert (words(writer.events), sink.suppressed) == ("C", 0)


# --- a provider that does not end its run


async def returns_silently(ctx: RunContext, spec: ExecutionSpec, sink: EventSink) -> None:
    await sink.emit([start()])


async def breaks(ctx: RunContext, spec: ExecutionSpec, sink: EventSink) -> None:
    raise RuntimeError("broke")


async def fails_typed(ctx: RunContext, spec: ExecutionSpec, sink: EventSink) -> None:
    raise FailureError.of(Failure(code=FailureCode.RATE_LIMITED, message="later", metadata={"retry_after_s": "3"}))


async def is_cancelled(ctx: RunContext, spec: ExecutionSpec, sink: EventSink) -> None:
    raise RunCancelled("asked to")


async def cancels_itself(ctx: RunContext, spec: ExecutionSpec, sink: EventSink) -> None:
    """As a library does that cancels its own scope and lets the cancellation out."""
    raise asyncio.CancelledError


@pytest.mark.req("RT-17", "RT-05", "FAIL-05", "FAIL-10", "E-1")
@pytest.mark.parametrize(
    ("script", "code", "message"),
    [
        (returns_silently, "internal", "the provider returned without an outcome"),
        (breaks, "internal", "unexpected RuntimeError: broke"),
        (fails_typed, "rate_limited", "later"),
        (is_cancelled, None, "asked to"),
        (cancels_itself, None, "cancelled"),
    ],
)
async def test_a_missing_terminal_is_supplied(script: Any, code: str | None, message: str) -> None:
    events, _ = await executed(script)

    assert words(events) == ("sE" if code else "sX")
    assert (events[-1].failure and events[-1].failure.code, events[-1].error or events[-1].message) == (code, message)


@pytest.mark.req("RT-17", "RT-15")
@pytest.mark.parametrize("ending", [RuntimeError("late"), RunCancelled("late"), asyncio.CancelledError()])
async def test_raising_after_a_terminal_changes_nothing(ending: BaseException) -> None:
    async def script(ctx: RunContext, spec: ExecutionSpec, sink: EventSink) -> None:
        await sink.emit([complete("done")])
        raise ending

    events, _ = await executed(script)

    assert shape(events) == [("start", ""), ("complete", "done")]


@pytest.mark.req("RT-05")
async def test_when_execute_returns_the_last_event_is_the_terminal() -> None:
    events, _ = await executed(says("a", "b"))

    assert shape(events) == [("start", ""), ("delta", "a"), ("delta", "b"), ("complete", "ab")]


async def test_a_cancel_of_the_call_itself_is_the_callers() -> None:
    reached = asyncio.Event()

    async def script(ctx: RunContext, spec: ExecutionSpec, sink: EventSink) -> None:
        reached.set()
        await asyncio.Event().wait()

    task = asyncio.create_task(executed(script))
    async with asyncio.timeout(PATIENCE_S):
        await reached.wait()
    task.cancel()

    with pytest.raises(asyncio.CancelledError):
        await task


# --- told to stop


@pytest.mark.req("RT-20", "RT-24", "E-1", "FAIL-07", "E-5")
@pytest.mark.parametrize(
    ("reason", "code"),
    [
        (StopReason.CANCELLED, None), (StopReason.DEADLINE, "deadline_exceeded"), (StopReason.SILENCE, "silence_timeout"),
        (StopReason.OUTPUT_LIMIT, "output_limit"), (StopReason.STORAGE_FULL, "storage_full"),
        (StopReason.QUEUE, "capacity_exhausted"), (StopReason.SINK, "internal"),
        (StopReason.BUDGET, "budget_exhausted"),
    ],
)  # fmt: skip
async def test_a_run_told_to_stop_before_it_began_never_begins(reason: StopReason, code: str | None) -> None:
    provider, ctx, writer = Agent(says("hi")), stopped(reason), ListWriter()

    await execute(provider, ctx, SPEC, emitter(writer, ctx))

    assert provider.executed == []
    assert words(writer.events) == ("sE" if code else "sX")
    assert (failure := writer.events[-1].failure, failure and failure.code) == (failure, code)


def test_every_reason_to_stop_has_its_terminal() -> None:
    for reason in StopReason:
        assert terminal_of_stop(Stop(reason=reason), complete("")).type in {EventType.ERROR, EventType.CANCELLED}


@pytest.mark.req("RT-19", "RT-24", "RT-15")
@pytest.mark.parametrize("made", [*TERMINALS, None])
@pytest.mark.parametrize(
    ("first", "second", "word"),
    [(StopReason.CANCELLED, StopReason.DEADLINE, "X"), (StopReason.DEADLINE, StopReason.CANCELLED, "E")],
)
async def test_what_was_recorded_first_decides_whatever_the_provider_made_of_it(
    made: Draft | None, first: StopReason, second: StopReason, word: str
) -> None:
    async def script(ctx: RunContext, spec: ExecutionSpec, sink: EventSink) -> None:
        await sink.emit([start(), delta("a", message_id="m")])
        assert ctx.request_stop(Stop(reason=first))
        assert not ctx.request_stop(Stop(reason=second))
        if made is None:
            raise RuntimeError("the provider's own error")
        await sink.emit([made])

    events, _ = await executed(script)

    assert words(events) == f"sd{word}"


async def test_a_stop_keeps_usage_and_exit_facts_of_the_provider() -> None:
    usage = Usage(output_tokens=3)
    draft = error(
        Failure(code=FailureCode.PROCESS_FAILED, metadata={"exit_code": "143", "stderr": "noise"}), usage=usage
    )

    ended = terminal_of_stop(Stop(reason=StopReason.DEADLINE), draft)

    assert (ended.usage, ended.failure and dict(ended.failure.metadata)) == (usage, {"exit_code": "143"})


# --- a host that cannot take the events


@pytest.mark.req("RT-35", "RT-14")
@pytest.mark.parametrize("batch", [1, 2, 3, 4])
async def test_a_writer_that_raises_ends_the_run_and_it_is_not_the_providers_fault(batch: int) -> None:
    ctx, writer = RunContext(), ListWriter(failing=frozenset({batch}))
    sink = emitter(writer, ctx)

    async with asyncio.timeout(PATIENCE_S):
        await execute(Agent(says("a", "b")), ctx, SPEC, sink)

    assert ctx.stop == Stop(reason=StopReason.SINK)
    if batch == 4:  # the terminal itself: nothing more can be told
        assert words(writer.events) == "sdd"
        return
    assert re.fullmatch("sd{0,2}E", words(writer.events))
    assert writer.events[-1].failure == FailureRecord(
        code="internal", message="the host could not take the run's events", retryable=False
    )


@pytest.mark.req("RT-35")
async def test_after_a_hole_nothing_but_the_terminal_follows() -> None:
    """A provider that goes on regardless would otherwise hide that events are missing."""

    async def stubborn(ctx: RunContext, spec: ExecutionSpec, sink: EventSink) -> None:
        for draft in (start(), *(delta(word, message_id="m") for word in "abcd"), complete("abcd")):
            try:
                await sink.emit([draft])
            except SinkFailed:
                pass

    ctx, writer = RunContext(), ListWriter(failing=frozenset({3}))
    sink = emitter(writer, ctx)
    await execute(Agent(stubborn), ctx, SPEC, sink)

    assert words(writer.events) == "sdE"
    assert [event.sequence for event in writer.events] == [1, 2, 4]  # a number that was given is not given again
    assert sink.suppressed == 2


@pytest.mark.req("RT-35", "E-4")
async def test_a_full_disk_is_told_as_such() -> None:
    full = FailureError.of(Failure(code=FailureCode.STORAGE_FULL, message="no space left"))
    ctx, writer = RunContext(), ListWriter(failing=frozenset({2}), with_=full)

    await execute(Agent(says("a", "b")), ctx, SPEC, emitter(writer, ctx))

    assert writer.events[-1].failure == FailureRecord(code="storage_full", message="no space left", retryable=True)


@pytest.mark.req("RT-35")
async def test_a_writer_that_blocks_is_waited_for_within_the_bound() -> None:
    class Blocking(ListWriter):
        async def write(self, events: Sequence[RuntimeEvent]) -> None:
            if events[0].type is EventType.DELTA:
                await asyncio.Event().wait()
            await super().write(events)

    ctx, writer = RunContext(), Blocking()
    async with asyncio.timeout(PATIENCE_S):
        await execute(Agent(says("a", "b")), ctx, SPEC, emitter(writer, ctx, sink_timeout_s=0.01))

    assert words(writer.events) == "sE"
    assert writer.events[-1].error == "the host did not take the run's events in time"


@pytest.mark.req("RT-35")
async def test_the_provider_learns_that_the_host_is_the_problem() -> None:
    sink = emitter(ListWriter(failing=frozenset({1})))

    with pytest.raises(SinkFailed, match="the host could not take") as failed:
        await sink.emit([start()])

    assert isinstance(failed.value.__cause__, OSError)
    assert sink.sink_error is failed.value.__cause__


@pytest.mark.req("RT-35", "RT-14")
async def test_a_start_that_was_not_taken_is_given_again_with_the_terminal() -> None:
    ctx, writer = RunContext(), ListWriter(failing=frozenset({1}))

    await execute(Agent(plays(start(), complete("x"))), ctx, SPEC, emitter(writer, ctx))

    assert words(writer.events) == "sE"
