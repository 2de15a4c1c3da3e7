"""One profile, ready to run: what the catalog declares joined with what the operator configured."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from providers.cli.environment import SecretSource
from providers.cli.mcp import McpServer
from runtime.types import PermissionRules


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """A catalog profile with its model already substituted in ``args`` and ``resume_args``.

    ``args`` are the arguments of a session's first run, ``resume_args`` of every later one, where ``{{session}}`` stands for
    the native conversation id, and ``fork_args`` of the first run of a fork, where it stands for that of the source;
    ``forks`` says that the CLI can fork, by them or by words. ``native`` says where the binary lies that an npm launcher
    would start.
    With ``slash_is_command`` the CLI takes a prompt that begins with ``/`` for a command of its own. In ``mode`` ``session``
    one process serves a whole session; ``verbs`` are what can be done to a run of it, ``opening`` what a fresh process is
    told, by a dialect that chooses model or mode by words. ``mcp`` is the way in which the CLI takes MCP servers, empty when
    it takes none, and ``mcp_servers`` are those of the node, by name.
    """

    id: str
    provider_id: str = ""
    model_id: str = ""
    command: tuple[str, ...]
    dialect: str
    mode: str = "oneshot"
    verbs: frozenset[str] = frozenset()
    opening: Mapping[str, str] = field(default_factory=dict)
    native: tuple[str, ...] = ()
    slash_is_command: bool = False
    args: tuple[str, ...] = ()
    resume_args: tuple[str, ...] = ()
    fork_args: tuple[str, ...] = ()
    forks: bool = False
    env: Mapping[str, str] = field(default_factory=dict)
    secrets: Mapping[str, SecretSource] = field(default_factory=dict)
    login_files: tuple[str, ...] = ()
    cancel: tuple[str, ...] = ("term",)
    mcp: str = ""
    mcp_servers: Mapping[str, McpServer] = field(default_factory=dict)
    policy_keys: frozenset[str] = frozenset()
    max_concurrency: int = 0
    permissions: PermissionRules = field(default_factory=PermissionRules)
    default_workspace: str = ""
    silence_timeout_s: float | None = None

    def labels(self) -> dict[str, str]:
        """The official ids, as events, results and statuses carry them."""
        return {"provider_id": self.provider_id, "model_id": self.model_id, "profile_id": self.id}
