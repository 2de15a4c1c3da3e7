"""One process per run: follow its output file to the end, and decide how the run ended.

The same code follows a process that was just started and one that an earlier node left: it reads from the first byte,
and the emitter passes over what is stored already. The order of the end is fixed: evidence, terminal, then what is left
of the process tree is ended; only a run that was told to stop has its tree ended first.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from providers.cli.drivers.followed import Followed, stopped
from providers.cli.drivers.reading import Reading
from providers.cli.run_files import STDOUT, Diagnostics, discard_secrets
from runtime.events import start

LEFTOVERS_S = 3.0


@dataclass(slots=True, kw_only=True)
class OneShot(Followed):
    """A run whose process ends with it. *start_facts* are said with its start."""

    start_facts: Mapping[str, str] = field(default_factory=dict)
    is_told: bool = False
    """Its terminal is on its way to the readers, or there: no other node will take it up."""

    async def follow(self) -> None:
        """Report everything to the terminal, and return when nothing of the run is left.

        Raises:
            RunCancelled: the run was cancelled.
            FailureError: it was told to stop for another reason.
        """
        diagnostics = Diagnostics(self.redact)
        fd = os.open(self.directory / STDOUT, os.O_RDONLY | os.O_CLOEXEC)
        try:
            await self.sink.emit([start(**self.start_facts)])
            await _ToTheLastByte(self, fd, diagnostics).to_its_end()
            await self._conclude(diagnostics)
        except asyncio.CancelledError:  # the node ends; its warden does the rest alone
            if self.is_told:
                self._stop_survivors()
            raise
        except Exception:  # the host could not take an event, a full disk: nobody else would end the process
            await self._leave_nothing()
            discard_secrets(self.directory)
            raise
        finally:
            os.close(fd)
            if self.link is not None:
                await self.link.close()

    async def _conclude(self, diagnostics: Diagnostics) -> None:
        await self.remember_session()
        terminal = self.terminal(diagnostics)
        await asyncio.to_thread(diagnostics.store, self.directory)
        stop = self.ctx.stop  # one that comes later did not end the run
        self.is_told = True
        await self.sink.emit([terminal])
        await self._leave_nothing()
        discard_secrets(self.directory)
        if stop is not None:
            raise stopped(stop)

    async def _leave_nothing(self) -> None:
        """End what survived the terminal; readers do not wait for this, the session's next turn does."""
        if self.link is None or self.link.gone:
            return
        if not self.link.lost:
            self._stop_survivors()
            await self.link.wait_gone(self.ctx.cancel_grace_s + LEFTOVERS_S)
        if self.link.lost:
            await self.end_orphans()

    def _stop_survivors(self) -> None:
        if self.link is not None and not self.link.is_over and self.link.exit is None:
            self.link.stop(steps=self.cancel_steps, grace_s=self.ctx.cancel_grace_s, reason="finished")


class _ToTheLastByte(Reading):
    """Over when the process is gone, or stays although it has said its last."""

    _ended_at: float | None = None
    _is_stopping = False

    def is_over(self) -> bool:
        link, ctx = self.run.link, self.run.ctx
        if link is None or link.lost:
            return True
        if ctx.stop is not None:
            return link.gone
        if self.diagnostics.counts["shrunk"]:
            return True
        if self.run.decoder.has_ended:
            self._ended_at = self._ended_at or time.monotonic()
            return link.exit is not None or time.monotonic() - self._ended_at >= self.run.exit_grace_s
        return link.gone  # without a terminal frame what survives the process may still print one

    def act_on_stop(self) -> None:
        link, ctx = self.run.link, self.run.ctx
        if link is not None and ctx.stop is not None and not self._is_stopping:
            self._is_stopping = True
            link.stop(steps=self.run.cancel_steps, grace_s=ctx.cancel_grace_s, reason=ctx.stop.reason.value)

    def look_again_in(self) -> float | None:
        return None if self._ended_at is None else self.run.exit_grace_s
