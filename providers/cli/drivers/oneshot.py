"""One process per run: follow its output file to the end, and decide how the run ended.

The same code follows a process that was just started and one that an earlier node left: it reads from the first byte,
and the emitter passes over what is stored already. The order of the end is fixed: evidence, terminal, then what is left
of the process tree is ended; only a run that was told to stop has its tree ended first.
"""

from __future__ import annotations

import asyncio
import os
import time
from dataclasses import dataclass
from pathlib import Path

from providers.cli.dialect import Decoder, Noise, ProcessEnd
from providers.cli.framing import Framing
from providers.cli.run_files import STDOUT, Diagnostics, discard_input, stderr_tail
from providers.cli.tail import Tail
from providers.keeper.client import ExitRecord, WardenLink, clear_append_only, end_orphans, read_exit
from runtime.events import Draft, error
from runtime.failure import Failure, FailureCode, FailureError, RunCancelled
from runtime.provider import EventSink, RunContext, Stop, StopReason
from runtime.redact import Redactor
from runtime.types import RUN_ID

READ_BYTES = 64 * 1024
TURN_BUDGET_S = 0.002  # a flooding run yields to the others this often
LEFTOVERS_S = 3.0
BACKLOG_S = 2.0  # a stopped run's output is still read for this long: a flood would delay its end by hours
GONE_EXTRA_S = 5.0  # beyond the grace: the kill walk itself is bounded by the kernel

_STOP_CODES = {
    StopReason.DEADLINE: FailureCode.DEADLINE_EXCEEDED,
    StopReason.SILENCE: FailureCode.SILENCE_TIMEOUT,
    StopReason.OUTPUT_LIMIT: FailureCode.OUTPUT_LIMIT,
    StopReason.STORAGE_FULL: FailureCode.STORAGE_FULL,
    StopReason.SINK: FailureCode.INTERNAL,
}
_LIMITS = {
    "output_limit": Stop(reason=StopReason.OUTPUT_LIMIT, message="the agent printed more than the output limit"),
    "storage_full": Stop(reason=StopReason.STORAGE_FULL, message="the node's disk is full or below its watermark"),
}


@dataclass(slots=True, kw_only=True)
class OneShot:
    """One run being followed. ``link`` is None when its process ended before this node looked."""

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

    async def follow(self) -> None:
        """Report everything to the terminal, and return when nothing of the run is left.

        Raises:
            RunCancelled: the run was cancelled.
            FailureError: it was told to stop for another reason.
        """
        diagnostics = Diagnostics(self.redact)
        path = self.directory / STDOUT
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            await _Reading(self, fd, os.fsencode(path), diagnostics).to_its_end()
            await self._conclude(diagnostics)
        finally:
            os.close(fd)
            if self.link is not None:
                await self.link.close()

    async def _conclude(self, diagnostics: Diagnostics) -> None:
        native_id = self.decoder.native_id
        if native_id is not None and RUN_ID.fullmatch(native_id):  # what is not an id could become an option of the CLI
            await self.ctx.session.remember(native_id)
        terminal = self._terminal(diagnostics)
        await asyncio.to_thread(diagnostics.store, self.directory)
        stop = self.ctx.stop  # one that comes later did not end the run
        await self.sink.emit([terminal])
        await self._leave_nothing()
        discard_input(self.directory)
        if stop is not None:
            raise _stopped(stop)

    def _terminal(self, diagnostics: Diagnostics) -> Draft:
        """The terminal by evidence: the dialect's rule, unless the process was ended for a reason of ours before it."""
        end, record = self._process_end(), self.exit
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

    @property
    def exit(self) -> ExitRecord | None:
        return self.link.exit if self.link is not None and self.link.exit is not None else read_exit(self.directory)

    def _process_end(self) -> ProcessEnd:
        record = self.exit
        tail = stderr_tail(self.directory, self.redact)
        return (
            ProcessEnd(stderr=tail)
            if record is None
            else ProcessEnd(code=record.code, signal=record.signal, stderr=tail)
        )

    async def end_orphans(self) -> None:
        """The warden was killed and cannot end its tree: whatever carries the run's marker is ours to end."""
        await asyncio.to_thread(end_orphans, self.directory.name)
        clear_append_only(self.directory / STDOUT)

    async def _leave_nothing(self) -> None:
        """End what survived the terminal; readers do not wait for this, the session's next turn does."""
        if self.link is None or self.link.gone or self.link.lost:
            return
        if self.link.exit is None:
            self.link.stop(steps=self.cancel_steps, grace_s=self.ctx.cancel_grace_s, reason="finished")
        await self.link.wait_gone(self.ctx.cancel_grace_s + LEFTOVERS_S)


class _Reading:
    """The reading side: bytes to drafts, and when to stop reading."""

    def __init__(self, run: OneShot, fd: int, path: bytes, diagnostics: Diagnostics) -> None:
        self._run, self._fd, self._path, self._diagnostics = run, fd, path, diagnostics
        self._offset = 0
        self._wake = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None
        self._last_output = time.monotonic()
        self._ended_at: float | None = None
        self._gone_at: float | None = None
        self._is_stopping = False

    async def to_its_end(self) -> None:
        """Read until the evidence of the end is complete."""
        run = self._run
        run.ctx.on_stop(self._wake.set)
        if run.link is not None:
            run.link.on_change(self._wake.set)
        try:
            with run.tail.watch(self._path, self._fd, self._wake.set):
                await self._loop()
        finally:
            if self._timer is not None:
                self._timer.cancel()
        if run.link is not None and run.link.lost:
            await run.end_orphans()
            await self._drain()  # what they wrote until then
        await self._report(run.framing.finish())

    async def _loop(self) -> None:
        while True:
            self._wake.clear()
            await self._drain()
            if self._is_over():
                return
            if self._run.link is not None and self._run.link.exit is None:
                self._run.ctx.caught_up.set()
            self._act_on_stop()
            self._arm_timer()
            await self._wake.wait()

    async def _drain(self) -> None:
        """Read to the present end of the file; an agent may write faster than this, so yield and look up now and then."""
        began = time.monotonic()
        while data := os.pread(self._fd, READ_BYTES, self._offset):
            self._offset += len(data)
            self._last_output = time.monotonic()
            await self._report(self._run.framing.feed(data))
            if time.monotonic() - began > TURN_BUDGET_S:
                await asyncio.sleep(0)
                self._act_on_stop()
                if self._has_read_enough():
                    break
                began = time.monotonic()
        if os.fstat(self._fd).st_size < self._offset and not self._diagnostics.counts["shrunk"]:
            self._diagnostics.note(Noise(kind="shrunk", detail=f"output ends before byte {self._offset} that was read"))

    async def _report(self, lines: list) -> None:  # type: ignore[type-arg]
        drafts: list[Draft] = []
        decoder, note = self._run.decoder, self._diagnostics.note
        for line in lines:
            for item in (line,) if isinstance(line, Noise) else decoder.decode(line):
                if isinstance(item, Draft):
                    drafts.append(item)
                else:
                    note(item)
        if drafts:
            await self._run.sink.emit(drafts)

    def _has_read_enough(self) -> bool:
        """The run was told to stop, nothing of it lives, and the rest of its output is not worth the wait."""
        link = self._run.link
        if self._run.ctx.stop is None or not (link is None or link.gone or link.lost):
            return False
        self._gone_at = self._gone_at or time.monotonic()
        return time.monotonic() - self._gone_at >= BACKLOG_S

    def _is_over(self) -> bool:
        link, ctx = self._run.link, self._run.ctx
        if link is None or link.lost:
            return True
        if ctx.stop is not None:
            return link.gone
        if self._diagnostics.counts["shrunk"]:
            return True
        if self._run.decoder.has_ended:
            self._ended_at = self._ended_at or time.monotonic()
            return link.exit is not None or time.monotonic() - self._ended_at >= self._run.exit_grace_s
        return link.gone  # without a terminal frame what survives the process may still print one

    def _act_on_stop(self) -> None:
        run = self._run
        if run.link is None:
            return
        if run.link.limit is not None:
            run.ctx.request_stop(_LIMITS[run.link.limit])
        silence = run.ctx.silence_s
        if silence is not None and time.monotonic() - self._last_output >= silence:
            run.ctx.request_stop(Stop(reason=StopReason.SILENCE, message=f"no output was seen for {silence:g} s"))
        if run.ctx.stop is not None and not self._is_stopping:
            self._is_stopping = True
            run.link.stop(steps=run.cancel_steps, grace_s=run.ctx.cancel_grace_s, reason=run.ctx.stop.reason.value)

    def _arm_timer(self) -> None:
        """One timer that looks again when silence or the exit grace could be over; output does not re-arm it."""
        if self._ended_at is not None:
            self._set_timer(self._run.exit_grace_s)
        elif self._timer is None and (silence := self._run.ctx.silence_s) is not None:
            self._set_timer(max(0.0, self._last_output + silence - time.monotonic()))

    def _set_timer(self, delay: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(delay + 0.001, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        self._wake.set()


def _stopped(stop: Stop) -> FailureError:
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
