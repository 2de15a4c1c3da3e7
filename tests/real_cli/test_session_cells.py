"""What a vendor's CLI does behind a node when its process serves a whole session, cell by cell."""

from __future__ import annotations

import asyncio
import hashlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from node.client import NodeClient, NodeError
from runtime.events import EventType, ToolCall, ToolResult
from tests.real_cli.agents import SILENCE_S
from tests.real_cli.talking import Talking, has_delta, name_in, refusal_of
from tests.support.nodes import Node, wait_until
from tests.support.runs import ending, text

PLAIN, SLOW = "[[mock:plain]] hello", "[[mock:slow]] hello"
BRIEF = "[[mock words=12 chunks=8 delay=0.5]] hello"
"""Slow enough to speak into, and soon at its end."""


@pytest.mark.cell("plain")
async def test_a_turn_is_answered_with_its_usage(talking: Talking) -> None:
    events = await talking.say(PLAIN)

    assert ending(events[-1]) == ("complete", talking.answer(PLAIN))
    assert text(events) == talking.answer(PLAIN)
    assert events[-1].usage is not None and events[-1].usage.output_tokens


@pytest.mark.cell("thinking")
async def test_thinking_is_told_beside_the_answer(talking: Talking) -> None:
    events = await talking.say("[[mock:think]] hello")

    thought = "".join(event.delta for event in events if event.type is EventType.REASONING_DELTA)
    assert "thought-0" in thought and "thought-19" in thought
    assert ending(events[-1]) == ("complete", talking.answer("[[mock:think]] hello"))


@pytest.mark.cell("tool call")
async def test_a_tool_works_in_the_workspace_and_is_told(talking: Talking) -> None:
    prompt = "[[mock:shell cmd=echo%20made%20%3E%20made.txt]] hello"

    events = await talking.say(prompt)

    calls = [event.activity for event in events if isinstance(event.activity, ToolCall)]
    results = [event.activity for event in events if isinstance(event.activity, ToolResult)]
    assert ending(events[-1]) == ("complete", talking.answer(prompt))
    assert [each.call_id for each in calls] == [each.call_id for each in results] and len(calls) == 1
    assert "made.txt" in calls[0].input_json
    assert (talking.workspace / "made.txt").read_text() == "made\n"


@pytest.mark.cell("second turn")
@pytest.mark.req("RT-36")
async def test_the_same_process_takes_the_second_turn_with_the_history(talking: Talking) -> None:
    first, second = await talking.say(PLAIN), await talking.say(PLAIN)

    assert ending(second[-1]) == ("complete", talking.answer(PLAIN, turn=2))
    assert await talking.pid(first) == await talking.pid(second)
    assert first[-1].usage is not None and second[-1].usage is not None
    assert second[-1].usage.output_tokens == first[-1].usage.output_tokens, "the turn's own, not the session's"


@pytest.mark.cell("resume after eviction")
@pytest.mark.req("RT-36")
async def test_a_fresh_process_goes_on_with_the_history(talking: Talking) -> None:
    await talking.say(PLAIN)
    await talking.evict()

    events = await talking.say(PLAIN)

    assert ending(events[-1]) == ("complete", talking.answer(PLAIN, turn=2))
    assert text(events) == events[-1].message, "what was replayed is no output of this run"


@pytest.mark.cell("fork")
@pytest.mark.req("RT-10", "RT-36")
async def test_a_fork_knows_what_was_said_and_its_source_does_not_notice(talking: Talking) -> None:
    await talking.say(PLAIN)
    fork = replace(talking, session=f"{talking.session}-fork")
    if not await talking.forks():
        with pytest.raises(NodeError) as refused:
            await fork.begin(PLAIN, fork_from=talking.session).end()
        assert refused.value.code == "unsupported"
        return

    begun = await fork.begin(PLAIN, fork_from=talking.session).end()
    source_later, fork_later = await talking.say(PLAIN), await fork.say(PLAIN)
    await talking.client.terminate_session(fork.session)

    assert ending(begun[-1]) == ("complete", talking.answer(PLAIN, turn=2))
    assert ending(source_later[-1]) == ("complete", talking.answer(PLAIN, turn=2))
    assert ending(fork_later[-1]) == ("complete", talking.answer(PLAIN, turn=3))


@pytest.mark.cell("unknown session")
@pytest.mark.req("RT-36")
async def test_a_session_that_the_cli_forgot_is_a_typed_failure(talking: Talking) -> None:
    await talking.say(PLAIN)
    await talking.evict()
    talking.forget_sessions()

    events = await talking.say(PLAIN)

    assert ending(events[-1]) == ("error", "lost")


@pytest.mark.parametrize(
    ("cell", "prompt", "code"),
    [
        pytest.param("401", "[[mock:e401]] hello", "auth_required", marks=pytest.mark.cell("401")),
        pytest.param("500", "[[mock:e500]] hello", "provider_overloaded", marks=pytest.mark.cell("500 bounded")),
        pytest.param("unknown model", "", "model_unavailable", marks=pytest.mark.cell("unknown model")),
    ],
)
async def test_what_the_models_api_refuses_is_typed_and_ends_the_turn(
    talking: Talking, cell: str, prompt: str, code: str
) -> None:
    silence_s = SILENCE_S if cell in talking.agent.silent_cells else None

    events = await talking.say(prompt or talking.agent.unknown_model, silence_s=silence_s)
    after = await talking.say(PLAIN)

    assert ending(events[-1]) == ("error", talking.agent.endings.get(cell, code))
    assert after[-1].type is EventType.COMPLETE or "resume after eviction" in talking.agent.cannot


@pytest.mark.cell("2 MB answer")
async def test_two_megabytes_come_whole(talking: Talking) -> None:
    expected = hashlib.sha256(talking.answer("[[mock:huge]] hello").encode()).hexdigest()

    events = await talking.say("[[mock:huge]] hello")

    assert events[-1].type is EventType.COMPLETE
    assert hashlib.sha256(text(events).encode()).hexdigest() == expected


@pytest.mark.cell("slash is text")
async def test_a_prompt_that_begins_with_a_slash_is_text(talking: Talking) -> None:
    events = await talking.say("/help [[mock words=3]]")

    assert ending(events[-1]) == ("complete", talking.answer("/help [[mock words=3]]"))


@pytest.mark.cell("interrupt")
@pytest.mark.req("E-5")
async def test_an_interrupt_is_confirmed_and_the_session_goes_on(talking: Talking) -> None:
    first = await talking.say(PLAIN)
    turn = talking.begin(SLOW)
    await turn.has(lambda: has_delta(turn))

    receipt = await talking.client.send_input(turn.run_id, "interrupt")
    events = await turn.end()
    after = await talking.say(PLAIN)

    assert receipt.outcome == "confirmed"
    assert events[-1].type is EventType.CANCELLED
    assert after[-1].type is EventType.COMPLETE
    assert await talking.pid(after) == await talking.pid(first)


@pytest.mark.cell("undeclared verb")
async def test_a_refused_verb_leaves_the_turn_alone(talking: Talking) -> None:
    """Of an agent that can do all there is, a word that is no verb."""
    verb, code = ("shout", "invalid_request") if talking.agent.steers else ("steer", "unsupported")
    turn = talking.begin(BRIEF)
    await turn.has(lambda: has_delta(turn))

    refusal = await refusal_of(talking, turn, verb)
    events = await turn.end()

    assert refusal == code
    assert ending(events[-1]) == ("complete", talking.answer(BRIEF))


@pytest.mark.cell("steer")
async def test_what_is_said_to_a_turn_under_way_is_seen_or_refused(talking: Talking) -> None:
    turn = talking.begin(BRIEF)
    await turn.has(lambda: has_delta(turn))

    if not talking.agent.steers:
        assert await refusal_of(talking, turn, "steer") == "unsupported"
        await turn.end()
        return
    receipt = await talking.client.send_input(turn.run_id, "steer", "[[mock reply=steered]] more")
    events = await turn.end()
    after = await talking.say(PLAIN)

    assert receipt.outcome == "confirmed"
    assert ending(events[-1]) == ("complete", "steered"), "the model saw it, in this turn"
    assert after[-1].type is EventType.COMPLETE
    assert await talking.pid(after) == await talking.pid(events)


@pytest.mark.cell("queue")
@pytest.mark.req("RT-12")
async def test_what_is_queued_is_the_next_turn_of_the_same_process(talking: Talking) -> None:
    turn = talking.begin(BRIEF)
    await turn.has(lambda: has_delta(turn))

    receipt = await talking.client.send_input(turn.run_id, "queue", PLAIN)
    queued = talking.attach(receipt.run_id)
    events, after = await turn.end(), await queued.end()

    assert receipt.outcome == "confirmed"
    assert ending(events[-1]) == ("complete", talking.answer(BRIEF))
    assert ending(after[-1]) == ("complete", talking.answer(PLAIN, turn=2))
    assert await talking.pid(after) == await talking.pid(events)


@pytest.mark.cell("cancel in answer")
@pytest.mark.req("RT-19", "RT-23")
async def test_a_cancel_in_mid_answer_keeps_the_session(talking: Talking) -> None:
    turn = talking.begin(SLOW)
    await turn.has(lambda: has_delta(turn))

    await talking.client.cancel(turn.run_id)
    events = await turn.end()
    after = await talking.say(PLAIN)

    assert events[-1].type is EventType.CANCELLED
    assert after[-1].type is EventType.COMPLETE


@pytest.mark.cell("cancel in tool")
@pytest.mark.req("RT-19", "RT-21")
async def test_a_cancel_in_mid_tool_ends_the_tool_too(talking: Talking) -> None:
    command = talking.agent.hanging_command
    running = command.replace("%20", " ")
    turn = talking.begin(f"[[mock:shell cmd={command}]] hello")
    await turn.has(lambda: any(running in each for each in talking.processes().values()))

    await talking.client.cancel(turn.run_id)
    events = await turn.end()

    assert events[-1].type is EventType.CANCELLED
    await asyncio.to_thread(wait_until, lambda: not any(running in each for each in talking.processes().values()))


@pytest.mark.parametrize(
    ("allow", "is_made"),
    [
        pytest.param(True, True, marks=pytest.mark.cell("permission allowed")),
        pytest.param(False, False, marks=pytest.mark.cell("permission denied")),
        pytest.param(None, False, marks=pytest.mark.cell("permission timed out")),
    ],
)
@pytest.mark.req("RT-13")
async def test_what_is_asked_for_happens_only_when_it_is_allowed(
    talking: Talking, allow: bool | None, is_made: bool
) -> None:
    events = await talking.say(talking.asking, allow=allow)
    after = await talking.say(PLAIN)

    asked = [event.activity for event in events if event.activity is not None]
    assert any(type(each).__name__ == "PermissionRequest" for each in asked)
    assert talking.asked_path.exists() is is_made
    assert events[-1].type is EventType.COMPLETE
    assert after[-1].type is EventType.COMPLETE


@pytest.mark.cell("question answered")
@pytest.mark.req("RT-13")
async def test_the_model_is_told_what_a_question_was_answered_with(talking: Talking) -> None:
    turn = talking.begin("[[mock:question]] hello")
    await turn.has(lambda: turn.questions)
    asked = turn.questions[0]

    await talking.client.respond(turn.run_id, asked.request_id, allow=True, answer={name_in(asked): "blue"})
    events = await turn.end()

    results = [event.activity for event in events if isinstance(event.activity, ToolResult)]
    assert (asked.kind, asked.reason) == ("question", "Which colour?")
    assert ending(events[-1]) == ("complete", talking.answer("[[mock:question]] hello"))
    assert [(each.is_error, "blue" in each.output, "green" in each.output) for each in results] == [
        (False, True, False)
    ]


@pytest.mark.cell("node killed while asked")
@pytest.mark.req("PKG-05", "RT-36")
async def test_a_question_outlives_the_node(session_row: str, session_options: dict[str, Any], tmp_path: Path) -> None:
    node = Node(tmp_path / "own", **session_options)
    try:
        await asyncio.to_thread(node.start)
        async with NodeClient(node.address) as client:
            talk = Talking.of(session_row, node, client, session_options, tmp_path)
            await talk.say(PLAIN)
            turn = talk.begin(talk.asking)
            await turn.has(lambda: turn.questions)

            node.kill()
            restarted = Node(node.root, listen=node.address, **session_options)
            try:
                await asyncio.to_thread(restarted.start)
                await talk.respond(turn, allow=True)
                events = await turn.end()
                after = await talk.say(PLAIN)
                await client.terminate_session(talk.session)
                await asyncio.to_thread(wait_until, lambda: not talk.processes())
            finally:
                await asyncio.to_thread(restarted.close)
    finally:
        await asyncio.to_thread(node.close)

    sequences = [event.sequence for event in events]
    assert sequences == sorted(set(sequences))
    assert len(turn.questions) == 1
    assert talk.asked_path.read_text().strip() == "made"
    assert (events[-1].type, after[-1].type) == (EventType.COMPLETE, EventType.COMPLETE)
