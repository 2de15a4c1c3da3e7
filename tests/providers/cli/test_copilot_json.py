from __future__ import annotations

import json
from typing import Any

import pytest

from providers.cli.dialect import Noise, ProcessEnd, TurnContext
from providers.cli.dialects.copilot_json import CopilotDecoder, decoder
from runtime.events import Draft, EventType, Notice, ToolCall, ToolResult
from runtime.failure import FailureCode
from tests.support.expect import decode


def event(kind: str, /, **data: object) -> dict[str, Any]:
    return {"type": kind, "data": data, "id": "e1"}


def piece(text: str, message_id: str = "m1") -> dict[str, Any]:
    return event("assistant.message_delta", messageId=message_id, deltaContent=text)


def message(text: str, message_id: str = "m1", **data: object) -> dict[str, Any]:
    return event("assistant.message", messageId=message_id, content=text, **data)


def failed(text: str = "x", **data: object) -> dict[str, Any]:
    return event("session.error", message=text, **data)


def finished(outcome: str) -> dict[str, Any]:
    return event("model.call_finished", outcome=outcome)


TURN_END = event("assistant.turn_end")
RESULT: dict[str, Any] = {"type": "result", "sessionId": "s-1", "exitCode": 0, "usage": {"premiumRequests": 0}}


def run(*events: object, resumed_id: str | None = None) -> tuple[CopilotDecoder, list[Draft | Noise]]:
    copilot = decoder(TurnContext(resumed_id=resumed_id))
    lines = [each if isinstance(each, bytes) else json.dumps(each).encode() for each in events]
    return copilot, decode([b"\n".join(lines) + b"\n"], copilot)


def concluded(*events: object, resumed_id: str | None = None) -> Draft:
    copilot, _ = run(*events, resumed_id=resumed_id)
    return copilot.conclude(ProcessEnd(code=0))


def code_of(draft: Draft) -> FailureCode | None:
    return None if draft.failure is None else draft.failure.code


@pytest.mark.req("RT-29")
def test_st_12_a_message_is_told_from_its_deltas_by_its_id_and_never_by_its_text() -> None:
    copilot, found = run(piece("EC"), piece("HO"), message("ECHO"), message("ECHO", "m2"), RESULT)

    assert [(each.text, each.metadata["message_id"]) for each in found if isinstance(each, Draft)] == [
        ("EC", "m1"),
        ("HO", "m1"),
        ("ECHO", "m2"),
    ]
    assert copilot.conclude(ProcessEnd(code=0)).text == "ECHO"


@pytest.mark.req("RT-29")
def test_thinking_is_told_once() -> None:
    thought = event("assistant.reasoning_delta", reasoningId="r1", deltaContent="hm")
    _, found = run(thought, event("assistant.reasoning", reasoningId="r1", content="hm"))
    _, unstreamed = run(event("assistant.reasoning", reasoningId="r1", content="hm"))

    assert [(each.type, each.text) for each in found if isinstance(each, Draft)] == [(EventType.REASONING_DELTA, "hm")]
    assert len(unstreamed) == 1


def test_a_retried_answer_replaces_the_first_attempt() -> None:
    retry = event("assistant.turn_retry", reason="streaming_error")
    failure = event("model.call_failure", statusCode=500, errorMessage="oops")
    copilot, found = run(
        piece("half"), failure, finished("error"), retry, piece("whole", "m2"), message("whole", "m2"), TURN_END, RESULT
    )

    assert [each.activity for each in found if isinstance(each, Draft) and each.activity] == [
        Notice(code="api_retry", message="streaming_error (500 oops)")
    ]
    assert copilot.conclude(ProcessEnd(code=0)).text == "whole"


@pytest.mark.req("RT-29")
def test_an_answer_that_was_cut_at_max_tokens_is_put_together() -> None:
    cut = [piece("first "), finished("success"), TURN_END]

    assert concluded(*cut, piece("second", "m2"), message("second", "m2"), TURN_END, RESULT).text == "first second"


def test_what_was_cut_off_before_a_tool_is_a_remark() -> None:
    cut = [piece("let me "), finished("success"), TURN_END]
    tool = message("look", "m2", toolRequests=[{"toolCallId": "c1"}])

    assert concluded(*cut, tool, TURN_END, message("done", "m3"), TURN_END, RESULT).text == "done"


def test_a_tool_is_called_and_answers() -> None:
    asked = event("tool.execution_start", toolCallId="c1", toolName="bash", arguments={"a": 1})
    done = event("tool.execution_complete", toolCallId="c1", success=False, error={"message": "denied"})
    _, found = run(asked, done)

    assert [each.activity for each in found if isinstance(each, Draft)] == [
        ToolCall(call_id="c1", name="bash", input_json='{"a":1}'),
        ToolResult(call_id="c1", output="denied", is_error=True),
    ]


@pytest.mark.req("RT-13")
@pytest.mark.parametrize(
    ("told", "code"),
    [
        (failed(errorType="authentication", statusCode=401), FailureCode.AUTH_REQUIRED),
        (failed(errorType="rate_limit", statusCode=429), FailureCode.RATE_LIMITED),
        (failed("You exceeded your current quota", errorType="rate_limit"), FailureCode.QUOTA_EXHAUSTED),
        (failed("Model 'x' not found on provider", statusCode=404), FailureCode.MODEL_UNAVAILABLE),
        (failed(errorType="query", statusCode=500), FailureCode.PROVIDER_OVERLOADED),
        (failed("Last error: Overloaded", errorType="query"), FailureCode.PROVIDER_OVERLOADED),
        (failed("error sending request", errorType="query"), FailureCode.PROVIDER_UNREACHABLE),
        (failed(), FailureCode.PROCESS_FAILED),
    ],
)
def test_an_error_has_the_code_of_its_reason(told: dict[str, Any], code: FailureCode) -> None:
    assert code_of(concluded(told, {**RESULT, "exitCode": 1})) is code


@pytest.mark.req("BAN-18")
@pytest.mark.parametrize("exit_code", [1, None, "0"])
def test_only_an_exit_code_of_0_is_success(exit_code: object) -> None:
    assert code_of(concluded(message("yes"), {**RESULT, "exitCode": exit_code})) is FailureCode.PROCESS_FAILED


def test_st_09_an_error_after_the_last_message_beats_an_exit_code_of_0() -> None:
    assert code_of(concluded(message("let me look"), failed(statusCode=500), RESULT)) is FailureCode.PROVIDER_OVERLOADED
    assert concluded(failed(statusCode=500), message("done"), RESULT).text == "done"


def test_st_05_a_result_without_a_message_is_no_answer() -> None:
    assert code_of(concluded(piece("half"), RESULT)) is FailureCode.OUTPUT_INVALID


def test_premium_requests_are_the_one_thing_that_is_counted() -> None:
    draft = concluded(message("yes"), {**RESULT, "usage": {"premiumRequests": 0.33}})

    assert (draft.usage, draft.metadata) == (None, {"premium_requests": "0.33"})


def test_what_a_sub_agent_says_is_activity() -> None:
    agent = {"agentId": "a1"}
    copilot, found = run(
        message("yes"), {**piece("psst"), **agent}, {**message("psst"), **agent}, {**failed("oh"), **agent}, RESULT
    )

    assert [each.activity for each in found if isinstance(each, Draft) and each.activity] == [
        Notice(code="subagent", message="psst"),
        Notice(code="agent_error", message="oh"),
    ]
    assert copilot.conclude(ProcessEnd(code=0)).text == "yes"


@pytest.mark.req("RT-36")
def test_se_03_another_session_than_the_one_asked_for_is_not_adopted() -> None:
    copilot, _ = run(message("who are you?"), RESULT, resumed_id="s-0")

    assert code_of(copilot.conclude(ProcessEnd(code=0))) is FailureCode.LOST
    assert copilot.native_id is None


@pytest.mark.req("BAN-18", "RT-16")
def test_what_follows_the_result_is_noise() -> None:
    copilot, found = run(message("yes"), RESULT, piece("late"), failed(), b"bye")

    assert [each.kind for each in found if isinstance(each, Noise)] == ["after_terminal"] * 3
    assert copilot.conclude(ProcessEnd(code=0)).text == "yes"


def test_st_11_unknown_types_are_noise_and_a_field_of_another_type_loses_nothing() -> None:
    copilot, found = run(event("session.hologram"), message("hello", statusCode="7"), {**RESULT, "usage": "many"})

    assert [each.detail for each in found if isinstance(each, Noise)] == ["session.hologram"]
    assert copilot.conclude(ProcessEnd(code=0)).text == "hello"
