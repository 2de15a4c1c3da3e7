"""A child's stderr on disk: its first and its last 64 KiB, however much it prints.

Up to 128 KiB the file is what the child printed, byte for byte. Beyond, the head stays and is followed by one line that
says how many bytes are left out, and by the tail. The tail is held in memory and written at most once a second, so that
a killed warden leaves at least an older one. The file is made when the child prints its first byte: most never do.
"""

from __future__ import annotations

import os

HEAD_BYTES = 64 << 10
TAIL_BYTES = 64 << 10

_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW


class StderrFile:
    """Keeps what :meth:`take` is given. A full disk loses text, never the run: write errors are counted, not raised."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._descriptor = -1
        self._tail = bytearray()
        self.total_bytes = 0
        self.is_behind = False
        self.write_errors = 0

    def take(self, data: bytes) -> None:
        """Keep *data*; where something has to be left out the file waits for :meth:`flush`."""
        room = max(0, HEAD_BYTES - self.total_bytes)
        head, rest = data[:room], data[room:]
        if head:
            self._write(head, self.total_bytes)
        self.total_bytes += len(data)
        self._tail += rest
        if self.total_bytes <= HEAD_BYTES + TAIL_BYTES:
            self._write(rest, self.total_bytes - len(rest))
            return
        del self._tail[:-TAIL_BYTES]
        self.is_behind = True

    def flush(self) -> None:
        """Bring the file up to date."""
        if not self.is_behind:
            return
        left_out = self.total_bytes - HEAD_BYTES - len(self._tail)
        text = b"\n[%d bytes left out]\n" % left_out + self._tail
        self._write(text, HEAD_BYTES)
        self.is_behind = False

    def _write(self, data: bytes, offset: int) -> None:
        view = memoryview(data)
        try:
            if view and self._descriptor < 0:
                self._descriptor = os.open(self._name, _FLAGS, 0o600)
            while view:
                written = os.pwrite(self._descriptor, view, offset)
                view, offset = view[written:], offset + written
        except OSError:
            self.write_errors += 1
