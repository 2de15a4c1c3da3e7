"""What an agent asks while no turn is under way is refused before its next turn, and a confused one gets no other."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from node.client import NodeClient
from runtime.events import RuntimeEvent
from tests.support.nodes import Agent, Node, fake, wait_until
from tests.support.runs import BOUND_S, ending, follow, run

NewNode = Callable[..., Node]

PROJECT = Path(__file__).parents[2]
CRASHING = (sys.executable, str(PROJECT / "tests/support/crashing_node.py"))
DIALECTS = {"claude": "claude_session", "codex": "codex_app_server", "acp": "acp"}
REFUSED = {"claude": "deny", "codex": "decline", "acp": "no"}


def agent(language: str, *more: str) -> Agent:
    resume = {"resume_args": ["claude", "--resume", "{{session}}"]} if language == "claude" else {}
    return fake("asks_between.py", dialect=DIALECTS[language], mode="session", args=[language, *more], **resume)


AGENTS = {language: agent(language) for language in DIALECTS}


async def say(client: NodeClient, target: str, prompt: str, workspace: Path, **more: Any) -> list[RuntimeEvent]:
    session = {"session_id": f"s-{target}", "session_mode": "create_if_missing", "workspace": str(workspace)}
    return await run(client, target, prompt, **session, **more)


def let_go(workspace: Path) -> None:
    """The agent does what it does between two turns; it has when this returns."""
    (workspace / "go").touch()
    wait_until((workspace / "asked").exists)


@pytest.fixture
def node(new_node: NewNode) -> Node:
    return new_node(agents=AGENTS, times={"silence_timeout_s": 30.0}).start()


@pytest.mark.parametrize("language", DIALECTS)
@pytest.mark.parametrize("kind", ["leave", "other", "split"])
async def test_what_is_asked_between_two_turns_is_refused_before_the_second(
    node: Node, tmp_path: Path, language: str, kind: str
) -> None:
    async with NodeClient(node.address) as client, asyncio.timeout(BOUND_S):
        await say(client, language, kind, tmp_path)
        processes = node.agent_processes()
        let_go(tmp_path)
        second = await say(client, language, "and?", tmp_path)

    refused = "refused" if kind == "other" else REFUSED[language]
    assert ending(second[-1]) == ("complete", refused)
    assert (tmp_path / "answers").read_text() == f"{refused}\n"
    assert node.agent_processes() == processes, "the process goes on"


@pytest.mark.parametrize("language", ["codex", "acp"])
async def test_what_is_asked_between_the_opening_and_the_first_turn_is_refused(
    new_node: NewNode, tmp_path: Path, language: str
) -> None:
    node = new_node(agents={language: agent(language, "early")}, times={"silence_timeout_s": 30.0}).start()

    async with NodeClient(node.address) as client, asyncio.timeout(BOUND_S):
        first = await say(client, language, "and?", tmp_path)

    assert ending(first[-1]) == ("complete", REFUSED[language])


@pytest.mark.parametrize("language", DIALECTS)
async def test_a_question_that_its_turn_did_not_wait_for_is_refused_at_its_end(
    node: Node, tmp_path: Path, language: str
) -> None:
    async with NodeClient(node.address) as client, asyncio.timeout(BOUND_S):
        await say(client, language, "within", tmp_path)
        second = await say(client, language, "and?", tmp_path)

    assert ending(second[-1]) == ("complete", REFUSED[language])


@pytest.mark.parametrize(
    ("language", "kind"), [("acp", "wrong"), *((language, "much") for language in DIALECTS)]
)  # fmt: skip
async def test_a_process_that_cannot_be_understood_between_two_turns_gets_no_other(
    node: Node, tmp_path: Path, language: str, kind: str
) -> None:
    async with NodeClient(node.address) as client, asyncio.timeout(BOUND_S):
        await say(client, language, kind, tmp_path)
        before = node.agent_processes()
        let_go(tmp_path)
        second = await say(client, language, "and?", tmp_path)

    assert ending(second[-1]) == ("complete", "nothing")
    assert not set(before) & set(node.agent_processes())


@pytest.mark.parametrize("is_sent", [False, True], ids=["before it was sent", "after it was sent"])
async def test_the_refusal_outlives_the_node(new_node: NewNode, tmp_path: Path, is_sent: bool) -> None:
    """The next node cannot know what was sent, so it sends both again, and the agent gets both once."""
    prefix = () if is_sent else (*CRASHING, "between_part_and_turn")
    node = new_node(agents=AGENTS, prefix=prefix).start()
    async with NodeClient(node.address) as client, asyncio.timeout(BOUND_S):
        await say(client, "claude", "leave", tmp_path)
        let_go(tmp_path)
        (node.root / "armed").touch()
        turn = asyncio.create_task(say(client, "claude", "slow", tmp_path, run_id="second", background=True))
        await asyncio.to_thread(wait_until, (tmp_path / "answers" if is_sent else node.root / "crashed").exists)
        node.kill()
        turn.cancel()

    node.start()

    async with NodeClient(node.address) as client, asyncio.timeout(BOUND_S):
        (tmp_path / "go").touch()
        assert ending((await follow(client.attach("second")))[-1]) == ("complete", "deny")
        third = await say(client, "claude", "and?", tmp_path)

    assert ending(third[-1]) == ("complete", "deny"), "nothing else came in between"
    assert (tmp_path / "answers").read_text() == "deny\n"
