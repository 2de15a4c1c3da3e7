"""The questions of one turn, and the answers as the agent takes them: an option that it offered, or none at all."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from providers.cli import json_fields as fields
from providers.cli.acp_frames import Message, id_text, result_answer
from providers.cli.json_fields import JsonObject
from runtime.provider import Answer, Decision

_FITTING = {
    Decision.ALLOW: ("allow_once", "allow_always"),
    Decision.DENY: ("reject_once", "reject_always"),
}
_CANCELLED: JsonObject = {"outcome": {"outcome": "cancelled"}}


def cancelled(message: Message) -> bytes:
    """The answer to a question of a turn that is over or being cancelled."""
    return result_answer(message.id, _CANCELLED)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Asked:
    """The id to answer under, and the option that stands for each decision."""

    id: object
    options: dict[Decision, str]


class Questions:
    """The questions of the turn *number*. Each is answered once, by a decision or by the turn's end."""

    def __init__(self, number: int) -> None:
        self._number = number
        self._open: dict[str, _Asked] = {}
        self._names: Counter[str] = Counter()
        self.are_cancelled = False

    def name(self, message: Message) -> str:
        """What a request is called here: no other of the run is, also when the agent uses an id twice."""
        name = f"{self._number}.{id_text(message.id)}"
        self._names[name] += 1
        return name if self._names[name] == 1 else f"{name}.{self._names[name]}"

    def add(self, name: str, message: Message) -> None:
        """The agent waits for an answer to *message*."""
        self._open[name] = _Asked(id=message.id, options=_options(message.params))

    def answer(self, answer: Answer) -> bytes:
        """What to say; nothing when the cancel has said it."""
        asked = self._open.pop(answer.request_id, None)
        if asked is None or self.are_cancelled:
            return b""
        option = asked.options.get(answer.decision)
        outcome: JsonObject = {"outcome": "selected", "optionId": option}
        return result_answer(asked.id, _CANCELLED if option is None else {"outcome": outcome})

    def cancel(self) -> bytes:
        """The answers to all that is still open. Asked for again it says them again."""
        self.are_cancelled = True
        return b"".join(result_answer(each.id, _CANCELLED) for each in self._open.values())


def _options(params: JsonObject) -> dict[Decision, str]:
    """The option that stands for each decision: for this once, where it can be had."""
    offered = {fields.text(each, "kind"): fields.text(each, "optionId") for each in fields.objects(params, "options")}
    return {
        decision: next(offered[kind] for kind in kinds if kind in offered)
        for decision, kinds in _FITTING.items()
        if any(kind in offered for kind in kinds)
    }
