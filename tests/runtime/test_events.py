from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime import events
from runtime.events import (
    TERMINAL,
    Draft,
    EventType,
    FailureRecord,
    Notice,
    Plan,
    PlanEntry,
    RateLimit,
    RuntimeEvent,
    ToolCall,
    ToolResult,
    Usage,
    replacing_invalid,
)
from runtime.failure import Failure, FailureCode


def event(**fields: Any) -> RuntimeEvent:
    whole: dict[str, Any] = {"run_id": "r1", "type": EventType.DELTA, "sequence": 1, "time_ns": 1}
    return RuntimeEvent(**(whole | fields))


@pytest.mark.req("RT-13")
def test_the_grammar_has_six_words_and_activity_is_the_only_other() -> None:
    assert [word.value for word in EventType] == [
        "start", "delta", "reasoning_delta", "complete", "error", "cancelled", "activity",
    ]  # fmt: skip


@pytest.mark.req("RT-15", "E-1")
@pytest.mark.parametrize("kind", EventType)
def test_three_of_them_end_a_run(kind: EventType) -> None:
    assert event(type=kind).is_terminal is (kind in TERMINAL) is (kind.value in {"complete", "error", "cancelled"})


@pytest.mark.req("RT-18")
def test_a_timestamp_is_aware_utc_to_the_microsecond() -> None:
    stamp = event(time_ns=1_700_000_000_123_456_789).timestamp

    assert stamp == datetime(2023, 11, 14, 22, 13, 20, 123456, UTC)
    assert stamp.utcoffset() is not None


WHATS = (
    ToolCall(call_id="c", name="read", input_json="{}"),
    ToolResult(call_id="c", output="out", is_error=True),
    Plan(entries=(PlanEntry(text="first", status="completed"),)),
    RateLimit(status="warning", used_percent=0.0, resets_at=7),
    Notice(code="retrying"),
)


@pytest.mark.req("RT-13", "RT-18")
@pytest.mark.parametrize("what", WHATS)
def test_every_event_survives_being_stored(what: events.Activity) -> None:
    before = event(
        type=EventType.ACTIVITY, activity=what, usage=Usage(input_tokens=0, cost_usd=0.25), metadata={"k": "v"}, offset=9,
        index=2, session_id="s", background=True,
        failure=FailureRecord(code="x_of_tomorrow", message="m", retryable=True, metadata={"a": "b"}),
    )  # fmt: skip

    assert msgspec.json.decode(msgspec.json.encode(before), type=RuntimeEvent) == before


def test_usage_that_was_not_reported_is_not_zero() -> None:
    assert Usage() != Usage(input_tokens=0)
    assert msgspec.json.encode(Usage(input_tokens=0)) == b'{"input_tokens":0}'


@pytest.mark.req("FAIL-03", "FAIL-04")
@pytest.mark.parametrize("code", FailureCode)
def test_a_failure_survives_its_record(code: FailureCode) -> None:
    failure = Failure(code=code, message="m", metadata={"k": "v"})

    assert FailureRecord.of(failure).to_failure() == failure


@pytest.mark.req("FAIL-04")
def test_a_recorded_code_of_the_future_is_kept() -> None:
    record = FailureRecord(code="quota_v9", message="m", retryable=True)

    assert record.to_failure() == Failure(
        code=FailureCode.UNKNOWN, message="m", retryable=True, metadata={"original_code": "quota_v9"}
    )


@pytest.mark.parametrize(
    ("draft", "whole"),
    [
        (events.start(a="b"), Draft(EventType.START, metadata={"a": "b"})),
        (
            events.delta("t", message_id="m", offset=3, index=1),
            Draft(EventType.DELTA, "t", {"message_id": "m"}, offset=3, index=1),
        ),
        (events.reasoning_delta("t", message_id="m"), Draft(EventType.REASONING_DELTA, "t", {"message_id": "m"})),
        (events.activity(WHATS[0], offset=3), Draft(EventType.ACTIVITY, activity=WHATS[0], offset=3)),
        (events.complete("t", usage=Usage()), Draft(EventType.COMPLETE, "t", usage=Usage())),
        (events.cancelled("t"), Draft(EventType.CANCELLED, "t")),
    ],
)
def test_a_shorthand_makes_the_whole_draft(draft: Draft, whole: Draft) -> None:
    assert draft == whole


@pytest.mark.req("RT-18")
@given(st.text(alphabet=st.one_of(st.characters(), st.sampled_from("\0\ud800\udfffa"))))
def test_any_text_becomes_fit_for_every_store(text: str) -> None:
    clean = replacing_invalid(text)

    assert "\0" not in clean
    assert clean.encode().decode() == clean
    assert replacing_invalid(clean) == clean


def test_valid_text_is_unchanged_and_invalid_is_visible() -> None:
    assert replacing_invalid("grüße 🎉\n") == "grüße 🎉\n"
    assert replacing_invalid("a\ud800b\0c") == "a\ufffdb\ufffdc"
