"""The warden: owns one child for life, in one run directory, and depends on nobody.

It is forked by the keeper and outlives it, and the node too. It holds the run's lock, is the sub-reaper of everything the
child starts, keeps the deadline and the bounds, ends the tree when asked, and writes how the child ended. The kernel's
answer "no child left" is the proof that the tree is gone: whatever a descendant does, it stays below its sub-reaper.

One thread and one poll: it sleeps until a child ends, a node speaks, stderr has bytes, or something is due.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import time

from providers.keeper import kernel, node_links, process_tree, run_directory
from providers.keeper.ending import DEADLINE, DEADLINE_GRACE_S, DEFAULT_STEPS, SURVIVORS_GRACE_S, Ending
from providers.keeper.launch import LaunchError, Stdio, fork_child
from providers.keeper.node_links import NodeLinks
from providers.keeper.output_bound import STORAGE_FULL, OutputBound
from providers.keeper.protocol import PROTOCOL, Frame, Kind, SpawnOrder, encode
from providers.keeper.stderr_file import StderrFile
from providers.keeper.stdin_pipe import StdinPipe

STDERR_FLUSH_S = 1.0
RECORD_RETRY_S = 1.0

_WALL = 0x40000000  # __WALL: children of clone() too, whatever signal they end with
_READ_BYTES = 64 << 10
_LAST_DRAIN_BYTES = 1 << 20
# a pipe holds at most this much; somebody outside of the tree may hold the other end and write for ever


class NotSpawned(Exception):
    """Nothing runs; ``frame`` is what to answer."""

    def __init__(self, frame: Frame) -> None:
        super().__init__(str(frame))
        self.frame = frame


def run_warden(order: SpawnOrder, link_fd: int, stdin_fd: int, stdout_fd: int) -> None:
    """Be the warden of *order*, in a freshly forked process, until its tree is gone.

    Not even TERM makes it leave before: nobody else can tell how the child ended.
    """
    kernel.set_process_name("iop-warden")
    os.setsid()
    link = socket.socket(fileno=link_fd)
    try:
        warden = _begin(order, link, stdin_fd, stdout_fd)
    except NotSpawned as refusal:
        _answer(link, refusal.frame)
        return
    warden.serve()


def _answer(link: socket.socket, frame: Frame) -> None:
    try:
        link.sendall(encode({"protocol": PROTOCOL, **frame}), socket.MSG_NOSIGNAL)
    except OSError:
        pass  # no node; the run directory says the same


def _begin(order: SpawnOrder, link: socket.socket, stdin_fd: int, stdout_fd: int) -> Warden:
    try:
        os.chdir(order.directory)
        lock = run_directory.take_lock()
    except OSError as error:
        raise _failed("directory", error) from error
    if lock is None or run_directory.was_used():
        raise NotSpawned({"kind": Kind.HELD})
    try:
        return _launch(order, link, lock, stdin_fd, stdout_fd)
    except OSError as error:
        run_directory.forget(run_directory.OWNER, run_directory.CTL)
        kernel.set_append_only(stdout_fd, on=False)
        raise _failed("setup", error) from error


def _failed(stage: str, error: OSError) -> NotSpawned:
    return _refusal(LaunchError(stage, error.errno or 0, error.strerror or str(error)))


def _refusal(error: LaunchError) -> NotSpawned:
    return NotSpawned({"kind": Kind.SPAWN_FAILED, **error._asdict()})


def _launch(order: SpawnOrder, link: socket.socket, lock: int, stdin_fd: int, stdout_fd: int) -> Warden:
    """Fork first: the child prepares itself while the files here are made, each of which costs as much as a fork."""
    kernel.become_subreaper()
    wake = _wake_on_child()
    stderr, stderr_end = os.pipe()
    os.set_blocking(stderr, False)
    stdin_fd, stdin = _stdin(order, stdin_fd)
    launch = fork_child(order, Stdio(stdin_fd, stdout_fd, stderr_end))
    os.close(stderr_end)
    os.close(stdin_fd)
    try:
        listener = node_links.listen()
        # a shell's `echo x > /dev/stdout` opens the file anew and would cut it; mode 0400 does not stop root
        is_protected = kernel.set_append_only(stdout_fd, on=True) or os.geteuid() != 0
        child = process_tree.read_process(launch.pid)
        start_time = child.start_time if child is not None else 0
        owner = run_directory.write_owner(pid=launch.pid, start_time=start_time, marker=order.marker)
    except OSError:
        launch.abandon()
        raise
    if (error := launch.go()) is not None:
        kernel.set_append_only(stdout_fd, on=False)
        run_directory.forget(run_directory.OWNER, run_directory.CTL)
        os.waitpid(launch.pid, 0)
        raise _refusal(error)
    spawned: Frame = {"kind": Kind.SPAWNED, "protocol": PROTOCOL, "is_protected": is_protected, **owner}
    return Warden(order, lock, wake, stderr, stdout_fd, stdin, spawned, listener, link)


def _stdin(order: SpawnOrder, given: int) -> tuple[int, StdinPipe | None]:
    """What the child reads from: the descriptor that came with the order, or a pipe of which the warden has the other end."""
    if not order.stdin_pipe:
        return given, None
    os.close(given)
    reading, writing = os.pipe()
    return reading, StdinPipe(writing)


def _wake_on_child() -> int:
    """A descriptor that becomes readable when a child's state changed."""
    wake, wake_end = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(wake_end, warn_on_full_buffer=False)
    return wake


class Warden:
    """A running child and all that is known about it."""

    def __init__(
        self,
        order: SpawnOrder,
        lock: int,
        wake: int,
        stderr: int,
        stdout_fd: int,
        stdin: StdinPipe | None,
        spawned: Frame,
        listener: socket.socket,
        link: socket.socket,
    ) -> None:
        now = kernel.boot_now()
        self._pid: int = spawned["pid"]
        self._lock, self._wake, self._stdout_fd, self._stderr = lock, wake, stdout_fd, stderr
        self._stdin = stdin
        self._stderr_file = StderrFile(run_directory.STDERR)
        self._deadline = order.deadline_boot_s
        self._bound = OutputBound(
            stdout_fd, output_bytes=order.output_bytes, disk_watermark_bytes=order.disk_watermark_bytes, now=now
        )
        self._prove = process_tree.born_within(os.getpid())
        self._ending: Ending | None = None
        self._status: int | None = None
        self._ended: tuple[float, float] = (0.0, 0.0)
        self._is_empty = False
        self._record_due: float | None = None
        self._flush_due: float | None = None
        self._must_lower_autogroup = kernel.autogroup_is_on()
        self._history: list[Frame] = [spawned]
        self._links = NodeLinks(listener, link, order.generation, lambda: list(self._history))
        self._links.tell(spawned)

    def serve(self) -> None:
        """Until the tree is gone and the exit record is on disk, or can never be."""
        self._lower_autogroup()
        while True:
            self._reap()
            now = kernel.boot_now()
            self._record_exit(now)
            if self._is_empty and self._record_due is None:
                break
            self._enforce(now)
            self._wait(max(0.0, self._next_due() - kernel.boot_now()))
        self._leave()

    # --- waiting

    def _next_due(self) -> float:
        if self._is_empty and self._record_due is not None:
            return self._record_due
        due = [self._bound.due]  # never more than a second away, so that a suspend delays a deadline by no more
        if self._ending is not None:
            due.append(self._ending.due)
        elif self._deadline is not None and self._status is None:
            due.append(self._deadline)
        due += [at for at in (self._record_due, self._flush_due) if at is not None]
        return min(due)

    def _wait(self, timeout_s: float) -> None:
        poll = select.poll()
        for descriptor in (self._wake, self._stderr, *self._links.descriptors()):
            if descriptor >= 0:
                poll.register(descriptor, select.POLLIN)
        if self._stdin is not None and self._stdin.is_waiting:
            poll.register(self._stdin.descriptor, select.POLLOUT)
        for descriptor, _ in poll.poll(timeout_s * 1000):
            if descriptor == self._wake:
                os.read(self._wake, 4096)
            elif self._stdin is not None and descriptor == self._stdin.descriptor:
                self._answer(self._stdin.write())
            elif descriptor == self._stderr:
                self._read_stderr(_READ_BYTES)
            else:
                for frame in self._links.receive(descriptor):
                    self._obey(frame)

    def _obey(self, frame: Frame) -> None:
        kind = frame["kind"]
        if kind == Kind.INPUT and self._stdin is not None:
            self._answer(self._stdin.take(frame))
            self._answer(self._stdin.write())
        elif kind == Kind.INPUT_END and self._stdin is not None:
            self._answer(self._stdin.end())
        elif kind == Kind.DEADLINE:
            at = frame.get("deadline_boot_s")
            self._deadline = float(at) if isinstance(at, int | float) else None
        elif kind == Kind.STOP:
            reason, steps, grace_s = frame.get("reason"), frame.get("steps"), frame.get("grace_s")
            if isinstance(reason, str) and isinstance(steps, list) and isinstance(grace_s, int | float):
                self._stop(reason, tuple(map(str, steps)), float(grace_s))

    def _answer(self, frames: list[Frame]) -> None:
        for frame in frames:
            self._links.tell(frame)

    # --- the tree

    def _scan(self) -> process_tree.Members:
        return process_tree.descendants(os.getpid())

    def _freeze(self) -> process_tree.Members:
        return process_tree.freeze(self._scan, self._prove)

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG | _WALL)
            except ChildProcessError:
                self._is_empty = True
                return
            if pid == 0:
                return
            if pid == self._pid:
                self._status = status
                self._ended = (kernel.boot_now(), time.time())
                if self._stdin is not None:
                    self._answer(self._stdin.give_up())

    def _stop(self, reason: str, steps: tuple[str, ...], grace_s: float) -> None:
        self._reap()
        if self._status is None and self._ending is None:
            self._ending = Ending(reason=reason, steps=steps, grace_s=grace_s, now=kernel.boot_now())
        if self._ending is not None and self._ending.reason is not None:
            self._tell_once({"kind": Kind.STOPPING, "reason": self._ending.reason})

    def _enforce(self, now: float) -> None:
        if self._is_empty:
            return
        if self._status is not None and self._ending is None:
            self._ending = Ending(reason=None, steps=DEFAULT_STEPS, grace_s=SURVIVORS_GRACE_S, now=now)
        if self._deadline is not None and now >= self._deadline and self._ending is None:
            self._stop(DEADLINE, DEFAULT_STEPS, DEADLINE_GRACE_S)
        if now >= self._bound.due:
            self._look(now)
        if self._flush_due is not None and now >= self._flush_due:
            self._flush_stderr()
        if self._ending is not None and (number := self._ending.next_step(now)) is not None:
            self._step(self._ending, number)

    def _look(self, now: float) -> None:
        if self._must_lower_autogroup:
            self._lower_autogroup()
        limit = self._bound.look(now)
        if limit is None or any(frame["kind"] == Kind.LIMIT for frame in self._history):
            return
        self._freeze()
        self._tell_once({"kind": Kind.LIMIT, "limit": limit})
        if self._ending is None:
            self._ending = Ending(reason=limit, steps=(), grace_s=0.0, now=now)
        self._ending.hurry(now)

    def _step(self, ending: Ending, number: signal.Signals) -> None:
        if number is not signal.SIGKILL:
            process_tree.send_to_all(self._scan(), number, self._prove)
        elif process_tree.send_to_all(self._freeze(), number, self._prove):
            ending.was_killed = True

    def _lower_autogroup(self) -> None:
        self._must_lower_autogroup = self._must_lower_autogroup and not kernel.lower_autogroup(self._pid)

    # --- stderr

    def _read_stderr(self, limit_bytes: int) -> None:
        """Take what is there; the pipe's end closes it here too."""
        while limit_bytes > 0 and self._stderr >= 0:
            try:
                data = os.read(self._stderr, _READ_BYTES)
            except BlockingIOError:
                break
            if not data:
                os.close(self._stderr)
                self._stderr = -1
            self._stderr_file.take(data)
            limit_bytes -= len(data)
        if self._stderr_file.is_behind and self._flush_due is None:
            self._flush_due = kernel.boot_now() + STDERR_FLUSH_S

    def _flush_stderr(self) -> None:
        self._stderr_file.flush()
        self._flush_due = None

    # --- the end

    def _record_exit(self, now: float) -> None:
        """Write the exit record, once: at the child's own end, or after a stop when the tree is empty."""
        is_due = self._record_due is None or now >= self._record_due
        if self._status is None or self._has_told(Kind.EXITED) or not is_due:
            return
        was_stopped = self._ending is not None and self._ending.reason is not None
        if was_stopped and not self._is_empty:
            return
        self._read_stderr(_LAST_DRAIN_BYTES)
        self._flush_stderr()
        record = self._exit_record(self._status)
        try:
            run_directory.write_exit(record)
        except OSError as error:
            if error.errno in run_directory.NO_SPACE:
                self._record_due = now + RECORD_RETRY_S
                self._tell_once({"kind": Kind.LIMIT, "limit": STORAGE_FULL})  # the node can make room
                return
            # the directory was removed under the run: telling the node is all that is left
        self._record_due = None
        self._tell_once({"kind": Kind.EXITED, **record})

    def _exit_record(self, status: int) -> Frame:
        code = os.waitstatus_to_exitcode(status)
        ended_boot_s, ended_at = self._ended
        return {
            "code": code if code >= 0 else None,
            "signal": -code if code < 0 else None,
            "stopped": self._ending.reason if self._ending is not None else None,
            "killed": self._ending.was_killed if self._ending is not None else False,
            "stderr_bytes": self._stderr_file.total_bytes,
            "unread": [] if self._stdin is None else self._stdin.unread,
            "taken": None if self._stdin is None else self._stdin.taken,
            "ended_boot_s": ended_boot_s,
            "ended_at": ended_at,
        }

    def _has_told(self, kind: Kind) -> bool:
        return any(frame["kind"] == kind for frame in self._history)

    def _tell_once(self, frame: Frame) -> None:
        if not self._has_told(frame["kind"]):
            self._history.append(frame)
        self._links.tell(frame)

    def _leave(self) -> None:
        self._read_stderr(_LAST_DRAIN_BYTES)
        self._flush_stderr()
        kernel.set_append_only(self._stdout_fd, on=False)
        run_directory.forget(run_directory.CTL)
        os.close(self._lock)
        # only now: who hears it may delete the directory or start anew in it
        self._links.tell({"kind": Kind.GONE})
        self._links.close()
