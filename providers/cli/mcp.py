"""MCP servers: those that an operator declared, and the three ways in which agents are told of the chosen ones.

A secret of a server goes to the agent by a file that only the node's user can read, by the agent's environment or by its
stdin: never by an argument, which every user of the machine can see, and never into what is kept of a run.

``claude_config``: a JSON file, named by argument; it is removed when the run has ended. ``codex_overrides``: settings as
arguments, where a secret is named that stands in the environment. ``acp``: words, when the session is opened.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from providers.cli.environment import SecretSource, SecretUnavailable, resolve_secrets
from providers.cli.json_fields import JsonObject
from providers.cli.run_files import write_mcp_config
from runtime.failure import FailureCode, FailureError, InvalidRequest


class NameTaken(FailureError):
    """Two secrets want the same variable of the agent's environment; it was not started."""

    code = FailureCode.PROCESS_FAILED


@dataclass(frozen=True, slots=True, kw_only=True)
class McpServer:
    """One server as declared: a *command* to be started by the agent, or an *url*.

    ``secrets`` are variables of the command by name, or headers of the requests to the url.
    """

    name: str
    command: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    url: str = ""
    secrets: Mapping[str, SecretSource] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownServer:
    """A server with the values of its secrets, which are kept in memory only."""

    name: str
    command: tuple[str, ...]
    env: Mapping[str, str]
    url: str
    secrets: Mapping[str, str] = field(repr=False)

    def public(self) -> list[object]:
        """All of it but the values of the secrets."""
        return [self.name, self.command, sorted(self.env.items()), self.url, sorted(self.secrets)]


def choose(
    declared: Mapping[str, McpServer], names: Sequence[str], inherited: Mapping[str, str]
) -> tuple[KnownServer, ...]:
    """The servers called *names*, their secrets read.

    Raises:
        InvalidRequest: one is declared no more; it was when the run was accepted.
        SecretUnavailable: a source cannot be read.
    """
    if gone := [name for name in names if name not in declared]:
        raise InvalidRequest(f"MCP server {gone[0]!r} is declared in node.yaml no more", field="policy.iop.mcp_servers")
    return tuple(_known(declared[name], inherited) for name in names)


def _known(server: McpServer, inherited: Mapping[str, str]) -> KnownServer:
    return KnownServer(
        name=server.name, command=server.command, env=server.env, url=server.url,
        secrets=resolve_secrets(server.secrets, inherited),
    )  # fmt: skip


def secret_values(servers: Sequence[KnownServer]) -> list[str]:
    """The secrets of *servers*, in their order."""
    return [value for server in servers for value in server.secrets.values()]


def readable_secrets(servers: Iterable[McpServer], inherited: Mapping[str, str]) -> list[str]:
    """Every secret of *servers* that can be read now; for those who must not show any."""
    found: list[str] = []
    for server in servers:
        with suppress(SecretUnavailable):
            found += resolve_secrets(server.secrets, inherited).values()
    return found


# -- claude: a file


def claude_arguments(directory: Path, servers: Sequence[KnownServer]) -> tuple[str, ...]:
    """Leave a file in *directory*; the arguments that name it, and allow no server beside those in it."""
    content = msgspec.json.encode({"mcpServers": {server.name: _claude(server) for server in servers}})
    return ("--mcp-config", str(write_mcp_config(directory, content)), "--strict-mcp-config")


def _claude(server: KnownServer) -> JsonObject:
    if server.url:
        return {"type": "http", "url": server.url, "headers": dict(server.secrets)}
    env = {**server.env, **server.secrets}
    return {"type": "stdio", "command": server.command[0], "args": list(server.command[1:]), "env": env}


# -- codex: arguments and environment


def codex_arguments(servers: Sequence[KnownServer]) -> tuple[str, ...]:
    """The overrides of its configuration, in TOML; of a secret they have the variable's name."""
    settings = [setting for server in servers for setting in _codex(server)]
    return tuple(argument for setting in settings for argument in ("-c", setting))


def _codex(server: KnownServer) -> list[str]:
    place = f"mcp_servers.{server.name}"
    if server.url:
        names = {header: _header_variable(server, number) for number, header in enumerate(server.secrets)}
        return [f"{place}.url={_toml(server.url)}", f"{place}.env_http_headers={_table(names)}"]
    arguments, variables = (f"[{', '.join(map(_toml, each))}]" for each in (server.command[1:], server.secrets))
    return [
        f"{place}.command={_toml(server.command[0])}", f"{place}.args={arguments}",
        f"{place}.env={_table(server.env)}", f"{place}.env_vars={variables}",
    ]  # fmt: skip


def codex_environment(servers: Sequence[KnownServer], environment: Mapping[str, str]) -> dict[str, str]:
    """*environment* with the secrets of *servers*.

    Raises:
        NameTaken: two of them want one name for different values; one would get the other's.
    """
    told = dict(environment)
    for server in servers:
        for number, (name, value) in enumerate(server.secrets.items()):
            variable = _header_variable(server, number) if server.url else name
            if told.setdefault(variable, value) != value:
                raise NameTaken(
                    f"variable {variable} of MCP server {server.name!r} has another value already; Codex passes secrets by "
                    "its own environment, so give it another name"
                )
    return told


def _header_variable(server: KnownServer, number: int) -> str:
    return f"IOP_MCP_{server.name.replace('-', '_').upper()}_{number}"


def _table(values: Mapping[str, str]) -> str:
    return "{" + ", ".join(f"{_toml(key)} = {_toml(value)}" for key, value in values.items()) + "}"


def _toml(text: str) -> str:
    """A basic string: those of JSON are some, with the characters beyond ASCII written out."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


# -- acp: the opening of a session


def acp_servers(servers: Sequence[KnownServer]) -> list[JsonObject]:
    """The ``mcpServers`` of ``session/new``."""
    return [_acp(server) for server in servers]


def _acp(server: KnownServer) -> JsonObject:
    if server.url:
        return {"type": "http", "name": server.name, "url": server.url, "headers": _pairs(server.secrets)}
    env = _pairs({**server.env, **server.secrets})
    return {"name": server.name, "command": server.command[0], "args": list(server.command[1:]), "env": env}


def _pairs(values: Mapping[str, str]) -> list[JsonObject]:
    return [{"name": name, "value": value} for name, value in values.items()]
