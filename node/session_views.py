"""Sessions as plain values for programs that ask a node: pictures of an answer, never sent back."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from node.pb import node_pb2
from node.well_known import datetime_from_wire


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionSummary:
    """One logical session. ``state`` is ``idle``, ``active`` or ``terminated``; ``run_id`` is the active run's."""

    session_id: str
    state: str
    adapter: str
    target: str
    anonymous: bool
    created_at: datetime
    used_at: datetime
    run_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TranscriptEntry:
    """One entry of a transcript; ``role`` is ``user``, ``assistant`` or ``tool``."""

    run_id: str
    role: str
    text: str
    time: datetime
    tool: str
    call_id: str
    is_error: bool


def session_from_wire(message: node_pb2.SessionInfo) -> SessionSummary:
    """One session; a state that this build does not know stays visible as its number."""
    known = message.state in node_pb2.SessionState.values()
    state = node_pb2.SessionState.Name(message.state).removeprefix("SESSION_STATE_").lower() if known else ""
    return SessionSummary(
        session_id=message.session_id, state=state or f"unknown ({message.state})", adapter=message.adapter,
        target=message.target, anonymous=message.anonymous, created_at=datetime_from_wire(message.created_at),
        used_at=datetime_from_wire(message.used_at), run_id=message.run_id,
    )  # fmt: skip


def entry_from_wire(message: node_pb2.GetTranscriptResponse) -> TranscriptEntry:
    return TranscriptEntry(
        run_id=message.run_id, role=message.role, text=message.text, time=datetime_from_wire(message.time),
        tool=message.tool, call_id=message.call_id, is_error=message.is_error,
    )  # fmt: skip
