"""The node's side of one warden: what is known about one run's process, and the stop.

What the warden says is applied as it arrives; what it did not live to say is read from the run directory. When a link ends
unexpectedly, the lock decides: held means connect again, free means the exit record tells, and without one the warden was
killed and the run's processes may live on unwatched.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable, Sequence
from pathlib import Path

from providers.keeper import run_directory
from providers.keeper.ending import STEPS
from providers.keeper.frame_writer import FrameWriter
from providers.keeper.inputs import InputRefusal, InputRefused, Inputs
from providers.keeper.protocol import PROTOCOL, Frame, FrameReader, Kind, ProtocolError, encode
from providers.keeper.records import (
    ExitRecord,
    Owner,
    exit_from,
    lock_is_held,
    owner_from,
    read_exit,
    read_owner,
    tree_was_proven_gone,
)

SETTLE_FIRST_S = 0.002
SETTLE_LIMIT_S = 1.0
# between the end of a link and the release of the lock lies the end of a process; then, while a lock is held by a warden
# that nobody can connect to, once a second

_READ_BYTES = 64 << 10


def connect_to_ctl(directory: Path) -> socket.socket | None:
    """A connection to the warden of *directory*, None when nobody listens (yet, or any more)."""
    return connect_within(directory, run_directory.CTL)


def connect_within(directory: Path, name: str) -> socket.socket | None:
    """Connect to the socket *name* in *directory*, however long its path is."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    try:
        descriptor = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        sock.close()
        return None
    try:
        sock.connect(f"/proc/self/fd/{descriptor}/{name}")
    except OSError:
        sock.close()
        return None
    finally:
        os.close(descriptor)
    return sock


class WardenLink:
    """One run's process, as far as it is known. All attributes change on the loop only, and each at most once.

    owner: which process it is; None until it is spawned.
    exit: how the main child ended; None while it runs.
    limit: ``output_limit`` or ``storage_full`` when the warden froze the tree for it and is killing it.
    gone: no process of the tree is left.
    lost: the warden was killed before it could prove the tree gone. Call ``end_orphans`` with the owner's marker and
        ``clear_append_only`` on the output; ``exit`` is set when at least the child's end was recorded.
    fenced: a newer node serves this run; nothing more will be heard here.
    is_protected: whether a re-opened stdout cannot be cut (``SpawnRequest.stdout_fd``); None until spawned.
    """

    def __init__(self, directory: Path, *, generation: int) -> None:
        self.directory = directory
        self.owner: Owner | None = None
        self.exit: ExitRecord | None = None
        self.limit: str | None = None
        self.gone = False
        self.lost = False
        self.fenced = False
        self.is_protected: bool | None = None
        self._generation = generation
        self._loop = asyncio.get_running_loop()
        self._sock: socket.socket | None = None
        self._reader = FrameReader()
        self._writer: FrameWriter | None = None
        self._inputs = Inputs()
        self._sent = 0
        self._has_closed_input = False
        self._callbacks: list[Callable[[], None]] = []
        self._settling: asyncio.TimerHandle | None = None
        self._stop: Frame | None = None
        self._over = asyncio.Event()
        self._closed = False
        self._first: asyncio.Future[Frame | None] | None = None

    # --- what the run's owner uses

    @property
    def is_over(self) -> bool:
        """Nothing will change any more."""
        return self.gone or self.lost or self.fenced

    def on_change(self, callback: Callable[[], None]) -> None:
        """Call *callback* on the loop whenever one of the attributes has changed. It reads them; it must not raise."""
        self._callbacks.append(callback)

    def stop(self, *, steps: Sequence[str], grace_s: float, reason: str) -> None:
        """End the tree: *steps* (``int``, ``term``, ``hup``) spread over *grace_s*, then the kill. Never blocks.

        Only the first stop of a run counts, whoever sends it; without steps the kill is immediate. It is sent again when
        the link has to be made anew, and it is nothing for a child that has ended.
        """
        unknown = set(steps) - STEPS.keys()
        if unknown or grace_s < 0:
            raise ValueError(
                f"steps {sorted(unknown)} unknown, or a negative grace {grace_s}; steps are {sorted(STEPS)}"
            )
        self._stop = self._stop or {"kind": Kind.STOP, "steps": list(steps), "grace_s": grace_s, "reason": reason}
        self._send(self._stop)

    def send_input(self, data: bytes, *, key: str = "") -> asyncio.Future[None]:
        """Hand *data* to a child that was spawned with ``stdin_pipe``; done when its last byte is in the pipe.

        Messages keep their order, and each is written whole even if this node dies once the warden has all of it. Nothing
        is written twice under one *key*, whoever sends it: after a crash a node may send again what it cannot know of.
        The future raises what this raises; cancelling it recalls nothing.

        Raises:
            InputRefused: at once, when the child is known to be gone or too much is under way.
        """
        if self._has_closed_input:
            raise InputRefused(InputRefusal.CLOSED)
        if self.exit is not None or self.is_over or self._closed:
            raise InputRefused(InputRefusal.GONE)
        self._sent += 1
        key = key or f"{self._generation}.{self._sent}"
        answer = self._inputs.add(key, data)
        for frame in self._inputs.frames(key):
            self._send(frame)
        return answer

    def close_input(self) -> None:
        """End the child's stdin after what was sent. Repeating does nothing."""
        self._has_closed_input = True
        self._send({"kind": Kind.INPUT_END})

    def set_deadline(self, at_boot_s: float | None) -> None:
        """Have the warden end the child at *at_boot_s* on CLOCK_BOOTTIME, with the reason ``deadline``; None: not any more.

        For the child of many runs, whose deadline changes. It holds when this node dies.
        """
        self._send({"kind": Kind.DEADLINE, "deadline_boot_s": at_boot_s})

    async def wait_gone(self, timeout_s: float) -> bool:
        """Wait until the tree is proven gone; False when it is not after *timeout_s*, or nobody can prove it any more."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._over.wait()
        except TimeoutError:
            pass
        return self.gone

    async def close(self) -> None:
        """Drop the link; the run goes on."""
        self._closed = True
        self._drop_socket()
        self._inputs.lose()
        self._over.set()
        if self._settling is not None:
            self._settling.cancel()
        if self._first is not None and not self._first.done():
            self._first.set_result(None)

    # --- what the keeper's client uses

    def attach(self, sock: socket.socket, *, greet: bool) -> asyncio.Future[Frame | None]:
        """Serve *sock*. The future gives the warden's first word about the run, or None when the link ended before it."""
        self._first = self._loop.create_future()
        self._serve(sock, greet=greet)
        return self._first

    def settle(self) -> None:
        """Without a link: take from the run directory what became of the run, or connect anew, as long as it takes."""
        self._settle(SETTLE_FIRST_S)

    # --- the link

    def _serve(self, sock: socket.socket, *, greet: bool) -> None:
        sock.setblocking(False)
        self._sock, self._reader, self._writer = sock, FrameReader(), FrameWriter(sock)
        self._loop.add_reader(sock.fileno(), self._on_readable)
        if greet:
            self._send({"kind": Kind.HELLO, "protocol": PROTOCOL, "generation": self._generation})
            if self._stop is not None:
                self._send(self._stop)
            for frame in self._inputs.frames():
                self._send(frame)
            if self._has_closed_input:
                self._send({"kind": Kind.INPUT_END})

    def _send(self, frame: Frame) -> None:
        if self._writer is not None:
            self._writer.send(encode(frame))

    def _on_readable(self) -> None:
        assert self._sock is not None
        try:
            data = self._sock.recv(_READ_BYTES)
            frames = self._reader.feed(data)
        except BlockingIOError:
            return
        except (OSError, ProtocolError):
            data, frames = b"", []
        before = self._known()
        for frame in frames:
            self._apply(frame)
        if not data:
            self._on_end()
        if self._known() != before:
            self._tell()

    def _known(self) -> tuple[object, ...]:
        return (self.owner, self.exit, self.limit, self.gone, self.lost, self.fenced)

    def _tell(self) -> None:
        if self.is_over:
            self._drop_socket()
            self._inputs.lose()
            self._over.set()
        if not self._closed:
            for callback in tuple(self._callbacks):
                callback()

    def _apply(self, frame: Frame) -> None:
        match frame["kind"]:
            case Kind.SPAWNED:
                self.owner, self.is_protected = owner_from(frame), bool(frame["is_protected"])
            case Kind.LIMIT:
                self.limit = str(frame["limit"])
            case Kind.EXITED:
                self.exit = exit_from(frame)
            case Kind.GONE:
                self.gone = True
            case Kind.FENCED:
                self.fenced = True
            case Kind.TAKEN | Kind.REFUSED:
                self._inputs.apply(frame)
                return  # an answer to this node, no word about the run
        if self._first is not None and not self._first.done() and frame["kind"] != Kind.HELLO:
            self._first.set_result(frame)

    # --- the end of the link

    def _on_end(self) -> None:
        self._drop_socket()
        if self._first is not None and not self._first.done():
            # nothing was heard yet: whoever waits for the first word decides what that means
            self._first.set_result(None)
        elif self.owner is not None and not (self.gone or self.fenced or self._closed):
            self._settle(SETTLE_FIRST_S)

    def _settle(self, pause_s: float) -> None:
        self._settling = None
        if self._closed:
            return
        if not lock_is_held(self.directory):
            self._conclude()
        elif (sock := connect_to_ctl(self.directory)) is not None:
            self._serve(sock, greet=True)
        else:
            self._settling = self._loop.call_later(pause_s, self._settle, min(pause_s * 2, SETTLE_LIMIT_S))

    def _conclude(self) -> None:
        """Nobody holds the lock: what the directory says now is final."""
        self.owner = self.owner or read_owner(self.directory)
        self.exit = read_exit(self.directory)
        self.gone = tree_was_proven_gone(self.directory)
        self.lost = not self.gone
        self._tell()

    def _drop_socket(self) -> None:
        if self._sock is not None:
            if self._writer is not None:
                self._writer.close()
            self._loop.remove_reader(self._sock.fileno())
            self._sock.close()
            self._sock = self._writer = None
