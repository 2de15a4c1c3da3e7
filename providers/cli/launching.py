"""From a profile to a running process: its command and environment, its files, and what a refusal means."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from providers.cli.command import CannotStart, Command, build_command
from providers.cli.environment import base_environment
from providers.cli.mcp import KnownServer, choose, claude_arguments, codex_arguments, codex_environment
from providers.cli.profile import Profile
from providers.cli.run_files import create_output, write_launch
from providers.cli.spawn_gate import SpawnGate
from providers.cli.tail import Tail
from providers.cli.warm_processes import WarmProcesses
from providers.keeper.client import Keeper, SpawnFailed, SpawnRequest, WardenLink
from runtime.clock import boot_time_s
from runtime.config import RuntimeConfig
from runtime.failure import DeadlineExceeded, RunCancelled, SessionNotFound
from runtime.provider import RunContext, SessionSlot
from runtime.redact import Redactor
from runtime.types import ExecutionSpec, SessionMode

SESSION_HISTORY = "session_history"
"""Metadata of a start event: ``not_resumed`` when the agent begins without what was said in the session before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Machinery:
    """What every CLI provider of a node shares."""

    keeper: Keeper
    tail: Tail
    warm: WarmProcesses
    config: RuntimeConfig
    inherited: Mapping[str, str]
    gate: SpawnGate = field(default_factory=SpawnGate)


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """What is to be started. ``environment`` holds secrets: it is handed on and kept in memory only, and never shown."""

    command: Command
    cwd: str
    login_files: tuple[str, ...] = ()
    servers: tuple[KnownServer, ...] = ()
    environment: Mapping[str, str] = field(repr=False)


def prepare(
    profile: Profile,
    machinery: Machinery,
    secrets: Mapping[str, str],
    *,
    session: SessionSlot,
    cwd: str,
    mcp_servers: Sequence[str] = (),
) -> Launch:
    """The launch of *profile* with the MCP servers of these names, going on with what the session has.

    Raises:
        CannotStart: its binary is not there, or an argument is too long.
        InvalidRequest: a server is declared no more.
        SecretUnavailable: a server's secret cannot be read.
    """
    environment = base_environment(machinery.inherited) | dict(profile.env)
    command = build_command(profile, native_id=session.native_id, source_id=session.source_id, path=environment["PATH"])
    return Launch(
        command=command, cwd=cwd, login_files=profile.login_files, environment=environment | dict(secrets),
        servers=choose(profile.mcp_servers, mcp_servers, machinery.inherited),
    )  # fmt: skip


def hand_servers(profile: Profile, launch: Launch, directory: Path) -> Launch:
    """*launch* such that its agent is told of its MCP servers, in *directory* where it is told by a file.

    Raises:
        NameTaken: their secrets do not fit beside each other.
    """
    if not launch.servers or profile.mcp not in ("claude_config", "codex_overrides"):
        return launch
    if profile.mcp == "claude_config":
        arguments, environment = claude_arguments(directory, launch.servers), launch.environment
    else:
        arguments = codex_arguments(launch.servers)
        environment = codex_environment(launch.servers, launch.environment)
    argv, program = launch.command.argv, len(profile.command)  # before a subcommand, and all that may follow it
    command = replace(launch.command, argv=(*argv[:program], *arguments, *argv[program:]))
    return replace(launch, command=command, environment=environment)


def note_launch(
    directory: Path, launch: Launch, redact: Redactor, start_facts: Mapping[str, str] | None = None
) -> None:
    """Leave in *directory* what is started there, and what the start event of its run says."""
    write_launch(
        directory, argv=launch.command.argv, cwd=launch.cwd, variables=list(launch.environment),
        resumed_id=launch.command.resumed_id, start_facts=start_facts or {}, redact=redact,
    )  # fmt: skip


async def spawn(
    machinery: Machinery,
    launch: Launch,
    directory: Path,
    *,
    output_bytes: int,
    stdin_fd: int | None = None,
    deadline_boot_s: float | None = None,
) -> WardenLink:
    """Start *launch* in *directory*, which is its marker; without *stdin_fd* its stdin is a pipe of the warden's.

    Raises:
        CannotStart: it was not started; the message says whether the workspace or the program is to blame.
    """
    await machinery.gate.pass_through(launch.environment.get("HOME", ""), launch.login_files)
    stdout_fd = create_output(directory)
    try:
        return await machinery.keeper.spawn(
            SpawnRequest(
                directory=directory, argv=launch.command.argv, cwd=launch.cwd, env=launch.environment,
                marker=directory.name, stdin_fd=stdin_fd, stdin_pipe=stdin_fd is None, stdout_fd=stdout_fd,
                deadline_boot_s=deadline_boot_s, output_bytes=output_bytes,
                disk_watermark_bytes=machinery.config.disk_watermark_bytes,
                process_limit=machinery.config.max_processes or None,
            )
        )  # fmt: skip
    except SpawnFailed as failed:
        raise _cannot_start(failed, launch) from failed
    finally:
        os.close(stdout_fd)


def check_may_begin(ctx: RunContext) -> None:
    """Look once more, right before anything is started."""
    if ctx.stop is not None:
        raise RunCancelled(ctx.stop.message)
    if ctx.deadline_boot_s is not None and ctx.deadline_boot_s <= boot_time_s():
        raise DeadlineExceeded("the run deadline passed before the agent could start")


def history_fact(ctx: RunContext, spec: ExecutionSpec, *, resumed_id: str | None) -> dict[str, str]:
    """What the start event says when the session's conversation is not gone on with, though there is one.

    Raises:
        SessionNotFound: the caller required to go on with it, or the session is a fork of one that is no more.
    """
    if ctx.session.is_fork and ctx.session.native_id is None and ctx.session.source_id is None:
        raise SessionNotFound(
            f"session {spec.session_id!r} is a fork, and the conversation it should begin with is not held any more",
            session_id=spec.session_id,
        )
    if resumed_id is not None or not ctx.session.has_history:
        return {}
    if spec.session_mode is SessionMode.REQUIRE_EXISTING:
        raise SessionNotFound(
            f"the agent's conversation of session {spec.session_id!r} cannot be gone on with: its own id is not known; "
            "use create_if_missing to begin it anew",
            session_id=spec.session_id,
        )
    return {SESSION_HISTORY: "not_resumed"}


def _cannot_start(failed: SpawnFailed, launch: Launch) -> CannotStart:
    """One errno, two causes: the stage tells a missing workspace from a missing program."""
    reason = os.strerror(failed.errno)
    if failed.stage == "cwd":
        return CannotStart(f"workspace {launch.cwd!r} cannot be entered: {reason}", stage="cwd")
    return CannotStart(f"{launch.command.argv[0]} could not be started ({failed.stage}): {reason}", stage=failed.stage)
