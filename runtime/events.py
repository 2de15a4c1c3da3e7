"""What happens in a run, in order.

A provider reports *drafts*; the emitter stamps, bounds and orders them into *events*. Six event types have a grammar,
``start (delta | reasoning_delta)* (complete | error | cancelled)``; *activity* may stand anywhere between start and
terminal and changes nothing about the six.

These are msgspec structs rather than dataclasses: one is made, encoded and decoded for every line an agent prints, and a
struct costs a tenth of a frozen dataclass there.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from enum import StrEnum

import msgspec

from runtime.failure import Failure, FailureCode

NO_METADATA: Mapping[str, str] = {}

MESSAGE_ID = "message_id"
"""Metadata key of every delta: which of the agent's messages it belongs to."""
RECOVERED = "recovered"
"""Metadata key of events that a restarted host made: ``true``."""


class EventType(StrEnum):
    """The six words of the grammar, and activity."""

    START = "start"
    DELTA = "delta"
    REASONING_DELTA = "reasoning_delta"
    COMPLETE = "complete"
    ERROR = "error"
    CANCELLED = "cancelled"
    ACTIVITY = "activity"


TERMINAL = frozenset({EventType.COMPLETE, EventType.ERROR, EventType.CANCELLED})


class Usage(msgspec.Struct, frozen=True, omit_defaults=True, gc=False, kw_only=True):
    """Tokens and cost of this run alone, never cumulative; None is "not reported", which is not zero."""

    input_tokens: int | None = None
    output_tokens: int | None = None
    cache_read_tokens: int | None = None
    cache_write_tokens: int | None = None
    reasoning_tokens: int | None = None
    cost_usd: float | None = None


class ToolCall(msgspec.Struct, frozen=True, omit_defaults=True, tag="tool_call", kw_only=True):
    """The agent called a tool. ``input_json`` is one JSON value as text, at most 64 KiB, cut with a mark beyond."""

    call_id: str
    name: str
    input_json: str = ""


class ToolResult(msgspec.Struct, frozen=True, omit_defaults=True, tag="tool_result", kw_only=True):
    """What the tool answered, as text, at most 64 KiB."""

    call_id: str
    output: str = ""
    is_error: bool = False


class PlanEntry(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """One line of a plan; ``status`` is ``pending``, ``in_progress`` or ``completed``."""

    text: str
    status: str = "pending"


class Plan(msgspec.Struct, frozen=True, omit_defaults=True, tag="plan", kw_only=True):
    """The agent's whole current plan; it replaces the one before."""

    entries: tuple[PlanEntry, ...] = ()


class RateLimit(msgspec.Struct, frozen=True, omit_defaults=True, tag="rate_limit", kw_only=True):
    """The vendor spoke about a usage window. Absent is "not reported". ``resets_at`` is seconds since the epoch, UTC."""

    status: str
    window: str = ""
    used_percent: float | None = None
    resets_at: int | None = None


class RequestKind(StrEnum):
    """What an agent that asks is waiting for."""

    TOOL = "tool"
    """Leave to use a tool."""
    QUESTION = "question"
    """Words from whoever runs it: a choice, a form."""


class PermissionRequest(msgspec.Struct, frozen=True, omit_defaults=True, tag="permission_request", kw_only=True):
    """The agent waits for somebody. ``input_json`` is one JSON value as text, at most 64 KiB.

    Of kind ``question`` it is the question in the agent's own form, ``tool`` is who asks, where that is known, and
    ``reason`` the question as a sentence. ``kind`` is a word of :class:`RequestKind`, or one of a later build.
    """

    request_id: str
    tool: str
    input_json: str = ""
    reason: str = ""
    expires_at_ns: int = 0
    kind: str = RequestKind.TOOL.value


class Notice(msgspec.Struct, frozen=True, omit_defaults=True, tag="notice", kw_only=True):
    """Something worth knowing that ends nothing: a retry, a warning of the vendor's. ``code`` is lower snake case."""

    code: str
    message: str = ""


Activity = ToolCall | ToolResult | Plan | PermissionRequest | RateLimit | Notice


class FailureRecord(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A failure as the journal holds it: codes as text, so that a code of the future survives a read."""

    code: str
    message: str
    retryable: bool
    metadata: dict[str, str] = {}

    @classmethod
    def of(cls, failure: Failure) -> FailureRecord:
        return cls(
            code=failure.code.value,
            message=failure.message,
            retryable=bool(failure.retryable),
            metadata=dict(failure.metadata),
        )

    def to_failure(self) -> Failure:
        known = self.code in FailureCode._value2member_map_
        metadata = self.metadata if known else {**self.metadata, "original_code": self.code}
        code = FailureCode(self.code) if known else FailureCode.UNKNOWN
        return Failure(code=code, message=self.message, retryable=self.retryable, metadata=metadata)


class Draft(msgspec.Struct, frozen=True, gc=False):
    """What a provider reports; the emitter makes an event of it.

    ``text`` is the delta of a delta, the final answer of ``complete``, a sentence otherwise. ``offset`` and ``index``
    say which output it came from: the byte offset of the end of its line, and its place within that line; -1 when it came
    from no output. Reporting the same output twice is told from these two.
    """

    type: EventType
    text: str = ""
    metadata: Mapping[str, str] = NO_METADATA
    usage: Usage | None = None
    failure: Failure | None = None
    activity: Activity | None = None
    offset: int = -1
    index: int = 0


class RuntimeEvent(msgspec.Struct, frozen=True, gc=False, omit_defaults=True, kw_only=True):
    """One event of one run. ``sequence`` counts 1, 2, 3 … over all types of the run; ``time_ns`` is UTC epoch time.

    ``offset`` and ``index`` are the draft's; ``piece`` counts the parts of a delta that was too large for one event.
    """

    run_id: str
    type: EventType
    sequence: int
    time_ns: int
    delta: str = ""
    message: str = ""
    error: str = ""
    usage: Usage | None = None
    failure: FailureRecord | None = None
    activity: Activity | None = None
    metadata: Mapping[str, str] = NO_METADATA
    session_id: str = ""
    background: bool = False
    offset: int = -1
    index: int = 0
    piece: int = 0

    @property
    def timestamp(self) -> datetime:
        """The event's time as aware UTC, to the microsecond."""
        return datetime.fromtimestamp(self.time_ns // 1_000_000_000, UTC).replace(
            microsecond=self.time_ns // 1000 % 1_000_000
        )

    @property
    def is_terminal(self) -> bool:
        return self.type in TERMINAL


def start(**metadata: str) -> Draft:
    """The run has begun to execute."""
    return Draft(EventType.START, metadata=metadata)


def delta(text: str, *, message_id: str, offset: int = -1, index: int = 0) -> Draft:
    """A piece of the answer."""
    return Draft(EventType.DELTA, text, {MESSAGE_ID: message_id}, None, None, None, offset, index)


def reasoning_delta(text: str, *, message_id: str, offset: int = -1, index: int = 0) -> Draft:
    """A piece of the agent's thinking."""
    return Draft(EventType.REASONING_DELTA, text, {MESSAGE_ID: message_id}, None, None, None, offset, index)


def activity(what: Activity, *, offset: int = -1, index: int = 0) -> Draft:
    """Something the agent did beside answering."""
    return Draft(EventType.ACTIVITY, activity=what, offset=offset, index=index)


def complete(text: str, *, usage: Usage | None = None, metadata: Mapping[str, str] = NO_METADATA) -> Draft:
    """The run ended well; *text* is the whole answer and replaces the deltas."""
    return Draft(EventType.COMPLETE, text, metadata, usage)


def error(failure: Failure, *, usage: Usage | None = None, metadata: Mapping[str, str] = NO_METADATA) -> Draft:
    """The run ended badly."""
    return Draft(EventType.ERROR, failure.message, metadata, usage, failure)


def cancelled(message: str = "cancelled", *, metadata: Mapping[str, str] = NO_METADATA) -> Draft:
    """The run was cancelled on request."""
    return Draft(EventType.CANCELLED, message, metadata)


def replacing_invalid(text: str) -> str:
    """*text* fit for every store and wire: lone surrogates and NUL become U+FFFD, all else is unchanged."""
    if "\0" in text:
        text = text.replace("\0", "\ufffd")
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text
