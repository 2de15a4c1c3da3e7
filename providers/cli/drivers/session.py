"""One process per logical session: find or start it, hand the turn over, and follow it.

The order that makes a turn happen once: the run's part of the output (process, offset, the dialect's state) is on the disk
before the turn is sent, and the turn is sent under the run's own key, which the warden takes once. So a node that finds
the part sends the turn again without asking: either the process has it, or gets it now.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from providers.cli.command import prompt_text
from providers.cli.dialect import SessionDialect, TurnContext
from providers.cli.drivers.opening import open_process
from providers.cli.drivers.slice import NotRead, Turn
from providers.cli.framing import Framing
from providers.cli.launching import Launch, Machinery, check_may_begin, hand_servers, note_launch, prepare, spawn
from providers.cli.mcp import acp_servers, secret_values
from providers.cli.profile import Profile
from providers.cli.run_files import STDOUT, Slice, line_start, read_slice, write_slice
from providers.cli.warm_processes import RECYCLE_BYTES, Revision, WarmProcess
from providers.keeper.client import InputRefusal, InputRefused, clear_append_only, end_orphans, read_exit
from runtime.clock import boot_time_s
from runtime.failure import Failure, FailureCode, FailureError
from runtime.provider import EventSink, RunContext
from runtime.redact import Redactor
from runtime.types import ExecutionSpec

DEAF_GRACE_S = 1.0
DEADLINE_SLACK_S = 3.0  # the warden ends a process whose node did not, so it waits for the node's own ladder


class InputTooLarge(FailureError):
    """The turn does not fit the agent's stdin queue; nothing of it was sent."""

    code = FailureCode.CAPACITY_EXHAUSTED


@dataclass(frozen=True, slots=True, kw_only=True)
class _Asked:
    """One run to be executed, with what is resolved for it."""

    ctx: RunContext
    spec: ExecutionSpec
    launch: Launch
    revision: Revision
    redact: Redactor

    @property
    def run_directory(self) -> Path:
        assert self.ctx.directory is not None, "a CLI run needs a directory of its own"
        return self.ctx.directory


class SessionDriver:
    """Executes the runs of one profile in warm processes."""

    def __init__(self, profile: Profile, dialect: SessionDialect, machinery: Machinery) -> None:
        self._profile, self._dialect, self._machinery = profile, dialect, machinery
        self._warm = machinery.warm

    async def execute(
        self, ctx: RunContext, spec: ExecutionSpec, sink: EventSink, secrets: Mapping[str, str], redact: Redactor
    ) -> None:
        """Take the turn to its terminal; the process that took it may stay for the next."""
        assert ctx.directory is not None, "a CLI run needs a directory of its own"
        part = read_slice(ctx.directory) if ctx.adopting else None
        process: WarmProcess | None
        if part is None:
            process, part = await self._begin(ctx, spec, secrets, redact)
        else:
            process = await self._adopt(ctx, spec, part)
        try:
            await self._turn(ctx, spec, sink, process, part, redact).follow()
            return
        except NotRead:
            pass  # the session's process was ending just then; if a fresh one ends too, it is the turn's own fault
        process, part = await self._begin(ctx, spec, secrets, redact)
        turn = self._turn(ctx, spec, sink, process, part, redact)
        turn.is_again = True
        await turn.follow()

    def _turn(
        self, ctx: RunContext, spec: ExecutionSpec, sink: EventSink, process: WarmProcess | None, part: Slice,
        redact: Redactor,
    ) -> Turn:  # fmt: skip
        assert ctx.directory is not None
        config = self._machinery.config
        conversation = self._dialect.decoder(TurnContext(resumed_id=part.resumed_id, state=part.state))
        return Turn(
            directory=self._warm.root / part.process, ctx=ctx, sink=sink, decoder=conversation,
            framing=Framing(config.max_line_bytes, start=part.offset), tail=self._machinery.tail, redact=redact,
            link=None if process is None else process.link, cancel_steps=self._profile.cancel,
            exit_grace_s=config.exit_grace_s, run_directory=ctx.directory, part=part, conversation=conversation,
            process=process, warm=self._warm, output_bytes=config.output_bytes, keeps_warm=ctx.session.is_named,
            keeps_raw=config.keep_raw.keeps(is_complete=True) or config.keep_raw.keeps(is_complete=False),
        )  # fmt: skip

    # -- a new turn

    async def _begin(
        self, ctx: RunContext, spec: ExecutionSpec, secrets: Mapping[str, str], redact: Redactor
    ) -> tuple[WarmProcess, Slice]:
        """Hand the turn to the session's process, or to a fresh one where that has died without having taken any of it."""
        check_may_begin(ctx)
        launch = prepare(
            self._profile, self._machinery, secrets, session=ctx.session, cwd=spec.workspace,
            mcp_servers=ctx.mcp_servers,
        )  # fmt: skip
        revision = _revision(self._profile, launch, secrets)
        asked = _Asked(ctx=ctx, spec=spec, launch=launch, redact=redact, revision=revision)
        process = await self._warm.take(asked.ctx.session.key, asked.revision)
        if process is not None:
            part = await self._hand_over(asked, process, resumed_id=ctx.session.native_id)
            if part is not None:
                return process, part
            await asyncio.wait([self._warm.end(process)])
        process, resumed_id = await self._start(asked)
        part = await self._hand_over(asked, process, resumed_id=resumed_id, is_fresh=True)
        assert part is not None
        return process, part

    async def _hand_over(
        self, asked: _Asked, process: WarmProcess, *, resumed_id: str | None, is_fresh: bool = False
    ) -> Slice | None:
        """Give the turn to *process*; None when that is gone and has nothing of it. Of a fresh one its output will tell."""
        try:
            part = await self._write_part(asked, process, resumed_id=resumed_id)
            if is_fresh:
                answer = self._send(asked.ctx, asked.spec, process, part)
                if answer is not None:
                    answer.add_done_callback(lambda answer: _end_if_deaf(process, answer))
                return part
            return part if await self._is_taken(asked, process, part) else None
        except Exception:  # a full disk, a turn too large: nobody will follow it
            self._warm.end(process)
            raise

    async def _is_taken(self, asked: _Asked, process: WarmProcess, part: Slice) -> bool:
        """False when the process is gone and has nothing of the turn."""
        answer = self._send(asked.ctx, asked.spec, process, part)
        if answer is None:
            return False
        stopped = asyncio.create_task(asked.ctx.stopped())
        waits: list[asyncio.Future[Any]] = [answer, stopped]
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        stopped.cancel()
        problem = answer.exception() if answer.done() else None
        return not (isinstance(problem, InputRefused) and problem.written == 0)

    async def _write_part(self, asked: _Asked, process: WarmProcess, *, resumed_id: str | None) -> Slice:
        part = Slice(
            process=process.directory.name, offset=_present(process), resumed_id=resumed_id, state=dict(process.state),
            began_boot_s=boot_time_s(),
        )  # fmt: skip
        await asyncio.to_thread(write_slice, asked.run_directory, part)
        return part

    def _send(
        self, ctx: RunContext, spec: ExecutionSpec, process: WarmProcess, part: Slice
    ) -> asyncio.Future[None] | None:
        """Send the turn under the run's key; None when the process is known to be gone.

        Raises:
            InputTooLarge: the turn can never be sent.
        """
        assert ctx.directory is not None
        if ctx.deadline_boot_s is not None:
            process.link.set_deadline(ctx.deadline_boot_s + ctx.cancel_grace_s + DEADLINE_SLACK_S)
        try:
            data = self._dialect.encode_turn(prompt_text(self._profile, spec.input), part.state)
            return process.link.send_input(data, key=ctx.directory.name)
        except InputRefused as refused:
            if refused.refusal is InputRefusal.FULL:
                raise InputTooLarge(f"the turn of {len(data)} bytes does not fit the agent's stdin") from refused
            return None

    # -- a fresh process

    async def _start(self, asked: _Asked) -> tuple[WarmProcess, str | None]:
        """Start a process for the session and open it; with the native id that it resumes."""
        session = asked.ctx.session
        directory = self._warm.new_directory(session.key, asked.revision)
        try:
            launch = hand_servers(self._profile, asked.launch, directory)
            note_launch(directory, launch, asked.redact)
            output_bytes = self._machinery.config.output_bytes + RECYCLE_BYTES
            link = await spawn(self._machinery, launch, directory, output_bytes=output_bytes)
        except BaseException:
            self._warm.forget(directory)
            raise
        process = WarmProcess(directory=directory, session=session.key, revision=asked.revision, link=link)
        self._warm.add(process)
        # where the arguments do not name the conversation, the opening does
        resumed_id = asked.launch.command.resumed_id if self._profile.resume_args else session.native_id
        source_id = None if self._profile.fork_args or session.native_id is not None else session.source_id
        try:
            told = acp_servers(asked.launch.servers) if self._profile.mcp == "acp" else ()
            opening = self._dialect.opening(
                cwd=asked.launch.cwd, resumed_id=resumed_id, source_id=source_id, settings=self._profile.opening,
                mcp_servers=told,
            )  # fmt: skip
            process.state = await open_process(process, opening, self._machinery.tail, asked.ctx, asked.redact)
        except BaseException:
            self._warm.end(process)
            raise
        return process, resumed_id

    # -- a turn that an earlier node began

    async def _adopt(self, ctx: RunContext, spec: ExecutionSpec, part: Slice) -> WarmProcess | None:
        """The process of *part*, which has the turn when this returns; None when it has ended."""
        process = await self._warm.adopt(part.process, ctx.session.key)
        directory = self._warm.root / part.process
        if process is None:
            if read_exit(directory) is None:
                # its warden was killed while no node looked: whatever carries its marker is ours to end
                await asyncio.to_thread(end_orphans, part.process)
                with suppress(OSError):
                    clear_append_only(directory / STDOUT)
            _check_is_there(directory)
            return None
        self._send(ctx, spec, process, part)
        return process


def _check_is_there(directory: Path) -> None:
    if not (directory / STDOUT).exists():
        message = "interrupted: the directory of the session's process is gone"
        raise FailureError.of(Failure(code=FailureCode.INTERRUPTED, message=message))


def _end_if_deaf(process: WarmProcess, answer: asyncio.Future[None]) -> None:
    """A process that closed its stdin and lives on would never answer."""
    is_refused = not answer.cancelled() and isinstance(answer.exception(), InputRefused)
    if is_refused and process.is_alive:
        process.link.stop(steps=("term",), grace_s=DEAF_GRACE_S, reason="deaf")


def _present(process: WarmProcess) -> int:
    """Where in its output the next turn begins: everything before was printed before it was sent."""
    fd = os.open(process.directory / STDOUT, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return line_start(fd, process.offset)
    finally:
        os.close(fd)


def _revision(profile: Profile, launch: Launch, secrets: Mapping[str, str]) -> Revision:
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
