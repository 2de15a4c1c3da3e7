"""Whose turn it is on each session: one run at a time, the others in the order of their acceptance.

A run holds its place from its acceptance to its end. It has the turn at once on a free session; where it may wait it is
granted the turn when all before it have given theirs back, however they ended. A turn is given back before the run's
terminal can be seen, so whoever sees a terminal can dispatch the next run at once.
"""

from __future__ import annotations

import asyncio

from runtime.failure import CapacityExhausted, SessionBusy

Key = tuple[str, str]
"""Principal and session id."""


class Turn:
    """One run's place on its session."""

    def __init__(self, turns: Turns, key: Key, run: str) -> None:
        self._turns, self.key, self.run = turns, key, run
        self.granted = asyncio.Event()

    @property
    def position(self) -> int:
        """The place among those that wait for the session, 1 being next; 0 once granted."""
        return self._turns.position(self)

    def release(self) -> None:
        """Give the place up; repeating does nothing, and touches nobody else's."""
        self._turns.give_back(self)


class Turns:
    """The line before every session that has runs."""

    def __init__(self) -> None:
        self._lines: dict[Key, list[Turn]] = {}

    @property
    def waiting(self) -> int:
        """How many runs wait for their session."""
        return sum(not turn.granted.is_set() for line in self._lines.values() for turn in line)

    def active(self, key: Key) -> str | None:
        """The run whose turn it is."""
        return next((turn.run for turn in self._lines.get(key, ()) if turn.granted.is_set()), None)

    def take(self, key: Key, run: str, *, queue_limit: int = 0) -> Turn:
        """The turn of *key*, or a place behind those that wait, at most *queue_limit*.

        Raises:
            SessionBusy: another run has it, and *queue_limit* is 0.
            CapacityExhausted: as many wait already.
        """
        line = self._lines.get(key, [])
        if line and not queue_limit:
            raise SessionBusy(
                f"session {key[1]!r} has an active run; dispatch the next one when it has ended", session_id=key[1]
            )
        if len(line) > queue_limit:
            raise CapacityExhausted(
                f"{queue_limit} runs wait for session {key[1]!r} already; queue the next one later",
                limit=str(queue_limit),
            )
        return self._join(key, run, is_granted=not line)

    def take_regardless(self, key: Key, run: str, *, has_begun: bool) -> Turn:
        """The place of a run that an earlier host process accepted: it has the turn if it has begun, or is the first."""
        return self._join(key, run, is_granted=has_begun or not self._lines.get(key))

    def position(self, turn: Turn) -> int:
        waiting = [other for other in self._lines.get(turn.key, ()) if not other.granted.is_set()]
        return waiting.index(turn) + 1 if turn in waiting else 0

    def give_back(self, turn: Turn) -> None:
        """Called by the turn."""
        line = self._lines.get(turn.key, [])
        if turn not in line:
            return
        line.remove(turn)
        if not line:
            del self._lines[turn.key]
        elif not any(other.granted.is_set() for other in line):
            line[0].granted.set()

    def _join(self, key: Key, run: str, *, is_granted: bool) -> Turn:
        turn = Turn(self, key, run)
        self._lines.setdefault(key, []).append(turn)
        if is_granted:
            turn.granted.set()
        return turn
