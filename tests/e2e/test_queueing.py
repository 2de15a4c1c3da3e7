"""Verb ``queue`` over gRPC: what is said behind a turn is the session's next turn, also when the node dies between."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from node.client import NodeClient, NodeError
from providers.demo_agent import WORDS
from runtime.provider import InputOutcome
from tests.support.commands import iop
from tests.support.nodes import DEMO, Agent, Node, wait_until
from tests.support.runs import BOUND_S, begun, ending, follow, run, text

NewNode = Callable[..., Node]

TALK = Agent(
    command=DEMO, dialect="claude_session", mode="session", cancel=["interrupt", "term"], verbs=["interrupt", "queue"],
    args=["--input-format", "stream-json"], resume_args=["--input-format", "stream-json", "--resume", "{{session}}"],
)  # fmt: skip
RESUMES = Agent(command=DEMO, mode="resumable", verbs=["queue"], resume_args=["--resume", "{{session}}"])
MANY = 80
LONG, SHORT = f"[[demo words={MANY} delay_ms=40]]", "[[demo words=3 delay_ms=1]]"
NAMED = {"session_id": "s", "session_mode": "create_if_missing"}


def said(count: int) -> str:
    return " ".join(WORDS[number % len(WORDS)] for number in range(count))


@pytest.fixture
def node(new_node: NewNode) -> Node:
    agents = {"talk": TALK, "resumes": RESUMES}
    return new_node(agents=agents, times={"cancel_grace_s": 8.0, "foreground_grace_s": 30.0}).start()


@pytest.mark.req("RT-12", "RT-36")
@pytest.mark.parametrize("target", ["talk", "resumes"])
async def test_what_is_queued_is_the_sessions_next_turn(node: Node, target: str) -> None:
    async with NodeClient(node.address) as client, asyncio.timeout(BOUND_S):
        async with begun(client, target, LONG, **NAMED) as (run_id, events):
            receipt = await client.send_input(run_id, "queue", SHORT)
            waiting = await client.get(receipt.run_id)
            first = await follow(events)
        second = await follow(client.attach(receipt.run_id))
        same = (await client.get(run_id)).details["pid"] == (await client.get(receipt.run_id)).details["pid"]

    assert (receipt.outcome, waiting.run.queue_position, waiting.run.state) == (InputOutcome.CONFIRMED, 1, "accepted")
    assert ending(first[-1]) == ("complete", f"turn 1: {said(MANY)}")
    assert ending(second[-1]) == ("complete", f"turn 2: {said(3)}")
    assert same is (target == "talk"), "a warm process takes it, where the session has one"


@pytest.mark.req("PKG-05", "RT-12", "E-6")
@pytest.mark.parametrize("target", ["talk", "resumes"])
async def test_what_is_queued_survives_the_node_and_keeps_its_order(node: Node, target: str) -> None:
    async with (
        NodeClient(node.address) as client,
        asyncio.timeout(BOUND_S),
        begun(client, target, LONG, background=True, **NAMED) as (run_id, _),
    ):
        queued = [(await client.send_input(run_id, "queue", SHORT, new_run_id=f"q{n}")).run_id for n in range(2)]
    node.kill()
    node.start()

    async with NodeClient(node.address) as client, asyncio.timeout(BOUND_S):
        again = await client.send_input(run_id, "queue", SHORT, new_run_id="q0")
        whole = [await follow(client.attach(each)) for each in (run_id, *queued)]

    assert (again.outcome, again.run_id) == (InputOutcome.CONFIRMED, "q0"), "the same again makes no second run"
    assert [ending(events[-1]) for events in whole] == [
        ("complete", f"turn 1: {said(MANY)}"), ("complete", f"turn 2: {said(3)}"), ("complete", f"turn 3: {said(3)}"),
    ]  # fmt: skip
    assert [text(events) for events in whole] == [events[-1].message for events in whole]
    wait_until(lambda: target == "talk" or not node.agent_processes())


@pytest.mark.req("RT-23", "BAN-19")
async def test_an_interrupted_turn_lets_the_queued_one_begin(node: Node) -> None:
    async with NodeClient(node.address) as client, asyncio.timeout(BOUND_S):
        await run(client, "talk", SHORT, **NAMED)
        async with begun(client, "talk", LONG, **NAMED) as (run_id, events):
            await anext(events)
            queued = (await client.send_input(run_id, "queue", SHORT)).run_id
            interrupted = await client.send_input(run_id, "interrupt")
            rest = await follow(events)
        after = await follow(client.attach(queued))

    assert interrupted.outcome is InputOutcome.CONFIRMED
    assert (rest[-1].type, after[-1].type) == ("cancelled", "complete")


async def test_the_commands_say_what_came_of_it(node: Node) -> None:
    async with NodeClient(node.address) as client, asyncio.timeout(BOUND_S):
        await run(client, "talk", SHORT, **NAMED)
        async with begun(client, "talk", "[[demo words=2000 delay_ms=40]]", **NAMED) as (run_id, events):
            await anext(events)
            queued = await iop(node, "queue", run_id, SHORT)
            steered = await iop(node, "steer", run_id, "no")
            interrupted = await iop(node, "interrupt", run_id)
            late = await iop(node, "queue", run_id, SHORT)
            await follow(events)
        after = await follow(client.attach(queued.out.strip()))

    assert (queued.code, steered.code, interrupted.code, late.code) == (0, 2, 0, 2)
    assert "cannot steer" in steered.err
    assert interrupted.err == f"interrupt {run_id}: done\n"
    assert late.err.startswith(f"queue {run_id}: too late")
    assert after[-1].type == "complete"


async def test_a_dispatch_to_a_session_that_is_waited_for_is_refused(node: Node) -> None:
    async with NodeClient(node.address) as client, asyncio.timeout(BOUND_S):
        async with begun(client, "talk", LONG, **NAMED) as (run_id, events):
            queued = (await client.send_input(run_id, "queue", SHORT)).run_id
            with pytest.raises(NodeError) as refused:
                await run(client, "talk", SHORT, **NAMED)
            await follow(events)
        await follow(client.attach(queued))

    assert refused.value.code == "session_busy"
