"""What a run directory says about its run, read by the node. The directory is the truth; messages are hints.

Nothing here blocks for longer than a small file takes, and nothing raises for a file that is missing or torn.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from providers.keeper import run_directory

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    """Which process a run is. Without the same boot id and pid namespace the numbers mean nothing."""

    boot_id: str
    pid_ns: int
    pid: int
    start_time: int
    marker: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ExitRecord:
    """How the main child ended: exactly one of code and signal is set.

    ``stopped`` is the reason of the stop that ended it (the node's word, ``deadline``, ``output_limit``,
    ``storage_full``), None when it ended by itself. ``killed`` tells that the grace was not enough. ``unread`` are the keys
    of messages to its stdin that were in the pipe, and of which it has read nothing; ``taken`` are the last ones that were in
    the pipe whole, None without a pipe, and from a warden that does not tell.
    """

    code: int | None
    signal: int | None
    stopped: str | None
    killed: bool
    stderr_bytes: int
    unread: tuple[str, ...] = ()
    taken: tuple[str, ...] | None = None

    def never_had(self, key: str) -> bool:
        """Whether the child, as far as is told, had nothing of the message *key*, which was among the last ones sent."""
        return key in self.unread or (self.taken is not None and key not in self.taken)


def read_owner(directory: Path) -> Owner | None:
    """The owner record, None when there is none that can be understood."""
    return _read(directory / run_directory.OWNER, owner_from)


def read_exit(directory: Path) -> ExitRecord | None:
    """The exit record, None when there is none that can be understood."""
    return _read(directory / run_directory.EXIT, exit_from)


def lock_is_held(directory: Path) -> bool:
    """Whether a warden of this directory lives."""
    try:
        descriptor = os.open(directory / run_directory.LOCK, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def tree_was_proven_gone(directory: Path) -> bool:
    """Whether the warden left in order. False with a free lock: it was killed, and something may have survived it."""
    return read_exit(directory) is not None and not os.path.lexists(directory / run_directory.CTL)


def owner_from(values: dict[str, Any]) -> Owner:
    """The owner in a record or a frame.

    Raises:
        KeyError, TypeError, ValueError: it holds none.
    """
    return Owner(
        boot_id=str(values["boot_id"]),
        pid_ns=int(values["pid_ns"]),
        pid=int(values["pid"]),
        start_time=int(values["start_time"]),
        marker=str(values["marker"]),
    )


def exit_from(values: dict[str, Any]) -> ExitRecord:
    """The exit in a record or a frame.

    Raises:
        KeyError, TypeError, ValueError: it holds none.
    """
    code, signal, stopped = values["code"], values["signal"], values["stopped"]
    if (code is None) == (signal is None):
        raise ValueError("neither a code nor a signal, or both")
    return ExitRecord(
        code=None if code is None else int(code),
        signal=None if signal is None else int(signal),
        stopped=None if stopped is None else str(stopped),
        killed=bool(values["killed"]),
        stderr_bytes=int(values["stderr_bytes"]),
        unread=tuple(map(str, values.get("unread", ()))),
        taken=None if (taken := values.get("taken")) is None else tuple(map(str, taken)),
    )


def _read(path: Path, parse: Callable[[dict[str, Any]], T]) -> T | None:
    try:
        return parse(json.loads(path.read_bytes()))
    except (OSError, ValueError, KeyError, TypeError):
        return None
