from __future__ import annotations

import json
from typing import Any

import pytest

from providers.cli.dialect import Noise, ProcessEnd, TurnContext
from providers.cli.dialects.opencode_json import OpencodeDecoder, decoder
from runtime.events import Draft, EventType, Notice, ToolCall, ToolResult, Usage
from runtime.failure import FailureCode
from tests.support.expect import decode


def event(kind: str, session: str = "ses_1", **part: object) -> dict[str, Any]:
    return {"type": kind, "sessionID": session, "part": {"id": "p1", "messageID": "m1", **part}}


def failed(name: str = "APIError", **data: object) -> dict[str, Any]:
    return {"type": "error", "sessionID": "ses_1", "error": {"name": name, "data": data}}


START = event("step_start")
STOP = event("step_finish", reason="stop", tokens={"input": 9, "output": 2, "cache": {"read": 4, "write": 1}}, cost=0.5)
TOOLS = event("step_finish", reason="tool-calls")


def run(*events: object, resumed_id: str | None = None) -> tuple[OpencodeDecoder, list[Draft | Noise]]:
    opencode = decoder(TurnContext(resumed_id=resumed_id))
    lines = [each if isinstance(each, bytes) else json.dumps(each).encode() for each in events]
    return opencode, decode([b"\n".join(lines) + b"\n"], opencode)


def concluded(*events: object, code: int | None = 0, stderr: str = "", resumed_id: str | None = None) -> Draft:
    opencode, _ = run(*events, resumed_id=resumed_id)
    return opencode.conclude(ProcessEnd(code=code, stderr=stderr))


def code_of(draft: Draft) -> FailureCode | None:
    return None if draft.failure is None else draft.failure.code


@pytest.mark.req("RT-29")
def test_the_answer_is_what_was_said_after_the_last_tool_call_and_usage_is_the_sum_of_the_steps() -> None:
    remark = [START, event("text", text="let me look"), {**TOOLS, "part": {**TOOLS["part"], "tokens": {"input": 1}}}]
    draft = concluded(*remark, START, event("text", messageID="m2", id="p2", text="done"), STOP)

    assert draft.text == "done"
    assert draft.usage is not None
    assert (draft.usage.input_tokens, draft.usage.output_tokens, draft.usage.cost_usd) == (10, 2, 0.5)


def test_a_cost_of_zero_is_not_reported() -> None:
    finish = event("step_finish", reason="stop", tokens={"input": 1}, cost=0)
    usage = concluded(event("text", text="x"), finish).usage

    assert usage == Usage(
        input_tokens=1, output_tokens=0, reasoning_tokens=0, cache_read_tokens=0, cache_write_tokens=0
    )


@pytest.mark.req("BAN-18")
@pytest.mark.parametrize(
    ("events", "exit_code"),
    [
        ([START, STOP], 0),  # no text
        ([START, event("text", text="half")], 0),  # the step is not finished
        ([START, event("text", text="let me look"), TOOLS], 0),  # a remark before a tool is no answer
        ([START, event("text", text="all"), STOP], 1),
    ],
)
def test_neither_exit_0_nor_a_text_is_success_alone(events: list[object], exit_code: int) -> None:
    draft = concluded(*events, code=exit_code)

    assert draft.type is EventType.ERROR


def test_a_running_process_has_not_answered_yet() -> None:
    assert code_of(concluded(START, event("text", text="all"), STOP, code=None)) is FailureCode.PROCESS_FAILED


@pytest.mark.req("RT-29")
def test_a_part_that_is_told_again_is_one_delta_and_its_last_text_is_the_truth() -> None:
    opencode, found = run(event("text", text="draft"), event("text", text="final"), STOP)

    assert [each.text for each in found if isinstance(each, Draft)] == ["draft"]
    assert opencode.conclude(ProcessEnd(code=0)).text == "final"


def test_a_summary_of_the_context_is_no_answer() -> None:
    opencode, found = run(
        *(event("text", text="the answer"), STOP, event("text", messageID="m2", id="p2", text="## Summary"), STOP),
        event("text", messageID="m3", id="p3", text="Continue if you have next steps", synthetic=True),
        *(event("text", messageID="m4", id="p4", text="nothing left"), STOP),
    )

    assert opencode.conclude(ProcessEnd(code=0)).text == "the answer\n\nnothing left"
    assert [each.activity for each in found if isinstance(each, Draft) and each.activity] == [
        Notice(code="compacted", message="the agent compacted its context")
    ]


def test_a_tool_answers_with_its_call() -> None:
    done = event(
        "tool_use", tool="bash", callID="c1", state={"status": "completed", "input": {"a": 1}, "output": "yes"}
    )
    rejected = event("tool_use", tool="bash", callID="c2", state={"status": "error", "error": "rejected"})
    _, found = run(done, rejected)

    assert [each.activity for each in found if isinstance(each, Draft)] == [
        ToolCall(call_id="c1", name="bash", input_json='{"a":1}'),
        ToolResult(call_id="c1", output="yes"),
        ToolCall(call_id="c2", name="bash", input_json="{}"),
        ToolResult(call_id="c2", output="rejected", is_error=True),
    ]


@pytest.mark.req("RT-13")
@pytest.mark.parametrize(
    ("told", "code"),
    [
        (failed(message="x", statusCode=401), FailureCode.AUTH_REQUIRED),
        (failed(message="x", statusCode=429), FailureCode.RATE_LIMITED),
        (
            failed(message="x", statusCode=429, responseBody='{"code":"insufficient_quota"}'),
            FailureCode.QUOTA_EXHAUSTED,
        ),
        (failed(message="x", statusCode=503), FailureCode.PROVIDER_OVERLOADED),
        (failed(message="The model `x` does not exist", statusCode=404), FailureCode.MODEL_UNAVAILABLE),
        (failed("ProviderAuthError", message="x"), FailureCode.AUTH_REQUIRED),
        (failed("MessageAbortedError", message="x"), FailureCode.INTERRUPTED),
        (failed("MessageOutputLengthError"), FailureCode.BUDGET_EXHAUSTED),
        (failed("Novel"), FailureCode.PROCESS_FAILED),
        ({"type": "error", "error": "odd"}, FailureCode.PROCESS_FAILED),
    ],
)
def test_an_error_has_the_code_of_its_reason(told: dict[str, Any], code: FailureCode) -> None:
    assert code_of(concluded(told, code=1)) is code


def test_us_01_the_wait_that_the_service_asks_for_is_in_the_metadata() -> None:
    draft = concluded(failed(message="x", statusCode=429, responseHeaders={"retry-after": "2"}), code=1)

    assert draft.failure is not None
    assert dict(draft.failure.metadata) == {"api_error_status": "429", "retry_after_s": "2"}


@pytest.mark.req("BAN-18", "RT-16")
def test_pr_10_the_first_error_ends_the_run_although_the_process_goes_on() -> None:
    opencode, found = run(failed(message="Monthly usage limit reached"), event("text", text="late"), STOP, b"bye")

    assert opencode.has_ended
    assert [each.kind for each in found if isinstance(each, Noise)] == ["after_terminal"] * 3
    assert code_of(opencode.conclude(ProcessEnd())) is FailureCode.QUOTA_EXHAUSTED


@pytest.mark.req("RT-36")
def test_se_03_a_fresh_id_on_a_resume_is_not_adopted() -> None:
    opencode, found = run(START, event("text", text="who are you?"), STOP, resumed_id="ses_0")

    assert code_of(opencode.conclude(ProcessEnd(code=0))) is FailureCode.LOST
    assert {each.kind for each in found if isinstance(each, Noise)} == {"after_terminal"}
    assert opencode.native_id is None


def test_st_11_a_field_of_another_type_does_not_lose_the_event() -> None:
    opencode, found = run(event("text", text="hello", callID=7), {**STOP, "sessionID": 3}, event("patch"))

    assert opencode.conclude(ProcessEnd(code=0)).text == "hello"
    assert [each.detail for each in found if isinstance(each, Noise)] == ["patch"]
