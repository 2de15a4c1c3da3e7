"""From what a caller asked for to what will be executed: pure checks, before anything is stored or started."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from runtime.budget import Budget, parse_budget
from runtime.failure import Conflict, CursorOutOfRange, FailureCode, FailureError, InvalidRequest, NotFound
from runtime.records import RunRecord
from runtime.types import RunRequest, SessionMode, check_id, check_metadata, check_timeout, parse_session_mode, thaw

MAX_TIMEOUT = timedelta(days=365)
"""Longer is surely a mistake, and would not fit every clock."""


class Unsupported(FailureError):
    """The target cannot do what was asked of it."""

    code = FailureCode.UNSUPPORTED


@dataclass(frozen=True, slots=True, kw_only=True)
class HostPolicy:
    """The member ``iop`` of a request's policy: what the host itself obeys."""

    silence_timeout_s: float | None = None
    budget: Budget = field(default_factory=Budget)
    mcp_servers: tuple[str, ...] = ()


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
    _check_fork(request, mode)
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


def _check_fork(request: RunRequest, mode: SessionMode) -> None:
    if (mode is SessionMode.FORK) != bool(request.fork_from):
        need = "session_mode fork needs fork_from, the session to begin with"
        extra = f"fork_from is given with session_mode {mode.value}; it belongs to fork"
        raise InvalidRequest(need if mode is SessionMode.FORK else extra, field="fork_from")
    if request.fork_from:
        check_id(request.fork_from, name="fork_from")
        if request.fork_from == request.session_id:
            raise InvalidRequest("session_id is fork_from itself; name the new session, or none", field="session_id")


def check_forks(mode: SessionMode, forks: bool, *, target: str) -> None:
    """Refuse a fork that the target's provider cannot make; a fresh conversation would be another thing."""
    if mode is SessionMode.FORK and not forks:
        raise Unsupported(f"target {target!r} cannot fork a session; begin one with create_if_missing", target=target)


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
    if unknown := [key for key in own if key not in _PARSERS]:
        place = f"policy.iop.{unknown[0]}"
        raise InvalidRequest(f"{place} is unknown; known: {', '.join(_PARSERS)}", field=place)
    return HostPolicy(**{key: _PARSERS[key](value) for key, value in own.items()})


def check_policy(policy: Mapping[str, Any], declared: frozenset[str], *, target: str) -> None:
    """Refuse members of *policy* that the target's provider does not declare; a wish must not be lost in silence."""
    if unknown := sorted(set(policy) - declared - {"iop"}):
        known = ", ".join(sorted(declared)) or "none"
        raise InvalidRequest(
            f"policy.{unknown[0]} is not understood by target {target!r}; declared: {known}",
            field=f"policy.{unknown[0]}",
        )


def check_mcp_servers(policy: Mapping[str, Any], served: frozenset[str] | None, *, target: str) -> None:
    """Refuse MCP servers that the host does not declare: a request names some, it never makes one.

    Raises:
        Unsupported: the target's provider has no way to be told of any.
        InvalidRequest: one is not declared; the message lists those that are.
    """
    names, place = parse_policy(policy).mcp_servers, "policy.iop.mcp_servers"
    if names and served is None:
        raise Unsupported(f"target {target!r} cannot be given MCP servers; leave out {place}", field=place)
    if unknown := [name for name in names if name not in (served or ())]:
        known = ", ".join(sorted(served or ())) or "none"
        raise InvalidRequest(
            f"{place} names {unknown[0]!r}, which node.yaml does not declare; declared: {known}", field=place
        )


def _mcp_servers(value: Any) -> tuple[str, ...]:
    is_list = isinstance(value, (list, tuple)) and all(isinstance(name, str) and name for name in value)
    if not is_list or len(set(value)) != len(value):
        place = "policy.iop.mcp_servers"
        raise InvalidRequest(f"{place} is {repr(thaw(value))[:200]}; give a list of different names", field=place)
    return tuple(value)


def _silence(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < float("inf"):
        place = "policy.iop.silence_timeout_s"
        raise InvalidRequest(f"{place} is {value!r}; it must be a positive number", field=place)
    return float(value)


_PARSERS: Mapping[str, Callable[[Any], Any]] = {
    "silence_timeout_s": _silence,
    "budget": parse_budget,
    "mcp_servers": _mcp_servers,
}


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
