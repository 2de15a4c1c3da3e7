"""How the node notices that a file grew: one inotify instance for all runs, with a poll behind it.

Every file is looked at once a second whatever inotify says: some file systems say nothing, an overflowing queue says
everything at once, and a watch may be refused. Where watches do not work the poll becomes quick, and ``note`` says so.
There is no debounce: it costs latency and wins nothing.
"""

from __future__ import annotations

import asyncio
import ctypes
import errno
import os
import struct
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass

IN_MODIFY = 0x2
IN_Q_OVERFLOW = 0x4000
_FLAGS = os.O_NONBLOCK | os.O_CLOEXEC
_RECORD = struct.Struct("iIII")

LOOK_S = 1.0
POLL_ACTIVE_S = 0.01
POLL_IDLE_S = 0.25
_IDLE_AFTER = 50  # quiet quick polls until the slow ones


@dataclass(slots=True, eq=False)
class _Watch:
    fd: int
    wake: Callable[[], None]
    wd: int | None
    size: int = -1
    quiet: int = 0


class Tail:
    """The watcher of growing files. One per node, on one loop; made by :func:`open_tail`."""

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._inotify: int = self._libc.inotify_init1(_FLAGS)
        self._by_wd: dict[int, _Watch] = {}
        self._all: set[_Watch] = set()
        self.note = "" if self._inotify >= 0 else "file watching is not available; output is polled"
        self._timer: asyncio.TimerHandle | None = None

    @contextmanager
    def watch(self, path: bytes, fd: int, wake: Callable[[], None]) -> Iterator[None]:
        """Call *wake* on the loop whenever the file open as *fd* under *path* grew, until the block ends."""
        watch = _Watch(fd, wake, self._add(path))
        self._all.add(watch)
        if watch.wd is not None:
            self._by_wd[watch.wd] = watch
        else:
            self._schedule(POLL_ACTIVE_S)
        try:
            yield
        finally:
            self._all.discard(watch)
            if watch.wd is not None and self._by_wd.pop(watch.wd, None) is not None:
                self._libc.inotify_rm_watch(self._inotify, watch.wd)

    def _add(self, path: bytes) -> int | None:
        if self._inotify < 0:
            return None
        wd: int = self._libc.inotify_add_watch(self._inotify, path, IN_MODIFY)
        if wd < 0 or wd in self._by_wd:  # refused, or the file is watched already: the poll serves this one
            if wd < 0:
                self.note = (
                    f"file watching was refused ({errno.errorcode.get(ctypes.get_errno(), '?')}); output is polled"
                )
            return None
        return wd

    def start(self) -> None:
        if self._inotify >= 0:
            asyncio.get_running_loop().add_reader(self._inotify, self._on_events)
        self._schedule(LOOK_S)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._inotify >= 0:
            asyncio.get_running_loop().remove_reader(self._inotify)
            os.close(self._inotify)

    def _on_events(self) -> None:
        try:
            data = os.read(self._inotify, 65536)
        except BlockingIOError:
            return
        for wd, mask, _cookie, _length in _RECORD.iter_unpack(data):
            if mask & IN_Q_OVERFLOW:
                self._wake_all()
            elif (watch := self._by_wd.get(wd)) is not None:
                watch.wake()

    def _wake_all(self) -> None:
        for watch in tuple(self._all):
            watch.wake()

    def _schedule(self, delay: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(delay, self._look)

    def _look(self) -> None:
        """Compare every size with the last one seen, and choose when to look again."""
        soonest = LOOK_S
        for watch in tuple(self._all):
            size = os.fstat(watch.fd).st_size
            grew = size != watch.size
            watch.size, watch.quiet = size, 0 if grew else watch.quiet + 1
            if grew:
                watch.wake()
            if watch.wd is None:
                soonest = min(soonest, POLL_ACTIVE_S if watch.quiet < _IDLE_AFTER else POLL_IDLE_S)
        self._schedule(soonest)


@asynccontextmanager
async def open_tail() -> AsyncIterator[Tail]:
    """The node's watcher; nothing is watched any more when the block ends."""
    tail = Tail()
    tail.start()
    try:
        yield tail
    finally:
        tail.close()
