"""JSON-RPC 2.0 as the Agent Client Protocol uses it: one message a line, both sides may ask.

Nothing here knows what a message means. What an agent writes is sorted into requests, notifications and answers; a batch,
which the protocol does not have, is taken apart, because whoever sent it waits for what is in it all the same.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator

import msgspec

from providers.cli import json_fields as fields
from providers.cli.dialect import Noise
from providers.cli.json_fields import JsonObject
from providers.cli.json_lines import noise, recover

METHOD_NOT_FOUND, INVALID_REQUEST = -32601, -32600
_BATCH_LIMIT = 64
_PLAIN_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
_decode_object = msgspec.json.Decoder(dict[str, object]).decode
_decode_batch = msgspec.json.Decoder(list[object]).decode


class Message(msgspec.Struct, frozen=True, kw_only=True):
    """One message of the agent's. A request has ``method`` and ``id``, a notification no ``id``, an answer no ``method``.

    ``id`` is what the agent wrote, of whatever type; None where it wrote none. ``error`` is None in an answer that is a
    result.
    """

    method: str = ""
    id: object = None
    has_id: bool = False
    params: JsonObject = {}
    result: JsonObject = {}
    error: JsonObject | None = None


def request(number: int, method: str, params: JsonObject) -> bytes:
    """A request of ours, answered under *number*."""
    return _line({"id": number, "method": method, "params": params})


def notification(method: str, params: JsonObject) -> bytes:
    """Something that is not answered."""
    return _line({"method": method, "params": params})


def result_answer(request_id: object, result: JsonObject) -> bytes:
    """The answer to a request of the agent's."""
    return _line({"id": request_id, "result": result})


def error_answer(request_id: object, code: int, message: str) -> bytes:
    """The refusal of a request of the agent's."""
    return _line({"id": request_id, "error": {"code": code, "message": message}})


def method_not_found(message: Message) -> bytes:
    """The refusal of a request that this host does not serve."""
    return error_answer(message.id, METHOD_NOT_FOUND, f"{message.method[:100]} is not served by this host")


def messages(data: bytes) -> Iterator[Message | Noise]:
    """The messages of one line, in order, and what of it is none."""
    try:
        yield _sorted(_decode_object(data))
    except (msgspec.MsgspecError, RecursionError):
        yield from _from_batch(data) if data.lstrip().startswith(b"[") else _recovered(data)


def id_text(request_id: object) -> str:
    """A name for a request of the agent's that is fit to be shown and typed: its id, or a digest of an odd one."""
    text = request_id if isinstance(request_id, str) else fields.as_json(request_id)
    return text if _PLAIN_ID.fullmatch(text) else hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()[:16]


def _sorted(source: JsonObject) -> Message | Noise:
    """The message in *source*; JSON that neither asks nor answers is a log line that strayed."""
    if not isinstance(source.get("method"), str) and "result" not in source and "error" not in source:
        return noise("not_a_message", fields.as_json(source))
    refusal = source.get("error")
    return Message(
        method=fields.text(source, "method"),
        id=source.get("id"),
        has_id="id" in source,
        params=fields.mapping(source, "params"),
        result=fields.mapping(source, "result"),
        error=fields.mapping(source, "error") if refusal is not None else None,
    )


def _from_batch(data: bytes) -> Iterator[Message | Noise]:
    try:
        batch = _decode_batch(data)
    except (msgspec.MsgspecError, RecursionError):
        yield from _recovered(data)
        return
    yield noise("batch", f"{len(batch)} messages in one line")
    for each in batch[:_BATCH_LIMIT]:
        yield _sorted(each) if isinstance(each, dict) else noise("not_a_message", type(each).__name__)


def _recovered(data: bytes) -> Iterator[Message | Noise]:
    for each in recover(data):
        yield _sorted(each) if isinstance(each, dict) else each


def _line(frame: JsonObject) -> bytes:
    return fields.as_json({"jsonrpc": "2.0", **frame}).encode() + b"\n"
