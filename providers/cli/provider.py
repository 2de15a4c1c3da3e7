"""The one provider for every agent CLI: a profile says what to start, a dialect what its output means.

A run survives the node: its process belongs to a warden and its output goes to a file. So ``execute`` first looks at what
the run directory says: nothing was started, a process lives, or it has ended; from there on all three are one path.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from providers.cli.command import CannotStart, Command, build_command, prompt_text
from providers.cli.dialect import Dialect, TurnContext
from providers.cli.drivers.oneshot import OneShot
from providers.cli.environment import SecretUnavailable, base_environment, resolve_secrets
from providers.cli.framing import Framing
from providers.cli.profile import Profile
from providers.cli.run_files import (
    DIAGNOSTICS,
    LAUNCH,
    STDERR,
    STDOUT,
    create_output,
    read_note,
    stderr_tail,
    write_input,
    write_launch,
)
from providers.cli.spawn_gate import SpawnGate
from providers.cli.tail import Tail
from providers.keeper.client import (
    Keeper,
    SpawnFailed,
    SpawnRequest,
    WardenLink,
    clear_append_only,
    end_orphans,
    lock_is_held,
    read_exit,
    read_owner,
)
from runtime.clock import boot_time_s
from runtime.config import RuntimeConfig
from runtime.events import start
from runtime.failure import DeadlineExceeded, Failure, FailureCode, RunCancelled
from runtime.provider import CommandHandler, CommandRequest, CommandResponse, EventSink, RunContext, SessionSlot
from runtime.redact import Redactor
from runtime.types import Capabilities, ExecutionSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Machinery:
    """What every CLI provider of a node shares."""

    keeper: Keeper
    tail: Tail
    config: RuntimeConfig
    inherited: Mapping[str, str]
    gate: SpawnGate = field(default_factory=SpawnGate)


class CliProvider:
    """Runs one profile's CLI, one process per run."""

    def __init__(
        self, profile: Profile, dialect: Dialect, machinery: Machinery, commands: CommandHandler | None = None
    ) -> None:
        self.profile, self._dialect, self._machinery, self._commands = profile, dialect, machinery, commands

    async def capabilities(self) -> Capabilities:
        profile = self.profile
        return Capabilities(
            targets=(profile.id,), max_concurrency=profile.max_concurrency, survives_host=True,
            default_workspace=profile.default_workspace, silence_timeout_s=profile.silence_timeout_s,
            policy_keys=profile.policy_keys, permissions=profile.permissions, labels=profile.labels(),
        )  # fmt: skip

    async def execute(self, ctx: RunContext, spec: ExecutionSpec, sink: EventSink) -> None:
        """Start the CLI, or go on with the one found in the run directory, to the terminal."""
        assert ctx.directory is not None, "a CLI run needs a directory of its own"
        directory = ctx.directory
        secrets = resolve_secrets(self.profile.secrets, self._machinery.inherited)
        redact = Redactor(secrets.values())
        if ctx.adopting and _was_used(directory):
            link, resumed = await self._adopt(directory), _resumed_id(directory)
        else:
            link, resumed = await self._start(ctx, spec, secrets, redact)
        await sink.emit([start()])
        await OneShot(
            directory=directory, ctx=ctx, sink=sink, decoder=self._dialect.decoder(TurnContext(resumed_id=resumed)),
            framing=Framing(self._machinery.config.max_line_bytes), tail=self._machinery.tail, redact=redact, link=link,
            cancel_steps=self.profile.cancel, exit_grace_s=self._machinery.config.exit_grace_s,
        ).follow()  # fmt: skip

    async def _adopt(self, directory: Path) -> WardenLink | None:
        link = await self._machinery.keeper.adopt(directory)
        if link is None and read_exit(directory) is None:
            # the warden was killed while no node looked: whatever carries the run's marker is ours to end
            await asyncio.to_thread(end_orphans, directory.name)
            clear_append_only(directory / STDOUT)
        return link

    async def _start(
        self, ctx: RunContext, spec: ExecutionSpec, secrets: Mapping[str, str], redact: Redactor
    ) -> tuple[WardenLink, str | None]:
        assert ctx.directory is not None
        environment = base_environment(self._machinery.inherited) | dict(self.profile.env)
        command = build_command(self.profile, native_id=ctx.session.native_id, path=environment["PATH"])
        write_launch(
            ctx.directory,
            argv=command.argv,
            cwd=spec.workspace,
            variables=[*environment, *secrets],
            resumed_id=command.resumed_id,
            redact=redact,
        )
        await self._machinery.gate.pass_through(environment.get("HOME", ""), self.profile.login_files)
        _check_may_begin(ctx)
        link = await self._spawn(ctx, spec, command, environment | dict(secrets))
        return link, command.resumed_id

    async def _spawn(
        self, ctx: RunContext, spec: ExecutionSpec, command: Command, environment: Mapping[str, str]
    ) -> WardenLink:
        assert ctx.directory is not None
        config = self._machinery.config
        stdout_fd = create_output(ctx.directory)
        stdin_fd = write_input(ctx.directory, prompt_text(self.profile, spec.input))
        try:
            return await self._machinery.keeper.spawn(
                SpawnRequest(
                    directory=ctx.directory, argv=command.argv, cwd=spec.workspace, env=environment, marker=ctx.directory.name,
                    stdin_fd=stdin_fd, stdout_fd=stdout_fd, deadline_boot_s=ctx.deadline_boot_s,
                    output_bytes=config.output_bytes, disk_watermark_bytes=config.disk_watermark_bytes,
                )
            )  # fmt: skip
        except SpawnFailed as failed:
            raise _cannot_start(failed, command, spec) from failed
        finally:
            os.close(stdin_fd)
            os.close(stdout_fd)

    async def terminate_session(self, session: SessionSlot) -> None:
        """One process per run leaves nothing to release between runs; the CLI's own transcript is the CLI's."""

    async def close(self) -> None:
        """Nothing is held between runs."""

    async def command(self, request: CommandRequest) -> CommandResponse:
        """Answer a query about the CLI itself; its runs do not notice."""
        if self._commands is None:
            message = f"profile {self.profile.id!r} takes no commands"
            return CommandResponse(failure=Failure(code=FailureCode.UNSUPPORTED, message=message))
        return await self._commands.command(request)

    # -- for operators ----------------------------------------------------------------------------------------------

    def artifacts(self, directory: Path) -> dict[str, Path]:
        """``stderr`` and ``raw``, as far as they exist."""
        files = {"stderr": directory / STDERR, "raw": directory / STDOUT}
        return {name: path for name, path in files.items() if path.is_file()}

    def explain(self, directory: Path) -> dict[str, str]:
        """Redacted argv, working directory, process, how it ended, the tail of stderr, and what was no event."""
        try:
            secrets = resolve_secrets(self.profile.secrets, self._machinery.inherited)
        except SecretUnavailable:
            secrets = {}  # what was stored went through the redactor of its time already
        return _facts(directory, Redactor(secrets.values()))


def _was_used(directory: Path) -> bool:
    """Whether a process was started for the run before."""
    return read_owner(directory) is not None or read_exit(directory) is not None or lock_is_held(directory)


def _resumed_id(directory: Path) -> str | None:
    found = read_note(directory, LAUNCH).get("resumed_id")
    return found if isinstance(found, str) else None


def _check_may_begin(ctx: RunContext) -> None:
    """Look once more, right before anything is started."""
    if ctx.stop is not None:
        raise RunCancelled(ctx.stop.message)
    if ctx.deadline_boot_s is not None and ctx.deadline_boot_s <= boot_time_s():
        raise DeadlineExceeded("the run deadline passed before the agent could start")


def _cannot_start(failed: SpawnFailed, command: Command, spec: ExecutionSpec) -> CannotStart:
    """One errno, two causes: the stage tells a missing workspace from a missing program."""
    reason = os.strerror(failed.errno)
    if failed.stage == "cwd":
        return CannotStart(f"workspace {spec.workspace!r} cannot be entered: {reason}", stage="cwd")
    return CannotStart(f"{command.argv[0]} could not be started ({failed.stage}): {reason}", stage=failed.stage)


def _facts(directory: Path, redact: Redactor) -> dict[str, str]:
    facts: dict[str, str] = {}
    launch, noise = read_note(directory, LAUNCH), read_note(directory, DIAGNOSTICS)
    if isinstance(argv := launch.get("argv"), list):
        facts |= {"argv": " ".join(map(str, argv)), "cwd": str(launch.get("cwd", ""))}
    if (owner := read_owner(directory)) is not None:
        facts["pid"] = str(owner.pid)
    if (record := read_exit(directory)) is not None:
        found = {
            "exit_code": record.code,
            "signal": record.signal,
            "stopped": record.stopped,
            "killed": record.killed or None,
        }
        facts |= {k: str(v) for k, v in found.items() if v is not None}
    if tail := stderr_tail(directory, redact):
        facts["stderr_tail"] = tail
    if isinstance(counts := noise.get("counts"), dict):
        facts["noise"] = ", ".join(f"{kind}: {count}" for kind, count in sorted(counts.items()))
    if isinstance(samples := noise.get("samples"), list):
        facts["noise_samples"] = "\n".join(
            f"{s.get('kind')}: {s.get('detail')}" for s in samples if isinstance(s, dict)
        )
    return facts
