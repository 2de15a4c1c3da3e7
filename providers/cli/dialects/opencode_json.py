"""opencode, ``opencode run --format json``, one turn.

Format: one JSON object per line, as printed by opencode 1.18.33 (recorded transcripts under ``tests/``): ``step_start``,
``text``, ``reasoning``, ``tool_use``, ``step_finish``, ``error``, each with the session's id.

THE RULE: there is no terminal event, so the exit is taken as evidence. Exit code 0, no ``error`` event, and a last step
that finished with a text and not with a tool call are ``complete``; everything else is an error. The first ``error``
event ends the run at once, since the exit code would be 1 whatever followed, and the CLI was seen to hang after one. On
a resume the same holds for another session id than the one asked for, which is ``lost``.

The text of ``complete`` is what was said after the last tool call; what was said before it are remarks. When the CLI
compacts its context it prints the summary as ordinary text and then, marked as synthetic, its own "Continue if you have
next steps": that mark makes the message before it a summary, which is no answer, and the messages around it are joined.

Not in this format: partial text (a part is told when it is whole), thinking without ``--thinking``, retries (74 s of
silence before an error 500 is told), tool calls before they have ended, and sub-agents. Which model is unknown is told
on stderr alone, and only with ``--print-logs``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from providers.cli import json_fields as fields
from providers.cli.dialect import Line, Noise, ProcessEnd, TurnContext, process_failure
from providers.cli.evidence import (
    code_of_prose,
    code_of_status,
    history_gone,
    is_unknown_session,
    recoded,
    was_ended_from_outside,
)
from providers.cli.found import Found
from providers.cli.json_fields import JsonObject, storable
from providers.cli.json_lines import bounded, recover
from runtime.events import Draft, EventType, Notice, ToolCall, ToolResult, Usage, complete, error
from runtime.failure import Failure, FailureCode

_TOOL_CALLS = "tool-calls"
_UNTOLD = "UnknownError"  # "Check server logs for details."
_ERROR_NAMES = {
    "ProviderAuthError": FailureCode.AUTH_REQUIRED,
    "MessageAbortedError": FailureCode.INTERRUPTED,
    "MessageOutputLengthError": FailureCode.BUDGET_EXHAUSTED,
    "ContextOverflowError": FailureCode.BUDGET_EXHAUSTED,
    "ProviderModelNotFoundError": FailureCode.MODEL_UNAVAILABLE,
}
_TOKENS = {"input_tokens": "input", "output_tokens": "output", "reasoning_tokens": "reasoning"}
_CACHE = {"cache_read_tokens": "read", "cache_write_tokens": "write"}


def decoder(context: TurnContext) -> OpencodeDecoder:
    """A decoder for one run."""
    return OpencodeDecoder(context)


class _Part(msgspec.Struct, gc=False):
    id: str = ""
    message_id: str = msgspec.field(default="", name="messageID")
    text: str = ""
    tool: str = ""
    call_id: str = msgspec.field(default="", name="callID")
    state: object = None
    reason: str = ""
    tokens: object = None
    cost: object = None
    synthetic: object = None


class _Event(msgspec.Struct, gc=False):
    type: str = ""
    session_id: str = msgspec.field(default="", name="sessionID")
    part: _Part | None = None
    error: object = None

    @classmethod
    def of(cls, source: JsonObject) -> _Event:
        """The event in a line that the typed decoder refuses."""
        event = fields.lenient(source, cls)
        if event.part is None and (part := fields.mapping(source, "part")):
            event.part = fields.lenient(part, _Part)
        return event


_decode_event = msgspec.json.Decoder(_Event).decode


class OpencodeDecoder:
    """Decodes the events of one turn."""

    def __init__(self, context: TurnContext) -> None:
        self._resumed_id = context.resumed_id
        self._native_id: str | None = None
        self._is_other_session = False
        self._spoken: list[
            tuple[str, dict[str, str]]
        ] = []  # since the last tool call: a message's id, its texts by part
        self._reason = ""  # why the last step finished; empty while one is in work
        self._counts: dict[str, int] = {}
        self._cost = 0.0
        self._error: JsonObject | None = None
        self._events: dict[str, Callable[[_Part, Found], None]] = {
            "step_start": self._step_start,
            "text": self._text,
            "reasoning": self._reasoning,
            "tool_use": self._tool_use,
            "step_finish": self._step_finish,
        }

    @property
    def native_id(self) -> str | None:
        return self._native_id

    @property
    def has_ended(self) -> bool:
        return self._error is not None or self._is_other_session

    def decode(self, line: Line) -> Sequence[Draft | Noise]:
        try:
            event = _decode_event(line.data)
        except (msgspec.MsgspecError, RecursionError):
            return self._recovered(line)
        found = Found(line.end)
        self._event(event, found)
        return found

    @property
    def usage_so_far(self) -> Usage | None:
        return self._usage()

    def conclude(self, end: ProcessEnd) -> Draft:
        usage = self._usage()
        if self._is_other_session:
            return error(history_gone(), usage=usage)
        if self._error is not None:
            return error(_failure(self._error, end), usage=usage)
        if end.code == 0 and self._spoken and self._reason not in ("", _TOOL_CALLS):
            facts = {} if self._reason == "stop" else {"stop_reason": self._reason}
            return complete(
                "\n\n".join("".join(texts.values()) for _, texts in self._spoken), usage=usage, metadata=facts
            )
        return error(self._failure_without_error(end), usage=usage)

    # -- events

    def _event(self, event: _Event, found: Found) -> None:
        handler = self._events.get(event.type)
        if not self.has_ended and (announced := fields.as_identifier(event.session_id)):
            self._announced(announced)
        if self.has_ended:
            found.noise("after_terminal", event.type or "an event without type")
        elif event.type == "error":
            self._error = fields.as_object(event.error)
        elif handler is None:
            found.noise("unknown_type", event.type or "an event without type")
        else:
            handler(event.part or _Part(), found)

    def _recovered(self, line: Line) -> Found:
        found = Found(line.end)
        for each in recover(line.data):
            if isinstance(each, dict):
                self._event(_Event.of(each), found)
            elif self.has_ended:
                found.noise("after_terminal", each.detail)
            else:
                found.append(each)
        return found

    def _announced(self, session_id: str) -> None:
        if self._resumed_id in (None, session_id):
            self._native_id = session_id
        else:
            self._is_other_session = True

    def _step_start(self, part: _Part, found: Found) -> None:
        self._reason = ""

    def _text(self, part: _Part, found: Found) -> None:
        """A part of the answer, whole; told again, it was changed since, which ``complete`` will show."""
        if part.synthetic:
            self._compacted(found)
            return
        if not self._spoken or self._spoken[-1][0] != part.message_id:
            self._spoken.append((part.message_id, {}))
        texts, text = self._spoken[-1][1], storable(part.text)
        if part.id not in texts:
            found.text(EventType.DELTA, text, storable(part.message_id))
        texts[part.id] = text

    def _compacted(self, found: Found) -> None:
        """The CLI spoke in the user's place, which it does after it has put a summary in place of its context."""
        if self._spoken:
            self._spoken.pop()
        found.activity(Notice(code="compacted", message="the agent compacted its context"))

    def _reasoning(self, part: _Part, found: Found) -> None:
        found.text(EventType.REASONING_DELTA, storable(part.text), storable(part.message_id))

    def _tool_use(self, part: _Part, found: Found) -> None:
        """A tool that has ended: the call and its result come in one event."""
        state, call_id = fields.as_object(part.state), storable(part.call_id)
        asked = fields.as_json(state.get("input", {}))
        problem = fields.text(state, "error")
        found.activity(ToolCall(call_id=call_id, name=storable(part.tool), input_json=bounded(asked)))
        output = problem or fields.text(state, "output")
        is_error = bool(problem) or fields.text(state, "status") == "error"
        found.activity(ToolResult(call_id=call_id, output=bounded(output), is_error=is_error))

    def _step_finish(self, part: _Part, found: Found) -> None:
        self._reason = storable(part.reason) or "unknown"
        if self._reason == _TOOL_CALLS:
            self._spoken = []
        tokens = fields.as_object(part.tokens)
        for holder, names in ((tokens, _TOKENS), (fields.mapping(tokens, "cache"), _CACHE)):
            for name, key in names.items():
                self._counts[name] = self._counts.get(name, 0) + (fields.count(holder, key) or 0)
        self._cost += fields.number({"cost": part.cost}, "cost") or 0.0

    # -- judgement

    def _usage(self) -> Usage | None:
        """The sum of the run's steps. A cost of zero is that of a model whose price the CLI does not know."""
        if not any(self._counts.values()):
            return None
        return Usage(**self._counts, cost_usd=self._cost or None)

    def _failure_without_error(self, end: ProcessEnd) -> Failure:
        detail = "ended without an answer"
        if self._reason == _TOOL_CALLS:
            detail = "ended at a tool call and said nothing after it"
        failure = process_failure(end, detail=detail if end.code == 0 else "")
        if was_ended_from_outside(end):
            return failure
        if self._resumed_id is not None and is_unknown_session(end.stderr):
            return recoded(failure, FailureCode.LOST)
        return recoded(failure, code_of_prose(end.stderr))


def _failure(told: JsonObject, end: ProcessEnd) -> Failure:
    """The failure of an error event, whose ``data`` is that of the HTTP answer where there was one."""
    name, data = fields.text(told, "name"), fields.mapping(told, "data")
    status, message = fields.integer(data, "statusCode"), fields.text(data, "message") or fields.text(told, "message")
    prose = code_of_prose(f"{name} {message} {fields.text(data, 'responseBody')}")
    if prose not in (FailureCode.QUOTA_EXHAUSTED, FailureCode.MODEL_UNAVAILABLE):  # these two know better than a number
        prose = code_of_status(status) or prose
    if prose is None and name == _UNTOLD:
        prose = code_of_prose(end.stderr)
    code = _ERROR_NAMES.get(name) or prose or FailureCode.PROCESS_FAILED
    facts = {} if status is None else {"api_error_status": str(status)}
    if retry_after := fields.text(fields.mapping(data, "responseHeaders"), "retry-after"):
        facts["retry_after_s"] = retry_after
    return Failure(code=code, message=message or name or "the agent failed without a reason", metadata=facts)
