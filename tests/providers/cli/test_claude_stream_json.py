from __future__ import annotations

import json
from collections.abc import Mapping

import pytest

from providers.cli.dialect import Noise, ProcessEnd, TurnContext
from providers.cli.dialects.claude_stream_json import ClaudeDecoder, decoder
from runtime.events import Activity, Draft, EventType, Notice, RateLimit, ToolCall, ToolResult, Usage
from runtime.failure import FailureCode
from tests.support.expect import decode

CLEAN = ProcessEnd(code=0)
INIT = {"type": "system", "subtype": "init", "session_id": "sess-1"}
RESULT = {"type": "result", "subtype": "success", "is_error": False, "result": "done", "session_id": "sess-1"}


def run(*frames: object, resumed_id: str | None = None) -> tuple[ClaudeDecoder, list[Draft | Noise]]:
    claude = decoder(TurnContext(resumed_id=resumed_id))
    lines = [frame if isinstance(frame, bytes) else json.dumps(frame).encode() for frame in frames]
    return claude, decode([b"\n".join(lines) + b"\n"], claude)


def concluded(*frames: object, end: ProcessEnd = CLEAN, resumed_id: str | None = None) -> Draft:
    claude, _ = run(*frames, resumed_id=resumed_id)
    return claude.conclude(end)


def said(found: list[Draft | Noise], kind: EventType = EventType.DELTA) -> list[str]:
    return [each.text for each in found if isinstance(each, Draft) and each.type is kind]


def done(found: list[Draft | Noise]) -> list[Activity]:
    return [each.activity for each in found if isinstance(each, Draft) and each.activity is not None]


def event(kind: str, **members: object) -> dict[str, object]:
    return {"type": "stream_event", "event": {"type": kind, **members}, "parent_tool_use_id": None}


def started(message_id: str) -> dict[str, object]:
    return event("message_start", message={"id": message_id})


def text_delta(text: str) -> dict[str, object]:
    return event("content_block_delta", index=0, delta={"type": "text_delta", "text": text})


def message(message_id: str, *blocks: Mapping[str, object], parent: str | None = None, **members: object) -> object:
    return {
        "type": "assistant",
        "message": {"id": message_id, "content": blocks},
        "parent_tool_use_id": parent,
        **members,
    }


def text(value: str) -> dict[str, object]:
    return {"type": "text", "text": value}


@pytest.mark.req("RT-13")
def test_st_12_a_message_is_told_apart_by_its_id_and_never_by_its_text() -> None:
    _, found = run(
        started("m1"),
        text_delta("EC"),
        text_delta("HO"),
        message("m1", text("ECHO")),
        message("m2", text("ECHO")),
        RESULT,
    )

    assert said(found) == ["EC", "HO", "ECHO"]


def test_a_delta_names_its_message() -> None:
    _, found = run(started("m1"), text_delta("a"), started("m2"), text_delta("b"))

    assert [each.metadata for each in found if isinstance(each, Draft)] == [{"message_id": "m1"}, {"message_id": "m2"}]


def test_text_of_a_message_that_only_thought_aloud_in_the_stream_is_not_lost() -> None:
    thinking = event("content_block_delta", index=0, delta={"type": "thinking_delta", "thinking": "hm"})
    _, found = run(started("m1"), thinking, message("m1", {"type": "thinking", "thinking": "hm"}, text("answer")))

    assert said(found, EventType.REASONING_DELTA) == ["hm"]
    assert said(found) == ["answer"]


@pytest.mark.req("NB-06")
@pytest.mark.parametrize(
    ("raw", "expected"),
    [(rb"a\u0000b", "a�b"), (rb"x\ud83d", "x�"), (b"x\xff", "x�")],
    ids=["nul", "surrogate", "bad-byte"],
)
def test_st_02_st_13_a_delta_is_fit_for_every_store(raw: bytes, expected: str) -> None:
    line = json.dumps(text_delta("TEXT")).encode().replace(b"TEXT", raw)
    _, found = run(line)

    assert said(found) == [expected]


def test_a_sub_agent_speaks_in_activity_and_never_in_the_answer() -> None:
    piece = {**text_delta("inner"), "parent_tool_use_id": "toolu_1"}
    call = {"type": "tool_use", "id": "toolu_2", "name": "Read", "input": {}}
    _, found = run(piece, message("m9", text("inner"), call, parent="toolu_1"), RESULT)

    assert said(found) == []
    assert done(found) == [
        Notice(code="subagent", message="inner"),
        ToolCall(call_id="toolu_2", name="Read", input_json="{}"),
    ]


def test_tool_calls_and_results_are_bounded() -> None:
    call = {"type": "tool_use", "id": "t", "name": "Write", "input": {"content": "é" * 100_000}}
    result = {"type": "tool_result", "tool_use_id": "t", "content": [text("é" * 100_000)], "is_error": True}
    _, found = run(message("m", call), {"type": "user", "message": {"content": [result]}})

    first, second = done(found)
    assert isinstance(first, ToolCall)
    assert isinstance(second, ToolResult)
    assert max(len(first.input_json.encode()), len(second.output.encode())) <= 64 * 1024
    assert second.is_error


def test_a_rate_limit_says_what_it_says_and_no_more() -> None:
    _, found = run({"type": "rate_limit_event", "rate_limit_info": {"status": "allowed", "utilization": 0.5}})

    assert done(found) == [RateLimit(status="allowed", used_percent=50.0)]


@pytest.mark.parametrize(
    ("result", "code"),
    [
        ({"subtype": "error_max_turns", "is_error": True, "result": None}, FailureCode.BUDGET_EXHAUSTED),
        ({"is_error": True, "api_error_status": 401}, FailureCode.AUTH_REQUIRED),
        ({"is_error": True, "api_error_status": 429}, FailureCode.RATE_LIMITED),
        ({"is_error": True, "api_error_status": 500}, FailureCode.PROVIDER_OVERLOADED),
        ({"is_error": True, "result": "Credit balance is too low"}, FailureCode.QUOTA_EXHAUSTED),
        ({"stop_reason": "refusal"}, FailureCode.REFUSED),
        ({"terminal_reason": "aborted_tools", "is_error": True}, FailureCode.INTERRUPTED),
        ({"subtype": "error_of_the_future"}, FailureCode.PROCESS_FAILED),
        ({"is_error": True, "result": "Prompt is too long"}, FailureCode.BUDGET_EXHAUSTED),
    ],
    ids=str,
)
def test_st_09_error_flags_beat_the_label(result: dict[str, object], code: FailureCode) -> None:
    draft = concluded(INIT, RESULT | result)

    assert draft.failure is not None
    assert draft.failure.code is code


@pytest.mark.req("RT-29")
def test_st_05_what_was_not_told_is_absent() -> None:
    draft = concluded(INIT, {**RESULT, "subtype": "error_during_execution", "result": None})

    assert draft.type is EventType.ERROR
    assert draft.usage is None


@pytest.mark.req("RT-29")
def test_counts_of_zero_beside_a_cost_are_not_counts() -> None:
    draft = concluded(RESULT | {"usage": {"input_tokens": 0, "output_tokens": 0}, "total_cost_usd": 0.1})

    assert draft.usage == Usage(cost_usd=0.1)


def test_usage_of_odd_types_is_not_told() -> None:
    draft = concluded(RESULT | {"usage": {"input_tokens": "7", "output_tokens": -1}, "total_cost_usd": True})

    assert (draft.type, draft.usage) == (EventType.COMPLETE, None)


def test_a_result_without_text_falls_back_to_the_last_message() -> None:
    assert concluded(message("m", text("hello")), {**RESULT, "result": None}).text == "hello"


def test_an_answer_continued_after_max_tokens_is_put_together() -> None:
    cut = event("message_delta", delta={"stop_reason": "max_tokens"})
    first = [started("m1"), text_delta("one "), message("m1", text("one ")), cut]
    second = [started("m2"), text_delta("two"), message("m2", text("two")), {**RESULT, "result": "two"}]

    assert concluded(*first, *second).text == "one two"


def test_an_answer_that_ends_at_max_tokens_is_not_doubled() -> None:
    cut = event("message_delta", delta={"stop_reason": "max_tokens"})

    assert concluded(started("m1"), message("m1", text("one")), cut, {**RESULT, "result": "one"}).text == "one"


@pytest.mark.req("BAN-18", "RT-16")
def test_a_second_terminal_and_what_follows_is_noise() -> None:
    claude, found = run(RESULT, {**RESULT, "result": "forged"}, text_delta("late"), b"bye")

    assert found == [Noise(kind="after_terminal", detail=each) for each in ("result", "stream_event", "bye")]
    assert claude.conclude(CLEAN).text == "done"


def test_a_frame_quoted_in_a_log_line_or_in_a_torn_frame_is_not_taken() -> None:
    quoted = json.dumps(RESULT).encode()
    claude, found = run(b"debug: " + quoted, b'{"type":"user","message":' + quoted)

    assert [each.kind for each in found if isinstance(each, Noise)] == ["not_json", "torn"]
    assert not claude.has_ended


@pytest.mark.parametrize("line", [b"[" * 100_000, b'{"a":' * 100_000, b'{"type":"result","n":1e999}', b"[]", b"7"])
def test_hostile_json_does_not_raise(line: bytes) -> None:
    claude, _ = run(line)

    claude.conclude(CLEAN)


def test_a_byte_order_mark_is_passed_over() -> None:
    claude, found = run(b"\xef\xbb\xbf" + json.dumps(INIT).encode(), RESULT)

    assert (claude.native_id, found) == ("sess-1", [])


@pytest.mark.req("RT-36")
def test_a_session_id_is_known_from_the_first_frame() -> None:
    """A run that is cancelled in the middle can be resumed all the same."""
    claude, _ = run(INIT)

    assert claude.native_id == "sess-1"


@pytest.mark.req("RT-36")
def test_se_03_a_fresh_id_of_a_failed_resume_is_not_adopted() -> None:
    claude, _ = run(INIT, resumed_id="dead-1")
    draft = claude.conclude(ProcessEnd(code=1, stderr="No conversation found with session ID: dead-1"))

    assert draft.failure is not None
    assert draft.failure.code is FailureCode.LOST
    assert claude.native_id is None


def test_a_fresh_id_of_a_resume_that_worked_is_adopted() -> None:
    claude, _ = run(INIT, RESULT, resumed_id="earlier")

    assert claude.native_id == "sess-1"


@pytest.mark.parametrize("session_id", ["--flag", "../up", "", "x" * 5000, 7])
def test_se_05_an_id_that_could_not_be_handed_back_is_not_adopted(session_id: object) -> None:
    claude, _ = run(INIT | {"session_id": session_id}, RESULT | {"session_id": session_id})

    assert claude.native_id is None


def test_pr_09_a_complete_run_that_had_to_be_killed_stays_complete_and_says_so() -> None:
    draft = concluded(RESULT, end=ProcessEnd(signal=9))

    assert (draft.type, draft.metadata) == (EventType.COMPLETE, {"signal": "9"})


def test_the_reason_told_before_a_crash_is_the_reason() -> None:
    synthetic = message("x", text("Not logged in"), error="authentication_failed")
    assert isinstance(synthetic, dict)
    synthetic["message"]["model"] = "<synthetic>"
    draft = concluded(synthetic, end=ProcessEnd(code=1))

    assert draft.failure is not None
    assert draft.failure.code is FailureCode.AUTH_REQUIRED
