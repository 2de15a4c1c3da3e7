"""Which declared mechanism of confinement this machine has at all; whether it holds is proved where it is used."""

from __future__ import annotations

import ctypes
import os
import shutil

_LANDLOCK_CREATE_RULESET = 444  # the same number on every architecture
_VERSION_FLAG = 1


def is_supported(mechanism: str, *, path: str) -> bool:
    """Whether *mechanism* (``bwrap``, ``landlock``, ``own``) can be tried here; a CLI's own one is the CLI's to know."""
    if mechanism == "bwrap":
        return shutil.which("bwrap", path=path) is not None
    return landlock_version() > 0 if mechanism == "landlock" else mechanism == "own"


def landlock_version() -> int:
    """The kernel's Landlock ABI, 0 when it has none."""
    if os.name != "posix":
        return 0
    libc = ctypes.CDLL(None, use_errno=True)
    return max(0, int(libc.syscall(_LANDLOCK_CREATE_RULESET, None, ctypes.c_size_t(0), _VERSION_FLAG)))
