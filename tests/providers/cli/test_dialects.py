"""Every recorded output, and what must become of it."""

from __future__ import annotations

import json
from itertools import pairwise

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from providers.cli.dialect import ProcessEnd, TurnContext
from providers.cli.dialects import known_dialects, load_dialect
from runtime.events import TERMINAL, Draft, EventType
from tests.support.expect import Case, as_record, cases, decode

NAMES = known_dialects()
SMALL = [case for case in cases() if 0 < len(case.stdout) < 8_000]
GARBAGE = st.binary(max_size=40).map(lambda data: b"\xff~ " + data.replace(b"\n", b"") + b"\n")

KEYS = st.sampled_from([
    "type", "subtype", "event", "message", "content", "delta", "text", "thinking", "id", "name", "input",
    "result", "usage", "is_error", "error", "errors", "session_id", "item", "items", "thread_id", "exit_code",
    "command", "changes", "arguments", "input_tokens", "total_cost_usd", "resetsAt", "rate_limit_info",
    "role", "status", "stats", "severity", "timestamp", "parameters", "part", "state", "tokens", "reason", "synthetic",
    "sessionID", "messageID", "data", "stopReason", "errorMessage", "assistantMessageEvent", "delayMs", "attempt",
    "parent_tool_use_id", "messageId", "deltaContent", "toolRequests", "outcome", "statusCode", "exitCode", "agentId",
    "method", "params", "sessionId", "update", "sessionUpdate", "toolCall", "toolCallId", "rawInput", "rawOutput", "title",
    "kind", "options", "optionId", "entries", "cost", "amount", "currency", "_meta", "quota", "code",
])  # fmt: skip
TYPES = st.sampled_from([
    "system", "init", "api_retry", "stream_event", "content_block_delta", "text_delta", "message_start",
    "assistant", "user", "tool_use", "tool_result", "result", "rate_limit_event", "thread.started",
    "item.completed", "agent_message", "mcp_tool_call", "file_change", "todo_list", "error", "turn.completed",
    "turn.failed", "message", "success", "step_start", "step_finish", "reasoning", "session", "agent_end",
    "message_update", "message_end", "tool_execution_end", "auto_retry_start", "auto_retry_end", "compaction_end",
    "toolUse", "assistant.message_delta", "assistant.message", "assistant.turn_end", "assistant.turn_retry",
    "model.call_failure", "model.call_finished", "tool.execution_complete", "session.error", "session.info",
    "session/update", "session/request_permission", "agent_message_chunk", "tool_call", "tool_call_update", "plan",
    "usage_update", "allow_once", "completed", "failed",
])  # fmt: skip
VALUES = st.none() | st.booleans() | st.integers() | st.just(10**400) | st.floats() | st.text() | TYPES
FRAMES = st.recursive(
    VALUES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=6),
    max_leaves=25,
)


@pytest.mark.req("RT-13", "RT-29")
@pytest.mark.parametrize("case", cases(), ids=repr)
def test_a_recorded_run_becomes_the_reviewed_drafts(case: Case) -> None:
    produced = case.replay()

    assert produced == case.expected(produced)


@pytest.mark.parametrize("name", NAMES)
def test_every_dialect_has_a_recorded_run(name: str) -> None:
    assert cases(name)


@pytest.mark.parametrize("name", NAMES)
def test_every_dialect_states_its_one_rule(name: str) -> None:
    assert "THE RULE:" in (load_dialect(name).__doc__ or "")


@pytest.mark.req("BAN-18")
@pytest.mark.parametrize("case", cases(), ids=repr)
def test_a_line_never_makes_a_terminal_and_the_conclusion_always_is_one(case: Case) -> None:
    *drafts, terminal, _ = case.replay()

    assert not [each for each in drafts if each.get("type") in TERMINAL or each.get("type") == EventType.START]
    assert terminal["type"] in TERMINAL


@pytest.mark.parametrize("case", cases(), ids=repr)
def test_places_of_drafts_only_grow(case: Case) -> None:
    found = decode([case.stdout], case.decoder())
    places = [(each.offset, each.index) for each in found if isinstance(each, Draft)]

    assert all(earlier < later for earlier, later in pairwise(places))


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_any_split_of_the_bytes_gives_the_same_drafts(data: st.DataObject) -> None:
    case = data.draw(st.sampled_from(SMALL))
    cuts = sorted(data.draw(st.sets(st.integers(1, len(case.stdout)), max_size=40)))
    pieces = [case.stdout[start:end] for start, end in pairwise([0, *cuts, len(case.stdout)])]

    assert case.replay(pieces) == case.replay()


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_garbage_lines_cost_only_noise(data: st.DataObject) -> None:
    """Garbage that is text would be an answer in plain text, so only the JSON dialects are asked."""
    case = data.draw(st.sampled_from([each for each in SMALL if each.dialect != "plain_text"]))
    lines = case.stdout.splitlines(keepends=True)
    at = data.draw(st.integers(0, len(lines) - 1))  # not behind a last line without an end
    garbage = data.draw(st.lists(GARBAGE, min_size=1, max_size=3))

    disturbed = case.replay([b"".join([*lines[:at], *garbage, *lines[at:]])])

    assert _unplaced(disturbed) == _unplaced(case.replay())


@settings(max_examples=300, deadline=None)
@given(name=st.sampled_from(NAMES), data=st.binary(max_size=400), code=st.none() | st.integers(0, 255))
def test_no_bytes_at_all_make_a_decoder_raise(name: str, data: bytes, code: int | None) -> None:
    decoder = load_dialect(name).decoder(TurnContext(resumed_id="some-id"))

    decode([data], decoder)

    assert decoder.conclude(ProcessEnd(code=code)).type in TERMINAL


@settings(max_examples=500, deadline=None)
@given(name=st.sampled_from(NAMES), frames=st.lists(FRAMES, max_size=5), code=st.none() | st.integers(0, 255))
def test_no_json_at_all_makes_a_decoder_raise(name: str, frames: list[object], code: int | None) -> None:
    decoder = load_dialect(name).decoder(TurnContext(resumed_id="some-id"))

    found = decode([b"".join(json.dumps(frame).encode() + b"\n" for frame in frames)], decoder)

    assert decoder.conclude(ProcessEnd(code=code)).type in TERMINAL
    for draft in found:  # every one can be stored
        msgspec.json.encode(as_record(draft))


def _unplaced(records: list[dict[str, object]]) -> list[dict[str, object]]:
    return [{key: each[key] for key in each if key != "at"} for each in records if "noise" not in each]
