"""Codex as a process of a whole session: ``codex app-server``, JSON-RPC without its ``jsonrpc`` member, a message a line.

Format: codex-cli 0.171.0 (recorded transcripts under ``tests/``; ``codex app-server generate-json-schema`` writes the
protocol down). A process is opened with ``initialize`` and ``thread/start``, ``thread/resume`` or ``thread/fork``; each turn is a
``turn/start``, whose answer names the turn.

THE RULE: ``turn/completed`` of our turn decides by its ``status``: ``completed`` is complete, ``interrupted`` the failure
of that name (whoever asked for it calls it cancelled), anything else an error; and so is an error that answers our
``turn/start``. Without either the turn failed. The exit code never decides.

The text of ``complete`` is the last ``agentMessage``; earlier ones are remarks between tool calls. An ``error``
notification ends nothing. What belongs to another thread or turn is not ours, and passed over.

Usage is the run's own: each ``thread/tokenUsage/updated`` brings the ``last`` request's and the thread's total; the
former are added up whenever the latter has moved, because an update may repeat what was told before.

What the agent asks: leave for a command, a change or an MCP server's tool is put to the host, and so are the questions of
its own tool ``requestUserInput``, answered by their ids, and of an MCP server; everything else is refused at once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar

import msgspec

from providers.cli import json_fields as fields
from providers.cli.codex_questions import Words, put
from providers.cli.codex_rpc import CodexOpening, error_answer, failure_of, request, result_answer, user_input
from providers.cli.dialect import (
    Line,
    ProcessEnd,
    Question,
    Reply,
    State,
    Told,
    TurnContext,
    Withdrawal,
    process_failure,
)
from providers.cli.evidence import code_of_prose, exit_facts, recoded, was_ended_from_outside
from providers.cli.found import Found
from providers.cli.json_fields import JsonObject
from providers.cli.json_lines import bounded, recover
from runtime.events import (
    Activity,
    Draft,
    EventType,
    Notice,
    Plan,
    PlanEntry,
    RateLimit,
    ToolCall,
    ToolResult,
    Usage,
    complete,
    error,
)
from runtime.failure import Failure, FailureCode
from runtime.provider import Answer

_FAILED = frozenset({"failed", "declined", "cancelled"})
_ASKED = {
    "commandExecution": ("command", "cwd"),
    "fileChange": ("changes",),
    "mcpToolCall": ("server", "tool", "arguments"),
    "dynamicToolCall": ("namespace", "tool", "arguments"),
    "webSearch": ("query",),
    "imageView": ("path",),
}
"""Items that are tools, and what of them was asked."""
_TOKENS = {
    "input_tokens": "inputTokens",
    "output_tokens": "outputTokens",
    "cache_read_tokens": "cachedInputTokens",
    "cache_write_tokens": "cacheWriteInputTokens",
    "reasoning_tokens": "reasoningOutputTokens",
}
_QUIET_PREFIXES = (
    "thread/",
    "remoteControl/",
    "mcpServer/",
    "account/",
    "skills/",
    "hook/",
    "app/",
    "turn/diff/",
    "serverRequest/",
)
_decode_object = msgspec.json.Decoder(dict[str, object]).decode


def decoder(context: TurnContext) -> CodexConversation:
    """A decoder for one turn; its state names the thread."""
    return CodexConversation(context)


def opening(
    *, cwd: str, resumed_id: str | None, source_id: str | None = None, settings: Mapping[str, str],
    mcp_servers: Sequence[JsonObject] = (),
) -> CodexOpening:  # fmt: skip
    """The handshake of a fresh process."""
    return CodexOpening(cwd=cwd, resumed_id=resumed_id, source_id=source_id)


def encode_turn(text: str, state: State) -> bytes:
    """The request that begins a turn in the thread of *state*."""
    number, thread = fields.count(dict(state), "next") or 0, fields.text(dict(state), "thread")
    return request(number, "turn/start", {"threadId": thread, "input": user_input(text)})


class CodexConversation:
    """One turn, heard and spoken."""

    is_usable = True

    def __init__(self, context: TurnContext) -> None:
        state: JsonObject = dict(context.state)
        self._thread, self._total = fields.text(state, "thread"), fields.count(state, "total_tokens")
        self._number = fields.count(state, "next") or 0
        self._turn = ""
        self._answer = ""
        self._streamed: set[str] = set()
        self._called: set[str] = set()
        self._steered: dict[str, bool] = {}
        self._questions: dict[str, tuple[object, Words]] = {}
        """By name: a request's id as the agent wrote it, and how it is answered."""
        self._usage: dict[str, int] = {}
        self._end: JsonObject | None = None
        self._last_error: JsonObject = {}

    @property
    def native_id(self) -> str | None:
        return fields.as_identifier(self._thread)

    @property
    def has_ended(self) -> bool:
        return self._end is not None

    def decode(self, line: Line) -> Sequence[Told]:
        try:
            return self._message(_decode_object(line.data), line.end)
        except (msgspec.MsgspecError, RecursionError):
            told: list[Told] = []
            for each in recover(line.data):
                told += self._message(each, line.end) if isinstance(each, dict) else [each]
            return told

    @property
    def usage_so_far(self) -> Usage | None:
        return self._own_usage()

    def conclude(self, end: ProcessEnd) -> Draft:
        usage, facts = self._own_usage(), exit_facts(end)
        if self._end is None:
            return error(self._failure_without_end(end), usage=usage)
        status = fields.text(self._end, "status")
        if status == "completed":
            return complete(self._answer, usage=usage, metadata=facts)
        if status == "interrupted":
            message = "the turn was interrupted, though not by this host"
            return error(Failure(code=FailureCode.INTERRUPTED, message=message, metadata=facts), usage=usage)
        return error(failure_of(fields.mapping(self._end, "error"), facts), usage=usage)

    def interrupt(self) -> bytes | None:
        if not self._turn:
            return None
        return request(f"interrupt {self._number}", "turn/interrupt", {"threadId": self._thread, "turnId": self._turn})

    def steer(self, text: str, name: str) -> bytes | None:
        if not self._turn or self.has_ended:
            return None
        told: JsonObject = {"threadId": self._thread, "expectedTurnId": self._turn, "input": user_input(text)}
        return request(name, "turn/steer", told)

    @property
    def steered(self) -> Mapping[str, bool]:
        return self._steered

    def answer(self, answer: Answer) -> bytes:
        raw, words = self._questions[answer.request_id]
        return result_answer(raw, words(answer))

    @property
    def state(self) -> State:
        return {"thread": self._thread, "next": self._number + 1, "total_tokens": self._total}

    # -- messages

    def _message(self, message: JsonObject, end: int) -> Sequence[Told]:
        found, method = Found(end), fields.text(message, "method")
        if not method:
            self._response(message, found)
        elif "id" in message:
            return [self._asked(method, message, end)]
        elif method == "serverRequest/resolved":  # also after our own answer, when nobody waits any more
            raw = fields.mapping(message, "params").get("requestId")
            return [Withdrawal(request_id=self._name(raw))]
        else:
            self._notification(method, fields.mapping(message, "params"), found)
        return found

    def _response(self, message: JsonObject, found: Found) -> None:
        if isinstance(name := message.get("id"), str):
            self._steered[name] = "error" not in message  # interrupts too: nobody looks those up
        if fields.integer(message, "id") != self._number:
            return
        if isinstance(message.get("error"), dict):
            self._end = self._end or {"status": "failed", "error": message["error"]}
        else:
            turn = fields.mapping(fields.mapping(message, "result"), "turn")
            self._turn = self._turn or fields.text(turn, "id")

    def _notification(self, method: str, params: JsonObject, found: Found) -> None:
        if self._is_of_others(params):
            return
        if (handler := self._methods.get(method)) is not None:
            if not self.has_ended:
                handler(self, params, found)
            elif method == "turn/completed":
                found.noise("after_terminal", method)
        elif not method.startswith(_QUIET_PREFIXES) and not method.endswith(("Delta", "/delta", "PartAdded")):
            found.noise("unknown_type", method)

    def _is_of_others(self, params: JsonObject) -> bool:
        """It names another thread, or, once ours is known, another turn."""
        thread, turn = fields.text(params, "threadId"), fields.text(params, "turnId")
        return bool(thread and thread != self._thread) or bool(self._turn and turn and turn != self._turn)

    def _asked(self, method: str, message: JsonObject, end: int) -> Question | Reply:
        raw = message["id"]
        key, params, request_id = fields.as_json(raw), fields.mapping(message, "params"), self._name(raw)
        known = None if self.has_ended or self._is_of_others(params) else put(method, request_id, params)
        if known is None:
            return Reply(key=key, data=error_answer(raw, f"{method} is not supported by this host"))
        asked, words = known
        self._questions[request_id] = raw, words
        return Question(request=asked, offset=end, index=0)

    def _name(self, raw: object) -> str:
        """What a request of the agent's is called here."""
        return f"{self._number}.{fields.as_json(raw).strip(chr(34))}"

    # -- notifications

    def _turn_started(self, params: JsonObject, found: Found) -> None:
        self._turn = self._turn or fields.text(fields.mapping(params, "turn"), "id")

    def _turn_completed(self, params: JsonObject, found: Found) -> None:
        turn = fields.mapping(params, "turn")
        if self._turn in ("", fields.text(turn, "id")):
            self._end = turn

    def _text(self, params: JsonObject, found: Found) -> None:
        self._streamed.add(item := fields.text(params, "itemId"))
        found.text(EventType.DELTA, fields.text(params, "delta"), item)

    def _thought(self, params: JsonObject, found: Found) -> None:
        self._streamed.add(item := fields.text(params, "itemId"))
        found.text(EventType.REASONING_DELTA, fields.text(params, "delta"), item)

    def _tokens(self, params: JsonObject, found: Found) -> None:
        usage = fields.mapping(params, "tokenUsage")
        total = fields.count(fields.mapping(usage, "total"), "totalTokens")
        if total is None or total == self._total:
            return
        self._total, last = total, fields.mapping(usage, "last")
        for name, key in _TOKENS.items():
            if (count := fields.count(last, key)) is not None:
                self._usage[name] = self._usage.get(name, 0) + count

    def _limits(self, params: JsonObject, found: Found) -> None:
        told = fields.mapping(params, "rateLimits")
        reached = fields.text(told, "rateLimitReachedType")
        for name in ("primary", "secondary"):
            if window := fields.mapping(told, name):
                found.activity(_window(name, window, reached))

    def _error(self, params: JsonObject, found: Found) -> None:
        told = fields.mapping(params, "error")
        is_retry = params.get("willRetry") is True
        if not is_retry:
            self._last_error = told
        message = " ".join(filter(None, (fields.text(told, "message"), fields.text(told, "additionalDetails"))))
        found.activity(Notice(code="api_retry" if is_retry else "agent_error", message=bounded(message)))

    def _warning(self, params: JsonObject, found: Found) -> None:
        message = fields.text(params, "message") or fields.text(params, "summary")
        found.activity(Notice(code="warning", message=bounded(message)))

    def _plan(self, params: JsonObject, found: Found) -> None:
        steps = fields.objects(params, "plan")
        entries = tuple(PlanEntry(text=fields.text(each, "step"), status=_step(each)) for each in steps)
        found.activity(Plan(entries=entries))

    # -- items

    def _item_started(self, params: JsonObject, found: Found) -> None:
        item = fields.mapping(params, "item")
        if fields.text(item, "type") in _ASKED:
            self._call(item, found)

    def _item_completed(self, params: JsonObject, found: Found) -> None:
        item = fields.mapping(params, "item")
        kind, name = fields.text(item, "type"), fields.text(item, "id")
        if kind == "agentMessage":
            self._answer = fields.text(item, "text")
            self._whole(EventType.DELTA, self._answer, name, found)
        elif kind == "reasoning":
            self._whole(EventType.REASONING_DELTA, "\n\n".join(fields.texts(item, "summary")), name, found)
        elif kind in _ASKED:
            self._call(item, found)
            found.activity(_tool_result(name, item))
        elif kind == "contextCompaction":
            found.activity(Notice(code="compacted", message="the agent compacted its context"))

    def _whole(self, kind: EventType, text: str, item: str, found: Found) -> None:
        """A text that comes complete, unless it was streamed before."""
        if item not in self._streamed:
            found.text(kind, text, item)

    def _call(self, item: JsonObject, found: Found) -> None:
        kind, name = fields.text(item, "type"), fields.text(item, "id")
        if name not in self._called:
            self._called.add(name)
            asked = {key: item[key] for key in _ASKED[kind] if item.get(key) is not None}
            found.activity(ToolCall(call_id=name, name=kind, input_json=bounded(fields.as_json(asked))))

    _methods: ClassVar[dict[str, Callable[[CodexConversation, JsonObject, Found], None]]] = {
        "turn/started": _turn_started,
        "turn/completed": _turn_completed,
        "turn/plan/updated": _plan,
        "item/agentMessage/delta": _text,
        "item/reasoning/summaryTextDelta": _thought,
        "item/reasoning/textDelta": _thought,
        "item/started": _item_started,
        "item/completed": _item_completed,
        "thread/tokenUsage/updated": _tokens,
        "account/rateLimits/updated": _limits,
        "error": _error,
        "warning": _warning,
        "configWarning": _warning,
        "deprecationNotice": _warning,
        "guardianWarning": _warning,
    }

    # -- judgement

    def _own_usage(self) -> Usage | None:
        return Usage(**self._usage) if self._usage else None

    def _failure_without_end(self, end: ProcessEnd) -> Failure:
        told = fields.text(self._last_error, "message")
        failure = process_failure(end, detail=f"failed: {told}" if told else "")
        if was_ended_from_outside(end):
            return failure  # what it said before is no reason
        reason = failure_of(self._last_error, {}).code if told else code_of_prose(end.stderr)
        return recoded(failure, reason)


def _step(step: JsonObject) -> str:
    return {"inProgress": "in_progress"}.get(status := fields.text(step, "status"), status)


def _window(name: str, window: JsonObject, reached: str) -> Activity:
    minutes = fields.count(window, "windowDurationMins")
    return RateLimit(
        status="rejected" if reached else "allowed",
        window=name if minutes is None else f"{name}_{minutes}m",
        used_percent=fields.number(window, "usedPercent"),
        resets_at=fields.integer(window, "resetsAt"),
    )


def _tool_result(name: str, item: JsonObject) -> ToolResult:
    problem = item.get("error")
    told = problem if isinstance(problem, str) else fields.text(fields.mapping(item, "error"), "message")
    blocks = fields.objects(fields.mapping(item, "result"), "content")
    output = fields.text(item, "aggregatedOutput") or told or "\n".join(fields.text(each, "text") for each in blocks)
    is_error = fields.text(item, "status") in _FAILED or bool(told) or bool(fields.integer(item, "exitCode"))
    return ToolResult(call_id=name, output=bounded(output), is_error=is_error)
