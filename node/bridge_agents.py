"""Readiness, commands and usage status as messages and back: pure, no meaning of its own."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any

from google.protobuf.timestamp_pb2 import Timestamp

from node.bridge_parts import failure_to_wire
from node.pb import node_pb2
from node.well_known import NS_PER_S, duration_from_wire, struct_from_wire, struct_to_wire
from providers.catalog.readiness import Readiness, ReadinessResult, ReadinessSnapshot
from runtime.failure import InvalidRequest
from runtime.provider import CommandRequest, CommandResponse
from runtime.status import AgentUsageStatus, UsageWindow

if TYPE_CHECKING:  # its library takes its time, which no client needs
    from providers.catalog.schema import CatalogFile

_READINESS: Mapping[Readiness, node_pb2.Readiness] = {
    Readiness.READY: node_pb2.READINESS_READY,
    Readiness.MISSING_BINARY: node_pb2.READINESS_MISSING_BINARY,
    Readiness.UNAUTHENTICATED: node_pb2.READINESS_UNAUTHENTICATED,
    Readiness.UNSUPPORTED_MODEL: node_pb2.READINESS_UNSUPPORTED_MODEL,
    Readiness.PROBE_ERROR: node_pb2.READINESS_PROBE_ERROR,
}


def snapshot_to_wire(catalog: CatalogFile, snapshot: ReadinessSnapshot) -> node_pb2.ListReadinessResponse:
    """Every profile of *catalog*: with its last result, or as never probed."""
    profiles = []
    for profile in catalog.profiles:
        found = snapshot.get(profile.id)
        unknown = node_pb2.ProfileReadiness(profile_id=profile.id, provider_id=profile.provider, model_id=profile.model)
        profiles.append(unknown if found is None else readiness_to_wire(found))
    return node_pb2.ListReadinessResponse(profiles=profiles, catalog_hash=snapshot.catalog_hash)


def probed_to_wire(results: Iterable[ReadinessResult], catalog_hash: str) -> node_pb2.ProbeReadinessResponse:
    """What a probe found."""
    profiles = [readiness_to_wire(result) for result in results]
    return node_pb2.ProbeReadinessResponse(profiles=profiles, catalog_hash=catalog_hash)


def readiness_to_wire(result: ReadinessResult) -> node_pb2.ProfileReadiness:
    """One result, whole."""
    return node_pb2.ProfileReadiness(
        profile_id=result.profile_id, provider_id=result.provider_id, model_id=result.model_id,
        readiness=_READINESS[result.readiness], version=result.version, detail=result.detail,
        diagnostic=result.diagnostic, notices=result.notices, capabilities=result.capabilities,
        next_step=result.next_step, taken_at=_moment(result.taken_at), catalog_hash=result.catalog_hash,
    )  # fmt: skip


def max_age_from_wire(request: node_pb2.ProbeReadinessRequest) -> float:
    """How old a result may be, in seconds.

    Raises:
        InvalidRequest: it is negative, or no duration.
    """
    age_s = duration_from_wire(request.max_age, where="max_age").total_seconds()
    if age_s < 0:
        raise InvalidRequest(f"max_age is {age_s} s; it must be 0 or more", field="max_age")
    return age_s


def command_from_wire(request: node_pb2.CommandRequest) -> CommandRequest:
    """The command as asked for.

    Raises:
        InvalidRequest: it has no name, or arguments that are no JSON.
    """
    if not request.name:
        raise InvalidRequest("name is empty; name a command, such as status", field="name")
    return CommandRequest(name=request.name, arguments=struct_from_wire(request.arguments, where="arguments"))


def command_to_wire(target: str, name: str, *, adapter: str, arguments: Mapping[str, Any]) -> node_pb2.CommandRequest:
    """A command, as a caller sends it.

    Raises:
        InvalidRequest: *arguments* are no JSON.
    """
    return node_pb2.CommandRequest(
        adapter=adapter, target=target, name=name, arguments=struct_to_wire(arguments, where="arguments")
    )


def answer_to_wire(response: CommandResponse) -> node_pb2.CommandResponse:
    """The answer to a command."""
    return node_pb2.CommandResponse(
        failure=None if response.failure is None else failure_to_wire(response.failure),
        status=None if response.status is None else _status(response.status),
        metadata=dict(response.metadata),
    )


def _status(status: AgentUsageStatus) -> node_pb2.UsageStatus:
    return node_pb2.UsageStatus(
        availability=status.availability.value, reason=status.reason, plan=status.plan,
        windows=[_window(window) for window in status.windows], taken_at=_moment(status.taken_at),
        metadata=dict(status.metadata),
    )  # fmt: skip


def _window(window: UsageWindow) -> node_pb2.UsageWindow:
    """None stays absent: a field that is not set is told apart from zero."""
    return node_pb2.UsageWindow(
        name=window.name, used_percent=window.used_percent, used=window.used, limit=window.limit, unit=window.unit,
        duration_minutes=window.duration_minutes, reset_text=window.reset_text, state=window.state,
        resets_at=None if window.resets_at is None else _moment(window.resets_at),
    )  # fmt: skip


def _moment(value: datetime) -> Timestamp:
    whole = int(value.timestamp() // 1)
    return Timestamp(seconds=whole, nanos=value.microsecond * (NS_PER_S // 1_000_000))
