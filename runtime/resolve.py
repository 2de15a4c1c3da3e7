"""From what a caller asked for to what will be executed: pure checks, before anything is stored or started."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from runtime.failure import Conflict, CursorOutOfRange, InvalidRequest, NotFound
from runtime.records import RunRecord
from runtime.types import RunRequest, SessionMode, check_id, check_metadata, check_timeout, parse_session_mode

MAX_TIMEOUT = timedelta(days=365)
"""Longer is surely a mistake, and would not fit every clock."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostPolicy:
    """The member ``iop`` of a request's policy: what the host itself obeys."""

    silence_timeout_s: float | None = None


def check_request(request: RunRequest, *, max_input_bytes: int) -> SessionMode:
    """Refuse what no provider could execute, naming thing, value and way out; answer the session mode.

    Raises:
        InvalidRequest: with ``field`` in its metadata.
    """
    if request.run_id:
        check_id(request.run_id, name="run_id")
    if request.session_id:
        check_id(request.session_id, name="session_id")
    if request.session_mode is None and request.session_id:
        raise InvalidRequest(
            "session_mode is not set although session_id is; set create_if_missing or require_existing",
            field="session_mode",
        )
    mode = SessionMode.CREATE_IF_MISSING if request.session_mode is None else parse_session_mode(request.session_mode)
    if mode is SessionMode.REQUIRE_EXISTING and not request.session_id:
        raise InvalidRequest("session_mode require_existing needs a session_id", field="session_id")
    _check_json(request.policy, "policy")
    check_timeout(request.timeout)
    if request.timeout is not None and request.timeout > MAX_TIMEOUT:
        raise InvalidRequest(
            f"timeout is {request.timeout.days} days; the longest is {MAX_TIMEOUT.days}", field="timeout"
        )
    size = len(request.input.encode("utf-8", "replace"))
    if size > max_input_bytes:
        raise InvalidRequest(
            f"input is {size} bytes; the limit is {max_input_bytes}: pass large material as files in the workspace",
            field="input",
        )
    check_workspace(request.workspace)
    check_metadata(request.metadata)
    return mode


def _check_json(value: Any, place: str) -> None:
    """Refuse numbers that JSON does not have: they would be stored as null, and mean something else afterwards."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            _check_json(item, f"{place}.{key}")
    elif isinstance(value, (list, tuple)):
        for index, item in enumerate(value):
            _check_json(item, f"{place}[{index}]")
    elif isinstance(value, float) and not math.isfinite(value):
        raise InvalidRequest(f"{place} is {value}; use a finite number", field=place)


def check_workspace(workspace: str) -> None:
    """Refuse a workspace that is not an absolute path of an existing directory; empty means "the default"."""
    if not workspace:
        return
    if "\0" in workspace or not os.path.isabs(workspace):
        raise InvalidRequest(f"workspace {workspace[:200]!r} is not an absolute path", field="workspace")
    if not os.path.isdir(workspace):
        state = "is not a directory" if os.path.exists(workspace) else "does not exist"
        raise InvalidRequest(f"workspace {workspace!r} {state} on this node", field="workspace")


def parse_policy(policy: Mapping[str, Any]) -> HostPolicy:
    """The host's own part of *policy*; what belongs to the provider is not looked at.

    Raises:
        InvalidRequest: an unknown key inside ``iop``, or a value of the wrong kind.
    """
    own = policy.get("iop", {})
    if not isinstance(own, Mapping):
        raise InvalidRequest(f"policy.iop must be an object, found {type(own).__name__}", field="policy.iop")
    known: dict[str, Callable[[Any], bool]] = {"silence_timeout_s": _is_positive_number}
    for key, value in own.items():
        if key not in known:
            raise InvalidRequest(f"policy.iop.{key} is unknown; known: {', '.join(known)}", field=f"policy.iop.{key}")
        if not known[key](value):
            raise InvalidRequest(
                f"policy.iop.{key} is {value!r}; it must be a positive number", field=f"policy.iop.{key}"
            )
    silence = own.get("silence_timeout_s")
    return HostPolicy(silence_timeout_s=None if silence is None else float(silence))


def check_policy(policy: Mapping[str, Any], declared: frozenset[str], *, target: str) -> None:
    """Refuse members of *policy* that the target's provider does not declare; a wish must not be lost in silence."""
    if unknown := sorted(set(policy) - declared - {"iop"}):
        known = ", ".join(sorted(declared)) or "none"
        raise InvalidRequest(
            f"policy.{unknown[0]} is not understood by target {target!r}; declared: {known}",
            field=f"policy.{unknown[0]}",
        )


def _is_positive_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < float("inf")


def check_same(record: RunRecord, digest: str) -> None:
    """Refuse a request whose id was used for another one; refuse a trimmed run with its outcome.

    Raises:
        Conflict: the requests differ.
        CursorOutOfRange: they are the same, but only the outcome is still held; the run is never executed again.
    """
    if record.digest != digest:
        raise Conflict(f"run {record.run_id!r} exists with another request; use a new run_id", run_id=record.run_id)
    if record.spec is None:
        raise CursorOutOfRange(
            f"run {record.run_id!r} ended as {record.state.value} and its events are no longer held",
            run_id=record.run_id, outcome=record.state.value,
        )  # fmt: skip


def run_not_found(run_id: str) -> NotFound:
    return NotFound(f"run {run_id!r} is not known here; list your runs to see which are", run_id=run_id)
