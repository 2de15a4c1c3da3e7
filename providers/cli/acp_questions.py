"""What an agent asks in one turn, and the answers as it takes them: an option that it offered, what its form holds, or none."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from providers.cli import elicitation
from providers.cli import json_fields as fields
from providers.cli.acp_frames import Message, id_text, result_answer
from providers.cli.json_fields import JsonObject
from runtime.provider import Answer, Decision

_FITTING = {
    Decision.ALLOW: ("allow_once", "allow_always"),
    Decision.DENY: ("reject_once", "reject_always"),
}
PERMISSION, ELICITATION = "session/request_permission", "elicitation/create"
_CANCELLED: dict[str, JsonObject] = {
    PERMISSION: {"outcome": {"outcome": "cancelled"}},
    ELICITATION: {"action": "cancel"},
}


def is_served(message: Message) -> bool:
    """Whether somebody can answer *message*. Of the two ways to elicit only the form is declared."""
    is_form = message.method == ELICITATION and elicitation.mode_of(message.params) == elicitation.FORM
    return is_form or message.method == PERMISSION


def cancelled(message: Message) -> bytes:
    """The answer to a question of a turn that is over or being cancelled."""
    return result_answer(message.id, _CANCELLED[message.method])


@dataclass(frozen=True, slots=True, kw_only=True)
class _Asked:
    """The request, and how it is answered."""

    message: Message
    words: Callable[[Answer], JsonObject]


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
        if message.method == ELICITATION:
            words = partial(elicitation.action, elicitation.FORM)
        else:
            words = partial(_outcome, _options(message.params))
        self._open[name] = _Asked(message=message, words=words)

    def answer(self, answer: Answer) -> bytes:
        """What to say; nothing when the cancel has said it."""
        asked = self._open.pop(answer.request_id, None)
        if asked is None or self.are_cancelled:
            return b""
        return result_answer(asked.message.id, asked.words(answer))

    def cancel(self) -> bytes:
        """The answers to all that is still open. Asked for again it says them again."""
        self.are_cancelled = True
        return b"".join(cancelled(each.message) for each in self._open.values())


def _outcome(options: dict[Decision, str], answer: Answer) -> JsonObject:
    option = options.get(answer.decision)
    return _CANCELLED[PERMISSION] if option is None else {"outcome": {"outcome": "selected", "optionId": option}}


def _options(params: JsonObject) -> dict[Decision, str]:
    """The option that stands for each decision: for this once, where it can be had."""
    offered = {fields.text(each, "kind"): fields.text(each, "optionId") for each in fields.objects(params, "options")}
    return {
        decision: next(offered[kind] for kind in kinds if kind in offered)
        for decision, kinds in _FITTING.items()
        if any(kind in offered for kind in kinds)
    }
