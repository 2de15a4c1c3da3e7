"""The parts of an event as messages and back: usage, failure, and what an agent does beside answering.

Each is a value of its own on both sides; the event that holds them is :mod:`node.runtime_bridge`'s.
"""

from __future__ import annotations

import msgspec

from node.pb import node_pb2
from node.well_known import timestamp_from_wire, timestamp_to_wire
from runtime.events import (
    Activity,
    FailureRecord,
    Notice,
    PermissionRequest,
    Plan,
    PlanEntry,
    RateLimit,
    RequestKind,
    ToolCall,
    ToolResult,
    Usage,
)
from runtime.failure import Failure, FailureCode, FailureError, default_message

_INT64 = range(-(1 << 63), 1 << 63)


class Untranslatable(FailureError):
    """A value without a counterpart on the other side; the peer is of another version, or broken."""

    code = FailureCode.UNSUPPORTED


def usage_to_wire(usage: Usage) -> node_pb2.Usage:
    """*usage* with exactly the reported fields present; a count beyond 64 bits counts as not reported."""
    reported = msgspec.structs.asdict(usage)
    return node_pb2.Usage(**{name: figure for name, figure in reported.items() if _is_sendable(figure)})


def usage_from_wire(message: node_pb2.Usage) -> Usage:
    """Absent fields become None, which is not zero."""
    names = Usage.__struct_fields__
    return Usage(**{name: getattr(message, name) for name in names if message.HasField(name)})


def _is_sendable(figure: int | float | None) -> bool:
    return figure is not None and (isinstance(figure, float) or figure in _INT64)


def failure_to_wire(failure: Failure | FailureRecord) -> node_pb2.Failure:
    """The typed reason. Its codes are the documented ones, as text."""
    record = FailureRecord.of(failure) if isinstance(failure, Failure) else failure
    return node_pb2.Failure(
        code=record.code,
        message=prose(record.message, record.code),
        retryable=record.retryable,
        metadata=record.metadata,
    )


def failure_from_wire(message: node_pb2.Failure) -> FailureRecord:
    """The failure as the journal would hold it; a code of the future stays as it is."""
    return FailureRecord(
        code=message.code, message=message.message, retryable=message.retryable, metadata=dict(message.metadata)
    )


def prose(text: str, code: str) -> str:
    """*text* as a sentence that no reader can take for an encoded value."""
    if text.lstrip()[:1] in {"", "{", "["}:
        known = code in FailureCode._value2member_map_
        text = f"{default_message(FailureCode(code)) if known else code or 'failed'}: {text}".rstrip(": ")
    return text


def activity_to_wire(activity: Activity) -> node_pb2.Activity:
    """*activity* as the case of the oneof that bears its name."""
    match activity:
        case ToolCall(call_id=call_id, name=name, input_json=input_json):
            call = node_pb2.ToolCall(call_id=call_id, name=name, input_json=input_json)
            return node_pb2.Activity(tool_call=call)
        case ToolResult(call_id=call_id, output=output, is_error=is_error):
            result = node_pb2.ToolResult(call_id=call_id, output=output, is_error=is_error)
            return node_pb2.Activity(tool_result=result)
        case Plan(entries=entries):
            lines = [node_pb2.PlanEntry(text=entry.text, status=entry.status) for entry in entries]
            return node_pb2.Activity(plan=node_pb2.Plan(entries=lines))
        case RateLimit():
            return node_pb2.Activity(rate_limit=_rate_limit_to_wire(activity))
        case PermissionRequest():
            return node_pb2.Activity(permission_request=_question_to_wire(activity))
        case Notice(code=code, message=message):
            return node_pb2.Activity(notice=node_pb2.Notice(code=code, message=message))
        case _:
            raise Untranslatable(f"activity {type(activity).__name__} has no place on the wire")


def _rate_limit_to_wire(limit: RateLimit) -> node_pb2.RateLimit:
    message = node_pb2.RateLimit(status=limit.status, window=limit.window, used_percent=limit.used_percent)
    if limit.resets_at is not None:
        message.resets_at.seconds = limit.resets_at
    return message


def _question_to_wire(asked: PermissionRequest) -> node_pb2.PermissionRequest:
    message = node_pb2.PermissionRequest(
        request_id=asked.request_id, tool=asked.tool, input_json=asked.input_json, reason=asked.reason, kind=asked.kind
    )
    if asked.expires_at_ns:
        message.expires_at.CopyFrom(timestamp_to_wire(asked.expires_at_ns))
    return message


def _question_from_wire(message: node_pb2.PermissionRequest) -> PermissionRequest:
    return PermissionRequest(
        request_id=message.request_id,
        tool=message.tool,
        input_json=message.input_json,
        reason=message.reason,
        kind=message.kind or RequestKind.TOOL.value,
        expires_at_ns=timestamp_from_wire(message.expires_at) if message.HasField("expires_at") else 0,
    )


def activity_from_wire(message: node_pb2.Activity) -> Activity:
    """The activity, by the case of the oneof.

    Raises:
        Untranslatable: no case is set that this build knows.
    """
    match message.WhichOneof("kind"):
        case "tool_call":
            call = message.tool_call
            return ToolCall(call_id=call.call_id, name=call.name, input_json=call.input_json)
        case "tool_result":
            result = message.tool_result
            return ToolResult(call_id=result.call_id, output=result.output, is_error=result.is_error)
        case "plan":
            return Plan(entries=tuple(PlanEntry(text=e.text, status=e.status) for e in message.plan.entries))
        case "rate_limit":
            return _rate_limit_from_wire(message.rate_limit)
        case "permission_request":
            return _question_from_wire(message.permission_request)
        case "notice":
            return Notice(code=message.notice.code, message=message.notice.message)
        case _:
            raise Untranslatable("activity of a kind that this build does not know")


def _rate_limit_from_wire(message: node_pb2.RateLimit) -> RateLimit:
    return RateLimit(
        status=message.status,
        window=message.window,
        used_percent=message.used_percent if message.HasField("used_percent") else None,
        resets_at=message.resets_at.seconds if message.HasField("resets_at") else None,
    )
