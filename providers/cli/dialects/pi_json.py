"""pi, ``pi --mode json -p``, one turn.

Format: one JSON object per line, as printed by pi 0.73.1 (recorded transcripts under ``tests/``): a ``session`` header,
then the agent's events (``agent_*``, ``turn_*``, ``message_*``, ``tool_execution_*``, ``auto_retry_*``,
``compaction_*``).

THE RULE: the last assistant message before the last ``agent_end`` decides by its ``stopReason``: ``error`` and
``aborted`` are an error, everything else is ``complete`` with that message's text. A good ``agent_end`` ends the run. A
bad one ends nothing, because ``auto_retry_start`` may follow: it is decided by ``auto_retry_end`` without success or, if
nothing follows, by the end of the process. Without an ``agent_end`` the run failed. The exit code never decides; it is 0
for every failed request. On a resume a ``session`` with another id than the one asked for is ``lost``.

Every ``message_update`` repeats the whole message so far, twice: 22 MB for an answer of 2 MB. Only its ``delta`` is
read; the rest is passed over without making objects of it, and so are the repetitions in ``turn_end`` and
``agent_end``. A retry streams the text again, as another message, and ``complete`` holds the last one alone.

Not in this format: permissions, which pi does not know. An unknown model is no error to pi (a warning on stderr) until
the service refuses it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import TypeVar

import msgspec

from providers.cli import json_fields as fields
from providers.cli.dialect import Line, Noise, ProcessEnd, TurnContext, process_failure
from providers.cli.evidence import (
    code_of_prose,
    code_of_status,
    exit_facts,
    history_gone,
    recoded,
    was_ended_from_outside,
)
from providers.cli.found import Found
from providers.cli.json_fields import JsonObject, storable
from providers.cli.json_lines import bounded, recover
from runtime.events import MESSAGE_ID, Draft, EventType, Notice, ToolCall, ToolResult, Usage, complete, error
from runtime.failure import Failure, FailureCode

_PIECES = {"text_delta": EventType.DELTA, "thinking_delta": EventType.REASONING_DELTA}
_BLOCKS = {"text": EventType.DELTA, "thinking": EventType.REASONING_DELTA}
_BAD = frozenset({"error", "aborted"})
_ORDINARY = frozenset({"", "stop"})
_BARE = frozenset({"agent_start", "agent_end"})  # their name says it all
_QUIET = frozenset(
    {"turn_start", "turn_end", "message_update", "tool_execution_update", "compaction_start"}
    | {"queue_update", "session_info_changed", "thinking_level_changed"}
)
_TOKENS = {
    "input_tokens": "input",
    "output_tokens": "output",
    "cache_read_tokens": "cacheRead",
    "cache_write_tokens": "cacheWrite",
}
_STATUS = re.compile(r"^(\d{3})\b")  # "401 Incorrect API key provided"
_CUT_OFF = re.compile(r"^terminated$|other side closed|fetch failed|socket hang up|connection error", re.IGNORECASE)
_UNKNOWN_SESSION = re.compile(r"No session found matching|Session found in different project")


def decoder(context: TurnContext) -> PiDecoder:
    """A decoder for one run."""
    return PiDecoder(context)


# The first look at every line; msgspec passes over everything else without making objects of it.


class _Said(msgspec.Struct, gc=False):
    type: str = ""
    delta: str = ""


class _Head(msgspec.Struct, gc=False):
    type: str = ""
    said: _Said | None = msgspec.field(default=None, name="assistantMessageEvent")


# The second look, at those lines alone whose content matters.


class _Message(msgspec.Struct, gc=False):
    role: str = ""
    content: object = None
    usage: object = None
    stop_reason: str = msgspec.field(default="", name="stopReason")
    error_message: str = msgspec.field(default="", name="errorMessage")


class _Event(msgspec.Struct, gc=False):
    type: str = ""
    id: str = ""
    message: _Message | None = None
    tool_call_id: str = msgspec.field(default="", name="toolCallId")
    tool_name: str = msgspec.field(default="", name="toolName")
    args: object = None
    result: object = None
    is_error: bool = msgspec.field(default=False, name="isError")
    success: bool = False
    attempt: int = 0
    max_attempts: int = msgspec.field(default=0, name="maxAttempts")
    delay_ms: float = msgspec.field(default=0.0, name="delayMs")
    error_message: str = msgspec.field(default="", name="errorMessage")


_decode_head = msgspec.json.Decoder(_Head).decode
_decode_event = msgspec.json.Decoder(_Event).decode
_Struct = TypeVar("_Struct", bound=msgspec.Struct)


class PiDecoder:
    """Decodes the events of one turn."""

    def __init__(self, context: TurnContext) -> None:
        self._resumed_id = context.resumed_id
        self._native_id: str | None = None
        self._is_other_session = False
        self._number = 0  # of the assistant's message in work; pi gives messages no id while they are streamed
        self._metadata = {MESSAGE_ID: ""}  # one mapping for all deltas of a message
        self._streamed: set[EventType] = set()
        self._last: _Message | None = None  # the assistant's last complete message
        self._is_idle = False  # agent_end was the last word
        self._has_ended = False
        self._counts: dict[str, int] = {}
        self._cost = 0.0
        self._events: dict[str, Callable[[_Event, Found], None]] = {
            "session": self._session,
            "agent_start": self._agent_start,
            "agent_end": self._agent_end,
            "message_start": self._message_start,
            "message_end": self._message_end,
            "tool_execution_start": self._tool_call,
            "tool_execution_end": self._tool_result,
            "auto_retry_start": self._retry,
            "auto_retry_end": self._retry_end,
            "compaction_end": self._compacted,
        }

    @property
    def native_id(self) -> str | None:
        return self._native_id

    @property
    def has_ended(self) -> bool:
        return self._has_ended

    def decode(self, line: Line) -> Sequence[Draft | Noise]:
        try:
            head = _decode_head(line.data)
            if head.type == "message_update" and not self._has_ended:
                return self._piece(head.said, line.end)
            is_bare = head.type in _BARE or head.type not in self._events
            event = _Event(type=head.type) if is_bare else _decode_event(line.data)
        except (msgspec.MsgspecError, RecursionError):
            return self._recovered(line)
        found = Found(line.end)
        self._event(event, found)
        return found

    @property
    def usage_so_far(self) -> Usage | None:
        return self._usage()

    def conclude(self, end: ProcessEnd) -> Draft:
        facts, usage, last = exit_facts(end), self._usage(), self._last
        if self._is_other_session:
            return error(history_gone(facts))
        if last is None or not (self._is_idle or self._has_ended):
            return error(self._failure_without_end(end), usage=usage)
        if last.stop_reason in _BAD:
            return error(_failure(last, facts), usage=usage)
        if last.stop_reason not in _ORDINARY:
            facts["stop_reason"] = storable(last.stop_reason)
        return complete(_text_of(last.content), usage=usage, metadata=facts)

    # -- events

    def _piece(self, said: _Said | None, end: int) -> Sequence[Draft]:
        """What an update brings: nearly all bytes of a run, so in as few steps as can be."""
        if said is None or not said.delta or not (kind := _PIECES.get(said.type)):
            return ()
        self._streamed.add(kind)
        return (Draft(kind, storable(said.delta), self._metadata, None, None, None, end, 0),)

    def _event(self, event: _Event, found: Found) -> None:
        handler = self._events.get(event.type)
        if self._has_ended:
            found.noise("after_terminal", event.type or "an event without type")
        elif handler:
            handler(event, found)
        elif event.type not in _QUIET:
            found.noise("unknown_type", event.type or "an event without type")

    def _recovered(self, line: Line) -> Found:
        found = Found(line.end)
        for each in recover(line.data):
            if isinstance(each, dict):
                self._recovered_event(each, found)
            elif self._has_ended:
                found.noise("after_terminal", each.detail)
            else:
                found.append(each)
        return found

    def _recovered_event(self, source: JsonObject, found: Found) -> None:
        event = fields.lenient(source, _Event)
        if event.message is None:
            event.message = _lenient_member(source, "message", _Message)
        self._event(event, found)
        said = _lenient_member(source, "assistantMessageEvent", _Said)
        if event.type == "message_update" and not self._has_ended:
            for draft in self._piece(said, -1):
                found.text(draft.type, draft.text, self._metadata[MESSAGE_ID])

    def _session(self, event: _Event, found: Found) -> None:
        announced = fields.as_identifier(event.id)
        if self._resumed_id in (None, announced):
            self._native_id = announced
        else:
            self._is_other_session = self._has_ended = True

    def _message_start(self, event: _Event, found: Found) -> None:
        if event.message is not None and event.message.role == "assistant":
            self._number += 1
            self._metadata = {MESSAGE_ID: f"message-{self._number}"}
            self._streamed = set()

    def _message_end(self, event: _Event, found: Found) -> None:
        """The message as a whole: reported where it was not streamed, and the truth of it in any case."""
        if event.message is None or event.message.role != "assistant":
            return
        self._last = event.message
        self._count(event.message.usage)
        for block in _blocks(event.message.content):
            kind = fields.text(block, "type")
            if (what := _BLOCKS.get(kind)) and what not in self._streamed:
                found.text(what, fields.text(block, kind), self._metadata[MESSAGE_ID])

    def _agent_start(self, event: _Event, found: Found) -> None:
        self._is_idle = False

    def _agent_end(self, event: _Event, found: Found) -> None:
        self._is_idle = True
        self._has_ended = self._last is not None and self._last.stop_reason not in _BAD

    def _tool_call(self, event: _Event, found: Found) -> None:
        asked = fields.as_json({} if event.args is None else event.args)
        found.activity(
            ToolCall(call_id=storable(event.tool_call_id), name=storable(event.tool_name), input_json=bounded(asked))
        )

    def _tool_result(self, event: _Event, found: Found) -> None:
        output = _text_of(event.result.get("content") if isinstance(event.result, dict) else event.result)
        call_id = storable(event.tool_call_id)
        found.activity(ToolResult(call_id=call_id, output=bounded(output), is_error=event.is_error))

    def _retry(self, event: _Event, found: Found) -> None:
        self._is_idle = False
        wait = f", again in {event.delay_ms / 1000:.1f} s" if event.delay_ms else ""
        attempt = f"attempt {event.attempt} of {event.max_attempts}"
        message = bounded(f"{attempt} after {event.error_message}{wait}")
        found.activity(Notice(code="api_retry", message=message))

    def _retry_end(self, event: _Event, found: Found) -> None:
        """Comes right after a message that went well, and after the last ``agent_end`` when none did."""
        self._has_ended = not event.success and self._last is not None and self._last.stop_reason in _BAD

    def _compacted(self, event: _Event, found: Found) -> None:
        if event.error_message:
            found.activity(Notice(code="warning", message=bounded(event.error_message)))
        elif event.result is not None:
            found.activity(Notice(code="compacted", message="the agent compacted its context"))

    # -- judgement

    def _count(self, told: object) -> None:
        usage = told if isinstance(told, dict) else {}
        for name, key in _TOKENS.items():
            self._counts[name] = self._counts.get(name, 0) + (fields.count(usage, key) or 0)
        self._cost += fields.number(fields.mapping(usage, "cost"), "total") or 0.0

    def _usage(self) -> Usage | None:
        """The sum of the run's messages. A cost of zero is that of a model whose price pi does not know."""
        if not any(self._counts.values()):
            return None
        return Usage(**self._counts, cost_usd=self._cost or None)

    def _failure_without_end(self, end: ProcessEnd) -> Failure:
        told = storable(self._last.error_message) if self._last else ""
        failure = process_failure(end, detail=f"failed: {told}" if told else "")
        if was_ended_from_outside(end):
            return failure
        if self._resumed_id is not None and _UNKNOWN_SESSION.search(end.stderr):
            return recoded(failure, FailureCode.LOST)
        return recoded(failure, _code(told) if told else code_of_prose(end.stderr))


def _failure(message: _Message, facts: dict[str, str]) -> Failure:
    told = storable(message.error_message)
    if message.stop_reason == "aborted":
        return Failure(
            code=FailureCode.INTERRUPTED, message="the agent was interrupted, though not by this host", metadata=facts
        )
    return Failure(
        code=_code(told) or FailureCode.PROCESS_FAILED,
        message=told or "the agent failed without a reason",
        metadata=facts,
    )


def _code(told: str) -> FailureCode | None:
    status = _STATUS.match(told)
    return (
        code_of_prose(told)
        or code_of_status(int(status[1]) if status else None)
        or (FailureCode.PROVIDER_UNREACHABLE if _CUT_OFF.search(told) else None)
    )


def _blocks(content: object) -> list[JsonObject]:
    return list(fields.objects({"content": content}, "content"))


def _text_of(content: object) -> str:
    """The text of a message or of a tool's result."""
    return "".join(fields.text(block, "text") for block in _blocks(content) if fields.text(block, "type") == "text")


def _lenient_member(source: JsonObject, key: str, kind: type[_Struct]) -> _Struct | None:
    member = fields.mapping(source, key)
    return fields.lenient(member, kind) if member else None
