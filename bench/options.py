"""How much is measured."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """``events`` are those of all runs of one cell together; ``quick`` also shortens the rest."""

    runs: tuple[int, ...] = (16, 64)
    events: int = 24_000
    rounds: int = 7
    quick: bool = False
