"""The clock of deadlines: CLOCK_BOOTTIME counts suspend and is not moved by the wall clock; a boot id names its zero."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from functools import cache

_LONGEST_SLEEP_S = 30.0  # the loop's clock stands still in suspend, so long waits look again this often


def boot_time_s() -> float:
    """Seconds since this boot, suspend included."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


@cache
def boot_id() -> str:
    """Names this boot of the machine; times of another boot mean nothing here."""
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        return file.read().strip()


class Alarm:
    """Calls once when a boot time has come. Owned by one loop; :meth:`cancel` is safe to repeat."""

    def __init__(self, at_boot_s: float, action: Callable[[], object]) -> None:
        self._at, self._action = at_boot_s, action
        self._handle: asyncio.Handle | None = None
        self._arm()

    def _arm(self) -> None:
        remaining = self._at - boot_time_s()
        if remaining <= 0:
            self._handle = asyncio.get_running_loop().call_soon(self._action)
        else:
            self._handle = asyncio.get_running_loop().call_later(min(remaining, _LONGEST_SLEEP_S), self._arm)

    def cancel(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None
