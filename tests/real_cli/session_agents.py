"""The rows whose process serves a whole session: what a cell has to know of each."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from providers.cli.environment import is_secret_name
from tests.real_cli.agents import (
    ANTHROPIC_UNKNOWN,
    GEMINI_UNKNOWN,
    OPENAI_UNKNOWN,
    Cannot,
    provider_of,
)
from tests.real_cli.install import commands
from tests.support.mockllm.homes import (
    claude_home,
    codex_home,
    copilot_home,
    gemini_home,
    opencode_home,
    qwen_home,
)

PATIENCE_S = 6.0
"""How long a question waits for an answer."""

ASKING_CELLS = ("permission allowed", "permission denied", "permission timed out", "node killed while asked")
"""The cells in which the CLI asks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionAgent:
    """One row. The shell is allowed by rule; what is asked for is a file, which is made outside of the workspace where the
    CLI asks for no other (``asks_outside``). ``steers``: it hears what is said to a turn under way.
    """

    package: str
    profile: str
    home: Callable[[Path, str], dict[str, str]]
    sessions: Sequence[str]
    turn_offset: int = 0
    hanging_command: str = "sleep%20300"
    unknown_model: str = OPENAI_UNKNOWN
    asks_outside: bool = False
    steers: bool = False
    endings: Mapping[str, str] = field(default_factory=dict)
    silent_cells: frozenset[str] = frozenset()
    cannot: Mapping[str, Cannot] = field(default_factory=dict)


_SILENT: dict[str, Any] = {"silent_cells": frozenset({"500"}), "endings": {"500": "silence_timeout"}}
_EMPTIES = Cannot(reason="it empties a session when it loads it", transcript="acp/gemini-loaded-empty")
_NEVER_ASKS = Cannot(reason="what its sandbox forbids is refused unasked", transcript="codex_app_server/forbidden")
_OFF = Cannot(
    reason="its tool that asks is behind a feature under development", transcript="codex_app_server/question-answered"
)
QUESTION = "question answered"
"""The cell in which the CLI has a question for people."""


def _asks_nobody(name: str) -> Mapping[str, Cannot]:
    reason = "over the protocol it has no tool that asks people"
    return {QUESTION: Cannot(reason=reason, transcript=f"acp/{name}-has-no-question")}


SESSIONS: Mapping[str, SessionAgent] = {
    "claude-acp": SessionAgent(
        package="claude-acp",
        profile="claude-acp",
        home=claude_home,
        sessions=[".claude/projects/*/*.jsonl"],
        unknown_model=ANTHROPIC_UNKNOWN,
    ),
    "claude-session": SessionAgent(
        package="claude",
        profile="claude-session",
        home=claude_home,
        sessions=[".claude/projects/*/*.jsonl"],
        unknown_model=ANTHROPIC_UNKNOWN,
        asks_outside=True,
    ),
    "codex-session": SessionAgent(
        package="codex",
        profile="codex-session",
        home=codex_home,
        sessions=[".codex/sessions/**/*.jsonl"],
        steers=True,
        cannot={**dict.fromkeys(ASKING_CELLS, _NEVER_ASKS), QUESTION: _OFF},
    ),
    "copilot-acp": SessionAgent(
        package="copilot",
        profile="copilot-acp",
        home=copilot_home,
        sessions=[".copilot/session-state/*"],
        cannot=_asks_nobody("copilot"),
    ),
    "gemini-acp": SessionAgent(
        package="gemini",
        profile="gemini-acp",
        home=gemini_home,
        sessions=[".gemini/tmp/*/chats/*"],
        unknown_model=GEMINI_UNKNOWN,
        cannot={"resume after eviction": _EMPTIES, **_asks_nobody("gemini")},
        **_SILENT,
    ),
    "opencode-acp": SessionAgent(
        package="opencode",
        profile="opencode-acp",
        home=opencode_home,
        sessions=[".local/share/opencode/*"],
        unknown_model=ANTHROPIC_UNKNOWN,
        asks_outside=True,
        cannot=_asks_nobody("opencode"),
        **_SILENT,
    ),
    "qwen-acp": SessionAgent(
        package="qwen",
        profile="qwen-acp",
        home=qwen_home,
        sessions=[".qwen/projects/*/chats/*"],
        turn_offset=1,
        hanging_command="tail%20-f%20/dev/null",
        cannot=_asks_nobody("qwen"),
        **_SILENT,
    ),
}


def rows_of(clis: Sequence[str]) -> list[str]:
    """The rows that the installed *clis* make possible."""
    return [name for name, row in SESSIONS.items() if row.package in clis]


def session_settings(rows: Sequence[str], folder: Path, url: str) -> dict[str, Any]:
    """A node that serves *rows* against the model at *url*: options of ``tests.support.nodes.Node``."""
    profiles: dict[str, Any] = {}
    exported: dict[str, str] = {}
    for name in rows:
        row = SESSIONS[name]
        home = row.home(folder / name, url)
        declared = provider_of(row.profile).env
        secrets = {key: f"REAL_{name.upper().replace('-', '_')}_{key}" for key in home if is_secret_name(key)}
        exported |= {variable: home[key] for key, variable in secrets.items()}
        profiles[row.profile] = {
            "env": {key: value for key, value in home.items() if key not in declared and key not in secrets},
            "secrets": {key: {"env": variable} for key, variable in secrets.items()},
            "permissions": {"allow": ["execute", "Bash", "run_shell_command"], "patience_s": PATIENCE_S},
        }
    path = ":".join([*(str(commands(SESSIONS[name].package)) for name in rows), os.environ["PATH"]])
    return {
        "profiles": profiles,
        "times": {"foreground_grace_s": 30, "cancel_grace_s": 4.0},
        "limits": {"max_warm_processes": 1},  # so a turn of another session evicts the one before
        "env": {**exported, "PATH": path},
    }
