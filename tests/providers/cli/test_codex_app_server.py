"""The words with Codex's app-server: the opening, turns, interrupts, steering, questions, and whose messages count."""

from __future__ import annotations

import json
from typing import Any

import pytest

from providers.cli.codex_rpc import CodexOpening, failure_of
from providers.cli.dialect import Line, Noise, ProcessEnd, Question, Reply, Told, TurnContext
from providers.cli.dialects.codex_app_server import CodexConversation, decoder, encode_turn, opening
from runtime.events import Draft, EventType, PermissionRequest, Usage
from runtime.failure import FailureCode
from runtime.provider import Answer, Decision

RUNNING = ProcessEnd()
STATE = {"thread": "th-1", "next": 3, "total_tokens": 100}
BEGUN = {"id": 3, "result": {"turn": {"id": "turn-1"}}}
COMPLETED = {"id": "turn-1", "status": "completed", "error": None}


def line(message: object) -> Line:
    return Line(data=json.dumps(message).encode(), end=7)


def note(method: str, **params: Any) -> dict[str, Any]:
    return {"method": method, "params": {"threadId": "th-1", "turnId": "turn-1", **params}}


def done(**turn: Any) -> dict[str, Any]:
    return {"method": "turn/completed", "params": {"threadId": "th-1", "turn": {**COMPLETED, **turn}}}


def hear(*messages: object, **state: Any) -> tuple[CodexConversation, list[Told]]:
    conversation = decoder(TurnContext(resumed_id="th-1", state={**STATE, **state}))
    return conversation, [found for message in messages for found in conversation.decode(line(message))]


def said(data: bytes | None) -> Any:
    assert data is not None and data.endswith(b"\n")
    return json.loads(data)


# --- the opening


def open_with(
    *answers: object, resumed_id: str | None = None, source_id: str | None = None
) -> tuple[CodexOpening, list[Any]]:
    begun = opening(cwd="/w", resumed_id=resumed_id, source_id=source_id, settings={})
    words = begun.first + b"".join(begun.hear(line(answer)) for answer in answers)
    return begun, [json.loads(word) for word in words.splitlines()]


def test_a_fresh_process_is_opened_with_a_new_thread() -> None:
    begun, words = open_with({"id": 1, "result": {}}, {"id": 2, "result": {"thread": {"id": "th-1"}}})

    assert [word["method"] for word in words] == ["initialize", "initialized", "thread/start"]
    assert words[-1]["params"] == {"cwd": "/w"}
    assert (begun.is_over, begun.failure, dict(begun.state)) == (
        True,
        None,
        {"thread": "th-1", "next": 3, "total_tokens": 0},
    )


@pytest.mark.req("RT-36")
def test_a_session_is_resumed_by_its_thread() -> None:
    begun, words = open_with(
        {"id": 1, "result": {}}, {"id": 2, "result": {"thread": {"id": "th-1"}}}, resumed_id="th-1"
    )

    assert (words[-1]["method"], words[-1]["params"]["threadId"]) == ("thread/resume", "th-1")
    assert begun.is_over and dict(begun.state) == {"thread": "th-1", "next": 3}


@pytest.mark.req("RT-36")
def test_a_fork_has_a_thread_of_its_own() -> None:
    begun, words = open_with({"id": 1, "result": {}}, {"id": 2, "result": {"thread": {"id": "th-2"}}}, source_id="th-1")

    assert words[-1]["method"] == "thread/fork"
    assert words[-1]["params"] == {"threadId": "th-1", "cwd": "/w"}
    assert begun.is_over and dict(begun.state) == {"thread": "th-2", "next": 3}, "its count of tokens is not known"


def test_a_fork_of_an_unknown_thread_is_lost() -> None:
    unknown = {"code": -32600, "message": "no rollout found for thread id th-1"}
    begun, _ = open_with({"id": 1, "result": {}}, {"id": 2, "error": unknown}, source_id="th-1")

    assert begun.failure is not None and begun.failure.code == "lost"


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        ({"error": {"code": -32600, "message": "no rollout found for thread id th-1"}}, "lost"),
        ({"result": {"thread": {"id": "th-2"}}}, "lost"),
        ({"error": {"code": -32600, "message": "something else"}}, "process_failed"),
    ],
)
def test_a_resume_that_is_none_is_a_failure(answer: dict[str, Any], code: str) -> None:
    begun, _ = open_with({"id": 1, "result": {}}, {"id": 2, **answer}, resumed_id="th-1")

    assert not begun.is_over
    assert begun.failure is not None and begun.failure.code == code


def test_garbage_during_the_opening_is_passed_over_and_requests_are_refused() -> None:
    begun, words = open_with({"id": 9, "method": "item/tool/call", "params": {}}, {"method": "x"}, {"id": 7}, 5, None)

    assert not begun.is_over and begun.failure is None
    assert [word.get("error", {}).get("code") for word in words[1:]] == [-32601]


# --- turns


def test_a_turn_names_its_thread_and_number() -> None:
    asked = said(encode_turn("say\nhi", STATE))

    assert (asked["id"], asked["method"]) == (3, "turn/start")
    assert asked["params"] == {"threadId": "th-1", "input": [{"type": "text", "text": "say\nhi"}]}


def test_an_interrupt_waits_for_the_name_of_the_turn() -> None:
    early, _ = hear()
    late, _ = hear(BEGUN)

    assert early.interrupt() is None
    assert said(late.interrupt())["params"] == {"threadId": "th-1", "turnId": "turn-1"}


def test_steering_is_confirmed_by_its_answer() -> None:
    conversation, _ = hear(BEGUN)

    asked = said(conversation.steer("and more", "steer 1"))
    conversation.decode(line({"id": "steer 1", "result": {"turnId": "turn-1"}}))
    conversation.decode(line({"id": "steer 2", "error": {"code": 1, "message": "no active turn"}}))

    assert asked["params"]["expectedTurnId"] == "turn-1"
    assert dict(conversation.steered) == {"steer 1": True, "steer 2": False}
    assert hear()[0].steer("early", "steer 3") is None


def test_messages_of_others_are_not_ours() -> None:
    conversation, found = hear(
        BEGUN,
        note("item/agentMessage/delta", itemId="m", delta="of another thread", threadId="th-2"),
        note("item/agentMessage/delta", itemId="m", delta="of another turn", turnId="turn-0"),
        {"method": "turn/completed", "params": {"threadId": "th-1", "turn": {"id": "turn-0", "status": "completed"}}},
        note("item/agentMessage/delta", itemId="m", delta="ours"),
    )

    assert [each.text for each in found if isinstance(each, Draft)] == ["ours"]
    assert not conversation.has_ended


def test_a_refused_turn_is_a_failure() -> None:
    conversation, _ = hear({"id": 3, "error": {"code": -32600, "message": "thread not found"}})

    assert conversation.has_ended
    assert conversation.conclude(RUNNING).type is EventType.ERROR


@pytest.mark.req("NB-07")
def test_usage_is_added_up_where_the_total_moves() -> None:
    def used(total: int, last: int) -> dict[str, Any]:
        return note(
            "thread/tokenUsage/updated", tokenUsage={"total": {"totalTokens": total}, "last": {"inputTokens": last}}
        )

    conversation, _ = hear(BEGUN, used(100, 90), used(130, 30), used(130, 30), used(150, 20), done())

    assert conversation.conclude(RUNNING).usage == Usage(input_tokens=50)
    assert dict(conversation.state) == {"thread": "th-1", "next": 4, "total_tokens": 150}


@pytest.mark.parametrize(
    ("info", "message", "code"),
    [
        ("usageLimitExceeded", "x", FailureCode.QUOTA_EXHAUSTED),
        ("contextWindowExceeded", "x", FailureCode.BUDGET_EXHAUSTED),
        ("modelNotFound", "x", FailureCode.MODEL_UNAVAILABLE),
        ({"httpConnectionFailed": {"httpStatusCode": 401}}, "x", FailureCode.AUTH_REQUIRED),
        ({"responseTooManyFailedAttempts": {"httpStatusCode": 503}}, "x", FailureCode.PROVIDER_OVERLOADED),
        (
            {"responseStreamDisconnected": {"httpStatusCode": None}},
            "stream disconnected",
            FailureCode.PROVIDER_UNREACHABLE,
        ),
        ("other", "", FailureCode.PROCESS_FAILED),
        (None, "unexpected status 429 Too Many Requests", FailureCode.RATE_LIMITED),
        ([1], "x", FailureCode.PROCESS_FAILED),
    ],
)
def test_an_error_is_known_by_its_word_its_status_or_its_prose(info: object, message: str, code: FailureCode) -> None:
    assert failure_of({"message": message, "codexErrorInfo": info}, {}).code is code


# --- questions


def test_leave_is_asked_for_and_given_under_the_request_s_own_id() -> None:
    asks = {"id": 12, **note("item/commandExecution/requestApproval", itemId="i", command="rm x", reason="writes")}
    conversation, (question,) = hear(BEGUN, asks)

    assert isinstance(question, Question)
    assert (question.request.tool, json.loads(question.request.input_json)) == ("commandExecution", {"command": "rm x"})
    for decision, word in ((Decision.ALLOW, "accept"), (Decision.DENY, "decline")):
        answer = Answer(request_id=question.request.request_id, decision=decision, by="caller")
        assert said(conversation.answer(answer)) == {"id": 12, "result": {"decision": word}}


QUESTIONS = [{"id": "colour", "header": "", "question": "Which colour?"}, {"id": "sizes", "question": "Which sizes?"}]
FORM = {"serverName": "shop", "mode": "form", "message": "Which colour?", "requestedSchema": {"properties": {}}}
LEAVE = {"codex_approval_kind": "mcp_tool_call", "tool_name": "buy", "tool_params": {"colour": "blue"}}


def asked(method: str, **params: object) -> tuple[CodexConversation, PermissionRequest]:
    conversation, (found,) = hear(BEGUN, {"id": "q", **note(method, **params)})
    assert isinstance(found, Question)
    return conversation, found.request


def answered(conversation: CodexConversation, decision: Decision, by: str = "caller", **more: Any) -> Any:
    told = said(conversation.answer(Answer(request_id="3.q", decision=decision, by=by, **more)))
    assert told["id"] == "q"
    return told["result"]


@pytest.mark.req("RT-13")
def test_the_questions_of_its_tool_are_answered_by_their_ids() -> None:
    conversation, question = asked("item/tool/requestUserInput", itemId="i", isBlocking=True, questions=QUESTIONS)

    assert (question.kind, question.tool) == ("question", "requestUserInput")
    assert question.reason == "Which colour?\nWhich sizes?"
    assert json.loads(question.input_json) == {"questions": QUESTIONS}
    assert answered(conversation, Decision.ALLOW, content={"colour": "blue", "sizes": ["s", "m"]}) == {
        "answers": {"colour": {"answers": ["blue"]}, "sizes": {"answers": ["s", "m"]}}
    }
    assert answered(conversation, Decision.DENY) == {"answers": {}}


@pytest.mark.req("RT-13")
def test_what_an_mcp_server_asks_is_answered_in_its_three_words() -> None:
    conversation, question = asked("mcpServer/elicitation/request", **FORM)

    assert (question.kind, question.tool, question.reason) == ("question", "shop", "Which colour?")
    assert json.loads(question.input_json) == {"requestedSchema": {"properties": {}}}
    assert answered(conversation, Decision.ALLOW, content={"a": 1}) == {"action": "accept", "content": {"a": 1}}
    assert answered(conversation, Decision.DENY) == {"action": "decline"}
    assert answered(conversation, Decision.DENY, "timeout") == {"action": "cancel"}


def test_leave_for_a_servers_tool_is_no_question_though_it_comes_as_one() -> None:
    """A rule may answer it, and nobody has to fill in an empty form."""
    conversation, leave = asked("mcpServer/elicitation/request", **FORM, _meta=LEAVE)

    assert (leave.kind, leave.tool, leave.reason) == ("tool", "mcpToolCall", "Which colour?")
    assert json.loads(leave.input_json) == {"server": "shop", "tool": "buy", "arguments": {"colour": "blue"}}
    assert answered(conversation, Decision.ALLOW, "rule") == {"action": "accept", "content": {}}
    assert answered(conversation, Decision.DENY, "rule") == {"action": "decline"}


def test_a_way_to_elicit_that_was_not_declared_is_refused_at_once() -> None:
    _, (reply,) = hear(BEGUN, {"id": "q", **note("mcpServer/elicitation/request", **{**FORM, "mode": "openai/form"})})

    assert isinstance(reply, Reply)


@pytest.mark.parametrize("method", ["item/tool/requestUserInput", "attestation/generate", "execCommandApproval"])
def test_other_requests_are_refused_at_once(method: str) -> None:
    _, (reply,) = hear(BEGUN, {"id": "q", "method": method, "params": {}})

    assert isinstance(reply, Reply)
    assert said(reply.data) == {
        "id": "q",
        "error": {"code": -32601, "message": f"{method} is not supported by this host"},
    }


def test_a_second_end_is_noise() -> None:
    _, found = hear(BEGUN, done(), done())

    assert [each.kind for each in found if isinstance(each, Noise)] == ["after_terminal"]
