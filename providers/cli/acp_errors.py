"""What an agent's JSON-RPC error means: by its code, by the HTTP status in it, then by its words.

The protocol gives two codes a meaning (-32000: log in first; -32002: there is no such thing). For what the model's API
refused every vendor has found a place of its own, seen in recorded transcripts: Gemini's code *is* the HTTP status and its
message the API's JSON; Qwen writes the status before the words in ``data.details``; opencode names ``APIError`` in
``data.errorName`` and has the API's words in its message; Claude's bridge has words only.
"""

from __future__ import annotations

import re

import msgspec

from providers.cli import json_fields as fields
from providers.cli.evidence import code_of_prose, code_of_status, is_unknown_session
from providers.cli.json_fields import JsonObject
from runtime.failure import Failure, FailureCode

AUTH_REQUIRED, RESOURCE_NOT_FOUND, INVALID_PARAMS = -32000, -32002, -32602
_HTTP = range(400, 600)
_LEADING_STATUS = re.compile(r"\s*(\d{3})\b")
_HTTP_STATUS = re.compile(r"\b(?:HTTP|Last error:) (\d{3})\b")
_MODEL_NAMED = re.compile(r": model: \S+$")  # all that Anthropic says about one that it does not have
_ANY_STATUS = re.compile(r"\b([45]\d\d)\b")
_UNKNOWN_SESSION = re.compile(
    r"\bsession\b.{0,140}\bnot found|invalid session identifier|no previous sessions found", re.IGNORECASE
)
_OWN_WORDS = (
    (FailureCode.QUOTA_EXHAUSTED, re.compile(r"exhausted your (?:daily )?(?:quota|capacity)")),
    (FailureCode.MODEL_UNAVAILABLE, re.compile(r"models/\S+ is not found|ProviderModelNotFound")),
    (FailureCode.AUTH_REQUIRED, re.compile(r"authentication (?:failed|required)|not authenticated", re.IGNORECASE)),
)


def failure_of(error: JsonObject, *, default: FailureCode = FailureCode.PROCESS_FAILED) -> Failure:
    """The failure that *error* stands for; *default* where nothing in it tells."""
    text, number = words_of(error), fields.integer(error, "code")
    facts = {} if number is None else {"rpc_code": str(number)}
    code = _by_number(number, text) or _by_words(error, text) or default
    return Failure(code=code, message=text or "the agent answered an error without a reason", metadata=facts)


def load_failure(error: JsonObject) -> Failure:
    """The failure of an error that answers the wish to go on with an earlier session."""
    failure = failure_of(error, default=FailureCode.UNKNOWN)
    service = fields.text(
        fields.mapping(error, "data"), "service"
    )  # opencode says no more than which part of it failed
    is_unknown = fields.integer(error, "code") == INVALID_PARAMS or service == "session"
    if failure.code is not FailureCode.UNKNOWN:
        return failure
    code = FailureCode.LOST if is_unknown else FailureCode.PROCESS_FAILED
    return Failure(code=code, message=failure.message, metadata=failure.metadata)


def code_of_words(text: str) -> FailureCode | None:
    """The code of a vendor's sentence about a refused request."""
    status = _status(_HTTP_STATUS, text) or _status(_LEADING_STATUS, text)
    own = next((code for code, pattern in _OWN_WORDS if pattern.search(text)), None)
    return own or code_of_prose(text) or code_of_status(status)


def words_of(error: JsonObject) -> str:
    """What *error* says to people: its message, and what its data adds to it."""
    message, data = _unwrapped(fields.text(error, "message")), fields.mapping(error, "data")
    told = fields.text(data, "details") or fields.text(data, "message") or fields.text(error, "data")
    return f"{message}: {told}" if told and told not in message else message


def _by_number(number: int | None, text: str) -> FailureCode | None:
    if number == AUTH_REQUIRED:
        return FailureCode.AUTH_REQUIRED
    if number == RESOURCE_NOT_FOUND or is_unknown_session(text) or _UNKNOWN_SESSION.search(text):
        return FailureCode.LOST
    if number not in _HTTP:
        return None
    told, prose = code_of_status(number), code_of_words(text)
    # 429 has two meanings, 404 has many, and Gemini calls an unknown model a 500
    is_vague = told in (None, FailureCode.RATE_LIMITED) or prose is FailureCode.MODEL_UNAVAILABLE
    return prose or told if is_vague else told


def _by_words(error: JsonObject, text: str) -> FailureCode | None:
    data = fields.mapping(error, "data")
    if code := code_of_words(text) or code_of_words(fields.text(data, "details")):
        return code
    if fields.text(data, "errorName") != "APIError":
        return None
    if _MODEL_NAMED.search(text):
        return FailureCode.MODEL_UNAVAILABLE
    return code_of_status(_status(_ANY_STATUS, text))


def _status(pattern: re.Pattern[str], text: str) -> int | None:
    found = pattern.search(text) if pattern is not _LEADING_STATUS else pattern.match(text)
    return int(found[1]) if found else None


def _unwrapped(message: str) -> str:
    """The message inside a message that is JSON itself."""
    if not message.startswith("{"):
        return message
    try:
        inner = msgspec.json.decode(message)
    except (msgspec.MsgspecError, RecursionError):
        return message
    error = fields.mapping(inner, "error") if isinstance(inner, dict) else {}
    return fields.text(error, "message") or message
