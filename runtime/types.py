"""What a run is, before and after the host has resolved it: plain values that no layer can change.

``RunRequest`` is what a caller asked for, field by field as sent; ``ExecutionSpec`` is what a provider executes, with
nothing left to look up. Neither knows of a wire, a node or an edge.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from enum import StrEnum
from fnmatch import fnmatchcase
from types import MappingProxyType
from typing import Any

from runtime.failure import InvalidRequest

RUN_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
"""Run and session ids: safe as a path component, as an argument and in SQL, by one strict pattern."""


class SessionMode(StrEnum):
    """What to do about the logical session a run names."""

    CREATE_IF_MISSING = "create_if_missing"
    """Resume the session, or create it when there is none."""
    REQUIRE_EXISTING = "require_existing"
    """Resume the session; fail with ``session_not_found`` when there is none."""
    FORK = "fork"
    """Begin a session with what was said in another one, which stays as it is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRequest:
    """A caller's request, as sent: empty strings mean "not given" and are resolved by the runtime, not here.

    ``session_mode`` is None when the caller gave none, and the text as sent when it is not a mode we know, so that the
    refusal can name it. ``fork_from`` is the session that mode ``fork`` begins with. ``timeout`` None or zero means no run
    deadline.
    """

    target: str
    run_id: str = ""
    adapter: str = ""
    session_id: str = ""
    session_mode: str | None = None
    fork_from: str = ""
    background: bool = False
    workspace: str = ""
    policy: Mapping[str, Any] = field(default_factory=dict)
    input: str = ""
    timeout: timedelta | None = None
    metadata: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _freeze_maps(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutionSpec:
    """One execution, fully resolved. Safe to share: nested maps are copied and read-only.

    Raises:
        InvalidRequest: ``run_id``, ``adapter`` or ``target`` is empty, the mode is unknown, the timeout is negative or
            not a timedelta, or a metadata value is not a string.
    """

    run_id: str
    adapter: str
    target: str
    session_id: str = ""
    session_mode: SessionMode = SessionMode.CREATE_IF_MISSING
    background: bool = False
    workspace: str = ""
    policy: Mapping[str, Any] = field(default_factory=dict)
    input: str = ""
    timeout: timedelta | None = None
    metadata: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("run_id", "adapter", "target"):
            if not getattr(self, name):
                raise InvalidRequest(f"{name} is empty; an execution needs one", field=name)
        object.__setattr__(self, "session_mode", parse_session_mode(self.session_mode))
        check_timeout(self.timeout)
        check_metadata(self.metadata)
        _freeze_maps(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class PermissionRules:
    """What a profile's operator decided before an agent asks. Patterns are globs over tool names; deny wins over allow.

    Where no rule decides somebody is asked, and after *patience_s* without an answer it is *deny*.
    """

    allow: tuple[str, ...] = ()
    deny: tuple[str, ...] = ()
    patience_s: float = 300.0

    def allows(self, tool: str) -> bool | None:
        """Whether *tool* may be used; None when somebody has to be asked."""
        if any(fnmatchcase(tool, pattern) for pattern in self.deny):
            return False
        return True if any(fnmatchcase(tool, pattern) for pattern in self.allow) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """What a provider serves.

    ``max_concurrency`` 0 means that only the host's own limit applies. ``survives_host`` says that a run goes on while
    the host is away, so a restarted host calls ``execute`` again with the same run directory to adopt it.
    ``default_workspace`` is used when a request names none (empty: a private directory), ``silence_timeout_s`` when it
    sets none (None: the host's). ``policy_keys`` are the members of a request's policy, beside the host's own, that the
    provider understands; any other is refused before acceptance. ``verbs`` are what can be done to a run beside cancelling
    it (:class:`runtime.provider.InputVerb`); another is refused. ``mcp_servers`` are names of those that a request may ask
    for, None when the provider cannot take any. ``forks`` says that a session can begin with what was said in another.
    ``labels`` are facts by which it is known; every start
    and terminal event of its runs carries them.
    """

    targets: tuple[str, ...]
    max_concurrency: int = 0
    survives_host: bool = False
    default_workspace: str = ""
    silence_timeout_s: float | None = None
    policy_keys: frozenset[str] = frozenset()
    permissions: PermissionRules = field(default_factory=PermissionRules)
    verbs: frozenset[str] = frozenset()
    mcp_servers: frozenset[str] | None = None
    forks: bool = False
    labels: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.max_concurrency < 0:
            raise InvalidRequest(
                f"max_concurrency is {self.max_concurrency}; it must be 0 or more", field="max_concurrency"
            )


def parse_session_mode(value: str) -> SessionMode:
    """The mode spelled *value*; any other spelling is an error, never a default.

    Raises:
        InvalidRequest: it is no mode; the message lists those that are.
    """
    try:
        return SessionMode(value)
    except ValueError:
        known = ", ".join(mode.value for mode in SessionMode)
        raise InvalidRequest(f"session_mode {value!r} is unknown; use one of {known}", field="session_mode") from None


def check_timeout(timeout: timedelta | None) -> None:
    """Refuse a timeout that no clock can keep."""
    if timeout is None:
        return
    if not isinstance(timeout, timedelta):
        raise InvalidRequest(f"timeout must be a duration, found {timeout!r}", field="timeout")
    if timeout < timedelta(0):
        raise InvalidRequest(
            f"timeout is {timeout.total_seconds()} s; use 0 for none, or a positive duration", field="timeout"
        )


def check_metadata(metadata: Mapping[str, str]) -> None:
    """Refuse metadata that is not text to text."""
    for key, value in metadata.items():
        if not isinstance(key, str) or not isinstance(value, str):
            raise InvalidRequest(f"metadata {key!r} must be a string, found {type(value).__name__}", field="metadata")


def check_id(value: str, *, name: str) -> None:
    """Refuse an id that could mean something else as a path, an option or a query."""
    if not RUN_ID.fullmatch(value):
        shown = value[:40] + ("…" if len(value) > 40 else "")
        raise InvalidRequest(
            f"{name} {shown!r} is not allowed; use 1 to 128 of A-Z a-z 0-9 . _ - beginning with a letter or digit",
            field=name,
        )


def freeze(value: Any) -> Any:
    """A read-only deep copy of JSON-like *value*: maps become read-only maps, lists become tuples."""
    if isinstance(value, Mapping):
        return MappingProxyType({key: freeze(item) for key, item in value.items()})
    if isinstance(value, (list, tuple)):
        return tuple(freeze(item) for item in value)
    return value


def thaw(value: Any) -> Any:
    """The JSON-encodable twin of a frozen *value*."""
    if isinstance(value, Mapping):
        return {key: thaw(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [thaw(item) for item in value]
    return value


def _freeze_maps(value: RunRequest | ExecutionSpec) -> None:
    object.__setattr__(value, "policy", freeze(value.policy))
    object.__setattr__(value, "metadata", freeze(value.metadata))
