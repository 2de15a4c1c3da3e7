from __future__ import annotations

import json
import tracemalloc
from typing import Any

import pytest

from providers.cli.dialect import Line, Noise, ProcessEnd, TurnContext
from providers.cli.dialects.pi_json import PiDecoder, decoder
from runtime.events import Draft, EventType, Notice, ToolCall, ToolResult
from runtime.failure import FailureCode
from tests.support.expect import decode

SESSION = {"type": "session", "id": "s-1"}
STARTED = {"type": "message_start", "message": {"role": "assistant", "content": []}}
END: dict[str, Any] = {"type": "agent_end", "messages": []}


def ended(text: str = "", stop: str = "stop", **members: object) -> dict[str, Any]:
    usage = {"input": 3, "output": 2, "cacheRead": 1, "cacheWrite": 0, "cost": {"total": 0.25}}
    blocks = [{"type": "text", "text": text}] if text else []
    message = {"role": "assistant", "content": blocks, "stopReason": stop, "usage": usage, **members}
    return {"type": "message_end", "message": message}


def failed(message: str) -> dict[str, Any]:
    return ended(stop="error", errorMessage=message, usage={})


def update(kind: str, delta: str, whole: str = "") -> dict[str, Any]:
    partial = {"role": "assistant", "content": [{"type": "text", "text": whole}]}
    said = {"type": kind, "contentIndex": 0, "delta": delta, "partial": partial}
    return {"type": "message_update", "assistantMessageEvent": said, "message": partial}


def run(*events: object, resumed_id: str | None = None) -> tuple[PiDecoder, list[Draft | Noise]]:
    pi = decoder(TurnContext(resumed_id=resumed_id))
    lines = [each if isinstance(each, bytes) else json.dumps(each).encode() for each in events]
    return pi, decode([b"\n".join(lines) + b"\n"], pi)


def concluded(*events: object, code: int | None = 0, stderr: str = "", resumed_id: str | None = None) -> Draft:
    pi, _ = run(*events, resumed_id=resumed_id)
    return pi.conclude(ProcessEnd(code=code, stderr=stderr))


def code_of(draft: Draft) -> FailureCode | None:
    return None if draft.failure is None else draft.failure.code


@pytest.mark.req("RT-29")
def test_st_12_a_message_that_was_streamed_is_not_told_again_and_one_that_was_not_is() -> None:
    streamed = [STARTED, update("thinking_delta", "hm"), update("text_delta", "EC"), update("text_delta", "HO")]
    pi, found = run(*streamed, ended("ECHO"), STARTED, ended("ECHO"), END)

    assert [(each.type, each.text, each.metadata["message_id"]) for each in found if isinstance(each, Draft)] == [
        (EventType.REASONING_DELTA, "hm", "message-1"),
        (EventType.DELTA, "EC", "message-1"),
        (EventType.DELTA, "HO", "message-1"),
        (EventType.DELTA, "ECHO", "message-2"),
    ]
    assert pi.conclude(ProcessEnd(code=0)).text == "ECHO"


@pytest.mark.req("RT-29")
def test_usage_is_the_sum_of_the_runs_messages() -> None:
    usage = concluded(ended("let me look", "toolUse"), ended("done"), END).usage

    assert usage is not None
    assert (usage.input_tokens, usage.output_tokens, usage.cache_read_tokens, usage.cost_usd) == (6, 4, 2, 0.5)


def test_a_good_end_ends_the_run_and_a_bad_one_waits_for_a_retry() -> None:
    good, _ = run(ended("done"), END)
    bad, _ = run(failed("500 x"), END)

    assert (good.has_ended, bad.has_ended) == (True, False)


@pytest.mark.req("RT-13", "BAN-18")
def test_an_error_decides_when_no_retry_follows_although_the_exit_code_is_0() -> None:
    assert code_of(concluded(SESSION, failed("401 Incorrect API key"), END)) is FailureCode.AUTH_REQUIRED


def test_a_retry_that_goes_well_is_the_answer_and_a_notice() -> None:
    retry = {"type": "auto_retry_start", "attempt": 1, "maxAttempts": 3, "delayMs": 2000, "errorMessage": "Overloaded"}
    pi, found = run(failed("Overloaded"), END, retry, {"type": "agent_start"}, ended("done"), END)

    assert [each.activity for each in found if isinstance(each, Draft) and each.activity] == [
        Notice(code="api_retry", message="attempt 1 of 3 after Overloaded, again in 2.0 s")
    ]
    assert pi.conclude(ProcessEnd(code=0)).text == "done"


def test_a_process_that_ends_while_it_waits_to_retry_has_not_answered() -> None:
    draft = concluded(failed("500 x"), END, {"type": "auto_retry_start", "attempt": 1}, code=0)

    assert code_of(draft) is FailureCode.PROVIDER_OVERLOADED


def test_retries_that_are_spent_end_the_run() -> None:
    pi, found = run(failed("500 x"), END, {"type": "auto_retry_end", "success": False}, ended("late"), END)

    assert pi.has_ended
    assert [each.kind for each in found if isinstance(each, Noise)] == ["after_terminal"] * 2
    assert code_of(pi.conclude(ProcessEnd())) is FailureCode.PROVIDER_OVERLOADED


@pytest.mark.parametrize(
    ("message", "code"),
    [
        ("429 You exceeded your current quota", FailureCode.QUOTA_EXHAUSTED),
        ("429 slow down", FailureCode.RATE_LIMITED),
        ("404 The model `x` does not exist", FailureCode.MODEL_UNAVAILABLE),
        ("terminated", FailureCode.PROVIDER_UNREACHABLE),
        ("something new", FailureCode.PROCESS_FAILED),
    ],
)
def test_an_error_has_the_code_of_its_reason(message: str, code: FailureCode) -> None:
    assert code_of(concluded(failed(message), END)) is code


def test_an_abort_that_nobody_here_asked_for_is_an_interruption() -> None:
    assert code_of(concluded(ended("half", "aborted"), END)) is FailureCode.INTERRUPTED


def test_an_answer_without_an_end_is_none() -> None:
    assert code_of(concluded(STARTED, ended("done"), code=0)) is FailureCode.OUTPUT_INVALID


def test_a_tool_is_called_and_answers() -> None:
    asked = {"type": "tool_execution_start", "toolCallId": "c1", "toolName": "bash", "args": {"a": 1}}
    update = {"type": "tool_execution_update", "toolCallId": "c1", "partialResult": {"content": []}}
    told = {"content": [{"type": "text", "text": "no"}]}
    done = {"type": "tool_execution_end", "toolCallId": "c1", "result": told, "isError": True}
    _, found = run(asked, update, done)

    assert [each.activity for each in found if isinstance(each, Draft)] == [
        ToolCall(call_id="c1", name="bash", input_json='{"a":1}'),
        ToolResult(call_id="c1", output="no", is_error=True),
    ]


@pytest.mark.req("RT-36")
def test_se_03_a_silent_new_session_ends_the_run_before_it_answers_the_wrong_conversation() -> None:
    pi, found = run(SESSION, STARTED, ended("who are you?"), END, resumed_id="s-0")

    assert code_of(pi.conclude(ProcessEnd(code=0))) is FailureCode.LOST
    assert {each.kind for each in found if isinstance(each, Noise)} == {"after_terminal"}
    assert pi.native_id is None


@pytest.mark.req("BAN-18", "RT-16")
def test_what_follows_a_good_end_is_noise() -> None:
    pi, found = run(ended("done"), END, {"type": "compaction_start"}, update("text_delta", "late"), b"bye")

    assert [each.kind for each in found if isinstance(each, Noise)] == ["after_terminal"] * 3
    assert pi.conclude(ProcessEnd(code=7)).metadata == {"exit_code": "7"}


def test_st_02_a_damaged_update_still_brings_its_delta() -> None:
    _, found = run(
        STARTED, b'{"type":"message_update","assistantMessageEvent":{"type":"text_delta","delta":"a\\ud800"}}'
    )

    assert [each.text for each in found if isinstance(each, Draft)] == ["a\ufffd"]


def test_st_11_a_field_of_another_type_does_not_lose_the_event() -> None:
    pi, _ = run(ended("hello", errorMessage=None, stopReason=7), {"type": "hologram"}, {**END, "attempt": "two"})

    assert pi.conclude(ProcessEnd(code=0)).text == "hello"


def test_an_update_that_repeats_the_whole_message_makes_no_objects_of_it() -> None:
    """Each of the updates repeats the message twice, so a run's output is the square of its answer."""
    pi = decoder(TurnContext())
    data = json.dumps(update("text_delta", "x", whole="y" * 4_000_000)).encode()

    tracemalloc.start()
    found = pi.decode(Line(data=data, end=len(data)))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()

    assert [each.text for each in found if isinstance(each, Draft)] == ["x"]
    assert peak < 100_000
