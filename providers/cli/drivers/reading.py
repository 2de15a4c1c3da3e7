"""From the growing output file to the sink: the loop that every driver of a process has in common.

It reads in pieces, yields to other runs, wakes on output, on news of the process and on a request to stop, and counts
what was no event. When the reading is over, and what to do about a stop, is the driver's.
"""

from __future__ import annotations

import asyncio
import os
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence

from providers.cli.dialect import FromAgent, Line, Metered, Noise
from providers.cli.drivers.followed import Followed
from providers.cli.run_files import STDOUT, Diagnostics
from runtime.events import Draft
from runtime.provider import Stop, StopReason

READ_BYTES = 64 * 1024
TURN_BUDGET_S = 0.002  # a flooding run yields to the others this often
BACKLOG_S = 2.0  # a stopped run's output is still read for this long: a flood would delay its end by hours

_LIMITS = {
    "output_limit": Stop(reason=StopReason.OUTPUT_LIMIT, message="the agent printed more than the output limit"),
    "storage_full": Stop(reason=StopReason.STORAGE_FULL, message="the node's disk is full or below its watermark"),
}


class Reading(ABC):
    """Reads one run's output from byte *offset*, as *fd*, until the driver says that it is over."""

    def __init__(self, run: Followed, fd: int, diagnostics: Diagnostics, *, offset: int = 0) -> None:
        self.run, self.diagnostics = run, diagnostics
        self.offset = offset
        self.wake = asyncio.Event()
        self._fd = fd
        self._timer: asyncio.TimerHandle | None = None
        self._last_output = time.monotonic()
        self._gone_at: float | None = None
        self._metered = run.decoder if run.ctx.budget.bounds_usage and isinstance(run.decoder, Metered) else None

    # --- what a driver decides

    @abstractmethod
    def is_over(self) -> bool:
        """Whether the evidence of the end is complete. Called after everything that is there has been read."""

    @abstractmethod
    def act_on_stop(self) -> None:
        """The run was told to stop: see that it does. Called again and again while it has not."""

    def is_waiting_for_us(self) -> bool:
        """The agent says nothing because it was asked to wait; that is no silence."""
        return False

    def goes_on(self) -> bool:
        """The process prints on when the reading is over: a line that is not complete yet will be."""
        return False

    def look_again_in(self) -> float | None:
        """In how many seconds the driver wants to look again although nothing happens; None: not at all."""
        return None

    async def take(self, item: FromAgent) -> None:
        """The agent asks something, and waits for an answer; a process of one run has no way to give one."""
        self.diagnostics.note(Noise(kind="unanswered", detail=type(item).__name__))

    # --- the loop

    async def to_its_end(self) -> None:
        """Read until the evidence of the end is complete."""
        run = self.run
        run.ctx.on_stop(self.wake.set)
        if run.link is not None:
            run.link.on_change(self.wake.set)
        try:
            with run.tail.watch(os.fsencode(run.directory / STDOUT), self._fd, self.wake.set):
                await self._loop()
        finally:
            if self._timer is not None:
                self._timer.cancel()
        if run.link is not None and run.link.lost:
            await run.end_orphans()
            await self._drain()  # what they wrote until then
        if not self.goes_on():
            await self._report(run.framing.finish())

    async def _loop(self) -> None:
        while True:
            self.wake.clear()
            await self._drain()
            if self.is_over():
                return
            if self.run.link is not None and self.run.link.exit is None:
                self.run.ctx.caught_up.set()
            self.watch_bounds()
            self._arm_timer()
            await self.wake.wait()

    async def _drain(self) -> None:
        """Read to the present end of the file; an agent may write faster than this, so yield and look up now and then."""
        began = time.monotonic()
        while data := os.pread(self._fd, READ_BYTES, self.offset):
            self.offset += len(data)
            self._last_output = time.monotonic()
            await self._report(self.run.framing.feed(data))
            if time.monotonic() - began > TURN_BUDGET_S:
                await asyncio.sleep(0)
                self.watch_bounds()
                if self._has_read_enough():
                    break
                began = time.monotonic()
        if os.fstat(self._fd).st_size < self.offset and not self.diagnostics.counts["shrunk"]:
            self.diagnostics.note(Noise(kind="shrunk", detail=f"output ends before byte {self.offset} that was read"))

    async def _report(self, lines: Sequence[Line | Noise]) -> None:
        drafts: list[Draft] = []
        decoder, note = self.run.decoder, self.diagnostics.note
        for line in lines:
            for item in (line,) if isinstance(line, Noise) else decoder.decode(line):
                if isinstance(item, Draft):
                    drafts.append(item)
                elif isinstance(item, Noise):
                    note(item)
                else:  # in its place: what was said before a question is stored before it
                    await self._emit(drafts)
                    drafts = []
                    await self.take(item)
        await self._emit(drafts)
        if self._metered is not None:
            self._watch_budget(self._metered)

    def _watch_budget(self, metered: Metered) -> None:
        """An agent that has ended by itself did not go on beyond its budget: what it answered stands."""
        usage = None if self.run.decoder.has_ended else metered.usage_so_far
        if usage is not None and (why := self.run.ctx.budget.passed_by(usage)):
            self.run.ctx.request_stop(Stop(reason=StopReason.BUDGET, message=why))

    async def _emit(self, drafts: Sequence[Draft]) -> None:
        if drafts:
            await self.run.sink.emit(drafts)

    def _has_read_enough(self) -> bool:
        """The run was told to stop, nothing of it lives, and the rest of its output is not worth the wait."""
        link = self.run.link
        if self.run.ctx.stop is None or not (link is None or link.gone or link.lost):
            return False
        self._gone_at = self._gone_at or time.monotonic()
        return time.monotonic() - self._gone_at >= BACKLOG_S

    def watch_bounds(self) -> None:
        """Tell the run to stop where a bound is crossed, and see to it that a stop is obeyed."""
        ctx, link = self.run.ctx, self.run.link
        if link is None:
            return
        if (
            link.limit is not None and not self.run.decoder.has_ended
        ):  # with its last frame whole it has succeeded or not
            ctx.request_stop(_LIMITS[link.limit])
        if self.is_waiting_for_us():
            self.heard_from()
        silence = ctx.silence_s
        if silence is not None and time.monotonic() - self._last_output >= silence:
            ctx.request_stop(Stop(reason=StopReason.SILENCE, message=f"no output was seen for {silence:g} s"))
        if ctx.stop is not None:
            self.act_on_stop()

    def heard_from(self) -> None:
        """The agent is not silent, it waits for us."""
        self._last_output = time.monotonic()

    def _arm_timer(self) -> None:
        """One timer that looks again when the driver wants to, or silence could be over; output does not re-arm it."""
        if (delay := self.look_again_in()) is not None:
            self._set_timer(delay)
        elif self._timer is None and (silence := self.run.ctx.silence_s) is not None:
            self._set_timer(max(0.0, self._last_output + silence - time.monotonic()))

    def _set_timer(self, delay: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(delay + 0.001, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        self.wake.set()
