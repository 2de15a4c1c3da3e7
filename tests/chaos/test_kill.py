"""The promise, tried: kill the node, the keeper, a warden in mid-stream, and nothing is lost, doubled or left behind.

Twenty runs of the demo agent stream at once. The books are kept against what the agents really wrote: the raw output is
decoded again with the same dialect, and the events a reader got must be those, each once, in order.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from node.client import NodeClient
from providers.cli.dialect import Line, TurnContext
from providers.cli.dialects import claude_stream_json
from runtime.events import Draft, EventType, RuntimeEvent
from runtime.types import RunRequest
from tests.support.following import Frozen, until
from tests.support.nodes import Node, wait_until

RUNS = 20
WORDS = 200
PROMPT = f"[[demo words={WORDS} delay_ms=20]]"  # about four seconds of answer
WITHIN_S = 120


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    node = Node(tmp_path, times={"foreground_grace_s": 30})
    try:
        node.start()
        yield node
    finally:
        await asyncio.to_thread(node.close)


class Follower:
    """One run and the events its caller has got."""

    def __init__(self, client: NodeClient, number: int) -> None:
        self.run_id = f"kill-{number:02d}"
        self.events: list[RuntimeEvent] = []
        self._client = client
        self.task = asyncio.create_task(self._follow())

    async def _follow(self) -> None:
        request = RunRequest(run_id=self.run_id, target="demo-agent", input=PROMPT)
        async for event in self._client.run(request):
            self.events.append(event)

    @property
    def last_type(self) -> EventType:
        return self.events[-1].type


def written_deltas(directory: Path) -> list[str]:
    """The answer's deltas that the agent of the run in *directory* wrote, decoded from its output."""
    decoder = claude_stream_json.decoder(TurnContext())
    end = 0
    found: list[str] = []
    for data in (directory / "stdout").read_bytes().split(b"\n"):
        end += len(data) + 1
        items = decoder.decode(Line(data=data, end=end)) if data else ()
        found += [i.text for i in items if isinstance(i, Draft) and i.type is EventType.DELTA]
    return found


def stored_events(directory: Path) -> list[RuntimeEvent]:
    """The journal of the run in *directory*."""
    decoder = msgspec.json.Decoder(RuntimeEvent)
    return decoder.decode_lines((directory / "events.jsonl").read_bytes())


def assert_whole(follower: Follower, directory: Path) -> None:
    """Stored: each event once, in order, as the agent wrote it, with one terminal. Received: the same text, in order, the
    deltas of a stretch in which the caller was behind merged, no stretch twice and none left out."""
    stored, received = stored_events(directory), follower.events
    deltas = [e.delta for e in stored if e.type is EventType.DELTA]
    assert [e.sequence for e in stored] == list(range(1, len(stored) + 1)), follower.run_id
    assert [e.type for e in stored if e.is_terminal] == [EventType.COMPLETE], follower.run_id
    assert deltas == written_deltas(directory), follower.run_id
    assert len(deltas) >= WORDS

    sequences = [e.sequence for e in received]
    assert sequences == sorted(set(sequences)) and sequences[-1] == len(stored), follower.run_id
    assert "".join(e.delta for e in received) == "".join(deltas) == received[-1].message, follower.run_id


async def streaming(client: NodeClient, node: Node) -> list[Follower]:
    """Twenty runs, every one of them already streaming: who began early stands still until the last one has begun."""
    followers = [Follower(client, number) for number in range(RUNS)]
    with Frozen() as agents:
        await asyncio.gather(*(_stop_streaming(follower, node, agents) for follower in followers))
        seen = {follower.run_id: len(follower.events) for follower in followers}
    await until(lambda: all(len(follower.events) > seen[follower.run_id] for follower in followers), WITHIN_S)
    return followers


async def _stop_streaming(follower: Follower, node: Node, agents: Frozen) -> None:
    await until(lambda: len(follower.events) > 5, WITHIN_S)
    await agents.freeze(directories(node, [follower])[follower.run_id])


async def finished(followers: list[Follower]) -> None:
    async with asyncio.timeout(WITHIN_S):
        await asyncio.gather(*(follower.task for follower in followers))


def directories(node: Node, followers: list[Follower]) -> dict[str, Path]:
    """Run directories by run id, told by the first record of each journal."""
    found = {}
    for directory in node.run_directories():
        with open(directory / "events.jsonl", encoding="utf-8") as journal:
            line = journal.readline()
        for follower in followers:
            if f'"{follower.run_id}"' in line:
                found[follower.run_id] = directory
    return found


@pytest.mark.req("PKG-05", "RT-15", "BAN-18", "NB-19", "E-19")
async def test_a_killed_node_loses_nothing_and_the_next_one_finishes_every_run(node: Node) -> None:
    async with NodeClient(node.address) as client:
        followers = await streaming(client, node)
        node.kill()
        listen = node.address
        assert not any(follower.task.done() for follower in followers)

        restarted = Node(node.root, listen=listen, times={"foreground_grace_s": 30})
        try:
            await asyncio.to_thread(restarted.start)
            await finished(followers)

            found = directories(restarted, followers)
            for follower in followers:
                assert_whole(follower, found[follower.run_id])
                details = await client.get(follower.run_id)
                assert (details.run.state, details.run.recovered) == ("complete", True)
            await asyncio.to_thread(restarted.assert_no_agents)
        finally:
            await asyncio.to_thread(restarted.close)


@pytest.mark.req("BAN-18")
async def test_a_killed_keeper_is_not_noticed_and_a_new_one_serves_the_next_run(node: Node) -> None:
    async with NodeClient(node.address) as client:
        followers = await streaming(client, node)
        keeper = (await client.status()).keeper_pid

        os.kill(keeper, signal.SIGKILL)
        next_run = [e async for e in client.run(RunRequest(target="demo-agent", input="[[demo words=3]]"))]
        await finished(followers)

        found = directories(node, followers)
        for follower in followers:
            assert_whole(follower, found[follower.run_id])
        assert next_run[-1].type is EventType.COMPLETE
        assert (await client.status()).keeper_pid not in (0, keeper)
        await asyncio.to_thread(node.assert_no_agents)


@pytest.mark.req("BAN-18", "E-1", "E-4")
async def test_a_killed_warden_ends_its_run_once_and_no_other(node: Node) -> None:
    async with NodeClient(node.address) as client:
        followers = await streaming(client, node)
        victim, others = followers[0], followers[1:]
        details = (await client.get(victim.run_id)).details
        agent = int(details["pid"])
        warden = int(Path(f"/proc/{agent}/stat").read_text().rsplit(")", 1)[1].split()[1])

        os.kill(warden, signal.SIGKILL)
        await finished(followers)

        terminals = [e for e in victim.events if e.is_terminal]
        assert len(terminals) == 1
        assert terminals[0].failure is not None and terminals[0].failure.code == "interrupted"
        wait_until(lambda: not Path(f"/proc/{agent}").exists() or agent not in node.agent_processes())
        found = directories(node, followers)
        for follower in others:
            assert_whole(follower, found[follower.run_id])
        await asyncio.to_thread(node.assert_no_agents)
