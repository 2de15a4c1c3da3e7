"""Ending what a killed warden left behind.

Without the warden nobody is their sub-reaper, so parentage proves nothing; the marker in the environment does. What was
started with a cleared environment is found while its ancestors live, and only then.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Collection
from dataclasses import dataclass

from providers.keeper import process_tree
from providers.keeper.launch import MARKER_VARIABLE
from providers.keeper.process_tree import Members, Process, Proof

END_TIMEOUT_S = 3.0
_FIRST_PAUSE_S = 0.002
_PAUSE_LIMIT_S = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class OrphansEnded:
    """``ended``: processes that were killed. ``left``: those still alive after the wait, whom the kernel protects or lets
    nobody signal. ``refused``: processes whose environment could not be read (another user's, a non-dumpable one).
    """

    ended: int
    left: int
    refused: int


def end_orphans(marker: str, *, exclude: Collection[int] = ()) -> OrphansEnded:
    """Freeze and kill every process that carries *marker*, and their descendants; wait until they are gone.

    Call it in a thread: it takes milliseconds as a rule, and up to ``END_TIMEOUT_S``. Zombies count as gone. This process
    and those in *exclude* are never touched.
    """
    search = _Search(marker, frozenset({os.getpid(), *exclude}))
    killed: set[tuple[int, int]] = set()
    give_up, pause_s = time.monotonic() + END_TIMEOUT_S, _FIRST_PAUSE_S
    while True:
        members = process_tree.freeze(search.scan, search.prove)
        if not members or time.monotonic() >= give_up:
            break
        process_tree.send_to_all(members, signal.SIGKILL, search.prove)
        killed |= {(process.pid, process.start_time) for process in members.values()}
        time.sleep(pause_s)
        pause_s = min(pause_s * 2, _PAUSE_LIMIT_S)
    left = {(process.pid, process.start_time) for process in members.values()}
    return OrphansEnded(ended=len(killed - left), left=len(left), refused=len(search.refused))


def living_markers() -> set[str]:
    """The markers that living processes carry, as far as this process may look. Call it in a thread."""
    prefix = f"{MARKER_VARIABLE}=".encode()
    found: set[str] = set()
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{name}/environ", "rb") as environ:
                entries = environ.read().split(b"\0")
        except OSError:
            continue  # another user's, or it has ended
        found |= {os.fsdecode(entry.removeprefix(prefix)) for entry in entries if entry.startswith(prefix)}
    return found


class _Search:
    def __init__(self, marker: str, spared: frozenset[int]) -> None:
        self._entry = f"{MARKER_VARIABLE}={marker}".encode()
        self._spared = spared
        self.refused: set[int] = set()

    def scan(self) -> Members:
        """The living processes with the marker, and their living descendants."""
        everyone = process_tree.all_processes()
        members = {pid: process for pid, process in everyone.items() if process.is_alive and self._is_marked(pid)}
        while True:
            more = {
                pid: process
                for pid, process in everyone.items()
                if process.parent in members and pid not in members and process.is_alive and pid not in self._spared
            }
            if not more:
                return members
            members |= more

    def prove(self, members: Members) -> Proof:
        def is_ours(process: Process) -> bool:
            return process.parent in members or self._is_marked(process.pid)

        return is_ours

    def _is_marked(self, pid: int) -> bool:
        if pid in self._spared:
            return False
        try:
            with open(f"/proc/{pid}/environ", "rb") as environ:
                return self._entry in environ.read().split(b"\0")
        except PermissionError:
            self.refused.add(pid)
        except OSError:
            pass  # it has ended
        return False
