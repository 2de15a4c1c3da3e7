"""What ``session/update`` tells of a turn: text, thinking, tool calls, plans, usage.

Copilot has no errors: what its model's API refused it says as text, in one piece (``Info: Request failed …`` before it
tries again, ``Error: …`` at the end), and ends the turn as if nothing had been. Such pieces of Copilot's are held back as
notices; whether the last one was the turn's failure is decided at the end.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import ClassVar

from providers.cli import json_fields as fields
from providers.cli.acp_tools import ToolCalls
from providers.cli.acp_usage import TurnUsage
from providers.cli.found import Found
from providers.cli.json_fields import JsonObject
from providers.cli.json_lines import bounded
from runtime.events import EventType, Notice, Plan, PlanEntry, RateLimit

CHUNKS = {"agent_message_chunk": EventType.DELTA, "agent_thought_chunk": EventType.REASONING_DELTA}
_QUIET = frozenset({
    "user_message_chunk", "available_commands_update", "current_mode_update", "config_option_update",
    "session_info_update",
})  # fmt: skip
_SPEAKS_ERRORS = frozenset({"Copilot"})
_SPOKEN_RETRY = re.compile(r"Info: Request failed\b.*\bRetrying", re.DOTALL)
_SPOKEN_ERROR = re.compile(r"Error: \S.{8}", re.DOTALL)


class Updates:
    """Collects the updates of one turn of *agent*, as ``initialize`` named it."""

    def __init__(self, agent: str, usage: TurnUsage) -> None:
        self._agent, self._usage = agent, usage
        self.tools = ToolCalls()
        self.spoken_error = ""
        self._parts: list[str] = []
        self._earlier = ""
        self._number = 1
        self._is_after_tool = False

    @property
    def has_answer(self) -> bool:
        """Anything was said that is certainly not the CLI's own."""
        return bool(self._parts or self._earlier)

    @property
    def answer(self) -> str:
        """What the agent said after its last tool call, or, if that is nothing, before it."""
        return "".join(self._parts) + self.spoken_error or self._earlier

    def take(self, update: JsonObject, found: Found) -> None:
        """One update, whole."""
        kind = fields.text(update, "sessionUpdate")
        if kind in CHUNKS:
            self._chunk(CHUNKS[kind], update, found)
        elif handler := self._kinds.get(kind):
            handler(self, update, found)
        elif kind not in _QUIET:
            found.noise("unknown_type", f"session/update {kind}")

    def say(self, kind: EventType, text: str, message_id: str, found: Found) -> None:
        """A piece of text."""
        if not text or (self._agent in _SPEAKS_ERRORS and kind is EventType.DELTA and self._is_of_the_cli(text, found)):
            return
        if self._is_after_tool:
            self._is_after_tool = False
            self._number += 1
            self._earlier, self._parts = self.answer, []
        if kind is EventType.DELTA:
            self.spoken_error = ""
            self._parts.append(text)
        found.text(kind, text, message_id or f"message-{self._number}")

    def _is_of_the_cli(self, text: str, found: Found) -> bool:
        if _SPOKEN_RETRY.match(text):
            found.activity(Notice(code="api_retry", message=bounded(text)))
        elif _SPOKEN_ERROR.match(text):
            self.spoken_error = text
            found.activity(Notice(code="agent_error", message=bounded(text)))
        else:
            return False
        return True

    def _chunk(self, kind: EventType, update: JsonObject, found: Found) -> None:
        meta, content = fields.mapping(update, "_meta"), fields.mapping(update, "content")
        self._usage.take_piece(meta)
        if fields.text(content, "type") != "text":
            found.noise("unknown_content", fields.text(content, "type"))
        elif fields.text(fields.mapping(meta, "claudeCode"), "parentToolUseId"):
            found.activity(Notice(code="subagent", message=bounded(fields.text(content, "text"))))
        else:
            self.say(kind, fields.text(content, "text"), fields.text(update, "messageId"), found)

    def _tool(self, update: JsonObject, found: Found) -> None:
        self._usage.calls_tools = True
        if self.tools.take(update, found):
            self._is_after_tool = True

    def _plan(self, update: JsonObject, found: Found) -> None:
        entries = fields.objects(update, "entries")
        told = tuple(
            PlanEntry(text=bounded(fields.text(each, "content")), status=fields.text(each, "status") or "pending")
            for each in entries
        )
        found.activity(Plan(entries=told))

    def _tokens(self, update: JsonObject, found: Found) -> None:
        self._usage.take_update(update)
        if limit := fields.mapping(fields.mapping(update, "_meta"), "_claude/rateLimit"):
            found.activity(_window(limit))

    _kinds: ClassVar[dict[str, Callable[[Updates, JsonObject, Found], None]]] = {
        "tool_call": _tool,
        "tool_call_update": _tool,
        "plan": _plan,
        "usage_update": _tokens,
    }


def _window(info: JsonObject) -> RateLimit:
    share = fields.number(info, "utilization")
    return RateLimit(
        status=fields.text(info, "status") or "unknown",
        window=fields.text(info, "rateLimitType"),
        used_percent=None if share is None else share * 100,
        resets_at=fields.integer(info, "resetsAt"),
    )
