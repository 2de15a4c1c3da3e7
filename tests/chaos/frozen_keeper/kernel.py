"""What a keeper and its wardens ask of the kernel and Python's standard library has no call for.

Everything that may be refused (a container without the capability, a kernel without the feature) answers False instead of
raising: these are additions, and the proofs never rest on them.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import resource
import struct
import time

KEEPER_OOM_SCORE = -500
CHILD_OOM_SCORE = 500
CHILD_NICE = 10

_PR_SET_NAME = 15
_PR_SET_CHILD_SUBREAPER = 36
_FS_IOC_GETFLAGS = 0x80086601
_FS_IOC_SETFLAGS = 0x40086602
_FS_APPEND_FL = 0x20

_libc = ctypes.CDLL(None, use_errno=True)


def boot_now() -> float:
    """Seconds since boot, suspend included; it means nothing under another boot id."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def set_process_name(name: str) -> None:
    """Show *name* (at most 15 bytes) in ``ps -o comm``."""
    _libc.prctl(_PR_SET_NAME, ctypes.c_char_p(name.encode()), 0, 0, 0)


def become_subreaper() -> None:
    """From now on orphaned descendants become children of this process; what already is a descendant included."""
    if _libc.prctl(_PR_SET_CHILD_SUBREAPER, ctypes.c_ulong(1), 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), "PR_SET_CHILD_SUBREAPER")


def forbid_core_dumps() -> None:
    """A core file would hold the secrets of a spawn request."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def set_oom_score(score: int) -> bool:
    """Lowering it needs CAP_SYS_RESOURCE; raising is always allowed."""
    return _write("/proc/self/oom_score_adj", score)


def autogroup_is_on() -> bool:
    """Whether the scheduler weighs sessions; then a nice value inside of a session moves nothing between sessions."""
    try:
        with open("/proc/sys/kernel/sched_autogroup_enabled", "rb") as setting:
            return setting.read().strip() == b"1"
    except OSError:
        return False


def lower_autogroup(pid: int) -> bool:
    """Give the session of *pid* less CPU. Without CAP_SYS_ADMIN the kernel takes one such write in 0.1 s: try again."""
    return _write(f"/proc/{pid}/autogroup", CHILD_NICE)


def set_append_only(descriptor: int, *, on: bool) -> bool:
    """Set or clear the append-only attribute of an open file; needs CAP_LINUX_IMMUTABLE and a file system that has it."""
    try:
        flags = struct.unpack("l", fcntl.ioctl(descriptor, _FS_IOC_GETFLAGS, struct.pack("l", 0)))[0]
        wanted = flags | _FS_APPEND_FL if on else flags & ~_FS_APPEND_FL
        if wanted != flags:
            fcntl.ioctl(descriptor, _FS_IOC_SETFLAGS, struct.pack("l", wanted))
    except OSError:
        return False
    return True


def clear_append_only(path: str | os.PathLike[str]) -> bool:
    """Make *path* deletable again after its warden was killed; True when it carries no attribute any more."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        return set_append_only(descriptor, on=False)
    finally:
        os.close(descriptor)


def _write(path: str, value: int) -> bool:
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        os.write(descriptor, str(value).encode())
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return True
