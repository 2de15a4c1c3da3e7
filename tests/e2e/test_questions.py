"""What an agent asks of people, over the wire: asked, answered with a content, declined, and never lost."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from node.client import NodeClient, NodeError, new_run_id
from runtime.events import PermissionRequest, RequestKind, RuntimeEvent
from runtime.types import RunRequest
from tests.support.following import until
from tests.support.nodes import DEMO, Agent, Node, fake
from tests.support.runs import BOUND_S, ending, words

_SESSION: dict[str, Any] = {"mode": "session", "cancel": ("interrupt", "term"), "verbs": ("interrupt",)}
TALK = Agent(command=DEMO, dialect="claude_session", args=("--input-format", "stream-json"), **_SESSION)
FORMS = fake("acp_agent.py", dialect="acp", **_SESSION)
AGENTS = {"talk": TALK, "undecided": TALK, "hasty-talk": TALK, "forms": FORMS, "hasty-forms": FORMS}
SETTINGS: dict[str, Any] = {
    "times": {"cancel_grace_s": 8.0},
    "profiles": {
        "talk": {"permissions": {"allow": ["Ask*"], "deny": ["*"]}},  # about tools: a question is asked all the same
        "hasty-talk": {"permissions": {"patience_s": 0.2}},
        "hasty-forms": {"permissions": {"patience_s": 0.2}},
    },
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """A way to ask for a colour: by which agent, under which name, and what the agent says afterwards."""

    target: str
    prompt: str
    name: str
    asker: str
    answered: str
    declined: str
    unanswered: str


WAYS = [
    Way(
        target="talk", prompt="[[demo:question]]", name="Which colour?", asker="AskUserQuestion",
        answered="blue", declined="deny", unanswered="deny",
    ),
    Way(
        target="talk", prompt="[[demo:question from=server]]", name="colour", asker="demo",
        answered="accept blue", declined="decline nothing", unanswered="cancel nothing",
    ),
    Way(
        target="forms", prompt="form", name="colour", asker="",
        answered="accept blue", declined="decline nothing", unanswered="cancel nothing",
    ),
]  # fmt: skip
in_every_way = pytest.mark.parametrize("way", WAYS, ids=["tool", "server", "acp"])


class Asking:
    """A run that asks, followed from its first event to its last."""

    def __init__(self, client: NodeClient, target: str, prompt: str) -> None:
        self.events: list[RuntimeEvent] = []
        self.run_id = new_run_id()
        request = RunRequest(run_id=self.run_id, target=target, input=prompt, background=True)
        self.task = asyncio.create_task(self._follow(client, request))

    async def _follow(self, client: NodeClient, request: RunRequest) -> None:
        async with aclosing(client.run(request, include_activity=True)) as events:
            async for event in events:
                self.events.append(event)

    @property
    def asked(self) -> list[PermissionRequest]:
        return [each.activity for each in self.events if isinstance(each.activity, PermissionRequest)]

    async def question(self) -> PermissionRequest:
        """What it asks."""
        await until(lambda: self.asked or self.task.done())
        return self.asked[0]

    async def end(self) -> tuple[str, str]:
        """How it ended."""
        async with asyncio.timeout(BOUND_S):
            await self.task
        return ending(self.events[-1])


@pytest.fixture(scope="module")
def asking_node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    node = Node(tmp_path_factory.mktemp("asking"), agents=AGENTS, **SETTINGS)
    try:
        yield node.start()
        assert node.stop() == 0
        assert "Traceback" not in node.logged()
    finally:
        node.close()


@pytest_asyncio.fixture(loop_scope="session")
async def client(asking_node: Node) -> AsyncIterator[NodeClient]:
    async with NodeClient(asking_node.address) as connected:
        yield connected


@asynccontextmanager
async def asked(client: NodeClient, way: Way) -> AsyncIterator[tuple[Asking, str]]:
    """A run that asks in its *way*, and the id of its question."""
    run = Asking(client, way.target, way.prompt)
    try:
        yield run, (await run.question()).request_id
    finally:
        run.task.cancel()


@in_every_way
@pytest.mark.req("RT-13")
async def test_a_question_is_asked_as_such_and_its_answer_reaches_the_agent(client: NodeClient, way: Way) -> None:
    async with asked(client, way) as (run, request_id):
        question = run.asked[0]

        await client.respond(run.run_id, request_id, allow=True, answer={way.name: "blue"})

        assert await run.end() == ("complete", f"turn 1: {way.answered}")
        assert (question.kind, question.tool, question.reason) == (RequestKind.QUESTION, way.asker, "Which colour?")
        assert way.name in question.input_json and question.expires_at_ns > 0
        assert words(run.events).count("activity") == 1


@pytest.mark.req("RT-13")
async def test_what_the_agent_takes_back_is_open_no_more_while_its_turn_goes_on(client: NodeClient) -> None:
    run = Asking(client, "undecided", "[[demo:ask withdraw_ms=300 delay_ms=600000]]")
    request_id = (await run.question()).request_id
    try:
        opened = (await client.get(run.run_id)).run.open_requests
        async with asyncio.timeout(BOUND_S):
            while (await client.get(run.run_id)).run.open_requests:
                await asyncio.sleep(0.02)
        with pytest.raises(NodeError) as refused:
            await client.respond(run.run_id, request_id, allow=True)
        still = (await client.get(run.run_id)).run.state
        interrupted = await client.send_input(run.run_id, "interrupt")

        assert await run.end() == ("cancelled", "interrupted on request")
    finally:
        run.task.cancel()

    assert (opened, refused.value.code, still) == ((request_id,), "not_found", "running")
    assert interrupted.outcome == "confirmed"


@in_every_way
@pytest.mark.req("RT-13")
async def test_a_question_can_be_declined(client: NodeClient, way: Way) -> None:
    async with asked(client, way) as (run, request_id):
        await client.respond(run.run_id, request_id, allow=False, message="not today")

        assert await run.end() == ("complete", f"turn 1: {way.declined}")


@in_every_way
@pytest.mark.req("RT-13")
async def test_nobodys_answer_in_time_is_told_to_the_agent_as_such(client: NodeClient, way: Way) -> None:
    run = Asking(client, f"hasty-{way.target}", way.prompt)

    assert await run.end() == ("complete", f"turn 1: {way.unanswered}")
    with pytest.raises(NodeError) as late:
        await client.respond(run.run_id, run.asked[0].request_id, allow=True, answer={way.name: "blue"})
    assert late.value.code == "not_found"


@pytest.mark.req("RT-13")
async def test_a_question_is_answered_once(client: NodeClient) -> None:
    """Whoever comes second hears that it was answered, or, when the agent was quick, that the run is over."""
    async with asked(client, WAYS[0]) as (run, request_id):
        both = await asyncio.gather(
            *(client.respond(run.run_id, request_id, allow=True, answer={"Which colour?": c}) for c in ("blue", "red")),
            return_exceptions=True,
        )

        refused = [each for each in both if isinstance(each, NodeError)]
        assert [each.code for each in refused] in (["conflict"], ["not_found"])
        assert await run.end() == ("complete", f"turn 1: {'red' if both[1] is None else 'blue'}")


@pytest.mark.req("RT-13")
@pytest.mark.parametrize(
    ("prompt", "more", "says"),
    [
        ("[[demo:question]]", {"allow": True}, "allow it with an answer"),
        ("[[demo:question]]", {"allow": False, "answer": {}}, "leave it out"),
        ("[[demo:question]]", {"allow": True, "answer": {"Which colour?": {"name": "blue"}}}, "use a text"),
        ("[[demo:ask]]", {"allow": True, "answer": {}}, "leave the answer out"),
    ],
)
async def test_what_is_no_answer_is_refused_by_name_and_the_agent_waits_on(
    client: NodeClient, prompt: str, more: dict[str, Any], says: str
) -> None:
    run = Asking(client, "undecided", prompt)
    request_id = (await run.question()).request_id

    with pytest.raises(NodeError, match=says) as refused:
        await client.respond(run.run_id, request_id, **more)

    assert refused.value.code == "invalid_request"
    assert refused.value.failure is not None and refused.value.failure.metadata["field"] == "answer"
    await client.respond(run.run_id, request_id, allow=False)
    assert await run.end() == ("complete", "turn 1: deny")


@in_every_way
@pytest.mark.req("RT-13", "RT-36", "E-6")
async def test_a_question_outlives_the_node(tmp_path: Path, way: Way) -> None:
    node = Node(tmp_path / "own", agents=AGENTS, **SETTINGS)
    try:
        async with NodeClient(node.start().address) as client, asked(client, way) as (run, request_id):
            node.kill()
            run.task.cancel()
        node.start()

        async with NodeClient(node.address) as client, asyncio.timeout(BOUND_S):
            await respond_when_open(client, run.run_id, request_id, {way.name: "blue"})
            async with aclosing(client.attach(run.run_id, include_activity=True)) as events:
                whole = [event async for event in events]

        assert ending(whole[-1]) == ("complete", f"turn 1: {way.answered}")
        assert words(whole).count("activity") == 1, "asked once"
        assert node.stop() == 0
    finally:
        node.close()


async def respond_when_open(client: NodeClient, run_id: str, request_id: str, answer: dict[str, Any]) -> None:
    """Answer as soon as the node that took the run over has come to the question."""
    while True:
        try:
            return await client.respond(run_id, request_id, allow=True, answer=answer)
        except NodeError as error:
            assert error.code == "not_found"
            await asyncio.sleep(0.02)


@pytest.mark.req("E-5")
async def test_an_interrupt_withdraws_an_open_question(client: NodeClient) -> None:
    async with asked(client, WAYS[2]) as (run, request_id):
        receipt = await client.send_input(run.run_id, "interrupt")

        assert (receipt.outcome, (await run.end())[0]) == ("confirmed", "cancelled")
        with pytest.raises(NodeError) as late:
            await client.respond(run.run_id, request_id, allow=True, answer={"colour": "blue"})
        assert late.value.code == "not_found"
