"""The RPCs about the node itself: what it serves, and how it is."""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

import grpc.aio

from node import bridge_views
from node.host import Host
from node.pb import node_pb2

Context = grpc.aio.ServicerContext[Any, Any]


class NodeInfoService:
    """Capabilities and status over gRPC; neither needs a free slot."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._version = version("iop-node")

    async def GetCapabilities(
        self, request: node_pb2.GetCapabilitiesRequest, context: Context
    ) -> node_pb2.GetCapabilitiesResponse:
        targets = self._host.registry.snapshot.targets()
        return bridge_views.capabilities_to_wire(targets, self._host.runs.config.limits())

    async def GetNodeStatus(
        self, request: node_pb2.GetNodeStatusRequest, context: Context
    ) -> node_pb2.GetNodeStatusResponse:
        runs = self._host.runs
        return bridge_views.status_to_wire(
            node_id=self._host.node_id, version=self._version, started_ns=self._host.started_ns,
            is_recovered=runs.recovered.is_set(), active_runs=len(runs.live), readers=runs.readers,
            limits=runs.config.limits(), notes=self._host.notes(), keeper_pid=self._host.keeper.pid,
            is_draining=runs.draining.is_set(), queued_runs=runs.queued,
            generation=self._host.registry.snapshot.version,
        )  # fmt: skip

    async def ReloadConfig(
        self, request: node_pb2.ReloadConfigRequest, context: Context
    ) -> node_pb2.ReloadConfigResponse:
        return bridge_views.reload_to_wire(await self._host.reloader.reload())

    async def Drain(self, request: node_pb2.DrainRequest, context: Context) -> node_pb2.DrainResponse:
        self._host.runs.drain()
        return bridge_views.drain_to_wire(len(self._host.runs.live))
