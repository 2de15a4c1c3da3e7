from __future__ import annotations

import json
from typing import Any

import pytest

from providers.cli.dialect import Noise, ProcessEnd, TurnContext
from providers.cli.dialects.qwen_stream_json import QwenDecoder, decoder
from runtime.events import Draft, EventType, Notice, Usage
from runtime.failure import FailureCode
from tests.support.expect import decode

INIT = {"type": "system", "subtype": "init", "session_id": "s-1"}
REFUSED = "[API Error: 401 Incorrect API key]"
COUNTED = {"input_tokens": 9, "output_tokens": 2}
UNCOUNTED = {"input_tokens": 0, "output_tokens": 0}


def piece(text: str, kind: str = "text", parent: str | None = None) -> dict[str, Any]:
    event = {"type": "content_block_delta", "delta": {"type": f"{kind}_delta", kind: text}}
    return {"type": "stream_event", "parent_tool_use_id": parent, "event": event}


def whole(text: str, kind: str = "text", usage: dict[str, int] = COUNTED, parent: str | None = None) -> dict[str, Any]:
    message = {"id": "m9", "content": [{"type": kind, kind: text}], "usage": usage}
    return {"type": "assistant", "parent_tool_use_id": parent, "message": message}


def result(text: object = "", **members: object) -> dict[str, Any]:
    return {"type": "result", "subtype": "success", "is_error": False, "result": text, **members}


def run(*frames: object, resumed_id: str | None = None) -> tuple[QwenDecoder, list[Draft | Noise]]:
    qwen = decoder(TurnContext(resumed_id=resumed_id))
    start = {"type": "stream_event", "event": {"type": "message_start", "message": {"id": "m1"}}}
    lines = [each if isinstance(each, bytes) else json.dumps(each).encode() for each in (start, *frames)]
    return qwen, decode([b"\n".join(lines) + b"\n"], qwen)


def concluded(*frames: object, resumed_id: str | None = None) -> Draft:
    qwen, _ = run(*frames, resumed_id=resumed_id)
    return qwen.conclude(ProcessEnd(code=0))


def code_of(draft: Draft) -> FailureCode | None:
    return None if draft.failure is None else draft.failure.code


def deltas(found: list[Draft | Noise]) -> list[str]:
    return [each.text for each in found if isinstance(each, Draft) and each.type is EventType.DELTA]


@pytest.mark.req("RT-13", "BAN-18")
def test_st_09_a_refused_request_is_no_answer_although_everything_says_success() -> None:
    qwen, found = run(piece(REFUSED), whole(REFUSED, usage=UNCOUNTED), result(REFUSED))

    assert deltas(found) == []
    assert [each.activity for each in found if isinstance(each, Draft)] == [Notice(code="agent_error", message=REFUSED)]
    assert code_of(qwen.conclude(ProcessEnd(code=0))) is FailureCode.AUTH_REQUIRED


def test_a_request_that_breaks_off_in_mid_answer_keeps_what_was_said_before() -> None:
    text = "turn 1: [API Error: terminated]"
    qwen, found = run(piece("turn 1: "), piece("[API Error: terminated]"), whole(text, usage=COUNTED), result(text))

    assert deltas(found) == ["turn 1: "]
    assert code_of(qwen.conclude(ProcessEnd(code=0))) is FailureCode.PROVIDER_UNREACHABLE


def test_without_partial_messages_the_end_of_the_text_tells() -> None:
    text = f"turn 1: {REFUSED}"

    assert code_of(concluded(whole(text, usage=UNCOUNTED), result(text))) is FailureCode.AUTH_REQUIRED
    assert concluded(whole(text), result(text)).text == text


@pytest.mark.req("RT-29")
@pytest.mark.parametrize(
    "pieces",
    [
        [REFUSED],  # the whole answer, and its tokens were counted
        ["it says [API Err", "or: 401 Incorrect API key]"],
        [REFUSED, " is what it says"],
    ],
)
def test_a_model_may_quote_an_api_error(pieces: list[str]) -> None:
    text = "".join(pieces)
    qwen, found = run(*map(piece, pieces), whole(text), result(text))

    assert deltas(found) == pieces
    assert qwen.conclude(ProcessEnd(code=0)).text == text


def test_a_run_that_was_cut_off_at_an_api_error_does_not_answer_with_it() -> None:
    qwen, found = run(piece(REFUSED), result(REFUSED))

    assert deltas(found) == []
    assert code_of(qwen.conclude(ProcessEnd(code=0))) is FailureCode.AUTH_REQUIRED


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("[API Error: 500 x]", FailureCode.PROVIDER_OVERLOADED),
        ("[API Error: 404 The model `x` does not exist]", FailureCode.MODEL_UNAVAILABLE),
        ("[API Error: 429 x]\nPossible quota limitations in place or slow response.", FailureCode.RATE_LIMITED),
        ("[API Error: 429 You exceeded your current quota]", FailureCode.QUOTA_EXHAUSTED),
        ("Qwen OAuth quota exceeded: come back tomorrow", FailureCode.QUOTA_EXHAUSTED),
        ("[API Error: two\nlines]", FailureCode.PROCESS_FAILED),
    ],
)
def test_us_01_an_api_error_has_the_code_of_its_reason(text: str, code: FailureCode) -> None:
    assert code_of(concluded(piece(text), whole(text, usage=UNCOUNTED), result(text))) is code


@pytest.mark.req("RT-29")
def test_st_12_blocks_that_were_streamed_are_told_once_although_their_ids_differ() -> None:
    thinking = [piece("hm", "thinking"), whole("hm", "thinking", usage=UNCOUNTED)]
    _, found = run(*thinking, piece("EC"), piece("HO"), whole("ECHO"), whole("ECHO"), result("ECHO"))

    assert [(each.type, each.text) for each in found if isinstance(each, Draft)] == [
        (EventType.REASONING_DELTA, "hm"),
        (EventType.DELTA, "EC"),
        (EventType.DELTA, "HO"),
        (EventType.DELTA, "ECHO"),
    ]


@pytest.mark.req("RT-29")
def test_us_04_usage_of_a_resumed_session_is_the_sum_of_the_runs_messages() -> None:
    frames = [INIT, whole("yes"), result("yes", usage={"input_tokens": 100, "output_tokens": 20})]
    fresh, resumed = concluded(*frames), concluded(*frames, resumed_id="s-1")

    assert fresh.usage == Usage(input_tokens=100, output_tokens=20, cache_read_tokens=0)
    assert resumed.usage == Usage(input_tokens=9, output_tokens=2, cache_read_tokens=0)
    assert resumed.metadata == {"session_input_tokens": "100", "session_output_tokens": "20"}


@pytest.mark.parametrize("text", [None, 7])
def test_st_05_a_result_without_text_falls_back_to_the_last_message(text: object) -> None:
    assert concluded(whole("yes"), result(text)).text == "yes"
    assert code_of(concluded(result(text))) is FailureCode.OUTPUT_INVALID


def test_a_result_may_be_honest() -> None:
    told = {"subtype": "error_during_execution", "is_error": True, "error": {"message": "unauthorized"}}

    assert code_of(concluded(result(None, **told))) is FailureCode.AUTH_REQUIRED
    assert code_of(concluded(result(None, subtype="error_max_turns"))) is FailureCode.BUDGET_EXHAUSTED


def test_what_a_sub_agent_says_is_activity() -> None:
    _, found = run(piece("psst", parent="t1"), whole("psst", parent="t1"))

    assert [each.activity for each in found if isinstance(each, Draft)] == [Notice(code="subagent", message="psst")]


@pytest.mark.req("RT-36")
def test_se_03_a_silent_new_session_ends_the_run_before_it_answers_the_wrong_conversation() -> None:
    qwen, found = run(INIT, piece("who are you?"), result("who are you?"), resumed_id="s-0")

    assert code_of(qwen.conclude(ProcessEnd(code=0))) is FailureCode.LOST
    assert {each.kind for each in found if isinstance(each, Noise)} == {"after_terminal"}
    assert qwen.native_id is None


@pytest.mark.req("BAN-18", "RT-16")
def test_what_follows_the_result_is_noise() -> None:
    qwen, found = run(whole("yes"), result("yes"), piece("late"), result("late"), b"bye")

    assert [each.kind for each in found if isinstance(each, Noise)] == ["after_terminal"] * 3
    assert qwen.conclude(ProcessEnd(code=0)).text == "yes"


def test_st_02_a_damaged_piece_is_still_a_piece() -> None:
    _, found = run(piece("a\ud800"), {**piece("b"), "parent_tool_use_id": 7}, {**piece("c"), "event": [1]})

    assert deltas(found) == ["a\ufffd"]
