"""When the node says that it serves: earlier runs are taken up, new ones are taken, and its loop keeps up.

A loop that was held up for long (a hung disk, a starved machine) is told to whoever asks: not serving, but alive.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence

from grpc_health.v1 import health, health_pb2

from runtime.runs import Runs

log = logging.getLogger(__name__)

LOOK_S = 1.0
LAG_LIMIT_S = 5.0


async def report_health(runs: Runs, servicer: health.aio.HealthServicer, services: Sequence[str]) -> None:
    """Keep the status of *services* true until cancelled; it begins as not serving."""
    await runs.recovered.wait()
    is_serving, lag = False, 0.0
    while True:
        wanted = not runs.draining.is_set() and lag < LAG_LIMIT_S
        if wanted is not is_serving:
            is_serving = wanted
            await set_health(servicer, services, is_serving=wanted)
            log.info("serving" if wanted else "not serving", extra={"lag_s": round(lag, 3)})
        lag = await _lag_of_a_look(runs)


async def _lag_of_a_look(runs: Runs) -> float:
    """Wait a second, less when the node begins to drain; answer by how much too late the loop came back."""
    began = time.monotonic()
    pause = asyncio.sleep(LOOK_S) if runs.draining.is_set() else runs.draining.wait()
    try:
        async with asyncio.timeout(LOOK_S):
            await pause
    except TimeoutError:
        pass
    return time.monotonic() - began - LOOK_S


async def set_health(servicer: health.aio.HealthServicer, services: Sequence[str], *, is_serving: bool) -> None:
    """Set the status of all *services*."""
    status = health_pb2.HealthCheckResponse.SERVING if is_serving else health_pb2.HealthCheckResponse.NOT_SERVING
    for service in services:
        await servicer.set(service, status)
