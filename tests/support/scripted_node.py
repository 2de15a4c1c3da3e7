"""A node that plays a script: a real grpc.aio server whose streams break where a test says so.

It holds runs as finished lists of events and knows nothing of providers or journals; what it does know is the protocol, so
that a client can be tested against every way in which a stream may end.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import grpc
import grpc.aio
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from node.bridge_parts import failure_to_wire
from node.pb import node_pb2, node_pb2_grpc
from node.runtime_bridge import EventEncoder
from node.well_known import timestamp_to_wire
from node.wire_errors import ErrorGuard
from runtime.events import (
    MESSAGE_ID,
    Activity,
    EventType,
    FailureRecord,
    RuntimeEvent,
    ToolCall,
    Usage,
)
from runtime.failure import Conflict, CursorOutOfRange, Failure, FailureError, NotFound, TargetNotFound

BEGAN_NS = 1_700_000_000_000_000_000


def script(
    *texts: str, run_id: str, end: EventType = EventType.COMPLETE, activity: Activity | None = None
) -> list[RuntimeEvent]:
    """Start, one delta per text, the activity if any, and the terminal event."""
    events = [_event(run_id, EventType.START, 1)]
    for text in texts:
        events.append(_event(run_id, EventType.DELTA, len(events) + 1, delta=text, metadata={MESSAGE_ID: "m1"}))
    if activity is not None:
        events.append(_event(run_id, EventType.ACTIVITY, len(events) + 1, activity=activity))
    last = len(events) + 1
    if end is EventType.COMPLETE:
        events.append(_event(run_id, end, last, message="".join(texts), usage=Usage(input_tokens=7, output_tokens=0)))
    elif end is EventType.ERROR:
        failure = FailureRecord(code="process_failed", message="the agent exited with 3", retryable=False)
        events.append(_event(run_id, end, last, error=failure.message, failure=failure))
    else:
        events.append(_event(run_id, end, last, message="cancelled"))
    return events


def _event(run_id: str, type_: EventType, sequence: int, **fields: Any) -> RuntimeEvent:
    time_ns = BEGAN_NS + sequence * 1_000_000
    return RuntimeEvent(run_id=run_id, type=type_, sequence=sequence, time_ns=time_ns, session_id="s1", **fields)


class ScriptedNode(node_pb2_grpc.NodeServiceServicer):
    """Plays ``texts`` for every run. ``breaks`` tells, stream by stream, after how many events it breaks, and how.

    A break is ``"abort"`` (UNAVAILABLE), ``"end"`` (OK, as if that were all), ``"skip"`` (an event is left out, then the
    next is sent as if it were not), ``"repeat"`` (the cursor is ignored, all is sent again, then as ``"end"``) or
    ``"hang"`` (nothing more, until the caller goes away).
    """

    def __init__(
        self, *texts: str, end: EventType = EventType.COMPLETE, breaks: Sequence[tuple[int, str]] = ()
    ) -> None:
        self.texts, self.end, self.breaks = texts, end, list(breaks)
        self.requests: list[Any] = []
        self.dispatched: dict[str, node_pb2.RunRequest] = {}
        self.cancels: list[node_pb2.CancelRunRequest] = []
        self.streams_ended = 0
        self.refusal: FailureError | None = None
        self.failure: Failure | None = None
        self.hanging = asyncio.Event()
        self.cancelled = asyncio.Event()
        self.state = node_pb2.RUN_STATE_COMPLETE
        self.pages: list[node_pb2.ListRunsResponse] = []
        self.artifacts: dict[str, bytes] = {}

    def events(self, run_id: str) -> list[RuntimeEvent]:
        tool = ToolCall(call_id="c1", name="read_file", input_json='{"path":"a"}')
        return script(*self.texts, run_id=run_id, end=self.end, activity=tool)

    async def Run(self, request: node_pb2.RunRequest, context: Any) -> None:
        self.requests.append(request)
        if self.refusal is not None:
            raise self.refusal
        if request.target == "unknown":
            raise TargetNotFound("target 'unknown' is not served")
        known = self.dispatched.setdefault(request.run_id, request)
        if known != request:
            raise Conflict(f"run {request.run_id} is there with another request")
        await self._stream(request.run_id, request.after_sequence, request.include_activity, context)

    async def AttachRun(self, request: node_pb2.AttachRunRequest, context: Any) -> None:
        self.requests.append(request)
        if request.run_id == "missing":
            raise NotFound("no run missing")
        last = len(self.events(request.run_id))
        if request.after_sequence > last:
            raise CursorOutOfRange(f"the last event is {last}", last=str(last))
        await self._stream(request.run_id, request.after_sequence, request.include_activity, context)

    async def _stream(self, run_id: str, after: int, activity: bool, context: Any) -> None:
        limit, kind = self.breaks.pop(0) if self.breaks else (1 << 30, "")
        after = 0 if kind == "repeat" else after
        encoder = EventEncoder(node_id="scripted", after_sequence=after)
        chosen = [e for e in self.events(run_id) if e.sequence > after and (activity or e.activity is None)]
        try:
            for index, event in enumerate(chosen):
                encoded = encoder.encode(event)
                if index == limit and kind == "skip":
                    continue
                if index >= limit and kind != "skip":
                    await self._break(kind, context)
                    return
                for piece in encoded:
                    await context.write(node_pb2.RunEvent.FromString(piece))
        finally:
            self.streams_ended += 1

    async def _break(self, kind: str, context: Any) -> None:
        if kind == "abort":
            await context.abort(grpc.StatusCode.UNAVAILABLE, "gone")
        if kind == "hang":
            self.hanging.set()
            await self.cancelled.wait()

    async def CancelRun(self, request: node_pb2.CancelRunRequest, context: Any) -> node_pb2.CancelRunResponse:
        self.cancels.append(request)
        self.cancelled.set()
        return node_pb2.CancelRunResponse(accepted=True, state=node_pb2.RUN_STATE_CANCELLED)

    async def GetRun(self, request: node_pb2.GetRunRequest, context: Any) -> node_pb2.GetRunResponse:
        if request.run_id == "missing":
            raise NotFound("no run missing")
        details = {"exit_code": "3", "argv": "demo-agent --json", "stderr_tail": "one\ntwo"}
        return node_pb2.GetRunResponse(run=self.info(request.run_id), details=details)

    def info(self, run_id: str) -> node_pb2.RunInfo:
        events = self.events(run_id)
        info = node_pb2.RunInfo(
            run_id=run_id,
            state=self.state,
            adapter="scripted",
            target="demo",
            session_id="s1",
            accepted_at=timestamp_to_wire(BEGAN_NS),
            ended_at=timestamp_to_wire(events[-1].time_ns),
            first_sequence=1,
            last_sequence=len(events),
        )
        if self.failure is not None:
            info.failure.CopyFrom(failure_to_wire(self.failure))
        return info

    async def ListRuns(self, request: node_pb2.ListRunsRequest, context: Any) -> node_pb2.ListRunsResponse:
        self.requests.append(request)
        return self.pages[int(request.page_token or 0)]

    async def ListArtifacts(
        self, request: node_pb2.ListArtifactsRequest, context: Any
    ) -> node_pb2.ListArtifactsResponse:
        found = [node_pb2.Artifact(name=name, size_bytes=len(data)) for name, data in self.artifacts.items()]
        return node_pb2.ListArtifactsResponse(artifacts=found)

    async def GetArtifact(self, request: node_pb2.GetArtifactRequest, context: Any) -> None:
        if request.name not in self.artifacts:
            raise NotFound(f"run {request.run_id} has no artifact {request.name}")
        data = self.artifacts[request.name]
        for begin in range(0, len(data), 4):
            await context.write(node_pb2.GetArtifactResponse(data=data[begin : begin + 4]))

    async def GetCapabilities(self, request: Any, context: Any) -> node_pb2.GetCapabilitiesResponse:
        target = node_pb2.Target(adapter="scripted", target="demo", max_concurrency=2)
        return node_pb2.GetCapabilitiesResponse(targets=[target], limits={"input_bytes": 1024})

    async def GetNodeStatus(self, request: Any, context: Any) -> node_pb2.GetNodeStatusResponse:
        return node_pb2.GetNodeStatusResponse(node_id="scripted", version="1", recovery_complete=True, notes=["a note"])


@asynccontextmanager
async def served(servicer: ScriptedNode, *, serving: bool = True, address: str = "127.0.0.1:0") -> AsyncIterator[str]:
    """Serve *servicer*, on a free port of loopback unless told otherwise, with health; yields the address."""
    server = grpc.aio.server(interceptors=[ErrorGuard()], options=[("grpc.so_reuseport", 0)])
    node_pb2_grpc.add_NodeServiceServicer_to_server(servicer, server)  # type: ignore[no-untyped-call]  # generated
    checks = health.aio.HealthServicer()
    state = health_pb2.HealthCheckResponse.SERVING if serving else health_pb2.HealthCheckResponse.NOT_SERVING
    await checks.set("", state)
    health_pb2_grpc.add_HealthServicer_to_server(checks, server)
    port = server.add_insecure_port(address)
    await server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await server.stop(0)
