"""Translates between the words on the wire and the values of the runtime, in both directions, and decides nothing.

This is the only module that touches generated messages and the runtime's requests and events. It looks nothing up: what a
request means is the runtime's business, so a value that the runtime refuses passes through here as sent. What has no
counterpart on the other side (an unknown enum number, an unknown type) becomes a visible failure, never a default.

Events are written for their readers as bytes by :class:`EventEncoder`, because building the message is the dearest
thing this project does per event. It rests on a rule of the protobuf encoding: the concatenation of two encoded
messages is the encoding of their merge.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import msgspec

from node.bridge_parts import (
    Untranslatable,
    activity_from_wire,
    activity_to_wire,
    failure_from_wire,
    failure_to_wire,
    prose,
    usage_from_wire,
    usage_to_wire,
)
from node.pb import node_pb2
from node.well_known import NS_PER_S, duration_from_wire, struct_from_wire, struct_to_wire, timestamp_from_wire
from runtime.events import NO_METADATA, EventType, RuntimeEvent, replacing_invalid
from runtime.failure import FailureCode, InvalidRequest
from runtime.types import RunRequest, SessionMode, parse_session_mode

MESSAGE_LIMIT_BYTES = 1 << 20  # a reader's gRPC refuses messages over 4 MiB, and the node cannot raise a reader's limit
MESSAGE_BYTES = "message_bytes"
"""Metadata of an event whose message was too long to send: its size as UTF-8. The text is artifact ``answer``."""
MESSAGE_SHA256 = "message_sha256"
"""The SHA-256 of those bytes, in hexadecimal."""

_MODES = {
    node_pb2.SESSION_MODE_CREATE_IF_MISSING: SessionMode.CREATE_IF_MISSING,
    node_pb2.SESSION_MODE_REQUIRE_EXISTING: SessionMode.REQUIRE_EXISTING,
    node_pb2.SESSION_MODE_FORK: SessionMode.FORK,
}
_MODE_NUMBERS = {mode: number for number, mode in _MODES.items()}


# --- requests


def request_from_wire(message: node_pb2.RunRequest) -> RunRequest:
    """*message* as the runtime's request, field by field as sent; the runtime validates and resolves it.

    Raises:
        InvalidRequest: a session is named without a mode, or the timeout or policy has no meaning as a value.
    """
    return RunRequest(
        run_id=message.run_id,
        adapter=message.adapter,
        target=message.target,
        session_id=message.session_id,
        session_mode=_mode_from_wire(message),
        fork_from=message.fork_from,
        background=message.background,
        workspace=message.workspace,
        policy=struct_from_wire(message.policy, where="policy"),
        input=message.input,
        timeout=duration_from_wire(message.timeout, where="timeout") if message.HasField("timeout") else None,
        metadata=dict(message.metadata),
    )


def request_to_wire(
    request: RunRequest, *, include_activity: bool = False, after_sequence: int = 0
) -> node_pb2.RunRequest:
    """*request* as a caller sends it.

    Raises:
        InvalidRequest: the mode is unknown, or a text, the timeout or the policy cannot be sent without changing it.
    """
    try:
        message = node_pb2.RunRequest(
            run_id=request.run_id,
            adapter=request.adapter,
            target=request.target,
            session_id=request.session_id,
            fork_from=request.fork_from,
            background=request.background,
            workspace=request.workspace,
            input=request.input,
            timeout=request.timeout,
            metadata=request.metadata,
            include_activity=include_activity,
            after_sequence=after_sequence,
        )
    except ValueError as error:  # half of a surrogate pair, a number beyond its type
        raise InvalidRequest(f"the request cannot be sent: {error}") from error
    if request.session_mode is not None:
        message.session_mode = _MODE_NUMBERS[parse_session_mode(request.session_mode)]
    if request.policy:
        message.policy.CopyFrom(struct_to_wire(request.policy, where="policy"))
    return message


def _mode_from_wire(message: node_pb2.RunRequest) -> str | None:
    number = message.session_mode
    if number == node_pb2.SESSION_MODE_UNSPECIFIED:
        if message.session_id:
            known = " or ".join(node_pb2.SessionMode.Name(n) for n in _MODES)
            raise InvalidRequest(f"session_id is given without a session_mode; set it to {known}", field="session_mode")
        return None
    known_mode = _MODES.get(number)
    return known_mode.value if known_mode else f"SESSION_MODE_{int(number)}"


# --- events


def event_from_wire(message: node_pb2.RunEvent) -> RuntimeEvent:
    """*message* as the runtime's event.

    Raises:
        Untranslatable: its type or activity is none that this build knows.
    """
    if message.type not in EventType._value2member_map_:
        raise Untranslatable(f"event {message.sequence} is of type {message.type!r}, which this build does not know")
    return RuntimeEvent(
        run_id=message.run_id,
        type=EventType(message.type),
        sequence=message.sequence,
        time_ns=timestamp_from_wire(message.timestamp),
        delta=message.delta,
        message=message.message,
        error=message.error,
        usage=usage_from_wire(message.usage) if message.HasField("usage") else None,
        failure=failure_from_wire(message.failure) if message.HasField("failure") else None,
        activity=activity_from_wire(message.activity) if message.HasField("activity") else None,
        metadata=dict(message.metadata) if message.metadata else NO_METADATA,
        session_id=message.session_id,
        background=message.background,
    )


class _Constants(msgspec.Struct, frozen=True, gc=False):
    """What the events of one type have in common, and its encoding."""

    run_id: str
    session_id: str
    background: bool
    metadata: Mapping[str, str]
    encoded: bytes


class EventEncoder:
    """Writes the events of one run for one reader; one encoder per stream, in the order of the stream.

    What seldom changes (identities, type, metadata) is encoded once and put in front; what always changes goes through
    one message that is used again and again. Together that is a fraction of building a message per event.
    """

    __slots__ = ("_constants", "_node_id", "_previous", "_time_ns", "_timestamp", "_varying")

    def __init__(self, *, node_id: str, after_sequence: int = 0) -> None:
        """*after_sequence* is where the reader stands; it is the first event's ``previous_sequence``."""
        self._node_id = node_id
        self._previous = after_sequence
        self._constants: dict[EventType, _Constants] = {}
        self._varying = node_pb2.RunEvent()
        self._timestamp = self._varying.timestamp
        self._time_ns = -1  # what the timestamp says; no event has this time

    def encode(self, event: RuntimeEvent) -> list[bytes]:
        """*event* as encoded ``RunEvent`` messages, ready to be written in this order.

        A merged event carries the sequence of its last part; the bytes cover all since the event before.

        Raises:
            Untranslatable: the event's type or activity has no word on the wire.
        """
        try:
            encoded = self._encode(event)
        except UnicodeEncodeError:  # half of a surrogate pair; no UTF-8 can hold it
            encoded = self._encode(_without_invalid_text(event))
        self._previous = event.sequence
        return [encoded]

    def _encode(self, event: RuntimeEvent) -> bytes:
        constants = self._constants.get(event.type)
        if (
            constants is None
            or constants.metadata != event.metadata
            or constants.session_id != event.session_id
            or constants.run_id != event.run_id
            or constants.background is not event.background
        ):
            constants = self._remember(event)
        varying = self._varying
        varying.delta = event.delta
        varying.sequence = event.sequence
        varying.previous_sequence = self._previous
        if event.time_ns != self._time_ns:  # the events of one read have one time
            self._time_ns = event.time_ns
            self._timestamp.seconds, self._timestamp.nanos = divmod(event.time_ns, NS_PER_S)
        encoded: bytes = constants.encoded + varying.SerializeToString()
        return encoded if _is_plain_delta(event) else encoded + _seldom(event)

    def _remember(self, event: RuntimeEvent) -> _Constants:
        if event.type not in EventType._value2member_map_:
            raise Untranslatable(f"event {event.sequence} is of type {event.type!r}, which the wire does not know")
        message = node_pb2.RunEvent(
            run_id=event.run_id,
            type=event.type,
            session_id=event.session_id,
            background=event.background,
            node_id=self._node_id,
            metadata=event.metadata,
        )
        constants = _Constants(
            event.run_id, event.session_id, event.background, dict(event.metadata), message.SerializeToString()
        )
        self._constants[event.type] = constants
        return constants


def _is_plain_delta(event: RuntimeEvent) -> bool:
    """Nearly every event there is."""
    return (
        event.usage is None
        and event.failure is None
        and event.activity is None
        and not event.message
        and not event.error
        and event.type is not EventType.ERROR
    )


def _seldom(event: RuntimeEvent) -> bytes:
    """The encoding of what a delta does not have."""
    message = node_pb2.RunEvent(error=_error_text(event))
    if event.usage is not None:
        message.usage.CopyFrom(usage_to_wire(event.usage))
    if event.failure is not None:
        message.failure.CopyFrom(failure_to_wire(event.failure))
    if event.activity is not None:
        message.activity.CopyFrom(activity_to_wire(event.activity))
    _put_text(message, event.message)
    return message.SerializeToString()


def _error_text(event: RuntimeEvent) -> str:
    """Prose for people: an event of type error always has some, and it is never an encoded value."""
    if event.failure is not None:
        return prose(event.error or event.failure.message, event.failure.code)
    if event.type is EventType.ERROR or event.error:
        return prose(event.error, FailureCode.UNKNOWN)
    return ""


def _put_text(message: node_pb2.RunEvent, text: str) -> None:
    if len(text) * 4 > MESSAGE_LIMIT_BYTES:  # a character has at most four bytes
        encoded = text.encode()
        if len(encoded) > MESSAGE_LIMIT_BYTES:
            message.metadata[MESSAGE_BYTES] = str(len(encoded))
            message.metadata[MESSAGE_SHA256] = hashlib.sha256(encoded).hexdigest()
            return
    message.message = text


def _without_invalid_text(event: RuntimeEvent) -> RuntimeEvent:
    plain = msgspec.to_builtins(msgspec.structs.replace(event, metadata=dict(event.metadata)))
    cleaned: RuntimeEvent = msgspec.convert(_clean(plain), RuntimeEvent)
    return cleaned


def _clean(value: Any) -> Any:
    if isinstance(value, str):
        return replacing_invalid(value)
    if isinstance(value, dict):
        return {_clean(key): _clean(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_clean(item) for item in value]
    return value
