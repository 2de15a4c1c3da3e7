"""Claude Code: the answer to the control request ``get_usage`` on ``--input-format stream-json``.

Source: claude 2.1.197 without a subscription, where ``rate_limits_available`` is false. With one, ``rate_limits`` maps a
window's name to ``utilization`` (percent) and ``resets_at``; that shape was not recorded, so it is read field by field and
an entry without a figure is left out. No model is called.
"""

from __future__ import annotations

from datetime import datetime

from providers.cli.json_fields import JsonObject, mapping, text_or_none
from providers.cli.statuses import StatusUnreadable
from providers.cli.statuses.json_answers import json_objects
from runtime.status import AgentUsageStatus, Availability, UsageWindow, moment, percent, unavailable

_WINDOW_MINUTES = {"five_hour": 300, "seven_day": 10_080}


def parse(text: str, *, captured_at: datetime) -> AgentUsageStatus:
    """The status in the answer to ``get_usage``."""
    usage = _answer(text)
    plan = text_or_none(usage, "subscription_type") or ""
    if usage.get("rate_limits_available") is False or usage.get("rate_limits") is None:
        return unavailable("no subscription limits are reported for this login", taken_at=captured_at)
    windows = tuple(w for name, value in mapping(usage, "rate_limits").items() if (w := _window(name, value)))
    if not windows:
        raise StatusUnreadable("the answer says that there are limits, and holds none that can be read")
    return AgentUsageStatus(availability=Availability.REPORTED, taken_at=captured_at, plan=plan, windows=windows)


def _answer(text: str) -> JsonObject:
    for found in json_objects(text):
        usage = mapping(mapping(found, "response"), "response")
        if found.get("type") == "control_response" and "rate_limits_available" in usage:
            return usage
    raise StatusUnreadable("the CLI did not answer get_usage")


def _window(name: str, value: object) -> UsageWindow | None:
    if not isinstance(value, dict) or (used := percent(value.get("utilization"))) is None:
        return None
    minutes = _WINDOW_MINUTES.get(name)
    return UsageWindow(name=name, used_percent=used, duration_minutes=minutes, resets_at=moment(value.get("resets_at")))
