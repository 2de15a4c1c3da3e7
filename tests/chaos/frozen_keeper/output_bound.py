"""When a run prints too much, or its file system runs full.

Looks ten times a second while the file grows and once a second when it does not, so that a silent run costs nothing
worth counting. The free space is looked at only when this run's output grew: a silent run does not pay for the noise of
others.
"""

from __future__ import annotations

import os

OUTPUT_LIMIT = "output_limit"
STORAGE_FULL = "storage_full"

BUSY_S = 0.1
IDLE_S = 1.0


class OutputBound:
    """Watches one open file. ``due`` is the time of the next look, on the clock that *now* was taken from."""

    def __init__(self, descriptor: int, *, output_bytes: int, disk_watermark_bytes: int, now: float) -> None:
        self._descriptor = descriptor
        self._output_bytes = output_bytes
        self._disk_watermark_bytes = disk_watermark_bytes
        self._size = 0
        self._pause_s = BUSY_S
        self.due = now + BUSY_S

    def look(self, now: float) -> str | None:
        """Which limit is crossed, if any."""
        size = os.fstat(self._descriptor).st_size
        has_grown, self._size = size > self._size, size
        self._pause_s = BUSY_S if has_grown else min(self._pause_s * 2, IDLE_S)
        self.due = now + self._pause_s
        if size > self._output_bytes:
            return OUTPUT_LIMIT
        if has_grown and self._free_bytes() < self._disk_watermark_bytes:
            return STORAGE_FULL
        return None

    def _free_bytes(self) -> int:
        try:
            room = os.fstatvfs(self._descriptor)
        except OSError:
            return self._disk_watermark_bytes  # a file system that does not say has no watermark
        return room.f_bavail * room.f_frsize
