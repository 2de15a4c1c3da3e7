"""The node's side of its keeper: finding or starting it, and sending it spawn frames whole."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from providers.keeper.home import LOG
from providers.keeper.keeper import SOCKET
from providers.keeper.protocol import PROTOCOL, SPOKEN, Frame, FrameReader, Kind, ProtocolError, encode
from providers.keeper.warden_link import connect_within

START_TIMEOUT_S = 5.0
SEND_TIMEOUT_S = 5.0
LINGER_S = 60.0

_RETRY_PAUSE_S = 0.005
_READ_BYTES = 4096


class KeeperUnavailable(Exception):
    """No keeper could be reached or started, or it did not answer; nothing is known to run. Try again later."""


class KeeperConnection:
    """A greeted connection to a living keeper; ``is_alive`` turns False when it ends."""

    def __init__(self, sock: socket.socket, pid: int) -> None:
        self.pid = pid
        self.is_alive = True
        self._sock = sock
        self._loop = asyncio.get_running_loop()
        self._sending = asyncio.Lock()  # a frame is never interleaved with another
        self._loop.add_reader(sock.fileno(), self._on_readable)

    async def send(self, frame: Frame, descriptors: Sequence[int] = ()) -> None:
        """Send *frame* with *descriptors*.

        Raises:
            ConnectionError: the keeper did not get the whole of it, so it has done nothing.
        """
        data = memoryview(encode(frame))
        async with self._sending:
            if not self.is_alive:
                raise ConnectionResetError("the keeper is gone")
            try:
                async with asyncio.timeout(SEND_TIMEOUT_S):
                    sent = await self._send_first(data, descriptors)
                    if sent < len(data):
                        await self._loop.sock_sendall(self._sock, data[sent:])
            except (OSError, TimeoutError) as error:
                self.close()
                raise ConnectionResetError("the keeper does not read") from error
            except asyncio.CancelledError:
                self.close()  # half a frame may be out: this connection cannot carry another
                raise

    async def _send_first(self, data: memoryview, descriptors: Sequence[int]) -> int:
        while True:
            try:
                return socket.send_fds(self._sock, [data], list(descriptors), socket.MSG_NOSIGNAL)
            except BlockingIOError:
                await _writable(self._loop, self._sock)

    def close(self) -> None:
        """Leave; the keeper and all runs go on."""
        if self.is_alive:
            self.is_alive = False
            self._loop.remove_reader(self._sock.fileno())
            self._sock.close()

    def _on_readable(self) -> None:
        """After its hello a keeper says nothing: what is readable is the end, by whatever name."""
        try:
            data = self._sock.recv(_READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self.close()


async def _writable(loop: asyncio.AbstractEventLoop, sock: socket.socket) -> None:
    ready: asyncio.Future[None] = loop.create_future()
    loop.add_writer(sock.fileno(), _resolve, ready)
    try:
        await ready
    finally:
        loop.remove_writer(sock.fileno())


async def connect_or_start(home: Path, *, generation: int) -> KeeperConnection:
    """A connection to the keeper of *home*, started when none lives.

    Raises:
        KeeperUnavailable: not within ``START_TIMEOUT_S``; its log says more.
    """
    try:
        async with asyncio.timeout(START_TIMEOUT_S):
            while True:
                connection = await _connect(home, generation)
                if connection is not None:
                    return connection
                await _start(home)
                if (connection := await _connect(home, generation)) is not None:
                    return connection
                await asyncio.sleep(_RETRY_PAUSE_S)  # one that was just leaving still held the lock
    except (TimeoutError, OSError) as error:
        raise KeeperUnavailable(f"no keeper within {START_TIMEOUT_S:g} s ({error!r}); see {home / LOG}") from error


async def _connect(home: Path, generation: int) -> KeeperConnection | None:
    sock = connect_within(home, SOCKET)
    if sock is None:
        return None
    try:
        pid = await _greet(sock, generation)
    except (OSError, ProtocolError, KeyError):
        sock.close()
        return None
    except asyncio.CancelledError:
        sock.close()
        raise
    return KeeperConnection(sock, pid)


async def _greet(sock: socket.socket, generation: int) -> int:
    loop, reader = asyncio.get_running_loop(), FrameReader()
    hello = encode({"kind": Kind.HELLO, "protocol": PROTOCOL, "generation": generation})
    await loop.sock_sendall(sock, hello)
    while True:
        data = await loop.sock_recv(sock, _READ_BYTES)
        if not data:
            raise ConnectionResetError("the keeper left")
        for frame in reader.feed(data):
            if frame["kind"] == Kind.HELLO and frame["protocol"] in SPOKEN:
                return int(frame["pid"])
            raise ProtocolError(f"a keeper that answers {frame['kind']} in protocol {frame.get('protocol')}")


async def _start(home: Path) -> None:
    """Start a keeper that detaches itself, and wait until it listens or has found another one."""
    launcher = _launch(home)
    try:
        await _ended(launcher.pid)
    finally:
        launcher.kill()
        launcher.wait()


def _launch(home: Path) -> subprocess.Popen[bytes]:
    """Start the launcher by vfork: no code of this process runs in the child, whatever threads there are."""
    log = os.open(home / LOG, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    try:
        return subprocess.Popen(
            [sys.executable, "-I", "-S", str(home / "keeper.py"), "detach", str(LINGER_S)],
            cwd="/",
            env={},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            close_fds=True,
            start_new_session=True,
        )
    finally:
        os.close(log)


async def _ended(pid: int) -> None:
    loop, pidfd = asyncio.get_running_loop(), os.pidfd_open(pid)
    ended: asyncio.Future[None] = loop.create_future()
    loop.add_reader(pidfd, _resolve, ended)
    try:
        await ended
    finally:
        loop.remove_reader(pidfd)
        os.close(pidfd)


def _resolve(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def retire(home: Path) -> None:
    """Tell the keeper of another build to leave when its last warden has; nothing when none lives."""
    sock = connect_within(home, SOCKET)
    if sock is None:
        return
    try:
        sock.send(encode({"kind": Kind.RETIRE, "protocol": PROTOCOL}), socket.MSG_NOSIGNAL)
    except OSError:
        pass
    finally:
        sock.close()
