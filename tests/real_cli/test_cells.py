"""What a vendor's CLI does behind a node, cell by cell: the CLI is real, the model is a script on loopback.

The CLIs are started by the shipped catalog; what the tests add is what an operator adds in ``node.yaml``.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest

from node.client import NodeClient, NodeError
from runtime.events import EventType, RuntimeEvent, ToolCall, ToolResult
from runtime.types import RunRequest
from tests.real_cli.agents import RealAgent
from tests.real_cli.driven import RUN_S, Driven, as_text, until
from tests.support.mockllm.scenario import Plan
from tests.support.mockllm.server import ModelServer
from tests.support.nodes import Node
from tests.support.runs import ending, follow, text, words

SLOW = "[[mock:slow]]"
ANSWER_S = 15.0
"""From the call of a cancel to its terminal: the grace is 2 s."""
GROWTH_LIMIT_KIB = 96 * 1024
"""A 2 MB answer is printed up to three times, each time as one line; what is held of it is bounded."""


def resident_kib(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS:"))


def reasoning(events: list[RuntimeEvent]) -> str:
    return "".join(event.delta for event in events if event.type is EventType.REASONING_DELTA)


@pytest.mark.cell("plain")
@pytest.mark.req("PKG-10", "RT-05")
async def test_an_answer_comes_whole_with_its_usage(driven: Driven) -> None:
    prompt = "[[mock:plain]] hello"

    events = await driven.ask(prompt)

    assert ending(events[-1]) == ("complete", driven.answer(prompt))
    assert text(events) == driven.answer(prompt)
    assert [word for word in words(events) if word not in ("delta", "activity")] == ["start", "complete"]
    usage = events[-1].usage
    if driven.agent.tells_usage:
        assert usage is not None and usage.input_tokens and usage.output_tokens
    else:
        assert usage is None, "what is not told is absent"


@pytest.mark.cell("thinking")
async def test_thinking_is_told_beside_the_answer(driven: Driven) -> None:
    prompt = "[[mock:think]] hello"

    events = await driven.ask(prompt)

    assert reasoning(events).strip() == Plan.of(prompt).thinking()
    assert ending(events[-1]) == ("complete", driven.answer(prompt))


@pytest.mark.cell("tool call")
async def test_a_tool_works_in_the_workspace_and_is_told(driven: Driven) -> None:
    prompt = "[[mock:shell cmd=echo%20made%20by%20the%20tool%20%3E%20made.txt;%20echo%20done]] hello"

    events = await driven.ask(prompt, with_tools=True)

    calls = [event.activity for event in events if isinstance(event.activity, ToolCall)]
    results = [event.activity for event in events if isinstance(event.activity, ToolResult)]
    assert ending(events[-1]) == ("complete", driven.answer(prompt))
    assert [each.call_id for each in calls] == [each.call_id for each in results] and len(calls) == 1
    assert "made.txt" in calls[0].input_json
    assert "done" in results[0].output and not results[0].is_error
    assert (driven.workspace / "made.txt").read_text() == "made by the tool\n"


@pytest.mark.cell("resume")
@pytest.mark.req("RT-36", "BAN-17")
async def test_a_later_run_goes_on_with_the_history_under_the_hosts_id(driven: Driven) -> None:
    prompt, session = "[[mock:plain]] hello", f"talk-{driven.agent.profile}"

    first = await driven.ask(prompt, session_id=session, session_mode="create_if_missing")
    second = await driven.ask(prompt, session_id=session, session_mode="require_existing")

    native_id = await driven.native_id(driven.asked[0])
    details = await driven.client.get(driven.asked[1])
    assert ending(first[-1]) == ("complete", driven.answer(prompt))
    assert ending(second[-1]) == ("complete", driven.answer(prompt, turn=2))
    assert {event.session_id for event in [*first, *second]} - {""} == {session}
    assert native_id not in as_text([*first, *second]) + repr(details.run)
    assert native_id in details.details["argv"], "the vendor's own id goes to the vendor alone"


@pytest.mark.cell("fork")
@pytest.mark.req("RT-10", "RT-36")
async def test_a_fork_knows_what_was_said_and_its_source_does_not_notice(driven: Driven) -> None:
    prompt, source, fork = "[[mock:plain]] hello", f"src-{driven.agent.profile}", f"fork-{driven.agent.profile}"
    await driven.ask(prompt, session_id=source, session_mode="create_if_missing")
    if not await driven.forks():
        with pytest.raises(NodeError) as refused:
            await driven.ask(prompt, session_id=fork, session_mode="fork", fork_from=source)
        assert refused.value.code == "unsupported"
        return

    begun = await driven.ask(prompt, session_id=fork, session_mode="fork", fork_from=source)
    source_later = await driven.ask(prompt, session_id=source, session_mode="require_existing")
    fork_later = await driven.ask(prompt, session_id=fork, session_mode="require_existing")

    assert ending(begun[-1]) == ("complete", driven.answer(prompt, turn=2))
    assert ending(source_later[-1]) == ("complete", driven.answer(prompt, turn=2))
    assert ending(fork_later[-1]) == ("complete", driven.answer(prompt, turn=3))


@pytest.mark.cell("unknown session")
async def test_an_unknown_session_is_refused_before_anything_starts(driven: Driven) -> None:
    before = driven.node.run_directories()

    with pytest.raises(NodeError) as refused:
        await driven.ask("hello", session_id="never-heard-of", session_mode="require_existing")

    assert refused.value.failure is not None and refused.value.failure.code == "session_not_found"
    assert driven.node.run_directories() == before


@pytest.mark.cell("lost session")
@pytest.mark.req("RT-36")
async def test_a_session_that_the_cli_forgot_is_a_typed_failure(driven: Driven) -> None:
    session = f"lost-{driven.agent.profile}"
    await driven.ask("[[mock:plain]] hello", session_id=session, session_mode="create_if_missing")
    driven.forget_sessions()

    events = await driven.ask("[[mock:plain]] again", session_id=session, session_mode="require_existing")

    assert ending(events[-1]) == ("error", driven.agent.endings.get("lost session", "lost"))


@pytest.mark.cell("401")
async def test_a_refused_key_asks_for_a_login(driven: Driven) -> None:
    events = await driven.fail("[[mock:e401]] hello", cell="401")

    assert ending(events[-1]) == ("error", driven.agent.endings.get("401", "auth_required"))


@pytest.mark.cell("429")
async def test_a_rate_limit_is_told_as_one(driven: Driven) -> None:
    events = await driven.fail("[[mock:e429]] hello", cell="429")

    assert ending(events[-1]) == ("error", driven.agent.endings.get("429", "rate_limited"))


@pytest.mark.cell("500 bounded")
async def test_a_broken_model_ends_the_run_within_bounded_retries(driven: Driven) -> None:
    directive = f"[[mock:e500 words={len(driven.agent.profile)}]]"

    events = await driven.fail(f"{directive} hello", cell="500")

    assert ending(events[-1]) == ("error", driven.agent.endings.get("500", "provider_overloaded"))
    if driven.agent.requests_at_500:
        assert 1 <= len(driven.requests(directive)) <= driven.agent.requests_at_500


@pytest.mark.cell("unknown model")
async def test_an_unknown_model_is_told_as_one(driven: Driven) -> None:
    events = await driven.fail(driven.agent.unknown_model, cell="unknown model")

    assert ending(events[-1]) == ("error", driven.agent.endings.get("unknown model", "model_unavailable"))


@pytest.mark.cell("2 MB answer")
async def test_two_megabytes_come_whole_and_the_node_stays_small(driven: Driven) -> None:
    prompt = "[[mock:huge]] hello"
    expected = hashlib.sha256(driven.answer(prompt).encode()).hexdigest()
    before = resident_kib(driven.node.pid)

    events = await driven.ask(prompt)

    answer = hashlib.sha256()
    async for piece in driven.client.artifact(driven.asked[-1], "answer"):
        answer.update(piece)
    assert events[-1].type is EventType.COMPLETE
    assert answer.hexdigest() == expected
    assert resident_kib(driven.node.pid) - before < GROWTH_LIMIT_KIB


@pytest.mark.cell("slash is text")
async def test_a_prompt_that_begins_with_a_slash_is_text(driven: Driven) -> None:
    prompt = "/usage [[mock words=3]]"

    events = await driven.ask(prompt)

    assert ending(events[-1]) == ("complete", driven.answer(prompt))


@pytest.mark.cell("cancel in answer")
@pytest.mark.req("RT-19", "RT-21")
async def test_a_cancel_in_mid_answer_leaves_no_process(driven: Driven) -> None:
    async with driven.asking(f"{SLOW} hello") as (run_id, events):
        await driven.until_answering(SLOW)
        if driven.agent.streams:
            assert (await _first(events, EventType.DELTA)).delta
        began = time.monotonic()
        receipt = await driven.client.cancel(run_id)
        rest = await follow(events)
        took = time.monotonic() - began

    assert receipt.accepted and rest[-1].type is EventType.CANCELLED
    assert took < ANSWER_S
    await driven.assert_nothing_is_left(run_id)


@pytest.mark.cell("cancel in tool")
@pytest.mark.req("RT-19", "RT-21")
async def test_a_cancel_in_mid_tool_ends_the_tool_too(driven: Driven) -> None:
    command = driven.agent.hanging_command
    async with driven.asking(f"[[mock:shell cmd={command}]] hello", with_tools=True) as (run_id, events):
        waited_for = command.replace("%20", " ")
        await until(lambda: _is_running(driven.node, waited_for), 60)
        receipt = await driven.client.cancel(run_id)
        rest = await follow(events)

    assert receipt.accepted and rest[-1].type is EventType.CANCELLED
    await driven.assert_nothing_is_left(run_id)


@pytest.mark.cell("resume after cancel")
@pytest.mark.req("RT-23")
async def test_a_cancelled_run_leaves_its_session_usable(driven: Driven) -> None:
    prompt, session = "[[mock:plain]] hello", f"cancelled-{driven.agent.profile}"
    await driven.ask(prompt, session_id=session, session_mode="create_if_missing")
    async with driven.asking(f"{SLOW} hello", session_id=session, session_mode="require_existing") as (run_id, events):
        await driven.until_answering(SLOW)
        await driven.client.cancel(run_id)
        await follow(events)

    after = await driven.ask(prompt, session_id=session, session_mode="require_existing")

    assert after[-1].type is EventType.COMPLETE
    assert after[-1].message in [driven.answer(prompt, turn=turn) for turn in (2, 3, 4)]


@pytest.mark.cell("node killed")
@pytest.mark.req("PKG-05", "BAN-18")
async def test_a_killed_node_costs_its_reader_nothing(
    agent: RealAgent, own_node: Node, model: ModelServer, node_options: dict[str, Any], tmp_path: Path
) -> None:
    directive = f"[[mock words=80 chunks=80 delay=0.1 name={agent.profile}]]"
    async with NodeClient(own_node.address) as client:
        request = RunRequest(run_id="killed", target=agent.profile, input=f"{directive} hello", workspace=str(tmp_path))
        async with asyncio.timeout(RUN_S), aclosing(client.run(request)) as events:
            found = [await anext(events)]
            while not (
                any(each.get("directive") == directive for each in model.answering) and _has_begun(agent, found)
            ):
                if agent.streams:
                    found.append(await anext(events))
                else:
                    await asyncio.sleep(0.05)
            own_node.kill()
            restarted = Node(own_node.root, listen=own_node.address, **node_options)
            try:
                await asyncio.to_thread(restarted.start)
                found += [event async for event in events]
                details = await client.get("killed")
                await asyncio.to_thread(restarted.assert_no_agents)
            finally:
                await asyncio.to_thread(restarted.close)

    answer = Plan.of(directive).answer(1 + agent.turn_offset)
    sequences = [event.sequence for event in found]
    assert sequences == sorted(set(sequences))
    assert ending(found[-1]) == ("complete", answer)
    assert text(found) == answer, "each piece once"
    assert (details.run.state, details.run.recovered) == ("complete", True)


async def _first(events: object, kind: EventType) -> RuntimeEvent:
    async for event in events:  # type: ignore[attr-defined]
        if event.type is kind:
            return event  # type: ignore[no-any-return]
    raise AssertionError(f"the run ended without {kind}")


def _has_begun(agent: RealAgent, events: list[RuntimeEvent]) -> bool:
    return not agent.streams or sum(event.type is EventType.DELTA for event in events) > 3


def _is_running(node: Node, command: str) -> bool:
    return any(command in each for each in node.agent_processes().values())
