"""The vendors' CLIs as the matrix sees them: one row each, everything a cell has to know of a CLI's nature.

A row names the profiles of the catalog, the home that points the CLI at the scripted model, and what the CLI does
otherwise than the first of its kind. What a CLI cannot do at all stands in ``cannot``, with the recorded transcript that
shows it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from providers.catalog.loader import load_catalog, load_shipped
from providers.catalog.schema import CatalogFile, ProviderStanza
from providers.cli.environment import is_secret_name
from tests.real_cli.install import PACKAGES, commands
from tests.support.mockllm.homes import (
    claude_home,
    codex_home,
    copilot_home,
    gemini_home,
    opencode_home,
    pi_home,
    qwen_home,
)

CATALOG = os.environ.get("IOP_REAL_CLI_CATALOG", "")
"""Another catalog than the shipped one, for a stanza that is being written."""

SILENCE_S = 20.0
"""The silence time-out of the cells in which a CLI tries again without a word."""

ANTHROPIC_UNKNOWN = "[[mock:e404 etype=not_found_error message=model:%20nonesuch]] hello"
OPENAI_UNKNOWN = "[[mock:e404 message=The%20model%20nonesuch%20does%20not%20exist]] hello"
GEMINI_UNKNOWN = "[[mock:e404 etype=NOT_FOUND message=models/nonesuch%20is%20not%20found]] hello"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cannot:
    """Why a cell does not exist for a CLI, and the transcript (``<dialect>/<case>``) in which it is seen."""

    reason: str
    transcript: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RealAgent:
    """One row.

    ``tools_profile`` runs tools unasked. ``sessions`` are globs below HOME of what the CLI remembers its conversations in.
    ``turn_offset`` is how many user messages of its own the CLI puts before the first. ``endings`` are the failure codes
    that differ from the usual ones, by cell. ``silent_cells`` are those in which our silence time-out has to end the run.
    """

    profile: str
    home: Callable[[Path, str], dict[str, str]]
    sessions: Sequence[str]
    tools_profile: str = ""
    streams: bool = True
    tells_usage: bool = True
    turn_offset: int = 0
    hanging_command: str = "sleep%20300"
    unknown_model: str = OPENAI_UNKNOWN
    secrets_from: str = "env"
    endings: Mapping[str, str] = field(default_factory=dict)
    silent_cells: frozenset[str] = frozenset()
    requests_at_500: int = 0
    """How many requests the vendor's bounded retries make at most; 0 where nothing bounds them."""
    reaches: str = ""
    """A pattern of the attempts to reach others that no setting of the CLI stops."""
    cannot: Mapping[str, Cannot] = field(default_factory=dict)

    @property
    def profiles(self) -> tuple[str, ...]:
        return (self.profile, self.tools_profile) if self.tools_profile else (self.profile,)


AGENTS: Mapping[str, RealAgent] = {
    "claude": RealAgent(
        profile="claude-code",
        tools_profile="claude-code-bypass",
        home=claude_home,
        sessions=[".claude/projects/*/*.jsonl"],
        unknown_model=ANTHROPIC_UNKNOWN,
        requests_at_500=3,
    ),
    "codex": RealAgent(
        profile="codex",
        home=codex_home,
        sessions=[".codex/sessions/**/*.jsonl"],
        streams=False,
        secrets_from="file",
        requests_at_500=9,
    ),
    "gemini": RealAgent(
        profile="gemini",
        tools_profile="gemini-bypass",
        home=gemini_home,
        sessions=[".gemini/tmp/*/chats/*"],
        unknown_model=GEMINI_UNKNOWN,
        silent_cells=frozenset({"429", "500"}),
        endings={"429": "silence_timeout", "500": "silence_timeout"},
        cannot={"thinking": Cannot(reason="its stream tells no thinking", transcript="gemini_stream_json/think")},
    ),
    "opencode": RealAgent(
        profile="opencode",
        tools_profile="opencode-bypass",
        home=opencode_home,
        unknown_model=ANTHROPIC_UNKNOWN,
        sessions=[".local/share/opencode/*"],
        streams=False,
        reaches=r":53 registry\.",  # it fetches its plugin library in the background, for every folder of its settings
        silent_cells=frozenset({"429", "500"}),
        endings={"429": "silence_timeout", "500": "silence_timeout"},
    ),
    "qwen": RealAgent(
        profile="qwen",
        tools_profile="qwen-bypass",
        home=qwen_home,
        sessions=[".qwen/projects/*/chats/*"],
        turn_offset=1,
        hanging_command="tail%20-f%20/dev/null",  # it refuses a bare sleep
        silent_cells=frozenset({"429", "500"}),
        endings={"429": "silence_timeout", "500": "silence_timeout"},
    ),
    "pi": RealAgent(
        profile="pi",
        home=pi_home,
        unknown_model=ANTHROPIC_UNKNOWN,
        sessions=[".pi/agent/sessions/*/*.jsonl"],
        requests_at_500=12,  # its own four, each asked three times by its client
    ),
    "copilot": RealAgent(
        profile="copilot",
        tools_profile="copilot-bypass",
        home=copilot_home,
        tells_usage=False,
        sessions=[".copilot/session-state/*"],
        requests_at_500=6,
    ),
}


def node_settings(clis: Sequence[str], folder: Path, url: str) -> dict[str, Any]:
    """A node that serves *clis* against the model at *url*, by what an operator would write and export: options of
    ``tests.support.nodes.Node``. The homes of the CLIs are made below *folder*.
    """
    profiles: dict[str, Any] = {}
    exported: dict[str, str] = {}
    for cli in clis:
        agent = AGENTS[cli]
        env, secrets = _home(agent, folder, url)
        sources: dict[str, dict[str, str]] = {}
        for name, value in secrets.items():
            if agent.secrets_from == "env":
                exported[variable := f"REAL_{cli.upper()}_{name}"] = value
                sources[name] = {"env": variable}
            else:
                (path := folder / f"{cli}.{name}").write_text(f"{value}\n")
                sources[name] = {"file": str(path)}
        profiles |= {profile: {"env": env, "secrets": sources} for profile in agent.profiles}
    return {
        **({"catalog": str(Path(CATALOG).absolute())} if CATALOG else {}),
        "profiles": profiles,
        "times": {"foreground_grace_s": 30},
        "env": {**exported, "PATH": search_path(clis, os.environ["PATH"])},
    }


def _home(agent: RealAgent, folder: Path, url: str) -> tuple[dict[str, str], dict[str, str]]:
    """The plain and the secret variables of the CLI's home. What the catalog sets is left to the catalog."""
    home = agent.home(folder, url)
    declared = provider_of(agent.profile).env
    plain = {name: value for name, value in home.items() if name not in declared and not is_secret_name(name)}
    return plain, {name: value for name, value in home.items() if is_secret_name(name)}


def search_path(clis: Sequence[str], inherited: str) -> str:
    """A PATH on which the pinned CLIs come first."""
    assert set(clis) <= set(PACKAGES), clis
    return ":".join([*(str(commands(cli)) for cli in clis), inherited])


@cache
def catalog() -> CatalogFile:
    """The catalog that the node serves."""
    return load_catalog(Path(CATALOG)) if CATALOG else load_shipped()


def provider_of(profile_id: str) -> ProviderStanza:
    """What the catalog says of the provider of a profile."""
    profile = next(each for each in catalog().profiles if each.id == profile_id)
    return next(each for each in catalog().providers if each.id == profile.provider)
