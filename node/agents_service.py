"""The RPCs about agents beside their runs: are they ready, and what do they say of themselves. None needs a free slot."""

from __future__ import annotations

from typing import Any

import grpc.aio

from node import bridge_agents
from node.host import Host
from node.pb import node_pb2
from runtime.commands import run_command

Context = grpc.aio.ServicerContext[Any, Any]


class AgentsService:
    """Readiness and commands over gRPC. A caller that goes away, or whose deadline passes, ends what it started."""

    def __init__(self, host: Host) -> None:
        self._host = host

    async def ListReadiness(
        self, request: node_pb2.ListReadinessRequest, context: Context
    ) -> node_pb2.ListReadinessResponse:
        agents = self._host.agents
        return bridge_agents.snapshot_to_wire(agents.selection.catalog, agents.discovery.snapshot)

    async def ProbeReadiness(
        self, request: node_pb2.ProbeReadinessRequest, context: Context
    ) -> node_pb2.ProbeReadinessResponse:
        discovery = self._host.agents.discovery
        age_s = bridge_agents.max_age_from_wire(request)
        results = await discovery.probe(request.profile_ids, max_age_s=age_s)
        return bridge_agents.probed_to_wire(results, discovery.snapshot.catalog_hash)

    async def Command(self, request: node_pb2.CommandRequest, context: Context) -> node_pb2.CommandResponse:
        command = bridge_agents.command_from_wire(request)
        response = await run_command(self._host.registry, command, adapter=request.adapter, target=request.target)
        return bridge_agents.answer_to_wire(response)
