"""Which processes belong together, and how to signal exactly those.

A process is named by its number *and* its start time: numbers are used again. Before a signal leaves, the process is held
by a pidfd and looked at once more, so that a number which changed hands in between is never hit.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import NamedTuple

FREEZE_ROUNDS = 64
# every round costs one scan and a fork bomb loses its living members in each: far fewer are enough

_DEAD = frozenset({"Z", "X", "x"})


class Process(NamedTuple):
    """One process as ``/proc/<pid>/stat`` showed it; ``start_time`` in clock ticks since boot."""

    pid: int
    parent: int
    start_time: int
    state: str
    threads: int

    @property
    def is_alive(self) -> bool:
        # a leader that left its threads behind shows as a zombie and runs on
        return self.state not in _DEAD or self.threads > 1


Members = dict[int, Process]
Scan = Callable[[], Members]
Proof = Callable[[Process], bool]
"""Answers whether a process, looked at again, still is one of ours."""
Prover = Callable[[Members], Proof]
"""Makes the proof that fits one scan."""


def read_process(pid: int, proc: str = "/proc") -> Process | None:
    """The process *pid* right now, zombies included; None when there is none."""
    try:
        with open(f"{proc}/{pid}/stat", "rb") as stat:
            text = stat.read()
    except OSError:
        return None
    # the name stands in brackets and may hold brackets and spaces itself: fields start after the last one
    fields = text[text.rindex(b")") + 2 :].split()
    return Process(pid, int(fields[1]), int(fields[19]), fields[0].decode(), int(fields[17]))


def all_processes(proc: str = "/proc") -> Members:
    """Every process that this one can see."""
    found = (read_process(int(name), proc) for name in os.listdir(proc) if name.isdigit())
    return {process.pid: process for process in found if process is not None}


def descendants(root: int, proc: str = "/proc") -> Members:
    """The living descendants of *root*, without itself. A snapshot: who is not frozen may fork behind it."""
    if os.path.exists(f"{proc}/thread-self/children"):
        return _by_children_files(root, proc)
    return _by_parents(root, proc)


def _by_children_files(root: int, proc: str) -> Members:
    members: Members = {}
    waiting = _children(root, proc)
    while waiting:
        pid = waiting.pop()
        process = read_process(pid, proc)
        if pid in members or process is None or not process.is_alive:
            continue
        members[pid] = process
        waiting += _children(pid, proc)
    return members


def _children(pid: int, proc: str) -> list[int]:
    children: list[int] = []
    try:
        for thread in os.listdir(f"{proc}/{pid}/task"):
            with open(f"{proc}/{pid}/task/{thread}/children", "rb") as names:
                children += map(int, names.read().split())
    except OSError:
        pass  # it ended meanwhile; its children are the sub-reaper's now and the next scan finds them there
    return children


def _by_parents(root: int, proc: str) -> Members:
    """For kernels without ``children`` files (CONFIG_PROC_CHILDREN)."""
    children: dict[int, list[Process]] = {}
    for process in all_processes(proc).values():
        children.setdefault(process.parent, []).append(process)
    members: Members = {}
    waiting = [root]
    while waiting:
        for process in children.get(waiting.pop(), ()):
            if process.is_alive and process.pid not in members:
                members[process.pid] = process
                waiting.append(process.pid)
    return members


def send_signal(process: Process, number: signal.Signals, is_ours: Proof) -> bool:
    """Signal exactly *process*; False when it has ended, is no longer ours, or the kernel refuses."""
    try:
        pidfd = os.pidfd_open(process.pid)
    except OSError:
        return False
    try:
        now = read_process(process.pid)
        if now is None or now.start_time != process.start_time or not is_ours(now):
            return False
        signal.pidfd_send_signal(pidfd, number)
    except OSError:
        return False
    finally:
        os.close(pidfd)
    return True


def send_to_all(members: Members, number: signal.Signals, prove: Prover) -> int:
    """Signal every one of *members*; how many were reached."""
    is_ours = prove(members)
    return sum(send_signal(process, number, is_ours) for process in members.values())


def freeze(scan: Scan, prove: Prover) -> Members:
    """Stop everything that *scan* finds until it finds nothing new; the last scan's members.

    A stopped process cannot fork, so what the last scan shows is all there is. A process that the kernel lets nobody
    signal is only listed.
    """
    stopped: set[tuple[int, int]] = set()
    members = scan()
    for _ in range(FREEZE_ROUNDS):
        fresh = [process for process in members.values() if (process.pid, process.start_time) not in stopped]
        if not fresh:
            break
        is_ours = prove(members)
        for process in fresh:
            send_signal(process, signal.SIGSTOP, is_ours)
            stopped.add((process.pid, process.start_time))
        members = scan()
    return members


def born_within(root: int) -> Prover:
    """The proof by parentage: the parent is *root* or a member of the same scan."""
    return lambda members: lambda process: process.parent == root or process.parent in members
