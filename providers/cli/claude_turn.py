"""One turn of Claude Code in stream-json frames, whichever way the prompt went in; the dialects say which way.

Frames and rule are those of :mod:`providers.cli.dialects.claude_stream_json`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import msgspec

from providers.cli import json_fields as fields
from providers.cli.dialect import Line, Noise, ProcessEnd, TurnContext, process_failure
from providers.cli.evidence import (
    code_of_prose,
    code_of_status,
    exit_facts,
    is_unknown_session,
    recoded,
    was_ended_from_outside,
)
from providers.cli.found import Found
from providers.cli.json_fields import JsonObject, storable
from providers.cli.json_lines import bounded, recover
from runtime.events import (
    MESSAGE_ID,
    Activity,
    Draft,
    EventType,
    Notice,
    RateLimit,
    ToolCall,
    ToolResult,
    Usage,
    complete,
    error,
)
from runtime.failure import Failure, FailureCode

SYNTHETIC = "<synthetic>"
_ABORTED = "aborted_"
_PIECES = {"text_delta": EventType.DELTA, "thinking_delta": EventType.REASONING_DELTA}
_QUIET = frozenset({"control_response"})
_BLOCKS = {"text": EventType.DELTA, "thinking": EventType.REASONING_DELTA}
_ORDINARY = frozenset({"end_turn", "stop_sequence", "completed", ""})
_QUIET_SUBTYPES = frozenset({"status", "thinking_tokens", "model_refusal_no_fallback"})

# The `error` field of the synthetic message that stands for a failed request.
_API_ERRORS = {
    "authentication_failed": FailureCode.AUTH_REQUIRED,
    "billing_error": FailureCode.QUOTA_EXHAUSTED,
    "rate_limit": FailureCode.RATE_LIMITED,
    "server_error": FailureCode.PROVIDER_OVERLOADED,
    "overloaded": FailureCode.PROVIDER_OVERLOADED,
    "model_not_found": FailureCode.MODEL_UNAVAILABLE,
    "invalid_request": FailureCode.INVALID_REQUEST,
    "max_output_tokens": FailureCode.BUDGET_EXHAUSTED,
}
_TOKENS = {
    "input_tokens": "input_tokens",
    "output_tokens": "output_tokens",
    "cache_read_tokens": "cache_read_input_tokens",
    "cache_write_tokens": "cache_creation_input_tokens",
}
_SUBTYPES = {
    "error_max_turns": FailureCode.BUDGET_EXHAUSTED,
    "error_max_budget_usd": FailureCode.BUDGET_EXHAUSTED,
    "error_max_structured_output_retries": FailureCode.OUTPUT_INVALID,
}


# What is read of the frames that come often; msgspec passes over everything else without making objects of it. Frames
# that come once or twice a run are read as plain objects.


class _Delta(msgspec.Struct, gc=False):
    type: str = ""
    text: str = ""
    thinking: str = ""
    stop_reason: str | None = None


class _Block(msgspec.Struct, gc=False):
    type: str = ""
    text: str = ""
    thinking: str = ""
    id: str = ""
    name: str = ""
    input: object = None
    tool_use_id: str = ""
    content: object = None
    is_error: bool | None = None


class _Message(msgspec.Struct, gc=False):
    id: str = ""
    model: str = ""
    content: list[_Block] | str = ""
    usage: object = None


class _Event(msgspec.Struct, gc=False):
    type: str = ""
    delta: _Delta | None = None
    message: _Message | None = None
    usage: object = None


class _Frame(msgspec.Struct, gc=False):
    type: str = ""
    event: _Event | None = None
    message: _Message | None = None
    parent_tool_use_id: str | None = None
    error: object = None

    @classmethod
    def of(cls, source: JsonObject) -> _Frame:
        """The frame in a line that the typed decoder refuses."""
        frame = fields.lenient(source, cls)
        if frame.message is None and (message := fields.mapping(source, "message")):
            frame.message = fields.lenient(message, _Message)
            frame.message.content = [fields.lenient(block, _Block) for block in fields.objects(message, "content")]
        return frame


_decode_frame = msgspec.json.Decoder(_Frame).decode
_decode_object = msgspec.json.Decoder(dict[str, object]).decode


@dataclass(slots=True)
class _Answer:
    """The text of the message that was completed last, and of those before it that were cut off at ``max_tokens``."""

    message_id: str = ""
    parts: list[str] = field(default_factory=list)
    cut: dict[str, str] = field(default_factory=dict)

    def add(self, message_id: str, text: str) -> None:
        if message_id != self.message_id:
            self.message_id, self.parts = message_id, []
        self.parts.append(text)

    def stopped(self, reason: str) -> None:
        """The message ended: cut off in mid-answer, or at a tool call, after which another answer begins."""
        if reason == "max_tokens":
            self.cut[self.message_id] = "".join(self.parts)
        elif reason == "tool_use":
            self.cut.clear()

    def whole(self, result: str | None) -> str | None:
        """The run's answer, given the text of the result frame; None when there is no text at all."""
        last = "".join(self.parts) or None if result is None else result
        before = "".join(text for message_id, text in self.cut.items() if message_id != self.message_id)
        return before + last if last is not None else before or None


class ClaudeDecoder:
    """Decodes the frames of one turn."""

    def __init__(self, context: TurnContext) -> None:
        self._resumed_id = context.resumed_id
        self._native_id: str | None = None
        self._message_id = ""
        self._metadata = {MESSAGE_ID: ""}  # one mapping for all deltas of a message
        self._streamed: set[tuple[str, EventType]] = set()
        self._answer = _Answer()
        self._api_error = ""
        self._api_message = ""
        self._window: RateLimit | None = None  # the usage window that refused
        self._result: JsonObject | None = None
        self._input_tokens = self._output_tokens = 0  # of the messages that were streamed

    @property
    def native_id(self) -> str | None:
        return self._native_id

    @property
    def has_ended(self) -> bool:
        return self._result is not None

    @property
    def total_cost_usd(self) -> float | None:
        """What the process has cost when the turn ended."""
        return None if self._result is None else fields.number(self._result, "total_cost_usd")

    @property
    def usage_so_far(self) -> Usage | None:
        """The tokens of the main agent's streamed messages; sub-agents and the cost are told at the end only."""
        if not self._input_tokens and not self._output_tokens:
            return None
        return Usage(input_tokens=self._input_tokens, output_tokens=self._output_tokens)

    def decode(self, line: Line) -> Sequence[Draft | Noise]:
        try:
            frame = _decode_frame(line.data)
            if self._result is None:
                if frame.type == "stream_event":
                    return self._partial(frame, line.end)
                if frame.type in self._spoken:
                    return self._said(frame, line.end)
            whole = _decode_object(line.data)
        except (msgspec.MsgspecError, RecursionError):
            return self._recovered(line)
        found = Found(line.end)
        self._frame(whole, found)
        return found

    def conclude(self, end: ProcessEnd) -> Draft:
        if self._result is None:
            return error(self._failure_without_result(end))
        result, usage = self._result, _usage(self._result)
        facts = {**exit_facts(end), **_result_facts(result)}
        answer = self._answer.whole(fields.text_or_none(result, "result"))
        code = self._code(result)
        if code is None and answer is not None:
            return complete(answer, usage=usage, metadata=facts)
        code = code or FailureCode.OUTPUT_INVALID
        return error(Failure(code=code, message=_message(result), metadata=facts | self._resets(code)), usage=usage)

    # -- frames

    def _partial(self, frame: _Frame, end: int) -> Sequence[Draft]:
        """What a partial message brings: nine lines of ten, so in as few steps as can be."""
        event = frame.event
        if event is None or frame.parent_tool_use_id:  # a sub-agent's complete messages say it all
            return ()
        piece = event.delta
        if piece is None:
            if event.type == "message_start" and event.message is not None:
                self._message_id = storable(event.message.id)
                self._metadata = {MESSAGE_ID: self._message_id}
                self._input_tokens += _count(event.message.usage, "input_tokens")
        elif (kind := _PIECES.get(piece.type)) and (text := piece.text or piece.thinking):
            self._streamed.add((self._message_id, kind))
            return (Draft(kind, storable(text), self._metadata, None, None, None, end, 0),)
        elif piece.stop_reason:
            self._answer.stopped(piece.stop_reason)
            self._output_tokens += _count(event.usage, "output_tokens")
        return ()

    def _said(self, frame: _Frame, end: int) -> Found:
        found = Found(end)
        self._spoken[frame.type](self, frame, found)
        return found

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
        """A frame off the hot path."""
        kind = fields.text(frame, "type")
        if self.has_ended:
            found.noise("after_terminal", kind or "a frame without type")
        elif spoken := self._spoken.get(kind):
            spoken(self, _Frame.of(frame), found)
        elif told := self._told.get(kind):
            told(self, frame, found)
        elif kind not in _QUIET:
            found.noise("unknown_type", kind or "a frame without type")

    def _stream_event(self, frame: _Frame, found: Found) -> None:
        for draft in self._partial(frame, -1):
            found.text(draft.type, draft.text, self._message_id)

    def _assistant(self, frame: _Frame, found: Found) -> None:
        message = frame.message or _Message()
        message_id = storable(message.id) or self._message_id
        is_synthetic = message.model == SYNTHETIC
        if is_synthetic and isinstance(frame.error, str):
            self._api_error, self._api_message = frame.error, _text_of(message.content)
        for block in message.content if isinstance(message.content, list) else ():
            if block.type.endswith("tool_use"):
                found.activity(_tool_call(block))
            elif frame.parent_tool_use_id:
                _sub_agent(block, found)
            elif not is_synthetic:
                self._block(block, message_id, found)

    def _block(self, block: _Block, message_id: str, found: Found) -> None:
        """A complete block of the answer, reported unless it was streamed before."""
        if (kind := _BLOCKS.get(block.type)) is None:
            return
        text = storable(block.text or block.thinking)
        if kind is EventType.DELTA:
            self._answer.add(message_id, text)
        if (message_id, kind) not in self._streamed:
            found.text(kind, text, message_id)

    def _user(self, frame: _Frame, found: Found) -> None:
        content = frame.message.content if frame.message is not None else ""
        for block in content if isinstance(content, list) else ():
            if block.type == "tool_result":
                output = block.content if isinstance(block.content, str) else _text_of(block.content)
                call_id, is_error = storable(block.tool_use_id), block.is_error is True
                found.activity(ToolResult(call_id=call_id, output=bounded(output), is_error=is_error))

    def _system(self, frame: JsonObject, found: Found) -> None:
        subtype = fields.text(frame, "subtype")
        if subtype == "init":
            self._announced(frame)
        elif subtype == "api_retry":
            found.activity(_retry(frame))
        elif subtype == "compact_boundary":
            found.activity(Notice(code="compacted", message="the agent compacted its context"))
        elif subtype not in _QUIET_SUBTYPES:
            found.noise("unknown_type", f"system/{subtype}")

    def _rate_limit(self, frame: JsonObject, found: Found) -> None:
        info = fields.mapping(frame, "rate_limit_info")
        share = fields.number(info, "utilization")
        limit = RateLimit(
            status=fields.text(info, "status") or "unknown",
            window=fields.text(info, "rateLimitType"),
            used_percent=None if share is None else share * 100,
            resets_at=fields.integer(info, "resetsAt"),
        )
        self._window = limit if limit.status == "rejected" else None
        found.activity(limit)

    def _take_result(self, frame: JsonObject, found: Found) -> None:
        self._result = frame
        if self._code(frame) is None and (announced := fields.identifier(frame, "session_id")):
            self._native_id = announced

    def _unanswered(self, frame: JsonObject, found: Found) -> None:
        """The CLI asks its host, which it does in the session form only; nobody answers here."""
        found.noise("unanswered", fields.text(fields.mapping(frame, "request"), "subtype"))

    # -- judgement

    def _announced(self, frame: JsonObject) -> None:
        announced = fields.identifier(frame, "session_id")
        if announced and self._resumed_id in (None, announced):
            self._native_id = announced

    def _code(self, result: JsonObject) -> FailureCode | None:
        """Why the turn failed; None when it did not."""
        subtype, message = fields.text(result, "subtype"), _message(result)
        if fields.text(result, "terminal_reason").startswith(_ABORTED):
            return FailureCode.INTERRUPTED
        if fields.text(result, "stop_reason") == "refusal":
            return FailureCode.REFUSED
        if not result.get("is_error") and subtype in ("success", ""):
            return None
        if self._resumed_id is not None and is_unknown_session(message):
            return FailureCode.LOST
        return _SUBTYPES.get(subtype) or self._api_code(fields.integer(result, "api_error_status"), message)

    def _api_code(self, status: int | None, message: str) -> FailureCode:
        told = _API_ERRORS.get(self._api_error) or code_of_status(status)
        prose = code_of_prose(message)
        if told is FailureCode.RATE_LIMITED and (self._window or prose is FailureCode.QUOTA_EXHAUSTED):
            return FailureCode.QUOTA_EXHAUSTED  # 429 alone has two meanings
        return told or prose or FailureCode.PROCESS_FAILED

    def _failure_without_result(self, end: ProcessEnd) -> Failure:
        failure = process_failure(end, detail=f"failed: {self._api_message}" if self._api_message else "")
        if was_ended_from_outside(end):
            return failure  # what it said before is no reason
        if self._resumed_id is not None and is_unknown_session(end.stderr):
            return recoded(failure, FailureCode.LOST)
        told = self._api_code(None, self._api_message) if self._api_error else None
        return recoded(failure, told or code_of_prose(end.stderr))

    def _resets(self, code: FailureCode) -> dict[str, str]:
        is_limit = code in (FailureCode.QUOTA_EXHAUSTED, FailureCode.RATE_LIMITED)
        resets_at = self._window.resets_at if is_limit and self._window else None
        return {} if resets_at is None else {"resets_at": str(resets_at)}

    # The frames that say something, of which there are many, and those that tell something about the run.
    _spoken: ClassVar[dict[str, Callable[[ClaudeDecoder, _Frame, Found], None]]] = {
        "stream_event": _stream_event,
        "assistant": _assistant,
        "user": _user,
    }
    _told: ClassVar[dict[str, Callable[[ClaudeDecoder, JsonObject, Found], None]]] = {
        "system": _system,
        "rate_limit_event": _rate_limit,
        "result": _take_result,
        "control_request": _unanswered,
    }


def _count(usage: object, key: str) -> int:
    return fields.count(usage, key) or 0 if isinstance(usage, dict) else 0


def _message(result: JsonObject) -> str:
    if (reason := fields.text(result, "terminal_reason")).startswith(_ABORTED):
        return f"the agent was interrupted ({reason}), though not by this host"
    told = fields.text(result, "result") or "; ".join(fields.texts(result, "errors"))
    return told or f"the agent ended with {fields.text(result, 'subtype') or 'a result'} and no text"


def _usage(result: JsonObject) -> Usage | None:
    """The turn's tokens; the cost is the process's, which in the one-shot form is one turn."""
    cost, told = fields.number(result, "total_cost_usd"), fields.mapping(result, "usage")
    tokens = {name: fields.count(told, key) for name, key in _TOKENS.items()}
    if cost and not any(tokens.values()):
        tokens = {}  # after a retry without streaming all counts are 0 beside a true cost: that is "not counted"
    usage = Usage(cost_usd=cost, **tokens)
    return usage if usage != Usage() else None


def _result_facts(result: JsonObject) -> dict[str, str]:
    """What is out of the ordinary about the end, for the terminal's metadata."""
    told: dict[str, object] = {
        "stop_reason": fields.text(result, "stop_reason"),
        "terminal_reason": fields.text(result, "terminal_reason"),
        "api_error_status": fields.integer(result, "api_error_status") or "",
        "permission_denials": sum(1 for _ in fields.objects(result, "permission_denials")) or "",
    }
    return {key: str(value) for key, value in told.items() if value not in _ORDINARY}


def _retry(frame: JsonObject) -> Activity:
    reason = " ".join(
        str(each) for each in (fields.integer(frame, "error_status"), fields.text(frame, "error")) if each
    )
    delay_ms = fields.number(frame, "retry_delay_ms")
    wait = f", again in {delay_ms / 1000:.1f} s" if delay_ms else ""
    attempt = f"attempt {fields.integer(frame, 'attempt')} of {fields.integer(frame, 'max_retries')}"
    return Notice(code="api_retry", message=bounded(f"{attempt} after {reason}{wait}"))


def _tool_call(block: _Block) -> ToolCall:
    asked = fields.as_json({} if block.input is None else block.input)
    return ToolCall(call_id=storable(block.id), name=storable(block.name), input_json=bounded(asked))


def _sub_agent(block: _Block, found: Found) -> None:
    if block.type == "text":
        found.activity(Notice(code="subagent", message=bounded(block.text)))


def _text_of(content: object) -> str:
    """The text in the content of a message or of a tool result, which may be blocks of several kinds."""
    texts = []
    for block in content if isinstance(content, list) else ():
        kind, text = (block.get("type"), block.get("text")) if isinstance(block, dict) else (block.type, block.text)
        if kind == "text" and isinstance(text, str):
            texts.append(storable(text))
    return "\n".join(texts)
