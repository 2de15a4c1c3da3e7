"""Health per profile, as ``provider.<profile_id>`` of the health service: serving is only what was found ready."""

from __future__ import annotations

import asyncio

from grpc_health.v1 import health, health_pb2

from providers.catalog.agents import Agents

PREFIX = "provider."


async def report_readiness(agents: Agents, servicer: health.aio.HealthServicer) -> None:
    """Keep the status of every profile true until cancelled. One that was never probed is not serving: nobody knows."""
    changed, told = asyncio.Event(), set[str]()
    agents.discovery.on_change(lambda _: changed.set())
    while True:
        changed.clear()
        statuses = _statuses(agents)
        gone = dict.fromkeys(told - statuses.keys(), health_pb2.HealthCheckResponse.SERVICE_UNKNOWN)
        for profile_id, status in {**statuses, **gone}.items():
            await servicer.set(f"{PREFIX}{profile_id}", status)
        told = set(statuses)
        await changed.wait()


def _statuses(agents: Agents) -> dict[str, health_pb2.HealthCheckResponse.ServingStatus]:
    snapshot = agents.discovery.snapshot
    serving, not_serving = health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING
    found = {profile.id: snapshot.get(profile.id) for profile in agents.selection.catalog.profiles}
    return {one: serving if result is not None and result.is_ready else not_serving for one, result in found.items()}
