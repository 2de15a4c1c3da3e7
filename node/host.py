"""The composition root: everything a host of agent runs needs, put together once, in one block.

It speaks no gRPC, so that any front door can stand before it: the node's server, a command, a test.
"""

from __future__ import annotations

import asyncio
import logging
import os
import resource
import sqlite3
import time
from collections.abc import AsyncIterator, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from node.config import NodeConfig
from node.reload import ConfigSource, Reloader
from providers.catalog.agents import Agents, load_selection
from providers.catalog.probes import Prober
from providers.cli.provider import Machinery
from providers.cli.run_files import STDOUT, read_slice
from providers.cli.tail import Tail, open_tail
from providers.cli.warm_processes import WarmProcesses, open_warm_processes
from providers.keeper import visibility
from providers.keeper.client import (
    Keeper,
    clear_append_only,
    end_orphans,
    living_markers,
    lock_is_held,
    open_keeper,
)
from runtime import records
from runtime.background import Background
from runtime.index import Index, open_index
from runtime.keys import new_ulid
from runtime.provider import Provider
from runtime.records import RunRecord
from runtime.recovery import recover
from runtime.registry import Registry
from runtime.retention import keep_sweeping
from runtime.runs import Runs, open_runs
from runtime.storage import open_storage
from runtime.types import RUN_ID

log = logging.getLogger(__name__)

OPEN_FILES = 65_536  # two per run, one per attached stream
TASKS_END_S = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """An open host. ``recovery`` is the task that takes up earlier runs; it has the errors of it."""

    config: NodeConfig
    node_id: str
    started_ns: int
    runs: Runs
    registry: Registry
    keeper: Keeper
    tail: Tail
    agents: Agents
    recovery: asyncio.Task[None]
    reloader: Reloader

    def notes(self) -> list[str]:
        """What an operator should know of this machine, a sentence each."""
        found = (self.tail.note, visibility.note(), self.reloader.problem, *self.agents.notes())
        return [note for note in found if note]


@asynccontextmanager
async def open_host(
    config: NodeConfig, *, source: ConfigSource | None = None, extra: list[tuple[str, Provider]] | None = None
) -> AsyncIterator[Host]:
    """Everything of a host, open until the block ends; runs that survive it go on for the next one.

    *extra* providers, as (adapter, provider), stand beside those of the catalog; *source* is where a reload reads again.

    Raises:
        FailureError: the data directory is in use or unusable, or the catalog is invalid.
    """
    _raise_open_files()
    async with AsyncExitStack() as stack:
        storage = stack.enter_context(open_storage(config.runtime.data_dir, unlock=unlock_outputs))
        index = await stack.enter_async_context(open_index(config.runtime.data_dir))
        keeper = await stack.enter_async_context(open_keeper(config.runtime.data_dir, generation=storage.generation))
        tail = await stack.enter_async_context(open_tail())
        warm = await stack.enter_async_context(
            open_warm_processes(
                config.runtime.data_dir,
                keeper,
                limit=config.runtime.max_warm_processes,
                idle_s=config.runtime.warm_idle_s,
            )
        )
        machinery = Machinery(keeper=keeper, tail=tail, warm=warm, config=config.runtime, inherited=dict(os.environ))
        registry = Registry()
        stack.push_async_callback(registry.close)
        prober = Prober(keeper, config.runtime.data_dir / "probes")
        selection = await asyncio.to_thread(load_selection, config.catalog, config.profiles, config.mcp_servers)
        agents = Agents(selection, machinery, prober)
        await registry.replace([*(("cli", provider) for provider in agents.build(selection)), *(extra or [])])
        runs = await stack.enter_async_context(open_runs(config.runtime, storage, index, registry))
        tasks = Background()
        stack.push_async_callback(tasks.end, within_s=TASKS_END_S)
        recovery = tasks.start(_recover(runs, _Leftovers(keeper, runs, warm)), name="recovery")
        tasks.start(keep_sweeping(runs), name="retention")
        tasks.start(prober.sweep(), name="sweep probes")
        reloader = Reloader(source or ConfigSource(), config, agents, registry, runs, extra or [])
        yield Host(
            config=config, node_id=config.node_id or await _stored_node_id(index), started_ns=time.time_ns(), runs=runs,
            registry=registry, keeper=keeper, tail=tail, agents=agents, recovery=recovery, reloader=reloader,
        )  # fmt: skip


async def _recover(runs: Runs, leftovers: _Leftovers) -> None:
    await leftovers.close_idle(await runs.index.run(records.unended))  # before a session's next turn could come
    await recover(runs, leftovers.end)
    try:
        await leftovers.close_idle([run.record for run in runs.live.values()])
        await leftovers.end_strays()
    except Exception:  # the node serves already; what is left over waits for the next start
        log.exception("leftovers of earlier runs could not be ended")


class _Leftovers:
    """Ends what an earlier host left of a run that nobody will go on with."""

    def __init__(self, keeper: Keeper, runs: Runs, warm: WarmProcesses) -> None:
        self._keeper, self._runs, self._warm = keeper, runs, warm

    async def close_idle(self, going_on: Iterable[RunRecord]) -> None:
        """Begin to close the warm processes that none of the runs *going_on* claims."""
        directories = [self._runs.storage.run_directory(record.ulid) for record in going_on]
        parts = [part for directory in directories if (part := read_slice(directory)) is not None]
        self._warm.close_leftovers({part.process for part in parts})

    async def end_strays(self) -> None:
        """End processes of runs that are over: they carry the key of a run of ours, and no warden watches them.

        What carries no such key is not provably ours, and is never touched.
        """
        live = {run.record.ulid for run in self._runs.live.values()}
        for marker in await asyncio.to_thread(living_markers) - live:
            directory = self._runs.storage.run_directory(marker)
            if RUN_ID.fullmatch(marker) and directory.is_dir() and not lock_is_held(directory):
                ended = await asyncio.to_thread(end_orphans, marker)
                log.warning("ended strays of a run that is over", extra={"run": marker, "ended": ended.ended})

    async def end(self, directory: Path, ulid: str) -> None:
        """Stop the run's warden if it lives, else end what carries the run's marker; bounded."""
        if not directory.is_dir():
            await asyncio.to_thread(end_orphans, ulid)
            return
        link = await self._keeper.adopt(directory)
        if link is None:
            await asyncio.to_thread(end_orphans, ulid)
            return
        link.stop(steps=("term",), grace_s=1.0, reason="finished")
        await link.wait_gone(5.0)
        await link.close()


async def _stored_node_id(index: Index) -> str:
    """The id of this data directory, made on first use: constant across restarts."""
    fresh = f"node-{new_ulid().lower()}"

    def operation(connection: sqlite3.Connection) -> str:
        connection.execute("INSERT OR IGNORE INTO meta (key, value) VALUES ('node_id', ?)", (fresh,))
        return str(connection.execute("SELECT value FROM meta WHERE key='node_id'").fetchone()[0])

    return await index.run(operation)


def unlock_outputs(directory: Path) -> None:
    """A warden that was killed leaves the output append-only, which also forbids to remove it."""
    if (directory / STDOUT).exists():
        clear_append_only(directory / STDOUT)


def _raise_open_files() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = OPEN_FILES if hard == resource.RLIM_INFINITY else min(OPEN_FILES, hard)
    if soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
