"""What each step on an event's way costs by itself, in one process: where a regression sits.

The steps are the node's own code, called as the node calls it, a read's worth of lines at a time.
"""

from __future__ import annotations

import asyncio
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from bench import agent
from bench.options import Options
from bench.report import Row
from node.runtime_bridge import EventEncoder
from providers.cli.dialect import Line, TurnContext
from providers.cli.dialects import load_dialect
from providers.cli.framing import Framing
from runtime.coalesce import coalesce
from runtime.emitter import Emitter
from runtime.events import Draft, RuntimeEvent
from runtime.feed import Feed
from runtime.journal import Journal
from runtime.journal import read as read_journal
from runtime.provider import RunContext
from runtime.types import ExecutionSpec, SessionMode

READ = 64 * 1024
_SPEC = ExecutionSpec(
    run_id="0" * 26, adapter="cli", target="bench", session_id="1" * 26, session_mode=SessionMode.CREATE_IF_MISSING,
    background=False, workspace="/", policy={}, input="", timeout=None, metadata={},
)  # fmt: skip


def micro(options: Options) -> list[Row]:
    """Microseconds an event of every step, and of all of them together."""
    rounds = [asyncio.run(_round(5_000 if options.quick else 20_000)) for _ in range(3 if options.quick else 7)]
    costs = {step: statistics.median(each[step] for each in rounds) for step in rounds[0]}
    total = sum(cost for step, cost in costs.items() if not step.startswith("("))
    rows = [Row(name=step, unit="us", value=cost) for step, cost in costs.items()]
    return [*rows, Row(name="all on the way of a live event", unit="us", value=total)]


async def _round(count: int) -> dict[str, float]:
    costs: dict[str, float] = {}

    def timed(step: str, work: Callable[[], None]) -> None:
        began = time.perf_counter()
        work()
        costs[step] = (time.perf_counter() - began) / count * 1e6

    data = agent.head() + b"".join(agent.line(f"{i:019d} " + "x" * 40) for i in range(count))
    lines: list[list[Line]] = []
    drafts: list[list[Draft]] = []
    framing, decoder = Framing(), load_dialect("claude_stream_json").decoder(TurnContext())

    def frame() -> None:
        reads = (data[begin : begin + READ] for begin in range(0, len(data), READ))
        lines.extend([line for line in framing.feed(read) if isinstance(line, Line)] for read in reads)

    def decode() -> None:
        for batch in lines:
            found = (item for line in batch for item in decoder.decode(line))
            drafts.append([item for item in found if isinstance(item, Draft)])

    timed("bytes to lines", frame)
    timed("line to draft", decode)
    kept = _Kept()
    emitter = Emitter(RunContext(), _SPEC, kept)
    began = time.perf_counter()
    for batch in drafts:
        await emitter.emit(batch)
    costs["draft to event"] = (time.perf_counter() - began) / count * 1e6
    with tempfile.TemporaryDirectory() as directory:
        journal = Journal(Path(directory))
        timed("event to journal", lambda: _each(journal.append, kept.batches))
        feed = Feed()
        timed("event to feed", lambda: _each(feed.publish, kept.batches))
        encoder = EventEncoder(node_id="node-" + "2" * 26)
        timed("event to bytes", lambda: _each(encoder.encode, chain.from_iterable(kept.batches)))
        timed("(events merged, for readers behind)", lambda: _each(coalesce, kept.batches))
        timed("(journal to event, for readers behind)", lambda: _read_back(journal))
        journal.close()
    return costs


def _each(work: Callable[[Any], object], items: Iterable[Any]) -> None:
    for item in items:
        work(item)


class _Kept:
    """A writer that keeps what it is given."""

    def __init__(self) -> None:
        self.batches: list[Sequence[RuntimeEvent]] = []

    async def write(self, events: Sequence[RuntimeEvent]) -> None:
        self.batches.append(events)


def _read_back(journal: Journal) -> None:
    offset, before = 0, -1
    with open(journal.path, "rb") as file:
        while offset != before:
            before = offset
            _, offset = read_journal(file.fileno(), offset, through=1 << 62)
