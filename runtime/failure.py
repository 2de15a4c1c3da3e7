"""Why something did not work, as a value that can be stored, emitted and sent, and the exceptions that carry it.

Codes are the closed set of requirements E-4. A failure is clean by construction: its message and metadata are scrubbed
of secrets and private endpoints and bounded in length, so that no path from an exception to a wire can forget it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType

import msgspec

from runtime.redact import clip, scrub

MESSAGE_LIMIT = 4096
METADATA_VALUE_LIMIT = 1024
ENVELOPE_VERSION = 1
ENVELOPE_LIMIT_BYTES = 64 * 1024
ORIGINAL_CODE = "original_code"


class FailureCode(StrEnum):
    """The closed set of reasons; a value never changes its meaning."""

    UNKNOWN = "unknown"
    CANCELLED = "cancelled"
    DEADLINE_EXCEEDED = "deadline_exceeded"
    INVALID_REQUEST = "invalid_request"
    TARGET_NOT_FOUND = "target_not_found"
    SESSION_NOT_FOUND = "session_not_found"
    SESSION_BUSY = "session_busy"
    CAPACITY_EXHAUSTED = "capacity_exhausted"
    UNSUPPORTED = "unsupported"
    PROCESS_FAILED = "process_failed"
    OUTPUT_INVALID = "output_invalid"
    REFUSED = "refused"
    LOST = "lost"
    PROVIDER_UNREACHABLE = "provider_unreachable"
    DELIVERY_UNKNOWN = "delivery_unknown"
    BUDGET_EXHAUSTED = "budget_exhausted"
    SILENCE_TIMEOUT = "silence_timeout"
    INTERRUPTED = "interrupted"
    CONFLICT = "conflict"
    NOT_FOUND = "not_found"
    WORKSPACE_BUSY = "workspace_busy"
    AUTH_REQUIRED = "auth_required"
    RATE_LIMITED = "rate_limited"
    QUOTA_EXHAUSTED = "quota_exhausted"
    MODEL_UNAVAILABLE = "model_unavailable"
    PROVIDER_OVERLOADED = "provider_overloaded"
    OUTPUT_LIMIT = "output_limit"
    STORAGE_FULL = "storage_full"
    UNAUTHENTICATED = "unauthenticated"
    PERMISSION_DENIED = "permission_denied"
    DRAINING = "draining"
    CURSOR_OUT_OF_RANGE = "cursor_out_of_range"
    INTERNAL = "internal"


RETRYABLE = frozenset(
    {
        FailureCode.DEADLINE_EXCEEDED,
        FailureCode.SESSION_BUSY,
        FailureCode.CAPACITY_EXHAUSTED,
        FailureCode.PROVIDER_UNREACHABLE,
        FailureCode.SILENCE_TIMEOUT,
        FailureCode.WORKSPACE_BUSY,
        FailureCode.RATE_LIMITED,
        FailureCode.PROVIDER_OVERLOADED,
        FailureCode.STORAGE_FULL,
        FailureCode.DRAINING,
    }
)
"""Codes for which trying again later can help (advice to the caller; nothing here retries because of it)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """One reason. ``message`` is prose for a person; ``metadata`` is string to string and holds nothing sensitive.

    An empty message becomes a default for the code; ``retryable`` None becomes the code's default of E-4.
    """

    code: FailureCode
    message: str = ""
    retryable: bool | None = None
    metadata: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        message = clip(scrub(self.message), MESSAGE_LIMIT).strip() or default_message(self.code)
        object.__setattr__(self, "message", message)
        if self.retryable is None:
            object.__setattr__(self, "retryable", self.code in RETRYABLE)
        object.__setattr__(self, "metadata", MappingProxyType({k: _clean(k, v) for k, v in self.metadata.items()}))

    def __hash__(self) -> int:
        return hash((self.code, self.message, self.retryable, tuple(sorted(self.metadata.items()))))


def _clean(key: str, value: str) -> str:
    if not isinstance(key, str) or not isinstance(value, str):
        raise TypeError(f"failure metadata {key!r} must be a string, found {type(value).__name__}")
    return clip(scrub(value), METADATA_VALUE_LIMIT)


def default_message(code: FailureCode) -> str:
    """A sentence for a failure that came without one: ``session_busy`` → ``session busy``."""
    return code.value.replace("_", " ")


class FailureError(Exception):
    """An exception that carries a :class:`Failure`; subclasses fix the code."""

    code = FailureCode.INTERNAL

    def __init__(self, message: str = "", **metadata: str) -> None:
        self.failure = Failure(code=self.code, message=message, metadata=metadata)
        super().__init__(self.failure.message)

    @classmethod
    def of(cls, failure: Failure) -> FailureError:
        """The exception that carries exactly *failure*."""
        error = cls.__new__(cls)
        Exception.__init__(error, failure.message)
        error.failure = failure
        return error


class RunCancelled(FailureError):
    """The run was cancelled on request; its session can be resumed."""

    code = FailureCode.CANCELLED


class DeadlineExceeded(FailureError):
    """The run deadline passed. Only the run's own deadline raises this, never a socket's or a probe's time-out."""

    code = FailureCode.DEADLINE_EXCEEDED


class InvalidRequest(FailureError):
    """The request itself is wrong; sending it again unchanged cannot help. ``field`` names the culprit."""

    code = FailureCode.INVALID_REQUEST


class TargetNotFound(FailureError):
    """No registered provider serves this adapter and target; nothing is substituted."""

    code = FailureCode.TARGET_NOT_FOUND


class SessionNotFound(FailureError):
    """The logical session does not exist, or is not one of this target's."""

    code = FailureCode.SESSION_NOT_FOUND


class SessionBusy(FailureError):
    """Another run is active on the session; try again when it has ended."""

    code = FailureCode.SESSION_BUSY


class CapacityExhausted(FailureError):
    """No free execution slot; try again later."""

    code = FailureCode.CAPACITY_EXHAUSTED


class Conflict(FailureError):
    """The same key was used before with another input."""

    code = FailureCode.CONFLICT


class NotFound(FailureError):
    """No such run or artifact for this principal."""

    code = FailureCode.NOT_FOUND


class CursorOutOfRange(FailureError):
    """The cursor lies outside of what is held; ``first``, ``last`` and ``outcome`` say what is."""

    code = FailureCode.CURSOR_OUT_OF_RANGE


class DecodeError(ValueError):
    """Bytes that are not a failure envelope; nothing can be concluded from them."""


def failure_from_exception(error: BaseException) -> Failure:
    """The failure that *error*, or the first cause in its chain that knows, stands for.

    Cancellation of any kind is ``cancelled``; an exception nobody typed is ``internal`` with a scrubbed message.
    """
    for link in _chain(error):
        if isinstance(link, FailureError):
            return link.failure
        if isinstance(link, asyncio.CancelledError):
            return Failure(code=FailureCode.CANCELLED)
    return Failure(code=FailureCode.INTERNAL, message=_describe(error), retryable=False)


def _chain(error: BaseException) -> Iterator[BaseException]:
    seen: set[int] = set()
    link: BaseException | None = error
    while link is not None and id(link) not in seen:
        seen.add(id(link))
        yield link
        link = link.__cause__ or link.__context__


def _describe(error: BaseException) -> str:
    kind = type(error).__name__
    try:
        text = str(error)
    except Exception:  # a broken __str__ must not hide the error it describes
        text = ""
    return f"unexpected {kind}: {text}" if text else f"unexpected {kind}"


class _Envelope(msgspec.Struct, forbid_unknown_fields=False):
    v: int
    code: str
    message: str
    retryable: bool
    metadata: dict[str, str]


def encode_failure(failure: Failure) -> bytes:
    """*failure* as canonical JSON: sorted keys, UTF-8, so that equal failures are equal bytes.

    A failure decoded from a code of the future is encoded with that code again.

    Raises:
        TypeError: *failure* is not a Failure (a readiness error, for one, is another family and is refused).
    """
    if not isinstance(failure, Failure):
        raise TypeError(f"only a Failure can be encoded, found {type(failure).__name__}")
    metadata = dict(failure.metadata)
    code = failure.code.value
    if failure.code is FailureCode.UNKNOWN and ORIGINAL_CODE in metadata:
        code = metadata.pop(ORIGINAL_CODE)
        if (displaced := metadata.pop(f"{ORIGINAL_CODE}.displaced", None)) is not None:
            metadata[ORIGINAL_CODE] = displaced
    envelope = {
        "v": ENVELOPE_VERSION,
        "code": code,
        "message": failure.message,
        "retryable": failure.retryable,
        "metadata": metadata,
    }
    return msgspec.json.encode(envelope, order="sorted")


def decode_failure(data: bytes) -> Failure:
    """The failure in *data* (at most 64 KiB); a code or version this build does not know becomes ``unknown``, whole.

    Raises:
        DecodeError: too large, not JSON, a duplicate key, or not an envelope.
    """
    if len(data) > ENVELOPE_LIMIT_BYTES:
        raise DecodeError(f"failure envelope is {len(data)} bytes; the limit is {ENVELOPE_LIMIT_BYTES}")
    _refuse_duplicate_keys(data)
    try:
        envelope = msgspec.json.decode(data, type=_Envelope)
    except (msgspec.DecodeError, RecursionError) as error:
        raise DecodeError(f"not a failure envelope: {error}") from error
    metadata = dict(envelope.metadata)
    if envelope.v != ENVELOPE_VERSION:
        metadata["envelope_version"] = str(envelope.v)
    try:
        code = FailureCode(envelope.code)
    except ValueError:
        code = FailureCode.UNKNOWN
        if ORIGINAL_CODE in metadata:
            metadata[f"{ORIGINAL_CODE}.displaced"] = metadata[ORIGINAL_CODE]
        metadata[ORIGINAL_CODE] = envelope.code
    return Failure(code=code, message=envelope.message, retryable=envelope.retryable, metadata=metadata)


def _refuse_duplicate_keys(data: bytes) -> None:
    """msgspec keeps the last of two equal keys; a forged second ``code`` must not win silently."""
    import json

    def unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
        keys = [key for key, _ in pairs]
        if len(set(keys)) != len(keys):
            raise DecodeError(f"failure envelope repeats the key {next(k for k in keys if keys.count(k) > 1)!r}")
        return dict(pairs)

    try:
        json.loads(data, object_pairs_hook=unique)
    except DecodeError:
        raise
    except (ValueError, RecursionError) as error:
        raise DecodeError(f"not a failure envelope: {error}") from error
