"""Logical sessions over the wire: looked at, read, ended; and what a terminated one does to the next run."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import pytest
import pytest_asyncio

from node.client import NodeClient, NodeError
from runtime.events import EventType, RuntimeEvent
from runtime.types import RunRequest, SessionMode
from tests.support.nodes import running, shell


@pytest_asyncio.fixture(loop_scope="session")
async def client(tmp_path: Path) -> AsyncIterator[NodeClient]:
    with running(tmp_path) as node:
        async with NodeClient(node.address) as client:
            yield client


async def turn(
    client: NodeClient, text: str, *, session: str, mode: SessionMode = SessionMode.CREATE_IF_MISSING
) -> list[RuntimeEvent]:
    request = RunRequest(target="demo-agent", input=text, session_id=session, session_mode=mode)
    return [event async for event in client.run(request, include_activity=True)]


async def test_a_transcript_is_what_was_said_in_order(client: NodeClient) -> None:
    first = await turn(client, "[[demo:tool cmd=true]] one", session="tea")
    second = await turn(client, "[[demo words=2]] two", session="tea")

    entries = [entry async for entry in client.transcript("tea")]

    assert [(e.role, e.run_id) for e in entries] == [
        ("user", first[0].run_id), ("tool", first[0].run_id), ("tool", first[0].run_id), ("assistant", first[0].run_id),
        ("user", second[0].run_id), ("assistant", second[0].run_id),
    ]  # fmt: skip
    assert entries[0].text == "[[demo:tool cmd=true]] one"
    assert entries[-1].text == second[-1].message
    assert [e.time for e in entries] == sorted(e.time for e in entries)


@pytest.mark.req("NB-17", "RT-22", "BAN-19", "E-5")
async def test_terminating_a_session_ends_no_run_by_itself_and_forgets_the_conversation(client: NodeClient) -> None:
    await turn(client, "one", session="tea")
    before = [session async for session in client.sessions()]
    assert [(s.session_id, s.state, s.target) for s in before] == [("tea", "idle", "demo-agent")]

    ended = await client.terminate_session("tea")
    assert ended.state == "terminated"
    with pytest.raises(NodeError) as refused:
        await turn(client, "two", session="tea", mode=SessionMode.REQUIRE_EXISTING)
    assert refused.value.failure is not None and refused.value.failure.code == "session_not_found"

    fresh = await turn(client, "three", session="tea")
    assert fresh[-1].message.startswith("turn 1:")


@pytest.mark.req("RT-22", "RT-23", "BAN-19", "E-5")
async def test_a_session_with_an_active_run_is_refused_or_cancelled_first_as_asked(client: NodeClient) -> None:
    events: list[RuntimeEvent] = []
    request = RunRequest(
        run_id="r1", target="demo-agent", input="[[demo:slow]]", session_id="tea",
        session_mode=SessionMode.CREATE_IF_MISSING,
    )  # fmt: skip
    async for event in client.run(request):
        events.append(event)
        if len(events) == 2:
            with pytest.raises(NodeError) as busy:
                await client.terminate_session("tea")
            assert busy.value.failure is not None and busy.value.failure.code == "session_busy"
            assert (await client.get("r1")).run.state == "running"

            assert (await client.terminate_session("tea", cancel_active=True)).state == "terminated"

    assert events[-1].type is EventType.CANCELLED


@pytest.mark.req("RT-23", "E-5")
async def test_a_cancelled_run_leaves_its_session_resumable(client: NodeClient) -> None:
    request = RunRequest(
        run_id="r1", target="demo-agent", input="[[demo:slow]]", session_id="tea",
        session_mode=SessionMode.CREATE_IF_MISSING,
    )  # fmt: skip
    async for event in client.run(request):
        if event.type is EventType.DELTA and not event.is_terminal:
            await client.cancel("r1")

    again = await turn(client, "two", session="tea", mode=SessionMode.REQUIRE_EXISTING)

    assert again[-1].type is EventType.COMPLETE
    assert again[-1].message.startswith("turn 2:")


async def test_an_unknown_session_is_named_in_the_refusal(client: NodeClient) -> None:
    with pytest.raises(NodeError) as refused:
        await client.terminate_session("nobody")

    assert refused.value.status is grpc.StatusCode.NOT_FOUND
    assert "nobody" in str(refused.value)


@pytest.mark.req("RT-36", "RT-23")
async def test_a_conversation_that_cannot_be_gone_on_with_is_told_and_never_pretended(tmp_path: Path) -> None:
    with running(tmp_path, agents={"shell": shell()}) as node:
        async with NodeClient(node.address) as client:

            async def ask(text: str, mode: SessionMode, run_id: str = "") -> list[RuntimeEvent]:
                request = RunRequest(target="shell", input=text, session_id="tea", session_mode=mode, run_id=run_id)
                events = []
                async for event in client.run(request):
                    events.append(event)
                    if run_id and event.type is EventType.DELTA:
                        await client.cancel(run_id)
                return events

            cancelled = await ask("echo one; sleep 60", SessionMode.CREATE_IF_MISSING, run_id="r1")
            nothing_lost = await ask("echo two", SessionMode.REQUIRE_EXISTING)
            required = await ask("echo three", SessionMode.REQUIRE_EXISTING)
            anew = await ask("echo four", SessionMode.CREATE_IF_MISSING)

    assert [run[-1].type for run in (cancelled, nothing_lost, required, anew)] == [
        EventType.CANCELLED, EventType.COMPLETE, EventType.ERROR, EventType.COMPLETE,
    ]  # fmt: skip
    assert required[-1].failure is not None and required[-1].failure.code == "session_not_found"
    assert "session_history" not in nothing_lost[0].metadata
    assert anew[0].metadata["session_history"] == "not_resumed"
