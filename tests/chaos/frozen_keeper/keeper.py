"""The keeper: forks a warden for every run, on request of a node, and forgets it.

It is a process of its own because forking beside gRPC's threads kills children, and because a fork of this small
interpreter costs a millisecond. It survives its nodes, however they end, and serves any new one. It runs from a copy of
these files in the data directory, named by their hash, so that an upgrade never changes the code of a living keeper::

    python -I -S <data>/keeper-<hash>/keeper.py detach|stay LINGER_S

``detach`` returns as soon as the keeper listens (or another one already does) and leaves it behind; ``stay`` is for
supervisors: in the foreground, and never leaving by itself. The files of the copy lie flat in one directory, yet import each
other by their names in the project: the copy's directory is made the package ``providers.keeper`` before the first of
those imports. There is thus one spelling, and type checker, tests and the copy all see the same modules.
"""

from __future__ import annotations

import gc
import os
import select
import signal
import socket
import sys
import types
from collections.abc import Callable
from functools import partial

if __name__ == "__main__":
    for _name in ("providers", "providers.keeper"):
        _package = types.ModuleType(_name)
        _package.__path__ = [os.path.dirname(os.path.abspath(__file__))]
        sys.modules[_name] = _package

from providers.keeper import kernel, run_directory, spares
from providers.keeper.launch import arrange_signals
from providers.keeper.protocol import (
    PROTOCOL,
    SPAWN_DESCRIPTORS,
    Frame,
    FrameReader,
    Kind,
    ProtocolError,
    SpawnOrder,
    encode,
)
from providers.keeper.warden import run_warden

SOCKET = "sock"
BACKLOG = 64
SPARES = 2
"""Wardens forked ahead: a fork takes half a millisecond of the time to a run's first byte."""

_READ_BYTES = 256 << 10
_DESCRIPTORS_PER_READ = 32 * SPAWN_DESCRIPTORS


class NodeConnection:
    """One connected node, and the descriptors that came ahead of their spawn frame."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.is_node = False
        self._reader = FrameReader()
        self._descriptors: list[int] = []

    def receive(self) -> list[Frame]:
        """The frames that have arrived.

        Raises:
            ConnectionError: the node is gone, politely or not.
            ProtocolError: it is no node.
        """
        flags = socket.MSG_DONTWAIT | socket.MSG_CMSG_CLOEXEC
        try:
            data, descriptors, told, _ = socket.recv_fds(self.sock, _READ_BYTES, _DESCRIPTORS_PER_READ, flags)
        except BlockingIOError:
            return []
        self._descriptors += descriptors
        if told & socket.MSG_CTRUNC:
            raise ProtocolError("descriptors were lost")
        if not data:
            raise ConnectionResetError
        return self._reader.feed(data)

    def take_descriptors(self) -> list[int]:
        """Those of the oldest spawn frame."""
        taken, self._descriptors = self._descriptors[:SPAWN_DESCRIPTORS], self._descriptors[SPAWN_DESCRIPTORS:]
        if len(taken) < SPAWN_DESCRIPTORS:
            self._descriptors = taken
            raise ProtocolError("a spawn without its descriptors")
        return taken

    def close(self) -> None:
        self.sock.close()
        for descriptor in self._descriptors:
            os.close(descriptor)
        self._descriptors.clear()


class Keeper:
    """Serves nodes until nobody needs it: told ``bye`` or ``retire``, or *linger_s* without a node, and no warden lives.

    On TERM it leaves at once: wardens do not need it.
    """

    def __init__(self, listener: socket.socket, lock: int, *, may_leave: bool, linger_s: float) -> None:
        self._listener = listener
        self._lock = lock
        self._may_leave, self._linger_s = may_leave, linger_s
        self._connections: list[NodeConnection] = []
        self._wardens: set[int] = set()
        self._spares: dict[int, socket.socket] = {}
        self._is_retired = False
        self._is_dismissed = False
        self._alone_since = kernel.boot_now()
        self._wake, wake_end = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._inherited = [lock, self._wake, wake_end]
        self._is_terminated = False
        signal.set_wakeup_fd(wake_end, warn_on_full_buffer=False)

    def serve(self) -> None:
        while not self._is_done():
            self._wait()
            self._reap()
        run_directory.forget(SOCKET)

    def _is_done(self) -> bool:
        if self._is_terminated or self._wardens:
            return self._is_terminated
        has_node = any(connection.is_node for connection in self._connections)
        is_forgotten = not has_node and kernel.boot_now() - self._alone_since >= self._linger_s
        return self._is_retired or (self._may_leave and (is_forgotten or (self._is_dismissed and not has_node)))

    def _wait(self) -> None:
        poll = select.poll()
        connections = {connection.sock.fileno(): connection for connection in self._connections}
        for descriptor in (self._wake, self._listener.fileno(), *connections):
            poll.register(descriptor, select.POLLIN)
        for descriptor, _ in poll.poll(self._timeout_ms()):
            if descriptor == self._wake:
                self._is_terminated |= signal.SIGTERM in os.read(self._wake, 4096)
            elif descriptor == self._listener.fileno():
                self._accept()
            else:
                self._hear(connections[descriptor])

    def _timeout_ms(self) -> float | None:
        """Nothing but the end of the lingering has a time of its own; while wardens live theirs is the next event."""
        if not self._may_leave or self._wardens or any(connection.is_node for connection in self._connections):
            return None
        return max(0.0, self._alone_since + self._linger_s - kernel.boot_now()) * 1000 + 1

    def _accept(self) -> None:
        try:
            sock, _ = self._listener.accept()
        except OSError:
            return
        self._connections.append(NodeConnection(sock))

    def _hear(self, connection: NodeConnection) -> None:
        try:
            for frame in connection.receive():
                self._obey(connection, frame)
            self._refill()
        except (OSError, ProtocolError):
            self._drop(connection)

    def _drop(self, connection: NodeConnection) -> None:
        connection.close()
        self._connections.remove(connection)
        self._alone_since = kernel.boot_now()

    def _obey(self, connection: NodeConnection, frame: Frame) -> None:
        match frame["kind"]:
            case Kind.HELLO:
                # a node of this very version is back: whatever was said before is over
                connection.is_node, self._is_retired, self._is_dismissed = True, False, False
                hello = {"kind": Kind.HELLO, "protocol": PROTOCOL, "pid": os.getpid()}
                connection.sock.send(encode(hello), socket.MSG_NOSIGNAL | socket.MSG_DONTWAIT)
            case Kind.SPAWN:
                self._spawn(connection.take_descriptors(), frame)
            case Kind.BYE:
                self._is_dismissed, connection.is_node = True, False
            case Kind.RETIRE:
                self._is_retired = True

    def _spawn(self, descriptors: list[int], frame: Frame) -> None:
        """Make a warden for *frame*. A refusal is the closed link: the node finds that nothing was spawned."""
        try:
            order = SpawnOrder.from_frame(frame)
            if not self._is_retired and not self._give_to_spare(frame, descriptors):
                self._wardens.add(self._fork(partial(run_warden, order, *descriptors)))
        except OSError as error:
            failed = {"kind": Kind.SPAWN_FAILED, "stage": "fork", "errno": error.errno, "message": error.strerror}
            os.write(descriptors[0], encode(failed))
        finally:
            for descriptor in descriptors:
                os.close(descriptor)

    def _give_to_spare(self, frame: Frame, descriptors: list[int]) -> bool:
        """Whether a spare took the order; one that has died, or cannot, leaves it to a warden forked now."""
        while self._spares:
            pid, sock = self._spares.popitem()
            with sock:
                if spares.give(sock, frame, descriptors):
                    self._wardens.add(pid)
                    return True
        return False

    def _refill(self) -> None:
        """Fork spares ahead; only where a node spoke, so that spares which die at once are not forked without end."""
        while len(self._spares) < SPARES and not self._is_retired:
            ours, theirs = socket.socketpair()
            try:
                pid = self._fork(partial(self._be_spare, ours, theirs))
            except OSError:
                ours.close()
                return
            finally:
                theirs.close()
            self._spares[pid] = ours

    def _be_spare(self, ours: socket.socket, theirs: socket.socket) -> None:
        ours.close()
        if (taken := spares.take(theirs)) is not None:
            order, descriptors = taken
            run_warden(order, *descriptors)

    def _fork(self, be: Callable[[], None]) -> int:
        """Fork a process that does *be* and ends; its pid.

        Raises:
            OSError: no process could be made.
        """
        pid = os.fork()
        if pid != 0:
            return pid
        status = 1
        try:
            self._forsake()
            be()
            status = 0
        except BaseException:
            sys.excepthook(*sys.exc_info())
        finally:
            os._exit(status)

    def _forsake(self) -> None:
        """In a warden: let go of all that is the keeper's, its lock above all, or no new keeper could start."""
        signal.set_wakeup_fd(-1)
        for descriptor in self._inherited:
            os.close(descriptor)
        self._listener.close()
        for sock in (*self._spares.values(), *(connection.sock for connection in self._connections)):
            sock.close()  # not the descriptors that came with an order: they are the new warden's

    def _reap(self) -> None:
        while self._wardens or self._spares:
            pid, _ = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return
            self._wardens.discard(pid)
            if (sock := self._spares.pop(pid, None)) is not None:
                sock.close()


def _listen() -> socket.socket:
    run_directory.forget(SOCKET)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    mask = os.umask(0o177)
    try:
        listener.bind(SOCKET)
    finally:
        os.umask(mask)
    listener.listen(BACKLOG)
    return listener


def _keep(*, may_leave: bool, linger_s: float, ready: int | None) -> None:
    """Be the keeper of the working directory; return at once when there is one."""
    lock = run_directory.take_lock()
    if lock is None:
        return
    kernel.set_process_name("iop-keeper")
    kernel.forbid_core_dumps()
    kernel.set_oom_score(kernel.KEEPER_OOM_SCORE)
    arrange_signals()
    keeper = Keeper(_listen(), lock, may_leave=may_leave, linger_s=linger_s)
    if ready is not None:
        os.close(ready)
    # what exists now is never collected: a collection in a warden would touch, and so copy, all of these pages
    gc.collect()
    gc.freeze()
    keeper.serve()


def _detach() -> int | None:
    """Fork and go on in the child, with the descriptor to close when it is ready; the parent waits for that and ends."""
    ready, ready_end = os.pipe()
    if os.fork() != 0:
        os.close(ready_end)
        os.read(ready, 1)
        os._exit(0)
    os.close(ready)
    os.setsid()
    return ready_end


def main(argv: list[str]) -> None:
    mode, linger_s = argv[1], float(argv[2])
    os.chdir(os.path.dirname(os.path.abspath(__file__)))
    ready = _detach() if mode == "detach" else None
    _keep(may_leave=mode == "detach", linger_s=linger_s, ready=ready)


if __name__ == "__main__":
    main(sys.argv)
