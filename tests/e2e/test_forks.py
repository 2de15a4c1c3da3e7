"""A fork over gRPC: a new conversation that begins with what was said in another, which goes on by itself."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from node.client import NodeClient, NodeError
from providers.demo_agent import WORDS
from tests.support.commands import iop
from tests.support.nodes import DEMO, Agent, Node
from tests.support.runs import BOUND_S, begun, ending, run

NewNode = Callable[..., Node]

RESUME = ["--resume", "{{session}}"]
SPOKEN = ["--input-format", "stream-json"]
TALK = Agent(
    command=DEMO, dialect="claude_session", mode="session", cancel=["interrupt", "term"], verbs=["interrupt"],
    args=SPOKEN, resume_args=[*SPOKEN, *RESUME], fork_args=[*SPOKEN, *RESUME, "--fork-session"],
)  # fmt: skip
RESUMES = Agent(command=DEMO, mode="resumable", resume_args=RESUME, fork_args=[*RESUME, "--fork-session"])
PLAIN = Agent(command=DEMO, mode="resumable", resume_args=RESUME)
CREATE = "create_if_missing"
HI = "[[demo text=hi]]"


@pytest.fixture
def node(new_node: NewNode) -> Node:
    agents = {"talk": TALK, "resumes": RESUMES, "plain": PLAIN}
    return new_node(agents=agents, times={"foreground_grace_s": 30.0}).start()


@pytest.mark.req("RT-10", "RT-36", "RT-34")
@pytest.mark.parametrize("target", ["talk", "resumes"])
async def test_a_fork_and_its_source_go_on_apart_in_one_directory(node: Node, target: str) -> None:
    async with NodeClient(node.address) as client, asyncio.timeout(BOUND_S):
        await run(client, target, HI, session_id="tea", session_mode=CREATE)
        forked = await run(client, target, HI, session_id="milk", session_mode="fork", fork_from="tea")
        source = await run(client, target, HI, session_id="tea", session_mode=CREATE)
        later = await run(client, target, HI, session_id="milk", session_mode=CREATE)
        twice = await run(client, target, HI, session_id="oat", session_mode="fork", fork_from="milk")
        places = {(await client.get(events[0].run_id)).run.workspace for events in (forked, source, later, twice)}

    said = [ending(events[-1])[1] for events in (forked, source, later, twice)]
    assert said == ["turn 2: hi", "turn 2: hi", "turn 3: hi", "turn 4: hi"]
    assert [events[-1].session_id for events in (forked, twice)] == ["milk", "oat"]
    assert len(places) == 1


@pytest.mark.req("RT-36", "PKG-05")
@pytest.mark.parametrize("target", ["talk", "resumes"])
async def test_a_fork_under_way_survives_the_node(node: Node, target: str) -> None:
    async with NodeClient(node.address) as client, asyncio.timeout(BOUND_S):
        await run(client, target, HI, session_id="tea", session_mode=CREATE)
        slow = {"session_id": "milk", "session_mode": "fork", "fork_from": "tea", "background": True}
        async with begun(client, target, "[[demo words=40 delay_ms=40]]", **slow) as (run_id, _):
            node.kill()
    node.start()

    async with NodeClient(node.address) as client, asyncio.timeout(BOUND_S):
        whole = [event async for event in client.attach(run_id)]
        later = await run(client, target, HI, session_id="milk", session_mode="require_existing")

    said = " ".join(WORDS[number % len(WORDS)] for number in range(40))
    assert ending(whole[-1]) == ("complete", f"turn 2: {said}")
    assert ending(later[-1]) == ("complete", "turn 3: hi")


@pytest.mark.req("RT-09", "RT-10")
@pytest.mark.parametrize("target", ["talk", "resumes"])
async def test_a_fork_whose_source_has_gone_is_refused_and_never_begins_afresh(node: Node, target: str) -> None:
    """It was accepted while the source was there; its first run failed, and then the source was terminated."""
    async with NodeClient(node.address) as client, asyncio.timeout(BOUND_S):
        await run(client, target, HI, session_id="tea", session_mode=CREATE)
        first = await run(client, target, "[[demo:nonsense]]", session_id="milk", session_mode="fork", fork_from="tea")
        await client.terminate_session("tea")
        later = await run(client, target, HI, session_id="milk", session_mode=CREATE)

    assert first[-1].type == "error"
    assert ending(later[-1]) == ("error", "session_not_found")


async def test_a_profile_without_forks_refuses_and_the_command_forks(node: Node) -> None:
    async with NodeClient(node.address) as client, asyncio.timeout(BOUND_S):
        targets = {each.target: each.forks for each in (await client.capabilities()).targets}
        await run(client, "plain", HI, session_id="tea", session_mode=CREATE)
        with pytest.raises(NodeError) as refused:
            await run(client, "plain", HI, session_id="milk", session_mode="fork", fork_from="tea")
        await run(client, "resumes", HI, session_id="green", session_mode=CREATE)
        done = await iop(node, "run", HI, "--target", "resumes", "--fork", "green", "--session", "black")

    assert targets == {"talk": True, "resumes": True, "plain": False}
    assert refused.value.code == "unsupported"
    assert (done.code, done.out.strip()) == (0, "turn 2: hi")
