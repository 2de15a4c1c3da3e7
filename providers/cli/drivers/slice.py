"""One turn of a warm process: follow its part of the output to the end of the turn, and leave the process fit for the next.

The end is the dialect's terminal frame, or the end of the process. A cancel asks in-band first where the profile lists
``interrupt``: when the turn ends by that within its share of the grace, and no process that this turn started is left, the
process stays; otherwise the ladder ends the whole tree, and the session's next turn has a fresh process. An interrupt is
only ever sent by the reading of its own turn, which is why a late one cannot hit the next.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from dataclasses import dataclass
from pathlib import Path

import msgspec

from providers.cli.dialect import Conversation, FromAgent
from providers.cli.drivers.asking import Asking
from providers.cli.drivers.followed import Followed, stopped
from providers.cli.drivers.reading import Reading
from providers.cli.drivers.verbs import Verbs
from providers.cli.run_files import (
    INTERRUPT,
    LAUNCH,
    STDERR,
    STDOUT,
    Diagnostics,
    Slice,
    copy_part,
)
from providers.cli.warm_processes import WarmProcess, WarmProcesses
from providers.keeper.client import InputRefused, WardenLink
from providers.keeper.run_directory import EXIT, OWNER
from providers.keeper.tree import started_since
from runtime.events import Draft, EventType, start
from runtime.failure import FailureCode
from runtime.provider import Stop, StopReason

log = logging.getLogger(__name__)

IN_BAND = "interrupt"
COPIED_BYTES = 1 << 20  # of what is bounded anyway
LEFTOVERS_S = 3.0
LOOKS = 2  # a tool whose parent ends at the moment of a look is found by the next
TOOLS_GONE_S = 0.5  # an agent that ends its tools at an interrupt has done so by the time it confirms it


class NotRead(Exception):
    """The process ended without having read anything of the turn; nothing was reported of it, and nothing is left."""


@dataclass(slots=True, kw_only=True)
class Turn(Followed):
    """A turn being followed; ``decoder`` is its conversation, ``process`` None when it ended before this node looked."""

    run_directory: Path
    part: Slice
    conversation: Conversation
    process: WarmProcess | None
    warm: WarmProcesses
    output_bytes: int
    keeps_warm: bool
    keeps_raw: bool
    outcome: Draft | None = None
    is_told: bool = False
    """Its terminal is on its way to the readers, or there: no other node will take it up."""

    async def follow(self) -> None:
        """Report everything to the terminal; on return the process is idle, or nothing of it is left.

        Raises:
            RunCancelled: the run was cancelled.
            FailureError: it was told to stop for another reason.
            NotRead: the turn is still to be done.
        """
        diagnostics = Diagnostics(self.redact)
        fd = os.open(self.directory / STDOUT, os.O_RDONLY | os.O_CLOEXEC)
        reading = TurnReading(self, fd, diagnostics)
        self.ctx.take_input = reading.verbs.take
        try:
            if not self.part.is_again:
                await self.sink.emit([start(**self.part.start_facts)])
            await reading.to_its_end()
            await self._conclude(reading, diagnostics)
        except asyncio.CancelledError:  # the node ends
            if not self.is_told:
                self._leave()
            elif self.process is None or self.process.is_busy:
                self._dispose()
            raise
        except NotRead:
            self._dispose()
            raise
        except Exception:  # the host could not take the events: nobody would hear the rest
            if self.outcome is None:
                await self._end_process("failed")
                self._dispose()
            raise
        finally:
            self.ctx.take_input = None
            await reading.close()
            os.close(fd)

    async def _conclude(self, reading: TurnReading, diagnostics: Diagnostics) -> None:
        stop = self.ctx.stop  # one that comes later did not end the run
        record = self.exit
        if record is not None and self.run_directory.name in record.unread and stop is None:
            raise NotRead
        await self.remember_session()
        is_fit = await self._is_fit(reading, stop)
        if stop is not None and not is_fit:
            await self._end_process(stop.reason.value)
        terminal = self._told(self.terminal(diagnostics), was_interrupted=reading.verbs.was_interrupted)
        self.is_told = True
        await self.sink.emit([terminal])
        self.outcome = terminal
        reading.verbs.ended.set()
        await asyncio.to_thread(self._leave_files, reading.offset, diagnostics)
        if is_fit:
            reading.asking.refuse_what_is_open()
            await self._give_back(reading.offset)
        else:
            await self._end_process("finished")
            self._dispose()
        if stop is not None:
            raise stopped(stop)

    def _told(self, terminal: Draft, *, was_interrupted: bool) -> Draft:
        """A turn that was interrupted because somebody asked for it is a cancelled one."""
        if self.part.is_again:  # its start was told before these facts were so
            terminal = msgspec.structs.replace(terminal, metadata={**terminal.metadata, **self.part.start_facts})
        failure = terminal.failure
        if not was_interrupted or failure is None or failure.code is not FailureCode.INTERRUPTED:
            return terminal
        return msgspec.structs.replace(terminal, type=EventType.CANCELLED, text="interrupted on request", failure=None)

    async def _is_fit(self, reading: TurnReading, stop: Stop | None) -> bool:
        """Whether the process may go on to the next turn."""
        if not self._is_idle or reading.diagnostics.counts["shrunk"]:
            return False
        if stop is None:
            return not reading.verbs.was_interrupted or await self._has_no_tool_left()
        return stop.reason is StopReason.CANCELLED and IN_BAND in self.cancel_steps and await self._has_no_tool_left()

    @property
    def _is_idle(self) -> bool:
        """The process lives, its turn is over, and it can be spoken with."""
        is_alive = self.process is not None and self.process.is_alive
        return is_alive and self.conversation.has_ended and self.conversation.is_usable

    async def _has_no_tool_left(self) -> bool:
        assert self.link is not None and self.link.owner is not None
        ends_at = time.monotonic() + min(TOOLS_GONE_S, self.ctx.cancel_grace_s)
        looks = 0
        while looks < LOOKS:
            left = await asyncio.to_thread(started_since, self.link.owner.pid, self.part.began_boot_s)
            if left and time.monotonic() >= ends_at:
                return False
            looks = 0 if left else looks + 1
            await asyncio.sleep(0.02 * max(1, min(len(left), 5)))
        return True

    async def _end_process(self, reason: str) -> None:
        """End the tree, or what is left of it; bounded."""
        if self.process is None:
            return
        link = self.process.link
        signals = tuple(step for step in self.cancel_steps if step != IN_BAND)
        if link.exit is None and not link.is_over:
            link.stop(steps=signals, grace_s=self.ctx.cancel_grace_s if signals else 0.0, reason=reason)
        await link.wait_gone(self.ctx.cancel_grace_s + LEFTOVERS_S)

    def _dispose(self) -> None:
        """Nothing is read any more from the directory of a process that has ended."""
        if self.process is not None:
            self.warm.end(self.process)
        else:
            self.warm.forget(self.directory)

    async def _give_back(self, printed_bytes: int) -> None:
        assert self.process is not None
        process = self.process
        process.link.set_deadline(None)
        process.state, process.printed_bytes = self.conversation.state, printed_bytes
        process.unread = self.framing.line_begin
        if self.keeps_warm:
            self.warm.give_back(process)
        else:
            await asyncio.wait([self.warm.end(process)], timeout=LEFTOVERS_S)

    def _leave(self) -> None:
        """The node ends, and the turn goes on without it."""
        if self.process is not None:
            self.warm.leave(self.process)

    def _leave_files(self, end: int, diagnostics: Diagnostics) -> None:
        """Put beside the run what is the run's; its process's directory goes with the process."""
        diagnostics.store(self.run_directory)
        if self.keeps_raw:
            self._copy(STDOUT, self.part.offset, end)
            self._copy(STDERR, 0, COPIED_BYTES)
        for name in (OWNER, EXIT, LAUNCH):  # with the last one here, the run directory has all of them
            self._copy(name, 0, COPIED_BYTES)

    def _copy(self, name: str, begin: int, end: int) -> None:
        try:
            copy_part(self.directory / name, begin, end, self.run_directory / name)
        except OSError:
            log.warning("a file of a run was not kept", extra={"run": self.run_directory.name, "file": name})


class TurnReading(Reading):
    """Over when the turn has ended, or the process has."""

    def __init__(self, turn: Turn, fd: int, diagnostics: Diagnostics) -> None:
        super().__init__(turn, fd, diagnostics, offset=turn.part.offset)
        self.turn = turn
        self.verbs = Verbs(
            run_directory=turn.run_directory, conversation=turn.conversation, link=turn.link,
            grace_s=turn.ctx.cancel_grace_s, is_stopping=lambda: turn.ctx.stop is not None,
            send_interrupt=lambda: turn.link is not None and self._send_interrupt(turn.link) is not None,
            was_cancelled=lambda: turn.outcome is not None and turn.outcome.type is EventType.CANCELLED,
            was_interrupted=(turn.run_directory / INTERRUPT).exists(),
        )  # fmt: skip
        self.asking = Asking(
            run_directory=turn.run_directory, conversation=turn.conversation, link=turn.link, sink=turn.sink,
            desk=turn.ctx.permissions, on_answer=self._note_answered,
        )  # fmt: skip
        self._interrupts = 0
        self._stop_began: float | None = None
        self._has_asked_to_stop = False
        self._is_killing = False

    def is_over(self) -> bool:
        self.verbs.progress.set()
        link, turn = self.turn.link, self.turn
        if link is None or link.is_over:
            return True
        if self._is_killing:
            return False
        return turn.conversation.has_ended or bool(self.diagnostics.counts["shrunk"])

    def is_waiting_for_us(self) -> bool:
        return self.asking.is_open

    def goes_on(self) -> bool:
        return self.turn.process is not None and self.turn.process.is_alive

    # --- the ladder

    def act_on_stop(self) -> None:
        turn, link, stop = self.turn, self.turn.link, self.turn.ctx.stop
        if link is None or stop is None or self._is_killing or turn.conversation.has_ended:
            return
        self._stop_began = self._stop_began or time.monotonic()
        if stop.reason is StopReason.CANCELLED and IN_BAND in turn.cancel_steps and self._share_left() > 0:
            if not self._has_asked_to_stop:
                self._has_asked_to_stop = self._send_interrupt(link) is not None
            return
        self._is_killing = True
        signals = tuple(step for step in turn.cancel_steps if step != IN_BAND)
        left_s = max(0.0, turn.ctx.cancel_grace_s - (time.monotonic() - self._stop_began))
        link.stop(steps=signals, grace_s=left_s if signals else 0.0, reason=stop.reason.value)

    def look_again_in(self) -> float | None:
        if self._stop_began is None or self._is_killing:
            return None
        return max(0.0, self._share_left())

    def watch_bounds(self) -> None:
        if self.offset - self.turn.part.offset > self.turn.output_bytes:
            reason = StopReason.OUTPUT_LIMIT
            self.turn.ctx.request_stop(Stop(reason=reason, message="the agent printed more than the output limit"))
        super().watch_bounds()

    def _share_left(self) -> float:
        """How long the agent may still take to stop by itself: the steps share the grace evenly."""
        assert self._stop_began is not None
        share = self.turn.ctx.cancel_grace_s / len(self.turn.cancel_steps)
        return self._stop_began + share - time.monotonic()

    def _send_interrupt(self, link: WardenLink) -> asyncio.Future[None] | None:
        """Ask in-band; None when the agent cannot be asked."""
        if (data := self.turn.conversation.interrupt()) is None:
            return None
        self._interrupts += 1
        try:
            return link.send_input(data, key=f"{self.turn.run_directory.name} interrupt {self._interrupts}")
        except InputRefused:
            return None

    # --- questions

    async def take(self, item: FromAgent) -> None:
        await self.asking.take(item)

    def _note_answered(self) -> None:
        self.heard_from()
        self.wake.set()

    async def close(self) -> None:
        """Nobody waits for an answer any more."""
        self.verbs.ended.set()
        self.verbs.progress.set()
        await self.asking.close()
