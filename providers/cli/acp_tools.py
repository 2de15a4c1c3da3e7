"""The tool calls of one turn: when a call is told, under which name, and what came of it.

Agents report a call in pieces: first that there will be one, then with what, then what it gives, some without the first
and some without the last. A call is told once, as soon as it is known with what it is called, or when it begins, ends or
needs leave, whichever is first; and its result once.

The protocol has a ``title`` for people and a ``kind`` out of a dozen, and no name. The name that rules can be written for is
the vendor's, where it is in ``_meta``, else the kind.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from providers.cli import json_fields as fields
from providers.cli.found import Found
from providers.cli.json_fields import JsonObject
from providers.cli.json_lines import bounded
from runtime.events import PermissionRequest, ToolCall, ToolResult

_OVER = frozenset({"completed", "failed"})
_REASON_BYTES = 2048
_BARE_INPUT = frozenset({"cwd"})
"""Members of an input that come before the input itself."""


@dataclass(slots=True)
class _Call:
    name: str = ""
    title: str = ""
    asked: JsonObject = field(default_factory=dict)
    output: str = ""
    is_told: bool = False
    is_over: bool = False


class ToolCalls:
    """Collects what a turn says about its tool calls. What is told is bounded; the calls of one turn are few."""

    def __init__(self) -> None:
        self._calls: dict[str, _Call] = {}

    def take(self, update: JsonObject, found: Found) -> bool:
        """A ``tool_call`` or ``tool_call_update``; True for the first word about a call."""
        call_id = bounded(fields.text(update, "toolCallId"), 256)
        is_new = call_id not in self._calls
        call = self._learn(call_id, update)
        status = fields.text(update, "status")
        if status in ("in_progress", *_OVER) or call.asked.keys() - _BARE_INPUT:
            self._tell(call_id, call, found)
        if status in _OVER and not call.is_over:
            call.is_over = True
            found.activity(ToolResult(call_id=call_id, output=call.output, is_error=status == "failed"))
        return is_new

    def question(self, request_id: str, told: JsonObject, found: Found) -> PermissionRequest:
        """The question whether the call in *told* may go on; the call itself is told before."""
        call_id = bounded(fields.text(told, "toolCallId"), 256)
        call = self._learn(call_id, told)
        self._tell(call_id, call, found)
        return PermissionRequest(
            request_id=request_id, tool=_name(call), input_json=_input(call), reason=bounded(call.title, _REASON_BYTES)
        )

    def _learn(self, call_id: str, told: JsonObject) -> _Call:
        call = self._calls.setdefault(call_id, _Call())
        call.name = _vendor_name(told) or call.name or fields.text(told, "kind")
        call.title = fields.text(told, "title") or call.title
        call.asked = fields.mapping(told, "rawInput") or call.asked
        if "content" in told or "rawOutput" in told:  # each update replaces what stood there, also by nothing
            call.output = _output(told)
        return call

    def _tell(self, call_id: str, call: _Call, found: Found) -> None:
        if not call.is_told:
            call.is_told = True
            found.activity(ToolCall(call_id=call_id, name=_name(call), input_json=_input(call)))


def _name(call: _Call) -> str:
    return bounded(call.name or "tool", 256)


def _input(call: _Call) -> str:
    """What the tool is called with, or, from agents that do not say, the title."""
    return bounded(fields.as_json(call.asked or {"title": call.title}))


def _vendor_name(told: JsonObject) -> str:
    meta = fields.mapping(told, "_meta")
    return fields.text(fields.mapping(meta, "claudeCode"), "toolName") or fields.text(meta, "toolName")


def _output(told: JsonObject) -> str:
    """The tool's output as text: what was made for people, else what the tool gave."""
    shown = [text for each in fields.objects(told, "content") if (text := _shown(each))]
    if shown:
        return bounded("\n".join(shown))
    raw = told.get("rawOutput")
    if isinstance(raw, str) or raw is None:
        return bounded(raw or "")
    return bounded(fields.as_json(raw))


def _shown(item: JsonObject) -> str:
    if fields.text(item, "type") == "diff":
        return f"changed {fields.text(item, 'path')}"
    return fields.text(fields.mapping(item, "content"), "text")
