from __future__ import annotations

import pytest

from providers.cli.dialect import ProcessEnd
from providers.cli.evidence import code_of_prose, code_of_status, exit_facts, was_ended_from_outside
from runtime.failure import FailureCode


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("You've hit your session limit · resets 8:55pm (UTC)", FailureCode.QUOTA_EXHAUSTED),
        ("You've hit your limit · resets 10pm (Europe/Berlin)", FailureCode.QUOTA_EXHAUSTED),
        ("APICallError: Monthly usage limit reached", FailureCode.QUOTA_EXHAUSTED),
        ("insufficient_quota: 429", FailureCode.QUOTA_EXHAUSTED),
        ("ProviderModelNotFoundError: model not found: no-such-model", FailureCode.MODEL_UNAVAILABLE),
        (
            '404 {"type":"error","error":{"type":"not_found_error","message":"model: nonesuch"}}',
            FailureCode.MODEL_UNAVAILABLE,
        ),
        ("unexpected status 404 Not Found: mock error 404, url: http://x/v1/models", None),
        ("Not logged in · Please run /login", FailureCode.AUTH_REQUIRED),
        ("API Error: 401 invalid x-api-key", FailureCode.AUTH_REQUIRED),
        ("API Error: Request rejected (429) · mock error 429", FailureCode.RATE_LIMITED),
        ("API Error: 500 mock error 500.", FailureCode.PROVIDER_OVERLOADED),
        ("Selected model is at capacity. Please try a different model.", FailureCode.PROVIDER_OVERLOADED),
        ("stream disconnected before completion", FailureCode.PROVIDER_UNREACHABLE),
        ("the tests of the login page failed with 500 lines of output", None),
        ("", None),
    ],
)
def test_prose_is_read_only_where_it_is_known(text: str, code: FailureCode | None) -> None:
    assert code_of_prose(text) is code


@pytest.mark.parametrize(
    ("status", "code"),
    [
        (401, FailureCode.AUTH_REQUIRED),
        (429, FailureCode.RATE_LIMITED),
        (529, FailureCode.PROVIDER_OVERLOADED),
        (404, None),
        (None, None),
    ],
)
def test_a_status_that_says_nothing_certain_has_no_code(status: int | None, code: FailureCode | None) -> None:
    assert code_of_status(status) is code


def test_only_an_unusual_end_is_noted() -> None:
    ends = [ProcessEnd(code=0), ProcessEnd(), ProcessEnd(code=3), ProcessEnd(signal=9)]

    assert [exit_facts(end) for end in ends] == [{}, {}, {"exit_code": "3"}, {"signal": "9"}]


def test_a_shells_128_plus_signal_is_an_end_from_outside() -> None:
    ends = [ProcessEnd(code=143), ProcessEnd(signal=15), ProcessEnd(), ProcessEnd(code=1), ProcessEnd(code=0)]

    assert [was_ended_from_outside(end) for end in ends] == [True, True, True, False, False]
