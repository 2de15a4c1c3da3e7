"""What is let go of, and when: ended runs leave a tombstone, tombstones and anonymous sessions expire.

A tombstone comes before the files go, so that a repeated request can never be executed again in between.
"""

from __future__ import annotations

import asyncio
import logging
import time

from runtime import records
from runtime.runs import Runs

log = logging.getLogger(__name__)

SWEEP_EVERY_S = 600.0
_NS = 1_000_000_000


async def keep_sweeping(runs: Runs, *, every_s: float = SWEEP_EVERY_S) -> None:
    """Sweep until cancelled; a sweep that fails is logged and tried again."""
    await runs.recovered.wait()
    while True:
        try:
            await sweep(runs, now_ns=time.time_ns())
        except Exception:
            log.exception("retention sweep failed")
        await asyncio.sleep(every_s)


async def sweep(runs: Runs, *, now_ns: int) -> int:
    """Let go of what is older than the configuration keeps, and return how many runs that were."""
    config = runs.config
    trimmed = 0
    while batch := await runs.index.run(records.ended_before(now_ns - int(config.keep_runs_s * _NS))):
        for ulid in batch:
            await runs.index.run(records.bury(ulid, now_ns))
            await asyncio.to_thread(runs.storage.remove_run, ulid)
        trimmed += len(batch)
    await runs.index.run(records.forget_tombstones(now_ns - int(config.tombstone_s * _NS)))
    for session in await runs.sessions.expire_anonymous(now_ns - int(config.anonymous_session_ttl_s * _NS)):
        await asyncio.to_thread(runs.storage.remove_session, session.key)
    return trimmed
