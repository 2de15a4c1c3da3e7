"""How each agent is told of MCP servers, and where their secrets are not."""

from __future__ import annotations

import json
import stat
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from providers.cli.acp_opening import AcpOpening
from providers.cli.dialect import Line
from providers.cli.environment import SecretSource, SecretUnavailable
from providers.cli.mcp import (
    KnownServer,
    McpServer,
    NameTaken,
    acp_servers,
    choose,
    claude_arguments,
    codex_arguments,
    codex_environment,
    readable_secrets,
)
from providers.cli.run_files import discard_secrets
from runtime.failure import FailureCode, InvalidRequest

CANARY = "c4nary-value"
INHERITED = {"SOURCE": CANARY}
DECLARED = {
    "files": McpServer(
        name="files",
        command=("run-it", "a b", 'q"\\'),
        env={"MODE": "ü\t"},
        secrets={"TOKEN": SecretSource(env="SOURCE")},
    ),
    "web-1": McpServer(name="web-1", url="https://host/mcp", secrets={"Authorization": SecretSource(env="SOURCE")}),
    "broken": McpServer(name="broken", command=("x",), secrets={"TOKEN": SecretSource(env="NOWHERE")}),
}


def known(*names: str) -> tuple[KnownServer, ...]:
    return choose(DECLARED, names or ("files", "web-1"), INHERITED)


def test_only_what_is_declared_can_be_chosen() -> None:
    with pytest.raises(InvalidRequest, match=r"'other' is declared in node\.yaml no more"):
        choose(DECLARED, ["files", "other"], INHERITED)
    with pytest.raises(SecretUnavailable, match="variable NOWHERE"):
        choose(DECLARED, ["broken"], INHERITED)


def test_a_chosen_server_does_not_show_its_secrets() -> None:
    servers = known()

    assert CANARY not in repr(servers) + repr([server.public() for server in servers])
    assert readable_secrets(DECLARED.values(), INHERITED) == [CANARY, CANARY]


def test_claude_is_told_by_a_file_of_its_own(tmp_path: Path) -> None:
    arguments = claude_arguments(tmp_path, known())

    assert arguments == ("--mcp-config", str(tmp_path / "mcp.json"), "--strict-mcp-config")
    assert stat.S_IMODE((tmp_path / "mcp.json").stat().st_mode) == 0o600
    env = {"MODE": "ü\t", "TOKEN": CANARY}
    assert json.loads((tmp_path / "mcp.json").read_bytes()) == {
        "mcpServers": {
            "files": {"type": "stdio", "command": "run-it", "args": ["a b", 'q"\\'], "env": env},
            "web-1": {"type": "http", "url": "https://host/mcp", "headers": {"Authorization": CANARY}},
        }
    }
    claude_arguments(tmp_path, known("files"))  # an attempt that never began left one
    discard_secrets(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_codex_is_told_by_settings_that_name_its_secrets() -> None:
    arguments = codex_arguments(known())

    assert arguments[::2] == ("-c",) * 6
    assert CANARY not in " ".join(arguments)
    assert tomllib.loads("\n".join(arguments[1::2]))["mcp_servers"] == {
        "files": {"command": "run-it", "args": ["a b", 'q"\\'], "env": {"MODE": "ü\t"}, "env_vars": ["TOKEN"]},
        "web-1": {"url": "https://host/mcp", "env_http_headers": {"Authorization": "IOP_MCP_WEB_1_0"}},
    }
    told = codex_environment(known(), {"HOME": "/h", "TOKEN": CANARY})
    assert told == {"HOME": "/h", "TOKEN": CANARY, "IOP_MCP_WEB_1_0": CANARY}


def test_a_secret_does_not_take_the_place_of_another() -> None:
    with pytest.raises(NameTaken, match="variable TOKEN of MCP server 'files' has another value already") as refusal:
        codex_environment(known(), {"TOKEN": "of the profile"})
    assert CANARY not in str(refusal.value)


def test_an_agent_of_the_protocol_is_told_at_the_opening() -> None:
    assert acp_servers(known()) == [
        {
            "name": "files", "command": "run-it", "args": ["a b", 'q"\\'],
            "env": [{"name": "MODE", "value": "ü\t"}, {"name": "TOKEN", "value": CANARY}],
        },
        {
            "type": "http", "name": "web-1", "url": "https://host/mcp",
            "headers": [{"name": "Authorization", "value": CANARY}],
        },
    ]  # fmt: skip


def opened(offers: Mapping[str, Any], resumed_id: str | None = None) -> tuple[AcpOpening, dict[str, Any]]:
    """An opening after its first answer, and what it says to that."""
    opening = AcpOpening(cwd="/w", resumed_id=resumed_id, settings={}, mcp_servers=acp_servers(known()))
    hello = {"jsonrpc": "2.0", "id": 1, "result": {"protocolVersion": 1, "agentCapabilities": offers}}
    said = opening.hear(Line(data=json.dumps(hello).encode(), end=1))
    return opening, json.loads(said) if said else {}


@pytest.mark.parametrize("resumed_id", [None, "old"])
def test_a_new_session_and_an_old_one_have_the_servers(resumed_id: str | None) -> None:
    _, said = opened({"mcpCapabilities": {"http": True}, "loadSession": True}, resumed_id)

    assert said["method"] == ("session/new" if resumed_id is None else "session/load")
    assert said["params"]["mcpServers"] == acp_servers(known())


def test_an_agent_that_takes_no_addresses_says_so() -> None:
    opening, said = opened({})

    assert said == {}
    assert opening.failure is not None and opening.failure.code is FailureCode.UNSUPPORTED
