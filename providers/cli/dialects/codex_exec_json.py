"""Codex, ``codex exec --json``, one turn.

Format: one JSON object per line, as printed by codex-cli 0.171.0 (recorded transcripts under ``tests/``) and
described by its exec events (``thread.*``, ``turn.*``, ``item.*``, ``error``).

THE RULE: the first ``turn.completed`` is ``complete``, the first ``turn.failed`` is an error, and on a resume a
``thread.started`` with another id than the one asked for is ``lost`` at once, because Codex answers a
bad id with a silent new thread: the history is gone, and what follows would answer another conversation. The exit
code never decides and is noted in the metadata when it is not 0. Without any of the three the run failed.

The text of ``complete`` is the last ``agent_message``; earlier ones are remarks between tool calls. Codex exec
streams no partial text: an item speaks once, when it is completed. A top-level ``error`` and an item of type
``error`` end nothing ("Reconnecting... 1/2", "Model metadata not found"); they are notices.

Usage of ``turn.completed`` counts the whole thread. For a new thread that is the run's own. For a resumed one it
includes all earlier turns, whose total this stream does not tell, so usage is absent and the thread's totals are in
the metadata (``thread_input_tokens``, ``thread_output_tokens``) for a host that kept the last ones.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar

import msgspec

from providers.cli import json_fields as fields
from providers.cli.dialect import Line, Noise, ProcessEnd, TurnContext, process_failure
from providers.cli.evidence import (
    code_of_prose,
    exit_facts,
    is_unknown_session,
    recoded,
    was_ended_from_outside,
)
from providers.cli.found import Found
from providers.cli.json_fields import JsonObject, storable
from providers.cli.json_lines import bounded, recover
from runtime.events import (
    Draft,
    EventType,
    Notice,
    Plan,
    PlanEntry,
    ToolCall,
    ToolResult,
    Usage,
    complete,
    error,
)
from runtime.failure import Failure, FailureCode

_FAILED = frozenset({"failed", "declined", "cancelled"})


def decoder(context: TurnContext) -> CodexDecoder:
    """A decoder for one run."""
    return CodexDecoder(context)


# What is read of an event. A field of another type than expected counts as not told (`lenient`), never as a lost event.


class _Item(msgspec.Struct, gc=False):
    id: str = ""
    type: str = ""
    text: str = ""
    message: str = ""
    command: str = ""
    aggregated_output: str = ""
    exit_code: int | None = None
    status: str = ""
    changes: object = None
    server: str = ""
    tool: str = ""
    arguments: object = None
    result: object = None
    error: object = None
    query: str = ""
    items: object = None


class _Event(msgspec.Struct, gc=False):
    type: str = ""
    thread_id: str = ""
    item: _Item | None = None
    message: str = ""
    error: object = None
    usage: object = None

    @classmethod
    def of(cls, source: JsonObject) -> _Event:
        """The event in a line that the typed decoder refuses."""
        event = fields.lenient(source, cls)
        if event.item is None and (item := fields.mapping(source, "item")):
            event.item = fields.lenient(item, _Item)
        return event


_decode_event = msgspec.json.Decoder(_Event).decode


class CodexDecoder:
    """Decodes the events of one turn."""

    def __init__(self, context: TurnContext) -> None:
        self._resumed_id = context.resumed_id
        self._native_id: str | None = None
        self._is_other_thread = False
        self._answer = ""
        self._called: set[str] = set()
        self._last_error: JsonObject = {}
        self._terminal: _Event | None = None

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
            return error(self._failure_without_terminal(end))
        facts = exit_facts(end)
        if self._is_other_thread:
            return error(self._history_gone(facts))
        usage, totals = self._usage(self._terminal.usage)
        if self._terminal.type == "turn.completed":
            return complete(self._answer, usage=usage, metadata=facts | totals)
        return error(_failure(_told(self._terminal), facts), usage=usage)

    # -- events

    def _event(self, event: _Event, found: Found) -> None:
        handler = self._events.get(event.type)
        if self._terminal is not None:
            found.noise("after_terminal", event.type or "an event without type")
        elif handler is None:
            found.noise("unknown_type", event.type or "an event without type")
        else:
            handler(self, event, found)

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

    def _thread_started(self, event: _Event, found: Found) -> None:
        started = fields.as_identifier(event.thread_id)
        if self._resumed_id in (None, started):
            self._native_id = started
        else:
            self._is_other_thread, self._terminal = True, event

    def _take_terminal(self, event: _Event, found: Found) -> None:
        self._terminal = event

    def _error(self, event: _Event, found: Found) -> None:
        """Codex tells every retry so, and once more the reason right before ``turn.failed``."""
        self._last_error = _told(event)
        message = fields.text(self._last_error, "message")
        code = "api_retry" if message.startswith("Reconnecting") else "agent_error"
        found.activity(Notice(code=code, message=bounded(message)))

    # -- items

    def _item(self, event: _Event, found: Found) -> None:
        item = event.item or _Item()
        if "\0" in item.id:  # the one invalid character that msgspec lets through
            item.id = storable(item.id)
        handler = self._items.get(item.type)
        if handler is None:
            found.noise("unknown_type", f"{event.type}/{item.type}")
        else:
            handler(self, item, event.type == "item.completed", found)

    def _message(self, item: _Item, is_completed: bool, found: Found) -> None:
        if is_completed:
            self._answer = storable(item.text)
            found.text(EventType.DELTA, self._answer, item.id)

    def _reasoning(self, item: _Item, is_completed: bool, found: Found) -> None:
        if is_completed:
            found.text(EventType.REASONING_DELTA, storable(item.text), item.id)

    def _warning(self, item: _Item, is_completed: bool, found: Found) -> None:
        if is_completed:
            found.activity(Notice(code="warning", message=bounded(item.message)))

    def _todo_list(self, item: _Item, is_completed: bool, found: Found) -> None:
        found.activity(_plan(item))

    def _tool(self, item: _Item, is_completed: bool, found: Found) -> None:
        if item.id not in self._called:
            self._called.add(item.id)
            found.activity(ToolCall(call_id=item.id, name=item.type, input_json=bounded(_asked(item))))
        if is_completed:
            found.activity(_tool_result(item))

    _events: ClassVar[dict[str, Callable[[CodexDecoder, _Event, Found], None]]] = {
        "thread.started": _thread_started,
        "turn.started": lambda self, event, found: None,
        "turn.completed": _take_terminal,
        "turn.failed": _take_terminal,
        "error": _error,
        "item.started": _item,
        "item.updated": _item,
        "item.completed": _item,
    }
    _items: ClassVar[dict[str, Callable[[CodexDecoder, _Item, bool, Found], None]]] = {
        "agent_message": _message,
        "reasoning": _reasoning,
        "error": _warning,
        "todo_list": _todo_list,
        "command_execution": _tool,
        "file_change": _tool,
        "mcp_tool_call": _tool,
        "web_search": _tool,
    }

    # -- judgement

    def _usage(self, usage_told: object) -> tuple[Usage | None, dict[str, str]]:
        """The run's usage, or what is known of the thread's where the run's cannot be told."""
        told = fields.as_object(usage_told)
        if self._resumed_id is not None:
            totals = {key: fields.count(told, key) for key in ("input_tokens", "output_tokens")}
            return None, {f"thread_{key}": str(value) for key, value in totals.items() if value is not None}
        usage = Usage(
            input_tokens=fields.count(told, "input_tokens"),
            output_tokens=fields.count(told, "output_tokens"),
            cache_read_tokens=fields.count(told, "cached_input_tokens"),
            cache_write_tokens=fields.count(told, "cache_write_input_tokens"),
            reasoning_tokens=fields.count(told, "reasoning_output_tokens"),
        )
        return (usage if usage != Usage() else None), {}

    def _history_gone(self, facts: dict[str, str]) -> Failure:
        message = "the agent began a new thread instead of resuming: the conversation does not exist any more"
        return Failure(code=FailureCode.LOST, message=message, metadata=facts)

    def _failure_without_terminal(self, end: ProcessEnd) -> Failure:
        told = fields.text(self._last_error, "message")
        failure = process_failure(end, detail=f"failed: {told}" if told else "")
        if was_ended_from_outside(end):
            return failure  # what it said before is no reason
        if self._resumed_id is not None and is_unknown_session(end.stderr):
            return recoded(failure, FailureCode.LOST)
        reason = _failure(self._last_error, dict(failure.metadata))
        code = reason.code if told else code_of_prose(end.stderr)
        return Failure(code=code or failure.code, message=failure.message, metadata=reason.metadata)


def _failure(told: JsonObject, facts: dict[str, str]) -> Failure:
    """The failure of an error object; newer ones carry a ``type`` and the reset of a spent usage window."""
    message = fields.text(told, "message")
    code = code_of_prose(f"{fields.text(told, 'type')} {message}") or FailureCode.PROCESS_FAILED
    if code in (FailureCode.QUOTA_EXHAUSTED, FailureCode.RATE_LIMITED):
        resets = {
            "resets_at": fields.count(told, "resets_at"),
            "retry_after_s": fields.count(told, "resets_in_seconds"),
        }
        facts = facts | {key: str(value) for key, value in resets.items() if value is not None}
    return Failure(code=code, message=message or "the turn failed without a reason", metadata=facts)


def _told(event: _Event) -> JsonObject:
    """What an event says about an error: an object of its own, or the event's message."""
    return fields.as_object(event.error) or {"message": event.message}


def _asked(item: _Item) -> str:
    """What a tool was asked to do, as JSON."""
    match item.type:
        case "command_execution":
            asked: JsonObject = {"command": item.command}
        case "file_change":
            asked = {"changes": item.changes}
        case "mcp_tool_call":
            asked = {"server": item.server, "tool": item.tool, "arguments": item.arguments}
        case _:
            asked = {"query": item.query}
    return fields.as_json(asked)


def _tool_result(item: _Item) -> ToolResult:
    output, problem = item.aggregated_output, ""
    if item.error is not None or item.result is not None:  # a tool of an MCP server
        problem = item.error if isinstance(item.error, str) else fields.text(fields.as_object(item.error), "message")
        blocks = fields.objects(fields.as_object(item.result), "content")
        output = problem or "\n".join(fields.text(each, "text") for each in blocks)
    is_error = item.status in _FAILED or bool(problem) or bool(item.exit_code)
    return ToolResult(call_id=item.id, output=bounded(output), is_error=is_error)


def _plan(item: _Item) -> Plan:
    """Codex ticks steps off; which one is in work it does not say."""
    steps = fields.objects({"items": item.items}, "items")
    return Plan(
        entries=tuple(
            PlanEntry(
                text=fields.text(step, "text"), status="completed" if step.get("completed") is True else "pending"
            )
            for step in steps
        )
    )
