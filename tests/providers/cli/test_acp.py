"""What is said to an agent that speaks the Agent Client Protocol, and what is made of an agent that speaks it badly.

Recorded turns are in the transcripts; here stand the openings, the questions, and the mistakes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from providers.cli.acp_opening import AcpOpening
from providers.cli.acp_turn import AcpConversation
from providers.cli.dialect import Line, Noise, ProcessEnd, Question, Reply, State, Told, TurnContext
from providers.cli.dialects import acp
from runtime.events import Draft, Plan, PlanEntry, RateLimit, ToolCall, Usage, activity, complete
from runtime.failure import FailureCode
from runtime.provider import Answer, Decision
from tests.support.acp_frames import assert_valid

STATE: State = {"session": "s-1", "agent": "acp-agent", "next": 3, "tokens": {}, "cost_usd": 0.0}
RUNNING = ProcessEnd()
OPTIONS = [
    {"optionId": "always", "name": "Always", "kind": "allow_always"},
    {"optionId": "yes", "name": "Yes", "kind": "allow_once"},
    {"optionId": "no", "name": "No", "kind": "reject_once"},
]
CALL = {"toolCallId": "c-1", "title": "rm all", "kind": "delete", "rawInput": {"path": "all"}}


def line(message: object, end: int = 100) -> Line:
    return Line(data=json.dumps(message).encode(), end=end)


def turn(state: State = STATE) -> AcpConversation:
    return acp.decoder(TurnContext(state=state))


def hear(conversation: AcpConversation, *messages: object) -> list[Told]:
    return [each for number, message in enumerate(messages, 1) for each in conversation.decode(line(message, number))]


def update(name: str, **more: object) -> dict[str, object]:
    return {"method": "session/update", "params": {"sessionId": "s-1", "update": {"sessionUpdate": name, **more}}}


def chunk(text: str, **more: object) -> dict[str, object]:
    return update("agent_message_chunk", content={"type": "text", "text": text}, **more)


def asks(request_id: object = 0, options: Sequence[Mapping[str, str]] = OPTIONS, **more: object) -> dict[str, object]:
    params = {"sessionId": "s-1", "toolCall": CALL, "options": options, **more}
    return {"id": request_id, "method": "session/request_permission", "params": params}


def answered(reason: str = "end_turn", request_id: object = 3, **more: object) -> dict[str, object]:
    return {"id": request_id, "result": {"stopReason": reason, **more}}


def answer(request_id: str, decision: Decision) -> Answer:
    return Answer(request_id=request_id, decision=decision, by="caller")


def code(conversation: AcpConversation) -> FailureCode | None:
    failure = conversation.conclude(RUNNING).failure
    return None if failure is None else failure.code


# -- the opening


def open_with(*results: object, resumed_id: str | None = None, **settings: str) -> tuple[AcpOpening, list[Any]]:
    """An opening that was answered with *results* one after the other, and every frame it said; all are valid."""
    opening = acp.opening(cwd="/work", resumed_id=resumed_id, settings=settings)
    said = assert_valid(opening.first)
    for result in results:
        message = (
            result if isinstance(result, dict) and "method" in result else {"id": said[-1]["id"], **_as_answer(result)}
        )
        said += assert_valid(opening.hear(line(message)))
    return opening, said


def _as_answer(result: object) -> dict[str, object]:
    return {"error": result} if isinstance(result, dict) and "message" in result else {"result": result}


HELLO = {"protocolVersion": 1, "agentCapabilities": {"loadSession": True}, "agentInfo": {"name": "acp-agent"}}
CREATED = {"sessionId": "s-1"}


def test_a_fresh_session_is_made() -> None:
    opening, said = open_with(HELLO, CREATED)

    assert [each["method"] for each in said] == ["initialize", "session/new"]
    assert opening.is_over and opening.failure is None
    assert opening.state == STATE


@pytest.mark.req("RT-36")
def test_an_earlier_session_is_loaded_by_its_native_id() -> None:
    opening, said = open_with(HELLO, update("user_message_chunk"), {"modes": None}, resumed_id="s-1")

    assert said[-1]["params"] == {"sessionId": "s-1", "cwd": "/work", "mcpServers": []}
    assert opening.is_over
    assert opening.state == {**STATE, "cost_usd": None}


def test_gemini_is_not_asked_to_load_what_it_would_empty() -> None:
    opening, said = open_with({**HELLO, "agentInfo": {"name": "gemini-cli"}}, resumed_id="s-1")

    assert [each["method"] for each in said] == ["initialize"]
    assert opening.failure is not None and opening.failure.code is FailureCode.LOST


def test_where_an_agent_can_only_resume_it_resumes() -> None:
    offers = {"loadSession": False, "sessionCapabilities": {"resume": {}}}
    opening, said = open_with({**HELLO, "agentCapabilities": offers}, {}, resumed_id="s-1")

    assert said[-1]["method"] == "session/resume"
    assert opening.is_over


@pytest.mark.req("RT-36")
@pytest.mark.parametrize(
    ("answers", "expected"),
    [
        ([HELLO, {}], FailureCode.LOST),  # opened, and empty
        ([HELLO, {"code": -32002, "message": "Resource not found: s-1"}], FailureCode.LOST),
        ([HELLO, {"code": -32602, "message": "what?"}], FailureCode.LOST),
        ([HELLO, {"code": -32603, "message": "failure", "data": {"service": "session"}}], FailureCode.LOST),
        ([HELLO, {"code": -32603, "message": "failure", "data": {"details": "Invalid session identifier"}}],
         FailureCode.LOST),
        ([HELLO, {"code": -32603, "message": "disk on fire"}], FailureCode.PROCESS_FAILED),
        ([HELLO, {"code": -32000, "message": "log in"}], FailureCode.AUTH_REQUIRED),
        ([{**HELLO, "agentCapabilities": {}}], FailureCode.UNSUPPORTED),
    ],
)  # fmt: skip
def test_a_session_that_cannot_be_gone_on_with_is_said(answers: list[object], expected: FailureCode) -> None:
    opening, _ = open_with(*answers, resumed_id="s-1")

    assert opening.failure is not None and opening.failure.code is expected


@pytest.mark.parametrize(
    ("answers", "expected"),
    [
        ([{**HELLO, "protocolVersion": 2}], FailureCode.UNSUPPORTED),
        ([{}], FailureCode.UNSUPPORTED),
        ([HELLO, {"code": -32000, "message": "Authentication required"}], FailureCode.AUTH_REQUIRED),
        ([HELLO, {}], FailureCode.OUTPUT_INVALID),
        ([HELLO, {"code": -32603, "message": "disk on fire"}], FailureCode.PROCESS_FAILED),
    ],
)
def test_an_opening_that_fails_says_why(answers: list[object], expected: FailureCode) -> None:
    opening, _ = open_with(*answers)

    assert opening.failure is not None and opening.failure.code is expected
    assert opening.hear(line({"id": 2, "result": CREATED})) == b""


def test_an_opening_answered_under_an_unknown_id_fails() -> None:
    opening, _ = open_with()

    opening.hear(line({"id": "one", "result": HELLO}))

    assert opening.failure is not None and opening.failure.code is FailureCode.OUTPUT_INVALID


def test_the_profile_names_how_to_log_in_the_model_and_the_mode() -> None:
    offers = {"configOptions": [{"id": "llm", "category": "model"}], "modes": {"currentModeId": "ask"}}
    settings = {"authenticate": "key", "model": "m-1", "mode": "auto"}
    opening, said = open_with(HELLO, {}, {**CREATED, **offers}, {"configOptions": []}, {}, **settings)

    assert [(each["method"], each["params"]) for each in said[1:]] == [
        ("authenticate", {"methodId": "key"}),
        ("session/new", {"cwd": "/work", "mcpServers": []}),
        ("session/set_config_option", {"sessionId": "s-1", "configId": "llm", "value": "m-1"}),
        ("session/set_mode", {"sessionId": "s-1", "modeId": "auto"}),
    ]
    assert opening.is_over
    assert opening.state["next"] == 6


def test_a_mode_may_be_an_option() -> None:
    offers = {"configOptions": [{"id": "mode", "category": "mode"}]}
    _, said = open_with(HELLO, {**CREATED, **offers}, mode="plan")

    assert said[-1]["params"] == {"sessionId": "s-1", "configId": "mode", "value": "plan"}


def test_the_model_is_chosen_in_the_old_way_where_there_are_no_options() -> None:
    """``session/set_model`` was a draft that Gemini and Qwen still have; the schema has dropped it."""
    opening, said = open_with(HELLO, model="m-1")
    heard = opening.hear(line({"id": said[-1]["id"], "result": {**CREATED, "models": {"availableModels": []}}}))

    assert json.loads(heard) == {
        "jsonrpc": "2.0", "id": 3, "method": "session/set_model", "params": {"sessionId": "s-1", "modelId": "m-1"},
    }  # fmt: skip


@pytest.mark.parametrize(
    ("settings", "answers", "expected"),
    [
        ({"authenticate": "key"}, [HELLO, {"code": -32603, "message": "no"}], FailureCode.AUTH_REQUIRED),
        ({"model": "m-1"}, [HELLO, CREATED], FailureCode.MODEL_UNAVAILABLE),
        (
            {"model": "m-1"},
            [HELLO, {**CREATED, "configOptions": [{"id": "model"}]}, {"code": -32602, "message": "no such value"}],
            FailureCode.MODEL_UNAVAILABLE,
        ),
        ({"mode": "auto"}, [HELLO, CREATED], FailureCode.UNSUPPORTED),
        (
            {"mode": "auto"},
            [HELLO, {**CREATED, "modes": {"currentModeId": "ask"}}, {"code": -32602, "message": "no such mode"}],
            FailureCode.UNSUPPORTED,
        ),
    ],
)
def test_what_the_profile_wants_and_the_agent_has_not_is_no_session(
    settings: dict[str, str], answers: list[object], expected: FailureCode
) -> None:
    opening, _ = open_with(*answers, **settings)

    assert not opening.is_over
    assert opening.failure is not None and opening.failure.code is expected


def test_a_request_during_the_opening_is_refused() -> None:
    _, said = open_with({"method": "fs/read_text_file", "id": 7, "params": {"path": "/etc/passwd"}})

    assert said[-1]["id"] == 7 and said[-1]["error"]["code"] == -32601


# -- the turn


def test_a_turn_is_one_prompt() -> None:
    (prompt,) = assert_valid(acp.encode_turn("häi\nyou", STATE))

    assert prompt == {
        "id": 3, "method": "session/prompt",
        "params": {"sessionId": "s-1", "prompt": [{"type": "text", "text": "häi\nyou"}]},
    }  # fmt: skip


@pytest.mark.parametrize("text", ["/help", " /help", "$help", "\n/help"])
def test_no_prompt_is_a_command(text: str) -> None:
    (prompt,) = assert_valid(acp.encode_turn(text, STATE))

    said = prompt["params"]["prompt"][0]["text"]
    assert said == f"\N{ZERO WIDTH SPACE}{text}"


def test_the_answer_is_what_was_said_after_the_last_tool_call() -> None:
    conversation = turn()
    call = update("tool_call", toolCallId="c-1", kind="read", status="completed")

    hear(conversation, chunk("I look. "), call, chunk("It is "), chunk("fine."), answered())

    assert conversation.conclude(RUNNING) == complete("It is fine.")


def test_an_answer_before_the_last_tool_call_is_better_than_none() -> None:
    conversation = turn()

    hear(conversation, chunk("Done."), update("tool_call", toolCallId="c-1", kind="read"), answered())

    assert conversation.conclude(RUNNING) == complete("Done.")


def test_plans_and_rate_limits_are_activity() -> None:
    limit = {"status": "allowed_warning", "rateLimitType": "five_hour", "utilization": 0.5, "resetsAt": 1_900_000_000}
    entries = [{"content": "first", "priority": "high", "status": "in_progress"}, {"content": "second"}]

    found = hear(turn(), update("plan", entries=entries), update("usage_update", _meta={"_claude/rateLimit": limit}))

    assert found == [
        activity(
            Plan(entries=(PlanEntry(text="first", status="in_progress"), PlanEntry(text="second"))), offset=1
        ),
        activity(
            RateLimit(
                status="allowed_warning", window="five_hour", used_percent=50.0, resets_at=1_900_000_000
            ),
            offset=2,
        ),
    ]  # fmt: skip


def test_what_a_sub_agent_says_is_no_answer() -> None:
    conversation = turn()

    hear(conversation, chunk("hm", _meta={"claudeCode": {"parentToolUseId": "t-1"}}), chunk("yes"), answered())

    assert conversation.conclude(RUNNING).text == "yes"


def test_what_belongs_to_another_session_is_not_this_runs() -> None:
    foreign = {"method": "session/update", "params": {"sessionId": "s-2", "update": chunk("no")}}
    conversation = turn()

    (told,) = hear(conversation, foreign)

    assert isinstance(told, Noise)


@pytest.mark.req("RT-29")
@pytest.mark.parametrize(
    ("reason", "expected"),
    [
        ("max_tokens", FailureCode.BUDGET_EXHAUSTED),
        ("max_turn_requests", FailureCode.BUDGET_EXHAUSTED),
        ("refusal", FailureCode.REFUSED),
        ("cancelled", FailureCode.INTERRUPTED),
        ("tired", FailureCode.OUTPUT_INVALID),
        ("", FailureCode.OUTPUT_INVALID),
    ],
)
def test_only_end_turn_is_complete(reason: str, expected: FailureCode) -> None:
    conversation = turn()

    hear(conversation, chunk("half an ans"), answered(reason))

    assert code(conversation) is expected


@pytest.mark.req("RT-29")
@pytest.mark.parametrize(
    ("told", "expected"),
    [
        ({"code": 401, "message": "no"}, FailureCode.AUTH_REQUIRED),
        ({"code": 429, "message": "slow down"}, FailureCode.RATE_LIMITED),
        ({"code": 429, "message": "You exceeded your current quota"}, FailureCode.QUOTA_EXHAUSTED),
        ({"code": 404, "message": "models/x is not found"}, FailureCode.MODEL_UNAVAILABLE),
        ({"code": 500, "message": "models/x is not found"}, FailureCode.MODEL_UNAVAILABLE),
        ({"code": 503, "message": "no"}, FailureCode.PROVIDER_OVERLOADED),
        (
            {"code": -32603, "message": "Internal error", "data": {"details": "503 oh no"}},
            FailureCode.PROVIDER_OVERLOADED,
        ),
        ({"code": -32603, "message": "x 500", "data": {"errorName": "APIError"}}, FailureCode.PROVIDER_OVERLOADED),
        (
            {"code": -32603, "message": "Internal error: model: nonesuch", "data": {"errorName": "APIError"}},
            FailureCode.MODEL_UNAVAILABLE,
        ),
        ({"code": -32603, "message": "API Error: 529 Overloaded"}, FailureCode.PROVIDER_OVERLOADED),
        ({"code": -32000, "message": "no"}, FailureCode.AUTH_REQUIRED),
        ({"code": -32603, "message": "disk on fire"}, FailureCode.PROCESS_FAILED),
        ({}, FailureCode.PROCESS_FAILED),
    ],
)
def test_an_error_is_told_by_the_place_in_which_its_vendor_puts_it(told: object, expected: FailureCode) -> None:
    conversation = turn()

    hear(conversation, {"id": 3, "error": told})

    assert code(conversation) is expected


def test_copilots_spoken_error_is_an_answer_when_a_model_said_it() -> None:
    conversation = turn({**STATE, "agent": "Copilot"})
    usage = {"inputTokens": 5, "outputTokens": 9, "totalTokens": 14}

    hear(conversation, chunk("Error: in line 3 of the program."), answered(usage=usage))

    assert conversation.conclude(RUNNING).text == "Error: in line 3 of the program."


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        (["Error: Failed to get response; retried 5 times Last error: 500 oh no"], FailureCode.PROVIDER_OVERLOADED),
        (["Error: Authentication failed with provider (HTTP 401)."], FailureCode.AUTH_REQUIRED),
        (["Error: something that nobody has seen before"], FailureCode.PROCESS_FAILED),
        (["I look.", "Error: something that nobody has seen before"], None),
        (["Error: Authentication failed (HTTP 401).", "All is well again."], None),
    ],
)
def test_copilots_last_words_may_be_its_error(said: list[str], expected: FailureCode | None) -> None:
    conversation = turn({**STATE, "agent": "Copilot"})

    hear(conversation, *map(chunk, said), answered())

    assert code(conversation) is expected


# -- usage


def test_the_cost_of_a_turn_is_what_the_session_grew_by() -> None:
    conversation = turn({**STATE, "cost_usd": 0.5})

    hear(conversation, update("usage_update", used=1, cost={"amount": 0.75, "currency": "USD"}), answered())

    assert conversation.conclude(RUNNING).usage == Usage(cost_usd=0.25)
    assert conversation.state["cost_usd"] == 0.75


def test_a_cost_that_may_be_of_the_time_before_is_not_the_turns() -> None:
    conversation = turn({**STATE, "cost_usd": None})

    hear(conversation, update("usage_update", used=1, cost={"amount": 0.75, "currency": "USD"}), answered())

    assert conversation.conclude(RUNNING).usage is None
    assert conversation.state["cost_usd"] == 0.75


def test_the_tokens_of_a_turn_are_what_the_process_grew_by() -> None:
    conversation = turn({**STATE, "agent": "Copilot", "tokens": {"input_tokens": 400, "output_tokens": 7}})
    usage = {"inputTokens": 500, "outputTokens": 9, "totalTokens": 509}

    hear(conversation, chunk("hi"), answered(usage=usage))

    assert conversation.conclude(RUNNING).usage == Usage(input_tokens=100, output_tokens=2)
    assert conversation.state["tokens"] == {"input_tokens": 500, "output_tokens": 9}


# -- questions


@pytest.mark.req("RT-13")
def test_a_question_comes_with_the_call_it_is_about() -> None:
    call, question = hear(turn(), asks())

    assert call == activity(ToolCall(call_id="c-1", name="delete", input_json='{"path":"all"}'), offset=1)
    assert isinstance(question, Question)
    assert (question.request.request_id, question.request.tool, question.request.reason) == ("3.0", "delete", "rm all")
    assert (question.offset, question.index) == (1, 1)


@pytest.mark.parametrize(
    ("kinds", "decision", "outcome"),
    [
        (
            ("allow_always", "allow_once", "reject_once"),
            Decision.ALLOW,
            {"outcome": "selected", "optionId": "allow_once"},
        ),
        (("allow_always", "reject_always"), Decision.ALLOW, {"outcome": "selected", "optionId": "allow_always"}),
        (("reject_always", "reject_once"), Decision.DENY, {"outcome": "selected", "optionId": "reject_once"}),
        (("allow_once",), Decision.DENY, {"outcome": "cancelled"}),
        ((), Decision.ALLOW, {"outcome": "cancelled"}),
    ],
)
def test_an_answer_is_the_option_for_this_once(kinds: Sequence[str], decision: Decision, outcome: object) -> None:
    conversation = turn()
    hear(conversation, asks("q", [{"optionId": kind, "name": kind, "kind": kind} for kind in kinds]))

    (said,) = assert_valid(conversation.answer(answer("3.q", decision)))

    assert said == {"id": "q", "result": {"outcome": outcome}}


FORM = {"type": "object", "properties": {"colour": {"type": "string"}}}


def elicits(request_id: object = 0, mode: str = "form") -> dict[str, object]:
    params = {"sessionId": "s-1", "mode": mode, "message": "Which colour?", "requestedSchema": FORM}
    return {"id": request_id, "method": "elicitation/create", "params": params}


@pytest.mark.req("RT-13")
def test_a_form_is_offered_put_and_answered_in_the_three_words() -> None:
    (hello,) = assert_valid(acp.opening(cwd="/w", resumed_id=None, settings={}).first)
    conversation = turn()
    (found,) = hear(conversation, elicits("q"))

    assert hello["params"]["clientCapabilities"]["elicitation"] == {"form": {}}
    assert isinstance(found, Question)
    assert (found.request.request_id, found.request.kind, found.request.reason) == ("3.q", "question", "Which colour?")
    assert json.loads(found.request.input_json) == {"requestedSchema": FORM}
    content = {"colour": "blue", "sizes": ["s"], "count": 2, "weight": 0.5, "is_gift": True}
    answers = [
        Answer(request_id="3.q", decision=Decision.ALLOW, by="caller", content=content),
        Answer(request_id="3.q", decision=Decision.DENY, by="caller"),
        Answer(request_id="3.q", decision=Decision.DENY, by="timeout"),
    ]
    for each, told in zip(
        answers, [{"action": "accept", "content": content}, {"action": "decline"}, {"action": "cancel"}], strict=True
    ):
        hear(again := turn(), elicits("q"))
        assert assert_valid(again.answer(each)) == [{"id": "q", "result": told}]


@given(
    content=st.dictionaries(
        st.text(),
        st.text() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False)
        | st.lists(st.text()),
    )
)  # fmt: skip
def test_whatever_the_desk_takes_is_valid_in_a_form(content: dict[str, Any]) -> None:
    hear(conversation := turn(), elicits("q"))

    (said,) = assert_valid(
        conversation.answer(Answer(request_id="3.q", decision=Decision.ALLOW, by="caller", content=content))
    )

    assert said["result"]["content"] == content


def test_a_way_to_elicit_that_was_not_offered_is_refused() -> None:
    (told,) = hear(turn(), elicits(mode="url"))

    assert isinstance(told, Reply)
    assert assert_valid(told.data)[0]["error"]["code"] == -32601


def test_an_interrupt_also_ends_an_open_form() -> None:
    conversation = turn()
    hear(conversation, elicits(4))

    said = assert_valid(conversation.interrupt() or b"")
    (late,) = hear(conversation, elicits(5))

    assert said[1:] == [{"id": 4, "result": {"action": "cancel"}}]
    assert isinstance(late, Reply) and assert_valid(late.data) == [{"id": 5, "result": {"action": "cancel"}}]


def test_questions_under_one_id_have_names_of_their_own() -> None:
    """The second would otherwise be answered as the first was, unasked."""
    conversation = turn()
    (_, first) = hear(conversation, asks())
    assert isinstance(first, Question)
    conversation.answer(answer(first.request.request_id, Decision.ALLOW))

    (second,) = hear(conversation, asks())

    assert isinstance(second, Question)
    assert first.request.request_id != second.request.request_id


def test_a_sub_agents_question_is_put_too() -> None:
    (_, told) = hear(turn(), asks(sessionId="s-1-child"))

    assert isinstance(told, Question)


@pytest.mark.parametrize("odd", [None, "x" * 1000, "a b", 1.5, 10**400, {"a": 1}, [], True])
def test_an_odd_id_of_a_request_is_answered_as_it_came(odd: object) -> None:
    conversation = turn()

    (told,) = hear(conversation, {"id": odd, "method": "fs/read_text_file", "params": {}})

    assert isinstance(told, Reply)
    assert len(told.key) < 80
    assert json.loads(told.data)["id"] == odd


def test_an_interrupt_also_ends_what_the_agent_waits_for() -> None:
    conversation = turn()
    hear(conversation, asks(0), asks(1), asks(2))
    conversation.answer(answer("3.1", Decision.ALLOW))

    said = assert_valid(conversation.interrupt() or b"")

    assert said == [
        {"method": "session/cancel", "params": {"sessionId": "s-1"}},
        {"id": 0, "result": {"outcome": {"outcome": "cancelled"}}},
        {"id": 2, "result": {"outcome": {"outcome": "cancelled"}}},
    ]
    assert conversation.answer(answer("3.0", Decision.ALLOW)) == b""


def test_a_question_after_an_interrupt_is_not_put_to_anybody() -> None:
    conversation = turn()
    conversation.interrupt()

    (told,) = hear(conversation, asks())

    assert isinstance(told, Reply)
    assert assert_valid(told.data) == [{"id": 0, "result": {"outcome": {"outcome": "cancelled"}}}]


@pytest.mark.parametrize("method", ["fs/read_text_file", "fs/write_text_file", "terminal/create", "weather/ask"])
def test_what_was_not_offered_is_refused(method: str) -> None:
    conversation = turn()

    (told,) = hear(conversation, {"id": 4, "method": method, "params": {"sessionId": "s-1"}})

    assert isinstance(told, Reply)
    (said,) = assert_valid(told.data)
    assert said["id"] == 4 and said["error"]["code"] == -32601


# -- an agent that speaks the protocol badly


def noise_of(told: Sequence[Told]) -> list[str]:
    return [each.kind for each in told if isinstance(each, Noise)]


@pytest.mark.req("E-6")
def test_a_second_answer_is_counted_and_the_first_stays() -> None:
    conversation = turn()

    told = hear(conversation, chunk("yes"), answered(), answered("refusal"), chunk("more"))

    assert noise_of(told) == ["answered_twice", "after_terminal"]
    assert conversation.conclude(RUNNING) == complete("yes")
    assert conversation.is_usable


def test_a_late_answer_to_the_turn_before_does_not_end_this_one() -> None:
    conversation = turn({**STATE, "next": 4})

    told = hear(conversation, answered(request_id=3))

    assert noise_of(told) == ["answered_twice"]
    assert not conversation.has_ended


@pytest.mark.parametrize("request_id", ["3", "prompt", 4, 99, None, 3.5, True, [3]])
def test_an_answer_under_an_id_that_nobody_asked_with_ends_the_turn_and_the_process(request_id: object) -> None:
    conversation = turn()

    hear(conversation, chunk("yes"), answered(request_id=request_id))

    assert conversation.has_ended and not conversation.is_usable
    assert code(conversation) is FailureCode.OUTPUT_INVALID


def test_an_error_that_names_no_request_ends_the_turn_with_what_it_says() -> None:
    conversation = turn()

    hear(conversation, {"id": None, "error": {"code": -32700, "message": "Parse error"}})

    failure = conversation.conclude(RUNNING).failure
    assert failure is not None and "Parse error" in failure.message


def test_a_batch_is_taken_apart() -> None:
    conversation = turn()

    told = hear(conversation, [chunk("in a batch"), 7, answered()])

    assert noise_of(told) == ["batch", "not_a_message"]
    assert conversation.conclude(RUNNING) == complete("in a batch")


@pytest.mark.parametrize(
    "message",
    [
        {}, {"level": "info", "msg": "started"}, {"method": 7}, {"method": "session/update"},
        {"method": "session/update", "params": {"sessionId": "s-1", "update": []}}, update("weather_update"),
        update("agent_message_chunk", content={"type": "image", "data": "", "mimeType": "image/png"}),
        {"method": "weather/update", "params": {}}, "a string", 7, None,
    ],
)  # fmt: skip
def test_what_is_no_message_of_the_protocol_costs_only_noise(message: object) -> None:
    conversation = turn()

    told = hear(conversation, message, chunk("yes"), answered())

    assert len(noise_of(told)) == 1
    assert conversation.conclude(RUNNING) == complete("yes")
    assert conversation.is_usable


def test_an_agent_that_dies_in_its_turn_has_failed() -> None:
    conversation = turn()
    hear(conversation, chunk("I am "))

    failure = conversation.conclude(ProcessEnd(code=3, stderr="out of luck")).failure

    assert failure is not None and failure.code is FailureCode.PROCESS_FAILED
    assert "out of luck" in failure.message


def test_pieces_of_text_are_the_same_on_the_short_way_and_on_the_long() -> None:
    """What has an ``_meta`` is decoded as plain objects, what has none by a decoder of its own."""
    short, long = turn(), turn()
    odd = 'a\0b \ud800 "id" ü'

    found = [hear(short, chunk(odd, messageId="m\0")), hear(long, chunk(odd, messageId="m\0", _meta={}))]

    assert found[0] == found[1]
    assert isinstance(found[0][0], Draft)
