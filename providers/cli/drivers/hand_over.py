"""A turn is handed to a process of its session, once.

The order that makes it happen once: the run's part of the output (process, offset, the dialect's state) is on the disk
before anything is sent, and what is sent has a key of the run's, which the warden takes once. So a node that finds the
part sends it all again without asking: either the process has it, or gets it now.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from typing import Any

from providers.cli.command import prompt_text
from providers.cli.dialect import SessionDialect
from providers.cli.drivers.asked import Asked
from providers.cli.drivers.fresh import Beginning
from providers.cli.profile import Profile
from providers.cli.run_files import STDOUT, Slice, line_start, write_slice
from providers.cli.warm_processes import WarmProcess
from providers.keeper.client import InputRefusal, InputRefused
from runtime.clock import boot_time_s
from runtime.failure import FailureCode, FailureError
from runtime.provider import RunContext
from runtime.types import ExecutionSpec

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
        """Give the turn to the session's idle *process*; None when that is gone and has nothing of it."""
        part = _part(asked, process, resumed_id=asked.ctx.session.native_id)
        await asyncio.to_thread(write_slice, asked.run_directory, part)
        answer = self._send(asked.ctx, asked.spec, process, part)
        return part if answer is not None and await _is_taken(asked.ctx, answer) else None

    async def to_fresh(self, asked: Asked, process: WarmProcess, begins: Beginning) -> Slice:
        """Give the turn to a *process* that was just opened; whether it takes it, its output will tell."""
        facts = begins.start_facts
        part = _part(asked, process, resumed_id=begins.resumed_id, start_facts=facts)
        await asyncio.to_thread(write_slice, asked.run_directory, part)
        answer = self._send(asked.ctx, asked.spec, process, part)
        if answer is not None:
            answer.add_done_callback(lambda answer: _end_if_deaf(process, answer))
        return part

    def again(self, ctx: RunContext, spec: ExecutionSpec, process: WarmProcess, part: Slice) -> None:
        """Send what an earlier node was about to send, or has sent."""
        self._send(ctx, spec, process, part)

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


def _part(
    asked: Asked, process: WarmProcess, *, resumed_id: str | None, start_facts: Mapping[str, str] | None = None
) -> Slice:
    return Slice(
        process=process.directory.name, offset=_present(process), resumed_id=resumed_id,
        state=dict(process.state), began_boot_s=boot_time_s(), start_facts=dict(start_facts or {}),
        is_again=asked.is_again,
    )  # fmt: skip


def _present(process: WarmProcess) -> int:
    """Where in its output the next turn begins: everything before was printed before it was sent."""
    fd = os.open(process.directory / STDOUT, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return line_start(fd, process.offset)
    finally:
        os.close(fd)


async def _is_taken(ctx: RunContext, answer: asyncio.Future[None]) -> bool:
    """False when the process is gone and has nothing of the turn."""
    stopped = asyncio.create_task(ctx.stopped())
    waits: list[asyncio.Future[Any]] = [answer, stopped]
    await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    stopped.cancel()
    problem = answer.exception() if answer.done() else None
    return not (isinstance(problem, InputRefused) and problem.written == 0)


def _end_if_deaf(process: WarmProcess, answer: asyncio.Future[None]) -> None:
    """A process that closed its stdin and lives on would never answer."""
    is_refused = not answer.cancelled() and isinstance(answer.exception(), InputRefused)
    if is_refused and process.is_alive:
        process.link.stop(steps=("term",), grace_s=DEAF_GRACE_S, reason="deaf")
