"""GitHub Copilot CLI, ``copilot --output-format json --stream on``, one turn.

Format: one JSON object per line, as printed by Copilot CLI 1.0.102 (recorded transcripts under ``tests/``): the events of
its session (``assistant.*``, ``tool.*``, ``model.*``, ``session.*``), each with its ``data``, and a ``result`` at the end.

THE RULE: the first ``result`` decides: ``exitCode`` 0 is ``complete`` with the text of the last ``assistant.message``,
unless a ``session.error`` came after that message; everything else is an error, for the reason that the last
``session.error`` gives. Without a ``result`` the run failed. A ``model.call_failure`` ends nothing, the CLI asks again.

A retry streams the text again under another message id and completes no message for the first attempt, so ``complete``
holds the last one alone. An answer that hit the model's ``max_tokens`` is not completed either, but its request was a
success: the CLI asks for the rest in a further message, and the parts before it are put in front. Deltas are told apart
from the ``assistant.message`` that repeats them by its id.

Only ``result`` names the session, so a run that was stopped before it cannot be resumed; and on a resume a new session
in place of the old shows only then, as ``lost`` after its answer was streamed.

Not in this format: usage (premium requests alone, in the metadata when there were any), and why a model stopped.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

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
from runtime.events import Draft, EventType, Notice, ToolCall, ToolResult, complete, error
from runtime.failure import Failure, FailureCode

_ERROR_TYPES = {
    "authentication": FailureCode.AUTH_REQUIRED,
    "authorization": FailureCode.AUTH_REQUIRED,
    "quota": FailureCode.QUOTA_EXHAUSTED,
    "rate_limit": FailureCode.RATE_LIMITED,
    "context_limit": FailureCode.BUDGET_EXHAUSTED,
}
_QUIET = frozenset(
    {"user.message", "assistant.turn_start", "assistant.message_start", "assistant.idle"}
    | {"assistant.intent", "assistant.tool_call_delta", "assistant.usage"}
    | {"model.call_start", "model.call_final_result"}
    | {"tool.shell_output", "tool.execution_partial_result", "tool.execution_progress"}
    | {"session.start", "session.resume", "session.idle", "session.skills_loaded", "session.mcp_servers_loaded"}
    | {"session.tools_updated", "session.background_tasks_changed", "session.usage_info", "session.title_changed"}
    | {"session.compaction_start", "session.shutdown"}
)
_CUT_OFF = re.compile(r"error reading a body from connection|error sending request|connection closed")
_RETRY_INFO = "model_retry"  # says in prose what assistant.turn_retry says, and not for every retry
_UNKNOWN_SESSION = "No session, task, or name matched"


def decoder(context: TurnContext) -> CopilotDecoder:
    """A decoder for one run."""
    return CopilotDecoder(context)


class _Data(msgspec.Struct, gc=False, rename="camel"):
    message_id: str = ""
    delta_content: str = ""
    content: str = ""
    reasoning_id: str = ""
    reasoning_text: str = ""
    tool_call_id: str = ""
    tool_name: str = ""
    arguments: object = None
    result: object = None
    success: bool | None = None
    error: object = None
    error_type: str = ""
    error_message: str = ""
    status_code: int | None = None
    info_type: str = ""
    message: str = ""
    outcome: str = ""
    reason: str = ""
    tool_requests: object = None
    parent_tool_call_id: str | None = None


class _Event(msgspec.Struct, gc=False, rename="camel"):
    type: str = ""
    data: _Data | None = None
    agent_id: str | None = None  # of a sub-agent
    session_id: str = ""
    exit_code: int | None = None
    usage: object = None

    @classmethod
    def of(cls, source: JsonObject) -> _Event:
        """The event in a line that the typed decoder refuses."""
        event = fields.lenient(source, cls)
        if event.data is None and (data := fields.mapping(source, "data")):
            event.data = fields.lenient(data, _Data)
        return event


_decode_event = msgspec.json.Decoder(_Event).decode


@dataclass(slots=True)
class _Answer:
    """The text of the message that was completed last, after the parts of it that were cut off at ``max_tokens``."""

    text: str | None = None
    cut: list[str] = field(default_factory=list)
    pieces: list[str] = field(default_factory=list)  # streamed by a request whose message is not complete yet
    is_cut: bool = False  # that request was a success all the same

    @property
    def whole(self) -> str | None:
        return None if self.text is None else "".join(self.cut) + self.text

    def requested(self, *, is_success: bool) -> None:
        """The request is over; after a failed one the text is asked for again."""
        self.is_cut = is_success
        if not is_success:
            self.pieces = []

    def completed(self, text: str, *, has_tools: bool) -> None:
        if has_tools:
            self.cut = []  # another answer begins after the tools
        self.text, self.pieces = text, []

    def turn_ended(self) -> None:
        if self.is_cut and self.pieces:
            self.cut.append("".join(self.pieces))
        self.pieces, self.is_cut = [], False


class CopilotDecoder:
    """Decodes the events of one turn."""

    def __init__(self, context: TurnContext) -> None:
        self._resumed_id = context.resumed_id
        self._native_id: str | None = None
        self._is_other_session = False
        self._streamed: set[str] = set()  # ids of messages and of pieces of thinking
        self._answer = _Answer()
        self._error: _Data | None = None  # the last session.error, if no message came after it
        self._attempt_error = ""  # why the last request failed
        self._result: _Event | None = None
        self._events: dict[str, Callable[[_Data, bool, Found], None]] = {
            "assistant.message_delta": self._delta,
            "assistant.reasoning_delta": self._reasoning_delta,
            "assistant.message": self._message,
            "assistant.reasoning": self._reasoning,
            "assistant.turn_end": self._turn_end,
            "assistant.turn_retry": self._retry,
            "model.call_finished": self._call_finished,
            "tool.execution_start": self._tool_call,
            "tool.execution_complete": self._tool_result,
            "model.call_failure": self._call_failure,
            "session.info": self._info,
            "session.warning": self._warning,
            "session.compaction_complete": self._compacted,
            "session.error": self._session_error,
        }

    @property
    def native_id(self) -> str | None:
        return self._native_id

    @property
    def has_ended(self) -> bool:
        return self._result is not None

    def decode(self, line: Line) -> Sequence[Draft | Noise]:
        try:
            event = _decode_event(line.data)
        except (msgspec.MsgspecError, RecursionError):
            return self._recovered(line)
        found = Found(line.end)
        self._event(event, found)
        return found

    def conclude(self, end: ProcessEnd) -> Draft:
        if self._result is None:
            return error(self._failure_without_result(end))
        facts = exit_facts(end) | _requests(self._result)
        if self._is_other_session:
            return error(history_gone(facts))
        if self._error is not None:
            return error(_failure(self._error, facts))
        if self._result.exit_code != 0:
            message = f"the agent ended with exit code {self._result.exit_code} and without a reason"
            return error(Failure(code=FailureCode.PROCESS_FAILED, message=message, metadata=facts))
        if (answer := self._answer.whole) is None:
            message = "the agent ended without an answer"
            return error(Failure(code=FailureCode.OUTPUT_INVALID, message=message, metadata=facts))
        return complete(answer, metadata=facts)

    # -- events

    def _event(self, event: _Event, found: Found) -> None:
        handler = self._events.get(event.type)
        if self.has_ended:
            found.noise("after_terminal", event.type or "an event without type")
        elif event.type == "result":
            self._take_result(event)
        elif handler:
            data = event.data or _Data()
            handler(data, bool(event.agent_id or data.parent_tool_call_id), found)
        elif event.type not in _QUIET:
            found.noise("unknown_type", event.type or "an event without type")

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

    def _take_result(self, event: _Event) -> None:
        self._result = event
        announced = fields.as_identifier(event.session_id)
        if self._resumed_id in (None, announced):
            self._native_id = announced
        elif announced:
            self._is_other_session = True

    def _delta(self, data: _Data, is_sub_agent: bool, found: Found) -> None:
        if not is_sub_agent:
            self._answer.pieces.append(storable(data.delta_content))
        self._piece(EventType.DELTA, data.delta_content, data.message_id, is_sub_agent, found)

    def _reasoning_delta(self, data: _Data, is_sub_agent: bool, found: Found) -> None:
        self._piece(EventType.REASONING_DELTA, data.delta_content, data.reasoning_id, is_sub_agent, found)

    def _piece(self, kind: EventType, text: str, message_id: str, is_sub_agent: bool, found: Found) -> None:
        """A piece of a stream; a sub-agent's complete message says it all."""
        if not is_sub_agent:
            self._streamed.add(message_id)
            found.text(kind, storable(text), storable(message_id))

    def _message(self, data: _Data, is_sub_agent: bool, found: Found) -> None:
        text = storable(data.content)
        if is_sub_agent:
            if text:
                found.activity(Notice(code="subagent", message=bounded(text)))
            return
        self._answer.completed(text, has_tools=bool(data.tool_requests))
        self._error = None
        if data.message_id not in self._streamed:
            found.text(EventType.DELTA, text, storable(data.message_id))

    def _reasoning(self, data: _Data, is_sub_agent: bool, found: Found) -> None:
        if not is_sub_agent and data.reasoning_id not in self._streamed:
            found.text(EventType.REASONING_DELTA, storable(data.content), storable(data.reasoning_id))

    def _turn_end(self, data: _Data, is_sub_agent: bool, found: Found) -> None:
        if not is_sub_agent:
            self._answer.turn_ended()

    def _call_finished(self, data: _Data, is_sub_agent: bool, found: Found) -> None:
        if not is_sub_agent:
            self._answer.requested(is_success=data.outcome == "success")

    def _tool_call(self, data: _Data, is_sub_agent: bool, found: Found) -> None:
        asked = fields.as_json({} if data.arguments is None else data.arguments)
        found.activity(
            ToolCall(call_id=storable(data.tool_call_id), name=storable(data.tool_name), input_json=bounded(asked))
        )

    def _tool_result(self, data: _Data, is_sub_agent: bool, found: Found) -> None:
        result, problem = fields.as_object(data.result), fields.text(fields.as_object(data.error), "message")
        output = problem or fields.text(result, "content")
        is_error = data.success is False or bool(problem)
        found.activity(ToolResult(call_id=storable(data.tool_call_id), output=bounded(output), is_error=is_error))

    def _call_failure(self, data: _Data, is_sub_agent: bool, found: Found) -> None:
        told = [str(each) for each in (data.status_code, storable(data.error_message)) if each]
        self._attempt_error = " ".join(told)

    def _retry(self, data: _Data, is_sub_agent: bool, found: Found) -> None:
        message = f"{data.reason} ({self._attempt_error})" if self._attempt_error else data.reason
        found.activity(Notice(code="api_retry", message=bounded(message)))

    def _info(self, data: _Data, is_sub_agent: bool, found: Found) -> None:
        if data.info_type != _RETRY_INFO:
            found.activity(Notice(code="info", message=bounded(data.message)))

    def _warning(self, data: _Data, is_sub_agent: bool, found: Found) -> None:
        found.activity(Notice(code="warning", message=bounded(data.message)))

    def _compacted(self, data: _Data, is_sub_agent: bool, found: Found) -> None:
        found.activity(Notice(code="compacted", message="the agent compacted its context"))

    def _session_error(self, data: _Data, is_sub_agent: bool, found: Found) -> None:
        if is_sub_agent:
            found.activity(Notice(code="agent_error", message=bounded(data.message)))
        else:
            self._error = data

    # -- judgement

    def _failure_without_result(self, end: ProcessEnd) -> Failure:
        told = self._error
        failure = process_failure(end, detail=f"failed: {storable(told.message)}" if told else "")
        if was_ended_from_outside(end):
            return failure
        if self._resumed_id is not None and _UNKNOWN_SESSION in end.stderr:
            return recoded(failure, FailureCode.LOST)
        return recoded(failure, _code(told) if told else code_of_prose(end.stderr))


def _failure(told: _Data, facts: dict[str, str]) -> Failure:
    if told.status_code is not None:
        facts = facts | {"api_error_status": str(told.status_code)}
    message = storable(told.message) or "the agent failed without a reason"
    return Failure(code=_code(told) or FailureCode.PROCESS_FAILED, message=message, metadata=facts)


def _code(told: _Data) -> FailureCode | None:
    prose = code_of_prose(told.message)
    if prose in (FailureCode.QUOTA_EXHAUSTED, FailureCode.MODEL_UNAVAILABLE):
        return prose  # these two know better than a number
    cut_off = FailureCode.PROVIDER_UNREACHABLE if _CUT_OFF.search(told.message) else None
    return _ERROR_TYPES.get(told.error_type) or code_of_status(told.status_code) or prose or cut_off


def _requests(result: _Event) -> dict[str, str]:
    """Premium requests, the one thing that Copilot counts; it may be a fraction."""
    used = fields.number(fields.as_object(result.usage), "premiumRequests")
    return {"premium_requests": f"{used:g}"} if used else {}
