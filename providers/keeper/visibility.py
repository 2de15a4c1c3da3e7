"""Whether this machine lets a node see all processes that it may have to end.

What a *killed* warden left is found by its marker in ``/proc``. A ``/proc`` mounted with ``hidepid`` shows a user only
processes that it might trace: not those of other users, and not its own that made themselves undumpable. A warden that
lives needs none of this: it is the parent of what it ends.
"""

from __future__ import annotations

import os
from pathlib import Path

MOUNTS = Path("/proc/self/mountinfo")
_SHOWS_ALL = frozenset({"0", "off"})


def note(mounts: Path = MOUNTS) -> str:
    """What an operator should know; empty when everything can be seen."""
    if os.geteuid() == 0:
        return ""
    hides = next((value for value in _hidepid(mounts) if value not in _SHOWS_ALL), "")
    return hides and (
        f"/proc is mounted with hidepid={hides}: what a killed warden leaves is not found where it made itself invisible; "
        "remount it with hidepid=0, or run the node in a PID namespace of its own"
    )


def _hidepid(mounts: Path) -> list[str]:
    """The values of the option in every mount of ``/proc``, the topmost last."""
    try:
        lines = mounts.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
    found = []
    for line in lines:
        place, _, source = line.partition(" - ")
        if place.split()[4:5] == ["/proc"] and source.startswith("proc "):
            options = source.split()[2].split(",")
            found += [option.removeprefix("hidepid=") for option in options if option.startswith("hidepid=")]
    return found[-1:]
