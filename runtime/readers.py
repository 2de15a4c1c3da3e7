"""A caller's place in a run, and what a cursor may ask for."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import TracebackType

from runtime import journal
from runtime.coalesce import coalesce
from runtime.events import RuntimeEvent
from runtime.failure import CursorOutOfRange, InvalidRequest
from runtime.feed import Cursor
from runtime.records import RunRecord


class Reader:
    """One caller's place in a run. An open reader keeps a foreground run alive; close it, or use it as a context."""

    def __init__(self, run_id: str, cursor: Cursor, detach: Callable[[], None] | None = None) -> None:
        self.run_id, self._cursor, self._detach = run_id, cursor, detach

    async def read(self) -> list[RuntimeEvent]:
        """The next events in order; empty when the run has ended and everything was read.

        For a reader that is behind, adjacent deltas come merged.
        """
        is_behind = self._cursor.is_behind
        events = await self._cursor.read()
        return coalesce(events) if is_behind else events

    def close(self) -> None:
        """Leave; repeating does nothing."""
        self._cursor.close()
        detach, self._detach = self._detach, None
        if detach is not None:
            detach()

    def __enter__(self) -> Reader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def read_ended(record: RunRecord, directory: Path, after: int) -> Reader:
    """A reader on the journal of a run that has ended.

    Raises:
        CursorOutOfRange: beyond what is held, or the run was trimmed; the outcome is in the metadata.
    """
    end = journal.open_end(directory / journal.NAME) if record.spec is not None else journal.JournalEnd()
    if end.last is None:
        raise CursorOutOfRange(
            f"the events of run {record.run_id!r} are no longer held; it ended as {record.state.value}",
            run_id=record.run_id, outcome=record.state.value,
        )  # fmt: skip
    path = directory / journal.NAME
    check_cursor(record.run_id, after, first=journal.first_sequence(path), last=end.last.sequence)
    return Reader(record.run_id, Cursor(path, after=after, feed=None, last=end.last.sequence))


def check_cursor(run_id: str, after: int, *, first: int, last: int) -> None:
    """Refuse a place from which not every later event can be given.

    Raises:
        InvalidRequest: negative.
        CursorOutOfRange: before the first event held, or beyond the last.
    """
    if after < 0:
        raise InvalidRequest(f"after_sequence is {after}; use 0 for the beginning", field="after_sequence")
    if after > last:
        raise CursorOutOfRange(
            f"run {run_id!r} has events up to {last}; after_sequence {after} is beyond",
            first=str(first),
            last=str(last),
        )
    if 0 < after < first - 1:
        raise CursorOutOfRange(
            f"run {run_id!r} is held from event {first} on; {after} is too early", first=str(first), last=str(last)
        )
