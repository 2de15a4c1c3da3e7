"""Events on their way: how many, at what price, and how late."""

from __future__ import annotations

import statistics
from typing import Any

from bench.client import ask
from bench.options import Options
from bench.pairs import Cells, compare, in_turn
from bench.report import Row

APART, TEXT = "apart", "text"


def throughput(options: Options) -> list[Row]:
    """Flooding agents: events that go one a message, and text, which a reader that is behind gets merged."""
    cells: dict[str, dict[str, Any]] = {
        f"{runs} runs, {APART}": {"runs": runs, "events": options.events, "apart": True} for runs in options.runs
    }
    few = min(options.runs)
    cells[f"{few} runs, {TEXT}"] = {"runs": few, "events": 2 * options.events, "apart": False}
    pairs = in_turn(options.rounds, lambda server: {cell: ask("throughput", server, **cells[cell]) for cell in cells})
    rows = []
    for cell in cells:
        cpu, speed = (1.25, 0.8) if APART in cell else (None, 3.0)
        rows += [
            _compared(pairs, cell, "cpu_us", "server CPU an event", unit="us", at_most=cpu),
            _compared(pairs, cell, "events_per_s", "events a second", at_least=speed),
            _compared(pairs, cell, "client_cpu_us", "client CPU an event", unit="us"),
            _of_node(pairs, cell, "events_a_message", "events a message"),
            _of_node(pairs, cell, "keeper_cpu_us", "keeper and wardens, CPU an event", unit="us"),
        ]
    return rows


def latency(options: Options) -> list[Row]:
    """From the child's write to the client's receipt, 1,000 events a second over 16 runs."""
    seconds = 2.0 if options.quick else 3.0
    pairs = in_turn(
        min(options.rounds, 3), lambda server: {"": ask("latency", server, runs=16, rate=1000, seconds=seconds)}
    )
    rows = []
    for key, bound in (("p50_ms", 1.0), ("p99_ms", 5.0), ("max_ms", None)):
        floor, node, _, _ = compare(pairs, "", key)
        name = key.removesuffix("_ms")
        rows.append(
            Row(name=f"write to receipt, {name}", unit="ms", value=node, at_most=bound, note=f"floor {floor:.2f}")
        )
    return rows


def _compared(pairs: list[tuple[Cells, Cells]], cell: str, key: str, name: str, **more: Any) -> Row:
    floor, node, ratio, spread = compare(pairs, cell, key)
    return Row(name=f"{cell}: {name}", floor=floor, node=node, value=ratio, note=spread, **more)


def _of_node(pairs: list[tuple[Cells, Cells]], cell: str, key: str, name: str, unit: str = "") -> Row:
    return Row(name=f"{cell}: {name}", unit=unit, value=statistics.median(node[cell][key] for _, node in pairs))
