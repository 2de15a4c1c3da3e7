"""Questions that an agent has for people: how one is put to the host, and its answer in the words of the protocols.

A *form* is an elicitation of the Model Context Protocol, which agents pass on from a server of theirs, or make themselves:
``message`` is the sentence, a schema or an address says what is wanted, and the answer is one of three actions. A no is
``decline``; nobody's answer in time is ``cancel``, because nobody decided anything. A *list of questions* is what a tool of
the agent's asks; every vendor has its own answer to that.

To whoever answers they look alike: ``input_json`` has ``requestedSchema``, ``url`` or ``questions``, and the answer a
member for each property or question.
"""

from __future__ import annotations

from collections.abc import Iterable

from providers.cli import json_fields as fields
from providers.cli.json_fields import JsonObject
from providers.cli.json_lines import bounded
from runtime.events import PermissionRequest, RequestKind
from runtime.provider import Answer, Decision
from runtime.types import thaw

FORM, URL = "form", "url"
"""The modes of an elicitation; one without a mode is a form."""
_REASON_BYTES = 2048


def mode_of(told: JsonObject) -> str:
    """The mode of an elicitation."""
    return fields.text(told, "mode") or FORM


def is_known(told: JsonObject) -> bool:
    """Whether the elicitation in *told* can be put to anybody."""
    return mode_of(told) in (FORM, URL)


def form(request_id: str, told: JsonObject, *, asker: str = "", schema: str = "requestedSchema") -> PermissionRequest:
    """The elicitation in *told*, which has its schema under *schema*."""
    wanted: JsonObject = (
        {"url": fields.text(told, "url")} if mode_of(told) == URL else {"requestedSchema": told.get(schema)}
    )
    return _question(request_id, asker, wanted, [fields.text(told, "message")])


def questions(request_id: str, told: JsonObject, *, asker: str) -> PermissionRequest:
    """The list of questions in *told*."""
    return _question(
        request_id, asker, told, (fields.text(each, "question") for each in fields.objects(told, "questions"))
    )


def action(mode: str, answer: Answer) -> JsonObject:
    """The answer to an elicitation of *mode*."""
    if answer.decision is Decision.DENY:
        return {"action": "cancel" if answer.by == "timeout" else "decline"}
    content = {} if mode == URL else {"content": thaw(answer.content or {})}
    return {"action": "accept", **content}


def texts_of(answer: Answer) -> dict[str, list[str]]:
    """What each question of a list is answered with, as texts."""
    return {name: _texts(value) for name, value in (answer.content or {}).items()}


def _question(request_id: str, asker: str, wanted: JsonObject, sentences: Iterable[str]) -> PermissionRequest:
    return PermissionRequest(
        request_id=request_id,
        kind=RequestKind.QUESTION.value,
        tool=bounded(asker, 256),
        input_json=bounded(fields.as_json(wanted)),
        reason=bounded("\n".join(sentences), _REASON_BYTES),
    )


def _texts(value: object) -> list[str]:
    if isinstance(value, tuple):
        return [str(each) for each in value]
    return [value if isinstance(value, str) else fields.as_json(value)]
