"""A run that spends more than its caller allows ends as such, with everything that it started."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from node.client import NodeClient
from tests.support.nodes import Node, fake
from tests.support.runs import begun, ending, follow, run

LAST = "sleep 300 & sleep 300"


def frame(**members: Any) -> str:
    return "echo '" + json.dumps(members) + "'"


def message(name: str, tokens: int) -> list[str]:
    """One streamed message of the agent with its tokens."""
    piece = {"type": "content_block_delta", "delta": {"type": "text_delta", "text": name}}
    end = {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": tokens}}
    begin = {"type": "message_start", "message": {"id": name, "usage": {"input_tokens": 1, "output_tokens": 1}}}
    return [frame(type="stream_event", event=event) for event in (begin, piece, end)]


def spends(*, last: str) -> str:
    """The script of an agent that says two messages, of 11 tokens each."""
    return "\n".join([*message("m1", 10), *message("m2", 10), last])


RESULT = frame(type="result", subtype="success", is_error=False, result="done", session_id="s", total_cost_usd=9.0)


@pytest.mark.parametrize(
    ("budget", "said"),
    [
        ({"turns": 1}, "the agent's reported turns (2) passed the run's budget of 1"),
        ({"tokens": 21}, "the agent's reported tokens (22) passed the run's budget of 21"),
    ],
)
async def test_a_run_over_its_budget_is_ended_with_its_tree(
    client: NodeClient, node: Node, budget: dict[str, Any], said: str
) -> None:
    events = await run(client, "shell-json", spends(last=LAST), policy={"iop": {"budget": budget}})

    assert ending(events[-1]) == ("error", "budget_exhausted")
    assert events[-1].error == said
    assert events[-1].usage is not None and (events[-1].usage.output_tokens or 0) >= 10, "what it has told by then"
    node.assert_no_agents()


async def test_a_run_that_is_cut_short_tells_what_it_has_spent(client: NodeClient, node: Node) -> None:
    async with begun(client, "shell-json", spends(last=LAST)) as (run_id, events):
        while (await anext(events)).delta != "m2":
            pass
        await client.cancel(run_id)
        rest = await follow(events)

    assert rest[-1].type == "cancelled"
    assert rest[-1].usage is not None and (rest[-1].usage.output_tokens or 0) >= 10, "what it has told by then"


@pytest.mark.parametrize("budget", [{"turns": 2, "tokens": 22}, {"cost_usd": 0.1}])
async def test_what_is_within_the_budget_or_known_at_the_end_only_stands(
    client: NodeClient, budget: dict[str, Any]
) -> None:
    events = await run(client, "shell-json", spends(last=RESULT), policy={"iop": {"budget": budget}})

    assert ending(events[-1]) == ("complete", "done")


async def test_a_turn_over_its_budget_ends_the_process_and_not_the_session(new_node: Callable[..., Node]) -> None:
    agent = fake("acp_agent.py", dialect="acp", mode="session", cancel=("interrupt", "term"), verbs=("interrupt",))
    node = new_node(agents={"talker": agent}).start()
    session = {"session_id": "s", "session_mode": "create_if_missing"}
    async with NodeClient(node.address) as client:
        over = await run(client, "talker", "tool", policy={"iop": {"budget": {"turns": 1}}}, **session)
        again = await run(client, "talker", "hello", **session)
        await client.terminate_session("s")

    assert ending(over[-1]) == ("error", "budget_exhausted")
    assert ending(again[-1]) == ("complete", "turn 2: hello")
    node.assert_no_agents()
