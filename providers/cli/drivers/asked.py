"""One run that a session's process is to take, with what is resolved for it."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec

from providers.cli.launching import Launch
from providers.cli.mcp import secret_values
from providers.cli.profile import Profile
from providers.cli.warm_processes import Revision
from runtime.provider import RunContext
from runtime.redact import Redactor
from runtime.types import ExecutionSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """One run to be executed. ``is_again``: it has begun before, with a process that did not read its turn."""

    ctx: RunContext
    spec: ExecutionSpec
    launch: Launch
    revision: Revision
    redact: Redactor
    is_again: bool = False

    @property
    def run_directory(self) -> Path:
        assert self.ctx.directory is not None, "a CLI run needs a directory of its own"
        return self.ctx.directory


def revision_of(profile: Profile, launch: Launch, secrets: Mapping[str, str]) -> Revision:
    """Tells whether a process would be started in the same way again."""
    told: dict[str, object] = {
        "command": [launch.command.argv[0], *profile.command[1:], *profile.args, "|", *profile.resume_args],
        "cwd": launch.cwd,
        "env": sorted((name, value) for name, value in launch.environment.items() if name not in secrets),
        "dialect": profile.dialect,
        "opening": sorted(profile.opening.items()),
    }
    if launch.servers:
        told["mcp_servers"] = [server.public() for server in launch.servers]
    secret = [*sorted(secrets.items()), *secret_values(launch.servers)]
    return Revision(public=_digest(told), secret=_digest(secret))


def _digest(value: object) -> str:
    return hashlib.sha256(msgspec.json.encode(value)).hexdigest()
