"""Events on their way: how many, at what price, and how late."""

from __future__ import annotations

import statistics

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
        floor, node, ratio, spread = compare(pairs, runs, "cpu_us")
        rows.append(
            Row(name=f"{runs} runs: server CPU an event", unit="us", floor=floor, node=node, value=ratio, note=spread, at_most=1.25)
        )  # fmt: skip
        floor, node, ratio, spread = compare(pairs, runs, "events_per_s")
        rows.append(
            Row(name=f"{runs} runs: events a second", floor=floor, node=node, value=ratio, note=spread, at_least=0.8)
        )
        keeper = statistics.median(n[runs]["keeper_cpu_us"] for _, n in pairs)
        rows.append(Row(name=f"{runs} runs: keeper and wardens, CPU an event", unit="us", value=keeper))
        floor, node, ratio, spread = compare(pairs, runs, "client_cpu_us")
        rows.append(
            Row(name=f"{runs} runs: client CPU an event", unit="us", floor=floor, node=node, value=ratio, note=spread)
        )
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
