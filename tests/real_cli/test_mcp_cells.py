"""The vendors' CLIs connect to the MCP servers that a request names, with the secret that only the operator knows."""

from __future__ import annotations

import asyncio
import hashlib
import sys
from pathlib import Path
from typing import Any

import pytest

from node.client import NodeClient
from tests.real_cli.agents import RealAgent, provider_of
from tests.real_cli.session_agents import SESSIONS
from tests.support.nodes import AGENTS as SCRIPTS
from tests.support.nodes import running, wait_until
from tests.support.runs import ending, run

CANARY = "real-mcp-c4n4ry-0123456789"
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


async def connects(profile: str, options: dict[str, Any], folder: Path) -> None:
    """A run of *profile* asks the server for its tools, and nothing that is kept of it holds the secret."""
    command = [sys.executable, "-I", "-S", str(SCRIPTS / "mcp_server.py"), str(folder / "asked")]
    servers = {"tiny": {"command": command, "secrets": {"TINY_TOKEN": {"env": "OF_OPERATOR"}}}}
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
