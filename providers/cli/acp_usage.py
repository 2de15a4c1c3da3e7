"""A turn's own tokens and cost, from agents that count in four different ways.

The protocol has ``usage`` in the answer to a prompt, and leaves open what it covers. Seen: Claude's bridge tells the
turn's tokens, Copilot the process's, opencode those of the last model call; Gemini puts the turn's into ``_meta.quota``,
and Qwen a model call's into ``_meta.usage`` of an empty piece of text. What counts on over turns is turned into the turn's
by subtracting what stood there before; where that is not known (the cost of a session that was loaded), nothing is told.
"""

from __future__ import annotations

from collections.abc import Mapping

from providers.cli import json_fields as fields
from providers.cli.json_fields import JsonObject
from runtime.events import Usage

COUNTS_PROCESS = frozenset({"Copilot"})
COSTS_PROCESS = frozenset({"@agentclientprotocol/claude-agent-acp"})
"""Agents whose cost begins at nothing in every process, also when it goes on with a session."""
COUNTS_LAST_CALL = frozenset({"OpenCode"})
_TOKENS = {
    "input_tokens": "inputTokens",
    "output_tokens": "outputTokens",
    "cache_read_tokens": "cachedReadTokens",
    "cache_write_tokens": "cachedWriteTokens",
    "reasoning_tokens": "thoughtTokens",
}
_QUOTA_TOKENS = {"input_tokens": "input_tokens", "output_tokens": "output_tokens"}
Tokens = dict[str, int]


class TurnUsage:
    """Collects what one turn says about tokens and cost; *before* is the state in which the turn began."""

    def __init__(self, agent: str, before: JsonObject) -> None:
        self._agent = agent
        self._tokens_before = _known(before, "tokens")
        self._cost_before = fields.number(before, "cost_usd")
        self._cost: float | None = None
        self._answered: Tokens = {}
        self._calls: Tokens = {}
        self.calls_tools = False

    def take_piece(self, meta: JsonObject) -> None:
        """A model call's tokens, beside a piece of text."""
        for name, count in _counts(fields.mapping(meta, "usage"), _TOKENS).items():
            self._calls[name] = self._calls.get(name, 0) + count

    def take_update(self, update: JsonObject) -> None:
        """A ``usage_update``: the session's cost so far."""
        cost = fields.mapping(update, "cost")
        if fields.text(cost, "currency") == "USD" and (amount := fields.number(cost, "amount")) is not None:
            self._cost = amount

    def take_answer(self, result: JsonObject) -> None:
        """The answer to the prompt."""
        quota = fields.mapping(fields.mapping(fields.mapping(result, "_meta"), "quota"), "token_count")
        self._answered = _counts(fields.mapping(result, "usage"), _TOKENS) or _counts(quota, _QUOTA_TOKENS)

    @property
    def has_model_answered(self) -> bool | None:
        """Whether a model gave any output in this turn; None when that is not told."""
        output = self._own_tokens().get("output_tokens")
        return None if output is None else output > 0

    def own(self) -> Usage | None:
        """The turn's own; None when nothing was told. A turn of which every count is 0 was not counted."""
        tokens = self._own_tokens()
        told = tokens if any(tokens.values()) else {}
        usage = Usage(cost_usd=self._own_cost(), **told)
        return usage if usage != Usage() else None

    @property
    def state(self) -> JsonObject:
        """What the next turn has to know."""
        tokens = self._answered if self._agent in COUNTS_PROCESS and self._answered else self._tokens_before
        cost = self._cost_before if self._cost is None else self._cost
        return {"tokens": tokens, "cost_usd": cost}

    def _own_tokens(self) -> Tokens:
        if self._agent in COUNTS_PROCESS:
            return _grown(self._tokens_before, self._answered)
        if self._agent in COUNTS_LAST_CALL and self.calls_tools:
            return {}
        return self._answered or self._calls

    def _own_cost(self) -> float | None:
        if self._cost is None or self._cost_before is None:
            return None
        return max(0.0, round(self._cost - self._cost_before, 9))


def _known(before: JsonObject, key: str) -> Tokens | None:
    """The counts at *key*; None when they are not known, which is not the same as none."""
    told = before.get(key)
    return {name: count for name in told if (count := fields.count(told, name))} if isinstance(told, dict) else None


def _counts(source: JsonObject, names: Mapping[str, str]) -> Tokens:
    return {name: count for name, key in names.items() if (count := fields.count(source, key)) is not None}


def _grown(before: Tokens | None, after: Tokens) -> Tokens:
    if before is None:
        return {}
    return {name: max(0, count - before.get(name, 0)) for name, count in after.items()}
