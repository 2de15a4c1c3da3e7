"""A host of the runtime without a node: storage, index, registry and runs over one folder, with scripted providers."""

from __future__ import annotations

import asyncio
import shutil
import sqlite3
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from providers.scripted import Script, ScriptedProvider
from runtime.config import RuntimeConfig
from runtime.events import Draft, EventType, RuntimeEvent, complete, delta, start
from runtime.failure import RunCancelled
from runtime.index import NAME as INDEX
from runtime.index import Index, open_index
from runtime.provider import EventSink, Provider, RunContext
from runtime.readers import Reader
from runtime.recovery import recover
from runtime.registry import Registry
from runtime.runs import Runs, open_runs
from runtime.storage import Storage, open_storage
from runtime.types import Capabilities, ExecutionSpec

PATIENCE_S = 30.0
"""The bound of every wait in a test; nothing takes nearly as long."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """An open host. ``leftovers`` are the runs, by key, that recovery asked to end the rest of."""

    runs: Runs
    registry: Registry
    index: Index
    storage: Storage
    leftovers: list[str] = field(default_factory=list)


@asynccontextmanager
async def open_host(
    data: Path, *providers: Provider, adapter: str = "scripted", recovering: bool = True, **settings: Any
) -> AsyncIterator[Host]:
    """A host over *data*; recovery has run, unless the test wants to watch it."""
    config = RuntimeConfig(data_dir=data, **({"foreground_grace_s": PATIENCE_S, "cancel_grace_s": 2.0} | settings))
    async with AsyncExitStack() as stack:
        storage = stack.enter_context(open_storage(data))
        index = await stack.enter_async_context(open_index(data))
        registry = Registry()
        stack.push_async_callback(registry.close)
        await registry.replace([(adapter, provider) for provider in providers])
        runs = await stack.enter_async_context(open_runs(config, storage, index, registry))
        host = Host(runs=runs, registry=registry, index=index, storage=storage)
        if recovering:
            await recover_host(host)
        yield host


async def recover_host(host: Host) -> None:
    """Take up what an earlier host left, noting whose leftovers had to be ended."""

    async def end_leftovers(directory: Path, ulid: str) -> None:
        host.leftovers.append(ulid)

    async with asyncio.timeout(PATIENCE_S):
        await recover(host.runs, end_leftovers)


def crash_image(data: Path, image: Path) -> Path:
    """What a killed host would leave at this moment: a copy of everything, nothing closed."""
    shutil.copytree(data, image)
    return image


@contextmanager
def index_rows(data: Path) -> Any:
    """The index of a folder no host has open, to look into or to damage."""
    connection = sqlite3.connect(data / INDEX, isolation_level=None)
    connection.row_factory = sqlite3.Row
    try:
        yield connection
    finally:
        connection.close()


class Agent(ScriptedProvider):
    """A scripted provider with any capabilities, which counts its executions."""

    def __init__(self, script: Script, **capabilities: Any) -> None:
        super().__init__(script)
        self._capabilities = Capabilities(**({"targets": ("agent",)} | capabilities))
        self.executed: list[str] = []

    async def execute(self, ctx: RunContext, spec: ExecutionSpec, sink: EventSink) -> None:
        self.executed.append(spec.run_id)
        await super().execute(ctx, spec, sink)


def plays(*drafts: Draft) -> Script:
    """A script that reports *drafts*, one by one."""

    async def script(ctx: RunContext, spec: ExecutionSpec, sink: EventSink) -> None:
        for draft in drafts:
            await sink.emit([draft])

    return script


def says(*words: str) -> Script:
    """A script that says *words* and then the whole answer."""
    return plays(start(), *(delta(word, message_id="m1") for word in words), complete("".join(words)))


class Gate:
    """A script that begins, waits until it is let on (or stopped), and ends; one for any number of runs."""

    def __init__(self, *before: Draft, after: Script | None = None) -> None:
        self._before, self._after = before, after or plays(complete("done"))
        self.reached, self.open = asyncio.Event(), asyncio.Event()

    async def __call__(self, ctx: RunContext, spec: ExecutionSpec, sink: EventSink) -> None:
        if self._before:
            await sink.emit(self._before)
        self.reached.set()
        stopped, opened = asyncio.ensure_future(ctx.stopped()), asyncio.ensure_future(self.open.wait())
        try:
            await asyncio.wait([stopped, opened], return_when=asyncio.FIRST_COMPLETED)
        finally:
            stopped.cancel()
            opened.cancel()
        if ctx.stop is not None:
            raise RunCancelled("stopped")
        await self._after(ctx, spec, sink)


async def read_all(reader: Reader) -> list[RuntimeEvent]:
    """Everything the reader is given until it is told that there is no more; the reader is closed."""
    events: list[RuntimeEvent] = []
    with reader:
        async with asyncio.timeout(PATIENCE_S):
            while batch := await reader.read():
                events += batch
    return events


async def read_one(reader: Reader) -> list[RuntimeEvent]:
    """The next batch."""
    async with asyncio.timeout(PATIENCE_S):
        return await reader.read()


async def within(waiting: Any) -> Any:
    """*waiting*, bounded."""
    async with asyncio.timeout(PATIENCE_S):
        return await waiting


async def until_settled(host: Host) -> None:
    """Wait until no run is live: every outcome is in the index."""
    async with asyncio.timeout(PATIENCE_S):
        while host.runs.live:
            tasks = [run.task for run in host.runs.live.values() if run.task is not None]
            await (asyncio.wait(tasks) if tasks else asyncio.sleep(0))


def shape(events: Sequence[RuntimeEvent]) -> list[tuple[str, str]]:
    """The events as (type, text), good to compare and to read."""
    return [(event.type.value, event.delta or event.message or event.error) for event in events]


def words(events: Sequence[RuntimeEvent]) -> str:
    """The grammar of the events, one letter each."""
    letters = {
        EventType.START: "s", EventType.DELTA: "d", EventType.REASONING_DELTA: "r", EventType.ACTIVITY: "a",
        EventType.COMPLETE: "C", EventType.ERROR: "E", EventType.CANCELLED: "X",
    }  # fmt: skip
    return "".join(letters[event.type] for event in events)


def timeless(events: Sequence[RuntimeEvent]) -> list[RuntimeEvent]:
    """The events without their times."""
    return [msgspec.structs.replace(event, time_ns=0) for event in events]


class ListWriter:
    """Where a bare host's events go; raises on the batches whose number (from 1) is in *failing*."""

    def __init__(self, *, failing: frozenset[int] = frozenset(), with_: Exception | None = None) -> None:
        self.events: list[RuntimeEvent] = []
        self._failing, self._problem, self._batches = failing, with_ or OSError("the writer is broken"), 0

    async def write(self, events: Sequence[RuntimeEvent]) -> None:
        self._batches += 1
        if self._batches in self._failing:
            raise self._problem
        self.events += events
