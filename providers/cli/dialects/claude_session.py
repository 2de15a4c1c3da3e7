"""Claude Code as a process of a whole session: ``claude -p --input-format stream-json --output-format stream-json
--verbose --include-partial-messages``, with ``--permission-prompt-tool stdio`` where it shall ask.

Format: the frames of ``claude_stream_json`` (Claude Code 2.1.197; recorded transcripts under ``tests/``), and on stdin one
JSON object per line: ``user`` messages, each a turn, and control requests and responses. Also spoken by the demo agent.

THE RULE: that of ``claude_stream_json``: the first ``result`` after the turn was sent decides. Every turn repeats
``system/init`` and ends in exactly one ``result``. A turn that the host interrupted ends in one whose
``terminal_reason`` begins with ``aborted_``: the failure is ``interrupted``, and whoever asked for it calls it cancelled.

``total_cost_usd`` counts the process, so a turn's own cost is what it grew by. A line on stdin that is no JSON ends the
process, so every frame is made by an encoder. What is asked (``can_use_tool``) is put to the host. ``AskUserQuestion`` is a
tool whose leave is its answer: the labels chosen, by the question's text, go into its input. So is what an MCP server
asks (``elicitation``). What the agent asks beyond that (hooks, MCP servers of the host) is refused at once, because it
waits for an answer without end.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import msgspec

from providers.cli import elicitation
from providers.cli import json_fields as fields
from providers.cli.claude_turn import ClaudeDecoder
from providers.cli.dialect import Line, Noise, ProcessEnd, Question, Reply, State, Told, TurnContext, Withdrawal
from providers.cli.json_fields import JsonObject
from providers.cli.json_lines import bounded, noise
from providers.cli.no_opening import NoOpening
from runtime.events import Draft, PermissionRequest, Usage
from runtime.provider import Answer, Decision

_COST, _TURNS = "cost_usd", "turns"
_ASKS_USER = "AskUserQuestion"
_decode_object = msgspec.json.Decoder(dict[str, object]).decode


def decoder(context: TurnContext) -> ClaudeConversation:
    """A decoder for one turn."""
    return ClaudeConversation(context)


def opening(
    *, cwd: str, resumed_id: str | None, source_id: str | None = None, settings: Mapping[str, str],
    mcp_servers: Sequence[JsonObject] = (),
) -> NoOpening:  # fmt: skip
    """Claude takes a turn at once; what it resumes or forks stands in its arguments."""
    return NoOpening()


def encode_turn(text: str, state: State) -> bytes:
    """The user message that begins a turn."""
    return _line({"type": "user", "message": {"role": "user", "content": text}})


class ClaudeConversation:
    """One turn, heard and spoken."""

    is_usable = True

    def __init__(self, context: TurnContext) -> None:
        self._turn = ClaudeDecoder(context)
        self._before: JsonObject = dict(context.state)
        self._words: dict[str, Callable[[Answer], JsonObject]] = {}  # how each question is answered

    def decode(self, line: Line) -> Sequence[Told]:
        if b'"control_request"' in line.data or b'"control_cancel_request"' in line.data:
            try:
                frame = _decode_object(line.data)
            except (msgspec.MsgspecError, RecursionError):
                frame = {}
            if frame.get("type") == "control_request":
                return [self._asked(frame, line.end)]
            if frame.get("type") == "control_cancel_request":
                return [Withdrawal(request_id=fields.text(frame, "request_id"))]
        return self._turn.decode(line)

    @property
    def native_id(self) -> str | None:
        return self._turn.native_id

    @property
    def has_ended(self) -> bool:
        return self._turn.has_ended

    @property
    def usage_so_far(self) -> Usage | None:
        return self._turn.usage_so_far

    def conclude(self, end: ProcessEnd) -> Draft:
        draft = self._turn.conclude(end)
        if draft.usage is None or draft.usage.cost_usd is None:
            return draft
        usage = msgspec.structs.replace(draft.usage, cost_usd=self._own(draft.usage.cost_usd))
        return msgspec.structs.replace(draft, usage=usage)

    def interrupt(self) -> bytes | None:
        request = {"subtype": "interrupt"}
        return _line({"type": "control_request", "request_id": f"interrupt-{self._number}", "request": request})

    def answer(self, answer: Answer) -> bytes:
        return _response(answer.request_id, response=self._words[answer.request_id](answer))

    @property
    def state(self) -> State:
        total = self._turn.total_cost_usd
        return {_TURNS: self._number, _COST: self._before.get(_COST, 0.0) if total is None else total}

    @property
    def _number(self) -> int:
        return (fields.count(self._before, _TURNS) or 0) + 1

    def _own(self, total: float) -> float:
        """The part of the process's *total* that is this turn's."""
        before = fields.number(self._before, _COST) or 0.0
        return round(total - before, 9) if total >= before else total

    def _asked(self, frame: JsonObject, end: int) -> Question | Reply | Noise:
        request, request_id = fields.mapping(frame, "request"), fields.text(frame, "request_id")
        subtype = fields.text(request, "subtype")
        if not request_id:
            return noise("unanswered", subtype)
        if subtype == "can_use_tool":
            asked = self._tool(request_id, request)
        elif subtype == "elicitation" and elicitation.is_known(request):
            asked = self._form(request_id, request)
        else:
            return Reply(key=request_id, data=_response(request_id, error=f"{subtype} is not supported by this host"))
        if self.has_ended:  # a job in the background asks, and waits
            denied = Answer(request_id=request_id, decision=Decision.DENY, by="rule", message="The turn is over.")
            return Reply(key=request_id, data=self.answer(denied))
        return Question(request=asked, offset=end, index=0)

    def _tool(self, request_id: str, request: JsonObject) -> PermissionRequest:
        tool, asked = fields.text(request, "tool_name"), fields.mapping(request, "input")
        self._words[request_id] = partial(_leave, asked)
        if tool == _ASKS_USER:
            return elicitation.questions(request_id, asked, asker=tool)
        return PermissionRequest(
            request_id=request_id,
            tool=tool,
            input_json=bounded(fields.as_json(asked)),
            reason=bounded(fields.text(request, "decision_reason") or fields.text(request, "description"), 2048),
        )

    def _form(self, request_id: str, request: JsonObject) -> PermissionRequest:
        self._words[request_id] = partial(elicitation.action, elicitation.mode_of(request))
        server = fields.text(request, "mcp_server_name")
        return elicitation.form(request_id, request, asker=server, schema="requested_schema")


def _leave(asked: JsonObject, answer: Answer) -> JsonObject:
    """What is said to a tool that asked: an allowed call repeats its input, with the answers where it wanted some."""
    if answer.decision is Decision.DENY:
        return {"behavior": "deny", "message": answer.message or "The host did not allow this."}
    chosen = {name: ", ".join(texts) for name, texts in elicitation.texts_of(answer).items()}
    return {"behavior": "allow", "updatedInput": asked if answer.content is None else {**asked, "answers": chosen}}


def _response(request_id: str, *, response: JsonObject | None = None, error: str = "") -> bytes:
    told = {"error": error} if response is None else {"response": response}
    subtype = "error" if response is None else "success"
    return _line({"type": "control_response", "response": {"subtype": subtype, "request_id": request_id, **told}})


def _line(frame: JsonObject) -> bytes:
    return fields.as_json(frame).encode("utf-8", "replace") + b"\n"
