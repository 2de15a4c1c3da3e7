from __future__ import annotations

import json
from typing import Any

import pytest

from providers.cli.dialect import Noise, ProcessEnd, TurnContext
from providers.cli.dialects.codex_exec_json import CodexDecoder, decoder
from runtime.events import Draft, EventType, Notice, Plan, PlanEntry, ToolCall, ToolResult, Usage
from runtime.failure import FailureCode
from tests.support.expect import decode

STARTED = {"type": "thread.started", "thread_id": "th-1"}
COMPLETED = {"type": "turn.completed", "usage": {"input_tokens": 10, "cached_input_tokens": 4, "output_tokens": 2}}


def run(*events: object, resumed_id: str | None = None) -> tuple[CodexDecoder, list[Draft | Noise]]:
    codex = decoder(TurnContext(resumed_id=resumed_id))
    lines = [event if isinstance(event, bytes) else json.dumps(event).encode() for event in events]
    return codex, decode([b"\n".join(lines) + b"\n"], codex)


def concluded(*events: object, end: ProcessEnd = ProcessEnd(code=0), resumed_id: str | None = None) -> Draft:  # noqa: B008
    codex, _ = run(*events, resumed_id=resumed_id)
    return codex.conclude(end)


def item(kind: str, /, what: str = "item.completed", **members: object) -> dict[str, object]:
    return {"type": what, "item": {"id": "i1", "type": kind, **members}}


def activities(found: list[Draft | Noise]) -> list[object]:
    return [each.activity for each in found if isinstance(each, Draft)]


def test_the_last_message_is_the_answer_and_each_is_a_delta() -> None:
    codex, found = run(item("agent_message", text="let me see"), item("agent_message", text="done"), COMPLETED)

    assert [each.text for each in found if isinstance(each, Draft)] == ["let me see", "done"]
    assert codex.conclude(ProcessEnd(code=0)).text == "done"


def test_a_command_is_called_once_and_answers_once() -> None:
    command = {"command": "ls", "exit_code": 2, "aggregated_output": "no", "status": "failed"}
    _, found = run(
        *(item("command_execution", f"item.{what}", **command) for what in ("started", "updated", "completed"))
    )

    assert activities(found) == [
        ToolCall(call_id="i1", name="command_execution", input_json='{"command":"ls"}'),
        ToolResult(call_id="i1", output="no", is_error=True),
    ]


def test_a_tool_of_a_server_answers_with_its_text_or_its_error() -> None:
    asked: dict[str, Any] = {"server": "s", "tool": "t", "arguments": {"a": 1}}
    _, found = run(
        item("mcp_tool_call", **asked, result={"content": [{"type": "text", "text": "yes"}]}, status="completed"),
        item("mcp_tool_call", **asked, error={"message": "no"}, status="failed"),
    )

    assert activities(found)[1:] == [
        ToolResult(call_id="i1", output="yes"),
        ToolResult(call_id="i1", output="no", is_error=True),
    ]


def test_a_todo_list_is_the_whole_plan_each_time() -> None:
    steps = [{"text": "one", "completed": True}, {"text": "two", "completed": False}]
    _, found = run(item("todo_list", "item.updated", items=steps))

    assert activities(found) == [Plan(entries=(PlanEntry(text="one", status="completed"), PlanEntry(text="two")))]


def test_a_warning_and_a_retry_are_notices() -> None:
    codex, found = run(item("error", message="old model"), {"type": "error", "message": "Reconnecting... 1/2 (x)"})

    assert activities(found) == [
        Notice(code="warning", message="old model"),
        Notice(code="api_retry", message="Reconnecting... 1/2 (x)"),
    ]
    assert not codex.has_ended


@pytest.mark.req("RT-29")
def test_us_04_usage_of_a_resumed_thread_is_the_threads_and_not_the_runs() -> None:
    fresh, resumed = concluded(STARTED, COMPLETED), concluded(STARTED, COMPLETED, resumed_id="th-1")

    assert fresh.usage == Usage(input_tokens=10, output_tokens=2, cache_read_tokens=4)
    assert resumed.usage is None
    assert resumed.metadata == {"thread_input_tokens": "10", "thread_output_tokens": "2"}


@pytest.mark.req("RT-36")
def test_a_silent_new_thread_ends_the_run_before_it_answers_the_wrong_conversation() -> None:
    codex, found = run(STARTED, item("agent_message", text="who are you?"), COMPLETED, resumed_id="th-0")
    draft = codex.conclude(ProcessEnd(code=0))

    assert draft.failure is not None
    assert draft.failure.code is FailureCode.LOST
    assert {each.kind for each in found if isinstance(each, Noise)} == {"after_terminal"}
    assert codex.native_id is None


@pytest.mark.req("BAN-18", "RT-16")
def test_a_second_terminal_and_what_follows_is_noise() -> None:
    codex, found = run(
        COMPLETED, {"type": "turn.failed", "error": {"message": "late"}}, item("agent_message", text="late"), b"bye"
    )

    assert [each.kind for each in found if isinstance(each, Noise)] == ["after_terminal"] * 3
    assert codex.conclude(ProcessEnd(code=0)).type is EventType.COMPLETE


@pytest.mark.parametrize(
    ("message", "code"),
    [
        ("unexpected status 401 Unauthorized: x", FailureCode.AUTH_REQUIRED),
        ("exceeded retry limit, last status: 429 Too Many Requests", FailureCode.RATE_LIMITED),
        ("You've hit your usage limit. Try again at 8:55 PM.", FailureCode.QUOTA_EXHAUSTED),
        (
            "unexpected status 404 Not Found: model: no-such-model, url: http://x/v1/responses",
            FailureCode.MODEL_UNAVAILABLE,
        ),
        ("The requested model 'x' does not exist.", FailureCode.MODEL_UNAVAILABLE),
        ("unexpected status 503 Service Unavailable: x", FailureCode.PROVIDER_OVERLOADED),
        ("something new", FailureCode.PROCESS_FAILED),
    ],
)
def test_a_failed_turn_has_the_code_of_its_reason(message: str, code: FailureCode) -> None:
    draft = concluded(STARTED, {"type": "turn.failed", "error": {"message": message}}, end=ProcessEnd(code=1))

    assert draft.failure is not None
    assert draft.failure.code is code


def test_us_01_a_spent_window_is_told_from_a_hiccup_with_its_reset() -> None:
    spent = {"type": "usage_limit_reached", "message": "limit", "resets_at": 1788874637, "resets_in_seconds": 9568}
    draft = concluded({"type": "error", "status_code": 429, "error": spent}, end=ProcessEnd(code=1))

    assert draft.failure is not None
    assert draft.failure.code is FailureCode.QUOTA_EXHAUSTED
    assert draft.failure.metadata["resets_at"] == "1788874637"


def test_st_11_a_field_of_another_type_does_not_lose_the_event() -> None:
    codex, found = run(
        {"type": "item.completed", "item": {"id": 7, "type": "agent_message", "text": "hello", "exit_code": "0"}},
        {**COMPLETED, "message": ["odd"], "usage": "many"},
    )

    assert [each.text for each in found if isinstance(each, Draft)] == ["hello"]
    assert codex.conclude(ProcessEnd(code=0)).type is EventType.COMPLETE


def test_st_11_unknown_types_are_noise_with_their_name() -> None:
    _, found = run({"type": "turn.paused"}, item("hologram"), {"note": "no type"})

    assert found == [
        Noise(kind="unknown_type", detail=each)
        for each in ("turn.paused", "item.completed/hologram", "an event without type")
    ]
