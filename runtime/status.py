"""How much of an account's allowance is used, in one shape for every vendor.

Vendors tell percentages, counts or only a sentence; some tell nothing. The rule is honesty: what was not reported is
absent, never zero, and a status without figures says why it has none. These figures are of an account; a run's own tokens
are :class:`runtime.events.Usage`, and neither is ever made from the other.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from types import MappingProxyType
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError


class Availability(StrEnum):
    """Whether a status holds what the provider says of itself."""

    REPORTED = "reported"
    """The provider answered; windows hold what it told, which may be nothing of interest."""
    UNAVAILABLE = "unavailable"
    """No figures; ``reason`` says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageWindow:
    """One allowance that fills and is reset; every absent field was not reported.

    ``used_percent`` is of the allowance, ``used`` and ``limit`` are counts of ``unit``; ``resets_at`` is aware UTC, and
    ``reset_text`` the provider's own words where it gave words. ``state`` is the provider's: ``allowed``, ``rejected`` …
    """

    name: str
    used_percent: float | None = None
    used: float | None = None
    limit: float | None = None
    unit: str = ""
    duration_minutes: int | None = None
    resets_at: datetime | None = None
    reset_text: str = ""
    state: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentUsageStatus:
    """The allowance of the account behind a provider, as of ``taken_at`` (aware UTC)."""

    availability: Availability
    taken_at: datetime
    reason: str = ""
    plan: str = ""
    windows: tuple[UsageWindow, ...] = ()
    metadata: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "metadata", MappingProxyType(dict(self.metadata)))


def unavailable(reason: str, *, taken_at: datetime, metadata: Mapping[str, str] | None = None) -> AgentUsageStatus:
    """A status without figures, and why."""
    return AgentUsageStatus(
        availability=Availability.UNAVAILABLE, taken_at=taken_at, reason=reason, metadata=metadata or {}
    )


def percent(value: object) -> float | None:
    """*value* if it can be a share of an allowance in percent; an overdrawn one may pass 100."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if math.isfinite(value) and 0 <= value <= 1000 else None


# --- when a window is reset

_EPOCH = (datetime(2000, 1, 1, tzinfo=UTC).timestamp(), datetime(2200, 1, 1, tzinfo=UTC).timestamp())
_RESET = re.compile(
    r"\bresets?\s{1,3}(?:at\s)?(?:on\s)?(?:(?P<month>[A-Za-z]{3,9})\.?\s(?P<day>\d{1,2})(?:,|\sat)?\s)?"
    r"(?P<hour>\d{1,2})(?::(?P<minute>\d{2}))?\s?(?P<half>[ap]m)\s\((?P<zone>[A-Za-z_]{1,30}(?:/[A-Za-z_+0-9-]{1,30}){0,2})\)",
    re.IGNORECASE,
)
_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
TEXT_LIMIT = 4096


def moment(value: object) -> datetime | None:
    """Seconds since the epoch, or ISO 8601 with a zone, as aware UTC; None for anything that is no moment."""
    if isinstance(value, bool):
        return None
    if isinstance(value, int | float):
        return datetime.fromtimestamp(value, UTC) if _EPOCH[0] <= value <= _EPOCH[1] else None
    if not isinstance(value, str):
        return None
    try:
        found = datetime.fromisoformat(value)
    except ValueError:
        return None
    return found.astimezone(UTC) if found.tzinfo is not None else None


def reset_from_text(text: str, *, captured_at: datetime) -> datetime | None:
    """The instant of a sentence such as ``resets Jan 15, 8am (Europe/Berlin)``; None when it names none for sure.

    Args:
        captured_at: when the sentence was printed (aware). A time of day is the next one from then on, a date without a year
            the next such date; resolve once and keep the instant.
    """
    found = _RESET.search(text[:TEXT_LIMIT])
    if found is None:
        return None
    try:
        local = captured_at.astimezone(ZoneInfo(found["zone"]))
        hour, minute = _clock(found["hour"], found["minute"], found["half"])
        if found["month"]:
            month = _MONTHS.index(found["month"][:3].lower()) + 1
            return _next_date(local, captured_at, month, int(found["day"]), hour, minute)
        return _next_time(local, captured_at, hour, minute)
    except (ValueError, ZoneInfoNotFoundError):
        return None


def _clock(hour: str, minute: str | None, half: str) -> tuple[int, int]:
    if not 1 <= int(hour) <= 12:
        raise ValueError(f"no hour of a twelve-hour clock: {hour}")
    return int(hour) % 12 + (12 if half.lower() == "pm" else 0), int(minute or 0)


def _next_time(local: datetime, captured_at: datetime, hour: int, minute: int) -> datetime:
    """Days are added on the wall clock: the same time of day, whatever the zone does in that night."""
    today = local.replace(hour=hour, minute=minute, second=0, microsecond=0, fold=0)
    instant = today.astimezone(UTC)
    return instant if instant >= captured_at else (today + timedelta(days=1)).astimezone(UTC)


def _next_date(local: datetime, captured_at: datetime, month: int, day: int, hour: int, minute: int) -> datetime:
    def in_year(year: int) -> datetime:
        return datetime(year, month, day, hour, minute, tzinfo=local.tzinfo).astimezone(UTC)

    instant = in_year(local.year)
    # a sentence may be read some hours after its date, but nobody announces a reset of last month
    return instant if instant >= captured_at - timedelta(days=1) else in_year(local.year + 1)
