"""What a node tells about itself and its runs, as plain values for programs that ask it.

These are read-only pictures of an answer, not the runtime's own records: a client holds them, prints them, and never
sends them back.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from node.pb import node_pb2
from node.well_known import datetime_from_wire
from runtime.failure import Failure, FailureCode
from runtime.status import AgentUsageStatus, Availability, UsageWindow

if TYPE_CHECKING:
    from google.protobuf.timestamp_pb2 import Timestamp

ENDED = frozenset({"complete", "error", "cancelled"})


@dataclass(frozen=True, slots=True, kw_only=True)
class RunView:
    """One run. ``state`` is ``accepted``, ``running``, ``complete``, ``error`` or ``cancelled``."""

    run_id: str
    state: str
    adapter: str
    target: str
    session_id: str
    background: bool
    workspace: str
    accepted_at: datetime | None
    ended_at: datetime | None
    first_sequence: int
    last_sequence: int
    failure: Failure | None
    workspace_shared_with: tuple[str, ...]
    recovered: bool
    queue_position: int
    open_requests: tuple[str, ...] = ()

    @property
    def has_ended(self) -> bool:
        return self.state in ENDED


@dataclass(frozen=True, slots=True, kw_only=True)
class RunDetails:
    """One run and the facts that explain it: redacted argv, exit code, signal, tail of stderr …"""

    run: RunView
    details: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class CancelReceipt:
    """Whether a cancel was recorded; if not, the run had ended before, as ``state`` says."""

    accepted: bool
    state: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ArtifactView:
    """A file that a run left: ``answer``, ``stderr`` or ``raw``."""

    name: str
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetView:
    """Something that can be asked to run. ``max_concurrency`` 0 means that only the node's limit applies."""

    adapter: str
    target: str
    max_concurrency: int
    verbs: tuple[str, ...] = ()
    forks: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class CapabilitiesView:
    """What the node can run, and its limits."""

    targets: tuple[TargetView, ...]
    limits: Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeStatusView:
    """The node itself. ``keeper_pid`` 0 means that it has no keeper; ``config_generation`` counts reloads."""

    node_id: str
    version: str
    started_at: datetime | None
    recovery_complete: bool
    active_runs: int
    attached_readers: int
    limits: Mapping[str, int]
    notes: tuple[str, ...]
    keeper_pid: int
    draining: bool
    queued_runs: int
    config_generation: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadinessView:
    """One profile's readiness; ``readiness`` is ``unspecified`` for one that was never probed."""

    profile_id: str
    provider_id: str
    model_id: str
    readiness: str
    version: str = ""
    detail: str = ""
    diagnostic: str = ""
    notices: tuple[str, ...] = ()
    capabilities: tuple[str, ...] = ()
    next_step: str = ""
    taken_at: datetime | None = None
    catalog_hash: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandView:
    """The answer to a command: a failure, or what was asked for."""

    failure: Failure | None
    status: AgentUsageStatus | None
    metadata: Mapping[str, str]


def state_from_wire(number: int) -> str:
    """The word for a run's state; one that this build does not know stays visible as its number."""
    if number in node_pb2.RunState.values():
        return node_pb2.RunState.Name(number).removeprefix("RUN_STATE_").lower()
    return f"unknown ({number})"


def run_from_wire(message: node_pb2.RunInfo) -> RunView:
    """One run, as a node described it."""
    return RunView(
        run_id=message.run_id,
        state=state_from_wire(message.state),
        adapter=message.adapter,
        target=message.target,
        session_id=message.session_id,
        background=message.background,
        workspace=message.workspace,
        accepted_at=_moment(message.accepted_at, message.HasField("accepted_at")),
        ended_at=_moment(message.ended_at, message.HasField("ended_at")),
        first_sequence=message.first_sequence,
        last_sequence=message.last_sequence,
        failure=_failure(message.failure) if message.HasField("failure") else None,
        workspace_shared_with=tuple(message.workspace_shared_with),
        recovered=message.recovered,
        queue_position=message.queue_position,
        open_requests=tuple(message.open_requests),
    )


def details_from_wire(message: node_pb2.GetRunResponse) -> RunDetails:
    """One run with its facts."""
    return RunDetails(run=run_from_wire(message.run), details=dict(message.details))


def receipt_from_wire(message: node_pb2.CancelRunResponse) -> CancelReceipt:
    """What came of a cancel."""
    return CancelReceipt(accepted=message.accepted, state=state_from_wire(message.state))


def artifacts_from_wire(message: node_pb2.ListArtifactsResponse) -> tuple[ArtifactView, ...]:
    """What a run left."""
    return tuple(ArtifactView(name=one.name, size_bytes=one.size_bytes) for one in message.artifacts)


def capabilities_from_wire(message: node_pb2.GetCapabilitiesResponse) -> CapabilitiesView:
    """What a node can run."""
    targets = tuple(
        TargetView(
            adapter=one.adapter,
            target=one.target,
            max_concurrency=one.max_concurrency,
            verbs=tuple(one.verbs),
            forks=one.forks,
        )
        for one in message.targets
    )
    return CapabilitiesView(targets=targets, limits=dict(message.limits))


def status_from_wire(message: node_pb2.GetNodeStatusResponse) -> NodeStatusView:
    """A node, as it described itself."""
    return NodeStatusView(
        node_id=message.node_id,
        version=message.version,
        started_at=_moment(message.started_at, message.HasField("started_at")),
        recovery_complete=message.recovery_complete,
        active_runs=message.active_runs,
        attached_readers=message.attached_readers,
        limits=dict(message.limits),
        notes=tuple(message.notes),
        keeper_pid=message.keeper_pid,
        draining=message.draining,
        queued_runs=message.queued_runs,
        config_generation=message.config_generation,
    )


def readiness_from_wire(message: node_pb2.ProfileReadiness) -> ReadinessView:
    """One profile's readiness; a value that this build does not know stays visible as its number."""
    number = int(message.readiness)
    known = number in node_pb2.Readiness.values()
    word = (
        node_pb2.Readiness.Name(message.readiness).removeprefix("READINESS_").lower()
        if known
        else f"unknown ({number})"
    )
    return ReadinessView(
        profile_id=message.profile_id, provider_id=message.provider_id, model_id=message.model_id, readiness=word,
        version=message.version, detail=message.detail, diagnostic=message.diagnostic, notices=tuple(message.notices),
        capabilities=tuple(message.capabilities), next_step=message.next_step, catalog_hash=message.catalog_hash,
        taken_at=_moment(message.taken_at, message.HasField("taken_at")),
    )  # fmt: skip


def answer_from_wire(message: node_pb2.CommandResponse) -> CommandView:
    """The answer to a command."""
    return CommandView(
        failure=_failure(message.failure) if message.HasField("failure") else None,
        status=_usage_status(message.status) if message.HasField("status") else None,
        metadata=dict(message.metadata),
    )


def _usage_status(message: node_pb2.UsageStatus) -> AgentUsageStatus:
    known = message.availability in Availability._value2member_map_
    return AgentUsageStatus(
        availability=Availability(message.availability) if known else Availability.UNAVAILABLE,
        reason=message.reason if known else f"availability {message.availability!r} is not known here", plan=message.plan,
        windows=tuple(_window(window) for window in message.windows), metadata=dict(message.metadata),
        taken_at=datetime_from_wire(message.taken_at),
    )  # fmt: skip


def _window(message: node_pb2.UsageWindow) -> UsageWindow:
    return UsageWindow(
        name=message.name, unit=message.unit, reset_text=message.reset_text, state=message.state,
        used_percent=message.used_percent if message.HasField("used_percent") else None,
        used=message.used if message.HasField("used") else None,
        limit=message.limit if message.HasField("limit") else None,
        duration_minutes=message.duration_minutes if message.HasField("duration_minutes") else None,
        resets_at=_moment(message.resets_at, message.HasField("resets_at")),
    )  # fmt: skip


def _moment(message: Timestamp, is_present: bool) -> datetime | None:
    return datetime_from_wire(message) if is_present else None


def _failure(message: node_pb2.Failure) -> Failure:
    metadata = dict(message.metadata)
    known = message.code in FailureCode._value2member_map_
    if not known:
        metadata["original_code"] = message.code
    code = FailureCode(message.code) if known else FailureCode.UNKNOWN
    return Failure(code=code, message=message.message, retryable=message.retryable, metadata=metadata)
