"""Qwen Code, ``qwen -o stream-json --include-partial-messages``, one turn.

Format: one JSON object per line, as printed by Qwen Code 0.15.10 (recorded transcripts under ``tests/``): ``system``,
``stream_event``, ``assistant``, ``user``, ``result``, shaped like another vendor's but told by rules of their own.

THE RULE: the first ``result`` decides together with the message before it. It is ``complete`` when it says neither
``is_error`` nor another subtype than ``success``, when the message before it did not end in an API error, and when it has
a text; otherwise it is an error. Without a ``result`` the run failed. The exit code never decides: a refused request is
exit 0, ``is_error: false`` and a text ``[API Error: 401 ...]``. On a resume an ``init`` with another id than the one
asked for is ``lost`` at once.

An API error is told by its form and by how it comes: in a piece of its own, as the last of its message. Where the message
is nothing else, its tokens decide: none are counted for a refused request, but for a model that quotes an error they are.
A piece that looks like one is therefore held back until its message is complete, and then is a delta or a notice.

A message is streamed block by block; each block is repeated by an ``assistant`` frame of its own, under the id of the
stream for the first block and under another for the next, so what was streamed is told by order and not by id. What
belongs to a sub-agent (``parent_tool_use_id``) is activity.

``usage`` of the result counts the whole session, and so is the run's own only where the session began with it; on a
resume the run's usage is the sum of its messages, which leaves out requests that the CLI makes for itself, and the
session's totals are in the metadata (``session_input_tokens``, ``session_output_tokens``).

Not in this format: retries (104 s of silence for an error 500, longer for 429), cost, and why a model stopped.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

import msgspec

from providers.cli import json_fields as fields
from providers.cli.dialect import Line, Noise, ProcessEnd, TurnContext, process_failure
from providers.cli.evidence import code_of_prose, exit_facts, history_gone, recoded, was_ended_from_outside
from providers.cli.found import Found
from providers.cli.json_fields import JsonObject, storable
from providers.cli.json_lines import bounded, recover
from runtime.events import Draft, EventType, Notice, ToolCall, ToolResult, Usage, complete, error
from runtime.failure import Failure, FailureCode

_PIECES = {"text_delta": EventType.DELTA, "thinking_delta": EventType.REASONING_DELTA}
_BLOCKS = {"text": EventType.DELTA, "thinking": EventType.REASONING_DELTA}
_TOKENS = {
    "input_tokens": "input_tokens",
    "output_tokens": "output_tokens",
    "cache_read_tokens": "cache_read_input_tokens",
}

# The second line is advice that the CLI adds to a 429. DOTALL: the service's own text may have several lines.
_API_ERROR = re.compile(
    r"\[API Error: .*\](?:\n(?:Possible quota limitations|Please wait)[^\n]*)?\s*\Z"
    r"|Qwen OAuth (?:quota exceeded:|free tier has been discontinued).*\Z",
    re.DOTALL,
)
_ERROR_HEADS = ("[API Error: ", "Qwen OAuth ")
_CUT_OFF = re.compile(r"\bterminated\b|other side closed|fetch failed|socket hang up|Connection error")
_UNKNOWN_SESSION = "No saved session found"
_EXIT_CODES = {52: FailureCode.INVALID_REQUEST, 53: FailureCode.BUDGET_EXHAUSTED}  # its settings, the number of turns


def decoder(context: TurnContext) -> QwenDecoder:
    """A decoder for one run."""
    return QwenDecoder(context)


# What the hot path needs of a stream_event; msgspec passes over everything else without making objects of it.


class _Delta(msgspec.Struct, gc=False):
    type: str = ""
    text: str = ""
    thinking: str = ""


class _Message(msgspec.Struct, gc=False):
    id: str = ""


class _Event(msgspec.Struct, gc=False):
    type: str = ""
    delta: _Delta | None = None
    message: _Message | None = None


class _Frame(msgspec.Struct, gc=False):
    type: str = ""
    event: _Event | None = None
    parent_tool_use_id: str | None = None


_decode_frame = msgspec.json.Decoder(_Frame).decode
_decode_object = msgspec.json.Decoder(dict[str, object]).decode


class QwenDecoder:
    """Decodes the frames of one turn."""

    def __init__(self, context: TurnContext) -> None:
        self._resumed_id = context.resumed_id
        self._native_id: str | None = None
        self._is_other_session = False
        self._message_id = ""
        self._streamed: dict[EventType, int] = {}  # pieces since the last complete message, by kind
        self._held = ""  # a piece that looks like an API error, until its message is complete
        self._answer: str | None = None  # of the last complete message that had a text
        self._api_error = ""
        self._counts: dict[str, int] = {}
        self._result: JsonObject | None = None
        self._handlers: dict[str, Callable[[JsonObject, Found], None]] = {
            "system": self._system,
            "stream_event": self._stream_event,
            "assistant": self._assistant,
            "user": self._user,
            "result": self._take_result,
        }

    @property
    def native_id(self) -> str | None:
        return self._native_id

    @property
    def has_ended(self) -> bool:
        return self._result is not None

    def decode(self, line: Line) -> Sequence[Draft | Noise]:
        found = Found(line.end)
        try:
            frame = _decode_frame(line.data)
            if frame.type == "stream_event" and frame.event and not self.has_ended and not frame.parent_tool_use_id:
                self._partial(frame.event, found)
            else:
                self._frame(_decode_object(line.data), found)
        except (msgspec.MsgspecError, RecursionError):
            return self._recovered(line)
        return found

    @property
    def usage_so_far(self) -> Usage | None:
        return Usage(**self._counts) if any(self._counts.values()) else None

    def conclude(self, end: ProcessEnd) -> Draft:
        if self._result is None:
            return error(self._failure_without_result(end))
        facts = exit_facts(end)
        if self._is_other_session:
            return error(history_gone(facts))
        usage, totals = self._usage(self._result)
        facts |= totals | _result_facts(self._result)
        failure = self._failure(self._result, facts)
        answer = fields.text_or_none(self._result, "result")
        if failure is None and (answer := self._answer if answer is None else answer) is not None:
            return complete(answer, usage=usage, metadata=facts)
        nothing = Failure(code=FailureCode.OUTPUT_INVALID, message="the agent ended without an answer", metadata=facts)
        return error(failure or nothing, usage=usage)

    # -- frames

    def _partial(self, event: _Event, found: Found) -> None:
        """What a partial message brings: nine lines of ten, so in as few steps as can be."""
        piece = event.delta
        if piece is None:
            if event.type == "message_start" and event.message is not None:
                self._message_id = storable(event.message.id)
            return
        kind, text = _PIECES.get(piece.type), storable(piece.text or piece.thinking)
        if kind is None or not text:
            return
        self._release(found)
        self._streamed[kind] = self._streamed.get(kind, 0) + 1
        if kind is EventType.DELTA and text.startswith(_ERROR_HEADS) and _API_ERROR.match(text):
            self._held = text
        else:
            found.text(kind, text, self._message_id)

    def _recovered(self, line: Line) -> Found:
        found = Found(line.end)
        for each in recover(line.data):
            if isinstance(each, dict):
                self._frame(each, found)
            elif self.has_ended:
                found.noise("after_terminal", each.detail)
            else:
                found.append(each)
        return found

    def _frame(self, frame: JsonObject, found: Found) -> None:
        kind = fields.text(frame, "type")
        handler = self._handlers.get(kind)
        if self.has_ended:
            found.noise("after_terminal", kind or "a frame without type")
        elif handler:
            handler(frame, found)
        else:
            found.noise("unknown_type", kind or "a frame without type")

    def _stream_event(self, frame: JsonObject, found: Found) -> None:
        """A partial piece off the hot path: damaged, or of a sub-agent, whose complete message says it all."""
        if frame.get("parent_tool_use_id"):
            return
        source = fields.mapping(frame, "event")
        event = fields.lenient(source, _Event)
        if event.delta is None and (piece := fields.mapping(source, "delta")):
            event.delta = fields.lenient(piece, _Delta)
        self._partial(event, found)

    def _system(self, frame: JsonObject, found: Found) -> None:
        subtype = fields.text(frame, "subtype")
        if subtype != "init":
            found.noise("unknown_type", f"system/{subtype}")
            return
        announced = fields.identifier(frame, "session_id")
        if self._resumed_id in (None, announced):
            self._native_id = announced
        else:
            self._is_other_session, self._result = True, frame

    def _assistant(self, frame: JsonObject, found: Found) -> None:
        message = fields.mapping(frame, "message")
        is_sub_agent = bool(frame.get("parent_tool_use_id"))
        for block in fields.objects(message, "content"):
            kind = fields.text(block, "type")
            if kind == "tool_use":
                found.activity(_tool_call(block))
            elif is_sub_agent and kind == "text":
                found.activity(Notice(code="subagent", message=bounded(fields.text(block, "text"))))
            elif not is_sub_agent and (event := _BLOCKS.get(kind)):
                self._block(event, fields.text(block, kind), message, found)
        self._count(fields.mapping(message, "usage"))
        if not is_sub_agent:
            self._release(found)
            self._streamed = {}

    def _block(self, event: EventType, text: str, message: JsonObject, found: Found) -> None:
        """A complete block: the truth about what was streamed, and reported where it was not."""
        if event is EventType.DELTA:
            is_counted = bool(fields.count(fields.mapping(message, "usage"), "input_tokens"))
            self._answer, self._api_error = text, self._error_in(text, is_counted=is_counted)
            if self._api_error:
                self._held = ""
                found.activity(Notice(code="agent_error", message=bounded(self._api_error)))
                return
        if not self._streamed.get(event):
            found.text(event, text, fields.text(message, "id"))

    def _error_in(self, text: str, *, is_counted: bool) -> str:
        """The API error at the end of a message, or nothing."""
        pieces = self._streamed.get(EventType.DELTA, 0)
        if is_counted and pieces <= 1:
            return ""  # the model's whole answer looks like one
        match = _API_ERROR.search(self._held if pieces else text)
        return match[0].strip() if match else ""

    def _release(self, found: Found) -> None:
        """A piece that was held back turned out to be the model's own."""
        held, self._held = self._held, ""
        found.text(EventType.DELTA, held, self._message_id)

    def _user(self, frame: JsonObject, found: Found) -> None:
        for block in fields.objects(fields.mapping(frame, "message"), "content"):
            if fields.text(block, "type") == "tool_result":
                output = fields.text(block, "content") or _text_of(block)
                is_error = block.get("is_error") is True
                call_id = fields.text(block, "tool_use_id")
                found.activity(ToolResult(call_id=call_id, output=bounded(output), is_error=is_error))

    def _take_result(self, frame: JsonObject, found: Found) -> None:
        self._result = frame
        if self._held:  # its message was never completed
            self._api_error = self._held

    # -- judgement

    def _count(self, usage: JsonObject) -> None:
        for name, key in _TOKENS.items():
            self._counts[name] = self._counts.get(name, 0) + (fields.count(usage, key) or 0)

    def _usage(self, result: JsonObject) -> tuple[Usage | None, dict[str, str]]:
        """The run's usage, and the session's totals where they are not the same."""
        told = fields.mapping(result, "usage")
        counts, totals = {name: fields.count(told, key) or 0 for name, key in _TOKENS.items()}, {}
        if self._resumed_id is not None:
            totals = {f"session_{name}": str(counts[name]) for name in ("input_tokens", "output_tokens")}
            counts = self._counts
        return (Usage(**counts) if any(counts.values()) else None), totals

    def _failure(self, result: JsonObject, facts: dict[str, str]) -> Failure | None:
        """Why the turn failed; None when it did not."""
        subtype = fields.text(result, "subtype")
        if self._api_error:
            told = self._api_error
        elif result.get("is_error") or subtype not in ("success", ""):
            told = fields.text(fields.mapping(result, "error"), "message") or f"the agent ended with {subtype}"
        else:
            return None
        code = FailureCode.BUDGET_EXHAUSTED if subtype == "error_max_turns" else _code(told)
        return Failure(code=code or FailureCode.PROCESS_FAILED, message=told, metadata=facts)

    def _failure_without_result(self, end: ProcessEnd) -> Failure:
        told = self._held or self._api_error
        failure = process_failure(end, detail=f"failed: {told}" if told else "")
        if was_ended_from_outside(end):
            return failure
        if self._resumed_id is not None and _UNKNOWN_SESSION in end.stderr:
            return recoded(failure, FailureCode.LOST)
        return recoded(failure, _code(told or end.stderr) or _EXIT_CODES.get(end.code or 0))


def _code(told: str) -> FailureCode | None:
    if told.startswith("Qwen OAuth quota"):
        return FailureCode.QUOTA_EXHAUSTED
    return code_of_prose(told) or (FailureCode.PROVIDER_UNREACHABLE if _CUT_OFF.search(told) else None)


def _result_facts(result: JsonObject) -> dict[str, str]:
    denials = sum(1 for _ in fields.objects(result, "permission_denials"))
    return {"permission_denials": str(denials)} if denials else {}


def _tool_call(block: JsonObject) -> ToolCall:
    asked = fields.as_json(block.get("input", {}))
    return ToolCall(call_id=fields.text(block, "id"), name=fields.text(block, "name"), input_json=bounded(asked))


def _text_of(holder: JsonObject) -> str:
    blocks = fields.objects(holder, "content")
    return "\n".join(fields.text(block, "text") for block in blocks if fields.text(block, "type") == "text")
