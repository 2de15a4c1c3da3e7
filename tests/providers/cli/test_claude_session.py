"""What is said to Claude in a session, and what its questions become."""

from __future__ import annotations

import json
from typing import Any

import pytest

from providers.cli.dialect import Line, ProcessEnd, Question, Reply, TurnContext
from providers.cli.dialects.claude_session import ClaudeConversation, decoder, encode_turn, opening
from runtime.failure import FailureCode
from runtime.provider import Answer, Decision

RUNNING = ProcessEnd()
RESULT = {"type": "result", "subtype": "success", "is_error": False, "result": "done", "session_id": "sess-1"}
ASKS = {
    "type": "control_request",
    "request_id": "r-1",
    "request": {
        "subtype": "can_use_tool",
        "tool_name": "Write",
        "input": {"file_path": "a"},
        "decision_reason": "outside",
    },
}


def line(frame: object, end: int = 7) -> Line:
    return Line(data=json.dumps(frame).encode(), end=end)


def turn(*frames: object, **state: Any) -> ClaudeConversation:
    conversation = decoder(TurnContext(resumed_id="sess-1", state=state))
    for frame in frames:
        conversation.decode(line(frame))
    return conversation


def said(data: bytes | None) -> Any:
    assert data is not None and data.endswith(b"\n") and data.count(b"\n") == 1
    return json.loads(data)


def answer(decision: Decision, message: str = "") -> Answer:
    return Answer(request_id="r-1", decision=decision, by="rule", message=message)


def test_a_turn_is_one_line_whatever_is_in_it() -> None:
    text = 'two\nlines, "quotes", \u2028 and \x00'

    assert said(encode_turn(text, {})) == {"type": "user", "message": {"role": "user", "content": text}}


def test_a_process_takes_its_first_turn_without_an_opening() -> None:
    begun = opening(cwd="/w", resumed_id="sess-1", settings={})

    assert (begun.is_over, begun.first, begun.failure, dict(begun.state)) == (True, b"", None, {})


def test_interrupts_of_two_turns_have_two_names() -> None:
    first, second = (said(turn(**state).interrupt()) for state in ({}, {"turns": 1}))

    assert first == {"type": "control_request", "request_id": "interrupt-1", "request": {"subtype": "interrupt"}}
    assert second["request_id"] == "interrupt-2"


def test_a_question_stands_in_its_place_and_an_allowed_call_is_repeated() -> None:
    conversation = turn()

    (question,) = conversation.decode(line(ASKS, end=99))

    assert isinstance(question, Question) and (question.offset, question.index) == (99, 0)
    assert (question.request.request_id, question.request.tool) == ("r-1", "Write")
    assert (json.loads(question.request.input_json), question.request.reason) == ({"file_path": "a"}, "outside")
    allowed = said(conversation.answer(answer(Decision.ALLOW)))["response"]
    assert allowed["response"] == {"behavior": "allow", "updatedInput": {"file_path": "a"}}
    denied = said(conversation.answer(answer(Decision.DENY, "not today")))["response"]
    assert (denied["request_id"], denied["response"]) == ("r-1", {"behavior": "deny", "message": "not today"})


QUESTIONS = {"questions": [{"question": "Which colour?"}, {"question": "Which sizes?", "multiSelect": True}]}
ELICITS = {
    "subtype": "elicitation",
    "mcp_server_name": "shop",
    "message": "Which colour?",
    "requested_schema": {"a": 1},
}


def asked(request: dict[str, Any]) -> tuple[ClaudeConversation, Any]:
    conversation = turn()
    (found,) = conversation.decode(line({**ASKS, "request": request}))
    return conversation, found


def answered(conversation: ClaudeConversation, decision: Decision, by: str = "caller", **more: Any) -> Any:
    told = said(conversation.answer(Answer(request_id="r-1", decision=decision, by=by, **more)))
    assert (told["type"], told["response"]["subtype"], told["response"]["request_id"]) == (
        "control_response",
        "success",
        "r-1",
    )
    return told["response"]["response"]


@pytest.mark.req("RT-13")
def test_the_questions_of_its_tool_are_answered_by_their_text_in_its_input() -> None:
    conversation, found = asked({"subtype": "can_use_tool", "tool_name": "AskUserQuestion", "input": QUESTIONS})

    assert isinstance(found, Question)
    assert (found.request.kind, found.request.tool) == ("question", "AskUserQuestion")
    assert found.request.reason == "Which colour?\nWhich sizes?"
    assert json.loads(found.request.input_json) == QUESTIONS
    chosen = {"Which colour?": "blue", "Which sizes?": ["s", "m"]}
    assert answered(conversation, Decision.ALLOW, content=chosen) == {
        "behavior": "allow",
        "updatedInput": {**QUESTIONS, "answers": {"Which colour?": "blue", "Which sizes?": "s, m"}},
    }
    assert answered(conversation, Decision.DENY, message="no") == {"behavior": "deny", "message": "no"}


@pytest.mark.req("RT-13")
def test_what_an_mcp_server_asks_is_answered_in_its_three_words() -> None:
    conversation, found = asked(ELICITS)

    assert isinstance(found, Question)
    assert (found.request.kind, found.request.tool, found.request.reason) == ("question", "shop", "Which colour?")
    assert json.loads(found.request.input_json) == {"requestedSchema": {"a": 1}}
    content = {"colour": "blue", "sizes": ["s"], "count": 2, "is_gift": True}
    assert answered(conversation, Decision.ALLOW, content=content) == {"action": "accept", "content": content}
    assert answered(conversation, Decision.ALLOW, content={}) == {"action": "accept", "content": {}}
    assert answered(conversation, Decision.DENY) == {"action": "decline"}
    assert answered(conversation, Decision.DENY, "timeout") == {"action": "cancel"}


def test_a_place_to_visit_is_accepted_without_a_content() -> None:
    conversation, found = asked({**ELICITS, "mode": "url", "url": "https://shop.example/pay"})

    assert isinstance(found, Question)
    assert json.loads(found.request.input_json) == {"url": "https://shop.example/pay"}
    assert answered(conversation, Decision.ALLOW, content={}) == {"action": "accept"}


def test_a_way_to_elicit_that_nobody_knows_is_refused_at_once() -> None:
    _, found = asked({**ELICITS, "mode": "hologram"})

    assert isinstance(found, Reply)
    assert said(found.data)["response"]["subtype"] == "error"


def test_what_the_host_has_not_is_refused_at_once() -> None:
    asked = {**ASKS, "request": {"subtype": "mcp_message"}}

    (reply,) = turn().decode(line(asked))

    assert isinstance(reply, Reply) and reply.key == "r-1"
    assert said(reply.data)["response"]["subtype"] == "error"


def test_a_question_after_the_end_is_denied() -> None:
    """A job in the background asks: nobody would answer it before the next turn, which may wait behind it."""
    (found,) = turn(RESULT).decode(line(ASKS))

    assert isinstance(found, Reply) and found.key == "r-1"
    told = said(found.data)["response"]
    assert (told["request_id"], told["response"]["behavior"]) == ("r-1", "deny")


@pytest.mark.req("NB-07")
def test_the_cost_of_a_turn_is_what_the_process_grew_by() -> None:
    conversation = turn({**RESULT, "total_cost_usd": 0.75}, cost_usd=0.5, turns=3)

    usage = conversation.conclude(RUNNING).usage

    assert usage is not None and usage.cost_usd == 0.25
    assert dict(conversation.state) == {"turns": 4, "cost_usd": 0.75}


def test_a_process_that_counts_from_zero_again_is_believed() -> None:
    usage = turn({**RESULT, "total_cost_usd": 0.2}, cost_usd=0.5).conclude(RUNNING).usage

    assert usage is not None and usage.cost_usd == 0.2


def test_a_turn_without_a_result_leaves_the_count_as_it_was() -> None:
    conversation = turn(cost_usd=0.5)

    assert dict(conversation.state) == {"turns": 1, "cost_usd": 0.5}
    failure = conversation.conclude(ProcessEnd(signal=9)).failure
    assert failure is not None and failure.code is FailureCode.PROCESS_FAILED
