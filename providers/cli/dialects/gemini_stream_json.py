"""Gemini CLI, ``gemini -o stream-json``, one turn.

Format: one JSON object per line, as printed by Gemini CLI 0.61.0 (recorded transcripts under ``tests/``): ``init``,
``message``, ``tool_use``, ``tool_result``, ``error``, ``result``.

THE RULE: the first ``result`` decides: ``status: success`` after any text of the assistant is ``complete``, everything
else is an error. A missing ``result`` is an error whatever the exit code says: it is 0 when the CLI was told to stop and
when the end of its output was lost. An ``error`` event ends nothing. On a resume an ``init`` with another id than the
one asked for is ``lost`` at once.

``result`` carries no text. The answer is what the assistant said after its last tool call. The CLI asks again when a
stream breaks off and does not say so: the same text simply comes once more, after a pause of at least a second. A text
that repeats all that was said so far, after such a pause, is therefore told only once; when the second attempt has
other words than the first, nothing shows that the first was given up, and both stay.

The reason of an error is the HTTP status, which is told in three places: in the message, in the error dump on stderr,
and by the exit code (the status modulo 256, so 145 is 401; 41 to 55 are the CLI's own).

Not in this format: thinking, retries (minutes of silence), and why a model stopped (an answer cut at ``max_tokens`` or
by a safety filter is a plain success, unless the CLI itself reports it as an ``error``).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime

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
from providers.cli.json_fields import storable
from providers.cli.json_lines import bounded, recover
from runtime.events import Draft, EventType, Notice, ToolCall, ToolResult, Usage, complete, error
from runtime.failure import Failure, FailureCode

_RETRY_PAUSE_S = 1.0  # the CLI's shortest wait before it asks again
_REPEATED_LENGTH = 8  # a shorter text may well be said twice

_EXIT_CODES = {
    41: FailureCode.AUTH_REQUIRED,
    42: FailureCode.INVALID_REQUEST,
    53: FailureCode.BUDGET_EXHAUSTED,  # the configured number of turns
}
_ERROR_TYPES = {
    "FatalAuthenticationError": FailureCode.AUTH_REQUIRED,
    "FatalInputError": FailureCode.INVALID_REQUEST,
    "FatalTurnLimitedError": FailureCode.BUDGET_EXHAUSTED,
    "FatalCancellationError": FailureCode.INTERRUPTED,
}
_OWN_WORDS = (
    (FailureCode.QUOTA_EXHAUSTED, re.compile(r"exhausted your (?:daily )?(?:quota|capacity)")),
    (FailureCode.MODEL_UNAVAILABLE, re.compile(r"models/\S+ is not found")),
    (FailureCode.BUDGET_EXHAUSTED, re.compile(r"exceeded the token limit|Maximum session turns exceeded")),
    (FailureCode.REFUSED, re.compile(r"response was blocked due to")),
    (FailureCode.PROVIDER_UNREACHABLE, re.compile(r"API Error: (?:terminated|fetch failed)")),
)
_STATUS = re.compile(r'^\s*(?:status|code): (\d{3})\b|"code":\s*(\d{3})\b', re.MULTILINE)
_UNKNOWN_SESSION = "Error resuming session"


def decoder(context: TurnContext) -> GeminiDecoder:
    """A decoder for one run."""
    return GeminiDecoder(context)


class _Event(msgspec.Struct, gc=False):
    type: str = ""
    timestamp: str = ""
    role: str = ""
    content: str = ""
    session_id: str = ""
    tool_name: str = ""
    tool_id: str = ""
    parameters: object = None
    status: str = ""
    output: object = None
    severity: str = ""
    message: str = ""
    error: object = None
    stats: object = None


_decode_event = msgspec.json.Decoder(_Event).decode


@dataclass(slots=True)
class _Message:
    """What the assistant said since its last tool call; what a repeated attempt says again is counted once."""

    number: int = 1
    pieces: list[str] = field(default_factory=list)
    last_at: str = ""
    repeating: str = ""  # the text that seems to be said again
    repeated: int = 0  # how much of it has been

    @property
    def text(self) -> str:
        return "".join(self.pieces) + self.repeating[: self.repeated]

    def add(self, piece: str, at: str) -> str:
        """Take *piece* and return what of it is news."""
        if not self.repeating and self._begins_again(piece, at):
            self.repeating = "".join(self.pieces)
        self.last_at = at
        news = self._beyond(piece) if self.repeating else piece
        if news:
            self.pieces.append(news)
        return news

    def _begins_again(self, piece: str, at: str) -> bool:
        first = self.pieces[0] if self.pieces else ""
        if not first or not piece or not (piece.startswith(first) or first.startswith(piece)):
            return False
        return _seconds(self.last_at, at) >= _RETRY_PAUSE_S and sum(map(len, self.pieces)) >= _REPEATED_LENGTH

    def _beyond(self, piece: str) -> str:
        missing = len(self.repeating) - self.repeated
        if not self.repeating.startswith(piece[:missing], self.repeated):
            news = self.repeating[: self.repeated] + piece  # other words: it was no repetition
        elif len(piece) < missing:
            self.repeated += len(piece)
            return ""
        else:
            news = piece[missing:]
        self.repeating, self.repeated = "", 0
        return news


class GeminiDecoder:
    """Decodes the events of one turn."""

    def __init__(self, context: TurnContext) -> None:
        self._resumed_id = context.resumed_id
        self._native_id: str | None = None
        self._is_other_session = False
        self._message = _Message()
        self._answer = ""  # the last text before the message in work
        self._last_error = ""
        self._terminal: _Event | None = None
        self._events: dict[str, Callable[[_Event, Found], None]] = {
            "init": self._init,
            "message": self._said,
            "tool_use": self._tool_use,
            "tool_result": self._tool_result,
            "error": self._error,
            "result": self._take_terminal,
        }

    @property
    def native_id(self) -> str | None:
        return self._native_id

    @property
    def has_ended(self) -> bool:
        return self._terminal is not None

    def decode(self, line: Line) -> Sequence[Draft | Noise]:
        try:
            event = _decode_event(line.data)
        except (msgspec.MsgspecError, RecursionError):
            return self._recovered(line)
        found = Found(line.end)
        self._event(event, found)
        return found

    def conclude(self, end: ProcessEnd) -> Draft:
        if self._terminal is None:
            return error(self._failure_without_result(end))
        facts = exit_facts(end)
        if self._is_other_session:
            return error(history_gone(facts))
        usage, answer = _usage(self._terminal), self._message.text or self._answer
        if self._terminal.status == "success" and answer:
            return complete(answer, usage=usage, metadata=facts)
        return error(self._failure(self._terminal, end, facts), usage=usage)

    # -- events

    def _event(self, event: _Event, found: Found) -> None:
        handler = self._events.get(event.type)
        if self._terminal is not None:
            found.noise("after_terminal", event.type or "an event without type")
        elif handler is None:
            found.noise("unknown_type", event.type or "an event without type")
        else:
            handler(event, found)

    def _recovered(self, line: Line) -> Found:
        found = Found(line.end)
        for each in recover(line.data):
            if isinstance(each, dict):
                self._event(fields.lenient(each, _Event), found)
            elif self.has_ended:
                found.noise("after_terminal", each.detail)
            else:
                found.append(each)
        return found

    def _init(self, event: _Event, found: Found) -> None:
        announced = fields.as_identifier(event.session_id)
        if self._resumed_id in (None, announced):
            self._native_id = announced
        else:
            self._is_other_session, self._terminal = True, event

    def _said(self, event: _Event, found: Found) -> None:
        if event.role == "assistant":
            news = self._message.add(storable(event.content), event.timestamp)
            found.text(EventType.DELTA, news, f"message-{self._message.number}")

    def _tool_use(self, event: _Event, found: Found) -> None:
        if self._message.pieces:
            self._answer = self._message.text or self._answer
            self._message = _Message(self._message.number + 1)
        asked = fields.as_json({} if event.parameters is None else event.parameters)
        found.activity(
            ToolCall(call_id=storable(event.tool_id), name=storable(event.tool_name), input_json=bounded(asked))
        )

    def _tool_result(self, event: _Event, found: Found) -> None:
        output = (
            event.output if isinstance(event.output, str) else fields.text(fields.as_object(event.error), "message")
        )
        is_error = event.status != "success"
        found.activity(ToolResult(call_id=storable(event.tool_id), output=bounded(output), is_error=is_error))

    def _error(self, event: _Event, found: Found) -> None:
        is_warning = event.severity == "warning"
        if not is_warning:
            self._last_error = storable(event.message)
        found.activity(Notice(code="warning" if is_warning else "agent_error", message=bounded(event.message)))

    def _take_terminal(self, event: _Event, found: Found) -> None:
        self._terminal = event

    # -- judgement

    def _failure(self, result: _Event, end: ProcessEnd, facts: dict[str, str]) -> Failure:
        if result.status == "success":
            return Failure(code=FailureCode.OUTPUT_INVALID, message="the agent ended without an answer", metadata=facts)
        told = fields.as_object(result.error)
        message = fields.text(told, "message") or self._last_error
        code = _ERROR_TYPES.get(fields.text(told, "type")) or _code(message, end) or FailureCode.PROCESS_FAILED
        return Failure(code=code, message=message or "the agent failed without a reason", metadata=facts)

    def _failure_without_result(self, end: ProcessEnd) -> Failure:
        failure = process_failure(end, detail=f"failed: {self._last_error}" if self._last_error else "")
        if was_ended_from_outside(end) and _exit_status(end) is None:
            return failure
        if self._resumed_id is not None and _UNKNOWN_SESSION in end.stderr:
            return recoded(failure, FailureCode.LOST)
        if end.code == 0 and not self._last_error:
            return failure  # an error on stderr may be one that a retry has healed
        return recoded(failure, _code(self._last_error, end) or code_of_prose(end.stderr))


def _code(message: str, end: ProcessEnd) -> FailureCode | None:
    """What the evidence of an error stands for: the CLI's words know better than the status of a request."""
    for code, words in _OWN_WORDS:
        if words.search(message):
            return code
    if (told := code_of_prose(message)) is FailureCode.QUOTA_EXHAUSTED:
        return told  # 429 alone has two meanings
    status = _status_in(message) or _exit_status(end) or _status_in(end.stderr)
    if status == 404:
        return FailureCode.MODEL_UNAVAILABLE  # the model is part of the address
    return code_of_status(status) or told or _EXIT_CODES.get(end.code or 0)


def _status_in(text: str) -> int | None:
    found = [first or second for first, second in _STATUS.findall(text)]
    return int(found[-1]) if found else None


def _exit_status(end: ProcessEnd) -> int | None:
    """The HTTP status of a failed request, of which the exit code is what fits into a byte."""
    return end.code + 256 if end.code is not None and 144 <= end.code <= 255 else None


def _usage(result: _Event) -> Usage | None:
    """The process's own counts, which a resume does not carry on; all zero means that nothing was counted."""
    told = fields.as_object(result.stats)
    usage = Usage(
        input_tokens=fields.count(told, "input_tokens"),
        output_tokens=fields.count(told, "output_tokens"),
        cache_read_tokens=fields.count(told, "cached"),
    )
    return usage if usage.input_tokens or usage.output_tokens else None


def _seconds(earlier: str, later: str) -> float:
    try:
        return (datetime.fromisoformat(later) - datetime.fromisoformat(earlier)).total_seconds()
    except (ValueError, TypeError):
        return 0.0
