"""Each vendor's status output through its parser: the same type, and nothing that was not told."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from providers.cli.statuses import StatusUnreadable, known_statuses, load_status
from runtime.status import AgentUsageStatus, Availability, UsageWindow

NOW = datetime(2026, 1, 13, 12, tzinfo=UTC)
RESET = datetime.fromtimestamp(1796072138, UTC)

CODEX_UPDATED = (
    '{"method":"account/rateLimits/updated","params":{"rateLimits":{"limitId":"codex","primary":'
    '{"usedPercent":91,"windowDurationMins":300,"resetsAt":1796072138},"secondary":{"usedPercent":40,'
    '"windowDurationMins":10080,"resetsAt":1796158538},"credits":null,"planType":"plus"}},"emittedAtMs":1796068538078}'
)
CODEX_NOTHING = '{"method":"account/rateLimits/updated","params":{"rateLimits":{"primary":null,"secondary":null}}}'
CODEX_REFUSED = '{"error":{"code":-32600,"message":"codex account authentication required to read rate limits"},"id":3}'
CLAUDE_NONE = (
    '{"type":"control_response","response":{"subtype":"success","request_id":"usage","response":{"session":'
    '{"total_cost_usd":0},"subscription_type":null,"rate_limits_available":false,"rate_limits":null,"behaviors":null}}}'
)


def claude(**limits: Any) -> str:
    usage = {"subscription_type": "max", "rate_limits_available": True, "rate_limits": limits}
    answer = {"subtype": "success", "request_id": "usage", "response": usage}
    return msgspec.json.encode({"type": "control_response", "response": answer}).decode()


def parsed(name: str, text: str) -> AgentUsageStatus:
    return load_status(name).parse(text, captured_at=NOW)


def test_the_formats_are_found_by_file_name() -> None:
    assert known_statuses() == ["claude_get_usage", "codex_rate_limits"]


@pytest.mark.req("RT-28")
def test_two_vendors_give_one_type_with_comparable_figures() -> None:
    first = parsed("codex_rate_limits", CODEX_UPDATED)
    second = parsed(
        "claude_get_usage", claude(five_hour={"utilization": 6.5, "resets_at": "2026-01-13T14:00:00+00:00"})
    )

    assert first.windows[0] == UsageWindow(name="primary", used_percent=91, duration_minutes=300, resets_at=RESET)
    assert second.windows == (
        UsageWindow(
            name="five_hour", used_percent=6.5, duration_minutes=300, resets_at=datetime(2026, 1, 13, 14, tzinfo=UTC)
        ),
    )
    assert (first.plan, second.plan, first.taken_at) == ("plus", "max", NOW)


@pytest.mark.req("RT-28", "RT-29")
def test_several_windows_are_kept_apart_and_zero_is_a_figure() -> None:
    limits = {
        "five_hour": {"utilization": 0, "resets_at": None},
        "seven_day": {"utilization": 100.0, "resets_at": "2026-01-20T00:00:00Z"},
        "seven_day_opus": None,
        "extra": {"resets_at": "2026-01-20T00:00:00Z"},
    }

    windows = parsed("claude_get_usage", claude(**limits)).windows

    assert [(window.name, window.used_percent, window.resets_at is None) for window in windows] == [
        ("five_hour", 0.0, True),
        ("seven_day", 100.0, False),
    ]


@pytest.mark.req("RT-29")
@pytest.mark.parametrize("used", [None, "91", True, -1, 5000, float("nan"), [91]])
def test_a_figure_of_another_kind_is_absent(used: object) -> None:
    line = msgspec.json.encode(
        {"id": 3, "result": {"rateLimits": {"primary": {"usedPercent": used, "resetsAt": 1796072138}}}}
    )

    (window,) = parsed("codex_rate_limits", line.decode()).windows

    assert (window.used_percent, window.duration_minutes, window.resets_at) == (None, None, RESET)


@pytest.mark.req("RT-29", "RT-28")
@pytest.mark.parametrize(
    ("name", "text", "reason"),
    [
        ("codex_rate_limits", CODEX_REFUSED, "codex account authentication required to read rate limits"),
        ("codex_rate_limits", CODEX_NOTHING, "no limits are reported for this login"),
        ("claude_get_usage", CLAUDE_NONE, "no subscription limits are reported for this login"),
    ],
)
def test_a_vendor_without_figures_is_unavailable_and_says_why(name: str, text: str, reason: str) -> None:
    status = parsed(name, text)

    assert (status.availability, status.reason, status.windows) == (Availability.UNAVAILABLE, reason, ())


@pytest.mark.req("RT-29")
@pytest.mark.parametrize("name", ["codex_rate_limits", "claude_get_usage"])
@pytest.mark.parametrize(
    "text",
    [
        "",
        "\n\n",
        "Nutzung: 40 % bis 14 Uhr",
        CODEX_UPDATED[:150],
        CLAUDE_NONE[:150],
        "null",
        "[]",
        '{"type":"control_response"}',
        '{"id":4,"result":{"rateLimits":null}}',
        "{" * 100_000,
        "x" * 3_000_000,
        '{"a":' * 50_000,
    ],
)
def test_what_cannot_be_read_is_an_error_and_never_a_healthy_default(name: str, text: str) -> None:
    with pytest.raises(StatusUnreadable):
        parsed(name, text)


@pytest.mark.req("RT-29")
def test_a_limit_without_a_figure_is_an_error() -> None:
    with pytest.raises(StatusUnreadable, match="holds none that can be read"):
        parsed("claude_get_usage", claude(five_hour={"percent": 5}))


@pytest.mark.req("RT-29")
@pytest.mark.parametrize(
    "wrapped",
    [
        f"\x1b[32m{CODEX_UPDATED}\x1b[0m\n",
        f"\x1b]0;title\x07{CODEX_UPDATED}\r\n",
        f"starting\r{CODEX_UPDATED}\r",
        f"{CODEX_NOTHING}\n{CODEX_UPDATED}\n{CODEX_NOTHING}\n",
        f"warning: {{not json}}\n{CODEX_UPDATED}",
        "noise\n" * 5000 + CODEX_UPDATED,
    ],
)
def test_colours_line_ends_and_noise_change_nothing(wrapped: str) -> None:
    assert parsed("codex_rate_limits", wrapped) == parsed("codex_rate_limits", CODEX_UPDATED)


@pytest.mark.req("CAT-32", "RT-29")
def test_a_reason_is_redacted_and_short() -> None:
    line = msgspec.json.encode({"id": 3, "error": {"message": "sk-canary0123456789 " + "x" * 5000}})

    status = parsed("codex_rate_limits", line.decode())

    assert "canary" not in status.reason
    assert len(status.reason) <= 200
