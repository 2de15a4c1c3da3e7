"""MCP servers: a request names some that the operator declared, the agent is told of them, and nobody of their secrets."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from node.client import NodeClient, NodeError
from tests.support.nodes import DEMO, Agent, Node, fake, files_holding, wait_until
from tests.support.runs import begun, ending, follow, run

CANARY = "mcp-c4n4ry-0123456789"
DIGEST = hashlib.sha256(CANARY.encode()).hexdigest()[:12]
SESSION = {"mode": "session", "cancel": ("interrupt", "term"), "verbs": ("interrupt",)}
AGENTS = {
    "by-file": fake("mcp_agent.py", mcp="claude_config", args=["--last"]),
    "by-settings": fake("mcp_agent.py", mcp="codex_overrides", args=["--last"]),
    "by-words": fake("acp_agent.py", dialect="acp", mcp="acp", **SESSION),
    "not-started": Agent(command=["iop-test-no-such-binary"], mcp="claude_config"),
    "demo-agent": Agent(command=DEMO, args=["--model", "{{model}}"], resume_args=["--resume", "{{session}}"]),
}
SERVERS: dict[str, Any] = {
    "files": {
        "command": ["/bin/serve", "a b"],
        "env": {"MODE": "ro"},
        "secrets": {"FILES_TOKEN": {"env": "OF_OPERATOR"}},
    },
    "web": {"url": "https://host.example/mcp", "secrets": {"Authorization": {"env": "OF_OPERATOR"}}},
    "broken": {"command": ["x"], "secrets": {"TOKEN": {"env": "NOT_SET_ANYWHERE"}}},
}


@pytest.fixture
def mcp_node(new_node: Callable[..., Node]) -> Iterator[Node]:
    node = new_node(agents=AGENTS, mcp_servers=SERVERS, env={"OF_OPERATOR": CANARY}).start()
    yield node
    node.assert_no_agents()


def asking(*names: str) -> dict[str, Any]:
    return {"policy": {"iop": {"mcp_servers": list(names)}}}


async def told(node: Node, target: str, *names: str) -> dict[str, Any]:
    """What an agent was told, and with it the proof that nothing that is kept holds a secret."""
    async with NodeClient(node.address) as client:
        events = await run(client, target, "0", **asking(*names))
        details = await client.get(events[0].run_id)
    assert events[-1].type == "complete", events[-1]
    assert CANARY not in repr([events, details])
    assert_kept_nowhere(node)
    found: dict[str, Any] = json.loads(events[-1].message)
    assert CANARY not in "\0".join(found["cmdline"])
    return found


def assert_kept_nowhere(node: Node) -> None:
    wait_until(lambda: not list(node.data_dir.glob("runs/*/mcp.json")))  # what is left of a run goes after its terminal
    assert files_holding(node.data_dir, CANARY) == []
    assert CANARY not in node.logged()


async def test_an_agent_that_reads_a_file_has_it_while_it_runs(mcp_node: Node) -> None:
    found = await told(mcp_node, "by-file", "files", "web")

    file = found["file"]
    assert found["argv"] == ["--mcp-config", file["path"], "--strict-mcp-config", "--last"]
    assert (file["mode"], file["strict"], list(file["told"]["mcpServers"])) == ("0o600", True, ["files", "web"])
    assert file["told"]["mcpServers"]["files"]["env"]["FILES_TOKEN"] == DIGEST
    assert file["told"]["mcpServers"]["web"]["headers"] == {"Authorization": DIGEST}
    assert found["env"] == {}


async def test_an_agent_that_takes_settings_has_the_secrets_in_its_environment(mcp_node: Node) -> None:
    found = await told(mcp_node, "by-settings", "files", "web")

    assert 'mcp_servers.files.env_vars=["FILES_TOKEN"]' in found["argv"]
    assert found["argv"][-1] == "--last"
    assert found["env"] == {"FILES_TOKEN": DIGEST, "IOP_MCP_WEB_0": DIGEST}


async def test_without_a_name_an_agent_is_told_of_none(mcp_node: Node) -> None:
    assert (await told(mcp_node, "by-file"))["argv"] == ["--last"]


async def test_an_agent_of_the_protocol_is_told_at_its_opening(mcp_node: Node) -> None:
    session = {"session_id": "s", "session_mode": "create_if_missing"}
    async with NodeClient(mcp_node.address) as client:
        first = await run(client, "by-words", "mcp", **asking("files"), **session)
        again = await run(client, "by-words", "hello", **asking("files"), **session)
        other = await run(client, "by-words", "hello", **session)
        await client.terminate_session("s")

    assert json.loads(first[-1].message) == {
        "name": "files", "command": "/bin/serve", "args": ["a b"], "env": {"MODE": hashed("ro"), "FILES_TOKEN": DIGEST},
    }  # fmt: skip
    assert [ending(events[-1])[1] for events in (again, other)] == ["turn 2: hello", "turn 3: hello"]
    of_first, of_again, of_other = processes(mcp_node)
    assert of_first == of_again != of_other, "with other servers it is another process"
    assert_kept_nowhere(mcp_node)


def hashed(value: str) -> str:
    return hashlib.sha256(value.encode()).hexdigest()[:12]


def processes(node: Node) -> list[str]:
    """The names of the processes that took the turns, in the order of the runs."""
    return [json.loads((path / "slice.json").read_bytes())["process"] for path in node.run_directories()]


@pytest.mark.parametrize(
    ("target", "names", "code", "said"),
    [
        (
            "by-file",
            ["files", "other"],
            "invalid_request",
            "names 'other', which node.yaml does not declare; declared: broken",
        ),
        ("demo-agent", ["files"], "unsupported", "target 'demo-agent' cannot be given MCP servers"),
        ("by-file", "files", "invalid_request", "policy.iop.mcp_servers is 'files'; give a list"),
        ("by-file", ["files", "files"], "invalid_request", "give a list of different names"),
        ("by-file", [{"command": ["x"]}], "invalid_request", "give a list of different names"),
    ],
)
async def test_a_request_names_servers_and_makes_none(
    mcp_node: Node, target: str, names: Any, code: str, said: str
) -> None:
    async with NodeClient(mcp_node.address) as client:
        with pytest.raises(NodeError, match=said) as refusal:
            await run(client, target, "0", policy={"iop": {"mcp_servers": names}})

    assert refusal.value.failure is not None and refusal.value.failure.code == code
    assert mcp_node.run_directories() == []


@pytest.mark.parametrize(("target", "names"), [("by-file", ["files", "broken"]), ("not-started", ["files"])])
async def test_an_agent_that_does_not_start_leaves_no_secret(mcp_node: Node, target: str, names: list[str]) -> None:
    async with NodeClient(mcp_node.address) as client:
        events = await run(client, target, "0", **asking(*names))

    assert ending(events[-1]) == ("error", "process_failed")
    assert_kept_nowhere(mcp_node)


async def test_a_run_that_outlives_its_node_has_its_servers_and_leaves_none(mcp_node: Node) -> None:
    async with NodeClient(mcp_node.address) as client, begun(client, "by-file", "2", background=True, **asking("files")) as (
        run_id, _,
    ):  # fmt: skip
        mcp_node.kill()
    mcp_node.start()
    async with NodeClient(mcp_node.address) as client:
        events = await follow(client.attach(run_id))

    assert json.loads(events[-1].message)["file"]["told"]["mcpServers"]["files"]["env"]["FILES_TOKEN"] == DIGEST
    assert_kept_nowhere(mcp_node)
