"""Speaking to ``codex app-server``: its requests and answers, the opening of a process, and what its errors mean."""

from __future__ import annotations

import msgspec

from providers.cli import json_fields as fields
from providers.cli.dialect import Line, State
from providers.cli.evidence import code_of_prose, code_of_status, is_unknown_session
from providers.cli.json_fields import JsonObject
from runtime.failure import Failure, FailureCode

CLIENT = "iop-node"
_INITIALIZE, _THREAD, _FIRST_TURN = 1, 2, 3
_METHOD_NOT_FOUND = -32601
_decode_object = msgspec.json.Decoder(dict[str, object]).decode

_ERRORS = {
    "contextWindowExceeded": FailureCode.BUDGET_EXHAUSTED,
    "sessionBudgetExceeded": FailureCode.BUDGET_EXHAUSTED,
    "usageLimitExceeded": FailureCode.QUOTA_EXHAUSTED,
    "rateLimitExceeded": FailureCode.RATE_LIMITED,
    "flexUnavailable": FailureCode.PROVIDER_OVERLOADED,
    "serverOverloaded": FailureCode.PROVIDER_OVERLOADED,
    "policyCapacityUnavailable": FailureCode.PROVIDER_OVERLOADED,
    "internalServerError": FailureCode.PROVIDER_OVERLOADED,
    "modelNotFound": FailureCode.MODEL_UNAVAILABLE,
    "cyberPolicy": FailureCode.REFUSED,
    "bioPolicy": FailureCode.REFUSED,
    "misalignmentPolicyViolation": FailureCode.REFUSED,
    "inferenceHookDenied": FailureCode.REFUSED,
    "unauthorized": FailureCode.AUTH_REQUIRED,
    "badRequest": FailureCode.INVALID_REQUEST,
}
"""``codexErrorInfo``, where it is a word."""


def request(number: int | str, method: str, params: JsonObject) -> bytes:
    """A request that is answered under *number*."""
    return _line({"id": number, "method": method, "params": params})


def result_answer(request_id: object, result: JsonObject) -> bytes:
    """The answer to a request of the agent's."""
    return _line({"id": request_id, "result": result})


def error_answer(request_id: object, message: str) -> bytes:
    """The refusal of a request of the agent's."""
    return _line({"id": request_id, "error": {"code": _METHOD_NOT_FOUND, "message": message}})


def user_input(text: str) -> list[JsonObject]:
    """*text* as the input of a turn."""
    return [{"type": "text", "text": text}]


def failure_of(told: JsonObject, facts: dict[str, str]) -> Failure:
    """The failure that an error object stands for: by its word, its HTTP status, then its prose."""
    message, info = fields.text(told, "message"), told.get("codexErrorInfo")
    code = _ERRORS.get(info) if isinstance(info, str) else code_of_status(_status(info))
    code = code or code_of_prose(message) or FailureCode.PROCESS_FAILED
    return Failure(code=code, message=message or "the turn failed without a reason", metadata=facts)


def _status(info: object) -> int | None:
    """The status in ``{"httpConnectionFailed": {"httpStatusCode": 401}}`` and its like."""
    inner = next(iter(info.values()), None) if isinstance(info, dict) else None
    return fields.integer(inner, "httpStatusCode") if isinstance(inner, dict) else None


class CodexOpening:
    """``initialize``, then ``thread/start``, ``thread/resume`` or ``thread/fork``; over when the thread is named."""

    def __init__(self, *, cwd: str, resumed_id: str | None, source_id: str | None = None) -> None:
        self._cwd, self._resumed_id, self._source_id = cwd, resumed_id, source_id
        self._thread = ""
        self.failure: Failure | None = None
        client: JsonObject = {"name": CLIENT, "title": CLIENT, "version": "0"}
        self.first = request(_INITIALIZE, "initialize", {"clientInfo": client})

    @property
    def is_over(self) -> bool:
        return bool(self._thread)

    @property
    def state(self) -> State:
        fresh = {} if self._resumed_id or self._source_id else {"total_tokens": 0}
        return {"thread": self._thread, "next": _FIRST_TURN, **fresh}

    def hear(self, line: Line) -> bytes:
        try:
            message = _decode_object(line.data)
        except (msgspec.MsgspecError, RecursionError):
            return b""
        if "method" in message:
            return error_answer(message["id"], "not during the opening") if "id" in message else b""
        number = fields.integer(message, "id")
        if number in (_INITIALIZE, _THREAD) and isinstance(message.get("error"), dict):
            self._fail(fields.mapping(message, "error"))
        elif number == _INITIALIZE:
            return _line({"method": "initialized", "params": {}}) + self._open_thread()
        elif number == _THREAD:
            self._opened(fields.mapping(fields.mapping(message, "result"), "thread"))
        return b""

    def _open_thread(self) -> bytes:
        if self._source_id is not None:
            return request(_THREAD, "thread/fork", {"threadId": self._source_id, "cwd": self._cwd})
        if self._resumed_id is None:
            return request(_THREAD, "thread/start", {"cwd": self._cwd})
        return request(_THREAD, "thread/resume", {"threadId": self._resumed_id, "cwd": self._cwd})

    def _opened(self, thread: JsonObject) -> None:
        started = fields.text(thread, "id")
        if not started or self._resumed_id not in (None, started):
            message = "the agent opened another thread than the one to resume: the conversation does not exist any more"
            code = FailureCode.OUTPUT_INVALID if self._resumed_id is None else FailureCode.LOST
            self.failure = Failure(code=code, message=message if started else "the agent named no thread")
        else:
            self._thread = started

    def _fail(self, told: JsonObject) -> None:
        if (self._resumed_id or self._source_id) and is_unknown_session(fields.text(told, "message")):
            self.failure = Failure(code=FailureCode.LOST, message=fields.text(told, "message"))
        else:
            self.failure = failure_of(told, {})


def _line(frame: JsonObject) -> bytes:
    return fields.as_json(frame).encode("utf-8", "replace") + b"\n"
