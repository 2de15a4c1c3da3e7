"""One connection to a node, in the words of the wire: each method is one call, tried once.

Every call that fails raises a :class:`NodeError`, which says whether the node refused (it carries the node's failure)
or whether the connection did. What to do about it is :mod:`node.client`'s business.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from datetime import timedelta
from typing import Any, Self, TypeAlias, TypeVar

import grpc
import grpc.aio
from google.protobuf.message import DecodeError
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_status import rpc_status

from node import wire_views as views
from node.bridge_inputs import input_receipt_from_wire, verb_to_wire
from node.pb import node_pb2, node_pb2_grpc
from node.session_views import SessionSummary, session_from_wire
from node.well_known import struct_to_wire
from node.wire_errors import failure_of
from runtime.failure import Failure, FailureCode
from runtime.provider import InputReceipt

CONNECT_S = 5
"""The bound on one attempt to connect."""

# A peer that froze or vanished is noticed only with all three times set: the wait for the answer to a keepalive is the
# ping timeout, whose default of 60 s wins otherwise.
CHANNEL_OPTIONS: tuple[tuple[str, int], ...] = (
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.http2.ping_timeout_ms", 10_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.max_receive_message_length", 4 << 20),
    ("grpc.initial_reconnect_backoff_ms", 100),  # a restarted node serves within a second; the default waits one
    ("grpc.min_reconnect_backoff_ms", CONNECT_S * 1000),  # bounds an attempt, despite its name
    ("grpc.max_reconnect_backoff_ms", 2_000),
    ("grpc.enable_http_proxy", 0),  # a node is dialled directly; a proxy of the environment would catch even loopback
    ("grpc.use_local_subchannel_pool", 1),  # no back-off inherited from another channel to the same address
)

_T = TypeVar("_T")
_Stream: TypeAlias = AbstractAsyncContextManager[AsyncIterator[_T]]

PROBE_S = 150.0  # over what a catalog may allow a CLI for its answers
_CANCEL_S = 60.0  # an operator may give agents a long grace
_CALL_S = 10.0  # for the answers to questions; streams have no deadline of their own


class NodeError(Exception):
    """A call to a node failed. ``failure`` is the node's own reason, None when the answer is gRPC's."""

    def __init__(self, status: grpc.StatusCode, message: str, failure: Failure | None = None) -> None:
        super().__init__(message)
        self.status, self.failure = status, failure

    @property
    def code(self) -> str:
        """The failure code of E-4 where the node gave one, else the gRPC status in lower case."""
        return self.failure.code.value if self.failure else self.status.name.lower()

    @property
    def is_broken(self) -> bool:
        """The connection or the node went away; what the call asked for may well have happened or still be going on."""
        if self.failure is not None:
            return self.failure.code is FailureCode.DRAINING
        return self.status in _BROKEN


class NodeUnreachable(NodeError):
    """No node answered at the address in the time allowed."""


# Without a failure of the node's these come from a connection that ended under a call, by whichever side noticed first.
_BROKEN = frozenset({
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.CANCELLED,
    grpc.StatusCode.INTERNAL,
    grpc.StatusCode.UNKNOWN,
})  # fmt: skip


def error_from_call(error: grpc.aio.AioRpcError) -> NodeError:
    """The error a caller sees for *error*, with the node's failure where its status holds one."""
    status, details = error.code(), error.details() or ""
    try:
        rich = rpc_status.from_call(error)
        failure = failure_of(rich) if rich is not None else None
    except (ValueError, DecodeError):  # details that are not of this call's status: not a node's
        failure = None
    if failure is not None:
        return NodeError(status, failure.message, failure)
    kind = NodeUnreachable if status is grpc.StatusCode.UNAVAILABLE else NodeError
    return kind(status, f"{status.name}: {details}" if details else status.name)


@contextmanager
def _typed_errors() -> Iterator[None]:
    try:
        yield
    except grpc.aio.AioRpcError as error:
        raise error_from_call(error) from error


class Connection:
    """A channel to one node; ``async with`` opens and closes it. Calls may run side by side."""

    def __init__(self, address: str) -> None:
        """*address* is ``host:port`` or ``unix:/path``."""
        self.address = address

    async def __aenter__(self) -> Self:
        self._channel = grpc.aio.insecure_channel(self.address, options=CHANNEL_OPTIONS)
        self._stub = node_pb2_grpc.NodeServiceStub(self._channel)  # type: ignore[no-untyped-call]  # generated
        self._health = health_pb2_grpc.HealthStub(self._channel)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._channel.close()

    async def ready(self, within_s: float) -> None:
        """Return when the connection stands.

        Raises:
            NodeUnreachable: it does not within *within_s*.
        """
        try:
            async with asyncio.timeout(within_s):
                await self._channel.channel_ready()
        except TimeoutError:
            raise NodeUnreachable(grpc.StatusCode.UNAVAILABLE, f"no node answers at {self.address}") from None

    def run(self, request: node_pb2.RunRequest) -> _Stream[node_pb2.RunEvent]:
        """The events of a run that is dispatched by this, or is there already."""
        return _stream(self._stub.Run, request)

    def attach(self, run_id: str, after_sequence: int, include_activity: bool) -> _Stream[node_pb2.RunEvent]:
        """The events of a run after a cursor."""
        request = node_pb2.AttachRunRequest(
            run_id=run_id, after_sequence=after_sequence, include_activity=include_activity
        )
        return _stream(self._stub.AttachRun, request)

    def artifact(self, run_id: str, name: str) -> _Stream[node_pb2.GetArtifactResponse]:
        """The bytes of one artifact, piece by piece."""
        return _stream(self._stub.GetArtifact, node_pb2.GetArtifactRequest(run_id=run_id, name=name))

    async def cancel(self, run_id: str, reason: str) -> views.CancelReceipt:
        """Cancel a run; answers when it has ended, or has not within the node's grace."""
        request = node_pb2.CancelRunRequest(run_id=run_id, reason=reason)
        return views.receipt_from_wire(await _ask(self._stub.CancelRun, request, within_s=_CANCEL_S))

    async def get(self, run_id: str) -> views.RunDetails:
        """One run and its facts."""
        return views.details_from_wire(await _ask(self._stub.GetRun, node_pb2.GetRunRequest(run_id=run_id)))

    async def page(self, active_only: bool, page_size: int, token: str) -> tuple[tuple[views.RunView, ...], str]:
        """Some runs, newest first, and the token of the next page (empty on the last)."""
        request = node_pb2.ListRunsRequest(page_size=page_size, page_token=token, active_only=active_only)
        response = await _ask(self._stub.ListRuns, request)
        return tuple(views.run_from_wire(run) for run in response.runs), response.next_page_token

    async def artifacts(self, run_id: str) -> tuple[views.ArtifactView, ...]:
        """What a run left."""
        request = node_pb2.ListArtifactsRequest(run_id=run_id)
        return views.artifacts_from_wire(await _ask(self._stub.ListArtifacts, request))

    async def capabilities(self) -> views.CapabilitiesView:
        """What the node can run."""
        return views.capabilities_from_wire(await _ask(self._stub.GetCapabilities, node_pb2.GetCapabilitiesRequest()))

    async def status(self) -> views.NodeStatusView:
        """The node itself."""
        return views.status_from_wire(await _ask(self._stub.GetNodeStatus, node_pb2.GetNodeStatusRequest()))

    async def readiness(self) -> tuple[views.ReadinessView, ...]:
        """What is known of every profile."""
        response = await _ask(self._stub.ListReadiness, node_pb2.ListReadinessRequest())
        return tuple(views.readiness_from_wire(one) for one in response.profiles)

    async def probe(self, profile_ids: Iterable[str], max_age: timedelta) -> tuple[views.ReadinessView, ...]:
        """What the CLIs of these profiles say now, or said at most *max_age* ago."""
        request = node_pb2.ProbeReadinessRequest(profile_ids=profile_ids)
        request.max_age.FromTimedelta(max_age)
        response = await _ask(self._stub.ProbeReadiness, request, within_s=PROBE_S)
        return tuple(views.readiness_from_wire(one) for one in response.profiles)

    async def command(self, request: node_pb2.CommandRequest, within_s: float) -> views.CommandView:
        """A provider's answer to a command."""
        return views.answer_from_wire(await _ask(self._stub.Command, request, within_s=within_s))

    async def send_input(self, run_id: str, verb: str, text: str, new_run_id: str) -> InputReceipt:
        """Do something to a running turn, or behind it."""
        request = node_pb2.SendInputRequest(run_id=run_id, verb=verb_to_wire(verb), input=text, new_run_id=new_run_id)
        return input_receipt_from_wire(await _ask(self._stub.SendInput, request))

    async def respond(
        self, run_id: str, request_id: str, allow: bool, message: str, answer: Mapping[str, Any] | None
    ) -> None:
        """Answer a question of a running agent."""
        decision = node_pb2.PERMISSION_DECISION_ALLOW if allow else node_pb2.PERMISSION_DECISION_DENY
        request = node_pb2.RespondPermissionRequest(
            run_id=run_id, request_id=request_id, decision=decision, message=message
        )
        if answer is not None:
            request.answer.CopyFrom(struct_to_wire(answer, where="answer"))
        await _ask(self._stub.RespondPermission, request)

    async def sessions(self, token: str) -> tuple[tuple[SessionSummary, ...], str]:
        """Some sessions, the last used first, and the token of the next page."""
        response = await _ask(self._stub.ListSessions, node_pb2.ListSessionsRequest(page_token=token))
        return tuple(session_from_wire(one) for one in response.sessions), response.next_page_token

    async def terminate_session(self, session_id: str, cancel_active: bool) -> SessionSummary:
        """End a session."""
        request = node_pb2.TerminateSessionRequest(session_id=session_id, cancel_active=cancel_active)
        return session_from_wire((await _ask(self._stub.TerminateSession, request)).session)

    def transcript(self, session_id: str) -> _Stream[node_pb2.GetTranscriptResponse]:
        """What was said in a session, entry by entry."""
        return _stream(self._stub.GetTranscript, node_pb2.GetTranscriptRequest(session_id=session_id))

    async def reload(self) -> int:
        """Take the changed configuration into service; its generation."""
        return int((await _ask(self._stub.ReloadConfig, node_pb2.ReloadConfigRequest())).generation)

    async def drain(self) -> int:
        """Take no new runs; how many are left."""
        return int((await _ask(self._stub.Drain, node_pb2.DrainRequest())).active_runs)

    async def is_serving(self) -> bool:
        """What the node's health service says of the whole server."""
        response = await _ask(self._health.Check, health_pb2.HealthCheckRequest())
        return bool(response.status == health_pb2.HealthCheckResponse.SERVING)


async def _ask(method: Any, request: Any, *, within_s: float = _CALL_S) -> Any:
    with _typed_errors():
        return await method(request, timeout=within_s)


@asynccontextmanager
async def _stream(method: Any, request: Any) -> AsyncIterator[AsyncIterator[Any]]:
    """A streaming call, cancelled however the block ends: grpc.aio never collects a call that is only dropped."""
    with _typed_errors():
        call = method(request)
        try:
            yield call.__aiter__()
        finally:
            call.cancel()
