"""MCP servers in ``node.yaml``: what can be declared, and what is refused with its place and without its value."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from node.config import ConfigError, load_config
from providers.cli.environment import SecretSource
from providers.cli.mcp import McpServer


def load(tmp_path: Path, servers: Any) -> Any:
    path = tmp_path / "node.yaml"
    path.write_text(yaml.safe_dump({"mcp_servers": servers}))
    return load_config(path).mcp_servers


def test_servers_are_commands_or_addresses(tmp_path: Path) -> None:
    secrets = {"TOKEN": {"env": "SOURCE"}}
    told = {
        "files": {"command": ["serve", "/srv"], "env": {"MODE": "ro"}, "secrets": secrets},
        "web": {"url": "https://host/mcp", "secrets": {"Authorization": {"file": "/token"}}},
        "near": {"url": "http://127.0.0.1:8080/mcp"},
    }

    assert load(tmp_path, told) == {
        "files": McpServer(
            name="files", command=("serve", "/srv"), env={"MODE": "ro"}, secrets={"TOKEN": SecretSource(env="SOURCE")}
        ),
        "web": McpServer(name="web", url="https://host/mcp", secrets={"Authorization": SecretSource(file="/token")}),
        "near": McpServer(name="near", url="http://127.0.0.1:8080/mcp"),
    }


@pytest.mark.parametrize(
    ("server", "said"),
    [
        ({}, "give exactly one of command and url"),
        ({"command": ["x"], "url": "https://h"}, "give exactly one of command and url"),
        ({"command": []}, "command"),
        ({"command": [""]}, "command"),
        ({"command": "x y"}, "command"),
        ({"command": ["x"], "cwd": "/"}, "cwd"),
        ({"command": ["x"], "env": {"API_TOKEN": "tell-nobody"}}, "env.API_TOKEN looks like a secret"),
        ({"command": ["x"], "secrets": {"T": {"env": "A", "file": "B"}}}, "exactly one of env and file"),
        ({"command": ["x"], "secrets": {"T": "tell-nobody"}}, "secrets.T"),
        ({"url": "https://h", "env": {"A": "b"}}, "an url has no env"),
        ({"url": "http://far.example/mcp"}, "must begin with https://"),
        ({"url": "ftp://h"}, "must begin with https://"),
        ({"url": "https://user:tell-nobody@h"}, "url holds a login"),
    ],
    ids=str,
)
def test_a_mistake_is_named_and_no_value_shown(tmp_path: Path, server: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said) as refusal:
        load(tmp_path, {"one": server})

    assert "mcp_servers.one" in str(refusal.value) and "tell-nobody" not in str(refusal.value)


@pytest.mark.parametrize("name", ["", "a.b", "a b", "x" * 65, "ü"])
def test_a_name_is_one_word(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match="mcp_servers"):
        load(tmp_path, {name: {"command": ["x"]}})
