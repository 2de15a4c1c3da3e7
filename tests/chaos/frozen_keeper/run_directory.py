"""The warden's side of a run directory: who may own it, what is written there, and in which order.

``lock``   held (flock) by the living warden; free means that no warden lives
``ctl``    the warden's socket; removed only by a warden that saw its tree end, so one that outlived its warden is a sign
``owner``  which process the run is, before it can print its first byte
``exit``   how it ended
``stdout`` ``stderr``  what it printed

All names are relative: a warden's working directory is its run directory, so neither the length of the data directory's
path (a socket's name holds 107 bytes) nor a rename above it matters.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import time

LOCK = "lock"
CTL = "ctl"
OWNER = "owner"
EXIT = "exit"
STDOUT = "stdout"
STDERR = "stderr"

_LOCK_TRIES = 5
_LOCK_PAUSE_S = 0.004
# who asks whether the lock is held takes it (shared) for some microseconds; that must not look like another warden

NO_SPACE = frozenset({errno.ENOSPC, errno.EDQUOT})


def take_lock(name: str = LOCK) -> int | None:
    """The descriptor that holds the lock, or None when another process has it."""
    descriptor = os.open(name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    for attempt in range(_LOCK_TRIES):
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return descriptor
        except BlockingIOError:
            if attempt + 1 < _LOCK_TRIES:
                time.sleep(_LOCK_PAUSE_S)
    os.close(descriptor)
    return None


def was_used() -> bool:
    """Whether a child was started here before."""
    return os.path.exists(OWNER) or os.path.exists(EXIT)


def write_owner(*, pid: int, start_time: int, marker: str) -> dict[str, object]:
    """Write who owns the run and return it. Not synced: it means nothing after a reboot."""
    owner: dict[str, object] = {
        "boot_id": boot_id(),
        "pid_ns": os.stat("/proc/self/ns/pid").st_ino,
        "pid": pid,
        "start_time": start_time,
        "marker": marker,
    }
    _replace(OWNER, owner, durable=False)
    return owner


def write_exit(record: dict[str, object]) -> None:
    """Write how the child ended; it is on the disk when this returns.

    Raises:
        OSError: it is not. With an errno of ``NO_SPACE`` trying again can help.
    """
    _replace(EXIT, record, durable=True)


def boot_id() -> str:
    """Changes with every boot of the machine, and with nothing else."""
    # bytes: opened as text it would import a codec, in every warden anew
    with open("/proc/sys/kernel/random/boot_id", "rb") as source:
        return source.read().strip().decode()


def forget(*names: str) -> None:
    """Remove *names* where they exist."""
    for name in names:
        try:
            os.unlink(name)
        except OSError:
            pass


def _replace(name: str, record: dict[str, object], *, durable: bool) -> None:
    temporary = f"{name}.new"
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        os.write(descriptor, json.dumps(record).encode())
        if durable:
            os.fsync(descriptor)
    finally:
        os.close(descriptor)
    os.rename(temporary, name)
    if durable:
        _sync_directory()


def _sync_directory() -> None:
    descriptor = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
