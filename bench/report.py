"""What a measurement found, as rows beside their targets: printed as a table, kept as JSON."""

from __future__ import annotations

import json
import os
import platform
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

RESULTS = Path(__file__).parent / "results"
_HEADS = ("measured", "floor", "node", "ratio", "target", "met")


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One figure. ``value`` is what the target speaks of; a row without a target only informs."""

    name: str
    value: float
    unit: str = ""
    floor: float | None = None
    node: float | None = None
    at_most: float | None = None
    at_least: float | None = None
    note: str = ""

    @property
    def is_met(self) -> bool | None:
        if self.at_most is None and self.at_least is None:
            return None
        return (self.at_most is None or self.value <= self.at_most) and (
            self.at_least is None or self.value >= self.at_least
        )

    def cells(self) -> tuple[str, ...]:
        is_ratio = self.floor is not None
        bound = f"<= {self.at_most:g}" if self.at_most is not None else ""
        bound = f">= {self.at_least:g}" if self.at_least is not None else bound
        met = {True: "yes", False: "NO", None: ""}[self.is_met]
        return (
            f"{self.name}{f', {self.unit}' if self.unit else ''}",
            _figure(self.floor),
            _figure(self.node if is_ratio else self.value),
            f"{self.value:.2f}{f'  ({self.note})' if self.note else ''}" if is_ratio else self.note,
            bound,
            met,
        )


def show(rows: Sequence[Row], say: Callable[[str], None] = print) -> None:
    """The table."""
    lines = [_HEADS, *(row.cells() for row in rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(_HEADS))]
    for line in lines:
        left = line[0].ljust(widths[0])
        say("  ".join([left, *(cell.rjust(width) for cell, width in zip(line[1:], widths[1:], strict=True))]).rstrip())
    say("")


def store(found: dict[str, list[Row]]) -> Path:
    """Keep *found* under ``bench/results``; the path."""
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / time.strftime("%Y%m%d-%H%M%S.json", time.gmtime())
    machine = {"cpus": os.cpu_count(), "python": platform.python_version(), "load": os.getloadavg()}
    parts = {part: [asdict(row) | {"met": row.is_met} for row in rows] for part, rows in found.items()}
    path.write_text(json.dumps({"machine": machine, "parts": parts}, indent=1))
    return path


def _figure(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
