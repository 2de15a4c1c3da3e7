"""How readers follow a run: each is a cursor with its own pace, and the run never waits for one.

A live run has one feed: the last events in memory, bounded in bytes, and it wakes the readers that have
caught up. A reader that is behind reads the journal; a run that has ended is its journal alone.
"""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from types import TracebackType

from runtime import journal
from runtime.coalesce import BEHIND
from runtime.events import RuntimeEvent
from runtime.failure import CursorOutOfRange

READ_LIMIT = 64
_EVENT_OVERHEAD = 200  # bytes of a record beside its text, for the ring's bound


class Feed:
    """What is visible of one live run. ``published`` is the last visible sequence; nothing beyond may reach a reader."""

    def __init__(self, *, published: int = 0, ring_bytes: int = 256 * 1024) -> None:
        self.published = published
        self.has_ended = False
        self._ring: deque[RuntimeEvent] = deque()
        self._ring_bytes, self._held = ring_bytes, 0
        self._waiters: list[asyncio.Future[None]] = []

    def publish(self, events: Sequence[RuntimeEvent]) -> None:
        """Make *events*, already in the journal, visible."""
        self._ring.extend(events)
        self._held += sum(_weight(event) for event in events)
        while self._held > self._ring_bytes and len(self._ring) > 1:
            self._held -= _weight(self._ring.popleft())
        self.published = events[-1].sequence
        self.wake()

    def end(self) -> None:
        """No more events will come."""
        self.has_ended = True
        self.wake()

    def wake(self) -> None:
        """Let every waiting reader look again."""
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    async def changed(self) -> None:
        """Wait for the next :meth:`publish` or :meth:`end`."""
        waiter = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        try:
            await waiter
        finally:
            if waiter.cancelled() and waiter in self._waiters:
                self._waiters.remove(waiter)

    def recent(self, after: int, limit: int) -> list[RuntimeEvent] | None:
        """Up to *limit* events beyond *after* from memory; None when memory no longer reaches back that far."""
        if not self._ring or after < self._ring[0].sequence - 1:
            return None
        first = min(after - self._ring[0].sequence + 1, len(self._ring))
        while first and self._ring[first - 1].sequence > after:  # numbers may have a gap
            first -= 1
        return list(islice(self._ring, first, first + limit))

    def beyond(self, after: int) -> list[RuntimeEvent]:
        """What memory holds beyond *after*, though there may have been more between."""
        return [event for event in self._ring if event.sequence > after]


def _weight(event: RuntimeEvent) -> int:
    return _EVENT_OVERHEAD + len(event.delta) + len(event.message)


class Cursor:
    """One reader's place in one run. Used by one task; close it, or use it as a context."""

    def __init__(self, path: Path, *, after: int, feed: Feed | None, last: int) -> None:
        self._path, self._feed, self._last = path, feed, last
        self.after = after
        self._fd: int | None = None
        self._offset = 0

    @property
    def is_at_end(self) -> bool:
        """Every event there will ever be has been read."""
        return self.after >= self._visible() and (self._feed is None or self._feed.has_ended)

    @property
    def is_behind(self) -> bool:
        """More events wait than a reader that keeps up ever sees."""
        return self._visible() - self.after > BEHIND

    async def read(self) -> list[RuntimeEvent]:
        """The next events, in order, at most 64 of them; empty when the run has ended and all was read.

        Waits while there is nothing to read and the run lives.
        """
        while True:
            if self.after < self._visible():
                events = self._from_memory() or self._from_journal() or self._unstored()
                if events:
                    self.after = events[-1].sequence
                    return events
            if self.is_at_end or self._feed is None:
                return []
            await self._feed.changed()

    def _visible(self) -> int:
        return self._last if self._feed is None else self._feed.published

    def _from_memory(self) -> list[RuntimeEvent] | None:
        if self._feed is None:
            return None
        events = self._feed.recent(self.after, READ_LIMIT)
        if events and self._fd is not None:
            self._release()  # memory moves on without the file offset: a later fall-back seeks again
        return events

    def _from_journal(self) -> list[RuntimeEvent]:
        if self._fd is None:
            try:
                self._fd = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
            except FileNotFoundError as error:
                raise CursorOutOfRange("the run's events were let go of meanwhile; only its outcome is held") from error
            self._offset = journal.seek(self._fd, self.after)
        events, self._offset = journal.read(self._fd, self._offset, through=self._visible())
        return events

    def _unstored(self) -> list[RuntimeEvent]:
        """What is visible and was not stored: the terminal that a full disk did not take."""
        return [] if self._feed is None else self._feed.beyond(self.after)

    def _release(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def close(self) -> None:
        """Forget the place. Safe to repeat."""
        self._release()

    def __enter__(self) -> Cursor:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
