"""The way down: polite signals within one grace, then the freeze-and-kill walk until nothing is left.

Policy only: it answers what is due at a time. The grace counts from the first stop; whoever asks again neither shortens
nor restarts it.
"""

from __future__ import annotations

import signal
from collections.abc import Sequence

STEPS: dict[str, signal.Signals] = {"int": signal.SIGINT, "term": signal.SIGTERM, "hup": signal.SIGHUP}

DEFAULT_STEPS = ("term",)
DEADLINE = "deadline"
DEADLINE_GRACE_S = 2.0
SURVIVORS_GRACE_S = 1.0

_KILL_PAUSE_S = 0.01
_KILL_PAUSE_LIMIT_S = 1.0


class Ending:
    """One way down, begun at *now*. The steps are spread evenly over the grace; the first is due at once.

    ``reason`` is what the exit record will say; None for what outlived a child that ended by itself.
    """

    def __init__(self, *, reason: str | None, steps: Sequence[str], grace_s: float, now: float) -> None:
        self.reason = reason
        self.was_killed = False
        known = [STEPS[step] for step in steps if step in STEPS]
        self._steps = [(now + grace_s * index / len(known), number) for index, number in enumerate(known)]
        self._kill_at = now + (grace_s if known else 0.0)
        self._kill_pause_s = _KILL_PAUSE_S

    @property
    def due(self) -> float:
        """When the next thing is to be done."""
        return self._steps[0][0] if self._steps else self._kill_at

    def next_step(self, now: float) -> signal.Signals | None:
        """What to send now: a step's signal, SIGKILL for the walk, or None when it is not time yet."""
        if now >= self._kill_at:
            self._steps.clear()
            # the next walk, should this one leave something: a process in an uninterruptible call takes its time
            self._kill_at = now + self._kill_pause_s
            self._kill_pause_s = min(self._kill_pause_s * 2, _KILL_PAUSE_LIMIT_S)
            return signal.SIGKILL
        if self._steps and now >= self._steps[0][0]:
            return self._steps.pop(0)[1]
        return None

    def hurry(self, now: float) -> None:
        """No more grace: kill now."""
        self._kill_at = now
        self._steps.clear()
