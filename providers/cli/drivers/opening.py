"""The words with a fresh process before its first turn, for the agents that want some."""

from __future__ import annotations

import asyncio
import os

from providers.cli.dialect import Line, Opening, ProcessEnd, State, process_failure
from providers.cli.drivers.followed import stopped, without_secrets
from providers.cli.framing import Framing
from providers.cli.run_files import STDOUT, stderr_tail
from providers.cli.tail import Tail
from providers.cli.warm_processes import WarmProcess
from providers.keeper.client import InputRefused
from runtime.failure import Failure, FailureCode, FailureError
from runtime.provider import RunContext
from runtime.redact import Redactor

OPENING_TIMEOUT_S = 60.0
READ_BYTES = 64 * 1024


async def open_process(process: WarmProcess, opening: Opening, tail: Tail, ctx: RunContext, redact: Redactor) -> State:
    """Talk until the process takes turns; the state for the first of them.

    Raises:
        FailureError: it ended, said no, took too long, or the run was told to stop. The caller ends it.
    """
    if opening.is_over:
        return opening.state
    wake = asyncio.Event()
    ctx.on_stop(wake.set)
    process.link.on_change(wake.set)
    path = process.directory / STDOUT
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        with tail.watch(os.fsencode(path), fd, wake.set):
            async with asyncio.timeout(OPENING_TIMEOUT_S):
                _say(process, opening.first)
                await _converse(process, opening, fd, wake, ctx, redact)
    except TimeoutError as error:
        message = f"the agent did not open a session within {OPENING_TIMEOUT_S:g} s"
        raise FailureError.of(Failure(code=FailureCode.PROCESS_FAILED, message=message)) from error
    finally:
        os.close(fd)
    return opening.state


async def _converse(
    process: WarmProcess, opening: Opening, fd: int, wake: asyncio.Event, ctx: RunContext, redact: Redactor
) -> None:
    framing = Framing()
    while True:
        wake.clear()
        while data := os.pread(fd, READ_BYTES, framing.offset):
            for line in framing.feed(data):
                if isinstance(line, Line) and not opening.is_over:
                    _say(process, opening.hear(line))
                    process.unread = line.end
        if opening.is_over:
            return
        _check(process, opening, ctx, redact)
        await wake.wait()


def _check(process: WarmProcess, opening: Opening, ctx: RunContext, redact: Redactor) -> None:
    if opening.failure is not None:
        raise FailureError.of(without_secrets(opening.failure, redact))
    if ctx.stop is not None:
        raise stopped(ctx.stop)
    if (record := process.link.exit) is not None or process.link.is_over:
        stderr = stderr_tail(process.directory, redact)
        end = ProcessEnd(stderr=stderr) if record is None else ProcessEnd(
            code=record.code, signal=record.signal, stderr=stderr
        )  # fmt: skip
        raise FailureError.of(process_failure(end, detail="ended before it took a turn"))


def _say(process: WarmProcess, data: bytes) -> None:
    if data:
        try:
            process.link.send_input(data)
        except InputRefused:
            pass  # its end is seen as such
