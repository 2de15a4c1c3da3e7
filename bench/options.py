"""How much is measured."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """``events`` are those of one run: too few, and the price of a run's end is told as that of its events."""

    runs: tuple[int, ...] = (16, 64)
    events: int = 750
    rounds: int = 7
    quick: bool = False
