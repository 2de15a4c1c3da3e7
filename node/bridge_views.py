"""What the node tells about runs and itself, as messages: the read-only half of the bridge."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from node.bridge_parts import failure_to_wire
from node.pb import node_pb2
from node.well_known import struct_from_wire, timestamp_to_wire
from runtime.conversations import Utterance
from runtime.provider import Answer, Decision
from runtime.records import RunRecord, RunState
from runtime.runs import CancelReceipt
from runtime.sessions import Session
from runtime.types import Capabilities

_STATES = {
    RunState.ACCEPTED: node_pb2.RUN_STATE_ACCEPTED,
    RunState.RUNNING: node_pb2.RUN_STATE_RUNNING,
    RunState.COMPLETE: node_pb2.RUN_STATE_COMPLETE,
    RunState.ERROR: node_pb2.RUN_STATE_ERROR,
    RunState.CANCELLED: node_pb2.RUN_STATE_CANCELLED,
}
_DECISIONS: dict[node_pb2.PermissionDecision, Decision] = {
    node_pb2.PERMISSION_DECISION_ALLOW: Decision.ALLOW,
    node_pb2.PERMISSION_DECISION_DENY: Decision.DENY,
}


def run_to_wire(record: RunRecord, *, first: int = 0, last: int = 0, queue_position: int = 0) -> node_pb2.RunInfo:
    """One run as it stands."""
    spec = record.spec
    message = node_pb2.RunInfo(
        run_id=record.run_id, state=_STATES[record.state], session_id=record.session_id, recovered=record.recovered,
        accepted_at=timestamp_to_wire(record.accepted_ns), workspace_shared_with=record.shared_with,
        first_sequence=first, last_sequence=last, queue_position=queue_position,
        ended_at=None if record.ended_ns is None else timestamp_to_wire(record.ended_ns),
        failure=None if record.failure is None else failure_to_wire(record.failure),
    )  # fmt: skip
    if spec is not None:
        message.adapter, message.target = spec.adapter, spec.target
        message.background, message.workspace = spec.background, spec.workspace
    return message


def run_details_to_wire(
    record: RunRecord,
    *,
    first: int,
    last: int,
    queue_position: int,
    open_requests: Sequence[str],
    details: Mapping[str, str],
) -> node_pb2.GetRunResponse:
    """One run and the facts that explain it."""
    run = run_to_wire(record, first=first, last=last, queue_position=queue_position)
    run.open_requests.extend(open_requests)
    return node_pb2.GetRunResponse(run=run, details=dict(details))


def page_to_wire(
    records: Sequence[RunRecord], queued: Mapping[str, int], *, next_token: str
) -> node_pb2.ListRunsResponse:
    """A page of runs; *queued* holds places in the queue by key."""
    runs = [run_to_wire(record, queue_position=queued.get(record.ulid, 0)) for record in records]
    return node_pb2.ListRunsResponse(runs=runs, next_page_token=next_token)


def receipt_to_wire(receipt: CancelReceipt) -> node_pb2.CancelRunResponse:
    return node_pb2.CancelRunResponse(accepted=receipt.accepted, state=_STATES[receipt.state])


def artifacts_to_wire(sizes: Mapping[str, int]) -> node_pb2.ListArtifactsResponse:
    found = [node_pb2.Artifact(name=name, size_bytes=size) for name, size in sizes.items()]
    return node_pb2.ListArtifactsResponse(artifacts=found)


def chunk_to_wire(data: bytes) -> node_pb2.GetArtifactResponse:
    return node_pb2.GetArtifactResponse(data=data)


def capabilities_to_wire(
    targets: Sequence[tuple[str, str, Capabilities]], limits: Mapping[str, int]
) -> node_pb2.GetCapabilitiesResponse:
    found = [
        node_pb2.Target(
            adapter=adapter,
            target=target,
            max_concurrency=capabilities.max_concurrency,
            verbs=sorted(capabilities.verbs),
            forks=capabilities.forks,
        )
        for adapter, target, capabilities in targets
    ]
    return node_pb2.GetCapabilitiesResponse(targets=found, limits=dict(limits))


def status_to_wire(
    *, node_id: str, version: str, started_ns: int, is_recovered: bool, active_runs: int, readers: int,
    limits: Mapping[str, int], notes: Sequence[str], keeper_pid: int | None, is_draining: bool, queued_runs: int,
    generation: int,
) -> node_pb2.GetNodeStatusResponse:  # fmt: skip
    """The node as it is now."""
    return node_pb2.GetNodeStatusResponse(
        node_id=node_id, version=version, started_at=timestamp_to_wire(started_ns), recovery_complete=is_recovered,
        active_runs=active_runs, attached_readers=readers, limits=dict(limits), notes=notes, keeper_pid=keeper_pid or 0,
        draining=is_draining, queued_runs=queued_runs, config_generation=generation,
    )  # fmt: skip


def reload_to_wire(generation: int) -> node_pb2.ReloadConfigResponse:
    return node_pb2.ReloadConfigResponse(generation=generation)


def drain_to_wire(active_runs: int) -> node_pb2.DrainResponse:
    return node_pb2.DrainResponse(active_runs=active_runs)


def session_to_wire(session: Session, run_id: str) -> node_pb2.SessionInfo:
    """One session; *run_id* is its active run's, empty when it has none."""
    state = node_pb2.SESSION_STATE_ACTIVE if run_id else node_pb2.SESSION_STATE_IDLE
    return node_pb2.SessionInfo(
        session_id=session.session_id, adapter=session.adapter, target=session.target, anonymous=session.anonymous,
        state=state if session.terminated_ns is None else node_pb2.SESSION_STATE_TERMINATED, run_id=run_id,
        created_at=timestamp_to_wire(session.created_ns), used_at=timestamp_to_wire(session.used_ns),
    )  # fmt: skip


def session_response(session: Session, run_id: str) -> node_pb2.GetSessionResponse:
    return node_pb2.GetSessionResponse(session=session_to_wire(session, run_id))


def terminated_response(session: Session) -> node_pb2.TerminateSessionResponse:
    return node_pb2.TerminateSessionResponse(session=session_to_wire(session, ""))


def sessions_to_wire(sessions: Sequence[tuple[Session, str]], *, next_token: str) -> node_pb2.ListSessionsResponse:
    found = [session_to_wire(session, run_id) for session, run_id in sessions]
    return node_pb2.ListSessionsResponse(sessions=found, next_page_token=next_token)


def utterance_to_wire(utterance: Utterance) -> node_pb2.GetTranscriptResponse:
    return node_pb2.GetTranscriptResponse(
        run_id=utterance.run_id, role=utterance.role, text=utterance.text, time=timestamp_to_wire(utterance.time_ns),
        tool=utterance.tool, call_id=utterance.call_id, is_error=utterance.is_error,
    )  # fmt: skip


def decision_from_wire(number: node_pb2.PermissionDecision) -> str:
    """The word of a decision; one that this build does not know stays visible, and is refused, as its number."""
    return _DECISIONS.get(number, f"PERMISSION_DECISION_{number}")


def content_from_wire(request: node_pb2.RespondPermissionRequest) -> dict[str, Any] | None:
    """What a question is answered with; None when nothing was sent, which is not an empty answer.

    Raises:
        InvalidRequest: a value is unset or not finite.
    """
    return struct_from_wire(request.answer, where="answer") if request.HasField("answer") else None


def answer_to_wire(answer: Answer) -> node_pb2.RespondPermissionResponse:
    numbers = {word: number for number, word in _DECISIONS.items()}
    return node_pb2.RespondPermissionResponse(decision=numbers[answer.decision])
