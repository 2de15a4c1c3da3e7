"""The vendors' CLIs connect to the MCP servers that a request names, with the secret that only the operator knows."""

from __future__ import annotations

import asyncio
import hashlib
import json
import sys
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest

from node.client import NodeClient, new_run_id
from runtime.events import PermissionRequest, RequestKind, RuntimeEvent, ToolResult
from runtime.types import RunRequest
from tests.real_cli.agents import RealAgent, provider_of
from tests.real_cli.session_agents import SESSIONS
from tests.support.nodes import AGENTS as SCRIPTS
from tests.support.nodes import running, wait_until
from tests.support.runs import ending, run

CANARY = "real-mcp-c4n4ry-0123456789"
ASKING_ROWS = ("claude-acp", "claude-session")
DIGEST = hashlib.sha256(CANARY.encode()).hexdigest()


@pytest.mark.cell("MCP servers")
async def test_the_agent_connects_to_the_servers_that_were_named(
    agent: RealAgent, node_options: dict[str, Any], tmp_path: Path
) -> None:
    if provider_of(agent.profile).mcp in (None, "acp"):
        pytest.skip("a run of one process is given no MCP servers")
    await connects(agent.profile, node_options, tmp_path)


@pytest.mark.cell("MCP servers")
async def test_a_process_of_a_session_connects_to_them(
    session_row: str, session_options: dict[str, Any], tmp_path: Path
) -> None:
    profile = SESSIONS[session_row].profile
    if provider_of(profile).mcp is None:
        pytest.skip("it starts none of the servers that it is told of")
    await connects(profile, session_options, tmp_path)


@pytest.mark.cell("MCP server asks")
@pytest.mark.req("RT-13")
async def test_what_a_server_asks_is_answered_by_whoever_runs_the_agent(
    session_row: str, session_options: dict[str, Any], tmp_path: Path
) -> None:
    if session_row not in ASKING_ROWS:
        pytest.skip("its mode declines for its user, or nobody has recorded that it asks")
    (workspace := tmp_path / "workspace").mkdir()
    options = {**session_options, "mcp_servers": {"tiny": {"command": server(tmp_path)}}}
    request = RunRequest(
        run_id=new_run_id(), target=SESSIONS[session_row].profile, input="[[mock tool=mcp__tiny__ask args={}]] hello",
        workspace=str(workspace), policy={"iop": {"mcp_servers": ["tiny"]}},
    )  # fmt: skip
    with running(tmp_path / "node", **options) as node:
        async with NodeClient(node.address) as client, aclosing(client.run(request, include_activity=True)) as events:
            told = [event async for event in events if not await answer(client, event)]

    (result,) = [event.activity for event in told if isinstance(event.activity, ToolResult)]
    assert json.loads(result.output) == {"action": "accept", "content": {"colour": "blue"}}
    assert ending(told[-1])[0] == "complete"


async def answer(client: NodeClient, event: RuntimeEvent) -> bool:
    """Allow what *event* asks, if it asks anything; a question is answered with a colour."""
    asked = event.activity
    if not isinstance(asked, PermissionRequest):
        return False
    content = {"colour": "blue"} if asked.kind == RequestKind.QUESTION else None
    await client.respond(event.run_id, asked.request_id, allow=True, answer=content)
    return True


def server(folder: Path) -> list[str]:
    """The command of a server that leaves a file in *folder*."""
    return [sys.executable, "-I", "-S", str(SCRIPTS / "mcp_server.py"), str(folder / "asked")]


async def connects(profile: str, options: dict[str, Any], folder: Path) -> None:
    """A run of *profile* asks the server for its tools, and nothing that is kept of it holds the secret."""
    servers = {"tiny": {"command": server(folder), "secrets": {"TINY_TOKEN": {"env": "OF_OPERATOR"}}}}
    options = {**options, "mcp_servers": servers, "env": {**options["env"], "OF_OPERATOR": CANARY}}
    (workspace := folder / "workspace").mkdir()
    with running(folder / "node", **options) as node:
        async with NodeClient(node.address) as client:
            asked: dict[str, Any] = {"workspace": str(workspace), "policy": {"iop": {"mcp_servers": ["tiny"]}}}
            events = await run(client, profile, "[[mock:plain]] hello", **asked)
            raw = b"".join([piece async for piece in client.artifact(events[0].run_id, "raw")])
        await asyncio.to_thread(
            wait_until, lambda: not list(node.data_dir.rglob("mcp.json"))
        )  # it goes with its process
        kept = [path for path in node.data_dir.rglob("*") if path.is_file() and CANARY.encode() in path.read_bytes()]
        assert kept == [] and CANARY not in node.logged()

    assert ending(events[-1])[0] == "complete", events[-1]
    assert (folder / "asked").read_text() == DIGEST
    if b'"mcp_servers"' in raw:
        assert b'"mcp_servers":[{"name":"tiny","status":"connected"' in raw
