"""Codex: rate limits as ``codex app-server`` tells them (JSON-RPC without the member ``jsonrpc``).

Source: codex 0.171.0, the notification ``account/rateLimits/updated`` and the answer to ``account/rateLimits/read``, which
carry one shape: ``rateLimits`` with ``primary`` and ``secondary`` {usedPercent, windowDurationMins, resetsAt}, each of which
may be null. Without a ChatGPT login the answer is error -32600.
"""

from __future__ import annotations

from datetime import datetime

from providers.cli.json_fields import JsonObject, count, mapping, text, text_or_none
from providers.cli.statuses import StatusUnreadable
from providers.cli.statuses.json_answers import json_objects
from runtime.redact import clip, scrub
from runtime.status import AgentUsageStatus, Availability, UsageWindow, moment, percent, unavailable

REQUEST_ID = 3
"""The id of the question in the catalog's ``status.input``."""


def parse(output: str, *, captured_at: datetime) -> AgentUsageStatus:
    """The last rate limits in *output* that tell anything."""
    answers = json_objects(output)
    limits = [found for answer in answers if (found := _limits(answer))]
    for found in reversed(limits):
        windows = tuple(w for name in ("primary", "secondary") if (w := _window(name, mapping(found, name))))
        if windows:
            plan = text_or_none(found, "planType") or ""
            return AgentUsageStatus(
                availability=Availability.REPORTED, taken_at=captured_at, plan=plan, windows=windows
            )
    return _without_figures(answers, captured_at, was_told=bool(limits))


def _without_figures(answers: list[JsonObject], captured_at: datetime, *, was_told: bool) -> AgentUsageStatus:
    for answer in answers:
        if answer.get("id") == REQUEST_ID and isinstance(answer.get("error"), dict):
            reason = clip(scrub(text(mapping(answer, "error"), "message")), 200)
            return unavailable(reason or "the CLI refused to tell", taken_at=captured_at)
    if was_told:
        return unavailable("no limits are reported for this login", taken_at=captured_at)
    raise StatusUnreadable("the CLI did not tell its rate limits")


def _limits(answer: JsonObject) -> JsonObject:
    if answer.get("method") == "account/rateLimits/updated":
        return mapping(mapping(answer, "params"), "rateLimits")
    return mapping(mapping(answer, "result"), "rateLimits")


def _window(name: str, value: JsonObject) -> UsageWindow | None:
    used, resets_at = percent(value.get("usedPercent")), moment(value.get("resetsAt"))
    if used is None and resets_at is None:
        return None
    minutes = count(value, "windowDurationMins")
    return UsageWindow(name=name, used_percent=used, duration_minutes=minutes, resets_at=resets_at)
