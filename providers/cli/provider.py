"""The one provider for every agent CLI: a profile says what to start, a dialect what its output means.

A run survives the node: its process belongs to a warden and its output goes to a file. So ``execute`` first looks at what
the run directory says: nothing was started, a process lives, or it has ended; from there on all three are one path.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from pathlib import Path
from typing import cast

from providers.cli.command import prompt_text
from providers.cli.dialect import Dialect, SessionDialect, TurnContext
from providers.cli.drivers.oneshot import OneShot
from providers.cli.drivers.session import SessionDriver
from providers.cli.environment import SecretUnavailable, resolve_secrets
from providers.cli.framing import Framing
from providers.cli.launching import (
    Launch,
    Machinery,
    check_may_begin,
    hand_servers,
    history_fact,
    note_launch,
    prepare,
    spawn,
)
from providers.cli.mcp import readable_secrets
from providers.cli.profile import Profile
from providers.cli.run_files import (
    DIAGNOSTICS,
    LAUNCH,
    STDERR,
    STDOUT,
    discard_secrets,
    open_input,
    read_note,
    read_slice,
    stderr_tail,
)
from providers.keeper.client import (
    WardenLink,
    clear_append_only,
    end_orphans,
    lock_is_held,
    read_exit,
    read_owner,
)
from runtime.failure import Failure, FailureCode, FailureError
from runtime.provider import CommandHandler, CommandRequest, CommandResponse, EventSink, RunContext, SessionSlot
from runtime.redact import Redactor
from runtime.types import Capabilities, ExecutionSpec

__all__ = ["CliProvider", "Machinery"]


class CliProvider:
    """Runs one profile's CLI: one process per run, or in mode ``session`` one per logical session."""

    def __init__(
        self, profile: Profile, dialect: Dialect, machinery: Machinery, commands: CommandHandler | None = None
    ) -> None:
        self.profile, self._dialect, self._machinery, self._commands = profile, dialect, machinery, commands
        # the catalog admits the mode only with a dialect that has conversations
        self._session = (
            SessionDriver(profile, cast(SessionDialect, dialect), machinery) if profile.mode == "session" else None
        )

    async def capabilities(self) -> Capabilities:
        profile = self.profile
        return Capabilities(
            targets=(profile.id,), max_concurrency=profile.max_concurrency, survives_host=True,
            default_workspace=profile.default_workspace, silence_timeout_s=profile.silence_timeout_s,
            policy_keys=profile.policy_keys, permissions=profile.permissions, verbs=profile.verbs,
            mcp_servers=frozenset(profile.mcp_servers) if profile.mcp else None, forks=profile.forks,
            labels=profile.labels(),
        )  # fmt: skip

    async def execute(self, ctx: RunContext, spec: ExecutionSpec, sink: EventSink) -> None:
        """Start the CLI, or go on with the one found in the run directory, to the terminal."""
        assert ctx.directory is not None, "a CLI run needs a directory of its own"
        directory = ctx.directory
        secrets = resolve_secrets(self.profile.secrets, self._machinery.inherited)
        asked = [server for name, server in self.profile.mcp_servers.items() if name in ctx.mcp_servers]
        redact = Redactor([*secrets.values(), *readable_secrets(asked, self._machinery.inherited)])
        if self._session is not None:
            await self._session.execute(ctx, spec, sink, secrets, redact)
            return
        if ctx.adopting and _was_used(directory):
            link, (resumed, facts) = await self._adopt(directory), _noted(directory)
        else:
            check_may_begin(ctx)
            link, resumed, facts = await self._start(ctx, spec, secrets, redact)
        await OneShot(
            directory=directory, ctx=ctx, sink=sink, decoder=self._dialect.decoder(TurnContext(resumed_id=resumed)),
            framing=Framing(self._machinery.config.max_line_bytes), tail=self._machinery.tail, redact=redact, link=link,
            cancel_steps=self.profile.cancel, exit_grace_s=self._machinery.config.exit_grace_s,
            start_facts=facts,
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
    ) -> tuple[WardenLink, str | None, dict[str, str]]:
        assert ctx.directory is not None
        launch = prepare(
            self.profile, self._machinery, secrets, session=ctx.session, cwd=spec.workspace,
            mcp_servers=ctx.mcp_servers,
        )  # fmt: skip
        facts = history_fact(ctx, spec, resumed_id=launch.command.resumed_id)
        try:
            link = await self._spawn(hand_servers(self.profile, launch, ctx.directory), ctx, spec, redact, facts)
        except (FailureError, OSError):  # nobody will read it; a node that ends meanwhile leaves it to the next
            discard_secrets(ctx.directory)
            raise
        return link, launch.command.resumed_id, facts

    async def _spawn(
        self, launch: Launch, ctx: RunContext, spec: ExecutionSpec, redact: Redactor, facts: Mapping[str, str]
    ) -> WardenLink:
        assert ctx.directory is not None
        note_launch(ctx.directory, launch, redact, facts)
        stdin_fd = open_input(prompt_text(self.profile, spec.input))
        try:
            return await spawn(
                self._machinery, launch, ctx.directory, output_bytes=self._machinery.config.output_bytes,
                stdin_fd=stdin_fd, deadline_boot_s=ctx.deadline_boot_s,
            )  # fmt: skip
        finally:
            os.close(stdin_fd)

    async def terminate_session(self, session: SessionSlot) -> None:
        """Close the session's warm process, if it has one; the CLI's own transcript is the CLI's."""
        await self._machinery.warm.end_session(session.key)

    async def close(self) -> None:
        """Nothing is held between runs but warm processes, which are the node's."""

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
        of_servers = readable_secrets(self.profile.mcp_servers.values(), self._machinery.inherited)
        return _facts(self._home(directory), Redactor([*secrets.values(), *of_servers]))

    def _home(self, directory: Path) -> Path:
        """Where the files of the run's process are: in a warm one's own directory until its turn has ended."""
        part = None if (directory / LAUNCH).exists() else read_slice(directory)
        return directory if part is None else self._machinery.warm.root / part.process


def _was_used(directory: Path) -> bool:
    """Whether a process was started for the run before."""
    return read_owner(directory) is not None or read_exit(directory) is not None or lock_is_held(directory)


def _noted(directory: Path) -> tuple[str | None, dict[str, str]]:
    """The native id that the process resumes, and what is said with the run's start."""
    note = read_note(directory, LAUNCH)
    resumed, facts = note.get("resumed_id"), note.get("start_facts")
    told = {str(name): str(value) for name, value in facts.items()} if isinstance(facts, dict) else {}
    return (resumed if isinstance(resumed, str) else None), told


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
