"""When a window is reset: once, for sure, or not at all."""

from __future__ import annotations

from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import pytest

from runtime.status import AgentUsageStatus, Availability, moment, percent, reset_from_text, unavailable

NEW_YORK = ZoneInfo("America/New_York")
JANUARY = datetime(2026, 1, 13, 12, tzinfo=UTC)
DECEMBER = datetime(2026, 12, 30, 12, tzinfo=UTC)
HALF_PAST_TWO = "resets 2:30am (America/New_York)"


def utc(*parts: int) -> datetime:
    return datetime(*parts, tzinfo=UTC)  # type: ignore[arg-type,misc]  # year, month, day …


@pytest.mark.req("RT-28", "RT-29")
@pytest.mark.parametrize(
    ("text", "in_january", "in_december"),
    [
        ("You've hit your limit · resets 10pm (Europe/Berlin)", utc(2026, 1, 13, 21), utc(2026, 12, 30, 21)),
        ("You've hit your limit · resets Jan 15, 8am (Europe/Berlin)", utc(2026, 1, 15, 7), utc(2027, 1, 15, 7)),
        (
            "limit reached, resets January 20, 10:30am (America/New_York)",
            utc(2026, 1, 20, 15, 30),
            utc(2027, 1, 20, 15, 30),
        ),
        ("limit reached, come back later", None, None),
    ],
)
def test_a_date_and_a_named_zone_are_understood(
    text: str, in_january: datetime | None, in_december: datetime | None
) -> None:
    assert reset_from_text(text, captured_at=JANUARY) == in_january
    assert reset_from_text(text, captured_at=DECEMBER) == in_december


@pytest.mark.req("RT-28")
@pytest.mark.parametrize(
    ("captured", "instant"),
    [
        (datetime(2026, 7, 24, 23, 0, tzinfo=NEW_YORK), utc(2026, 7, 25, 6, 30)),
        (datetime(2026, 7, 25, 2, 29, tzinfo=NEW_YORK), utc(2026, 7, 25, 6, 30)),
        (datetime(2026, 7, 25, 2, 30, tzinfo=NEW_YORK), utc(2026, 7, 25, 6, 30)),
        (datetime(2026, 7, 25, 2, 31, tzinfo=NEW_YORK), utc(2026, 7, 26, 6, 30)),
        (datetime(2026, 3, 8, 1, 0, tzinfo=NEW_YORK), utc(2026, 3, 8, 7, 30)),  # 2:30 does not exist in that night
    ],
)
def test_a_time_of_day_is_the_next_one(captured: datetime, instant: datetime) -> None:
    assert reset_from_text(HALF_PAST_TWO, captured_at=captured) == instant


@pytest.mark.req("RT-28")
def test_a_time_that_comes_twice_is_the_first_of_them() -> None:
    captured = datetime(2026, 11, 1, 0, 0, tzinfo=NEW_YORK)

    assert reset_from_text("resets 1:30am (America/New_York)", captured_at=captured) == utc(2026, 11, 1, 5, 30)


@pytest.mark.req("RT-29")
@pytest.mark.parametrize(
    "text",
    [
        "",
        "resets 13pm (Europe/Berlin)",
        "resets 10:75pm (Europe/Berlin)",
        "resets 10pm (Europe/Nowhere)",
        "resets 10pm",
        "resets Foo 15, 8am (Europe/Berlin)",
        "resets Feb 30, 8am (Europe/Berlin)",
        "resets 10pm (../../etc/passwd)",
        "wird um 22 Uhr zurückgesetzt (Europe/Berlin)",
        "resets " * 100_000,
    ],
)
def test_a_sentence_that_names_no_sure_instant_gives_none(text: str) -> None:
    assert reset_from_text(text, captured_at=JANUARY) is None


@pytest.mark.req("RT-29")
@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (1788874637, utc(2026, 9, 8, 13, 37, 17)),
        ("2026-01-13T14:00:00+02:00", utc(2026, 1, 13, 12)),
        ("2026-01-13T14:00:00", None),
        (0, None),
        (-5, None),
        (1e18, None),
        (float("nan"), None),
        (True, None),
        (None, None),
        ("tomorrow", None),
    ],
)
def test_a_moment_has_a_zone_or_is_none(value: object, expected: datetime | None) -> None:
    assert moment(value) == expected


@pytest.mark.req("RT-29")
@pytest.mark.parametrize(
    ("value", "expected"),
    [(0, 0.0), (99.5, 99.5), (130, 130.0), (-1, None), (1e9, None), (True, None), ("5", None), (float("inf"), None)],
)
def test_a_share_is_a_share_or_is_absent(value: object, expected: float | None) -> None:
    assert percent(value) == expected


@pytest.mark.req("RT-28", "RT-02")
def test_a_status_cannot_be_changed_by_who_made_it() -> None:
    facts = {"readiness": "ready"}
    status = unavailable("why", taken_at=JANUARY, metadata=facts)

    facts["readiness"] = "changed"

    assert status == AgentUsageStatus(
        availability=Availability.UNAVAILABLE, taken_at=JANUARY, reason="why", metadata={"readiness": "ready"}
    )
