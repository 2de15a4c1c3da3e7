"""What the evidence of a failure means: an HTTP status, a vendor's own words, the way a process ended.

Vendors wrap the same few HTTP errors in different prose, and some give nothing but the prose. A status decides where
one is told; prose is the last resort, so each pattern is a phrase that a vendor was seen to use, and text that
matches none has no code rather than a likely one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

from providers.cli.dialect import ProcessEnd
from runtime.failure import Failure, FailureCode

_STATUS: dict[int, FailureCode] = {
    400: FailureCode.INVALID_REQUEST,
    401: FailureCode.AUTH_REQUIRED,
    402: FailureCode.QUOTA_EXHAUSTED,
    403: FailureCode.AUTH_REQUIRED,
    413: FailureCode.INVALID_REQUEST,
    429: FailureCode.RATE_LIMITED,
}

# The first match wins: a spent window also says 429, a missing model may say 404, and both know better than the number.
_PROSE: tuple[tuple[FailureCode, re.Pattern[str]], ...] = tuple(
    (code, re.compile(pattern, re.IGNORECASE))
    for code, pattern in (
        (
            FailureCode.QUOTA_EXHAUSTED,
            r"(?:hit|reached|exceeded) your (?:\S+ )?(?:usage |session |weekly |monthly )?limit|usage[ _]limit"
            r"|quota exceeded|exceeded your current quota|insufficient[_ ]quota"
            r"|credit balance is too low|out of credits",
        ),
        (
            FailureCode.MODEL_UNAVAILABLE,
            r"model[_ ]not[_ ]found|issue with the selected model|no such model|unknown model"
            r"|\bmodel\b.{0,80}\b(?:not found|does not exist|not supported)|\b404\b.{0,40}\bmodel\b"
            r"|not_found_error.{0,20}\bmodel\b",
        ),
        (
            FailureCode.AUTH_REQUIRED,
            r"not logged in|please run /login|run the login command|session has expired|failed to authenticate"
            r"|unauthorized|(?:invalid|incorrect)[_ ]api[_ ]key|missing environment variable: \S*(?:key|token)",
        ),
        (FailureCode.RATE_LIMITED, r"too many requests|rate[ _]limit"),
        (FailureCode.PROVIDER_OVERLOADED, r"overloaded|at capacity|experiencing high demand|service unavailable"),
        (FailureCode.REFUSED, r"violate our usage policy|content[_ ]filter|content policy"),
        (FailureCode.BUDGET_EXHAUSTED, r"max_output_tokens|context window|prompt is too long|context[_ ]length"),
        (
            FailureCode.PROVIDER_UNREACHABLE,
            r"stream disconnected|connection (?:error|refused|reset)|unable to connect|ENOTFOUND",
        ),
    )
)

_UNKNOWN_SESSION = re.compile(
    r"no conversation found|no rollout found|session not found|--resume requires a valid session", re.IGNORECASE
)
_STATUS_IN_PROSE = re.compile(r"(?:unexpected|last) status:? (\d{3})\b|API Error: (?:\D{0,40}\()?(\d{3})\b")


def code_of_status(status: int | None) -> FailureCode | None:
    """The code of an HTTP status; None for one that says nothing certain, such as a 404 (a model? an address?)."""
    if status is None:
        return None
    return FailureCode.PROVIDER_OVERLOADED if 500 <= status <= 599 else _STATUS.get(status)


def code_of_prose(text: str) -> FailureCode | None:
    """The code that a vendor's message stands for; None when it says nothing known."""
    for code, pattern in _PROSE:
        if pattern.search(text):
            return code
    return code_of_status(status_in(text))


def status_in(text: str) -> int | None:
    """The HTTP status that a message names, in the phrases in which vendors name one."""
    match = _STATUS_IN_PROSE.search(text)
    return int(match[1] or match[2]) if match else None


def is_unknown_session(text: str) -> bool:
    """*text* says that the conversation asked for does not exist (any more)."""
    return _UNKNOWN_SESSION.search(text) is not None


def recoded(failure: Failure, code: FailureCode | None) -> Failure:
    """*failure* under the code that its evidence deserves, with that code's own advice about trying again."""
    return failure if code is None else replace(failure, code=code, retryable=None)


def exit_facts(end: ProcessEnd) -> dict[str, str]:
    """What is out of the ordinary about the end of a process whose terminal frame was seen."""
    if end.signal is not None:
        return {"signal": str(end.signal)}
    return {"exit_code": str(end.code)} if end.code else {}


def was_ended_from_outside(end: ProcessEnd) -> bool:
    """A signal ended the process, directly or as the 128 + N of a shell's convention, or nothing has yet."""
    return end.signal is not None or end.code is None or end.code > 128


def history_gone(facts: Mapping[str, str] | None = None) -> Failure:
    """The failure of a resume that began a new session: the agent knows the conversation no more."""
    message = "the agent began a new session instead of resuming: the conversation does not exist any more"
    return Failure(code=FailureCode.LOST, message=message, metadata=facts or {})
