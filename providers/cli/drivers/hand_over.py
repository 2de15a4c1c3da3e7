"""A turn is handed to a process of its session, once.

The order that makes it happen once: the run's part of the output (process, offset, the dialect's state) is on the disk
before anything is sent, and what is sent has a key of the run's, which the warden takes once. So a node that finds the
part sends it all again without asking: either the process has it, or gets it now.

What the agent asked since its last turn is refused before the turn is sent; it might not read a turn while it waits.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from providers.cli.command import prompt_text
from providers.cli.dialect import SessionDialect, TurnContext
from providers.cli.drivers.asked import Asked
from providers.cli.drivers.between import Heard, hear
from providers.cli.drivers.fresh import Beginning
from providers.cli.profile import Profile
from providers.cli.run_files import STDOUT, Slice, line_start, write_slice
from providers.cli.warm_processes import WarmProcess
from providers.keeper.client import InputRefusal, InputRefused, read_exit
from runtime.clock import boot_time_s
from runtime.failure import FailureCode, FailureError
from runtime.provider import RunContext
from runtime.types import ExecutionSpec

log = logging.getLogger(__name__)

DEAF_GRACE_S = 1.0
DEADLINE_SLACK_S = 3.0  # the warden ends a process whose node did not, so it waits for the node's own ladder


class InputTooLarge(FailureError):
    """The turn does not fit the agent's stdin queue; nothing of it was sent."""

    code = FailureCode.CAPACITY_EXHAUSTED


class HandOver:
    """Hands the turns of one profile to processes. When it raises, nobody follows the turn: the caller ends the process."""

    def __init__(self, profile: Profile, dialect: SessionDialect) -> None:
        self._profile, self._dialect = profile, dialect

    async def to_idle(self, asked: Asked, process: WarmProcess) -> Slice | None:
        """Give the turn to the session's idle *process*; None when that is gone, or unfit, and has nothing of it."""
        part = _part(asked, process, resumed_id=asked.ctx.session.native_id)
        heard = await self._hear(process, part)
        if not heard.is_fit:
            log.warning("a warm process was not fit for a turn", extra={"warm_process": part.process})
            return None
        await asyncio.to_thread(write_slice, asked.run_directory, part)
        answer = self._send(asked.ctx, asked.spec, process, part, heard)
        return part if answer is not None and await _is_taken(asked.ctx, process, answer) else None

    async def to_fresh(self, asked: Asked, process: WarmProcess, begins: Beginning) -> Slice:
        """Give the turn to a *process* that was just opened; whether it takes it, its output will tell."""
        facts = begins.start_facts
        part = _part(asked, process, resumed_id=begins.resumed_id, start_facts=facts)
        heard = await self._hear(process, part)
        await asyncio.to_thread(write_slice, asked.run_directory, part)
        answer = self._send(asked.ctx, asked.spec, process, part, heard)
        if answer is not None:
            answer.add_done_callback(lambda answer: _end_if_deaf(process, answer))
        return part

    async def again(self, ctx: RunContext, spec: ExecutionSpec, process: WarmProcess, part: Slice) -> None:
        """Send what an earlier node was about to send, or has sent."""
        self._send(ctx, spec, process, part, await self._hear(process, part))

    async def _hear(self, process: WarmProcess, part: Slice) -> Heard:
        if part.unread is None or part.unread >= part.offset:
            return Heard()
        conversation = self._dialect.decoder(TurnContext(resumed_id=part.resumed_id, state=part.state))
        return await asyncio.to_thread(hear, process.directory / STDOUT, part.unread, part.offset, conversation)

    def _send(
        self, ctx: RunContext, spec: ExecutionSpec, process: WarmProcess, part: Slice, heard: Heard
    ) -> asyncio.Future[None] | None:
        """Send the turn under the run's key; None when the process is known to be gone.

        Raises:
            InputTooLarge: the turn can never be sent.
        """
        assert ctx.directory is not None
        if ctx.deadline_boot_s is not None:
            process.link.set_deadline(ctx.deadline_boot_s + ctx.cancel_grace_s + DEADLINE_SLACK_S)
        _refuse(process, heard, ctx.directory)
        try:
            data = self._dialect.encode_turn(prompt_text(self._profile, spec.input), part.state)
            return process.link.send_input(data, key=ctx.directory.name)
        except InputRefused as refused:
            if refused.refusal is InputRefusal.FULL:
                raise InputTooLarge(f"the turn of {len(data)} bytes does not fit the agent's stdin") from refused
            return None


def _refuse(process: WarmProcess, heard: Heard, run_directory: Path) -> None:
    if heard.answers:
        with suppress(InputRefused):  # the turn, sent next, will tell that the process is gone
            process.link.send_input(heard.answers, key=f"{run_directory.name} before")


def _part(
    asked: Asked, process: WarmProcess, *, resumed_id: str | None, start_facts: Mapping[str, str] | None = None
) -> Slice:
    return Slice(
        process=process.directory.name, unread=process.unread, offset=_present(process), resumed_id=resumed_id,
        state=dict(process.state), began_boot_s=boot_time_s(), start_facts=dict(start_facts or {}),
        is_again=asked.is_again,
    )  # fmt: skip


def _present(process: WarmProcess) -> int:
    """Where in its output the next turn begins: everything before was printed before it was sent."""
    fd = os.open(process.directory / STDOUT, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return line_start(fd, process.unread)
    finally:
        os.close(fd)


async def _is_taken(ctx: RunContext, process: WarmProcess, answer: asyncio.Future[None]) -> bool:
    """False when the process is gone and has nothing of the turn.

    A warden that was leaving when the turn was sent answers no more, but has told what its process had.
    """
    stopped = asyncio.create_task(ctx.stopped())
    waits: list[asyncio.Future[Any]] = [answer, stopped]
    await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    stopped.cancel()
    problem = answer.exception() if answer.done() else None
    if not isinstance(problem, InputRefused):
        return True
    if problem.written is not None:
        return problem.written != 0
    assert ctx.directory is not None
    record = process.link.exit or read_exit(process.directory)
    return record is None or not record.never_had(ctx.directory.name)


def _end_if_deaf(process: WarmProcess, answer: asyncio.Future[None]) -> None:
    """A process that closed its stdin and lives on would never answer."""
    is_refused = not answer.cancelled() and isinstance(answer.exception(), InputRefused)
    if is_refused and process.is_alive:
        process.link.stop(steps=("term",), grace_s=DEAF_GRACE_S, reason="deaf")
