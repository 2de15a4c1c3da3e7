"""The opening of a process that speaks the Agent Client Protocol: who are you, and which session.

``initialize``, ``authenticate`` where the profile names a method, then ``session/new``, or ``session/load`` to go on with
an earlier session, or ``session/fork`` to begin with what was said in one, then its model and mode where the profile names
them.

A load replays the conversation before it is answered; the protocol demands it. An agent that answers without a word of it
has opened an empty session under the old name (Qwen does so for an id it does not know): that is ``lost``, and
not a conversation that silently lost its past. From an agent that has ``session/resume`` only, which replays nothing, this
cannot be told.

Gemini CLI 0.61.0 loads in the wrong order: it begins a new record under the session's id, which empties the old one, and
then reads it. So it is not asked to: ``gemini --resume`` can still go on with what its one-shot form can read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from providers.cli import json_fields as fields
from providers.cli.acp_errors import failure_of, load_failure
from providers.cli.acp_frames import Message, id_text, messages, method_not_found, request
from providers.cli.acp_usage import COSTS_PROCESS
from providers.cli.dialect import Line, Noise, State
from providers.cli.json_fields import JsonObject
from runtime.failure import Failure, FailureCode

PROTOCOL_VERSION = 1
CLIENT: JsonObject = {"name": "iop-node", "title": "iop-node", "version": "0"}
SERVED: JsonObject = {
    "fs": {"readTextFile": False, "writeTextFile": False},
    "terminal": False,
    "elicitation": {"form": {}},
}
"""What an agent may ask of its client: people. It has its own file system and shell, confined as it is itself."""
AUTHENTICATE, MODEL, MODE = "authenticate", "model", "mode"
"""The settings: an id of the agent's ``authMethods``, its name of the model, and of the mode."""
_REPLAYED = frozenset({"user_message_chunk", "agent_message_chunk"})
EMPTIES_AT_LOAD = frozenset({"gemini-cli"})
Step = Callable[[JsonObject], bytes]


class AcpOpening:
    """One opening, step by step: each answer leads to the next request."""

    def __init__(
        self, *, cwd: str, resumed_id: str | None, source_id: str | None = None, settings: Mapping[str, str],
        mcp_servers: Sequence[JsonObject] = (),
    ) -> None:  # fmt: skip
        self._mcp_servers = list(mcp_servers)
        self._cwd, self._resumed_id, self._source_id, self._settings = cwd, resumed_id, source_id, settings
        self._number = 0
        self._step: Step = self._initialized
        self._on_error: Callable[[JsonObject], Failure] = failure_of
        self._agent, self._session = "", ""
        self._offers: JsonObject = {}
        self._replayed = 0
        self._cost: float | None = 0.0 if resumed_id is None and source_id is None else None
        self.is_over = False
        self.failure: Failure | None = None
        hello = {"protocolVersion": PROTOCOL_VERSION, "clientCapabilities": SERVED, "clientInfo": CLIENT}
        self.first = self._ask("initialize", hello, then=self._initialized)

    @property
    def state(self) -> State:
        cost = 0.0 if self._cost is None and self._agent in COSTS_PROCESS else self._cost
        told: JsonObject = {"session": self._session, "agent": self._agent, "next": self._number + 1}
        return {**told, "tokens": {}, "cost_usd": cost}

    def hear(self, line: Line) -> bytes:
        heard = (self._message(each) for each in messages(line.data) if not isinstance(each, Noise))
        return b"".join(heard)

    def _message(self, message: Message) -> bytes:
        if self.is_over or self.failure is not None:
            return b""
        if message.method and message.has_id:
            return method_not_found(message)
        if message.method:
            self._told(fields.mapping(message.params, "update"))
            return b""
        return self._answered(message)

    def _told(self, update: JsonObject) -> None:
        kind = fields.text(update, "sessionUpdate")
        self._replayed += kind in _REPLAYED
        if kind == "usage_update" and (cost := fields.number(fields.mapping(update, "cost"), "amount")) is not None:
            self._cost = cost

    def _answered(self, message: Message) -> bytes:
        number = message.id if isinstance(message.id, int) and not isinstance(message.id, bool) else None
        if number is not None and 0 < number < self._number:
            return b""  # a second answer to an earlier step
        if number != self._number:
            self._fail(
                FailureCode.OUTPUT_INVALID, f"the agent answered under an id nobody asked with ({id_text(message.id)})"
            )
        elif message.error is not None:
            self.failure = self._on_error(message.error)
        else:
            return self._step(message.result)
        return b""

    # -- the steps

    def _initialized(self, result: JsonObject) -> bytes:
        self._agent = fields.text(fields.mapping(result, "agentInfo"), "name")
        if (version := fields.integer(result, "protocolVersion")) != PROTOCOL_VERSION:
            return self._fail(
                FailureCode.UNSUPPORTED, f"the agent speaks version {version} of the protocol, not {PROTOCOL_VERSION}"
            )
        offers = fields.mapping(result, "agentCapabilities")
        if method := self._settings.get(AUTHENTICATE):
            then = lambda _: self._open(offers)  # noqa: E731  # a step with what the one before it told
            return self._ask("authenticate", {"methodId": method}, then=then, on_error=_not_logged_in)
        return self._open(offers)

    def _open(self, offers: JsonObject) -> bytes:
        by_http = fields.mapping(offers, "mcpCapabilities").get("http") is True
        if not by_http and any(server.get("type") == "http" for server in self._mcp_servers):
            return self._fail(FailureCode.UNSUPPORTED, "the agent takes no MCP server at an address, only commands")
        place: JsonObject = {"cwd": self._cwd, "mcpServers": self._mcp_servers}
        if self._source_id is not None:
            return self._fork(offers, {"sessionId": self._source_id, **place})
        if self._resumed_id is None:
            return self._ask("session/new", place, then=self._created)
        if self._agent in EMPTIES_AT_LOAD:
            message = "this agent loses a session's history when it loads it; a session of it ends with its process"
            return self._fail(FailureCode.LOST, message)
        earlier = {"sessionId": self._resumed_id, **place}
        if offers.get("loadSession") is True:
            return self._ask("session/load", earlier, then=self._loaded, on_error=load_failure)
        if "resume" in fields.mapping(offers, "sessionCapabilities"):
            return self._ask("session/resume", earlier, then=self._opened, on_error=load_failure)
        return self._fail(FailureCode.UNSUPPORTED, "the agent cannot go on with an earlier session")

    def _fork(self, offers: JsonObject, source: JsonObject) -> bytes:
        if "fork" not in fields.mapping(offers, "sessionCapabilities"):
            return self._fail(FailureCode.UNSUPPORTED, "the agent cannot fork a session")
        return self._ask("session/fork", source, then=self._created, on_error=load_failure)

    def _created(self, result: JsonObject) -> bytes:
        if not (session := fields.text(result, "sessionId")):
            return self._fail(FailureCode.OUTPUT_INVALID, "the agent made a session without an id")
        self._session = session
        return self._opened(result)

    def _loaded(self, result: JsonObject) -> bytes:
        if not self._replayed:
            return self._fail(FailureCode.LOST, "the agent opened the session without its history")
        return self._opened(result)

    def _opened(self, result: JsonObject) -> bytes:
        self._session = self._session or self._resumed_id or ""
        self._offers = result
        return self._choose_model()

    def _choose_model(self, _: JsonObject | None = None) -> bytes:
        if not (model := self._settings.get(MODEL)):
            return self._choose_mode()
        chosen = self._option(MODEL, model)
        if chosen is None and fields.mapping(self._offers, "models"):  # the way before there were options
            chosen = "session/set_model", {"sessionId": self._session, "modelId": model}
        if chosen is None:
            return self._fail(FailureCode.MODEL_UNAVAILABLE, "the agent does not let its model be chosen")
        return self._ask(*chosen, then=self._choose_mode, on_error=_no_such_model)

    def _choose_mode(self, _: JsonObject | None = None) -> bytes:
        if not (mode := self._settings.get(MODE)):
            return self._finish()
        chosen = self._option(MODE, mode)
        if fields.mapping(self._offers, "modes"):
            chosen = "session/set_mode", {"sessionId": self._session, "modeId": mode}
        if chosen is None:
            return self._fail(FailureCode.UNSUPPORTED, f"the agent has no modes, and is to work in mode {mode!r}")
        return self._ask(*chosen, then=self._finish, on_error=_no_such_mode)

    def _finish(self, _: JsonObject | None = None) -> bytes:
        self.is_over = True
        return b""

    # -- asking and failing

    def _option(self, category: str, value: str) -> tuple[str, JsonObject] | None:
        """The request that sets the agent's option of *category*; None when it has none."""
        for each in fields.objects(self._offers, "configOptions"):
            if category in (fields.text(each, "category"), fields.text(each, "id")):
                chosen: JsonObject = {"configId": fields.text(each, "id"), "value": value}
                return "session/set_config_option", {"sessionId": self._session, **chosen}
        return None

    def _ask(
        self,
        method: str,
        params: JsonObject,
        *,
        then: Step,
        on_error: Callable[[JsonObject], Failure] = failure_of,
    ) -> bytes:
        self._number += 1
        self._step, self._on_error = then, on_error
        return request(self._number, method, params)

    def _fail(self, code: FailureCode, message: str) -> bytes:
        self.failure = Failure(code=code, message=message)
        return b""


def _not_logged_in(error: JsonObject) -> Failure:
    return failure_of(error, default=FailureCode.AUTH_REQUIRED)


def _no_such_model(error: JsonObject) -> Failure:
    return failure_of(error, default=FailureCode.MODEL_UNAVAILABLE)


def _no_such_mode(error: JsonObject) -> Failure:
    return failure_of(error, default=FailureCode.UNSUPPORTED)
