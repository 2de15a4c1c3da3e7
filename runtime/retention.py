"""What is let go of, and when: by age, by number and by size, the oldest first.

An ended run leaves a tombstone that keeps its identity and outcome, so that its request is never executed again; the
tombstone comes before the files go. Tombstones expire, and so do sessions that nobody named.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from runtime import records
from runtime.config import RuntimeConfig
from runtime.keys import made_ns
from runtime.records import EndedRun
from runtime.runs import Runs

log = logging.getLogger(__name__)

SWEEP_EVERY_S = 600.0
UNKNOWN_AFTER_S = 3600
_NS = 1_000_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Swept:
    """What a sweep let go of, or would."""

    runs: tuple[EndedRun, ...] = ()
    tombstones: int = 0
    sessions: int = 0

    @property
    def bytes(self) -> int:
        return sum(run.size_bytes for run in self.runs)


async def keep_sweeping(runs: Runs, *, every_s: float = SWEEP_EVERY_S) -> None:
    """Sweep until cancelled; a sweep that fails is logged and tried again."""
    await runs.recovered.wait()
    while True:
        try:
            await sweep(runs, now_ns=time.time_ns())
            runs.storage.keep_reserve()
        except Exception:
            log.exception("retention sweep failed")
        await asyncio.sleep(every_s)


def to_trim(ended: Iterable[EndedRun], config: RuntimeConfig, *, now_ns: int) -> Iterator[EndedRun]:
    """Of *ended* runs, newest first, those beyond what *config* keeps."""
    count = size = 0
    for run in ended:
        count, size = count + 1, size + run.size_bytes
        is_old = run.ended_ns < now_ns - int(config.keep_runs_s * _NS)
        if is_old or count > config.keep_runs_count or size > config.keep_runs_bytes:
            yield run


async def sweep(runs: Runs, *, now_ns: int, dry_run: bool = False) -> Swept:
    """Let go of what the configuration does not keep; with *dry_run* only say what that is."""
    config = runs.config
    trimmed = tuple(to_trim(await runs.index.run(records.ended), config, now_ns=now_ns))
    if dry_run:
        return Swept(runs=trimmed)
    for run in trimmed:
        await runs.index.run(records.bury(run.ulid, now_ns))
        await asyncio.to_thread(runs.storage.remove_run, run.ulid)
    tombstones = await runs.index.run(records.forget_tombstones(now_ns - int(config.tombstone_s * _NS)))
    await _remove_unknown(runs, now_ns)
    expired = await runs.sessions.expire(
        anonymous_before_ns=now_ns - int(config.anonymous_session_ttl_s * _NS),
        terminated_before_ns=now_ns - int(config.tombstone_s * _NS),
    )
    await _remove_workspaces(runs, {session.directory_key for session in expired}, now_ns)
    return Swept(runs=trimmed, tombstones=tombstones, sessions=len(expired))


async def _remove_workspaces(runs: Runs, expired: set[str], now_ns: int) -> None:
    """Remove private directories that no session has any more: of those just expired, and of ids that were used again."""
    oldest_ns = now_ns - int(runs.config.tombstone_s * _NS)
    left = await asyncio.to_thread(runs.storage.session_keys)
    for key in {*expired, *(key for key in left if made_ns(key) < oldest_ns)} - runs.sessions.directories:
        await asyncio.to_thread(runs.storage.remove_session, key)


async def _remove_unknown(runs: Runs, now_ns: int) -> None:
    """Remove directories that no row knows: a crash before the row left them. Young ones may be about to get theirs."""
    known = await runs.index.run(records.keys)
    for key in await asyncio.to_thread(runs.storage.run_keys):
        if key not in known and made_ns(key) < now_ns - UNKNOWN_AFTER_S * _NS:
            await asyncio.to_thread(runs.storage.remove_run, key)
