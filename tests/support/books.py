"""The books of a run: what its agent wrote, what the journal holds, what a reader got; and whether the three agree.

What the agent wrote is decoded again from its raw output with the run's dialect. Every output event of the journal must be
one of those, each once, in order; a reader must have got every event, adjacent deltas merged at most.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from providers.cli.dialect import Decoder, Line, TurnContext
from providers.cli.dialects import claude_stream_json
from runtime.emitter import split_text
from runtime.events import Draft, EventType, RuntimeEvent

STDOUT, JOURNAL = "stdout", "events.jsonl"

CUT_SHORT = frozenset({"cancelled", "deadline_exceeded", "output_limit", "storage_full", "silence_timeout", "internal"})
"""Ends after which output may be left unread: a run that was told to stop, or that the disk did not take."""

Place = tuple[int, int, int]
"""Where in the output an event comes from: end of its line, index in it, piece of that."""

_decode = msgspec.json.Decoder(RuntimeEvent).decode_lines


def stored_events(directory: Path) -> list[RuntimeEvent]:
    """The journal of the run in *directory*; empty when there is none."""
    path = directory / JOURNAL
    return _decode(path.read_bytes()) if path.exists() else []


def written(directory: Path, decoder: Decoder | None = None) -> list[tuple[Place, str, str]]:
    """(place, type, text) of everything that the agent of the run in *directory* wrote and that is an event."""
    decoder = decoder or claude_stream_json.decoder(TurnContext())
    found: list[tuple[Place, str, str]] = []
    end = 0
    for data in (directory / STDOUT).read_bytes().split(b"\n")[:-1]:
        end += len(data) + 1
        for item in decoder.decode(Line(data=data, end=end)) if data else ():
            if isinstance(item, Draft):
                texts = [""] if item.type is EventType.ACTIVITY else split_text(item.text)
                found += [((item.offset, item.index, n), item.type.value, text) for n, text in enumerate(texts)]
    return found


@dataclass(slots=True, kw_only=True)
class Books:
    """The sums over many runs. All but the first three must be zero."""

    accepted: int = 0
    terminal: int = 0
    events: int = 0
    lost: int = 0
    duplicated: int = 0
    out_of_order: int = 0
    unexplained: int = 0
    orphans: int = 0
    problems: list[str] = field(default_factory=list)

    @property
    def is_balanced(self) -> bool:
        bad = self.lost + self.duplicated + self.out_of_order + self.unexplained + self.orphans
        return self.accepted == self.terminal and not bad and not self.problems

    def report(self) -> str:
        """One line."""
        return (
            f"accepted {self.accepted} terminal {self.terminal} events {self.events} lost {self.lost} "
            f"duplicated {self.duplicated} out of order {self.out_of_order} orphans {self.orphans} "
            f"unexplained terminals {self.unexplained}"
        )

    def add(self, other: Books) -> None:
        """Take over the sums of *other*."""
        for name in ("accepted", "terminal", "events", "lost", "duplicated", "out_of_order", "unexplained", "orphans"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.problems += other.problems

    # -- one run

    def check_run(
        self, run_id: str, directory: Path, expected: Iterable[str], decoder: Decoder | None = None, *,
        was_full: bool = False,
    ) -> None:  # fmt: skip
        """Compare the journal with the raw output; *expected* are the terminals that what happened to the run allows.

        The disk of the run *was_full*: the numbers of events that it did not take may be missing, whatever the end.
        """
        self.accepted += 1
        stored = stored_events(directory)
        self.events += len(stored)
        terminals = [event for event in stored if event.is_terminal]
        may_have_gap = was_full or (bool(terminals) and outcome_of(terminals[0]) in CUT_SHORT)
        self._check_sequences(run_id, stored, may_have_gap=may_have_gap)
        if len(terminals) != 1 or not stored[-1].is_terminal:
            self.problems.append(f"{run_id}: {len(terminals)} terminals, last {stored[-1].type if stored else None}")
            return
        self.terminal += 1
        outcome = outcome_of(terminals[0])
        if outcome not in set(expected):
            self.unexplained += 1
            self.problems.append(f"{run_id}: ended as {outcome}: {terminals[0].error or terminals[0].message!r:.300}")
        if (directory / STDOUT).exists():
            self._check_output(run_id, stored, written(directory, decoder), may_be_cut=outcome in CUT_SHORT)

    def _check_sequences(self, run_id: str, stored: Sequence[RuntimeEvent], *, may_have_gap: bool) -> None:
        """1, 2, 3 …; the numbers of events that a full disk did not take are not used again, so a gap shows them."""
        numbers = [event.sequence for event in stored]
        wanted = sorted(set(numbers)) if may_have_gap else list(range(1, len(numbers) + 1))
        if numbers != wanted:
            self.duplicated += len(numbers) - len(set(numbers))
            self.out_of_order += numbers != sorted(numbers)
            self.problems.append(
                f"{run_id}: sequences are not 1..{len(numbers)} but {numbers[:3]}..{numbers[-3:]}: {stored[-1]}"
            )

    def _check_output(
        self, run_id: str, stored: Sequence[RuntimeEvent], wrote: Sequence[tuple[Place, str, str]], *, may_be_cut: bool
    ) -> None:
        """Every output event once and in order; nothing left out but the end of a run that was cut short."""
        got = [((e.offset, e.index, e.piece), e.type.value, e.delta) for e in stored if e.offset >= 0]
        places = [place for place, _, _ in got]
        doubled = len(places) - len(set(places))
        self.duplicated += doubled
        self.out_of_order += places != sorted(places)
        missing = len(set(wrote[: len(got)]) - set(got)) if may_be_cut else len(set(wrote) - set(got))
        self.lost += missing
        strange = len(set(got) - set(wrote))
        if doubled or missing or strange or places != sorted(places):
            self.problems.append(f"{run_id}: {missing} lost, {doubled} doubled, {strange} the agent never wrote")

    def check_reader(
        self, run_id: str, directory: Path, received: Sequence[RuntimeEvent], *, after: int = 0, to_the_end: bool = True
    ) -> None:
        """What one reader got from cursor *after* on: every stretch of the journal once, deltas merged at most."""
        stored = [e for e in stored_events(directory) if e.type is not EventType.ACTIVITY and e.sequence > after]
        known = {event.sequence: n for n, event in enumerate(stored)}
        position = 0
        for event in received:
            at = known.get(event.sequence)
            if at is None or at < position:
                self.duplicated += 1
                self.problems.append(f"{run_id}: a reader got {event.sequence} again, or it is no event")
                return
            stretch = stored[position : at + 1]
            if "".join(e.delta for e in stretch) != event.delta or any(e.type is not event.type for e in stretch):
                self.lost += 1
                self.problems.append(f"{run_id}: a reader got something else up to {event.sequence}")
                return
            position = at + 1
        if to_the_end and position != len(stored):
            self.lost += len(stored) - position
            lacking = len(stored) - position
            self.problems.append(f"{run_id}: a reader from {after} has {len(received)} and lacks {lacking} at the end")


def outcome_of(terminal: RuntimeEvent) -> str:
    """``complete``, ``cancelled``, or the code of the failure."""
    return terminal.failure.code if terminal.failure is not None else terminal.type.value


def assert_whole(run_id: str, directory: Path, *expected: str, received: Sequence[RuntimeEvent] | None = None) -> None:
    """The run's books balance, it ended as one of *expected* (``complete`` when none is given), and *received* is all of it."""
    books = Books()
    books.check_run(run_id, directory, expected or ("complete",))
    if received is not None:
        books.check_reader(run_id, directory, received)
    assert books.is_balanced, books.problems


def directory_of(directories: Iterable[Path], run_id: str) -> Path:
    """The directory, among *directories*, whose journal tells of *run_id*."""
    for directory in directories:
        with open(directory / JOURNAL, encoding="utf-8") as journal:
            if f'"{run_id}"' in journal.readline():
                return directory
    raise AssertionError(f"no directory of run {run_id}")
