"""The ids the host makes: time-ordered run keys, session ids, and the digest by which two requests are the same."""

from __future__ import annotations

import hashlib
import os
import time

import msgspec

from runtime.types import RunRequest, thaw

LOCAL = "local"
"""The principal of every caller until callers are told apart; part of every key from the first day."""

_CROCKFORD = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"


def new_ulid(now_ms: int | None = None) -> str:
    """26 characters that sort by time of making: 48 bits of milliseconds, 80 random bits."""
    stamp = time.time_ns() // 1_000_000 if now_ms is None else now_ms
    value = (stamp << 80) | int.from_bytes(os.urandom(10), "big")
    return "".join(_CROCKFORD[(value >> shift) & 31] for shift in range(125, -1, -5))


def is_ulid(text: str) -> bool:
    """Whether *text* is a key as :func:`new_ulid` makes it."""
    return len(text) == 26 and all(char in _CROCKFORD for char in text)


def made_ns(ulid: str) -> int:
    """When *ulid* was made, in nanoseconds of the epoch; far in the future for what is none, so that it looks young."""
    if not is_ulid(ulid):
        return 1 << 62
    value = 0
    for char in ulid:
        value = value << 5 | _CROCKFORD.index(char)
    return (value >> 80) * 1_000_000


def request_digest(request: RunRequest) -> str:
    """SHA-256 over the canonical encoding of all that was asked for; equal requests have equal digests.

    ``run_id`` is left out: it is the key under which digests are compared, and a caller that let the host make the id can
    so repeat its request under it.
    """
    fields = {name: getattr(request, name) for name in RunRequest.__dataclass_fields__ if name != "run_id"}
    if not request.fork_from:
        del fields[
            "fork_from"
        ]  # a field that was not there in the beginning: who does not use it has the digest of then
    fields["policy"] = thaw(request.policy)
    fields["metadata"] = dict(request.metadata)
    fields["timeout"] = None if request.timeout is None else request.timeout.total_seconds()
    return hashlib.sha256(msgspec.json.encode(fields, order="deterministic")).hexdigest()
