"""One run being followed, whatever drives it: what is known of it, and what its end means.

The dialect judges what the agent said; here stands what comes before the dialect: a process that the node ended for a
reason of its own, an output that was cut from outside, a process that nobody can tell anything about.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from providers.cli.dialect import Decoder, Metered, ProcessEnd
from providers.cli.framing import Framing
from providers.cli.run_files import STDOUT, Diagnostics, stderr_tail
from providers.cli.tail import Tail
from providers.keeper.client import ExitRecord, WardenLink, clear_append_only, end_orphans, read_exit
from runtime.events import Draft, error
from runtime.failure import Failure, FailureCode, FailureError, RunCancelled
from runtime.provider import EventSink, RunContext, Stop, StopReason
from runtime.redact import Redactor
from runtime.types import RUN_ID

_STOP_CODES = {
    StopReason.DEADLINE: FailureCode.DEADLINE_EXCEEDED,
    StopReason.SILENCE: FailureCode.SILENCE_TIMEOUT,
    StopReason.OUTPUT_LIMIT: FailureCode.OUTPUT_LIMIT,
    StopReason.STORAGE_FULL: FailureCode.STORAGE_FULL,
    StopReason.BUDGET: FailureCode.BUDGET_EXHAUSTED,
    StopReason.SINK: FailureCode.INTERNAL,
}


@dataclass(slots=True, kw_only=True)
class Followed:
    """A run and its process. ``link`` is None when the process ended before this node looked.

    ``directory`` is the process's: output, stderr, owner and exit record are there.
    """

    directory: Path
    ctx: RunContext
    sink: EventSink
    decoder: Decoder
    framing: Framing
    tail: Tail
    redact: Redactor
    link: WardenLink | None
    cancel_steps: tuple[str, ...]
    exit_grace_s: float

    @property
    def exit(self) -> ExitRecord | None:
        return self.link.exit if self.link is not None and self.link.exit is not None else read_exit(self.directory)

    def process_end(self) -> ProcessEnd:
        record = self.exit
        tail = stderr_tail(self.directory, self.redact)
        return (
            ProcessEnd(stderr=tail)
            if record is None
            else ProcessEnd(code=record.code, signal=record.signal, stderr=tail)
        )

    def terminal(self, diagnostics: Diagnostics) -> Draft:
        """The terminal by evidence: the dialect's rule, unless the process was ended for a reason of ours before it.

        A run that was cut short has spent something too: what its agent told of that is in its terminal.
        """
        terminal, decoder = self._judged(diagnostics), self.decoder
        if terminal.usage is None and isinstance(decoder, Metered):
            terminal = msgspec.structs.replace(terminal, usage=decoder.usage_so_far)
        if terminal.failure is None:
            return terminal
        failure = without_secrets(terminal.failure, self.redact)
        return msgspec.structs.replace(terminal, text=failure.message, failure=failure)

    def _judged(self, diagnostics: Diagnostics) -> Draft:
        end, record = self.process_end(), self.exit
        if self.decoder.has_ended:
            return self.decoder.conclude(end)
        if diagnostics.counts["shrunk"]:
            return error(
                Failure(code=FailureCode.OUTPUT_INVALID, message="the agent's output file was cut from outside")
            )
        if record is None and not end.is_running:
            return self.decoder.conclude(end)
        if record is None:
            return error(_lost(end.stderr))
        if record.stopped == StopReason.DEADLINE:
            return error(
                Failure(code=FailureCode.DEADLINE_EXCEEDED, message="the run deadline passed", metadata=_facts(record))
            )
        return self.decoder.conclude(end)

    async def remember_session(self) -> None:
        """Keep the native id for the session's next run; what is not an id could become an option of the CLI."""
        native_id = self.decoder.native_id
        if native_id is not None and RUN_ID.fullmatch(native_id):
            await self.ctx.session.remember(native_id)

    async def end_orphans(self) -> None:
        """The warden was killed and cannot end its tree: whatever carries the process's marker is ours to end."""
        await asyncio.to_thread(end_orphans, self.directory.name)
        clear_append_only(self.directory / STDOUT)


def without_secrets(failure: Failure, redact: Redactor) -> Failure:
    """*failure* without the secrets that the agent was given: its own words about an error may repeat them."""
    facts = {name: redact.of_clipped(value) for name, value in failure.metadata.items()}
    return replace(failure, message=redact.of_clipped(failure.message), metadata=facts)


def stopped(stop: Stop) -> FailureError:
    """What a provider raises about a run that was told to stop."""
    if stop.reason is StopReason.CANCELLED:
        return RunCancelled(stop.message)
    return FailureError.of(Failure(code=_STOP_CODES[stop.reason], message=stop.message))


def _lost(stderr: str) -> Failure:
    tail = f"; stderr: {stderr}" if stderr else ""
    message = f"the node lost the agent's process before it had a result{tail}"
    return Failure(code=FailureCode.INTERRUPTED, message=message, metadata={"spawned": "true", "exit": "unknown"})


def _facts(record: ExitRecord) -> dict[str, str]:
    facts = {"killed": "true"} if record.killed else {}
    if record.code is not None:
        facts["exit_code"] = str(record.code)
    if record.signal is not None:
        facts["signal"] = str(record.signal)
    return facts
