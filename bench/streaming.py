"""Events on their way: how many, at what price, and how late."""

from __future__ import annotations

import statistics
from typing import Any

from bench.client import ask
from bench.options import Options
from bench.pairs import Cells, compare, in_turn
from bench.report import Row
from bench.servers import Server


def throughput(options: Options) -> list[Row]:
    """Events per second and CPU per event, flooding agents."""

    def measure(server: Server) -> Cells:
        return {str(runs): ask("throughput", server, runs=runs, events=options.events) for runs in options.runs}

    pairs = in_turn(options.rounds, measure)
    rows = []
    for runs in map(str, options.runs):
        rows += [
            _compared(pairs, runs, "cpu_us", "server CPU an event", unit="us", at_most=1.25),
            _compared(pairs, runs, "events_per_s", "events a second", at_least=0.8),
            _compared(pairs, runs, "client_cpu_us", "client CPU an event", unit="us"),
        ]
        keeper = statistics.median(node[runs]["keeper_cpu_us"] for _, node in pairs)
        rows.append(Row(name=f"{runs} runs: keeper and wardens, CPU an event", unit="us", value=keeper))
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
    return Row(name=f"{cell} runs: {name}", floor=floor, node=node, value=ratio, note=spread, **more)
