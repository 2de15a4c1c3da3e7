from __future__ import annotations

import json

import pytest

from providers.cli.dialect import Noise, ProcessEnd, TurnContext
from providers.cli.dialects.gemini_stream_json import GeminiDecoder, decoder
from runtime.events import Draft, EventType, Notice, ToolCall, ToolResult, Usage
from runtime.failure import FailureCode
from tests.support.expect import decode

INIT = {"type": "init", "session_id": "s-1"}
SUCCESS = {"type": "result", "status": "success", "stats": {"input_tokens": 9, "output_tokens": 2, "cached": 4}}


def run(*events: object, resumed_id: str | None = None) -> tuple[GeminiDecoder, list[Draft | Noise]]:
    gemini = decoder(TurnContext(resumed_id=resumed_id))
    lines = [event if isinstance(event, bytes) else json.dumps(event).encode() for event in events]
    return gemini, decode([b"\n".join(lines) + b"\n"], gemini)


def concluded(*events: object, code: int | None = 0, stderr: str = "", resumed_id: str | None = None) -> Draft:
    gemini, _ = run(*events, resumed_id=resumed_id)
    return gemini.conclude(ProcessEnd(code=code, stderr=stderr))


def code_of(draft: Draft) -> FailureCode | None:
    return None if draft.failure is None else draft.failure.code


def said(text: str, second: float = 0.0) -> dict[str, object]:
    return {
        "type": "message",
        "role": "assistant",
        "content": text,
        "delta": True,
        "timestamp": f"2026-11-30T19:00:{second:06.3f}Z",
    }


def failed(message: str, kind: str = "unknown") -> dict[str, object]:
    return {"type": "result", "status": "error", "error": {"type": kind, "message": message}}


def deltas(found: list[Draft | Noise]) -> list[str]:
    return [each.text for each in found if isinstance(each, Draft) and each.type is EventType.DELTA]


@pytest.mark.req("RT-29")
def test_the_answer_is_what_was_said_after_the_last_tool_call() -> None:
    tool = {"type": "tool_use", "tool_id": "t1", "tool_name": "ls", "parameters": {"a": 1}}
    gone = {"type": "tool_result", "tool_id": "t1", "status": "error", "error": {"message": "no"}}
    gemini, found = run(INIT, said("let me "), said("look"), tool, gone, said("done"), SUCCESS)
    draft = gemini.conclude(ProcessEnd(code=0))

    assert [each.activity for each in found if isinstance(each, Draft) and each.activity] == [
        ToolCall(call_id="t1", name="ls", input_json='{"a":1}'),
        ToolResult(call_id="t1", output="no", is_error=True),
    ]
    assert (draft.text, draft.usage) == ("done", Usage(input_tokens=9, output_tokens=2, cache_read_tokens=4))


def test_a_text_before_a_tool_is_the_answer_when_none_follows() -> None:
    assert concluded(said("done"), {"type": "tool_use", "tool_id": "t"}, SUCCESS).text == "done"


@pytest.mark.req("RT-29")
def test_st_12_a_repeated_attempt_is_told_once_although_it_is_cut_in_other_places() -> None:
    gemini, found = run(
        said("alpha bravo", 1), said(" charlie", 1.1), said("alpha", 3), said(" bravo charlie delta", 3.1), SUCCESS
    )

    assert "".join(deltas(found)) == "alpha bravo charlie delta"
    assert gemini.conclude(ProcessEnd(code=0)).text == "alpha bravo charlie delta"


@pytest.mark.parametrize(
    "second_attempt",
    [
        [said("alpha bravo", 1.2), said(" charlie", 1.3)],  # no pause: the model repeats itself
        [said("alpha bravo", 3), said(" echo", 3.1)],  # other words
        [said("alpha", 3)],  # a part of it, and the end
    ],
)
def test_nothing_is_lost_where_a_repetition_is_the_models_own(second_attempt: list[object]) -> None:
    first_attempt = [said("alpha bravo", 1), said(" charlie", 1.1)]
    whole = "".join(str(each["content"]) for each in (*first_attempt, *second_attempt) if isinstance(each, dict))

    assert concluded(*first_attempt, *second_attempt, SUCCESS).text == whole


def test_a_short_word_may_be_said_twice() -> None:
    assert concluded(said("ha ", 1), said("ha ", 3), said("ha", 5), SUCCESS).text == "ha ha ha"


@pytest.mark.req("BAN-18")
def test_a_success_without_a_text_is_no_answer() -> None:
    assert code_of(concluded(INIT, SUCCESS)) is FailureCode.OUTPUT_INVALID


@pytest.mark.req("RT-13")
@pytest.mark.parametrize(
    ("message", "exit_code", "code"),
    [
        ('[API Error: {"error":{"code":401,"message":"x"}}]', 1, FailureCode.AUTH_REQUIRED),
        ("[API Error: x]", 401 % 256, FailureCode.AUTH_REQUIRED),
        ("[API Error: x]", 429 % 256, FailureCode.RATE_LIMITED),
        ("[API Error: x]", 503 % 256, FailureCode.PROVIDER_OVERLOADED),
        ("[API Error: x]", 404 % 256, FailureCode.MODEL_UNAVAILABLE),
        ("[API Error: You have exhausted your daily quota on this model.]", 429 % 256, FailureCode.QUOTA_EXHAUSTED),
        ("[API Error: models/x is not found for API version v1beta]", 1, FailureCode.MODEL_UNAVAILABLE),
        ("[API Error: terminated]", 1, FailureCode.PROVIDER_UNREACHABLE),
        ("[API Error: x]", 1, FailureCode.PROCESS_FAILED),
    ],
)
def test_the_exit_code_is_the_http_status_in_a_byte(message: str, exit_code: int, code: FailureCode) -> None:
    assert code_of(concluded(INIT, failed(message), code=exit_code)) is code


def test_the_status_on_stderr_is_evidence_of_an_error_but_not_of_a_missing_result() -> None:
    dump = "Error when talking to Gemini API {\n  status: 500\n}"

    assert code_of(concluded(failed("[API Error: x]"), code=1, stderr=dump)) is FailureCode.PROVIDER_OVERLOADED
    assert code_of(concluded(said("half"), code=0, stderr=dump)) is FailureCode.OUTPUT_INVALID


@pytest.mark.parametrize(
    ("kind", "code"),
    [
        ("FatalAuthenticationError", FailureCode.AUTH_REQUIRED),
        ("FatalTurnLimitedError", FailureCode.BUDGET_EXHAUSTED),
        ("FatalCancellationError", FailureCode.INTERRUPTED),
    ],
)
def test_a_fatal_error_of_the_cli_has_its_own_code(kind: str, code: FailureCode) -> None:
    assert code_of(concluded(failed("x", kind), code=130)) is code


def test_an_error_event_gives_its_reason_to_a_result_without_one() -> None:
    blocked = {
        "type": "error",
        "severity": "error",
        "message": "The model response was blocked due to safety settings.",
    }
    warned = {"type": "error", "severity": "warning", "message": "Loop detected"}
    gemini, found = run(blocked, warned, {"type": "result", "status": "error"})

    assert [each.activity for each in found if isinstance(each, Draft)] == [
        Notice(code="agent_error", message="The model response was blocked due to safety settings."),
        Notice(code="warning", message="Loop detected"),
    ]
    assert code_of(gemini.conclude(ProcessEnd(code=0))) is FailureCode.REFUSED


@pytest.mark.req("RT-36")
def test_se_03_a_silent_new_session_ends_the_run_before_it_answers_the_wrong_conversation() -> None:
    gemini, found = run(INIT, said("who are you?"), SUCCESS, resumed_id="s-0")

    assert code_of(gemini.conclude(ProcessEnd(code=0))) is FailureCode.LOST
    assert {each.kind for each in found if isinstance(each, Noise)} == {"after_terminal"}
    assert gemini.native_id is None


def test_se_01_a_missing_session_is_told_on_stderr_whatever_the_exit_code() -> None:
    draft = concluded(code=0, stderr="Error resuming session: Invalid session identifier", resumed_id="s-0")

    assert code_of(draft) is FailureCode.LOST


@pytest.mark.req("BAN-18", "RT-16")
def test_what_follows_the_result_is_noise() -> None:
    gemini, found = run(said("yes"), SUCCESS, said("late"), failed("late"), b"bye")

    assert [each.kind for each in found if isinstance(each, Noise)] == ["after_terminal"] * 3
    assert gemini.conclude(ProcessEnd(code=1)).metadata == {"exit_code": "1"}


def test_st_11_a_field_of_another_type_does_not_lose_the_event() -> None:
    gemini, found = run({**said("hello"), "timestamp": 7, "tool_id": 8}, {**SUCCESS, "stats": "many", "message": None})

    assert deltas(found) == ["hello"]
    assert gemini.conclude(ProcessEnd(code=0)).usage is None
