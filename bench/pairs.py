"""Node and floor in turn, the order reversed every other round: the ratios of pairs that saw the same machine."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager

from bench.client import Result
from bench.servers import Server, floor, node

Cells = dict[str, Result]
_SIDES: tuple[tuple[str, Callable[[], AbstractContextManager[Server]]], ...] = (("floor", floor), ("node", node))


def in_turn(rounds: int, measure: Callable[[Server], Cells]) -> list[tuple[Cells, Cells]]:
    """*measure* each side *rounds* times on servers of its own; pairs (floor, node)."""
    return list(_rounds(rounds, measure))


def _rounds(rounds: int, measure: Callable[[Server], Cells]) -> Iterator[tuple[Cells, Cells]]:
    for number in range(rounds):
        found: dict[str, Cells] = {}
        for name, open_server in _SIDES if number % 2 == 0 else reversed(_SIDES):
            with open_server() as server:
                found[name] = measure(server)
        yield found["floor"], found["node"]


def compare(pairs: list[tuple[Cells, Cells]], cell: str, key: str) -> tuple[float, float, float, str]:
    """Medians of floor and node, the median of the paired ratios, and their range."""
    floors, nodes = [f[cell][key] for f, _ in pairs], [n[cell][key] for _, n in pairs]
    ratios = sorted(n / f for n, f in zip(nodes, floors, strict=True))
    middle = statistics.median(ratios)
    return statistics.median(floors), statistics.median(nodes), middle, f"{ratios[0]:.2f}..{ratios[-1]:.2f}"
