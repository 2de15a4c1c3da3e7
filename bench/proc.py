"""What the kernel says of a process."""

from __future__ import annotations

import os

TICK_S = 1 / os.sysconf("SC_CLK_TCK")


def stat(pid: int) -> list[str]:
    """The fields of ``/proc/<pid>/stat`` from the state on; empty when there is no such process."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rsplit(")", 1)[1].split()
    except OSError:
        return []


def cpu_s(pid: int) -> float:
    """Seconds of CPU that the process itself has used, its children not counted."""
    fields = stat(pid)
    return (int(fields[11]) + int(fields[12])) * TICK_S if fields else 0.0


def is_alive(pid: int) -> bool:
    """A zombie does not count: it runs no more and holds nothing."""
    fields = stat(pid)
    return bool(fields) and fields[0] not in "ZX"


def children(pid: int) -> list[int]:
    """The living children of *pid*."""
    everyone = (int(name) for name in os.listdir("/proc") if name.isdigit())
    return [each for each in everyone if (fields := stat(each)) and int(fields[1]) == pid]


def memory_kib(pid: int) -> int:
    """Resident memory."""
    return _status(pid, "VmRSS:")


def private_kib(pid: int) -> int:
    """Memory that no other process shares."""
    with open(f"/proc/{pid}/smaps_rollup") as file:
        return sum(int(line.split()[1]) for line in file if line.startswith(("Private_Clean:", "Private_Dirty:")))


def threads(pid: int) -> int:
    return _status(pid, "Threads:")


def _status(pid: int, key: str) -> int:
    with open(f"/proc/{pid}/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith(key))
