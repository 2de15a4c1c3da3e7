"""Beginnings and ends: the first event of a run, a run that is cancelled, a node that starts, streams that only wait."""

from __future__ import annotations

import os
import statistics
import subprocess
import tempfile
import time
from pathlib import Path

from bench import proc
from bench.catalog import QUICK, quick_answer
from bench.client import ask, percentile
from bench.options import Options
from bench.pairs import Cells, compare, in_turn
from bench.report import Row
from bench.servers import Server, node, place, stop


def start(options: Options) -> list[Row]:
    """From dispatch to the first delta, one run at a time, over the same child without a server."""
    tries = 60 if options.quick else 200
    bare: list[tuple[float, float]] = []

    def measure(server: Server) -> Cells:
        bare.append(_bare(answer, tries))
        return {"": ask("start", server, tries=tries, input=answer)}

    with tempfile.TemporaryDirectory() as directory:
        answer = str(quick_answer(Path(directory)))
        pairs = in_turn(1 if options.quick else 3, measure)
    own = statistics.median(p50 for p50, _ in bare)
    rows = [
        Row(name="bare child to its first byte, p50", unit="ms", value=own),
        Row(name="bare child to its first byte, p99", unit="ms", value=statistics.median(p99 for _, p99 in bare)),
    ]
    for key, bound in (("p50_ms", 8.0), ("p99_ms", 12.0)):
        floor, found, _, _ = compare(pairs, "", key)
        note = f"{found:.1f} in all; floor {floor:.1f} in all"
        name = f"dispatch to first delta, over the bare child's p50, {key[:3]}"
        rows.append(Row(name=name, unit="ms", value=found - own, at_most=bound, note=note))
    return rows


def cancel(options: Options) -> list[Row]:
    """From CancelRun to the death of the whole tree of a child that honours TERM."""
    with node() as server:
        found = ask("cancel", server, tries=10 if options.quick else 40)
    return [
        Row(name="cancel to dead tree, p50", unit="ms", value=found["p50_ms"], at_most=50),
        Row(name="cancel to dead tree, p99", unit="ms", value=found["p99_ms"], at_most=50),
    ]


def idle(options: Options) -> list[Row]:
    """A node that has just started, then one with many streams that wait."""
    starts, sizes = [], []
    for _ in range(2 if options.quick else 5):
        with place() as where:
            for _ in range(2):  # an empty directory and no keeper, then both there
                server = where.start()
                starts.append(server.started_s)
                time.sleep(0.3)
                sizes.append(proc.memory_kib(server.pid) / 1024)
                stop(server)
    with node() as server:
        found = ask("idle", server, runs=16, streams=200 if options.quick else 1000)
    return [
        Row(name="node start to SERVING", unit="s", value=statistics.median(starts), at_most=1.0),
        Row(name="node resident, no streams", unit="MiB", value=statistics.median(sizes), at_most=80),
        Row(name="an idle attached stream", unit="KiB", value=found["kib_per_stream"], at_most=64),
        Row(name="threads with all of them", value=found["threads"]),
        Row(name="CPU with all of them", unit="%", value=found["cpu_percent"]),
    ]


def _bare(answer: str, tries: int) -> tuple[float, float]:
    """p50 and p99 of the child that the node starts, started here."""
    found = []
    for _ in range(tries):
        began = time.monotonic()
        process = subprocess.Popen([*QUICK, answer], stdout=subprocess.PIPE, start_new_session=True)
        assert process.stdout is not None
        os.read(process.stdout.fileno(), 65536)
        found.append((time.monotonic() - began) * 1e3)
        process.stdout.close()
        process.wait()
    return percentile(found, 0.5), percentile(found, 0.99)
