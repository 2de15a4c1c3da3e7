"""What a run may spend, as its caller bounds it, and the count of what the agent's own words say that it spent.

Pure values. The emitter counts turns, in every dialect alike; tokens and cost are known during a run only where the
agent reports them while it works, and who reads its output compares them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from runtime.events import MESSAGE_ID, Draft, EventType, ToolCall, ToolResult, Usage
from runtime.failure import InvalidRequest

PLACE = "policy.iop.budget"


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """Bounds of one run; None is no bound. Reaching one is allowed, passing it is not."""

    turns: int | None = None
    tokens: int | None = None
    cost_usd: float | None = None

    @property
    def bounds_usage(self) -> bool:
        return self.tokens is not None or self.cost_usd is not None

    def passed_by_turns(self, turns: int) -> str:
        """A sentence when *turns* are too many, else nothing."""
        return _passed("turns", turns, self.turns)

    def passed_by(self, usage: Usage) -> str:
        """A sentence when *usage* is too much, else nothing; what is not reported passes no bound."""
        tokens = (usage.input_tokens or 0) + (usage.output_tokens or 0)
        return _passed("tokens", tokens, self.tokens) or _passed("cost_usd", usage.cost_usd or 0, self.cost_usd)


@dataclass(slots=True)
class TurnCount:
    """Counts the agent's messages.

    A message begins with a piece of the answer under another id than before, or with a tool call after a tool result;
    thinking alone begins none, since some agents give it an id of its own.
    """

    turns: int = 0
    _message_id: str | None = None
    _is_open: bool = False

    def take(self, draft: Draft) -> int:
        """The number of turns, *draft* included."""
        if draft.type is EventType.DELTA:
            if (message_id := draft.metadata.get(MESSAGE_ID, "")) != self._message_id:
                self._message_id = message_id
                self._begin(is_new=True)
        elif isinstance(draft.activity, ToolCall):
            self._begin(is_new=not self._is_open)
        elif isinstance(draft.activity, ToolResult):
            self._is_open = False
        return self.turns

    def _begin(self, *, is_new: bool) -> None:
        self.turns += is_new
        self._is_open = True


def parse_budget(told: Any) -> Budget:
    """The budget in ``policy.iop.budget``.

    Raises:
        InvalidRequest: it is no object, has an unknown member, or one that is no positive number.
    """
    if not isinstance(told, Mapping):
        raise InvalidRequest(f"{PLACE} must be an object, found {type(told).__name__}", field=PLACE)
    known = [each.name for each in fields(Budget)]
    if unknown := [key for key in told if key not in known]:
        place = f"{PLACE}.{unknown[0]}"
        raise InvalidRequest(f"{place} is unknown; known: {', '.join(known)}", field=place)
    return Budget(
        turns=_count(told, "turns"), tokens=_count(told, "tokens"), cost_usd=_positive(told, "cost_usd", "number")
    )


def _count(told: Mapping[str, Any], name: str) -> int | None:
    number = _positive(told, name, "whole number")
    if number is not None and number != int(number):
        raise _wrong(name, number, "whole number")
    return None if number is None else int(number)  # a number of JSON may come as 3.0


def _positive(told: Mapping[str, Any], name: str, kind: str) -> float | None:
    if name not in told:
        return None
    value = told[name]
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < float("inf"):
        raise _wrong(name, value, kind)
    return value


def _wrong(name: str, value: Any, kind: str) -> InvalidRequest:
    place = f"{PLACE}.{name}"
    return InvalidRequest(
        f"{place} is {repr(value)[:200]}; give a positive {kind}, or leave it out for no bound", field=place
    )


def _passed(name: str, spent: float, bound: float | None) -> str:
    if bound is None or spent <= bound:
        return ""
    return f"the agent's reported {name} ({spent:g}) passed the run's budget of {bound:g}"
