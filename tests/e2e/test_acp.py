"""Sessions with an agent that speaks the Agent Client Protocol, over the wire: one process, turn after turn."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import grpc.aio
import pytest
import pytest_asyncio

from node.client import NodeClient, NodeError
from node.pb import node_pb2, node_pb2_grpc
from runtime.events import PermissionRequest, RuntimeEvent, ToolCall, ToolResult
from runtime.types import RunRequest
from tests.support.following import until
from tests.support.nodes import Agent, Node, fake, wait_until
from tests.support.runs import BOUND_S, ending, follow, run, text, words

CREATE = "create_if_missing"


def acp(*args: str, **opening: str) -> Agent:
    session = {"mode": "session", "cancel": ("interrupt", "term"), "verbs": ("interrupt",)}
    return fake("acp_agent.py", dialect="acp", args=args, opening=opening, **session)


AGENTS = {
    "acp": acp(),
    "allowed": acp(),
    "impatient": acp(),
    "forgets": acp("--forgets"),
    "logged-out": acp("--auth"),
    "of-the-future": acp("--version=2"),
    "with-options": acp("--options", model="{{model}}", mode="auto"),
    "without-modes": acp(mode="auto"),
}
SETTINGS: dict[str, Any] = {
    "limits": {"max_line_bytes": 4 << 20},
    "times": {"cancel_grace_s": 3.0, "silence_timeout_s": 60.0},
    "profiles": {
        "allowed": {"permissions": {"allow": ["exec*"]}},
        "impatient": {"permissions": {"patience_s": 0.3}},
    },
}


@pytest.fixture(scope="module")
def acp_node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    node = Node(tmp_path_factory.mktemp("acp"), agents=AGENTS, **SETTINGS)
    try:
        yield node.start()
        assert node.stop() == 0
        assert "Traceback" not in node.logged()
        assert_nothing_left(node)
    finally:
        node.close()


@pytest_asyncio.fixture(loop_scope="session")
async def client(acp_node: Node) -> AsyncIterator[NodeClient]:
    async with NodeClient(acp_node.address) as connected:
        yield connected


async def turn(client: NodeClient, session: str, prompt: str, target: str = "acp", **more: Any) -> list[RuntimeEvent]:
    return await run(client, target, prompt, session_id=session, session_mode=CREATE, **more)


async def pid_of(client: NodeClient, events: list[RuntimeEvent]) -> int:
    """The process that took the turn."""
    return int((await client.get(events[0].run_id)).details["pid"])


def activities(events: list[RuntimeEvent]) -> list[Any]:
    return [event.activity for event in events if event.activity is not None]


def questions(events: list[RuntimeEvent]) -> list[PermissionRequest]:
    return [each for each in activities(events) if isinstance(each, PermissionRequest)]


def assert_nothing_left(node: Node) -> None:
    wait_until(lambda: not node.started_processes(), problem=lambda: f"left: {node.started_processes()}")


async def open_requests(node: Node, run_id: str) -> list[str]:
    async with grpc.aio.insecure_channel(node.address) as channel:
        stub = node_pb2_grpc.NodeServiceStub(channel)  # type: ignore[no-untyped-call]  # generated
        answer = await stub.GetRun(node_pb2.GetRunRequest(run_id=run_id))
        return list(answer.run.open_requests)


class Asked:
    """A run that is being followed, until it has asked *count* questions, and then to its end."""

    def __init__(self, client: NodeClient, session: str, prompt: str, *, count: int = 1, **fields: Any) -> None:
        self.events: list[RuntimeEvent] = []
        request = RunRequest(
            target="acp", input=prompt, session_id=session, session_mode=CREATE, background=True, **fields
        )
        self._task = asyncio.create_task(self._follow(client, request))
        self._count = count

    async def _follow(self, client: NodeClient, request: RunRequest) -> None:
        async with aclosing(client.run(request, include_activity=True)) as events:
            async for event in events:
                self.events.append(event)

    async def open(self) -> tuple[str, list[PermissionRequest]]:
        """The run's id, and what it asks."""
        await until(lambda: len(questions(self.events)) >= self._count or self._task.done())
        return self.events[0].run_id, questions(self.events)

    def leave(self) -> None:
        """Follow it no longer."""
        self._task.cancel()

    async def end(self) -> list[RuntimeEvent]:
        await self._task
        return self.events


# -- turns


@pytest.mark.req("RT-13", "RT-36")
async def test_the_second_turn_is_taken_by_the_same_process(client: NodeClient, acp_node: Node) -> None:
    first = await turn(client, "pair", "hello")
    second = await turn(client, "pair", "again")

    assert words(first) == ["start", "delta", "delta", "complete"]
    assert [ending(events[-1]) for events in (first, second)] == [
        ("complete", "turn 1: hello"), ("complete", "turn 2: hello"),
    ]  # fmt: skip
    assert await pid_of(client, first) == await pid_of(client, second)
    assert first[-1].usage is not None and first[-1].usage.input_tokens == 10


@pytest.mark.req("RT-13")
async def test_thinking_plans_and_tools_have_their_places(client: NodeClient) -> None:
    thought, planned, called = [await turn(client, "kinds", prompt) for prompt in ("think", "plan", "tool")]

    assert words(thought) == ["start", "reasoning_delta", "delta", "delta", "complete"]
    assert [entry.text for entry in activities(planned)[0].entries] == ["first"]
    assert activities(called) == [
        ToolCall(call_id="call-1", name="execute", input_json='{"command":"echo hi"}'),
        ToolResult(call_id="call-1", output="hi\n"),
    ]
    assert ending(called[-1]) == ("complete", "turn 3: hello")
    assert text(called) == "I will look. turn 3: hello"


@pytest.mark.req("RT-36")
async def test_a_session_goes_on_in_a_fresh_process(client: NodeClient, acp_node: Node) -> None:
    await turn(client, "evicted", "hello")
    dead = await turn(client, "evicted", "dies")
    third = await turn(client, "evicted", "again")

    assert ending(dead[-1]) == ("error", "process_failed")
    assert "out of luck" in dead[-1].error
    assert ending(third[-1]) == ("complete", "turn 3: hello")


@pytest.mark.req("RT-36")
@pytest.mark.parametrize("target", ["acp", "forgets"])
async def test_a_session_that_the_agent_has_forgotten_is_said(client: NodeClient, acp_node: Node, target: str) -> None:
    """``forgets`` opens it all the same, empty: a conversation that silently lost its past would be worse."""
    session = f"forgotten-{target}"
    await turn(client, session, "hello", target)
    await turn(client, session, "dies", target)
    for kept in (acp_node.home / ".acp-agent").iterdir():
        kept.unlink()

    third = await turn(client, session, "again", target)

    assert ending(third[-1]) == ("error", "lost")


async def test_a_prompt_of_a_megabyte_and_an_answer_of_two_are_whole(client: NodeClient) -> None:
    events = await turn(client, "big", f"huge {2 << 20} " + "y" * (1 << 20))

    assert ending(events[-1])[0] == "complete"
    assert len(text(events)) == (2 << 20) + len("turn 1: hello")


@pytest.mark.parametrize(
    ("target", "code"),
    [("logged-out", "auth_required"), ("of-the-future", "unsupported"), ("without-modes", "unsupported")],
)
async def test_an_agent_that_cannot_be_opened_says_why_and_leaves_nothing(
    client: NodeClient, acp_node: Node, target: str, code: str
) -> None:
    events = await turn(client, target, "hello", target)

    assert ending(events[-1]) == ("error", code)


async def test_model_and_mode_are_chosen_before_the_first_turn(client: NodeClient, tmp_path: Path) -> None:
    await turn(client, "options", "hello", "with-options", workspace=str(tmp_path))

    chosen = [json.loads(line) for line in (tmp_path / "options.log").read_text().splitlines()]
    assert [(each.get("configId"), each.get("value"), each.get("modeId")) for each in chosen] == [
        ("model", "test-model", None), (None, None, "auto"),
    ]  # fmt: skip


# -- permission


@pytest.mark.req("RT-13")
@pytest.mark.parametrize(("allow", "chosen"), [(True, "yes"), (False, "no")])
async def test_a_question_is_answered_by_the_caller(
    client: NodeClient, acp_node: Node, tmp_path: Path, allow: bool, chosen: str
) -> None:
    asked = Asked(client, f"asks-{chosen}", "permission", workspace=str(tmp_path))
    run_id, (question,) = await asked.open()
    still_open = await open_requests(acp_node, run_id)

    await client.respond(run_id, question.request_id, allow=allow)
    events = await asked.end()

    assert (question.tool, question.input_json) == ("execute", '{"command":"rm 0"}')
    assert still_open == [question.request_id]
    assert ending(events[-1]) == ("complete", f"{chosen} ")
    assert (tmp_path / "answers.log").read_text() == f"{chosen}\n"
    with pytest.raises(NodeError):
        await client.respond(run_id, question.request_id, allow=allow)


@pytest.mark.req("RT-13")
async def test_a_question_that_nobody_answers_is_denied_in_time(client: NodeClient) -> None:
    events = await turn(client, "unanswered", "permission", "impatient")

    assert len(questions(events)) == 1
    assert ending(events[-1]) == ("complete", "no ")


@pytest.mark.req("RT-13")
async def test_a_rule_answers_without_asking(client: NodeClient) -> None:
    events = await turn(client, "ruled", "permission 2", "allowed")

    assert questions(events) == []
    assert text(events) == "yes yes "


# -- the end of a turn


@pytest.mark.req("RT-19", "RT-23")
@pytest.mark.parametrize(
    ("prompt", "wait_for"), [("slow", "delta"), ("holding", "activity"), ("permission", "activity")]
)
async def test_a_cancel_ends_the_turn_and_keeps_the_process(
    client: NodeClient, acp_node: Node, prompt: str, wait_for: str
) -> None:
    session = f"cancelled-{prompt}"
    before = await turn(client, session, "hello")
    asked = Asked(client, session, prompt)
    await until(lambda: wait_for in words(asked.events))

    await client.cancel(asked.events[0].run_id)
    events = await asked.end()
    again = await turn(client, session, "again")

    assert ending(events[-1])[0] == "cancelled"
    assert ending(again[-1]) == ("complete", "turn 3: hello")
    assert await pid_of(client, before) == await pid_of(client, again)
    wait_until(lambda: not any("sleep 300" in each for each in acp_node.started_processes().values()))


@pytest.mark.req("E-5")
@pytest.mark.parametrize(
    ("prompt", "wait_for"), [("slow", "delta"), ("holding", "activity"), ("permission", "activity")]
)
async def test_an_interrupt_is_confirmed_by_the_agent(client: NodeClient, prompt: str, wait_for: str) -> None:
    session = f"interrupted-{prompt}"
    asked = Asked(client, session, prompt)
    await until(lambda: wait_for in words(asked.events))

    receipt = await client.send_input(asked.events[0].run_id, "interrupt")
    events = await asked.end()
    again = await turn(client, session, "again")

    assert receipt.outcome == "confirmed"
    assert ending(events[-1])[0] == "cancelled"
    assert ending(again[-1]) == ("complete", "turn 2: hello")


@pytest.mark.req("E-5")
async def test_an_interrupt_that_the_agent_does_not_hear_ends_nothing(client: NodeClient) -> None:
    asked = Asked(client, "unheard", "deaf")
    await until(lambda: "delta" in words(asked.events))

    receipt = await client.send_input(asked.events[0].run_id, "interrupt")
    details = await client.get(asked.events[0].run_id)
    await client.cancel(asked.events[0].run_id)

    assert receipt.outcome == "not_confirmed"
    assert details.run.state == "running"
    assert ending((await asked.end())[-1])[0] == "cancelled"


@pytest.mark.req("RT-21", "RT-23")
async def test_an_agent_that_is_deaf_to_a_cancel_is_ended_with_its_tree_and_the_session_goes_on(
    client: NodeClient, acp_node: Node
) -> None:
    await turn(client, "deaf", "hello")
    asked = Asked(client, "deaf", "deaf")
    await until(lambda: "delta" in words(asked.events))

    await client.cancel(asked.events[0].run_id)
    events = await asked.end()
    again = await turn(client, "deaf", "again")

    assert ending(events[-1])[0] == "cancelled"
    assert ending(again[-1]) == ("complete", "turn 3: hello")
    wait_until(lambda: not any("sleep 300" in each for each in acp_node.started_processes().values()))


@pytest.mark.req("RT-29", "E-6")
@pytest.mark.parametrize(
    ("prompt", "end"),
    [
        ("401", ("error", "auth_required")),
        ("max-tokens", ("error", "budget_exhausted")),
        ("refuses", ("error", "refused")),
        ("odd-stop", ("error", "output_invalid")),
        ("empty", ("complete", "")),
        ("garbage", ("complete", "turn 1: hello")),
        ("twice", ("complete", "turn 1: hello")),
        ("batch", ("complete", "in a batch")),
        ("asks-much", ("complete", "-32601,-32601,-32601")),
        ("wrong-id", ("error", "output_invalid")),
    ],
)
async def test_after_a_bad_turn_the_session_still_takes_a_good_one(
    client: NodeClient, prompt: str, end: tuple[str, str]
) -> None:
    bad = await turn(client, f"bad-{prompt}", prompt)
    good = await turn(client, f"bad-{prompt}", "again")

    assert ending(bad[-1]) == end
    assert ending(good[-1]) == ("complete", "turn 2: hello")


async def test_a_message_over_the_line_limit_costs_the_message_and_not_the_turn(client: NodeClient) -> None:
    events = await turn(client, "over", f"huge {5 << 20}")

    assert ending(events[-1]) == ("complete", "turn 1: hello")


# -- a crash of the node


@pytest.mark.req("RT-36", "E-6")
async def test_a_question_outlives_the_node_and_is_asked_again_once(
    new_node: Callable[..., Node], tmp_path: Path
) -> None:
    node = new_node(agents=AGENTS, **SETTINGS).start()
    async with NodeClient(node.address) as client:
        await turn(client, "kept", "hello", workspace=str(tmp_path))
        asked = Asked(client, "kept", "permission 2", workspace=str(tmp_path))
        run_id, (first,) = await asked.open()
        await client.respond(run_id, first.request_id, allow=True)
        await until(lambda: len(questions(asked.events)) == 2)
        second = questions(asked.events)[1]
        processes = node.started_processes()

        node.kill()
        asked.leave()

    node.start()
    async with NodeClient(node.address) as client:
        await until(lambda: node.started_processes().items() >= processes.items())
        async with asyncio.timeout(BOUND_S):
            while not await open_requests(node, run_id):
                await asyncio.sleep(0.05)
        await client.respond(run_id, second.request_id, allow=False)
        events = await follow(client.attach(run_id, include_activity=True))
        again = await turn(client, "kept", "again", workspace=str(tmp_path))

    assert text(events) == "yes no "
    assert (tmp_path / "answers.log").read_text() == "yes\nno\n", "each was answered once"
    assert [each.request_id for each in questions(events)] == [first.request_id, second.request_id]
    assert [event.sequence for event in events] == sorted({event.sequence for event in events})
    assert ending(again[-1]) == ("complete", "turn 3: hello")
    assert node.stop() == 0
    assert_nothing_left(node)
